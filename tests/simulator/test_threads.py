"""Rows that threads share: the same bits, errors that come through, threads that end."""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

import inframind_gym  # noqa: F401  (registers the environments)
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.jit import make_jit
from inframind_gym.simulator.threads import Crew

SHORT = {"num_queries": 20, "observation": "index"}
ENVIRONMENTS: list[tuple[str, dict[str, Any]]] = [
    ("Stream", SHORT),
    ("Executor", SHORT | {"num_queries": 60, "call_timeout_s": 20.0}),
    ("Planner", SHORT),
    ("Placement", {"num_decisions": 20, "cluster": "h100-4gpu"}),
]


@make_jit(Path(__file__))
def double(rows: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    """Write twice the row in its place."""
    for i in range(rows.shape[0]):
        out[rows[i]] = 2 * rows[i]


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
    found = {digest(name, arguments, num_threads, 50) for num_threads in (1, 2, 3)}
    assert len(found) == 1


@pytest.mark.parametrize(("name", "arguments"), ENVIRONMENTS)
def test_threads_share_no_scratch_space(name: str, arguments: dict[str, Any]) -> None:
    env: Any = gym.make_vec(f"InfraMind-{name}-v0", num_envs=32, num_threads=2, **arguments)
    simulation = env.unwrapped.simulation
    states = simulation._states if name == "Placement" else simulation._clusters
    scratch = ("path_s", "prompt", "output", "target") if name == "Placement" else ("done",)
    assert len(states) == 2
    for field in states[0]._fields:
        ours, its = (getattr(state, field) for state in states)
        assert np.shares_memory(ours, its) == (field not in scratch and ours.size > 0)


@pytest.mark.parametrize("number", [0, 2.5, 1000, "two"])
def test_impossible_numbers_of_threads_are_refused(number: Any) -> None:
    with pytest.raises(ConfigError, match="num_threads"):
        gym.make_vec("InfraMind-Stream-v0", num_envs=2, num_threads=number)


@pytest.mark.parametrize(("count", "shares"), [(1, 1), (31, 1), (32, 2), (50, 3), (1000, 3)])
def test_rows_are_shared_out_equally(count: int, shares: int) -> None:
    crew, rows = Crew(double, 3), np.arange(count)
    slices, arrays = crew.split(rows)
    assert np.concatenate(arrays).tolist() == rows.tolist()
    assert [part.stop - part.start for part in slices] == list(map(len, arrays))
    assert len(arrays) == shares and max(map(len, arrays)) - min(map(len, arrays)) <= 1
    out = np.zeros(count, np.int64)
    crew.run([(share, out) for share in arrays])
    assert out.tolist() == (2 * rows).tolist()


def test_an_error_of_a_thread_is_raised_and_the_crew_goes_on() -> None:
    crew, rows = Crew(double, 3), np.arange(48)
    _, (first, second, third) = crew.split(rows)
    out = np.zeros(48, np.int64)
    for wrong in itertools.permutations([out, out, out[::2]]):
        with pytest.raises(ValueError, match="C order"):
            crew.run(list(zip((first, second, third), wrong, strict=True)))
    out[:] = 0
    crew.run([(share, out) for share in (first, second, third)])
    assert out.tolist() == (2 * rows).tolist()


def test_threads_do_their_work_awake_and_asleep() -> None:
    crew, rows = Crew(double, 3), np.arange(48)
    pauses_s = np.random.default_rng(0).choice([0.0, 1e-4, 2e-4, 5e-3], 300)
    for pause_s in pauses_s.tolist():  # they go to sleep after some 50 µs
        out = np.zeros(48, np.int64)
        crew.run([(share, out) for share in crew.split(rows)[1]])
        assert out.tolist() == (2 * rows).tolist()
        time.sleep(pause_s)


def test_threads_end_with_their_crew() -> None:
    crew, out = Crew(double, 4), np.zeros(64, np.int64)
    crew.run([(share, out) for share in crew.split(np.arange(64))[1]])
    members = crew._members
    assert len(members) == 3 and all(member.is_alive() for member in members)
    del crew
    gc.collect()
    for member in members:
        member.join(10.0)
        assert not member.is_alive()


def test_a_forked_process_has_threads_of_its_own() -> None:
    crew, out = Crew(double, 2), np.zeros(32, np.int64)
    shares = [(share, out) for share in crew.split(np.arange(32))[1]]
    crew.run(shares)
    out[:] = 0
    child = os.fork()
    if not child:
        crew.run(shares)
        os._exit(0 if out.tolist() == list(range(0, 64, 2)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
