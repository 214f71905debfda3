"""Math tasks from the templates of ``math_templates.yaml``."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

from benchmarks.builtin_tasks.draft import Draft, Draw, listing, read_yaml, size_level, times
from inframind_gym.tasks.taskset import Answer

TEMPLATES = read_yaml("math_templates.yaml")


def orders(letters: str) -> int:
    """Return how many different orders some letters have, equal ones among them."""
    repeats = math.prod(math.factorial(n) for n in Counter(letters).values())
    return math.factorial(len(letters)) // repeats


FUNCTIONS = (Fraction, listing, math, orders, size_level, times)  # that templates may name
NAMESPACE = {function.__name__: function for function in FUNCTIONS}


def evaluated(source: str, values: dict[str, Any]) -> Any:
    """Return the value of a Python expression of the templates."""
    return eval(compile(source, "math_templates.yaml", "eval"), NAMESPACE | values)


def worded(draw: Draw, texts: str | list[str], **values: Any) -> str:
    """Return one of the texts, an f-string, filled in."""
    text = texts if isinstance(texts, str) else draw.pick(texts)
    return str(evaluated(f"f{text!r}", values))


def posed(draw: Draw, family: str, kind: int, level: float, **values: Any) -> Draft:
    """Return the draft of one question of a family, whose answer is a number.

    Args:
        draw: decides the wording, and the values that the template draws itself.
        family: the entry of ``math_templates.yaml``.
        kind: the number of the question in it.
        level: see :class:`Draft`; the question's own ``level`` is added.
        values: what the template's texts and formulas are about.
    """
    template = TEMPLATES[family][kind]
    for name, (low, high) in template.get("draws", {}).items():
        values[name] = draw.integer(low, high)
    answer = evaluated(template["answer"], values)
    level += evaluated(str(template.get("level", 0.0)), values)
    return Draft(worded(draw, template["text"], **values), Answer("number", str(answer)), level)
