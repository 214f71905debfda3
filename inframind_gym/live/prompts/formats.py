"""How an answer is to be written so that it can be graded, and how one's own is to be checked."""

from __future__ import annotations

from typing import Final

from inframind_gym.tasks.formats import LETTERS
from inframind_gym.tasks.taskset import Answer

DESIGN: Final = (
    "Answer in plain words and pseudo-code, in at most 300 words. Others write the function."
)

_CHECKS: Final = {
    "number": (
        "Compute the result again in another way, or put it back into the question. Look for "
        "slips of arithmetic and for conditions that were overlooked."
    ),
    "expression": (
        "Derive the result again in another way, or test it with particular values. Look for slips "
        "of algebra and for conditions that were overlooked."
    ),
    "choice": (
        "Say what speaks against the option that you chose and for the strongest of the others."
    ),
    "tests": (
        "Go through the code by hand with the examples of the question, then with empty, smallest "
        "and largest input. Look for what the question asks and the code does not do."
    ),
}


def answer_format(answer: Answer) -> str:
    """Return the instruction on how to write down the answer of a task.

    It tells nothing of the answer but its kind, the number of options and the function's name.
    """
    if answer.kind == "number":
        return (
            "End with the final answer inside \\boxed{}: one number, without units, currency "
            "signs or thousands separators. Give all digits of whole numbers, and at least four "
            "significant digits of others."
        )
    if answer.kind == "expression":
        return (
            "End with the final answer inside \\boxed{}, in LaTeX: exact and in simplest form, "
            "without units, and nothing but the answer."
        )
    if answer.kind == "choice":
        span = f"A to {LETTERS[len(answer.options) - 1]}" if answer.options else "of the options"
        return (
            'End with a line of its own, "Answer: X", where X is the letter of one option '
            f"({span}). Choose exactly one, even if you are not sure."
        )
    name = f" `{answer.entry_point}`" if answer.entry_point else " that is asked for"
    return (
        f"Give the complete function{name} in one block of Python that starts with ```python and "
        "ends with ```. It must be able to stand alone, with every import and helper that it "
        "needs; use the standard library only, read no input, print nothing, and add no tests."
    )


def check(answer: Answer) -> str:
    """Return the instruction on how to check one's own first answer."""
    return _CHECKS[answer.kind]
