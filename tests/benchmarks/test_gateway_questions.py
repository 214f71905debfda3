"""Questions of the small pool: answers are graded as a person would, and halves share nothing."""

from __future__ import annotations

import pytest

from benchmarks.gateway.questions import questions


def test_halves_are_disjoint_and_alike() -> None:
    fit, play = questions("fit"), questions("play")
    assert not {q.id for q in fit} & {q.id for q in play}
    assert abs(len(fit) - len(play)) <= 4
    for domain in ("Math", "Code", "Commonsense"):
        assert sum(q.domain == domain for q in fit) >= 20  # as `workload fit` asks for


@pytest.mark.parametrize(
    ("kind", "answer", "right"),
    [
        ("sum", "{} is the answer.", True),
        ("sum", "3 + 4 = {}", True),
        ("sum", "{} + 1", False),
        ("capital", "The capital is {}.", True),
        ("capital", "I do not know.", False),
        ("copy", '"{}".', True),
        ("copy", "The word is {}", False),
        ("json", "Here it is: {}", True),
        ("json", '{{"name": "Bo", "age": 3}}', False),
    ],
)
def test_grades(kind: str, answer: str, right: bool) -> None:
    question = next(q for q in questions("fit") if q.kind == kind)
    assert question.is_right(answer.format(question.wanted)) is right
