"""The contract of InfraMind-TokenBudget-v0 with Gymnasium and its users."""

from __future__ import annotations

import inspect
import json
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.env_checker import check_env, data_equivalence

import inframind_gym  # noqa: F401
from inframind_gym.envs.token_budget.config import TokenBudgetConfig
from inframind_gym.envs.token_budget.env import TokenBudgetEnv
from inframind_gym.envs.token_budget.vector import TokenBudgetVectorEnv
from inframind_gym.errors import ActionError, ConfigError
from inframind_gym.teams.token_budget.events import AgentStep
from inframind_gym.teams.token_budget.rules import CUT, REALLOCATE, STOP

ID = "InfraMind-TokenBudget-v0"
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"action": "continuous"},
    {"profile": "seed-example"},
    {"budget": [1000, 20_000], "strategy": "frontload", "scope_down": True},
    {"budget": 2500, "price": 0.005, "overhead": False, "max_steps": 4},
)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_check_env_passes_without_a_warning(variant: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(ID, render_mode="rgb_array", **variant).unwrapped)


@pytest.mark.parametrize("variant", VARIANTS[:2], ids=str)
def test_stable_baselines3_check_env_passes_without_a_warning(variant: dict[str, Any]) -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checker.check_env(gym.make(ID, **variant).unwrapped)


def test_the_constructors_name_every_argument() -> None:
    fields = {name: field.default for name, field in TokenBudgetConfig.model_fields.items()}
    for cls, arguments in (
        (TokenBudgetEnv, [*fields, "render_mode", "unknown_arguments"]),
        (TokenBudgetVectorEnv, ["num_envs", "num_threads", "autoreset_mode", *fields]),
    ):
        found = inspect.signature(cls).parameters
        assert list(found) == arguments
        assert {name: found[name].default for name in fields} == fields


def test_spaces_are_as_documented() -> None:
    env = gym.make(ID)
    assert env.action_space == Discrete(16)
    assert isinstance(env.observation_space, Box)
    assert env.observation_space.shape == (32,)
    assert gym.make(ID, action="continuous").action_space == Box(-1.0, 1.0, (4,), np.float32)


def episode(env: gym.Env[Any, Any], seed: int) -> list[Any]:
    """Observation, reward and info of each step of open actions."""
    rng = np.random.default_rng(seed)
    observation, info = env.reset(seed=seed)
    trace: list[Any] = [(observation.copy(), 0.0, dict(info))]
    over = False
    while not over:
        action = env.action_space.sample()
        if "action_mask" in info:
            likely = info["action_mask"] * rng.random(16)
            likely[STOP] *= 0.3
            action = likely.argmax()
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation in env.observation_space
        assert reward == pytest.approx(sum(info["rewards"].values()))
        over = terminated or truncated
        trace.append((observation.copy(), reward, dict(info)))
    return trace


def test_a_spec_survives_json_and_a_seed_gives_the_same_bits() -> None:
    env = gym.make(ID, budget=[2000, 30_000], price=0.002)
    assert env.spec is not None
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    first, second = episode(env, 3), episode(again, 3)
    assert len(first) == len(second)
    for (a, x, i), (b, y, j) in zip(first, second, strict=True):
        assert a.tobytes() == b.tobytes()
        assert x == y
        assert data_equivalence(i, j)
    assert episode(env, 4)[1][0].tobytes() != first[1][0].tobytes()


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_row_of_the_batch_is_a_single_environment(variant: dict[str, Any]) -> None:
    """Over an autoreset too: same bits, rewards, costs, ends and last infos."""
    num = 5
    batch: Any = gym.make_vec(ID, num_envs=num, **variant)
    singles = [gym.make(ID, **variant) for _ in range(num)]
    observations, _ = batch.reset(seed=7)
    for row, env in enumerate(singles):
        assert np.array_equal(observations[row], env.reset(seed=7 + row)[0])
    rng, ends, cut_short = np.random.default_rng(0), 0, 0
    for _ in range(60):
        if batch.config.action == "continuous":
            actions = rng.uniform(-1.0, 1.0, (num, 4))
        else:
            actions = (batch.action_masks() * rng.random((num, 16))).argmax(axis=1)
        observations, rewards, terminations, truncations, infos = batch.step(actions)
        for row, env in enumerate(singles):
            observation, reward, terminated, truncated, info = env.step(actions[row])
            assert (terminations[row], truncations[row]) == (terminated, truncated)
            assert rewards[row] == pytest.approx(reward, rel=1e-14)
            assert infos["cost"][row] == info["cost"]
            if terminated or truncated:
                ends, cut_short = ends + 1, cut_short + truncated
                assert np.array_equal(infos["final_obs"][row], observation)
                for key in ("episode_cost", "quality", "tokens", "quality_area", "drained"):
                    assert infos["final_info"][key][row] == info[key], key
                observation, info = env.reset()
            assert np.array_equal(observations[row], observation)
            if "action_mask" in info:
                assert np.array_equal(infos["action_mask"][row], info["action_mask"])
    assert ends > num
    assert cut_short > 0 or variant.get("max_steps") != 4


def test_the_batch_hands_out_no_memory_twice() -> None:
    batch: Any = gym.make_vec(ID, num_envs=3)
    kept: list[tuple[Any, bytes]] = []

    def keep(*arrays: Any) -> None:
        for array in arrays:
            assert not any(np.shares_memory(array, other) for other, _ in kept)
            kept.append((array, array.tobytes()))

    observations, infos = batch.reset(seed=0)
    keep(observations, infos["cost"], *infos["action_mask"])
    for _ in range(12):
        observations, rewards, over, cut, infos = batch.step(batch.action_space.sample())
        keep(observations, rewards, over, cut, infos["cost"], infos["tokens"])
        keep(batch.action_masks(), *batch.contexts()[:-1], *infos["rewards"].values())
        if (over | cut).any():
            keep(*[infos["final_obs"][row] for row in np.flatnonzero(over | cut)])
    assert all(array.tobytes() == before for array, before in kept)


def test_an_action_that_is_not_open_does_nothing_and_takes_a_step() -> None:
    env: Any = gym.make(ID, max_steps=3).unwrapped
    env.reset(seed=0)
    before = env.simulation.state.ledger.left.copy()
    for step in range(3):
        _, reward, terminated, truncated, info = env.step(6)  # a review without a draft
        assert (reward, info["cost"]) == (0.0, 0.0)
        if step == 2:  # the end of a run is an event in any case
            assert info["event"]["data"]["status"] == "complete"
            assert info["event"]["data"]["tokens_used"] == 0
        else:
            assert info["event"] == {}
        assert (terminated, truncated) == (False, step == 2)
        assert info["cutoff_reason"] == ("steps" if step == 2 else "refused")
    assert np.array_equal(env.simulation.state.ledger.left, before)


def test_ends_and_their_reasons() -> None:
    env: Any = gym.make(ID).unwrapped
    for actions, reason in (([STOP], "stop"), ([CUT + 1, CUT + 2, CUT], "all_cut")):
        env.reset(seed=0)
        for action in actions:
            _, _, terminated, truncated, info = env.step(action)
        assert (terminated, truncated, info["cutoff_reason"]) == (True, False, reason)
        with pytest.raises(gym.error.ResetNeeded):
            env.step(STOP)
    small: Any = gym.make(ID, budget=1000).unwrapped
    small.reset(seed=0)
    small.step(REALLOCATE + 1)
    *_, terminated, _, info = small.step(5)
    assert (terminated, info["cutoff_reason"], info["drained"]) == (True, "budget", 1)


@pytest.mark.parametrize("budget", [500, 900, 1700, 20_000])
def test_the_ceiling_is_exceeded_by_errors_of_prompts_alone(budget: int) -> None:
    """A prompt is up to a tenth (and a unit) longer than its estimate."""
    batch: Any = gym.make_vec(ID, num_envs=256, budget=budget)
    batch.reset(seed=0)
    rng, over_by = np.random.default_rng(0), []
    for _ in range(40):
        likely = batch.action_masks() * rng.random((256, 16))
        likely[:, CUT:REALLOCATE] *= 0.1
        likely[:, STOP] *= 0.01
        ended = batch.step(likely.argmax(axis=1))[4].get("final_info")
        over_by += [] if ended is None else ended["overshoot"][ended["_overshoot"]].tolist()
    assert len(over_by) > 100
    assert max(over_by) <= 150 + 50


def test_events_are_those_of_the_application_and_infos_are_json() -> None:
    env = gym.make(ID, profile="seed-example")
    _, info = env.reset(seed=0)
    for action in (2, 5, 8, 5, 8, CUT + 2, 5, STOP):
        *_, info = env.step(action)
        assert AgentStep.model_validate(info["event"])
        json.dumps({k: v for k, v in info.items() if k != "action_mask"})
    assert (info["quality"], info["tokens"], info["unspent_share"]) == (92.0, 12_500, 0.375)
    assert info["episode_reward"] == pytest.approx(0.795)  # 92 points less 12.5


@pytest.mark.parametrize(
    ("price", "returns"),
    [(0.005, (0.515, 0.295)), (0.001, (0.599, 0.795))],
)
def test_the_price_decides_how_far_the_worked_example_pays(
    price: float, returns: tuple[float, float]
) -> None:
    found = []
    for actions in ((2, STOP), (2, 5, 8, 5, 8, CUT + 2, 5, STOP)):
        env = gym.make(ID, profile="seed-example", price=price)
        env.reset(seed=0)
        for action in actions:
            *_, info = env.step(action)
        found.append(info["episode_reward"])
    assert found == pytest.approx(returns)


def test_a_budget_below_the_minimum_is_said_and_can_narrow_the_task() -> None:
    warned = narrowed = 0
    for seed in range(20):
        env: Any = gym.make(ID, budget=5000).unwrapped
        _, info = env.reset(seed=seed)
        least = (3000, 8000, 16_000)[int(env.simulation.state.seen[0])]
        assert info.get("suggested_minimum") == (least if least > 5000 else None)
        assert ("warning" in info) == (least > 5000)
        warned += "warning" in info
        small: Any = gym.make(ID, budget=5000, scope_down=True).unwrapped
        small.reset(seed=seed)
        if least > 5000:
            assert small.simulation.task.value[0] == 0.8
            narrowed += small.simulation.task.complexity[0] < env.simulation.task.complexity[0]
            assert small.simulation.state.seen[0] == env.simulation.state.seen[0] - 1
        else:
            assert small.simulation.task.value[0] == 1.0
    assert 0 < narrowed <= warned < 20


def test_the_preflight_is_paid_and_the_observation_holds_no_truth() -> None:
    env: Any = gym.make(ID).unwrapped
    observation, _ = env.reset(seed=5)
    assert env.simulation.state.ledger.remaining[0] == 19_800
    task = env.simulation.task
    task.complexity[0] = 2 - task.complexity[0]
    task.hidden[0] = 3
    from inframind_gym.envs.token_budget.observation import observe

    assert np.array_equal(observe(env.simulation.state, np.zeros(1, np.int64))[0], observation)
    assert env.context().truth is None


def test_continuous_actions_share_out_and_stop() -> None:
    env: Any = gym.make(ID, action="continuous").unwrapped
    env.reset(seed=0)
    agents = []
    for _ in range(4):
        *_, info = env.step([0.0, 0.5, 0.2, -1.0])
        agents.append(info["event"]["data"]["agent"])
        ledger = env.simulation.state.ledger
        assert ledger.left[0].sum() <= ledger.budget[0] - ledger.used[0].sum()
    assert agents == ["planner", "executor", "critic", "executor"]
    *_, terminated, _, info = env.step(np.array([0.0, 0.0, 0.0, 0.6]))
    assert terminated
    assert info["cutoff_reason"] == "stop"


def test_renders() -> None:
    env: Any = gym.make(ID, render_mode="rgb_array").unwrapped
    env.reset(seed=0)
    first = env.render()
    assert first.shape == (540, 960, 3)
    env.step(1)
    assert not np.array_equal(env.render(), first)
    text: Any = gym.make(ID, render_mode="ansi").unwrapped
    text.reset(seed=0)
    assert "planner" in text.render()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"budget": 499}, "budget"),
        ({"budget": [5000, 1000]}, "goes up"),
        ({"strategy": "adaptiv"}, "Did you mean 'adaptive'"),
        ({"profile": "seed"}, "seed-example"),
        ({"team": "token_budge"}, "Did you mean 'token_budget'"),
        ({"prices": 0.1}, "Did you mean 'price'"),
        ({"render_mode": "human"}, "render_mode"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TokenBudgetEnv(**arguments)


@pytest.mark.parametrize("action", [16, -1, 0.5, [1, 2], None, "a"], ids=str)
def test_wrong_actions_are_refused(action: Any) -> None:
    env = TokenBudgetEnv()
    env.reset(seed=0)
    with pytest.raises(ActionError):
        env.step(action)
    continuous = TokenBudgetEnv(action="continuous")
    continuous.reset(seed=0)
    with pytest.raises(ActionError):
        continuous.step([0.0, 0.0, float("nan"), 0.0])
