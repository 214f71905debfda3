"""What is wrong is refused where it comes in, with its name and the remedy."""

from __future__ import annotations

import math
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from inframind_gym.envs.placement_kernel import drive as drive_placement
from inframind_gym.envs.routing_config import RANGES
from inframind_gym.envs.routing_kernel import drive
from inframind_gym.errors import ActionError, ConfigError, InfraMindError
from tests.envs.streams import EXECUTOR, PLACEMENT, PLANNER, STREAM


def refused(error: type[Exception], *parts: str) -> Any:
    return pytest.raises(error, match="(?s)" + ".*".join(map(re.escape, parts)))


HERE = "tests.envs.test_planner:"  # executors
WRONG: dict[str, list[tuple[dict[str, Any], tuple[str, ...]]]] = {
    STREAM: [
        ({"num_querys": 3}, ("num_querys", "Did you mean 'num_queries'?")),
        *[({key: value}, (key, repr(value))) for key in RANGES for value in (0, math.nan)],
        ({"pool": "b200-2gpus"}, ("unknown pool 'b200-2gpus'", "Did you mean 'b200-2gpu'?")),
        ({"workload": "mmlu"}, ("unknown workload 'mmlu'", "Did you mean 'mmlu_pro'?")),
        ({"scheduler": "edff"}, ("scheduler", "Did you mean 'edf'?", "edf_late_last, fcfs")),
        ({"system_features": ["queue", "kvv"]}, ("system_features.1", "Did you mean 'kv'?")),
        ({"system_features": ["e2e", "e2e"]}, ("system_features names one twice",)),
        ({"planner": {"topology": "Chain", "num_agents": 7}}, ("num_agents", "equal to 6", "7")),
        ({"planner": {"num_agents": 2, "edges": [[1, 0]]}}, ("must go from an agent to a later",)),
        ({"arrivals": {"kind": "burst", "factr": 3}}, ("factr", "Did you mean 'factor'?")),
        ({"down_models": ["lama-3b"]}, ("unknown model 'lama-3b'", "Did you mean 'llama-3b'?")),
        ({"level": "planner", "background": "none"}, ("planner", "background", "routes")),
        ({"tasks": "no such folder"}, ("unknown task source",)),
        ({"num_queries": 10**6, "arrival_rate_per_min": 0.01}, ("raise arrival_rate_per_min",)),
    ],
    PLANNER: [
        ({"executor": "static_mxi"}, ("unknown policy 'static_mxi'", "Built in: static_mix")),
        ({"executor": "bid_price"}, ("'bid_price' insists on plans of its own",)),
        ({"executor": HERE + "Insists"}, ("insists on plans of its own, {'topology': 'IO'",)),
        ({"executor": HERE + "PlansOnly"}, ("plans and does not route",)),
        ({"executor": HERE + "Joint", "scheduler": "edf"}, ("insists on scheduler='fcfs'",)),
        ({"observe": "infa"}, ("observe: 'infa' is not valid. Did you mean 'infra'",)),
        ({"level": "joint"}, ("level: 'joint' is not valid. Valid: planner",)),
    ],
    PLACEMENT: [
        ({"clutser": "h100-4gpu"}, ("clutser: unknown key. Did you mean 'cluster'?",)),
        ({"cluster": "h100-4gpus"}, ("unknown cluster 'h100-4gpus'. Did you mean 'h100-4gpu'?",)),
        ({"demand": "trace"}, ("Give the path of a CSV file as the argument `trace`",)),
        ({"trace": "x.csv"}, ("the demand's arrivals are 'poisson'",)),
        ({"decision_interval_s": 2.5}, ("must be a whole multiple of routing_interval_s",)),
        ({"decision_interval_s": 3600, "routing_interval_s": 0.01}, ("10000 times at most",)),
    ],
    "InfraMind-TokenBudget-v0": [
        ({"budget": -1}, ("budget: must be tokens from 500 to 200000, or [least, most]",)),
        ({"budget": [900, 500]}, ("budget: a range goes up",)),
    ],
}


@pytest.mark.filterwarnings("ignore:.*render:UserWarning")
@pytest.mark.parametrize(
    ("name", "arguments", "parts"),
    [(name, *row) for name, rows in WRONG.items() for row in rows],
    ids=lambda value: str(value)[:60],
)
@pytest.mark.parametrize("make", [gym.make, gym.make_vec])
def test_bad_arguments(
    make: Any, name: str, arguments: dict[str, Any], parts: tuple[str, ...]
) -> None:
    with refused(InfraMindError if name == STREAM else ConfigError, *parts):
        env = make(name, **arguments)
        if name == STREAM:  # where some follow from what is drawn
            env.reset(seed=0)


@pytest.fixture(scope="module", params=[EXECUTOR, STREAM])
def made(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A single environment and a batch of three."""
    single = gym.make(request.param, num_queries=4, observation="index").unwrapped
    return single, gym.make_vec(request.param, num_envs=3, num_queries=4, observation="index")


def test_options_that_are_refused_change_nothing(made: tuple[Any, Any]) -> None:
    wrong: tuple[Any, ...] = (
        {"budget_s": -1.0, "arrival_rate_per_min": 999.0},
        {"arrival_rate_per_min": math.nan},  # a budget is then drawn
        {"budget_s": "fast"},
        {"budget_s": [1.0, 2.0]},
        "x",
    )
    for env in made:
        contexts = getattr(env, "contexts", None) or env.context
        env.reset(seed=3)
        before = contexts()
        for options in wrong:
            with pytest.raises(ConfigError):
                env.reset(seed=3, options=options)
        for seed in ("12", 1.5, -1):
            with pytest.raises((ConfigError, gym.error.Error), match=r"(?i)seed"):
                env.reset(seed=seed)
        env.reset(seed=3)
        assert np.array_equal(contexts(), before)


def test_actions_that_are_none(made: tuple[Any, Any]) -> None:
    single, batch = made
    single.reset(seed=0)
    with refused(ActionError, "action 15", "it must be in 0..14"):
        single.step(15)
    batch.reset(seed=0)
    with refused(ActionError, "action 15 of environment 2", "it must be in 0..14"):
        batch.step(np.array([0, 14, 15]))
    with refused(ActionError, "actions have shape", "expected 3 of 1 numbers each"):
        batch.step([1, 2])
    single.step([14])  # what was refused has changed nothing
    batch.step([[0], [14], [3]])


@pytest.mark.parametrize("name", [EXECUTOR, STREAM, PLACEMENT])
def test_no_form_of_actions_is_compiled_again(name: str) -> None:
    """Read-only, strided, Fortran-ordered, big-endian and small integers are copied first."""
    entry = drive_placement if name == PLACEMENT else drive
    arguments = {"cluster": "h100-4gpu"} if name == PLACEMENT else {"level": "joint"}
    single, batch = gym.make(name, **arguments), gym.make_vec(name, num_envs=4, **arguments)
    batch.reset(seed=0)
    known: Any = None
    plain = np.zeros(batch.action_space.shape, np.int64)
    read_only = plain.copy()
    read_only.flags.writeable = False
    strided = np.zeros((8, 2 * plain.shape[1]), np.int64)[::2, ::2]
    for actions in (
        plain, read_only, strided, np.asfortranarray(plain), plain.astype(">i4"),
        plain.astype(np.uint8), plain.tolist(),
    ):  # fmt: skip
        single.reset(seed=0)
        single.unwrapped.step(actions[0])
        batch.step(actions)
        known = known or list(entry.programs)
        assert list(entry.programs) == known


def test_what_comes_too_early_or_was_not_asked_for(made: tuple[Any, Any]) -> None:
    with refused(ResetNeeded, "call reset() before step()"):
        gym.make(STREAM).unwrapped.step(0)
    with refused(ConfigError, "call reset() before step()"):
        gym.make_vec(STREAM, num_envs=2).step([0, 0])
    with refused(ConfigError, "20000 environments of num_queries=1000 are too many"):
        gym.make_vec(STREAM, num_envs=20_000, num_queries=1000)
    made[1].reset(seed=0)
    with refused(ConfigError, "calls are not recorded", "record_calls=True"):
        made[1].calls(0)
