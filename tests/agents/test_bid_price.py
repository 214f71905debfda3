"""Bid prices: recipes, the choice between them, and estimates from records."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from agents.bid_price.estimates import (
    Calls,
    Played,
    Surveyed,
    candidates,
    congestion,
    ease_of_questions,
    easiness_of_questions,
    log_odds,
    surveyed,
    worth_keeping,
)
from agents.bid_price.training import (
    TOO_DEAR,
    ChoiceConfig,
    Demand,
    Planner,
    PriceProgram,
    demand_of,
    prices_of,
    work_of_slots,
)
from inframind_gym.policies.bid_price import Estimates, Prices, choose
from inframind_gym.policies.recipes import Recipe, role_orders, table_from_tensors, tabulate
from inframind_gym.simulator.workflow.roles import ROLES, RoleRule, roles_of
from inframind_gym.simulator.workflow.state import COMPLETED
from inframind_gym.simulator.workflow.topology import TOPOLOGIES, graph
from inframind_gym.tasks import load_role_embeddings

IO, DEBATE = TOPOLOGIES.index("IO"), TOPOLOGIES.index("Debate")


def estimates(work_s: list[list[float]], right: list[float]) -> Estimates:
    """Recipes of one call on each of two models: seconds and success in every domain."""
    work = np.tile(np.array(work_s), (3, 1, 1))
    recipes, models = work.shape[1:]
    logit = np.log(np.array(right) / (1 - np.array(right)))
    return Estimates(
        logit=np.tile(logit, (3, 1)),
        log_latency=np.log(work.sum(axis=2)),
        spread=np.full((3, recipes), 0.2),
        path_s=work,
        path_calls=(work > 0).astype(np.float64),
        work_s=work,
        call_s=np.array([1.0, 20.0]),
        slots=np.full(models, 4.0),
        slowdown=np.zeros((models, models + 1)),
        budgets_s=np.array([10.0, 100.0, 1000.0]),
        turns=np.tile([[0.1], [1.0], [3.0]], (1, models)),
    )


def prices(base: float, load: float = 0.0, late: float = 0.0) -> Prices:
    zero = np.zeros(1)
    return Prices(zero + load, zero + late, zero, zero + 1e9, zero, np.full((1, 2), base))


# A fast model that is often wrong, and a slow one that is nearly always right.
FAST_AND_SLOW = estimates([[1.0, 0.0], [0.0, 20.0]], [0.5, 0.95])
NEEDS = np.array([0b01, 0b10], np.uint32)


def pick(
    price: Prices,
    *,
    budget_s: float = 300.0,
    in_flight: tuple[float, float] = (0.0, 0.0),
    up: int = 0b11,
    ease: float = 0.0,
    known: Estimates = FAST_AND_SLOW,
) -> int:
    return int(
        choose(
            known,
            price.packed(),
            NEEDS,
            np.array([in_flight]),
            np.array([budget_s]),
            np.zeros(1, np.int64),
            np.array([ease]),
            np.array([up], np.uint32),
        )[0]
    )


THRESHOLD = math.log(0.45 / 19)  # 20 s buy 0.45 more than 1 s
TEN_S = FAST_AND_SLOW._replace(
    **{name: getattr(FAST_AND_SLOW, name) * [[1.0], [0.5]] for name in ("path_s", "work_s")},
    log_latency=FAST_AND_SLOW.log_latency - [0.0, math.log(2.0)],
    call_s=np.array([1.0, 10.0]),
)  # the slow model takes 10 s


@pytest.mark.parametrize(
    ("base", "given", "chosen"),
    [
        (-30.0, {}, 1),  # the better answer if it costs nothing
        (-30.0, {"budget_s": 10.0}, 0),  # 20 s would be too late
        (-30.0, {"budget_s": 10.0, "late": 0.9}, 1),  # which may be worth something
        (-30.0, {"up": 0b01}, 0),
        (THRESHOLD - 0.01, {}, 1),
        (THRESHOLD + 0.01, {}, 0),
        (THRESHOLD - 0.01, {"ease": 3.0}, 0),  # nothing to gain on easy questions
        (THRESHOLD - 0.5, {"load": 1.0, "in_flight": (0.0, 4.0)}, 0),
        # 12 calls at 4 slots: (12 + 1 - 4) / 4 rounds of 20 s ahead, 65 s in all
        (-30.0, {"in_flight": (0.0, 12.0), "budget_s": 80.0}, 1),
        (-30.0, {"in_flight": (0.0, 12.0), "budget_s": 50.0}, 0),
        # 28 calls: a budget next to 10 s does not wait (0.1 of 6.25 rounds of 10 s), others do
        (-30.0, {"in_flight": (0.0, 28.0), "budget_s": 31.0, "known": TEN_S}, 1),
        (-30.0, {"in_flight": (0.0, 28.0), "budget_s": 32.0, "known": TEN_S}, 0),
        (-30.0, {"in_flight": (0.0, 28.0), "budget_s": 95.0, "known": TEN_S}, 1),  # 72.5 s
    ],
)
def test_the_choice_weighs_success_in_time_against_the_price(
    base: float, given: dict[str, Any], chosen: int
) -> None:
    price = prices(base, given.pop("load", 0.0), given.pop("late", 0.0))
    assert pick(price, **given) == chosen


ONE_KIND = Demand(
    share=np.array([0.0, 1.0, 0.0]),
    ease=np.zeros((3, 1)),
    budgets_s=np.array([300.0]),
    budget_share=np.ones(1),
)
FREE = ChoiceConfig(load=0.5, late_value=0.0, patience_s=1e9, doubt=0.0)
WORK = work_of_slots(FAST_AND_SLOW, np.array([1.0, 2.0]))


def test_prices_make_queries_indifferent_between_the_recipes_that_share_a_server() -> None:
    """The slow server does 4 seconds of work a second: 12 of 20 queries a minute, at 20 s each."""
    planner = Planner(FAST_AND_SLOW, NEEDS, ONE_KIND, FREE, WORK)
    light, full = planner.plan(6.0), planner.plan(20.0)
    assert light.value == pytest.approx(0.95, abs=1e-6)
    assert light.in_flight == pytest.approx([0.0, 2.0]) and light.price[1] == pytest.approx(0.0)
    assert full.value == pytest.approx(0.6 * 0.95 + 0.4 * 0.5, abs=1e-6)
    assert full.price == pytest.approx([0.0, 0.45 / 20], abs=1e-9)
    assert full.in_flight == pytest.approx([8 / 60, 4.0])
    prices = prices_of([light, full], FAST_AND_SLOW.slots, FREE)
    as_planned = prices.base[0, 1] + prices.load[0, 1] * full.in_flight / FAST_AND_SLOW.slots
    assert np.exp(as_planned) == pytest.approx([1e-6, 0.45 / 20])
    # 12 of 36 are answered by the slow model where the value is 0.9 of 0.95
    share = (0.9 * 0.95 - 0.5) / 0.45
    assert planner.capacity_per_min() == pytest.approx(12.0 / share, rel=0.01)


def test_a_cap_on_gpu_seconds_is_a_price_on_all_servers() -> None:
    """A call of 1 s on a quarter of a GPU, or of 20 s on two quarters: half of each at 5.125 s."""
    assert pytest.approx([0.25, 0.5]) == WORK
    plan = Planner(FAST_AND_SLOW, NEEDS, ONE_KIND, FREE, WORK, 5.125).plan(6.0)
    assert plan.value == pytest.approx(0.5 * 0.95 + 0.5 * 0.5, abs=1e-6)
    second = 0.45 / (10.0 - 0.25)  # what a GPU-second is worth
    assert plan.work_price == pytest.approx(second * WORK, abs=1e-9)
    assert plan.price == pytest.approx(plan.work_price)
    ample = Planner(FAST_AND_SLOW, NEEDS, ONE_KIND, FREE, WORK, 10.1).plan(6.0)
    assert ample.value == pytest.approx(0.95, abs=1e-6) and not ample.work_price.any()


def test_a_model_that_slows_a_better_one_is_left_out() -> None:
    """The fast model would make calls of the slow one e times as long, too long for the budget."""
    slowdown = np.zeros((2, 3))
    slowdown[1, 0] = 3.0
    known = FAST_AND_SLOW._replace(slowdown=slowdown)
    plan = Planner(known, NEEDS, ONE_KIND, FREE, WORK).plan(11.0)
    assert plan.value == pytest.approx(0.95, abs=1e-6)
    assert plan.price[0] == TOO_DEAR and plan.in_flight[0] == 0.0
    both = PriceProgram(known, np.arange(2), ONE_KIND, FREE, WORK, np.inf)
    assert both.solve(11.0, np.array([4.0, 4.0]), 0).value < plan.value


def test_kinds_of_queries() -> None:
    ease = [np.zeros(0), np.array([3.0, -3.0, 0.0, 1.0, -1.0, 0.0]), np.zeros(0)]
    tiers_s = np.array([10.0, 100.0, 200.0, 1000.0])
    demand = demand_of(np.array([0.0, 1.0, 0.0]), ease, tiers_s, 110.0)
    assert demand.ease[1].tolist() == [-2.0, 0.0, 2.0] and not demand.ease[[0, 2]].any()
    assert demand.budgets_s.tolist() == [10.0, 100.0, 110.0]
    assert demand.budget_share.tolist() == [0.25, 0.25, 0.5]


def test_candidates_are_plans_that_can_be_carried_out() -> None:
    recipes = candidates(5, 3)
    assert len(set(recipes)) == len(recipes)
    table = tabulate(recipes, 3)
    for r in range(0, len(recipes), 97):
        g = graph(TOPOLOGIES[table.topology[r]], int(table.num_agents[r]))
        assert (table.models[r] >= 0).sum() == g.num_nodes
        assert tuple(table.waves[r, : g.num_nodes]) == g.waves
        assert (table.routes[r, : g.num_nodes] // 3 == table.models[r, : g.num_nodes]).all()
        used = set(table.models[r, : g.num_nodes].tolist())
        assert table.needs[r] == sum(1 << m for m in used)
    again = table_from_tensors(table.to_tensors(), 3)
    for name, column in table._asdict().items():
        assert np.array_equal(column, getattr(again, name))
    without = candidates(5, 3, code=False)
    assert set(without) == {recipe for recipe in recipes if recipe.roles != RoleRule.CODER}


def test_roles_that_fit_come_first_and_keep_to_their_rule() -> None:
    roles = load_role_embeddings()
    order = role_orders(roles, roles)  # every role's own text is a question that it fits best
    for role, of in enumerate(ROLES):
        domain = ["Math", "Code", "Commonsense"].index(of.domain)
        own = roles_of(of.domain)
        rule = RoleRule.SINGLE if of.calls == 1 else RoleRule.DOUBLE
        assert own[order[role, domain, rule, 0]] == role
        for r, calls in ((RoleRule.SINGLE, 1), (RoleRule.DOUBLE, 2)):
            assert {ROLES[own[p]].calls for p in order[role, domain, r]} == {calls}
    assert {ROLES[roles_of("Code")[p]].writes_code for p in order[0, 1, RoleRule.CODER]} == {True}


def played(recipe: Any, records: Any) -> Played:
    rows = np.zeros(len(records), np.int64)
    return Played(rows, np.asarray(recipe, np.int64), np.zeros((len(records), 2)), records)


def test_means_of_a_debate_by_hand() -> None:
    """One debate of two agents: 3 s and 5 s, then 2 s and 1 s, then 4 s for the decision."""

    class Spec:
        num_models, budget_tiers_s = 2, np.array([10.0, 10.0])
        expected_call_s, max_num_seqs = np.ones(2), np.full(2, 4)

    record = np.zeros(1, COMPLETED)
    record["model"], record["domain"], record["solved"] = -1, 1, 1
    record["model"][0, :4] = [0, 1, 1, 1]
    record["node_latency_s"][0, :4] = [3.0, 5.0, 2.0, 1.0]
    record["latency_s"], record["final_model"] = 11.0, 1
    table = tabulate([Recipe(DEBATE, (0, 1, 1, 1), 0, RoleRule.SINGLE)], 3)
    spec: Any = Spec()
    found = surveyed(played([0], record), table, spec)
    assert found.queries[:, 0].tolist() == [0, 1, 0]
    assert found.right[1, 0] == 1.0
    for d in range(3):  # domains without queries get the average of the others
        assert found.known.path_s[d, 0].tolist() == [0.0, 5.0 + 2.0 + 4.0]
        assert found.known.path_calls[d, 0].tolist() == [0.0, 3.0]
        assert found.known.work_s[d, 0].tolist() == [3.0, 5.0 + 2.0 + 1.0 + 4.0]
        assert found.known.log_latency[d, 0] == pytest.approx(math.log(11.0))


def test_recipes_that_no_situation_calls_for_are_dropped() -> None:
    """Recipe 2 is slower, dearer and worse than recipe 0; domain 0 alone was played."""
    known = estimates([[2.0, 0.0], [0.0, 20.0], [4.0, 0.0]], [0.5, 0.9, 0.4])
    count = np.array([[1000.0] * 3, [0.0] * 3, [0.0] * 3])
    needs, rng = np.array([1, 2, 1], np.uint32), np.random.default_rng(0)
    for keep, kept in ((2, [0, 1]), (3, [0, 1, 2])):
        found = Surveyed(count, np.full((3, 3), 0.5), known)
        assert worth_keeping(found, needs, keep, 90.0, rng).tolist() == kept


def asked(ease: Any, ability: Any, n: int = 60_000) -> tuple[Played, Any]:
    """Questions of domain 0 answered by recipes at random, and the recipes' success."""
    rng = np.random.default_rng(3)
    records = np.zeros(n, COMPLETED)
    records["task"] = rng.integers(len(ease), size=n)
    recipe = rng.integers(len(ability), size=n)
    chance = 1 / (1 + np.exp(-(ability[recipe] + ease[records["task"]])))
    records["solved"] = rng.random(n) < chance
    right = [records["solved"][recipe == r].mean() for r in range(len(ability))]
    return played(recipe, records), np.tile(right, (3, 1))


def test_ease_is_estimated_from_embeddings_and_success_is_met_on_average() -> None:
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(400, 384)).astype(np.float32) / np.sqrt(384)
    ease, ability = embeddings @ rng.normal(size=384), np.array([0.5, -1.0])
    found, right = asked(ease, ability)
    easiness = easiness_of_questions(found, right, 401)
    assert np.corrcoef(easiness[:400], ease)[0, 1] > 0.9 and easiness[400] == 0.0  # never asked
    weights, centres = ease_of_questions(found, easiness[:400], embeddings)
    assert (embeddings @ weights - centres[0]).mean() == pytest.approx(0.0, abs=1e-6)
    assert log_odds(found, right, ease[found.records["task"]])[0] == pytest.approx(ability, abs=0.1)
    # A text that says something and one that says nothing, of many more questions than numbers.
    told = np.zeros((4000, 384), np.float32)
    told[:, :5] = rng.normal(size=(4000, 5))
    found, _ = asked(np.zeros(4000), ability)
    weights, _ = ease_of_questions(found, told @ np.arange(384.0), told)
    assert weights[:5] == pytest.approx(np.arange(5.0), abs=0.1)
    weights, _ = ease_of_questions(found, rng.normal(size=4000), told)
    assert np.abs(weights).max() < 0.1


def test_the_effect_of_load_is_found() -> None:
    """Model 1 is slowed by e^0.7 while model 0 is busy; full servers make calls wait in rounds,
    those with much time eight times as long as those with little."""
    rng = np.random.default_rng(1)
    n = 20_000
    x = rng.integers(0, 24, size=(n, 2)).astype(np.float64)
    model = rng.integers(2, size=n)
    slow = np.where(model == 1, 0.7 * np.minimum(0.5 * x[:, 0], 1.0), 0.0)
    rounds = np.maximum(x[np.arange(n), model] + 1 - 8, 0) / 8
    budget_s = rng.choice([10.0, 100.0], n)
    turns = np.where(budget_s == 10.0, 0.2, 1.6)
    seconds = 10.0 * np.exp(slow + 0.1 * rng.standard_normal(n)) * (1 + turns * rounds)
    zero = np.zeros(n, np.int64)
    calls = Calls(seconds, zero, model, zero, np.arange(n))
    slots, budgets_s = np.array([8.0, 8.0]), np.array([10.0, 100.0, 1000.0])
    slowdown, found = congestion(calls, x, budget_s, np.full((3, 2, 1), 10.0), slots, budgets_s)
    assert slowdown[1, 0] == pytest.approx(0.7, abs=0.05)
    assert slowdown[0, 1] == pytest.approx(0.0, abs=0.05)
    assert found[0] == pytest.approx([0.2, 0.2], abs=0.05)
    assert found[1] == pytest.approx([1.6, 1.6], abs=0.1)
    assert found[2] == pytest.approx([0.9, 0.9], abs=0.1)  # without calls: as all together
