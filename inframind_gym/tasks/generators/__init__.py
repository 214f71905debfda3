"""The families of the built-in tasks; each is a function from seeded draws to a draft."""

from __future__ import annotations

from inframind_gym.tasks.generators import (
    code_lists,
    code_machines,
    code_matrices,
    code_numbers,
    code_parsing,
    code_strings,
    code_worlds,
    common_facts,
    common_logic,
    math_numbers,
    math_shapes,
    math_words,
)
from inframind_gym.tasks.generators.draft import Family

FAMILIES: dict[str, tuple[Family, ...]] = {
    "Math": (*math_words.FAMILIES, *math_numbers.FAMILIES, *math_shapes.FAMILIES),
    "Code": (
        *code_lists.FAMILIES,
        *code_matrices.FAMILIES,
        *code_strings.FAMILIES,
        *code_parsing.FAMILIES,
        *code_numbers.FAMILIES,
        *code_machines.FAMILIES,
        *code_worlds.FAMILIES,
    ),
    "Commonsense": (*common_facts.FAMILIES, *common_logic.FAMILIES),
}
