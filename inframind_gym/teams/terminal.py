"""Options and tables that the commands of all teams share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

Runs = Annotated[Path, typer.Option("--runs", help="File of runs (SQLite).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ProviderName = Annotated[
    str,
    typer.Option(
        metavar="NAME|URL",
        help="simulated, openai, anthropic, or the base URL of an OpenAI-compatible server.",
    ),
]


def plain_table(*columns: str, gap: int = 2, no_wrap: bool = False) -> Table:
    """Return a table without lines.

    Args:
        columns: heads; those of numbers begin with ">", which sets them to the right. Without any
            the table has no line of heads.
        gap: blanks between columns.
        no_wrap: do not break the cells of texts.
    """
    table = Table(show_header=bool(columns), box=None, padding=(0, gap, 0, 0), pad_edge=False)
    for column in columns:
        is_number = column.startswith(">")
        justify: Literal["left", "right"] = "right" if is_number else "left"
        table.add_column(column.lstrip(">"), justify=justify, no_wrap=no_wrap and not is_number)
    return table
