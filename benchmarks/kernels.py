"""Machine code that a wheel carries: ``python -m benchmarks.kernels FOLDER``.

Every entry point of the package is called once, in processes that compile for processors in general
(`inframind_gym.simulator.jit.SHIPPED_FOR`) and that know no code but their own. Their cache,
under the names that `shipped` looks for, is the folder.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np

_ROOT: Final = Path(__file__).parents[1]


def write_kernels(folder: Path) -> Path:
    """Compile every entry point into a folder of this machine's name; return that.

    Raises:
        SystemExit: There is no such processor in general, or an entry point was not compiled.
    """
    from inframind_gym.simulator.jit import SHIPPED_FOR

    machine = platform.machine()
    if machine not in SHIPPED_FOR:
        raise SystemExit(f"kernels: nothing is compiled ahead of time for {machine}")
    out, stamp = folder / machine, folder / f"{machine}.sha256"
    digest = _digest()
    if out.is_dir() and stamp.is_file() and stamp.read_text("utf-8") == digest:
        return out  # tools build a wheel twice: at first for its metadata
    stamp.unlink(missing_ok=True)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as cache:
        apart = {
            "INFRAMIND_KERNELS": "",
            "NUMBA_CACHE_DIR": cache,
            "NUMBA_CPU_NAME": SHIPPED_FOR[machine][0],
            "NUMBA_CPU_FEATURES": "",
        }
        subprocess.run(
            [sys.executable, "-c", "from benchmarks.kernels import use_all; use_all()"],
            cwd=_ROOT,
            env=os.environ | apart,
            check=True,
        )
        for path in Path(cache).rglob("*.bin"):
            shutil.copy(path, out / f"{path.stem.rpartition('-')[0]}.bin")
    stamp.write_text(digest, "utf-8")
    return out


def _digest() -> str:
    """Return the sha256 of the package's sources and of the compiler's versions."""
    digest = hashlib.sha256((version("numba") + version("llvmlite")).encode())
    for path in sorted((_ROOT / "inframind_gym").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def use_all() -> None:
    """Call every compiled entry point of the package.

    Raises:
        SystemExit: One was not called, or one of the package's modules cannot be imported.
    """
    _use_routing()
    _use_oracles()
    _use_backend()
    _use_placement()
    _use_replay()
    from inframind_gym.simulator.jit import entry_points

    unused = [entry.py_func.__qualname__ for entry in entry_points if not entry.programs]
    if unused:
        raise SystemExit(f"kernels: {', '.join(unused)} was not compiled; use it in {__file__}")


def _use_routing() -> None:
    import gymnasium as gym

    import inframind_gym  # noqa: F401  (registers the environments)

    env = gym.make("InfraMind-Stream-v0", render_mode="rgb_array")
    env.reset(seed=0)
    env.step(0)
    env.render()
    env.close()


def _use_oracles() -> None:
    """Play a policy that has prices, and count work."""
    import gymnasium as gym

    from inframind_gym.policies import requires_of, resolve_policy

    policy: Any = resolve_policy("bid_price")
    env: Any = gym.make_vec(
        "InfraMind-Stream-v0", num_envs=2, num_queries=20, **requires_of(policy)
    ).unwrapped
    observations, _ = env.reset(seed=0)
    policy.reset(env.policy_spec(), [0, 1])
    env.step(policy.act_batch(observations, env.contexts(), np.arange(2)))
    from inframind_gym.policies.oracle import RECIPE, make_oracle, outcomes_of, work_of_calls
    from inframind_gym.simulator.server.state import cards
    from inframind_gym.simulator.workflow.state import CALL

    oracle = make_oracle(env.simulation.params, cards(env.simulation.pool))
    work_of_calls(oracle, np.zeros(1, CALL), np.zeros((1, len(oracle.card))))
    outcomes_of(oracle, np.uint64(0), np.zeros(0, np.int64), np.zeros(0, RECIPE))


def _use_backend() -> None:
    """Play a stream on a scripted backend, by the rules of live servers."""
    from inframind_gym.envs.backend import BackendSimulation
    from inframind_gym.envs.routing_config import env_config
    from inframind_gym.simulator.workflow.backend import Reply, ScriptedBackend

    simulation = BackendSimulation(
        env_config({"num_queries": 3}),
        lambda _, __: ScriptedBackend(5, lambda _: Reply(1.0)),
        one_query=False,
    )
    observations, row = simulation.observations(), np.zeros(1, np.int64)
    simulation.set_options({"arrival_rate_per_min": 60.0, "budget_s": 30.0})
    simulation.reset(row, [np.random.default_rng(0)], observations)
    while not simulation.status[0]:
        simulation.step(row, np.zeros((1, 1), np.int64), observations)
    simulation.close()


def _use_placement() -> None:
    import gymnasium as gym

    from inframind_gym.live.placement import events
    from inframind_gym.live.placement.traffic import Records
    from inframind_gym.policies import resolve_policy
    from inframind_gym.policies.mcf import assign

    env: Any = gym.make("InfraMind-Placement-v0").unwrapped
    policy: Any = resolve_policy("mcf_plus", family="placement")
    env.reset(seed=0)
    policy.reset(env.policy_spec(), [0])
    observations = env.simulation.observations()
    env.step(policy.act_batch(observations, env.context(), np.arange(1))[0])
    env.simulation.held_mb(np.arange(1))
    assign(np.zeros((2, 2), np.int64), np.zeros((2, 2), np.int64), np.zeros(2, np.int64))
    Records(env.simulation).write(events.CLEAR)


def _use_replay() -> None:
    from inframind_gym.simulator.server.open_loop import OpenLoop, replay_requests
    from inframind_gym.simulator.server.pool import load_pool
    from inframind_gym.simulator.server.state import cards

    card = cards(load_pool("b200-2gpu"))
    replay_requests(card, [0], [0.0], [10], [10])
    OpenLoop(card, 2).use_all()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m benchmarks.kernels FOLDER")
    print(write_kernels(Path(sys.argv[1])))
