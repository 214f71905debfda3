"""What the commands share: options, errors, JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from inframind_gym.benchmark.progress import say
from inframind_gym.errors import InfraMindError

app = typer.Typer(
    help="Run policies on suites of sweeps, and compare the results.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[
    bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Tables as markdown.")]
RayAddress = Annotated[
    str | None,
    typer.Option(
        help="Run on a Ray cluster: ray://host:port, host:port, auto, or local (extra `ray`)."
    ),
]
Fluid = Annotated[
    bool, typer.Option("--fluid", help="Compute fluid bounds (seconds a cell; extra `bounds`).")
]
BootstrapSeed = Annotated[int, typer.Option(help="Seed of the intervals.")]


@contextmanager
def friendly() -> Iterator[None]:
    """Print what a person can mend as one line and exit with status 2."""
    try:
        yield
    except InfraMindError as error:
        say(f"error: {error}")
        raise typer.Exit(2) from None
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def print_json(content: dict[str, Any]) -> None:
    """Print one JSON object."""
    print(json.dumps(content, allow_nan=False))


def show_leaderboard(board: dict[str, Any], *, markdown: bool = False) -> None:
    """Print the tables of a leaderboard."""
    from inframind_gym.benchmark.tables import leaderboard_sheets, show

    sheets = leaderboard_sheets(board)
    show(sheets, markdown=markdown)
    if not sheets:
        print(
            "No cell has been finished by every policy yet; --json shows the rows that are there."
        )
    for note in board["notes"]:
        print(f"Note: {note}.")
