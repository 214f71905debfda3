"""Write-a-function tasks from the templates of ``code_templates.yaml``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Template
from textwrap import indent
from typing import Any

from benchmarks.builtin_tasks.draft import FACTS, Draft, Draw, read_yaml
from inframind_gym.tasks.taskset import Answer

TEMPLATES = read_yaml("code_templates.yaml")

Case = tuple[Any, ...]  # the arguments of one call


@dataclass(frozen=True)
class Choice:
    """A row of a table of choices.

    Attributes:
        phrase: its text in the statement of the task.
        source: its Python in the reference.
        index: its number in the table.
    """

    phrase: str
    source: str
    index: int = 0


NOTHING = Choice("", "")


def rows(table: str, **values: Any) -> list[Choice]:
    """Return the rows of a table such as "windows.stat", their placeholders filled in."""
    entry: Any = TEMPLATES
    for key in table.split("."):
        entry = entry[key]
    pairs = entry.items() if isinstance(entry, dict) else entry
    return [
        Choice(filled(phrase, values, "phrase"), filled(source, values, "source"), i)
        for i, (phrase, source) in enumerate(pairs)
    ]


def choose(draw: Draw, table: str, **values: Any) -> Choice:
    """Return one row of a table."""
    return draw.pick(rows(table, **values))


def optional(wanted: bool, table: str, **values: Any) -> Choice:
    """Return the row of a table of one row if it is wanted, else :data:`NOTHING`."""
    return rows(table, **values)[0] if wanted else NOTHING


def in_turn(moves: Sequence[Choice]) -> Choice:
    """Return several moves as one: a numbered list of phrases, and statements line by line."""
    phrases = "; ".join(f"({i + 1}) {move.phrase}" for i, move in enumerate(moves))
    return Choice(phrases, "\n".join(move.source for move in moves))


def filled(template: str, values: Mapping[str, Any], side: str) -> str:
    """Fill in a template line by line.

    Args:
        template: text with ``$name`` placeholders.
        values: what they are replaced by.
        side: "phrase" or "source", of the values that are a :class:`Choice`.

    Returns:
        The text. Lines that become empty are left out, and a value of several lines is indented
        as its placeholder is.
    """
    plain = {k: getattr(v, side) if isinstance(v, Choice) else v for k, v in values.items()}
    if "\n" not in template:
        return Template(template).substitute(plain)
    lines = []
    for line in template.splitlines():
        margin = " " * (len(line) - len(line.lstrip()))
        lines += indent(Template(line.lstrip()).substitute(plain), margin).splitlines()
    return "\n".join(lines)


def code_draft(
    draw: Draw, family: str, cases: Iterable[Case], level: float, **values: Any
) -> Draft:
    """Return a draft: statement, assert tests and the reference that their values come from.

    The values of the shipped file were checked against a second implementation of every family when
    that file was made, and ``--check`` compares with it. Nothing else checks a reference: a new or
    changed one needs a check of its own.

    Args:
        draw: decides the function's name and the wording.
        family: the entry of ``code_templates.yaml``.
        cases: argument tuples; the first is shown as an example. A generator is drawn from after
            the function's name.
        level: see :class:`Draft`.
        values: what replaces the placeholders of the entry's ``task``, ``body`` and
            ``parameters``.
    """
    entry = TEMPLATES[family]
    name = draw.pick(entry["names"])
    signature = f"{name}({filled(entry['parameters'], values, 'phrase')})"
    body = filled(entry["body"], values, "source")
    reference = f"def {signature}:\n{indent(body, '    ')}\n"
    namespace: dict[str, Any] = {}
    exec(compile(reference, family, "exec"), namespace)
    calls: dict[str, str] = {}
    for case in cases:
        call = f"{name}({', '.join(map(repr, case))})"
        if call not in calls:
            calls[call] = repr(namespace[name](*case))
    tests = "".join(f"assert {call} == {value}\n" for call, value in calls.items())
    example, value = next(iter(calls.items()))
    task = filled(entry["task"], values, "phrase")
    head = draw.wording(
        f"Write a Python function `{signature}` that {task}",
        f"Implement `{signature}` in Python. It {task}",
        f"In Python, define a function `{signature}`. The function {task}",
    )
    tail = draw.wording(
        f"Example: `{example}` returns `{value}`.", f"For instance, `{example} == {value}`."
    )
    answer = Answer("tests", tests, entry_point=name, reference=reference)
    return Draft(f"{head}\n{tail}", answer, level)


def number_lists(draw: Draw, count: int, low: int, high: int, longest: int = 9) -> Iterator[Case]:
    """Yield `count` argument tuples of one list of integers each; the last one is empty."""
    for _ in range(count - 2):
        yield (draw.integers(draw.integer(4, longest), low, high),)
    yield ([draw.integer(low, high)],)
    yield ([],)


def sentences(draw: Draw, count: int) -> Iterator[Case]:
    """Yield `count` argument tuples of one line of words each, some with capitals; one empty."""
    for _ in range(count - 1):
        words = [draw.pick(FACTS["vocabulary"]) for _ in range(draw.integer(2, 7))]
        yield (" ".join(w.capitalize() if draw.chance(0.25) else w for w in words),)
    yield ("",)
