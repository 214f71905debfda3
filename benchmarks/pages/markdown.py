"""Tables and numbers of the pages, in GitHub's markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

NONE: Final = "–"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A table whose first `left` columns are text and whose others are numbers."""
    rule = ["---" if column < left else "--:" for column in range(len(headings))]
    lines = [headings, rule, *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def number(value: float | None, digits: int = 1) -> str:
    """A number with so many decimals, or a dash."""
    return NONE if value is None else f"{value:,.{digits}f}"


def embolden(rows: Sequence[list[str]], values: Sequence[Sequence[float]]) -> None:
    """Make the largest value of every column bold, in the column after it."""
    for c, column in enumerate(zip(*values, strict=True), start=1):
        best = int(np.argmax(column))
        if np.isfinite(column[best]):
            rows[best][c] = f"**{rows[best][c]}**"
