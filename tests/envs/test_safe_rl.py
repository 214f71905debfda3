"""The adapter for OmniSafe, on a stand-in of the two things that it takes from there.

OmniSafe is not installed with this package (it pins an old Gymnasium): docs/howto/train.md says how
its own trainer is run.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from inframind_gym.errors import ConfigError

torch = pytest.importorskip("torch")


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class that is registered, on a base class without anything."""
    core: Any = ModuleType("omnisafe.envs.core")
    core.CMDP = type("CMDP", (), {"__init__": lambda self, env_id: None})
    core.env_register = lambda cls: cls
    for name in ("omnisafe", "omnisafe.envs"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "omnisafe.envs.core", core)
    monkeypatch.delitem(sys.modules, "inframind_gym.envs.safe_rl", raising=False)
    from inframind_gym.envs.safe_rl import InfraMindCMDP

    yield InfraMindCMDP
    sys.modules.pop("inframind_gym.envs.safe_rl", None)


def test_an_episode_has_costs_and_takes_the_largest_open_number(adapter: Any) -> None:
    arguments = {"workload": "math", "num_queries": 20, "observation": "compact"}
    env = adapter("InfraMind-Stream-v0", planner={"topology": "IO", "num_agents": 1}, **arguments)
    assert env._action_space.shape == (15,)
    seen, _ = env.reset(seed=3)
    assert seen.shape == env._observation_space.shape and seen.dtype == torch.float32
    costs, over = 0.0, False
    while not over:
        seen, _, cost, terminated, truncated, info = env.step(torch.arange(15.0))
        costs, over = costs + float(cost), bool(terminated) or bool(truncated)
    env.close()
    assert costs == pytest.approx(info["episode_cost"], rel=1e-4) and costs > 0


def test_every_simulated_id_is_reset(adapter: Any) -> None:
    for env_id in adapter._support_envs:
        flat = {"observation": "flat"} if "Assignment" in env_id else {}
        env = adapter(env_id, **flat)
        seen, _ = env.reset(seed=0)
        assert seen.shape == env._observation_space.shape
        env.close()
    with pytest.raises(ConfigError, match="observation='flat'"):
        adapter("InfraMind-Assignment-v0")
    del sys.modules["inframind_gym.envs.safe_rl"], sys.modules["omnisafe.envs.core"]
    with pytest.raises(ConfigError, match=r"omnisafe.*pip install --no-deps omnisafe"):
        import_module("inframind_gym.envs.safe_rl")
    with pytest.raises(ConfigError, match="num_envs"):
        adapter("InfraMind-Stream-v0", num_envs=2)
