"""Tables and numbers of the pages, in GitHub's markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

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
