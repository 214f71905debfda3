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
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

import inframind_gym  # noqa: F401  (registers the environments)
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.machine import keep_to_one_core
from inframind_gym.benchmark.provenance import provenance
from inframind_gym.benchmark.tables import Sheet
from inframind_gym.errors import unknown
from inframind_gym.progress import say

RATE_PER_MIN = 100.0
NUM_ENVS = 1024
EXECUTOR_ENVS = 64
PLACEMENT_ENVS = 64
PLACEMENT_GPUS = 8
PLACEMENT_CLUSTER = f"h100-{PLACEMENT_GPUS}gpu"
STATIC_ACTION = 7  # qwen-14b, Concise: the policy `static`
KERNEL_REQUESTS = 200_000
_SECONDS = 1.0  # that one measurement takes about

Figures = dict[str, float]


class Figure(NamedTuple):
    """One line of the table.

    Attributes:
        what: Description.
        unit: Of the figure.
        target: Least value that is wanted, of seconds the most; None for a figure without one.
    """

    what: str
    unit: str
    target: float | None = None

    def row(self, value: float) -> list[str]:
        """Return description, value, target, and whether it is reached."""
        digits = 2 if abs(value) < 100 else 0
        shown = f"{value:,.{digits}f} {self.unit}"
        if self.target is None:
            return [self.what, shown, "", ""]
        at_most = self.unit == "s"
        reached = value <= self.target if at_most else value >= self.target
        target = f"{'<=' if at_most else '>='} {self.target:,.0f}"
        return [self.what, shown, target, "yes" if reached else "NO"]


FIGURES: dict[str, Figure] = {
    "stream_vector_index_dps": Figure(
        f"Stream vector, n = {NUM_ENVS}, index observations", "decisions/s", 1_000_000
    ),
    "stream_vector_full_dps": Figure(
        f"Stream vector, n = {NUM_ENVS}, full observations", "decisions/s", 500_000
    ),
    "stream_single_sps": Figure("Stream single, gym.make", "steps/s", 50_000),
    "executor_vector_sps": Figure(
        f"Executor vector, n = {EXECUTOR_ENVS}, background {RATE_PER_MIN:g}/min, static action",
        "steps/s",
        15_000,
    ),
    "executor_vector_random_sps": Figure(
        "The same, random actions (a fifth of them wait for the overloaded model)", "steps/s"
    ),
    "kernel_rps": Figure("Kernel alone, five servers", "requests/s", 2_000_000),
    "kernel_simulated_s_per_s": Figure("Kernel, simulated time", "s/s"),
    "placement_sps": Figure(
        f"Placement vector, n = {PLACEMENT_ENVS}, 8 GPUs, 8 models, random actions",
        "steps/s",
        20_000,
    ),
    "placement_idle_sps": Figure(
        "The same, all GPUs left alone (more calls are served)", "steps/s"
    ),
    "placement_single_sps": Figure("Placement single, gym.make, random actions", "steps/s"),
    "assignment_sps": Figure(
        f"Assignment vector, n = {NUM_ENVS}, full observations, random actions",
        "steps/s",
        200_000,
    ),
    "assignment_queue_sps": Figure("The same, queueing form", "steps/s", 200_000),
    "assignment_single_sps": Figure("Assignment single, gym.make, random actions", "steps/s"),
    "import_s": Figure("import inframind_gym", "s", 1.0),
    "compile_s": Figure("First use, nothing compiled yet", "s", 45.0),
    "cached_start_s": Figure("First use, compiled before", "s"),
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
    figures: Figures = {}
    for key in keys:
        say(f"measuring {FIGURES[key].what} ...")
        with keep_to_one_core():
            found = _MEASUREMENTS[key](repeats)
        figures |= found if isinstance(found, dict) else {key: found}
    targets = {key: FIGURES[key].target for key in keys}
    return {**figures, "targets": targets, "repeats": repeats, **provenance()}


def speed_sheet(figures: dict[str, Any]) -> Sheet:
    """Make the table of the figures and their targets."""
    packages = figures["packages"].items()
    return Sheet(
        f"Speed, one core of {figures['machine']['processor']}",
        ["", "median", "target", "reached"],
        [figure.row(figures[key]) for key, figure in FIGURES.items() if key in figures],
        f"Medians of {figures['repeats']}, compilation once. Python {figures['python']}, "
        f"{', '.join(f'{name} {version}' for name, version in packages)}. "
        f"Streams: fixed actions, {RATE_PER_MIN:g} queries/min, five models.",
    )


def _median_rate(work: Callable[[], int], repeats: int) -> float:
    """Return the median over repeats of what `work` does per second."""
    rates = []
    for _ in range(repeats):
        began = time.perf_counter()
        done = work()
        rates.append(done / (time.perf_counter() - began))
    return statistics.median(rates)


def _batch_rate(env: gym.vector.VectorEnv, actions: NDArray[Any], warm_up: int, n: int) -> float:
    """Return steps per second, all rows counted; `warm_up` steps decide how many are measured."""
    env.reset(seed=0)

    def steps(count: int) -> int:
        for i in range(count):
            env.step(actions[i % len(actions)])
        return count * env.num_envs

    began = time.perf_counter()
    steps(warm_up)
    count = max(10, int(warm_up * _SECONDS / (time.perf_counter() - began)))
    return _median_rate(lambda: steps(count), n)


def _single_rate(env: gym.Env[Any, Any], actions: Sequence[Any], n: int) -> float:
    """Return steps per second of a single environment, resets included."""
    env.reset(seed=0)

    def steps() -> int:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return len(actions)

    steps()
    return _median_rate(steps, n)


def _vector(
    env_id: str, num_envs: int, n: int, *, fixed: int | None = None, **kwargs: Any
) -> float:
    """Measure a vector environment of routing under one fixed action, or under random ones."""
    env = gym.make_vec(env_id, num_envs=num_envs, arrival_rate_per_min=RATE_PER_MIN, **kwargs)
    actions = np.random.default_rng(0).integers(0, 15, size=(256, num_envs))
    if fixed is not None:
        actions[:] = fixed
    rate = _batch_rate(env, actions, 200 if num_envs >= NUM_ENVS else 1000, n)
    env.close()
    return rate


def _stream(observation: str, n: int) -> float:
    return _vector("InfraMind-Stream-v0", NUM_ENVS, n, observation=observation)


def _single_stream(n: int) -> float:
    env = gym.make("InfraMind-Stream-v0", arrival_rate_per_min=RATE_PER_MIN)
    rate = _single_rate(env, np.random.default_rng(0).integers(0, 15, size=20_000).tolist(), n)
    env.close()
    return rate


def _executor(n: int) -> Figures:
    made = ("InfraMind-Executor-v0", EXECUTOR_ENVS, n)
    return {
        "executor_vector_sps": _vector(*made, fixed=STATIC_ACTION, observation="index"),
        "executor_vector_random_sps": _vector(*made, observation="index"),
    }


def _placement(n: int) -> Figures:
    made = {"id": "InfraMind-Placement-v0", "cluster": PLACEMENT_CLUSTER}
    batch = gym.make_vec(num_envs=PLACEMENT_ENVS, **made)  # type: ignore[arg-type]
    models = int(batch.single_action_space.nvec[0])  # type: ignore[attr-defined]
    shape = (256, PLACEMENT_ENVS, PLACEMENT_GPUS)
    random = np.random.default_rng(0).integers(0, models, size=shape)
    env = gym.make(**made)  # type: ignore[arg-type]
    figures = {
        "placement_sps": _batch_rate(batch, random, 240, n),  # two episodes
        "placement_idle_sps": _batch_rate(batch, np.zeros_like(random), 240, n),
        "placement_single_sps": _single_rate(
            env, list(random[:, :8].reshape(-1, PLACEMENT_GPUS)), n
        ),
    }
    batch.close()
    env.close()
    return figures


def _assignment(n: int) -> Figures:
    actions = np.random.default_rng(0).integers(0, 8, size=(256, NUM_ENVS))
    figures = {}
    for key, load in (("assignment_sps", "window"), ("assignment_queue_sps", "queue")):
        env = gym.make_vec("InfraMind-Assignment-v0", num_envs=NUM_ENVS, load=load)
        figures[key] = _batch_rate(env, actions, 100, n)
        env.close()
    single = gym.make("InfraMind-Assignment-v0")
    figures["assignment_single_sps"] = _single_rate(single, actions[:2].ravel().tolist(), n)
    return figures


def _kernel(n: int) -> Figures:
    """Measure the kernel, ordered by deadlines, under an open load of 70 % of all slots.

    The slots are those with busy neighbours on the same GPU: no queue grows without end.
    """
    from inframind_gym.simulator.server.pool import load_pool
    from inframind_gym.simulator.server.replay import replay_requests
    from inframind_gym.simulator.server.state import cards

    card = cards(load_pool("b200-2gpu"))
    rng = np.random.default_rng(0)
    requests, mean_tokens = KERNEL_REQUESTS, 300
    busy_peers = np.array([int(peers).bit_count() for peers in card["peers"]])
    step_s = card["base_s"] + card["max_num_seqs"] * card["per_seq_s"]
    step_s *= 1.0 + card["slowdown"] * busy_peers
    rate_per_s = 0.7 * card["max_num_seqs"] / (mean_tokens * step_s)
    server = rng.choice(len(card), size=requests, p=rate_per_s / rate_per_s.sum())
    submit_s = np.cumsum(rng.exponential(1.0 / rate_per_s.sum(), size=requests))
    prompts = rng.integers(100, 600, size=requests)
    lengths = rng.lognormal(np.log(mean_tokens) - 0.125, 0.5, size=requests)
    outputs = np.clip(lengths, 1, 2048).astype(np.int64)
    deadline_s = submit_s + rng.choice([10.0, 30.0, 50.0, 100.0, 200.0, 300.0], size=requests)
    simulated_s = 0.0

    def replay() -> int:
        nonlocal simulated_s
        served = replay_requests(card, server, submit_s, prompts, outputs, deadline_s)
        simulated_s = float(served["finish_s"].max())
        return requests

    replay()
    rate = _median_rate(replay, n)
    return {"kernel_rps": rate, "kernel_simulated_s_per_s": simulated_s * rate / requests}


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


def _compile(n: int) -> Figures:
    with tempfile.TemporaryDirectory() as cache:
        compiled, *cached = [
            _seconds_in_fresh_process(_FIRST_USE, NUMBA_CACHE_DIR=cache) for _ in range(n + 1)
        ]
    return {"compile_s": compiled, "cached_start_s": statistics.median(cached)}


_MEASUREMENTS: dict[str, Callable[[int], float | Figures]] = {
    "stream_vector_index_dps": partial(_stream, "index"),
    "stream_vector_full_dps": partial(_stream, "full"),
    "stream_single_sps": _single_stream,
    "executor_vector_sps": _executor,
    "kernel_rps": _kernel,
    "placement_sps": _placement,
    "assignment_sps": _assignment,
    "import_s": lambda n: statistics.median(_seconds_in_fresh_process(_IMPORT) for _ in range(n)),
    "compile_s": _compile,
}
