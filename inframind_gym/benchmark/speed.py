"""Speed of the simulator on one core of this machine, with the targets that it must reach."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.machine import keep_to_one_core
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.progress import say
from inframind_gym.benchmark.provenance import provenance
from inframind_gym.benchmark.tables import Sheet
from inframind_gym.errors import unknown

RATE_PER_MIN = 100.0
NUM_ENVS = 1024
EXECUTOR_ENVS = 64
PLACEMENT_ENVS = 64
PLACEMENT_GPUS = 8
PLACEMENT_CLUSTER = f"h100-{PLACEMENT_GPUS}gpu"
STATIC_ACTION = 7  # qwen-14b, Concise: the baseline `static`
KERNEL_REQUESTS = 200_000
_SECONDS = 1.0  # that one measurement takes about


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    Attributes:
        key: Name in JSON.
        what: Description.
        unit: Of the figure.
        target: Least value that is wanted, in seconds the most; None for a figure without one.
    """

    key: str
    what: str
    unit: str
    target: float | None = None

    def reached(self, value: float) -> bool | None:
        """Return whether a value reaches the target, if there is one."""
        if self.target is None:
            return None
        return value <= self.target if self.unit == "s" else value >= self.target

    def row(self, value: float) -> list[str]:
        """Return the line of a table."""
        sign = "<=" if self.unit == "s" else ">="
        target = "" if self.target is None else f"{sign} {self.target:,.0f}"
        verdict = {None: "", True: "yes", False: "NO"}[self.reached(value)]
        digits = 2 if abs(value) < 100 else 0
        return [self.what, f"{value:,.{digits}f} {self.unit}", target, verdict]


FIGURES: dict[str, Figure] = {
    figure.key: figure
    for figure in (
        Figure(
            "stream_vector_index_dps",
            f"Stream vector, n = {NUM_ENVS}, index observations",
            "decisions/s",
            1_000_000,
        ),
        Figure(
            "stream_vector_full_dps",
            f"Stream vector, n = {NUM_ENVS}, full observations",
            "decisions/s",
            500_000,
        ),
        Figure("stream_single_sps", "Stream single, gym.make", "steps/s", 50_000),
        Figure(
            "executor_vector_sps",
            f"Executor vector, n = {EXECUTOR_ENVS}, background {RATE_PER_MIN:g}/min, static action",
            "steps/s",
            15_000,
        ),
        Figure(
            "executor_vector_random_sps",
            "The same, random actions (a fifth of them wait for the overloaded model)",
            "steps/s",
        ),
        Figure("kernel_rps", "Kernel alone, five servers", "requests/s", 2_000_000),
        Figure("kernel_simulated_s_per_s", "Kernel, simulated time", "s of simulation/s"),
        Figure(
            "placement_sps",
            f"Placement vector, n = {PLACEMENT_ENVS}, 8 GPUs, 8 models, random actions",
            "steps/s",
            20_000,
        ),
        Figure(
            "placement_idle_sps",
            "The same, all GPUs left alone (more calls are served)",
            "steps/s",
        ),
        Figure("placement_single_sps", "Placement single, gym.make, random actions", "steps/s"),
        Figure("import_s", "import inframind_gym", "s", 1.0),
        Figure("compile_s", "First use, nothing compiled yet", "s", 45.0),
        Figure("cached_start_s", "First use, compiled before", "s"),
    )
}


def measure(only: Sequence[str] | None = None, *, repeats: int = 5) -> dict[str, Any]:
    """Measure speed figures on one core.

    Args:
        only: Keys of measurements, each of which gives one or more figures; None takes all.
        repeats: Measurements of each figure; the median is kept. The compilation is measured once.

    Returns:
        The figures by key, ``targets``, ``repeats``, and where they were measured.

    Raises:
        BenchmarkError: A key is unknown.
    """
    keys = list(only or _MEASUREMENTS)
    for key in keys:
        if key not in _MEASUREMENTS:
            raise BenchmarkError(unknown("figure", key, _MEASUREMENTS))
    figures: dict[str, float] = {}
    for key in keys:
        say(f"measuring {FIGURES[key].what} ...")
        with keep_to_one_core():
            figures |= _MEASUREMENTS[key](repeats)
    return {
        **figures,
        "targets": {key: FIGURES[key].target for key in keys},
        "repeats": repeats,
        **provenance(),
    }


def speed_sheet(figures: dict[str, Any]) -> Sheet:
    """Make the table of the figures and their targets."""
    machine, packages = figures["machine"], figures["packages"]
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    return Sheet(
        f"Speed, one core of {machine['processor']}",
        ["", "median", "target", "reached"],
        [figure.row(figures[key]) for key, figure in FIGURES.items() if key in figures],
        f"Medians of {figures['repeats']}, compilation once. "
        f"Python {figures['python']}, {versions}. "
        f"Streams: fixed actions, {RATE_PER_MIN:g} queries/min, five models.",
    )


def _median_rate(work: Callable[[], int], repeats: int) -> float:
    """Return the median over repeats of a rate per second."""
    rates = []
    for _ in range(repeats):
        began = time.perf_counter()
        done = work()
        rates.append(done / (time.perf_counter() - began))
    return statistics.median(rates)


def _vector(
    env_id: str, num_envs: int, repeats: int, action: int | None = None, **kwargs: Any
) -> float:
    """Return steps per second of a vector environment, all rows counted.

    The actions are fixed beforehand: one action for every step, or random ones.
    """
    import gymnasium as gym

    import inframind_gym  # noqa: F401

    env = gym.make_vec(env_id, num_envs=num_envs, arrival_rate_per_min=RATE_PER_MIN, **kwargs)
    actions = np.random.default_rng(0).integers(0, 15, size=(256, num_envs))
    if action is not None:
        actions[:] = action
    env.reset(seed=0)

    def steps(count: int) -> int:
        for i in range(count):
            env.step(actions[i % len(actions)])
        return count * num_envs

    warm_up = 200 if num_envs >= NUM_ENVS else 1000
    began = time.perf_counter()
    steps(warm_up)
    count = max(10, int(warm_up * _SECONDS / (time.perf_counter() - began)))
    rate = _median_rate(lambda: steps(count), repeats)
    env.close()
    return rate


def _single(repeats: int) -> dict[str, float]:
    import gymnasium as gym

    import inframind_gym  # noqa: F401

    env = gym.make("InfraMind-Stream-v0", arrival_rate_per_min=RATE_PER_MIN)
    actions: list[int] = np.random.default_rng(0).integers(0, 15, size=20_000).tolist()
    env.reset(seed=0)

    def steps() -> int:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return len(actions)

    steps()
    rate = _median_rate(steps, repeats)
    env.close()
    return {"stream_single_sps": rate}


def _placement(repeats: int) -> dict[str, float]:
    """Measure steps per second of the placement environment, autoresets included."""
    import gymnasium as gym

    import inframind_gym  # noqa: F401

    batch = gym.make_vec(
        "InfraMind-Placement-v0", num_envs=PLACEMENT_ENVS, cluster=PLACEMENT_CLUSTER
    )
    shape = (256, PLACEMENT_ENVS, PLACEMENT_GPUS)
    models = int(batch.single_action_space.nvec[0])  # type: ignore[attr-defined]
    random = np.random.default_rng(0).integers(0, models, size=shape)

    def steps(actions: NDArray[np.int64], count: int) -> int:
        for i in range(count):
            batch.step(actions[i % len(actions)])
        return count * PLACEMENT_ENVS

    rates = []
    for actions in (random, np.zeros_like(random)):
        batch.reset(seed=0)
        steps(actions, 240)  # two episodes
        rates.append(_median_rate(lambda chosen=actions: steps(chosen, 240), repeats))  # type: ignore[misc]
    batch.close()

    env = gym.make("InfraMind-Placement-v0", cluster=PLACEMENT_CLUSTER)
    env.reset(seed=0)

    def single_steps() -> int:
        for action in random[:, :8].reshape(-1, PLACEMENT_GPUS):
            _, _, _, truncated, _ = env.step(action)
            if truncated:
                env.reset()
        return 8 * len(random)

    single_steps()
    single = _median_rate(single_steps, repeats)
    env.close()
    return {
        "placement_sps": rates[0],
        "placement_idle_sps": rates[1],
        "placement_single_sps": single,
    }


def _kernel(repeats: int) -> dict[str, float]:
    """Measure the kernel, ordered by deadlines, under an open load of 70 % of all slots.

    The slots are those with busy neighbours on the same GPU: no queue grows without end.
    """
    from inframind_gym.simulator.server import cards, replay_requests
    from inframind_gym.simulator.server.pool import load_pool

    card = cards(load_pool("b200-2gpu"))
    rng = np.random.default_rng(0)
    n, mean_tokens = KERNEL_REQUESTS, 300
    busy_peers = np.array([int(peers).bit_count() for peers in card["peers"]])
    step_s = card["base_s"] + card["max_num_seqs"] * card["per_seq_s"]
    step_s *= 1.0 + card["slowdown"] * busy_peers
    rate_per_s = 0.7 * card["max_num_seqs"] / (mean_tokens * step_s)
    server = rng.choice(len(card), size=n, p=rate_per_s / rate_per_s.sum())
    submit_s = np.cumsum(rng.exponential(1.0 / rate_per_s.sum(), size=n))
    prompts = rng.integers(100, 600, size=n)
    outputs = np.clip(rng.lognormal(np.log(mean_tokens) - 0.125, 0.5, size=n), 1, 2048).astype(
        np.int64
    )
    deadline_s = submit_s + rng.choice([10.0, 30.0, 50.0, 100.0, 200.0, 300.0], size=n)
    simulated_s = 0.0

    def replay() -> int:
        nonlocal simulated_s
        served = replay_requests(card, server, submit_s, prompts, outputs, deadline_s)
        simulated_s = float(served["finish_s"].max())
        return n

    replay()
    rate = _median_rate(replay, repeats)
    return {"kernel_rps": rate, "kernel_simulated_s_per_s": simulated_s * rate / n}


_IMPORT = "import inframind_gym"
_FIRST_USE = """
import gymnasium as gym
import inframind_gym
for env_id in ("InfraMind-Stream-v0", "InfraMind-Executor-v0"):
    env = gym.make(env_id)
    env.reset(seed=0)
    env.step(0)
    env = gym.make_vec(env_id, num_envs=2)
    env.reset(seed=0)
    env.step(env.action_space.sample())
"""


def _seconds_in_fresh_process(code: str, **environment: str) -> float:
    """Return the seconds that code takes in a new interpreter, without its own start."""
    timed = (
        "import json, time\nbegan = time.perf_counter()\n"
        f"{code}\nprint(json.dumps(time.perf_counter() - began))"
    )
    done = subprocess.run(
        [sys.executable, "-c", timed],
        env={**os.environ, **environment},
        cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchmarkError("a fresh Python process failed; its error is above.")
    return float(json.loads(done.stdout.splitlines()[-1]))


def _import(repeats: int) -> dict[str, float]:
    return {
        "import_s": statistics.median(_seconds_in_fresh_process(_IMPORT) for _ in range(repeats))
    }


def _compile(repeats: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as cache:
        compiled = _seconds_in_fresh_process(_FIRST_USE, NUMBA_CACHE_DIR=cache)
        cached = [
            _seconds_in_fresh_process(_FIRST_USE, NUMBA_CACHE_DIR=cache) for _ in range(repeats)
        ]
    return {"compile_s": compiled, "cached_start_s": statistics.median(cached)}


_MEASUREMENTS: dict[str, Callable[[int], dict[str, float]]] = {
    "stream_vector_index_dps": lambda repeats: {
        "stream_vector_index_dps": _vector(
            "InfraMind-Stream-v0", NUM_ENVS, repeats, observation="index"
        )
    },
    "stream_vector_full_dps": lambda repeats: {
        "stream_vector_full_dps": _vector(
            "InfraMind-Stream-v0", NUM_ENVS, repeats, observation="full"
        )
    },
    "stream_single_sps": _single,
    "executor_vector_sps": lambda repeats: {
        "executor_vector_sps": _vector(
            "InfraMind-Executor-v0", EXECUTOR_ENVS, repeats, STATIC_ACTION, observation="index"
        ),
        "executor_vector_random_sps": _vector(
            "InfraMind-Executor-v0", EXECUTOR_ENVS, repeats, observation="index"
        ),
    },
    "kernel_rps": _kernel,
    "placement_sps": _placement,
    "import_s": _import,
    "compile_s": _compile,
}
