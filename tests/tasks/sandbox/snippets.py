"""Answers for the sandbox by group, with what judges them: those of the text files beside.

A block is "=== GROUP: name", an answer's code, and sections of tests, each judged by itself. A line
"---" opens a section; the name of the function that is tested may follow (f), and ", reference"
where the task has the code for its reference, ", both" for once with and once without. A block
without a section has the usual test. "<a|b>" in a block makes one of each. The groups:

    LEGAL       right answers in many styles
    FORGED      want to pass with a wrong result
    SILENT      end what the tests do in silence
    POSSIBLE    pass, as the sandbox's header says
    FORBIDDEN   return 2, the right result, if what they try works; with names of places
    GREEDY      use something up
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from inframind_gym.tasks import Answer

_REFERENCES: Final = {"": (False,), "reference": (True,), "both": (False, True)}


class Snippet(NamedTuple):
    """An answer's code, and the task's answer that judges it."""

    name: str
    code: str
    answer: Answer


def asks(tests: str, entry_point: str = "f", reference: str = "") -> Answer:
    return Answer("tests", tests, entry_point=entry_point, reference=reference)


USUAL: Final = asks("assert sorted([f(1)]) == [2]\n")


def _snippets() -> Iterator[tuple[str, Snippet]]:
    texts = (path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.txt"))
    for block in re.split("^=== ", "\n".join(texts), flags=re.MULTILINE)[1:]:
        words = (re.findall(r"<([^<>|]+(?:\|[^<>|]+)+)>", block) or [""])[0]
        for word in words.split("|"):
            title, _, rest = block.replace(f"<{words}>", word).partition("\n")
            group, _, name = title.partition(": ")
            code, *parts = re.split(r"^---(.*)\n", rest.rstrip("\n"), flags=re.MULTILINE)
            for head, tests in zip(parts[::2], parts[1::2], strict=True):
                entry_point, _, more = head.strip().partition(", ")
                for given in _REFERENCES[more]:
                    answer = asks(tests, entry_point or "f", code if given else "")
                    yield group, Snippet(f"{name}: {tests}", code, answer)
            if not parts:
                yield group, Snippet(name, code, USUAL)


def _groups() -> dict[str, list[Snippet]]:
    found: dict[str, list[Snippet]] = {}
    for group, snippet in _snippets():
        found.setdefault(group, []).append(snippet)
    found["GREEDY"] += [
        Snippet("deep nesting", "x = " + "(" * 5000 + ")" * 5000, USUAL),
        Snippet("zero bytes", "def f(x): return 2\0", USUAL),
    ]
    return found


GROUPS: Final = _groups()
