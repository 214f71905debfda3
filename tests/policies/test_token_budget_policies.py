"""Policies of the token-budget environment, and the exact optimum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.envs.token_budget.config import token_budget_config
from inframind_gym.envs.token_budget.context import TokenBudgetContext, TokenBudgetSpec
from inframind_gym.envs.token_budget.simulation import TokenBudgetSimulation
from inframind_gym.errors import ConfigError
from inframind_gym.policies.rollout import play_token_budget as play
from inframind_gym.policies.token_budget import registry
from inframind_gym.policies.token_budget.adaptive import AdaptiveRoiPolicy
from inframind_gym.teams.token_budget.optimum import STATES, solve, state_of
from inframind_gym.teams.token_budget.rules import CUT, REALLOCATE, STOP, Ints
from inframind_gym.teams.token_budget.settings import load_settings

SETTINGS = load_settings()
ALL = (*registry.names(), "optimum")


@pytest.mark.parametrize(
    ("name", "tokens", "quality"),
    [("adaptive_roi", 12_500, 92.0), ("adaptive_roi_strict", 5_500, 78.0)],
)
def test_the_worked_example(name: str, tokens: int, quality: float) -> None:
    """The adaptive mode plays it to the token; with a threshold for all it ends after the draft."""
    found = play(registry.resolve(name), [0, 1], profile="seed-example")
    assert found["tokens"].tolist() == [tokens] * 2
    assert found["quality"].tolist() == [quality] * 2
    assert found["unspent_share"].tolist() == [1.0 - tokens / 20_000] * 2


def test_golden_episodes() -> None:
    """A number changes only with a new SIMULATOR_VERSION: recorded results rest on these."""
    found = play(registry.resolve("critique_heavy"), range(8), budget=9000)
    assert found["tokens"].tolist() == [6900, 6050, 5500, 6700, 8900, 6950, 6950, 6200]
    assert found["quality"].tolist() == [60, 74, 92, 60, 92, 54, 74, 62]
    reported = [63.5, 91.75, 94.0, 57.5, 100.0, 59.0, 80.25, 63.75]
    assert found["reported_quality"].tolist() == pytest.approx(reported)
    drawn = play(registry.resolve("random"), range(8), budget=9000)
    assert drawn["tokens"].tolist() == [9100, 4800, 200, 4000, 3100, 9050, 8450, 4800]


@pytest.mark.parametrize("name", ALL)
def test_a_row_gets_the_same_actions_alone_or_in_a_batch(name: str) -> None:
    batch = play(registry.resolve(name), range(6), budget=[3000, 20_000])
    for seed in (1, 4):
        alone = play(registry.resolve(name), [seed], budget=[3000, 20_000])
        for key, value in alone.items():
            assert value[0] == batch[key][seed], key


@pytest.mark.parametrize("budget", [700, 4000, 20_000])
@pytest.mark.parametrize("name", ALL)
def test_policies_choose_open_actions_and_end_their_episodes(name: str, budget: int) -> None:
    policy = registry.resolve(name)
    strategy = getattr(policy, "strategy", "adaptive")
    simulation = TokenBudgetSimulation(
        token_budget_config({"budget": budget, "strategy": strategy}), 50
    )
    rows, observations = np.arange(50), simulation.observations()
    simulation.start(rows, [np.random.default_rng(i) for i in range(50)], observations)
    policy.reset(simulation.spec(), range(50))
    actions = np.zeros(50, np.int64)
    while len(rows := np.flatnonzero(~simulation.over())):
        seen = simulation.contexts(rows, truth=name == "optimum")
        actions[rows] = policy.act_batch(observations[rows], seen, rows)
        assert simulation.state.mask[rows, actions[rows]].all()
        simulation.step_rows(rows, actions, observations)
    if name != "random":
        assert not simulation.state.truncated.any()


def test_what_the_policies_are_named_for() -> None:
    results = {name: play(registry.resolve(name), range(300)) for name in ALL}
    assert set(results["single_shot"]["calls"]) == {1}
    assert set(results["fixed_k"]["calls"]) == {6}
    assert set(play(registry.resolve("fixed_k:3"), range(20))["calls"]) == {3}
    assert results["spend_all"]["unspent_share"].mean() < 0.05
    assert results["adaptive_roi"]["unspent_share"].mean() > 0.3
    assert (
        results["adaptive_roi_strict"]["tokens"].mean() < results["adaptive_roi"]["tokens"].mean()
    )
    for name, found in results.items():
        gain = results["optimum"]["return"].mean() - found["return"].mean()
        assert gain >= 0.0, name
        assert found["reported_quality"].mean() > found["quality"].mean(), name  # rated too kindly


def test_thresholds_are_arguments() -> None:
    eager = play(registry.resolve("adaptive_roi:0.02"), range(100))
    patient = play(registry.resolve("adaptive_roi:0"), range(100))
    assert eager["tokens"].mean() < patient["tokens"].mean() - 3000
    for name in ("adaptive_roi:2", "adaptive_roi:much", "fixed_k:0", "fixed_k:x", "optimun"):
        with pytest.raises(ConfigError):
            registry.resolve(name)


class Watched(AdaptiveRoiPolicy):
    """Notes the first decision after each round: (best agent, action, whether a move is open)."""

    def reset(self, spec: TokenBudgetSpec, seeds: Sequence[int]) -> None:
        super().reset(spec, seeds)
        self.seen: dict[tuple[int, int], tuple[int, int, bool]] = {}

    def choose(self, context: TokenBudgetContext, rows: Ints) -> Ints:
        actions = super().choose(context, rows)
        for i, (_, revisions, reviews) in enumerate(context.calls):
            if revisions > reviews > 0:
                best = 1 + int(np.argmax(context.last_roi[i, 1:]))
                found = best, int(actions[i]), bool(context.mask[i, REALLOCATE + best])
                self.seen.setdefault((int(rows[i]), int(revisions)), found)
        return actions


class Still(AdaptiveRoiPolicy):
    """The same policy without moves after rounds."""

    def _after_round(self, context: TokenBudgetContext, rows: Ints, action: Ints) -> Ints:
        return action


def test_tokens_go_to_the_highest_roi_after_each_round() -> None:
    policy = Watched()
    play(policy, range(200))
    goes_on = [found for found in policy.seen.values() if not CUT <= found[1] < REALLOCATE]
    moves = [action - best for best, action, is_open in goes_on if is_open and action != STOP]
    assert set(moves) == {REALLOCATE}
    assert {best for best, action, _ in goes_on if action == REALLOCATE + best} == {1, 2}


@pytest.mark.parametrize("budget", [5_000, 10_000, 20_000])
def test_moves_after_rounds_change_no_call(budget: int) -> None:
    """As docs/token_budget.md says: an agent that is short gets the tokens back at its turn."""
    moving, still = (
        play(made, range(400), budget=budget) for made in (AdaptiveRoiPolicy(), Still())
    )
    for key in ("calls", "tokens", "quality", "reported_quality", "return"):
        np.testing.assert_array_equal(moving[key], still[key])
    extra = moving["decisions"].sum() - still["decisions"].sum()
    assert extra > 0 if budget == 20_000 else extra >= 0


def test_the_optimum_knows_simulated_tasks_alone() -> None:
    with pytest.raises(ConfigError, match="profile"):
        play(registry.resolve("optimum"), [0], profile="seed-example")


# The exact optimum


def reference(complexity: int, budget: int, price: float) -> float:
    """Value of a fresh task by sampling: the simulation played by the solved actions."""
    found = play(registry.resolve("optimum"), range(3000), budget=budget, price=price)
    simulation = TokenBudgetSimulation(token_budget_config({"budget": budget}), 3000)
    from gymnasium.utils import seeding

    generators = [seeding.np_random(seed)[0] for seed in range(3000)]
    simulation.start(np.arange(3000), generators, simulation.observations())
    of_this = simulation.task.complexity == complexity
    return float(found["return"][of_this].mean())


@pytest.mark.parametrize(("budget", "price"), [(20_000, 0.001), (4_000, 0.0005)])
def test_the_value_is_what_playing_the_optimum_brings(budget: int, price: float) -> None:
    """Dynamic programming and simulation share no code for transitions and tokens."""
    for complexity in range(3):
        solved = solve(SETTINGS, complexity, budget, price, 1.0, 150)
        start = np.array([budget - 200])
        value = solved.look_up(solved.value, start, np.zeros(1, np.int64))[0]
        assert reference(complexity, budget, price) == pytest.approx(value, abs=0.012)


def test_the_optimum_is_a_fixed_point_for_one_step_of_the_simulation() -> None:
    """From a state, the best call's mean reward and next value are the state's value."""
    n, budget, price = 40_000, 6_000, 0.001
    solved = solve(SETTINGS, 1, budget, price, 1.0, 150)
    simulation = TokenBudgetSimulation(token_budget_config({"budget": budget, "price": price}), n)
    rows, observations = np.arange(n), simulation.observations()
    simulation.start(rows, [np.random.default_rng(i) for i in range(n)], observations)
    task, state = simulation.task, simulation.state
    task.complexity[:] = 1
    task.plan[:], task.sections[:], task.hidden[:], task.flagged[:] = 2, 3, 1, 2  # type: ignore[union-attr]
    simulation._look(rows)
    at = int(state_of(np.array(2), np.array(3), np.array(1), np.array(2)))
    remaining = int(state.ledger.remaining[0])
    best = int(solved.action[remaining // 50, at])
    assert best < CUT
    state.ledger.left[:] = remaining  # the optimum ignores allocations
    simulation._look(rows)
    simulation.step_rows(rows, np.full(n, best), observations)
    after = solved.look_up(
        solved.value,
        state.ledger.remaining,
        state_of(task.plan, task.sections, task.hidden, task.flagged),  # type: ignore[union-attr]
    )
    worth: NDArray[np.float64] = simulation.terms.sum(axis=1) + after
    error = 5.0 * worth.std() / np.sqrt(n)
    assert worth.mean() == pytest.approx(solved.value[remaining // 50, at], abs=error)


def test_values_grow_with_tokens_and_fall_with_the_price() -> None:
    cheap, dear = (solve(SETTINGS, 2, 8000, price, 1.0, 150) for price in (0.0005, 0.002))
    assert cheap.value.shape == (161, STATES)
    assert (np.diff(cheap.value[[40, 80, 160], 0]) > 0.0).all()
    assert (cheap.value >= dear.value - 1e-12).all()
    never = solve(SETTINGS, 2, 8000, 1.0, 1.0, 150)
    assert (never.value == 0.0).all()
    assert (never.action == STOP).all()
