"""Rules of the coordination team by hand, and what holds for any question."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError

from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.context import ContextManager
from inframind_gym.teams.coordination.outcomes import Outcome
from inframind_gym.teams.coordination.question import Pinned
from inframind_gym.teams.coordination.rules import (
    ANSWER,
    FALLBACK,
    NOTHING,
    PARALLEL,
    PLAN,
    RETRIEVE,
    ROUTE,
    SYNTHESIZE,
    VALIDATE,
)
from inframind_gym.teams.coordination.settings import CoordinationSettings, load_settings
from inframind_gym.teams.coordination.simulate import SimulatedQuestion
from inframind_gym.teams.coordination.state import (
    OUT_OF_TIME,
    CoordinationState,
)

CONSTANTS = load_settings()
ROW = np.zeros(1, np.int64)


def test_time_of_calls_by_hand() -> None:
    server = CONSTANTS.server
    assert rules.call_s(1050, 130, server) == pytest.approx(2.0)
    prompt, answer = np.full((1, 3), 105), np.array([[13, 26, 39]])
    used = np.ones((1, 3), np.bool_)
    for at_once, decoded in ((3, 39), (2, 39 + 13), (1, 78), (8, 39)):
        found = rules.wave_s(prompt, answer, used, server, at_once)
        assert found == pytest.approx(0.3 + decoded / 130)
    used[0, 2] = False
    assert rules.wave_s(prompt, answer, used, server, 3) == pytest.approx(0.2 + 0.2)


def test_waits_and_deadlines_by_hand() -> None:
    waits = rules.backoff_s(np.array([1, 2, 3]), CONSTANTS)
    assert waits == pytest.approx([0.05, 0.075, 0.1125])
    assert rules.deadline_ms(np.arange(3), CONSTANTS).tolist() == [1500, 2000, 2000]
    fallback = round(1000 * (0.02 + (30 + 3 * 97) / 1050 + 40 / 130))
    left = rules.left_ms(np.array([0, 1000, 2900]), CONSTANTS)
    assert left.tolist() == [3000 - fallback, 2000 - fallback, 0]
    late, early, spent = np.array([3000 - fallback]), np.array([2000]), np.array([10])
    assert rules.must_fall_back(late, np.array([1]), CONSTANTS).all()
    assert not rules.must_fall_back(early, np.array([9]), CONSTANTS).any()
    assert rules.must_fall_back(early, spent, CONSTANTS).all()
    assert rules.lateness(np.array([1400, 1800]), np.array([1500, 1500])).tolist() == [0.0, 0.2]


def test_rewards_by_hand() -> None:
    terms = rules.reward_terms(
        np.array([2000, 500]),
        np.array([4096, 0]),
        np.array([0.5, 0.0]),
        np.array([1.0, 0.0]),
        np.array([True, False]),
        CONSTANTS.reward,
    )
    assert terms[0] == pytest.approx([0.5, 0.2, -0.1, -0.1, -0.05])
    assert terms[1] == pytest.approx([0.0, 0.0, 0.0, -0.025, 0.0])


def test_a_trim_keeps_both_ends() -> None:
    sizes = np.array([[20, 20, 30, 20, 20]])
    room = np.array([80])
    assert rules.kept_exchanges(sizes, room, 0.3).tolist() == [[True, True, False, True, True]]
    assert rules.kept_exchanges(sizes, room - 1, 0.3).tolist() == [[True, False, False, True, True]]
    assert rules.kept_exchanges(sizes, room, 0.0).tolist() == [[False, False, True, True, True]]
    sizes = np.array([[30, 60, 20, 20, 20]])  # the oldest is more than 30 % of 90
    assert rules.kept_exchanges(sizes, room + 10, 0.3).tolist() == [[True, False, True, True, True]]


@given(
    sizes=arrays(np.int64, (4, 5), elements=st.integers(0, 60)),
    room=st.integers(0, 130),
    share=st.floats(0.01, 1),
)
def test_a_trim_fits_and_keeps_what_the_application_keeps(
    sizes: Any, room: int, share: float
) -> None:
    kept = rules.kept_exchanges(sizes, np.full(4, room), share)
    assert (np.where(kept, sizes, 0).sum(axis=1) <= room).all()
    manager = ContextManager(CONSTANTS.context.model_copy(update={"oldest_share": share}))
    for row, own in zip(kept, sizes.tolist(), strict=True):
        said = [{"role": "assistant", "content": "four" * n, "place": i} for i, n in enumerate(own)]
        stays = [message["place"] for message in manager.trim(said, room).messages]
        assert stays == np.flatnonzero(row).tolist()


def begun(model: bool = False) -> CoordinationState:
    state = CoordinationState(CONSTANTS, 1, 3)
    state.begin(ROW, 0, False, 0, model=model)
    return state


def done(state: CoordinationState, action: int, **fields: Any) -> int:
    """Carry an action out with a given outcome; returns what was carried out."""
    carried = state.decide(ROW, np.array([action]))
    made = {name: np.array([value]) for name, value in fields.items()}
    state.take(ROW, carried, Outcome.empty(1)._replace(**made))
    return int(carried[0])


def open_actions(state: CoordinationState) -> set[int]:
    return set(np.flatnonzero(state.mask[0]).tolist())


def test_what_is_open_follows_what_is_done() -> None:
    state = begun()
    first = {ROUTE, PLAN, RETRIEVE, RETRIEVE + 1, RETRIEVE + 2, rules.REWRITE, FALLBACK}
    assert open_actions(state) == first
    assert done(state, VALIDATE) == NOTHING
    done(state, ROUTE, ms=100, strategy=1, complexity=2, needs_planning=True, confidence=0.8)
    assert state.known_complexity(ROW)[0] == 2 and ROUTE not in open_actions(state)
    done(state, PLAN, ms=300, subtasks=3)
    assert PARALLEL + 1 in open_actions(state) and PLAN not in open_actions(state)
    done(state, PARALLEL + 1, ms=200, answered=2, docs=4, duplicates=1, score=0.6)
    assert state.pending[0] == 1 and PARALLEL not in open_actions(state)
    assert {SYNTHESIZE, VALIDATE, ANSWER} < open_actions(state)
    done(state, SYNTHESIZE, ms=200)
    assert (state.docs[0], state.duplicates[0]) == (3, 0)
    done(state, VALIDATE, ms=200, drafted=True, judged=True, valid=True)
    assert state.judged[0] and VALIDATE not in open_actions(state)
    done(state, RETRIEVE, ms=100, answered=1, docs=2, score=0.3)
    assert not state.drafted[0] and not state.merged[0]  # new passages make the draft obsolete
    assert state.score[0] == pytest.approx((2 * 0.6 + 0.3) / 3)
    done(state, ANSWER, ms=100, drafted=True)
    assert state.over[0] and state.elapsed_ms[0] == 1200 + 8  # a millisecond a decision


def test_failures_are_retried_three_times() -> None:
    state = begun()
    for number in range(4):
        before = int(state.elapsed_ms[0])
        done(state, ROUTE, ms=100, failed=rules.ROUTER, failure=1)
        wait = 0 if number == 0 else round(1000 * 0.05 * 1.5 ** (number - 1))
        assert state.elapsed_ms[0] - before == 101 + wait
    assert state.retries[0] == 3 and state.failures[0, rules.ROUTER] == 4
    assert ROUTE not in open_actions(state) and PLAN in open_actions(state)


def test_a_draft_before_a_validation_is_retried_three_times() -> None:
    state = begun()
    done(state, RETRIEVE, ms=10, answered=1, docs=4, score=0.6)
    for number in range(4):
        before = int(state.elapsed_ms[0])
        done(state, VALIDATE, ms=10, failed=rules.SYNTHESIS, failure=2)
        wait = 0 if number == 0 else round(1000 * 0.05 * 1.5 ** (number - 1))
        assert state.elapsed_ms[0] - before == 11 + wait
    assert state.retries[0] == 3 and state.failures[0, rules.SYNTHESIS] == 4
    assert not {VALIDATE, ANSWER} & open_actions(state)


def test_a_draft_that_came_is_no_failure_of_a_validation() -> None:
    state = begun()
    done(state, RETRIEVE, ms=10, answered=1, docs=4, score=0.6)
    done(state, VALIDATE, ms=10, failed=rules.SYNTHESIS, failure=2)
    done(state, VALIDATE, ms=10, drafted=True, failed=rules.VALIDATION, failure=2)
    assert np.flatnonzero(state.failed[0]).tolist() == [rules.VALIDATION]
    done(state, VALIDATE, ms=10, judged=True, valid=True)  # the draft is there
    assert state.retries[0] == 2 and not state.failed.any()


@pytest.mark.parametrize(("drafted", "late"), [(False, "SYNTHESIS"), (True, "VALIDATION")])
def test_late_is_the_agent_that_was_called_first(drafted: bool, late: str) -> None:
    state = begun()
    done(state, RETRIEVE, ms=10, answered=1, docs=4, score=0.6)
    if drafted:
        done(state, VALIDATE, ms=10, drafted=True, failed=rules.VALIDATION, failure=2)
    before = state.failures.copy()
    done(state, VALIDATE, ms=3000, drafted=not drafted, judged=True)
    assert np.flatnonzero((state.failures - before)[0]).tolist() == [getattr(rules, late)]


def test_what_comes_too_late_is_lost() -> None:
    state = begun()
    left = int(rules.left_ms(np.zeros(1, np.int64), CONSTANTS)[0])
    done(state, ROUTE, ms=left + 500, strategy=1, complexity=1)
    assert not state.routed[0] and state.elapsed_ms[0] == left
    assert state.forced(ROW).tolist() == [0]
    took = rules.milliseconds(CONSTANTS.fallback_s)
    state.take(ROW, np.array([FALLBACK]), Outcome.empty(1)._replace(ms=np.array([int(took)])))
    assert state.over[0] and state.reason[0] == OUT_OF_TIME and state.elapsed_ms[0] == 3000


def test_a_model_reads_what_is_new_and_is_billed_for_all() -> None:
    state = begun(model=True)
    done(state, ROUTE, ms=100, context=500, strategy=0, complexity=0)
    tokens = CONSTANTS.tokens
    think = round(1000 * (tokens.query / 1050 + 20 / 130 + 0.001))
    assert state.elapsed_ms[0] == think + 100
    assert state.supervisor_tokens[0] == tokens.instructions * 2 + tokens.query + 20
    done(state, PLAN, ms=100, subtasks=2)
    assert state.setup_ms[0] == round(1000 * (500 / 1050 + 20 / 130 + 0.001))
    assert state.supervisor_tokens[0] > 2 * 500


@settings(max_examples=30, deadline=None)
@given(key=st.integers(0, 2**64 - 1), complexity=st.integers(0, 2), kind=st.integers(0, 2))
def test_better_searches_find_no_less(key: int, complexity: int, kind: int) -> None:
    """A piece has one luck: what a search finds, one with a better chance finds too."""
    question = SimulatedQuestion(CONSTANTS, 1)
    question.start(ROW, np.array([key], np.uint64), Pinned(complexity=complexity, kind=kind))
    luck, chances = question.luck[0], question.chances[:, :, kind]
    assert (chances[0, complexity] <= chances[0, 3]).all()  # of a whole question, of a sub-task
    assert (chances[0] <= chances[1] + 1e-12).all()
    for level in (complexity, 3):
        found = luck[:, None] < chances[:, level].reshape(1, -1)
        order = np.argsort(chances[:, level].ravel())
        assert (np.diff(found[:, order].astype(int), axis=1) >= 0).all()


def test_a_plan_has_a_gap_or_none_and_rows_do_not_depend_on_the_batch() -> None:
    keys = np.arange(200, dtype=np.uint64) * 77
    many, one = SimulatedQuestion(CONSTANTS, 200), SimulatedQuestion(CONSTANTS, 1)
    many.start(np.arange(200), keys)
    assert 0.85 < (many.gap < 0).mean() < 0.95
    assert (many.gap < many.facets).all()
    for row in (0, 17, 199):
        one.start(ROW, keys[row : row + 1])
        for name in ("complexity", "kind", "luck", "said_strategy", "confidence", "hint"):
            assert np.array_equal(getattr(one, name)[0], getattr(many, name)[row]), name


def test_frequencies_are_those_of_the_file() -> None:
    keys = np.random.default_rng(0).integers(2**63, size=20_000).astype(np.uint64)
    question = SimulatedQuestion(CONSTANTS, 20_000, conversation=0.5)
    question.start(np.arange(20_000), keys)
    shares = np.bincount(question.complexity, minlength=3) / 20_000
    assert shares == pytest.approx(CONSTANTS.questions.complexity, abs=0.015)
    right = (question.said_complexity == question.complexity).mean()
    assert right == pytest.approx(CONSTANTS.router.complexity_right, abs=0.01)
    talks = question.history.sum(axis=1) > 0
    assert talks.mean() == pytest.approx(0.5, abs=0.015)
    assert (question.refers_to[talks] >= 0).mean() == pytest.approx(0.6, abs=0.015)
    assert question.history.sum(axis=1).max() <= 131_000


def test_constants_that_cannot_be_are_refused() -> None:
    content = CONSTANTS.model_dump()
    content["questions"]["complexity"] = (0.5, 0.5, 0.5)
    with pytest.raises(ValidationError, match="sum to"):
        CoordinationSettings.model_validate(content)
    content = CONSTANTS.model_dump()
    content["tokens"]["weights"] = (0.5, 0.5)
    with pytest.raises(ValidationError, match="as many as factors"):
        CoordinationSettings.model_validate(content)
