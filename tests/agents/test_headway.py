"""Headway: what it can choose, what it learns, how it chooses."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from agents.headway.agent import HeadwayPolicy
from agents.headway.choice import Knowledge, Prices, choose, nearest
from agents.headway.marks import marks_from, marks_of
from agents.headway.recipes import (
    Recipe,
    book_from_tensors,
    book_of,
    candidates,
    role_orders,
)
from agents.headway.study import congestion, ease_of_questions, log_odds, worth_keeping
from agents.headway.survey import Played, Sums, summed
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint
from inframind_gym.simulator.workflow.roles import ROLES, RoleRule, roles_of
from inframind_gym.simulator.workflow.state import COMPLETED
from inframind_gym.simulator.workflow.topology import TOPOLOGIES, graph
from inframind_gym.tasks import load_role_embeddings

IO, DEBATE = TOPOLOGIES.index("IO"), TOPOLOGIES.index("Debate")
NEVER = 1e9


def knowledge(work_s: list[list[float]], right: list[float]) -> Knowledge:
    """Recipes of one call on each of two models: seconds and success in every domain."""
    work = np.tile(np.array(work_s), (3, 1, 1))
    recipes, models = work.shape[1:]
    logit = np.log(np.array(right) / (1 - np.array(right)))
    return Knowledge(
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
    return Prices(
        base=np.full((1, 2), base),
        load=np.full((1, 2), load),
        late_value=np.array([late]),
        caution=np.zeros(1),
        patience_s=np.array([NEVER]),
        doubt=np.zeros(1),
    )


# A fast model that is often wrong, and a slow one that is nearly always right.
FAST_AND_SLOW = knowledge([[1.0, 0.0], [0.0, 20.0]], [0.5, 0.95])
NEEDS = np.array([0b01, 0b10], np.uint32)


def pick(
    price: Prices,
    *,
    budget_s: float = 300.0,
    in_flight: tuple[float, float] = (0.0, 0.0),
    up: int = 0b11,
    ease: float = 0.0,
    known: Knowledge = FAST_AND_SLOW,
) -> int:
    return int(
        choose(
            known,
            price,
            NEEDS,
            np.zeros(1, np.int64),
            np.array([in_flight]),
            np.array([budget_s]),
            np.zeros(1, np.int64),
            np.array([ease]),
            np.array([up], np.uint32),
        )[0]
    )


def test_the_better_answer_if_it_costs_nothing_and_is_in_time() -> None:
    free = prices(-30.0)
    assert pick(free) == 1
    assert pick(free, budget_s=10.0) == 0  # 20 s would be too late
    assert pick(free, up=0b01) == 0


def test_the_price_is_weighed_against_the_gain() -> None:
    """20 s buy 0.45 more than 1 s: worth it below 0.45 / 19 a second."""
    threshold = math.log(0.45 / 19)
    assert pick(prices(threshold - 0.01)) == 1
    assert pick(prices(threshold + 0.01)) == 0
    assert pick(prices(threshold + 0.01), ease=3.0) == 0  # nothing to gain on easy questions
    assert pick(prices(threshold - 0.5, load=1.0), in_flight=(0.0, 4.0)) == 0


def test_waiting_counts_against_the_budget() -> None:
    """12 calls at 4 slots: (12 + 1 - 4) / 4 rounds of 20 s ahead, 65 s in all."""
    free = prices(-30.0)
    assert pick(free, in_flight=(0.0, 12.0), budget_s=80.0) == 1
    assert pick(free, in_flight=(0.0, 12.0), budget_s=50.0) == 0


def test_waiting_is_that_of_the_nearest_budget() -> None:
    """28 s a budget of 30 s does not wait (0.1 of 6.25 rounds), one of 32 s does."""
    known = knowledge([[1.0, 0.0], [0.0, 10.0]], [0.5, 0.95])._replace(call_s=np.array([1.0, 10.0]))
    free = prices(-30.0)
    assert pick(free, in_flight=(0.0, 28.0), budget_s=31.0, known=known) == 1
    assert pick(free, in_flight=(0.0, 28.0), budget_s=32.0, known=known) == 0
    assert pick(free, in_flight=(0.0, 28.0), budget_s=95.0, known=known) == 1  # 72.5 s
    assert [nearest(known.budgets_s, s) for s in (1.0, 31.0, 32.0, 316.0, 317.0, 1e6)] == [
        0,
        0,
        1,
        1,
        2,
        2,
    ]


def test_a_late_answer_may_be_worth_something() -> None:
    assert pick(prices(-30.0, late=0.9), budget_s=10.0) == 1


def test_candidates_are_plans_that_can_be_carried_out() -> None:
    recipes = candidates(5, 3)
    assert len(set(recipes)) == len(recipes)
    book = book_of(recipes, 3)
    for r in range(0, len(recipes), 97):
        g = graph(TOPOLOGIES[book.topology[r]], int(book.num_agents[r]))
        assert (book.models[r] >= 0).sum() == g.num_nodes
        assert tuple(book.waves[r, : g.num_nodes]) == g.waves
        assert (book.routes[r, : g.num_nodes] // 3 == book.models[r, : g.num_nodes]).all()
        used = set(book.models[r, : g.num_nodes].tolist())
        assert book.needs[r] == sum(1 << m for m in used)
    again = book_from_tensors(book.to_tensors(), 3)
    for a, b in zip(book, again, strict=True):
        assert np.array_equal(a, b)
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
    code = order[0, 1, RoleRule.CODER]
    assert {ROLES[roles_of("Code")[p]].writes_code for p in code} == {True}


def played_debate() -> tuple[Played, NDArray[np.int64]]:
    """One debate of two agents: 3 s and 5 s, then 2 s and 1 s, then 4 s for the decision."""
    record = np.zeros(1, COMPLETED)
    record["model"], record["domain"], record["solved"] = -1, 1, 1
    record["model"][0, :4] = [0, 1, 1, 1]
    record["node_latency_s"][0, :4] = [3.0, 5.0, 2.0, 1.0]
    record["latency_s"], record["final_model"] = 11.0, 1
    return Played(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros((1, 2)), record), record


def test_sums_of_a_debate_by_hand() -> None:
    book = book_of([Recipe(DEBATE, (0, 1, 1, 1), 0, RoleRule.SINGLE)], 3)
    sums = summed(book, played_debate()[0], 2)
    assert sums.queries[:, 0].tolist() == [0, 1, 0]
    assert sums.path_s[1, 0].tolist() == [0.0, 5.0 + 2.0 + 4.0]
    assert sums.path_calls[1, 0].tolist() == [0.0, 3.0]
    assert sums.work_s[1, 0].tolist() == [3.0, 5.0 + 2.0 + 1.0 + 4.0]
    assert sums.log_latency[1, 0] == pytest.approx(math.log(11.0))


def test_what_nothing_calls_for_goes() -> None:
    """Recipe 2 is slower, dearer and worse than recipe 0."""
    work = np.array([[[2.0, 0.0], [0.0, 20.0], [4.0, 0.0]]])
    count = np.full((1, 3), 1000.0)
    sums = Sums(
        queries=count,
        solved=count * [[0.5, 0.9, 0.4]],
        log_latency=count * np.log(work.sum(axis=2)),
        log_latency_squared=count * np.log(work.sum(axis=2)) ** 2,
        path_s=count[:, :, None] * work,
        path_calls=count[:, :, None] * (work > 0),
        work_s=count[:, :, None] * work,
    )
    kept = worth_keeping(sums, np.array([10.0, 300.0]), 2, np.random.default_rng(0), top=1)
    assert kept.tolist() == [0, 1]


def test_ease_is_read_off_the_embedding_and_success_is_met_on_average() -> None:
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(400, 384)).astype(np.float32) / np.sqrt(384)
    direction = rng.normal(size=384)
    ease = embeddings @ direction
    n = 60_000
    records = np.zeros(n, COMPLETED)
    records["task"] = rng.integers(400, size=n)
    recipe = rng.integers(2, size=n)
    truth = np.array([0.5, -1.0])
    p = 1 / (1 + np.exp(-(truth[recipe] + ease[records["task"]])))
    records["solved"] = rng.random(n) < p
    played = Played(np.zeros(n, np.int64), recipe, np.zeros((n, 1)), records)
    right = np.tile([records["solved"][recipe == r].mean() for r in (0, 1)], (3, 1))
    weights, centres = ease_of_questions(played, right, embeddings)
    guess = embeddings @ weights - centres[0]
    assert np.corrcoef(guess, ease)[0, 1] > 0.9
    logit = log_odds(played, right, guess[records["task"]])
    assert logit[0] == pytest.approx(truth, abs=0.15)


def test_what_load_does_is_found() -> None:
    """Model 1 is slowed by e^0.7 while model 0 is busy; full servers make calls wait in rounds,
    those with much time eight times as long as those with little."""
    rng = np.random.default_rng(1)
    n = 20_000
    x = rng.integers(0, 24, size=(n, 2)).astype(np.float64)
    model = rng.integers(2, size=n)
    slow = np.where(model == 1, 0.7 * np.minimum(0.5 * x[:, 0], 1.0), 0.0)
    own = x[np.arange(n), model]
    rounds = np.maximum(own + 1 - 8, 0) / 8
    call_s = 10.0 * np.exp(slow)
    budget_s = rng.choice([10.0, 100.0], n)
    turns = np.where(budget_s == 10.0, 0.2, 1.6)
    seconds = call_s * (1 + turns * rounds) * np.exp(0.1 * rng.standard_normal(n))
    calls = {"seconds": seconds, "model": model.astype(float), "query": np.arange(n, dtype=float)}
    calls |= {"strategy": np.zeros(n), "domain": np.zeros(n)}
    idle_s = np.full((3, 2, 1), 10.0)
    slots, budgets_s = np.array([8.0, 8.0]), np.array([10.0, 100.0, 1000.0])
    slowdown, found = congestion(calls, x, budget_s, idle_s, slots, budgets_s)
    assert slowdown[1, 0] == pytest.approx(0.7, abs=0.05)
    assert slowdown[0, 1] == pytest.approx(0.0, abs=0.05)
    assert found[0] == pytest.approx([0.2, 0.2], abs=0.05)
    assert found[1] == pytest.approx([1.6, 1.6], abs=0.1)
    assert found[2] == pytest.approx([0.9, 0.9], abs=0.1)  # never seen: as all together


def test_chances_are_those_that_answers_were_drawn_by() -> None:
    """300 questions, each asked 200 times; luck alone would be off by 0.4 in the mean."""
    rng = np.random.default_rng(3)
    n, tasks, recipes = 60_000, 300, 4
    truth_r, truth_t = np.array([-0.5, 0.0, 0.8, 1.5]), rng.normal(0.0, 1.5, tasks)
    records = np.zeros(n, COMPLETED)
    records["task"], recipe = rng.integers(tasks, size=n), rng.integers(recipes, size=n)
    chance = 1 / (1 + np.exp(-(truth_r[recipe] + truth_t[records["task"]])))
    records["solved"] = rng.random(n) < chance
    played = Played(np.zeros(n, np.int64), recipe, np.zeros((n, 1)), records)
    right = np.tile([records["solved"][recipe == r].mean() for r in range(recipes)], (3, 1))
    marks = marks_of(played, right, tasks + 1)
    assert marks.easiness[tasks] == 0.0  # never asked
    found = marks.chances(recipe, records)
    assert np.abs(found - chance).mean() < 0.03
    for r in range(recipes):  # on average a recipe is as good as it was seen to be
        assert found[recipe == r].mean() == pytest.approx(right[0, r], abs=0.003)
    again = marks_from(marks.to_tensors())
    assert np.array_equal(again.chances(recipe, records), found)


def test_folders_without_a_checkpoint_of_headway_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        HeadwayPolicy(str(tmp_path))
    checkpoint.save(tmp_path / "best", {}, {"algorithm": "inframind"})
    with pytest.raises(ConfigError, match="of 'inframind', not of 'headway'"):
        HeadwayPolicy(str(tmp_path))
