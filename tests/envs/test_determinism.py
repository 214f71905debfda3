"""Same seed, same bits: again, in another process, in a batch, in a batch of another size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.envs.streams import EXECUTOR, STREAM
from tests.envs.traces import CASES, Step, batch, digest, digests, single

ROOT = Path(__file__).parents[2]
STEPS = 150


@pytest.fixture(scope="module")
def here() -> dict[str, str]:
    return digests()


def test_the_same_seed_gives_the_same_bits_again(here: dict[str, str]) -> None:
    assert digests() == here


def test_other_processes_give_the_same_bits(here: dict[str, str]) -> None:
    running = []
    for hash_seed in ("1", "2"):  # of Python's own hashes: sets and dicts are walked differently
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "tests.envs.traces"]
        running.append(
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        )
    for process in running:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        assert json.loads(output.splitlines()[-1]) == here


@pytest.mark.parametrize("case", CASES)
def test_another_seed_gives_another_world(case: str) -> None:
    name, arguments = CASES[case]
    env = gym.make(name, **arguments)
    assert digest(single(env, 1, 40)) != digest(single(env, 2, 40))


@pytest.mark.parametrize("case", CASES)
def test_a_used_environment_is_as_good_as_a_new_one(case: str, here: dict[str, str]) -> None:
    name, arguments = CASES[case]
    env = gym.make(name, **arguments)
    single(env, 999, 23)  # ends in the middle of things
    assert digest(single(env, 11, STEPS)) == here[case]


@pytest.mark.parametrize("case", CASES)
def test_every_row_of_a_batch_is_the_single_environment_of_its_seed(case: str) -> None:
    name, arguments = CASES[case]
    seeds = [40, 41, 42, 43, 44]
    env: Any = gym.make_vec(name, num_envs=len(seeds), **arguments)
    alone = gym.make(name, **arguments)
    for row, trace in enumerate(batch(env, seeds, STEPS)):
        expected = single(alone, seeds[row], STEPS)
        assert sum(step.over for step in expected) >= 2, "the test must go through autoresets"
        for ours, theirs in zip(trace, expected, strict=True):
            compare(ours, theirs)


def compare(ours: Step, theirs: Step) -> None:
    assert ours.observation.tobytes() == theirs.observation.tobytes()
    assert (ours.reward, ours.cost, ours.over) == (theirs.reward, theirs.cost, theirs.over)
    assert np.array_equal(ours.completed, theirs.completed)
    assert ours.context == theirs.context


@pytest.mark.parametrize("case", ["stream", "executor"])
def test_an_integer_seed_counts_up_over_the_rows(case: str) -> None:
    name, arguments = CASES[case]
    env: Any = gym.make_vec(name, num_envs=3, **arguments)
    counted, _ = env.reset(seed=70)
    listed, _ = env.reset(seed=[70, 71, 72])
    assert counted.tobytes() == listed.tobytes()
    single_env = gym.make(name, **arguments)
    for row in range(3):
        assert counted[row].tobytes() == single_env.reset(seed=70 + row)[0].tobytes()


@pytest.mark.parametrize("case", ["stream", "executor"])
def test_a_row_does_not_depend_on_the_rows_beside_it(case: str) -> None:
    name, arguments = CASES[case]
    few: Any = gym.make_vec(name, num_envs=2, **arguments)
    many: Any = gym.make_vec(name, num_envs=7, **arguments)
    small = [digest(trace) for trace in batch(few, [8, 9], 80)]
    large = [digest(trace) for trace in batch(many, [1, 9, 2, 3, 8, 8, 4], 80)]
    assert small == [large[4], large[1]]
    assert large[4] == large[5]
    assert len(set(large)) == 6


@pytest.mark.parametrize("case", CASES)
def test_the_final_info_of_a_batch_is_the_last_info_of_the_single(case: str) -> None:
    name, arguments = CASES[case]
    env: Any = gym.make_vec(name, num_envs=2, **arguments)
    alone = [gym.make(name, **arguments) for _ in range(2)]
    env.reset(seed=30)
    for row, other in enumerate(alone):
        other.reset(seed=30 + row)
    ended = 0
    for _ in range(120):
        actions = env.action_space.sample()
        _, _, over, _, infos = env.step(actions)
        for row, other in enumerate(alone):
            _, _, single_over, _, info = other.step(actions[row])
            assert single_over == over[row]
            if not single_over:
                continue
            ended += 1
            final = infos["final_info"]
            assert infos["_final_info"][row]
            shared = [key for key in final if not key.startswith("_") and key in info]
            assert {"cost", "episode_cost"} < set(shared)
            for key in shared:
                assert final[f"_{key}"][row]
                assert final[key][row] == info[key], key
            other.reset()
    assert ended >= 4


@pytest.mark.parametrize("name", [EXECUTOR, STREAM])
def test_a_reset_without_a_seed_goes_on_where_the_seed_led(name: str) -> None:
    def resets(env: Any) -> list[bytes]:
        seen = [env.reset(seed=6)[0].tobytes()]
        for _ in range(3):
            seen.append(env.reset()[0].tobytes())
            env.step(0)
        return seen

    first, second = (gym.make(name, num_queries=30) for _ in range(2))
    seen = resets(first)
    assert seen == resets(second)
    assert len(set(seen)) == 4, "every reset is another episode"
    batched: Any = gym.make_vec(name, num_envs=2, num_queries=30)
    seeded, _ = batched.reset(seed=6)
    again, _ = batched.reset()
    assert seeded[0].tobytes() == seen[0]
    assert again[0].tobytes() == seen[1]


def test_recording_calls_changes_nothing() -> None:
    name, arguments = CASES["stream"]
    plain, recording = (gym.make(name, record_calls=on, **arguments) for on in (False, True))
    assert digest(single(plain, 4, STEPS)) == digest(single(recording, 4, STEPS))


def test_looking_changes_nothing() -> None:
    """Neither rendering nor asking for records, masks or the specification moves anything."""
    name, arguments = CASES["stream"]
    plain = gym.make(name, **arguments)
    watched = gym.make(name, render_mode="rgb_array", **arguments)
    expected = single(plain, 4, 60)
    unwrapped: Any = watched.unwrapped
    looks = []

    class Watched:
        action_space = watched.action_space
        unwrapped = watched.unwrapped

        def reset(self, **options: Any) -> Any:
            return watched.reset(**options)

        def step(self, action: Any) -> Any:
            out = watched.step(action)
            for look in (watched.render, unwrapped.context, unwrapped.completed):
                looks.append(look())
            unwrapped.action_masks()
            unwrapped.policy_spec()
            return out

    assert digest(single(Watched(), 4, 60)) == digest(expected)
    assert len(looks) == 180
