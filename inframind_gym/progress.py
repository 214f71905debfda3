"""Progress and messages of commands on standard error, and tables without lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

_LINE_EVERY_S = 10.0


class ProgressReport:
    """Counter of finished parts of long work, also those of earlier runs; a context manager."""

    def __init__(self, total: int, done: int, what: str, unit: str) -> None:
        from rich import progress as bars
        from rich.console import Console

        self._what, self._unit, self._note = what, unit, ""
        self._total, self._count, self._start = total, done, done
        self._began = self._printed = time.monotonic()
        console = Console(stderr=True)
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = bars.Progress(
                bars.TextColumn("{task.description}"),
                bars.BarColumn(bar_width=None),
                bars.TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit),
                bars.TimeElapsedColumn(),
                bars.TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task(what, total=total, completed=done)

    def advance(self, count: int, note: str = "") -> None:
        """Count finished parts; show a note, such as the last figures, beside the count."""
        self._count += count
        self._total = max(self._total, self._count)  # a last batch may be larger than what is left
        self._note = f"; {note}" if note else ""
        if self._bar is not None:
            self._bar.update(self._task, advance=count, description=self._what + self._note)
        elif time.monotonic() - self._printed > _LINE_EVERY_S:
            self._line()

    def _line(self) -> None:
        self._printed = time.monotonic()
        spent_s = self._printed - self._began
        line = f"{self._what}: {100 * self._count / max(self._total, 1):.0f} %"
        line += f" ({self._count:,}/{self._total:,} {self._unit}), {spent_s:.0f} s"
        if (new := self._count - self._start) > 0.02 * (self._total - self._start):
            line += f", about {spent_s * (self._total - self._count) / new:.0f} s left"
        say(line + self._note)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def say(message: str, end: str = "\n") -> None:
    """Print a line to standard error, where there is one."""
    if sys.stderr is not None:
        print(message, file=sys.stderr, end=end, flush=True)


def plain_table(
    *columns: str, rows: Iterable[Sequence[str]] = (), title: str = "", caption: str | None = None
) -> Table:
    """Return a table without lines; columns whose heading begins with ">" are right-aligned."""
    from rich.table import Table

    table = Table(show_header=bool(columns), box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.title, table.caption = title or None, caption
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column[:1] == ">" else "left")
    for row in rows:
        table.add_row(*row)
    return table
