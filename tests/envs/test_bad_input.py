"""Whatever is wrong is said at once, with its name, the nearest right one and what is possible."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import NameNotFound, ResetNeeded

import inframind_gym  # noqa: F401
from inframind_gym.envs.placement_kernel import drive as drive_placement
from inframind_gym.envs.routing_config import RANGES
from inframind_gym.envs.routing_kernel import drive
from inframind_gym.errors import ActionError, ConfigError, InfraMindError, TaskError
from tests.envs.streams import EXECUTOR, PLACEMENT, ROUTING, STREAM

IDS = ROUTING
EVERY_MODEL = ["deepseek-32b", "mistral-24b", "qwen-14b", "llama-8b", "llama-3b"]
WITHIN = "must be a number from {:g} to {:g}"


def refused(error: type[Exception], *parts: str) -> Any:
    """Expects an error whose message holds `parts`, in this order."""
    return pytest.raises(error, match="(?s)" + ".*".join(re.escape(part) for part in parts))


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("InfraMind-Executer-v0", "InfraMind-Executor"), ("InfraMind-Steam-v0", "InfraMind-Stream")],
)
def test_an_unknown_id(name: str, nearest: str) -> None:
    with refused(NameNotFound, f"Did you mean: `{nearest}`"):
        gym.make(name)


ARGUMENTS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"arival_rate_per_min": 30}, ("unknown key", "Did you mean 'arrival_rate_per_min'?")),
    ({"num_querys": 3}, ("num_querys", "Did you mean 'num_queries'?")),
    *[
        ({key: value}, (f"{key}: {WITHIN.format(*RANGES[key])}, got {value!r}",))
        for key in RANGES
        for value in (
            0,
            -1,
            math.nan,
            math.inf,
            True,
            "30",
            {"s": 30.0},
            1e-6 * RANGES[key][0],
            10**12,
        )
    ],
    ({"arrival_rate_per_min": None}, ("arrival_rate_per_min", "must be a number", "None")),
    ({"num_queries": 2.5}, ("num_queries", "valid integer", "2.5")),
    ({"pool": "b200-2gpus"}, ("unknown pool 'b200-2gpus'", "Did you mean 'b200-2gpu'?")),
    ({"pool": "no/such.yaml"}, ("no/such.yaml",)),
    ({"workload": "mmlu"}, ("unknown workload 'mmlu'", "Did you mean 'mmlu_pro'?")),
    ({"split": "tests"}, ("split", "Did you mean 'test'?", "train, val, test, all")),
    ({"scheduler": "edff"}, ("scheduler", "Did you mean 'edf'?", "edf_late_last, fcfs")),
    ({"execution": "paralel"}, ("execution", "Did you mean 'parallel'?")),
    ({"background": "static"}, ("background", "Did you mean 'static_mix'?")),
    ({"level": "exec"}, ("level", "Did you mean 'executor'?", "planner, joint")),
    ({"observation": "idx"}, ("observation", "Did you mean 'index'?")),
    ({"system_features": ["queue", "kvv"]}, ("system_features.1", "Did you mean 'kv'?")),
    ({"system_features": ["e2e", "e2e"]}, ("system_features names one twice",)),
    ({"planner": {"topology": "Chains", "num_agents": 3}}, ("Did you mean 'Chain'?",)),
    ({"planner": {"topology": "Chain", "num_agents": 7}}, ("num_agents", "equal to 6", "7")),
    ({"planner": {"topology": "Chain", "num_agents": 0}}, ("num_agents", "equal to 1", "0")),
    ({"planner": {"topology": "Chain"}}, ("planner.num_agents", "required")),
    ({"planner": "best"}, ("planner", "dictionary", "'best'")),
    ({"arrivals": "poison"}, ("arrivals: unknown kind", "Did you mean 'poisson'?")),
    ({"arrivals": {"kind": "burst", "factr": 3}}, ("factr", "Did you mean 'factor'?")),
    ({"arrivals": "no-such-trace.csv"}, ("no-such-trace.csv",)),
    ({"down_models": ["lama-3b"]}, ("unknown model 'lama-3b'", "Did you mean 'llama-3b'?")),
    ({"down_models": "llama-3b"}, ("down_models", "'llama-3b'")),
    ({"down_models": EVERY_MODEL}, ("down_models names every model", "one must be up")),
    ({"record_calls": "perhaps"}, ("record_calls", "boolean", "'perhaps'")),
    ({"level": "planner", "background": "none"}, ("planner", "background", "routes the calls")),
    ({"render_mode": "rgb_aray"}, ("render_mode", "Did you mean 'rgb_array'?")),
]


@pytest.mark.filterwarnings("ignore:.*render:UserWarning")
@pytest.mark.parametrize(("arguments", "parts"), ARGUMENTS, ids=lambda v: str(v)[:60])
def test_bad_arguments(arguments: dict[str, Any], parts: tuple[str, ...]) -> None:
    with refused(ConfigError, *parts):
        gym.make(STREAM, **arguments)


@pytest.mark.parametrize("name", IDS)
def test_every_way_of_making_an_environment_checks(name: str) -> None:
    for make in (gym.make, lambda *a, **k: gym.make_vec(*a, num_envs=2, **k)):
        with refused(ConfigError, "Did you mean 'arrival_rate_per_min'?"):
            make(name, arrival_rate=30)
        with refused(ConfigError, "unknown pool 'b200'"):
            make(name, pool="b200")
        with refused(ConfigError, "arrival_rate_per_min: must be a number", "nan"):
            make(name, arrival_rate_per_min=math.nan)


def test_bad_tasks(tmp_path: Path) -> None:
    with refused(TaskError, "unknown task source", "'builtin' nor a folder"):
        gym.make(STREAM, tasks="no such folder")
    with pytest.raises(InfraMindError, match=re.escape(str(tmp_path))):
        gym.make(STREAM, tasks=str(tmp_path))


def test_a_batch_has_environments_and_is_not_rendered() -> None:
    for num_envs in (0, -1, 10**12, math.nan, "2"):
        with refused(ConfigError, "num_envs must be a number from 1 to 65536", repr(num_envs)):
            gym.make_vec(STREAM, num_envs=num_envs)
    with refused(ConfigError, "num_envs must be an integer, got 1.5"):
        gym.make_vec(STREAM, num_envs=1.5)
    with refused(ConfigError, "20000 environments of num_queries=1000 are too many"):
        gym.make_vec(STREAM, num_envs=20_000, num_queries=1000)
    with refused(ConfigError, "unknown autoreset_mode 'Nextstep'", "'NextStep'"):
        gym.make_vec(STREAM, num_envs=1, autoreset_mode="Nextstep")
    with refused(ConfigError, "a vector environment is not rendered"):
        gym.make_vec(STREAM, num_envs=1, render_mode="rgb_array")


@pytest.fixture(scope="module", params=[EXECUTOR, STREAM])
def made(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A single environment and a batch of three."""
    single = gym.make(request.param, num_queries=4, observation="index").unwrapped
    return single, gym.make_vec(request.param, num_envs=3, num_queries=4, observation="index")


@pytest.fixture
def single(made: tuple[Any, Any]) -> Any:
    return made[0]


@pytest.fixture
def batch(made: tuple[Any, Any]) -> Any:
    return made[1]


@pytest.mark.parametrize("key", ["arrival_rate_per_min", "budget_s"])
def test_bad_reset_options(single: Any, batch: Any, key: str) -> None:
    for value in (0, -3.0, 1e-6, math.inf, "30", True, None):
        with refused(ConfigError, key, WITHIN.format(*RANGES[key]), repr(value)):
            single.reset(seed=0, options={key: value})
    with refused(ConfigError, "arrival_rate_per_min must be a number"):
        single.reset(seed=0, options={"arrival_rate_per_min": math.nan})  # a budget is then drawn
    wrong_rows = [[1.0, 0.0, 2.0], [1.0, -2.0, 2.0], [1.0, 2.0], {}]
    for value in (0, -3.0, 1e-6, math.inf, "fast", *wrong_rows):
        expected = f"{key} {WITHIN.format(*RANGES[key])}, or 3 of them, got {value!r}"
        with refused(ConfigError, expected):
            batch.reset(seed=0, options={key: value})
    with refused(ConfigError, "arrival_rate_per_min must be a number"):
        batch.reset(seed=0, options={"arrival_rate_per_min": math.nan})
    for env in (single, batch):
        with refused(ConfigError, "unknown option 'budget'", "Did you mean 'budget_s'?"):
            env.reset(seed=0, options={"budget": 30.0})
        with refused(ConfigError, "options must be a dict or None, got 'x'"):
            env.reset(options="x")
        env.reset(seed=0)  # and it still works
        env.reset(seed=0, options={})


def test_options_that_are_refused_change_nothing(single: Any, batch: Any) -> None:
    options = {"arrival_rate_per_min": 999.0, "budget_s": -1.0}
    for env, contexts in ((single, single.context), (batch, batch.contexts)):
        env.reset(seed=3)
        before = contexts()
        with refused(ConfigError, "budget_s"):
            env.reset(seed=3, options=options)
        env.reset(seed=3)
        assert np.array_equal(contexts(), before)


def test_bad_seeds(single: Any, batch: Any) -> None:
    for seed in ("12", 1.5, -1):
        for env in (single, batch):
            with pytest.raises((ConfigError, gym.error.Error), match=r"(?i)seed"):
                env.reset(seed=seed)
    with refused(ConfigError, "2 seeds for 3 environments"):
        batch.reset(seed=[1, 2])


def test_actions_out_of_range(single: Any, batch: Any) -> None:
    single.reset(seed=0)
    for action in (-1, 15, 10**30, np.int64(15), np.array(-1)):
        with pytest.raises(ActionError, match=r"out of range|must be integers"):
            single.step(action)
    with refused(ActionError, "action 15", "it must be in 0..14"):
        single.step(15)
    batch.reset(seed=0)
    with refused(ActionError, "action 15 of environment 2", "it must be in 0..14"):
        batch.step(np.array([0, 14, 15]))
    with refused(ActionError, "action -1 of environment 1"):
        batch.step([0, -1, 3])
    single.step(14)  # what was refused has changed nothing
    batch.step([0, 14, 3])


@pytest.mark.parametrize("action", [1.0, np.float32(2.0), "1", None, [1.5], math.nan])
def test_actions_of_a_wrong_type(single: Any, batch: Any, action: Any) -> None:
    single.reset(seed=0)
    with refused(ActionError, "actions must be integers"):
        single.step(action)
    batch.reset(seed=0)
    with refused(ActionError, "actions must be integers"):
        batch.step([action] * 3)


def test_actions_of_a_wrong_shape(single: Any, batch: Any) -> None:
    single.reset(seed=0)
    for action in ((), [1, 2], [[1, 2, 3]], np.zeros((3, 5), np.int64)):
        with refused(ActionError, "actions"):
            single.step(action)
    single.step([1])  # one number in a list is an action
    batch.reset(seed=0)
    for actions in (1, [1, 2], [1, 2, 3, 4], [[1, 2, 3]], np.zeros((3, 2), np.int64)):
        with refused(ActionError, "actions have shape", "expected 3 of 1 numbers each"):
            batch.step(actions)
    batch.step([[1], [2], [3]])


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


def test_actions_with_parts_are_not_taken_sideways() -> None:
    env: Any = gym.make_vec(STREAM, num_envs=3, num_queries=4, level="planner")
    env.reset(seed=0)
    actions = np.ones((3, 8), np.int64)
    with refused(ActionError, "shape (8, 3)", "expected 3 of 8 numbers each"):
        env.step(actions.T)
    actions[1, 4] = 12
    with refused(ActionError, "action 12 of environment 1, part 4", "0..11"):
        env.step(actions)


@pytest.mark.parametrize("name", IDS)
def test_a_step_before_the_reset(name: str) -> None:
    env = gym.make(name)
    with pytest.raises(ResetNeeded):
        env.step(0)
    with refused(ResetNeeded, "call reset() before step()"):
        env.unwrapped.step(0)
    with refused(ConfigError, "call reset() before step()"):
        gym.make_vec(name, num_envs=2).step([0, 0])


def test_a_step_after_the_end(single: Any) -> None:
    single.reset(seed=0)
    while not single.step(13)[2]:
        pass
    for _ in range(2):
        with refused(ResetNeeded, "the episode is over; call reset()"):
            single.step(13)
    single.reset()
    single.step(13)


def test_calls_that_were_not_recorded(batch: Any) -> None:
    batch.reset(seed=0)
    with refused(ConfigError, "calls are not recorded", "record_calls=True"):
        batch.calls(0)
