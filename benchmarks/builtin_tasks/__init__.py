"""The families of the built-in tasks; each is a function from seeded draws to a draft."""

from __future__ import annotations

from benchmarks.builtin_tasks import (
    code_lists,
    code_numbers,
    code_strings,
    code_worlds,
    common_facts,
    common_logic,
    math_numbers,
    math_shapes,
    math_words,
)
from benchmarks.builtin_tasks.draft import Family

FAMILIES: dict[str, tuple[Family, ...]] = {
    "Math": (*math_words.FAMILIES, *math_numbers.FAMILIES, *math_shapes.FAMILIES),
    "Code": (
        *code_lists.FAMILIES,
        *code_strings.FAMILIES,
        *code_numbers.FAMILIES,
        *code_worlds.FAMILIES,
    ),
    "Commonsense": (*common_facts.FAMILIES, *common_logic.FAMILIES),
}
