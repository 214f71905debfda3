"""Speed of the simulator: `python -m benchmarks speed [FIGURE …] [--against REF]`.

Every figure is CPU time on one core. Each revision has a process that does the work (this file, run
as a program, with the `inframind_gym` of that revision); they work in turn, A B A B, so that both
meet the same states of a noisy machine. Memory layout, and the order in which functions are
compiled, make a process a tenth faster or slower than its twin: every repeat has new processes,
started in the reverse order of the last one, and each revision compiles into an empty folder.
`--against HEAD` is the null test: its ratio is 1 but for noise.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

STREAM: Final = "InfraMind-Stream-v0"
RATE: Final = {"arrival_rate_per_min": 100.0}
INDEX: Final = {**RATE, "observation": "index"}
FIRST_USE: Final = f"""
import gymnasium as gym, inframind_gym
for env_id in ({STREAM!r}, "InfraMind-Executor-v0"):
    for env in (gym.make(env_id), gym.make_vec(env_id, num_envs=2)):
        env.reset(seed=0)
        env.step(env.action_space.sample())
"""
CHUNKS: Final = 3  # measured in each process, after a warm-up
Work = Iterator[tuple[float, float]]  # chunks of work: units done, CPU seconds


class Figure(NamedTuple):
    """One line of the table."""

    what: str  # description
    unit: str  # "s": seconds for a unit of work; else units in a second
    work: str  # name of a function below
    arguments: dict[str, Any]  # its arguments, JSON types
    once: bool = False  # measured once, and only if it is named


def _vector(
    what: str,
    env_id: str,
    num_envs: int,
    steps: int,
    kwargs: dict[str, Any] | None = None,
    fixed: int | None = None,
    unit: str = "steps/s",
) -> Figure:
    sizes = {"env_id": env_id, "num_envs": num_envs, "steps": steps}
    arguments = {**sizes, "fixed": fixed, "kwargs": kwargs or {}}
    return Figure(f"{what}, n = {num_envs}", unit, "vector", arguments)


_THREADS: Final = {**INDEX, "num_threads": 2}
_EACH: Final = "decisions/s"
FIGURES: Final[dict[str, Figure]] = {
    "stream_index": _vector("Stream vector, index", STREAM, 1024, 300, INDEX, unit=_EACH),
    "stream_full": _vector("Stream vector, full", STREAM, 1024, 250, RATE, unit=_EACH),
    "stream_threads": _vector(
        "Stream vector, index, two threads, clock time", STREAM, 1024, 300, _THREADS, unit=_EACH
    ),
    "stream_single": Figure(
        "Stream single, gym.make",
        "steps/s",
        "single",
        {"env_id": STREAM, "steps": 20_000, "kwargs": RATE},
    ),
    "executor": _vector(  # 7 is the action of the policy `static`
        "Executor vector, background 100/min", "InfraMind-Executor-v0", 64, 200, INDEX, 7
    ),
    "placement": _vector(
        "Placement vector, 8 GPUs", "InfraMind-Placement-v0", 64, 240, {"cluster": "h100-8gpu"}
    ),
    "assignment": _vector("Assignment vector", "InfraMind-Assignment-v0", 1024, 300),
    "assignment_queue": _vector(
        "The same with queues", "InfraMind-Assignment-v0", 1024, 100, {"load": "queue"}
    ),
    "token_budget": _vector("TokenBudget vector", "InfraMind-TokenBudget-v0", 4096, 100),
    "coordination": _vector("Coordination vector", "InfraMind-Coordination-v0", 4096, 100),
    "kernel": Figure(
        "Kernel alone, five servers, load 0.7", "requests/s", "kernel", {"requests": 1_000_000}
    ),
    "import": Figure("import inframind_gym", "s", "process", {"code": "import inframind_gym"}),
    "cached_start": Figure("First use, compiled before", "s", "process", {"code": FIRST_USE}),
    "compile": Figure(
        "First use, nothing compiled yet",
        "s",
        "process",
        {"code": FIRST_USE, "cached": False},
        once=True,
    ),
}


# Work in chunks. It runs in a process of its own, and imports only what every revision has.


def vector(env_id: str, num_envs: int, steps: int, fixed: int | None, kwargs: Any) -> Work:
    """Step a vector environment, with one fixed action or with random ones."""
    import gymnasium as gym

    import inframind_gym  # noqa: F401  (registers the environments)

    env: Any = gym.make_vec(env_id, num_envs=num_envs, **kwargs)
    space = env.single_action_space
    choices: Any = space.nvec if space.shape else space.n
    actions = np.random.default_rng(0).integers(choices, size=(256, num_envs, *space.shape))
    if fixed is not None:
        actions[:] = fixed
    clock = time.perf_counter if "num_threads" in kwargs else time.process_time
    env.reset(seed=0)
    for first in itertools.count(0, steps):
        began = clock()
        for step in range(first, first + steps):
            env.step(actions[step % 256])
        yield float(steps * num_envs), clock() - began


def single(env_id: str, steps: int, kwargs: Any) -> Work:
    """Step a single environment with random actions, resets included."""
    import gymnasium as gym

    import inframind_gym  # noqa: F401

    env: Any = gym.make(env_id, **kwargs)
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(env.action_space.n, size=256).tolist()
    while True:
        began = time.process_time()
        for step in range(steps):
            _, _, terminated, truncated, _ = env.step(actions[step % 256])
            if terminated or truncated:
                env.reset()
        yield float(steps), time.process_time() - began


def kernel(requests: int) -> Work:
    """Serve requests by deadline on the servers of b200-2gpu alone, at load 0.7."""
    from inframind_gym.simulator.server.open_loop import replay_requests
    from inframind_gym.simulator.server.pool import load_pool
    from inframind_gym.simulator.server.state import cards

    card, rng, mean_tokens = cards(load_pool("b200-2gpu")), np.random.default_rng(0), 300
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
    while True:
        began = time.process_time()
        replay_requests(card, server, submit_s, prompts, outputs, deadline_s)
        yield float(requests), time.process_time() - began


def process(code: str, cached: bool = True) -> Work:
    """Run code in a fresh interpreter; the interpreter's own start does not count."""
    program = (
        f"import time\nbegan = time.process_time()\n{code}\nprint(time.process_time() - began)"
    )
    while True:
        with tempfile.TemporaryDirectory() as empty:
            environment = dict(os.environ) | ({} if cached else {"NUMBA_CACHE_DIR": empty})
            command = [sys.executable, "-P", "-c", program]
            done = subprocess.check_output(command, env=environment, text=True)
        yield 1.0, float(done.splitlines()[-1])


def serve() -> None:
    """Answer requests for work, lines of JSON on standard input, until the input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    sys.stdout = sys.stderr  # the package's own prints must not mix with answers
    works = {work.__name__: work for work in (vector, single, kernel, process)}
    work: Work = iter(())
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "work" in request:
                work = works[request["work"]](**request["arguments"])
                answer: dict[str, Any] = {"ready": True}
            else:
                answer = dict(zip(("count", "cpu_s"), next(work), strict=True))
        except Exception as error:  # this revision cannot do it; other figures go on
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


# Measuring


class Revision:
    """A process that works over the package of a checkout's folder.

    Args:
        root: The checkout.
        kernels: Folder in which it keeps its machine code.
    """

    def __init__(self, root: Path, kernels: Path) -> None:
        environment = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment, "NUMBA_CACHE_DIR": str(kernels)},
            cwd=root,
        )

    def request(self, **request: Any) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            RuntimeError: The revision cannot do it.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline() or '{"error": "its process ended"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return dict(answer)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def measure(only: Sequence[str], repeats: int, against: str | None) -> list[list[str]]:
    """Measure figures.

    Args:
        only: Names of figures; none: all but those that are only measured if they are named.
        repeats: Pairs of processes for each; the compilation is measured once.
        against: A git revision, or the folder of a checkout, measured in turn with this one.

    Returns:
        Rows: description, median here, and of `against` median and ratio (how many times as fast
        this revision is: mean over the pairs and its standard error).

    Raises:
        ValueError: A name is unknown.
        subprocess.CalledProcessError: There is no such revision.
    """
    if unknown := set(only) - set(FIGURES):
        raise ValueError(f"unknown figures {sorted(unknown)}; known: {', '.join(FIGURES)}")
    root = Path(__file__).resolve().parents[1]
    worktree = ["git", "-C", str(root), "worktree"]
    with tempfile.TemporaryDirectory() as name:
        other, rows = Path(name) / "against", []
        is_revision = against is not None and not Path(against).is_dir()
        if is_revision:
            add = [*worktree, "add", "--detach", "--force", str(other), str(against)]
            subprocess.run(add, check=True)
        elif against is not None:
            other = Path(against).resolve()
        roots = [root] if against is None else [root, other]
        places = [(place, Path(name) / f"kernels{i}") for i, place in enumerate(roots)]
        try:
            for key, figure in FIGURES.items():
                if key in only or not (only or figure.once):
                    rows.append([figure.what, *_row(figure, places, repeats)])
                    print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
        finally:
            if is_revision:
                subprocess.run([*worktree, "remove", "--force", str(other)], check=True)
    return rows


def _row(figure: Figure, places: Sequence[tuple[Path, Path]], repeats: int) -> list[str]:
    """Time a figure on all revisions in turn."""
    try:
        turns = range(1 if figure.once else repeats)
        costs_s = [_turn(figure, places, turn % 2 == 1) for turn in turns]
    except RuntimeError as error:
        return [f"left out: {error}"]
    cells = []
    for costs in zip(*costs_s, strict=True):
        median_s = statistics.median(costs)
        value = median_s if figure.unit == "s" else 1.0 / median_s
        cells.append(f"{value:,.{2 if value < 100 else 0}f} {figure.unit}")
    if len(places) > 1:
        logs = [math.log(there_s / here_s) for here_s, there_s in costs_s]
        spread = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
        cells.append(f"{math.exp(statistics.mean(logs)):.2f} ± {spread:.2f}")
    return cells


def _turn(figure: Figure, places: Sequence[tuple[Path, Path]], reverse: bool) -> list[float]:
    """Return the seconds a unit of each revision in new processes: the best of their chunks."""
    order = list(enumerate(places))[:: -1 if reverse else 1]
    revisions = {i: Revision(*place) for i, place in order}
    best_s = dict.fromkeys(range(len(places)), math.inf)
    try:
        for revision in revisions.values():
            revision.request(work=figure.work, arguments=figure.arguments)
            if not figure.once:
                revision.request()  # a warm-up
        for _ in range(1 if figure.once else CHUNKS):
            for i, revision in revisions.items():
                answer = revision.request()
                best_s[i] = min(best_s[i], answer["cpu_s"] / answer["count"])
    finally:
        for revision in revisions.values():
            revision.close()
    return list(best_s.values())


if __name__ == "__main__":
    serve()
