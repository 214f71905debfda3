"""The contract of the teams' environments with Gymnasium and its users, the same for all three."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

import inframind_gym  # noqa: F401
from inframind_gym.configs import StrictModel
from inframind_gym.envs.assignment import AssignmentConfig, AssignmentEnv, AssignmentVectorEnv
from inframind_gym.envs.coordination import (
    CoordinationConfig,
    CoordinationEnv,
    CoordinationVectorEnv,
)
from inframind_gym.envs.token_budget import TokenBudgetConfig, TokenBudgetEnv, TokenBudgetVectorEnv
from inframind_gym.errors import ActionError, ConfigError


@dataclass(frozen=True)
class Team:
    """A family: its classes, arguments that are tested, and a word of its picture in text."""

    name: str
    config: type[StrictModel]
    env: type[gym.Env[Any, Any]]
    vector: type[Any]
    variants: tuple[dict[str, Any], ...]
    word: str

    @property
    def id(self) -> str:
        return f"InfraMind-{self.name}-v0"


TEAMS = (
    Team(
        "Assignment",
        AssignmentConfig,
        AssignmentEnv,
        AssignmentVectorEnv,
        (
            {"num_tasks": 8},
            {"num_tasks": 8, "observation": "tabular", "arrivals": "skewed"},
            {"num_tasks": 8, "observation": "flat", "arrivals": "drifting", "load": "queue"},
            {"num_tasks": 8, "load": "queue", "arrival_rate_per_min": 600.0},
            {"observation": "tabular", "episode": "request", "arrivals": "bursty"},
        ),
        "coder",
    ),
    Team(
        "TokenBudget",
        TokenBudgetConfig,
        TokenBudgetEnv,
        TokenBudgetVectorEnv,
        (
            {},
            {"action": "continuous"},
            {"profile": "seed-example"},
            {"budget": [1000, 20_000], "strategy": "frontload", "scope_down": True},
            {"budget": 2500, "price": 0.005, "overhead": False, "max_steps": 4},
        ),
        "planner",
    ),
    Team(
        "Coordination",
        CoordinationConfig,
        CoordinationEnv,
        CoordinationVectorEnv,
        (
            {},
            {"conversation": True, "trim": "newest"},
            {"supervisor": "model", "max_num_seqs": 1, "conversation": 0.5},
            {"noise": False, "fallback": False},
        ),
        "router",
    ),
)
CASES = [
    pytest.param(team, variant, id=f"{team.name} {variant}")
    for team in TEAMS
    for variant in team.variants
]
each_case = pytest.mark.parametrize(("team", "variant"), CASES)
each_team = pytest.mark.parametrize("team", TEAMS, ids=lambda team: team.name)


def choice(rng: np.random.Generator, mask: NDArray[Any] | None, size: tuple[int, ...]) -> Any:
    """Open actions, or with some luck any; continuous ones without a mask."""
    if mask is None:
        return rng.uniform(-1.0, 1.0, (*size, 4)).astype(np.float32)
    likely = mask * rng.random(mask.shape)
    likely[..., -1] *= 0.3  # stopping, or the fallback
    anything = rng.integers(mask.shape[-1], size=size)
    return np.where(rng.random(size) < 0.1, anything, likely.argmax(axis=-1))


def same(one: Any, other: Any) -> bool:
    return bool(data_equivalence(one, other))


@each_case
def test_check_env_passes_without_a_warning(team: Team, variant: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(team.id, render_mode="rgb_array", **variant).unwrapped)


@each_case
def test_stable_baselines3_check_env_passes_without_a_warning(
    team: Team, variant: dict[str, Any]
) -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    env = gym.make(team.id, **variant)
    if isinstance(env.observation_space, gym.spaces.Dict):
        return  # SB3 warns of entries with two axes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checker.check_env(env.unwrapped)


@each_team
def test_the_constructors_name_every_argument(team: Team) -> None:
    fields = {name: field.default for name, field in team.config.model_fields.items()}
    for cls, arguments in (
        (team.env, {*fields, "render_mode"}),
        (team.vector, {"num_envs", "num_threads", "autoreset_mode", *fields}),
    ):
        found = inspect.signature(cls).parameters
        assert set(found) == arguments
        assert {name: found[name].default for name in fields} == fields


def episode(env: gym.Env[Any, Any], seed: int) -> list[tuple[Any, ...]]:
    """Observation, reward and info of each step."""
    rng = np.random.default_rng(seed)
    observation, info = env.reset(seed=seed)
    trace: list[tuple[Any, ...]] = [(observation, 0.0, info)]
    over = False
    while not over:
        action = choice(rng, info.get("action_mask"), ())
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation in env.observation_space
        assert not (terminated and truncated)
        if "rewards" in info:
            assert reward == pytest.approx(sum(info["rewards"].values()))
        over = terminated or truncated
        trace.append((observation, reward, info))
    with pytest.raises(gym.error.ResetNeeded):
        env.step(action)
    return trace


@each_case
def test_a_spec_survives_json_and_a_seed_gives_the_same_bits(
    team: Team, variant: dict[str, Any]
) -> None:
    env = gym.make(team.id, **variant)
    assert env.spec is not None
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.observation_space == env.observation_space
    first = episode(env, 3)
    assert same(first, episode(again, 3))
    assert not same(first, episode(env, 4))


@each_case
def test_a_row_of_the_batch_is_a_single_environment(team: Team, variant: dict[str, Any]) -> None:
    """Over autoresets too: same bits, rewards, costs, ends and infos."""
    num = 5
    batch: Any = gym.make_vec(team.id, num_envs=num, **variant)
    singles = [gym.make(team.id, **variant) for _ in range(num)]
    shown, infos = batch.reset(seed=7)
    for row, env in enumerate(singles):
        assert same(of_row(shown, row), env.reset(seed=7 + row)[0])
    rng, ends, cut_short = np.random.default_rng(0), 0, 0
    for _ in range(60):
        mask = batch.action_masks() if "action_mask" in infos else None
        actions = choice(rng, mask, (num,))
        shown, rewards, terminations, truncations, infos = batch.step(actions)
        for row, env in enumerate(singles):
            observation, reward, terminated, truncated, info = env.step(actions[row])
            assert (terminations[row], truncations[row]) == (terminated, truncated)
            assert rewards[row] == reward
            if not (terminated or truncated):
                compare(infos, info, row)
            else:
                ends, cut_short = ends + 1, cut_short + truncated
                assert same(infos["final_obs"][row], observation)
                compare(infos["final_info"], info, row)
                observation, info = env.reset()
            assert same(of_row(shown, row), observation)
            if mask is not None:
                assert np.array_equal(infos["action_mask"][row], info["action_mask"])
                assert np.array_equal(batch.action_masks()[row], info["action_mask"])
    assert ends > num
    assert cut_short > 0 or not {"num_tasks", "max_steps"} & set(variant)


def of_row(shown: Any, row: int) -> Any:
    if isinstance(shown, dict):
        return {name: values[row] for name, values in shown.items()}
    return shown[row]


def compare(infos: dict[str, Any], info: dict[str, Any], row: int) -> None:
    """Infos of a batch that a single environment has as well."""
    compared = [key for key in infos if key in info and key != "action_mask"]
    assert "cost" in compared
    for key in compared:
        own = infos[key]
        if isinstance(info[key], str):
            continue  # the batch has numbers in place of texts
        if isinstance(own, dict):
            assert {name: own[name][row] for name in info[key]} == info[key]
        else:
            assert np.array_equal(own[row], info[key]), key


@each_case
def test_the_next_step_begins_the_next_episode(team: Team, variant: dict[str, Any]) -> None:
    """Where the mode is NextStep: with the same episodes, one step later each."""
    env: Any = gym.make_vec(team.id, num_envs=3, autoreset_mode="NextStep", **variant)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    rng, over = np.random.default_rng(0), np.zeros(3, np.bool_)
    _, infos = env.reset(seed=1)
    began = 0
    for _ in range(40):
        mask = env.action_masks() if "action_mask" in infos else None
        _, rewards, terminations, truncations, infos = env.step(choice(rng, mask, (3,)))
        began += int(over.sum())
        assert not rewards[over].any() and not infos["cost"][over].any()
        assert not (terminations | truncations)[over].any()
        over = terminations | truncations
    assert began >= 3


@each_team
def test_the_batch_hands_out_no_memory_twice(team: Team) -> None:
    batch: Any = gym.make_vec(team.id, num_envs=3, **team.variants[0])
    kept: list[tuple[Any, bytes]] = []

    def keep(*values: Any) -> None:
        for value in values:
            if isinstance(value, dict):
                keep(*value.values())
            elif isinstance(value, tuple | list):
                keep(*value)
            elif isinstance(value, np.ndarray) and value.dtype != object and value.size:
                assert not any(np.shares_memory(value, other) for other, _ in kept)
                kept.append((value, value.tobytes()))

    observations, infos = batch.reset(seed=0)
    keep(observations, infos)
    for _ in range(12):
        observations, rewards, over, cut, infos = batch.step(batch.action_space.sample())
        final = infos.pop("final_obs", ())
        keep(observations, rewards, over, cut, infos, batch.action_masks(), batch.contexts())
        keep(*(shown for shown in final if shown is not None))
    assert all(array.tobytes() == before for array, before in kept)


@each_team
def test_pictures_change_with_the_episode_and_nothing_else(team: Team) -> None:
    env: Any = gym.make(team.id, render_mode="rgb_array").unwrapped
    plain: Any = gym.make(team.id).unwrapped
    text: Any = gym.make(team.id, render_mode="ansi").unwrapped
    for one in (env, plain, text):
        one.reset(seed=6)
    pictures = []
    for _ in range(3):
        pictures.append(env.render())
        assert same(env.step(1), plain.step(1))
        text.step(1)
    assert pictures[0].shape == (540, 960, 3)
    assert not np.array_equal(pictures[0], pictures[-1])
    assert plain.render() is None
    assert team.word in text.render()


@each_team
@pytest.mark.parametrize("action", [99, -1, 0.5, [1, 2], None, "a"], ids=str)
def test_wrong_actions_are_refused(team: Team, action: Any) -> None:
    env = team.env()
    env.reset(seed=0)
    with pytest.raises(ActionError):
        env.step(action)


@each_team
def test_wrong_options_and_modes_are_named(team: Team) -> None:
    with pytest.raises(ConfigError, match="unknown render_mode"):
        team.env(render_mode="human")
    with pytest.raises(ConfigError, match="unknown option"):
        team.env().reset(options={"scenarios": "S1"})
