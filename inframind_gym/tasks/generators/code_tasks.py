"""How a write-a-function task is put together and proved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from inframind_gym.tasks.generators.draft import Draft, Draw
from inframind_gym.tasks.taskset import Answer

Case = tuple[Any, ...]
Op = tuple[str, str, Callable[..., Any]]  # phrase, Python source, the same as a function


def pick_op(draw: Draw, options: Sequence[Op]) -> Op:
    """Return one of the operations."""
    return draw.pick(options)


def lines(source: str, indent: int = 4) -> str:
    """Indent every line of a block of Python."""
    return "\n".join(" " * indent + line if line else "" for line in source.split("\n"))


def code_draft(
    draw: Draw,
    *,
    name: str,
    parameters: str,
    task: str,
    body: str,
    expected: Callable[..., object],
    cases: Sequence[Case],
    level: float,
) -> Draft:
    """Return a draft: statement, assert tests and a reference that passes them.

    Args:
        draw: decides the wording.
        name: the function to write.
        parameters: its parameters, as in the source.
        task: what it does, in the third person, ending with a full stop: "returns ... .".
        body: the reference's body, not indented.
        expected: an independent implementation, from which the expected values come; the build
            fails where the reference disagrees with it (see :func:`prove`).
        cases: argument tuples; the first is shown as an example.
        level: see :class:`Draft`.
    """
    calls: dict[str, str] = {}
    for case in cases:
        call = f"{name}({', '.join(repr(argument) for argument in case)})"
        calls.setdefault(call, repr(expected(*case)))
    tests = "\n".join(f"assert {call} == {value}" for call, value in calls.items()) + "\n"
    example, value = next(iter(calls.items()))
    head = draw.pick(
        (
            f"Write a Python function `{name}({parameters})` that {task}",
            f"Implement `{name}({parameters})` in Python. It {task}",
            f"In Python, define a function `{name}({parameters})`. The function {task}",
        )
    )
    tail = draw.pick(
        (f"Example: `{example}` returns `{value}`.", f"For instance, `{example} == {value}`.")
    )
    reference = f"def {name}({parameters}):\n{lines(body)}\n"
    answer = Answer("tests", tests, entry_point=name, reference=reference)
    return Draft(f"{head}\n{tail}", answer, level)


def prove(draft: Draft) -> None:
    """Run a draft's reference against its tests.

    Only sources written by this package's own generators come here, when the data are built:
    answers of models are never run in this process.

    Raises:
        RuntimeError: the reference does not pass; the generator has a bug.
    """
    namespace: dict[str, Any] = {"__name__": "reference"}
    try:
        exec(compile(draft.answer.reference + draft.answer.value, "<reference>", "exec"), namespace)
    except Exception as error:
        raise RuntimeError(
            f"the reference does not pass its tests: {error!r}\n{draft.text}\n"
            f"{draft.answer.reference}\n{draft.answer.value}"
        ) from error


def number_lists(draw: Draw, count: int, low: int, high: int, longest: int = 9) -> list[Case]:
    """Return `count` argument tuples of one list of integers each; the last one is empty."""
    cases: list[Case] = [
        (draw.integers(draw.integer(4, longest), low, high),) for _ in range(count - 2)
    ]
    return [*cases, ([draw.integer(low, high)],), ([],)]


VOCABULARY = (
    *("amber", "basket", "cloud", "dune", "ember", "fig", "glacier", "harbor", "iris", "jolt"),
    *("kite", "lemon", "meadow", "night", "otter", "pebble", "quartz", "river", "stone", "tulip"),
    *("umbra", "violet", "willow", "yonder", "zebra", "ant", "bee", "cove", "drum", "eel"),
)


def sentences(draw: Draw, count: int) -> list[Case]:
    """Return `count` argument tuples of one line of words each, some with capitals; one empty."""
    cases: list[Case] = []
    for _ in range(count - 1):
        words = [draw.pick(VOCABULARY) for _ in range(draw.integer(2, 7))]
        cases.append((" ".join(w.capitalize() if draw.chance(0.25) else w for w in words),))
    return [*cases, ("",)]
