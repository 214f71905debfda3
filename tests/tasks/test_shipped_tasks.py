"""The built-in tasks and the embeddings of the roles, as the package ships them."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from inframind_gym.tasks import DOMAINS, load_tasks
from inframind_gym.tasks.grading import grade

TASKS = load_tasks(split="all")


def test_counts_and_uniqueness() -> None:
    datasets = [f"builtin_{domain.lower()}" for domain in DOMAINS]
    assert Counter(TASKS.datasets) == dict.fromkeys(datasets, 1000)
    assert len(set(TASKS.texts)) == len(set(TASKS.ids)) == 3000


def test_every_answer_grades_itself() -> None:
    """A response that states the answer is right, and one that states another is wrong."""
    answers = [answer for answer in TASKS.answers if answer.kind in ("number", "choice")]
    for answer, other in pairwise(answers):
        assert grade(
            answer, f"Let me think: 3 or 4 steps.\nThe answer is \\boxed{{{answer.value}}}."
        )
        if answer.kind == other.kind and answer.value != other.value:
            assert not grade(answer, f"\\boxed{{{other.value}}}")


def test_choices_are_well_formed() -> None:
    letters: Counter[str] = Counter()
    for text, answer in zip(TASKS.texts[2000:], TASKS.answers[2000:], strict=True):
        assert answer.kind == "choice"
        assert 3 <= len(set(answer.options)) == len(answer.options) <= 10
        assert answer.value in "ABCDEFGHIJ"[: len(answer.options)]
        for letter, option in zip("ABCDEFGHIJ", answer.options, strict=False):
            assert f"\n{letter}. {option}" in text
        letters[answer.value] += 1
    assert max(letters.values()) < 300  # no letter is a good guess


def test_code_tasks_name_their_function_and_their_references_pass() -> None:
    for text, answer in zip(TASKS.texts[1000:2000], TASKS.answers[1000:2000], strict=True):
        assert answer.entry_point in text
        assert answer.reference.startswith(f"def {answer.entry_point}(")
        assert 3 <= answer.value.count("assert ") <= 8
        exec(answer.reference + answer.value, {})
