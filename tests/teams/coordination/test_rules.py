"""Rules of the coordination team by hand, and what holds for any question."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.prompts import ContextManager
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
    CoordinationState,
    Outcome,
)
from inframind_gym.teams.coordination.settings import load_settings

CONSTANTS = load_settings()
ROW = np.zeros(1, np.int64)


def test_time_of_calls_by_hand() -> None:
    server = CONSTANTS.server
    assert rules.call_s(1050, 130, server) == pytest.approx(2.0)
    prompt, answer = np.full((1, 3), 105), np.array([[13, 26, 39]])
    for at_once, decoded in ((3, 39), (2, 39 + 13), (1, 78), (8, 39)):
        own = server.model_copy(update={"max_num_seqs": at_once})
        assert rules.wave_s(prompt, answer, own) == pytest.approx(0.3 + decoded / 130)


def test_waits_deadlines_and_rewards_by_hand() -> None:
    waits = rules.backoff_s(np.array([1, 2, 3]), CONSTANTS)
    assert waits == pytest.approx([0.05, 0.075, 0.1125])
    assert rules.deadline_ms(np.arange(3), CONSTANTS).tolist() == [1500, 2000, 2000]
    fallback = round(1000 * (0.02 + (30 + 3 * 97) / 1050 + 40 / 130))
    left = rules.left_ms(np.array([0, 1000, 2900]), CONSTANTS)
    assert left.tolist() == [3000 - fallback, 2000 - fallback, 0]
    assert rules.lateness(np.array([1400, 1800]), np.array([1500, 1500])).tolist() == [0.0, 0.2]
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


def begun(model: bool = False, *, searched: bool = False) -> CoordinationState:
    state = CoordinationState(CONSTANTS, 1)
    state.begin(ROW, 0, False, 0, model=model)
    if searched:
        done(state, RETRIEVE, ms=10, answered=1, docs=4, score=0.6)
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


@pytest.mark.parametrize(
    ("action", "agent", "closed"),
    [(ROUTE, rules.ROUTER, {ROUTE}), (VALIDATE, rules.SYNTHESIS, {VALIDATE, ANSWER})],
)
def test_failures_are_retried_three_times(action: int, agent: int, closed: set[int]) -> None:
    state = begun(searched=action == VALIDATE)
    for number in range(4):
        before = int(state.elapsed_ms[0])
        done(state, action, ms=100, failed=agent, failure=1)
        wait = 0 if number == 0 else round(1000 * 0.05 * 1.5 ** (number - 1))
        assert state.elapsed_ms[0] - before == 101 + wait
    assert state.retries[0] == 3 and state.failures[0, agent] == 4
    assert not closed & open_actions(state) and PLAN in open_actions(state)


def test_a_model_reads_what_is_new_and_is_billed_for_all() -> None:
    state, tokens = begun(model=True), CONSTANTS.tokens
    done(state, ROUTE, ms=100, context=500, strategy=0, complexity=0)
    think = round(1000 * (tokens.query / 1050 + 20 / 130 + 0.001))
    assert state.elapsed_ms[0] == think + 100
    assert state.supervisor_tokens[0] == tokens.instructions * 2 + tokens.query + 20
    done(state, PLAN, ms=100, subtasks=2)
    assert state.setup_ms[0] == round(1000 * (500 / 1050 + 20 / 130 + 0.001))
    assert state.supervisor_tokens[0] > 2 * 500
