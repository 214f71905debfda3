"""Grading: extraction of final answers, tolerance, letters."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inframind_gym.errors import TaskError
from inframind_gym.tasks import Answer
from inframind_gym.tasks.grading import (
    final_expression,
    final_letter,
    final_number,
    grade,
    parse_number,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is 42.", 42),
        ("The answer is 7 * 6 = 42 apples.", 42),
        ("The answer is 3 - 3 = 0", 0),
        (r"\boxed{7}, since 3 + 4 = 7 and not 9", 7),
        (r"first \boxed{3}, no: \boxed{\frac{3}{4}}", Fraction(3, 4)),
        (r"it is $\frac12$", Fraction(1, 2)),
        ("She pays $1,234.50 in total", Fraction("1234.5")),
        ("−5", -5),
        ("5-3", 3),
        ("Answer: 3 / 7", Fraction(3, 7)),
        ("about 1 3/4 hours", Fraction(7, 4)),
        ("The result is 2.5e3", 2500),
        ("1000000 is more than 999,999", 999999),
        (r"\boxed{12,\!345}", 12345),
        (r"\boxed{1.5 \times 10^6}", 1500000),
        (r"\boxed{2 \cdot 10^{-3}}", Fraction(2, 1000)),
        ("1e400", 10**400),
        (r"\boxed{-\frac{1}{2}}", Fraction(-1, 2)),
        ("The final answer is: $\\boxed{25}$", 25),
        ("Answer: the sum of the digits is 9", 9),
        ("The answer is 3.\nLet me check it: 3 + 0 = 3, 2 + 1 = 3, 44", 3),
        ("no number here", None),
        ("", None),
    ],
)
def test_final_number(text: str, expected: Fraction | int | None) -> None:
    assert final_number(text) == expected


@pytest.mark.parametrize(
    ("value", "text", "right"),
    [
        ("42", "42.0", True),
        ("42", "42.01", False),
        ("42", "The answer is 41", False),
        ("3.1416", "3.14", True),
        ("3.1416", "3.15", False),
        ("-9867630", "-9,867,630", True),
        ("-9867630", "-9,867,629", False),
        ("1716228.3333333333", "1716228.33", True),
        ("1716228.3333333333", "1716228", False),
        ("0.004", "0.0", False),
        ("0", "0.1", False),
        ("3/7", "0.42857", True),
        ("1e+16", "10000000000000000", True),
        ("9867630.0000001", "9867630", True),
        ("12", "I do not know.", False),
    ],
)
def test_numbers(value: str, text: str, right: bool) -> None:
    assert grade(Answer("number", value), text) is right


OPTIONS = ("iron", "a wooden spoon", "glass", "wool")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("C", "C"),
        ("The answer is C.", "C"),
        ("The answer is (C) glass", "C"),
        ("the correct answer is: **C**", "C"),
        (r"\boxed{\text{C}}", "C"),
        (r"The answer is A. No: \boxed{(C)}", "C"),
        ("The answer is A? No. The answer is C", "C"),
        ("A is wrong because it rusts.\nC", "C"),
        ("C. glass", "C"),
        ("I think of glass.\nglass", "C"),
        ("A spoon cannot be it, (C) can", "C"),
        ("The answer is a wooden spoon", None),
        ("A spoon is made of wood", None),
        ("The answer is F", None),
        ("", None),
    ],
)
def test_final_letter(text: str, expected: str | None) -> None:
    assert final_letter(text, OPTIONS) == expected
    assert grade(Answer("choice", "C", OPTIONS), text) is (expected == "C")


def test_an_answer_that_is_no_number_is_an_error() -> None:
    with pytest.raises(TaskError, match="'forty' is not a number"):
        grade(Answer("number", "forty"), "40")
    with pytest.raises(TaskError, match="is not a number"):
        grade(Answer("number", "1/0"), "40")


@given(st.integers(-(10**12), 10**12))
def test_every_integer_is_read_back(value: int) -> None:
    assert parse_number(str(value)) == value
    assert parse_number(f"{value:,}") == value
    assert grade(Answer("number", str(value)), f"So the answer is {value:,}.")
    assert not grade(Answer("number", str(value)), f"So the answer is {value + 1}.")


@given(st.fractions(min_value=-1000, max_value=1000, max_denominator=999))
def test_every_fraction_is_read_back(value: Fraction) -> None:
    assert grade(Answer("number", str(value)), f"The probability is {value}")


@given(st.text(max_size=60))
def test_no_response_breaks_a_grader(text: str) -> None:
    for answer in (
        Answer("number", "7"),
        Answer("choice", "B", OPTIONS),
    ):
        assert grade(answer, text) in (True, False)
    assert final_expression(text) is not None
