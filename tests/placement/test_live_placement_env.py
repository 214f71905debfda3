"""`InfraMind-PlacementLive-v0` promises what `InfraMind-Placement-v0` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("aiohttp")


from inframind_gym.cli import app
from inframind_gym.envs.live import PlacementLiveEnv
from inframind_gym.envs.placement import PlacementEnv
from inframind_gym.live import config
from inframind_gym.live.config import PlacementLiveConfig
from inframind_gym.live.placement.cluster import LivePlacement
from tests.placement.live_toys import MODELS, Pretended
from tests.placement.toys import write_demand

LIVE = "InfraMind-PlacementLive-v0"


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Of an environment whose servers pretend."""
    monkeypatch.setattr(
        LivePlacement, "_vllm_server", lambda self, g, m: Pretended(MODELS[m], self._live.live)
    )
    return {
        "demand": write_demand(
            tmp_path, jobs_per_gpu_per_min=200, output_tokens={"median": 9, "sigma": 0}
        ),
        "routing_interval_s": 0.1,
        "decision_interval_s": 0.2,
        "num_decisions": 6,
        "state": str(tmp_path),
    }


def play(env: PlacementEnv) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    observation, info = env.reset(seed=4)
    infos, over = [info], False
    while not over:
        assert observation in env.observation_space
        action = np.array([rng.choice(np.flatnonzero(mask)) for mask in info["action_mask"]])
        observation, reward, terminated, over, info = env.step(action)
        assert not terminated and reward == pytest.approx(sum(info["rewards"].values()))
        infos.append(info)
    return infos


def test_spaces_infos_and_records_are_those_of_the_simulation(arguments: dict[str, Any]) -> None:
    same = {k: v for k, v in arguments.items() if k != "state"}
    simulated = gym.make("InfraMind-Placement-v0", cluster="cpu-tiny", **same).unwrapped
    env = gym.make(LIVE, **arguments).unwrapped
    assert isinstance(env, PlacementLiveEnv) and isinstance(simulated, PlacementEnv)
    assert gym.spec(LIVE).nondeterministic
    try:
        assert env.observation_space == simulated.observation_space
        assert env.action_space == simulated.action_space
        live, expected = play(env), play(simulated)
        assert [info["time_s"] for info in live] == pytest.approx(
            [i["time_s"] for i in expected], abs=0.5
        )
        for one, other in zip(live[:-1], expected[:-1], strict=True):
            assert one.keys() == other.keys()
        assert live[-1].keys() - expected[-1].keys() == {"failed_calls", "lost_calls"}
        assert live[-1]["jobs_arrived"] >= expected[-1]["jobs_arrived"] > 0
        for name in ("arrival_s", "topology", "num_agents", "calls", "slo_s"):
            one_, other_ = (
                {int(job["job"]): job[name] for job in e.simulation.finished(0)}
                for e in (env, simulated)
            )
            both = one_.keys() & other_.keys()
            assert [one_[job] for job in both] == [other_[job] for job in both]
        assert env.completed().dtype == simulated.completed().dtype
        for one_part, other_part in zip(env.context(), simulated.context(), strict=True):
            assert (one_part.dtype, one_part.shape) == (other_part.dtype, other_part.shape)
        assert play(env)[-1]["jobs_arrived"] > 0  # the servers stay
    finally:
        env.close()
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros(2, np.int64))


class Quick(PlacementLiveConfig):
    routing_interval_s: float = 0.1
    decision_interval_s: float = 0.2


def test_the_command(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "PlacementLiveConfig", Quick)
    given = ["--pool", "cpu-tiny", "--demand", arguments["demand"], "--state", arguments["state"]]
    given += ["--decisions", "1"]
    own = ["--policy", "inframind_gym.policies.placement:RandomPlacement"]
    for policy in ([], own):  # the default: mcf_plus
        done = CliRunner().invoke(app, ["pool", "place", *given, *policy])
        assert done.exit_code == 0, done.output
        assert "GPU 0" in done.output and ": load took" in done.output
        assert "failed_wakes" in done.output
