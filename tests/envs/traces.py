"""Traces of episodes, and their digests, to compare runs bit for bit.

Run as a program it prints the digests of a few runs: `python -m tests.envs.traces`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

import inframind_gym  # noqa: F401
from tests.envs.streams import EXECUTOR, PLANNER, STREAM

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "stream": (STREAM, {"num_queries": 8}),
    "stream-joint": (STREAM, {"num_queries": 6, "level": "joint", "observation": "index"}),
    "stream-published": (STREAM, {"num_queries": 8, "execution": "sequential"}),
    "executor": (EXECUTOR, {"num_queries": 9, "observation": "index"}),
    "executor-planner": (EXECUTOR, {"num_queries": 5, "level": "planner"}),
    "executor-alone": (EXECUTOR, {"background": "none", "observation": "index"}),
    "planner": (PLANNER, {"num_queries": 9, "executor": "least_loaded", "observe": "infra"}),
    "planner-policy": (
        PLANNER,
        {
            "num_queries": 9,
            "observation": "index",
            "executor": "inframind_gym.policies.learners:QLearningLoadTrackerPolicy",
        },
    ),
}


class Step(NamedTuple):
    """What one environment said in one step."""

    observation: NDArray[np.float32]  # the last of the episode, where it is over
    reward: float
    cost: float
    over: bool
    completed: NDArray[Any]
    context: np.void  # of the next decision, in the next episode where this one is over


def actions_of(highs: NDArray[np.int64], seed: int, step: int) -> NDArray[np.int64]:
    """The action of an environment in a step, (a,), the same wherever it runs."""
    return np.random.default_rng([seed, step]).integers(0, highs)


def highs_of(env: Any) -> NDArray[np.int64]:
    """Choices of each part of an action of one environment."""
    space = getattr(env, "single_action_space", env.action_space)
    return np.atleast_1d(getattr(space, "nvec", getattr(space, "n", 0)))


def single(env: Any, seed: int, steps: int) -> list[Step]:
    """Steps of a single environment, reset without a seed where an episode is over."""
    highs = highs_of(env)
    env.reset(seed=seed)
    trace = []
    for step in range(steps):
        action = actions_of(highs, seed, step)
        observation, reward, over, _, info = env.step(action if len(highs) > 1 else action[0])
        completed = env.unwrapped.completed()
        if over:
            env.reset()
        trace.append(
            Step(observation, reward, info["cost"], over, completed, env.unwrapped.context())
        )
    return trace


def batch(env: Any, seeds: list[int], steps: int) -> list[list[Step]]:
    """The same of every row of a vector environment."""
    highs = highs_of(env)
    env.reset(seed=seeds)
    traces: list[list[Step]] = [[] for _ in seeds]
    for step in range(steps):
        actions = np.array([actions_of(highs, seed, step) for seed in seeds])
        observations, rewards, over, _, infos = env.step(
            actions if len(highs) > 1 else actions[:, 0]
        )
        owners, records = env.completed()
        contexts = env.contexts()
        for row, trace in enumerate(traces):
            ended = bool(over[row])
            trace.append(
                Step(
                    infos["final_obs"][row] if ended else observations[row],
                    float(rewards[row]),
                    float(infos["cost"][row]),
                    ended,
                    records[owners == row],
                    contexts[row],
                )
            )
    return traces


def digest(trace: list[Step]) -> str:
    """Digest of every bit of a trace."""
    sha = hashlib.sha256()
    for step in trace:
        sha.update(step.observation.tobytes())
        sha.update(np.array([step.reward, step.cost, step.over], np.float64).tobytes())
        for records in (step.completed, np.atleast_1d(step.context)):
            for field in records.dtype.names or ():  # padding is no part of a record
                sha.update(np.ascontiguousarray(records[field]).tobytes())
    return sha.hexdigest()


def digests() -> dict[str, str]:
    """Digest of 150 steps of each case."""
    made = {name: gym.make(env, **arguments) for name, (env, arguments) in CASES.items()}
    return {name: digest(single(env, 11, 150)) for name, env in made.items()}


if __name__ == "__main__":
    print(json.dumps(digests()))
