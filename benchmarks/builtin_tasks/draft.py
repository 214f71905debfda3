"""Tools of every family of built-in tasks: a portable source of draws, tables, and the draft."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from inframind_gym.tasks.taskset import Answer

T = TypeVar("T")

FOLDER = Path(__file__).resolve().parent


def read_yaml(name: str) -> dict[str, Any]:
    """Return the content of a YAML file of this folder."""
    content: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return content


FACTS = read_yaml("facts.yaml")
NAMES = (*FACTS["women"], *FACTS["men"])


@dataclass(frozen=True)
class Draft:
    """A task before it has an id and a difficulty.

    Attributes:
        text: the question as it is prompted.
        answer: what a response is graded against.
        level: the part of the difficulty that the text shows: about 1 (one easy step) to 10 (many
            steps, or large numbers), comparable within a domain.
    """

    text: str
    answer: Answer
    level: float


class Draw:
    """Seeded draws that come out the same under every version of Python.

    Only ``random.Random.random`` and seeding from a string are used: those two are promised to
    stay the same, the other methods of ``random.Random`` are not.

    Args:
        key: any string; the same key gives the same draws.
    """

    def __init__(self, key: str) -> None:
        self._random = random.Random(key)

    def integer(self, low: int, high: int) -> int:
        """Return an integer of low..high, both ends included."""
        return low + int(self._random.random() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self._random.random() < probability

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[self.integer(0, len(items) - 1)]

    def wording(self, *texts: str) -> str:
        """Return one of several texts that say the same."""
        return self.pick(texts)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return the items in a random order."""
        result = list(items)
        for i in range(len(result) - 1, 0, -1):
            j = self.integer(0, i)
            result[i], result[j] = result[j], result[i]
        return result

    def sample(self, items: Sequence[T], k: int) -> list[T]:
        """Return k of the items, each at most once."""
        return self.shuffled(items)[:k]

    def integers(self, count: int, low: int, high: int) -> list[int]:
        """Return `count` independent integers of low..high."""
        return [self.integer(low, high) for _ in range(count)]


Family = Callable[[Draw], Draft]


def size_level(*numbers: float) -> float:
    """Mean number of decimal digits of the numbers: how large the arithmetic is."""
    return sum(math.log10(abs(number) + 1) for number in numbers) / len(numbers)


def listing(items: Sequence[object], last: str = "and") -> str:
    """Return "a, b and c"."""
    *words, final = map(str, items)
    return f"{', '.join(words)} {last} {final}" if words else final


def ordinal(number: int) -> str:
    """Return "1st", "2nd", "3rd", "11th", ..."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}" + {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def counted(number: int, thing: str) -> str:
    """Return "1 block", "2 blocks", ..."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def times(number: int) -> str:
    """Return "once", "twice", "3 times", ..."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def choice_draft(
    draw: Draw, question: str, correct: str, distractors: Sequence[str], level: float
) -> Draft:
    """Return a multiple-choice draft with the options in a random order.

    Args:
        draw: decides the order.
        question: the question, without options.
        correct: the right option.
        distractors: wrong options, all different from each other and from the right one.
        level: see :class:`Draft`.

    Raises:
        ValueError: two options are the same, so that the task would have no single answer.
    """
    options = draw.shuffled([correct, *distractors])
    if len(set(options)) != len(options):
        raise ValueError(f"an option is there twice: {options}")
    letter = "ABCDEFGHIJ"[options.index(correct)]
    lines = [f"{'ABCDEFGHIJ'[i]}. {option}" for i, option in enumerate(options)]
    return Draft(
        text="\n".join([question, *lines]),
        answer=Answer("choice", letter, options=tuple(options)),
        level=level + 0.15 * len(options),
    )
