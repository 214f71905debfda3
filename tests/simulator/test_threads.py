"""Rows that threads share: the same bits, errors that come through, threads that end."""

from __future__ import annotations

import gc
import hashlib
import os
import threading
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

import inframind_gym  # noqa: F401  (registers the environments)
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.jit import make_jit
from inframind_gym.simulator.threads import ThreadPool

SHORT = {"num_queries": 20, "observation": "index"}
ENVIRONMENTS: list[tuple[str, dict[str, Any]]] = [
    ("Stream", SHORT),
    ("Executor", SHORT | {"num_queries": 60, "call_timeout_s": 20.0}),
    ("Planner", SHORT),
    ("Placement", {"num_decisions": 20, "cluster": "h100-4gpu"}),
]


class Notes(NamedTuple):
    """A thread's own."""

    done: NDArray[np.int64]  # (1,) rows


@make_jit(Path(__file__))
def double(
    rows: NDArray[np.int64], notes: Notes, out: NDArray[np.int64], first: int, last: int
) -> None:
    """Write twice the row in its place."""
    for i in range(first, last):
        out[rows[i]] += 2 * rows[i]
        notes.done[0] += 1


def pool_of(num_threads: int) -> tuple[ThreadPool, list[Notes]]:
    scratch = [Notes(np.zeros(1, np.int64)) for _ in range(num_threads)]
    return ThreadPool(double, scratch, place=1), scratch


def digest(name: str, arguments: dict[str, Any], num_threads: int, num_envs: int) -> str:
    """Of 60 steps, in which episodes end at different times."""
    env = gym.make_vec(
        f"InfraMind-{name}-v0", num_envs=num_envs, num_threads=num_threads, **arguments
    )
    generator, found = np.random.default_rng(1), hashlib.sha256()
    observations, _ = env.reset(seed=5)
    for _ in range(60):
        found.update(observations.tobytes())
        shares = generator.random(env.action_space.shape)
        actions = (shares * np.asarray(env.action_space.nvec)).astype(np.int64)  # type: ignore[attr-defined]
        observations, rewards, terminated, truncated, infos = env.step(actions)
        for array in (rewards, terminated, truncated, infos["cost"]):
            found.update(array.tobytes())
    return found.hexdigest()


@pytest.mark.parametrize(("name", "arguments"), ENVIRONMENTS)
def test_results_do_not_depend_on_the_number_of_threads(
    name: str, arguments: dict[str, Any]
) -> None:
    found = {digest(name, arguments, num_threads, 300) for num_threads in (1, 2, 3)}
    assert len(found) == 1


@pytest.mark.parametrize(("name", "arguments"), ENVIRONMENTS)
def test_threads_share_no_scratch_space(name: str, arguments: dict[str, Any]) -> None:
    env: Any = gym.make_vec(f"InfraMind-{name}-v0", num_envs=32, num_threads=2, **arguments)
    simulation = env.unwrapped.simulation
    states = simulation._threads._scratch
    scratch = ("path_s", "prompt", "output", "target") if name == "Placement" else ("done",)
    assert len(states) == 2
    for field in states[0]._fields:
        ours, its = (getattr(state, field) for state in states)
        assert np.shares_memory(ours, its) == (field not in scratch and ours.size > 0)


@pytest.mark.parametrize("number", [0, 2.5, 1000, "two"])
def test_impossible_numbers_of_threads_are_refused(number: Any) -> None:
    with pytest.raises(ConfigError, match="num_threads"):
        gym.make_vec("InfraMind-Stream-v0", num_envs=2, num_threads=number)


@pytest.mark.parametrize(("count", "threads"), [(0, 1), (1, 1), (63, 1), (64, 2), (1000, 3)])
def test_every_row_is_worked_on_once(count: int, threads: int) -> None:
    pool, scratch = pool_of(3)
    rows, out = np.arange(count), np.zeros(count, np.int64)
    for _ in range(100):
        pool.run(count, rows, scratch[0], out)
    assert out.tolist() == (200 * rows).tolist()
    done = [int(notes.done[0]) for notes in scratch]
    assert sum(done) == 100 * count and not any(done[threads:])


def test_bad_arguments_are_refused_before_any_thread_begins() -> None:
    pool, scratch = pool_of(3)
    rows, out = np.arange(480), np.zeros(960, np.int64)
    for _ in range(3):
        with pytest.raises(ValueError, match="C order"):
            pool.run(480, rows, scratch[0], out[::2])
    assert not out.any()
    pool.run(480, rows, scratch[0], out)
    assert out[:480].tolist() == (2 * rows).tolist()


def test_threads_end_with_their_pool() -> None:
    before = set(threading.enumerate())
    pool, scratch = pool_of(4)
    pool.run(1000, np.arange(1000), scratch[0], np.zeros(1000, np.int64))
    started = set(threading.enumerate()) - before
    assert started
    del pool
    gc.collect()
    for thread in started:
        thread.join(10.0)
        assert not thread.is_alive()


def test_a_forked_process_has_threads_of_its_own() -> None:
    pool, scratch = pool_of(2)
    rows, out = np.arange(320), np.zeros(320, np.int64)
    pool.run(320, rows, scratch[0], out)
    out[:] = 0
    child = os.fork()
    if not child:
        pool.run(320, rows, scratch[0], out)
        os._exit(0 if out.tolist() == list(range(0, 640, 2)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
