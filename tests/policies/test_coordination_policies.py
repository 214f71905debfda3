"""Supervisors by name, what each does, and the exact optimum against brute force."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from gymnasium.utils import seeding

from inframind_gym.envs.coordination.config import coordination_config
from inframind_gym.envs.coordination.simulation import CoordinationSimulation
from inframind_gym.errors import ConfigError
from inframind_gym.policies.coordination import registry
from inframind_gym.policies.rollout import play_coordination as play
from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.optimum import Position, Solution, facts_of
from inframind_gym.teams.coordination.rules import (
    ANSWER,
    FALLBACK,
    MOST_REGENERATIONS,
    PARALLEL,
    PLAN,
    REGENERATE,
    RETRIEVE,
    REWRITE,
    SYNTHESIZE,
    VALIDATE,
)
from inframind_gym.teams.coordination.scenarios import SCENARIOS
from inframind_gym.teams.coordination.settings import load_settings

SEEDS = range(200)


@cache
def played(name: str, scenario: str | None = None, **arguments: Any) -> dict[str, Any]:
    return play(registry.resolve(name), SEEDS, scenario, **arguments)


def steps(name: str, seed: int, scenario: str | None = None, **arguments: Any) -> list[str]:
    """What a policy does in an episode, in words."""
    simulation = CoordinationSimulation(coordination_config(arguments), 1)
    observations, row = simulation.observations(), np.zeros(1, np.int64)
    simulation.scenario = None if scenario is None else SCENARIOS[scenario]
    simulation.start(row, [seeding.np_random(seed)[0]], observations)
    policy, done = registry.resolve(name), []
    policy.reset(simulation.spec(), [seed])
    while not simulation.over()[0]:
        action = policy.act_batch(observations, simulation.contexts(row), row)
        done.append(rules.NAMES[int(action[0])])
        simulation.step_rows(row, action, observations)
    return done


@pytest.mark.parametrize("name", registry.names())
def test_a_row_plays_the_same_alone(name: str) -> None:
    together = played(name)
    for seed in (0, 5, 11):
        alone = play(registry.resolve(name), [seed])
        for key, values in alone.items():
            assert values[0] == together[key][seed], key


def test_the_designs_order() -> None:
    assert steps("seed_supervisor", 0, "S1", noise=False)[:2] == ["route", "rewrite"]
    found = [steps("seed_supervisor", seed, "S2", noise=False) for seed in range(20)]
    whole = [one for one in found if "plan" in one]
    assert len(whole) > 10
    for one in whole:
        assert one[:3] == ["route", "plan", "rewrite"]
        assert one[3].startswith("retrieve in parallel") and one[4] == "synthesize"
    assert not any(
        "parallel" in s for one in (steps("sequential_supervisor", 3, "S2"),) for s in one
    )
    assert "plan" in steps("always_plan", 0, "S1", noise=False)
    assert "validate" not in steps("no_validate", 0, "S1", noise=False)
    assert steps("basic_rag", 0, "S1", noise=False) == ["retrieve vector", "answer"]
    assert steps("seed_supervisor", 0, "S7", noise=False)[0] == "trim"
    assert all(steps("always_plan", seed, "S3")[-1] == "fallback" for seed in range(5))


def test_time_is_what_the_design_lacks() -> None:
    """At its own rates the whole order is late, and every check that it leaves out pays."""
    seed, short, basic = played("seed_supervisor"), played("no_validate"), played("basic_rag")
    assert seed["forced"].mean() > short["forced"].mean() > basic["forced"].mean()
    assert np.quantile(seed["latency_s"], 0.95) == 3.0
    serial = played("no_validate", "S2", max_num_seqs=1, noise=False)
    at_once = played("no_validate", "S2", noise=False)
    assert serial["latency_s"].mean() > at_once["latency_s"].mean() + 0.1
    early, late = played("seed_supervisor", "S1"), played("no_validate", "S1")
    assert early["caught"].sum() > 0 == late["caught"].sum()


def test_a_trim_of_both_ends_keeps_what_the_newest_alone_lose() -> None:
    fast = {"noise": False, "prefill_tokens_per_s": 1e5}  # what follows the cut is read again
    both = played("seed_supervisor", "S7", **fast)
    newest = played("seed_supervisor", "S7", trim="newest", **fast)
    assert newest["context_kept"].mean() == 0.0 < 0.7 < both["context_kept"].mean()
    assert newest["answer_score"].mean() < both["answer_score"].mean()


@pytest.mark.parametrize("name", [name for name in SCENARIOS if SCENARIOS[name].checks])
def test_scenarios_have_checks_that_can_fail(name: str) -> None:
    scenario, constants = SCENARIOS[name], load_settings()
    checked = scenario.check(played("seed_supervisor", name), constants)
    assert checked and all(found.shape == (len(SEEDS),) for found in checked.values())
    if name == "S3":
        assert checked["answered by 3 s"].all()
    random = scenario.check(played("random", name), constants)
    assert any(not found.all() for found in random.values())


class GivesUp:
    """Falls back at once."""

    name = "gives_up"

    def reset(self, spec: Any, seeds: Any) -> None:
        """Nothing is kept."""

    def act_batch(self, observations: Any, seen: Any, rows: Any) -> Any:
        return np.full(len(rows), FALLBACK)


def test_a_score_without_the_exchange_does_not_use_it() -> None:
    """The fallback reads no conversation; it may guess what an exchange said."""
    scenario, settings = SCENARIOS["S4"], load_settings()
    found = play(GivesUp(), SEEDS, "S4")
    assert found["answer_score"].mean() > 0.1
    assert not scenario.check(found, settings)["the exchange is used"].any()
    found = played("checked_rag", "S4", noise=False)
    assert scenario.check(found, settings)["the exchange is used"].mean() > 0.9


def test_a_trim_is_checked_right_after_it() -> None:
    scenario, settings = SCENARIOS["S7"], load_settings()
    found = played("seed_supervisor", "S7", noise=False)
    assert (found["context_tokens"] > found["trimmed_to_tokens"]).all()
    assert scenario.check(found, settings)["trimmed to 85 %"].all()
    for tokens, holds in ((108_800, True), (108_801, False), (119_000, False)):
        changed = found | {"trimmed_to_tokens": np.full(len(SEEDS), tokens)}
        assert scenario.check(changed, settings)["trimmed to 85 %"].all() == holds


class BruteForce(Solution):
    """Every action that the rules leave open."""

    def open(self, at: Position) -> Iterator[int]:
        yield FALLBACK
        if at.waiting < 0:
            yield PLAN
        for strategy in range(3):
            if at.waiting > 0 or not at.searched >> strategy & 1:
                yield RETRIEVE + strategy
            if at.waiting > 1:
                yield PARALLEL + strategy
        if not at.rewritten:
            yield REWRITE
        if at.searches > 1 and not at.merged:
            yield SYNTHESIZE
        if at.docs:
            yield ANSWER
            if at.judged == 0:
                yield VALIDATE
        if at.draft is not None and at.regenerations < MOST_REGENERATIONS:
            yield REGENERATE


def exact(seeds: range) -> CoordinationSimulation:
    simulation = CoordinationSimulation(coordination_config({"noise": False}), len(seeds))
    generators = [seeding.np_random(seed)[0] for seed in seeds]
    simulation.start(np.arange(len(seeds)), generators, simulation.observations())
    return simulation


def test_the_optimum_is_that_of_brute_force() -> None:
    """With six decisions, which is small enough to try them all."""
    content = load_settings().model_dump()
    content["limits"]["max_iterations"] = 6
    short = type(load_settings()).model_validate(content)
    simulation = exact(range(40))
    by_complexity = [np.flatnonzero(simulation.question.complexity == c)[:2] for c in range(3)]
    for row in np.concatenate(by_complexity).tolist():
        facts = facts_of(simulation.question, row)
        for seqs in (1, 3):
            pruned, whole = Solution(short, facts, seqs), BruteForce(short, facts, seqs)
            assert pruned.value(Position()) == pytest.approx(whole.value(Position()), abs=1e-12)


def test_the_optimum_earns_what_it_expects_and_no_policy_earns_more() -> None:
    seeds = range(120)
    policy: Any = registry.resolve("optimum")
    best = play(policy, seeds, noise=False)
    simulation = exact(seeds)
    expected = np.array(
        [
            policy._solutions[facts_of(simulation.question, row)].value(Position())
            for row in range(len(seeds))
        ]
    )
    difference = best["return"] - expected
    assert abs(difference.mean()) < 3.5 * difference.std() / len(seeds) ** 0.5
    for name in registry.names():
        other = play(registry.resolve(name), seeds, noise=False)["return"]
        lost = expected - other
        assert lost.mean() > -3.0 * lost.std() / len(seeds) ** 0.5, name


@pytest.mark.parametrize("given", [{}, {"noise": False, "supervisor": "model"}], ids=str)
def test_where_there_is_no_optimum(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Leave it out"):
        play(registry.resolve("optimum"), [0], **given)


def test_wrong_names() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'seed_supervisor'"):
        registry.resolve("seed_supervisr")
    assert "optimum" not in registry.names()
