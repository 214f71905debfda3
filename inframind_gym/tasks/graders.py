"""Grading a response against a task's answer, without running any code of a model."""

from __future__ import annotations

import re
from fractions import Fraction

from inframind_gym.errors import TaskError
from inframind_gym.tasks.extract import MAX_DIGITS, final_expression, final_letter, final_number
from inframind_gym.tasks.taskset import Answer

# A whole number must be met; other numbers may be rounded to two decimals.
WHOLE_TOLERANCE = Fraction(1, 1000)
DECIMAL_TOLERANCE = Fraction(5, 1000)
NEARLY_WHOLE = Fraction(1, 10**6)  # floats that stand for whole numbers, as in GSM-Hard


def grade(answer: Answer, text: str) -> bool:
    """Return whether a response is right.

    Args:
        answer: a task's answer, of the kind "number", "expression" or "choice".
        text: the whole response of a model; the final answer is looked for in it (see
            ``extract.py``). A response in which none is found is wrong.

    Raises:
        TaskError: the kind is "tests" (code is only run in the sandbox backend), or the answer
            itself is not valid.
    """
    if answer.kind == "number":
        found = final_number(text)
        return found is not None and numbers_agree(exact_number(answer.value), found)
    if answer.kind == "choice":
        return final_letter(text, answer.options) == answer.value
    if answer.kind == "expression":
        return expressions_agree(answer.value, final_expression(text))
    if answer.kind == "tests":
        raise TaskError(
            "answers of code tasks are only graded in the sandbox backend: grade() never runs "
            "code that a model wrote. Use the surrogate's quality model, or the sandbox grader of "
            "the live backend."
        )
    raise TaskError(f"an answer of the kind {answer.kind!r} cannot be graded")


def exact_number(value: str) -> Fraction:
    """Return the number of an answer ("42", "-0.5", "1e16", "3/7"); TaskError if it is none."""
    try:
        return Fraction(value.replace(",", "").replace(" ", ""))
    except (ValueError, ZeroDivisionError):
        raise TaskError(f"the answer {value!r} is not a number") from None


def numbers_agree(expected: Fraction, found: Fraction) -> bool:
    """Return whether two numbers are the same, but for rounding.

    A whole number must be met within 0.001; any other within 0.005 (two decimals), or within 0.5 %
    of it if it is smaller than 1, so that small numbers are not all the same.
    """
    whole = abs(expected - round(expected)) < NEARLY_WHOLE and round(expected) != 0
    if whole or expected == 0:
        return abs(expected - found) <= WHOLE_TOLERANCE
    return abs(expected - found) <= DECIMAL_TOLERANCE * min(Fraction(1), abs(expected))


def expressions_agree(expected: str, found: str) -> bool:
    """Return whether two expressions are the same once they are normalised.

    Two plain numbers are compared as numbers, everything else as text: x+1 and 1+x differ here.
    """
    first, second = normalised(expected), normalised(found)
    if first == second:
        return True
    if first.isalpha() and second.isalpha() and len(first) > 1:
        return first.lower() == second.lower()
    a, b = _plain_number(first), _plain_number(second)
    return a is not None and b is not None and numbers_agree(a, b)


_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:left|right|big|Big|bigg|Bigg)(?![a-zA-Z])", ""),
        (r"\\(?:[!,;: ]|quad|qquad)", ""),
        (r"\\[dt]frac", r"\\frac"),
        (r"\\(?:text|mbox)\{\s[^{}]*\}$", ""),  # a unit behind the value
        (r"\\(?:text|mbox|mathrm|mathbf|textbf|operatorname)\{([^{}]*)\}", r"\1"),
        (r"\^\{?\\circ\}?|\\degree|°", ""),
        (r"\\?%|\\\$|\$", ""),
        (r"\\(?:cdot|times)|×|·", "*"),
        (r"\\?\bpi\b|π", r"\\pi "),
        (r"−", "-"),
        (r"\{,\}", ","),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"\\sqrt\s*(\d)", r"\\sqrt{\1}"),
        (r"\s+", ""),
        (r"\*\*", "^"),
        (r"([\^_])\{(\w)\}", r"\1\2"),
        (r"(?<=\d)\*(?=[a-zA-Z\\(])", ""),
        (r"^[a-zA-Z]=", ""),  # "x=3"
        (r"(?<![\d.])\.(?=\d)", "0."),
    )
)
_ENDS = " \t\n\r\f\v.,;:"


def normalised(expression: str) -> str:
    """Return an expression in a plain form that ignores spacing, layout and equal notations."""
    result = expression.strip().strip("`*").rstrip(_ENDS)
    for pattern, replacement in _REWRITES:
        result = pattern.sub(replacement, result)
    result = result.rstrip(_ENDS)
    if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", result):
        result = result.replace(",", "")
    return result


def _plain_number(text: str) -> Fraction | None:
    """Return the value of a normalised number or fraction, or None for anything else."""
    match = re.fullmatch(r"(-?)\\frac\{(-?\d+)\}\{(\d+)\}", text)
    plain = f"{match[1]}{match[2]}/{match[3]}".replace("--", "") if match else text
    if len(plain) > MAX_DIGITS or not re.fullmatch(
        r"[-+]?\d+(\.\d+)?([eE][-+]?\d{1,3})?(/[1-9]\d*)?", plain
    ):
        return None
    top, _, bottom = plain.partition("/")
    return Fraction(top) / int(bottom or 1)
