"""Progress of commands on standard error, and their tables without lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.table import Table

_LINE_EVERY_S = 10.0


class ProgressReport:
    """Counter of the parts of long work that are done, some by earlier runs; a context manager.

    It is a bar on a terminal, and else a line now and then.
    """

    def __init__(self, total: int, done: int, what: str, unit: str) -> None:
        from rich import progress as bars
        from rich.console import Console

        console = Console(stderr=True)
        self._what, self._unit, self._printed = what, unit, time.monotonic()
        self._bar = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(bar_width=None),
            bars.TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit),
            bars.TimeElapsedColumn(),
            bars.TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            get_time=time.monotonic,
            speed_estimate_period=1e9,  # over all of it
        )
        self._bar.add_task(what, total=total, completed=done)

    def advance(self, count: int, note: str = "") -> None:
        """Count parts that are done; the note, such as the last figures, stands beside them."""
        (task,) = self._bar.tasks
        text = f"{self._what}; {note}" if note else self._what
        self._bar.update(task.id, advance=count, description=text)
        if self._bar.disable and time.monotonic() - self._printed > _LINE_EVERY_S:
            self._printed = time.monotonic()
            left = task.time_remaining
            say(
                f"{self._what}: {task.percentage:.0f} % ({task.completed:,.0f}/{task.total:,.0f} "
                f"{self._unit}), {task.elapsed:.0f} s"
                + ("" if left is None else f", about {left:.0f} s left")
                + (f"; {note}" if note else "")
            )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def say(message: str, end: str = "\n") -> None:
    """Print a line to standard error, where there is one."""
    if sys.stderr is not None:
        print(message, file=sys.stderr, end=end, flush=True)


def plain_table(
    *columns: str, rows: Iterable[Sequence[str]] = (), title: str = "", caption: str | None = None
) -> Table:
    """Return a table without lines; heads that begin with ">" are of numbers, set to the right."""
    from rich.table import Table

    table = Table(show_header=bool(columns), box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.title, table.caption = title or None, caption
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column[:1] == ">" else "left")
    for row in rows:
        table.add_row(*row)
    return table
