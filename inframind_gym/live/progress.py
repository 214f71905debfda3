"""Output of `inframind pool`: progress of servers that come up, failures, ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from inframind_gym.live.failures import last_lines

# Modules that reach servers are imported when a command runs.
if TYPE_CHECKING:
    from inframind_gym.live.launcher import Launch
    from inframind_gym.live.started import Stopped

_COLOURS: Final = {
    "up": "green",
    "asleep": "cyan",
    "starting": "yellow",
    "preparing": "yellow",
    "queued": "dim",
    "stopped": "dim",
}
_MARKS: Final = {"up": ("✔", "green"), "failed": ("✘", "red")}
_MOST_LINES: Final = 15  # of the log of a server that failed


@contextlib.contextmanager
def up_progress(console: Console) -> Iterator[Callable[[Sequence[Launch]], None]]:
    """Show launches: one line a server on a terminal, one line an event elsewhere."""
    if console.is_terminal:
        spinners: dict[str, Spinner] = {}
        with Live(console=console, refresh_per_second=4) as live:
            yield lambda launches: live.update(_table(launches, console.width, spinners))
        return
    shown: dict[str, str] = {}

    def show(launches: Sequence[Launch]) -> None:
        for launch in launches:
            line = _event(launch)
            if line and shown.get(launch.model.alias) != line:
                shown[launch.model.alias] = line
                console.print(line, soft_wrap=True, markup=False)

    yield show


def _table(launches: Sequence[Launch], width: int, spinners: dict[str, Spinner]) -> Group:
    """Return a table of launches, `width` columns wide; a spinner lasts while its server starts."""
    table = Table.grid(padding=(0, 2))
    for _ in range(5):
        table.add_column(no_wrap=True)
    room = max(width - 36 - max(len(launch.model.alias) for launch in launches), 20)
    for launch in launches:
        alias, up = launch.model.alias, launch.phase == "up"
        mark: Spinner | Text = Text(*_MARKS.get(launch.phase, ("·", "dim")))
        if launch.phase == "starting":
            mark = spinners.setdefault(alias, Spinner("dots", style="yellow"))
        phase = coloured(launch.phase)
        if up and (launch.adopted or launch.already):
            phase = Text("up (not started here)" if launch.adopted else "up already", "green")
        timed = (
            launch.phase not in ("queued", "preparing")
            and not launch.adopted
            and not (launch.already and up)
        )
        note = Text(launch.note.partition("\n")[0] or launch.url, "dim")
        note.truncate(room, overflow="ellipsis")
        table.add_row(mark, alias, phase, duration(launch.took_s) if timed else "", note)
    count = sum(launch.phase == "up" for launch in launches)
    return Group(table, Text(f"{count} of {len(launches)} up", "dim"))


def _event(launch: Launch) -> str:
    """Return the news of a server in a line; "" for none."""
    alias = launch.model.alias
    if launch.phase == "preparing":
        return f"{alias}: {launch.note}"
    if launch.phase == "starting":
        again = ", was started before" if launch.already else ""
        return f"{alias}: starting (process {launch.pid}{again})"
    if launch.phase == "up":
        if launch.adopted:
            return f"{alias}: up at {launch.url}, not started here"
        if launch.already and launch.took_s < 5.0:
            return f"{alias}: up already at {launch.url} (process {launch.pid})"
        return f"{alias}: up after {duration(launch.took_s)} at {launch.url}"
    if launch.phase == "failed":
        return f"{alias}: failed after {duration(launch.took_s)}"
    return f"{alias}: stopped" if launch.phase == "stopped" and launch.pid else ""


def coloured(state: str) -> Text:
    """Return a state in its colour."""
    return Text(state, _COLOURS.get(state, "bold red"))


def show_failure(console: Console, launch: Launch) -> None:
    """Show why a server did not come up, the remedy and the end of its log."""
    console.print()
    console.print(Text(f"{launch.model.alias}: {launch.note}", "bold red"), soft_wrap=True)
    if launch.advice:
        console.print(f"What to do: {launch.advice}.", soft_wrap=True, markup=False)
    if launch.log is not None:
        console.print(f"The last lines of {launch.log}:", style="dim", soft_wrap=True)
        for line in last_lines(launch.log, _MOST_LINES):
            console.print(f"  {line}", markup=False, soft_wrap=True, style="dim")
    console.print()


def outcome(stopped: Stopped) -> str:
    """Return how a server ended that was to be stopped."""
    alias, pid = stopped.alias, stopped.pid
    if stopped.left:
        left = ", ".join(map(str, stopped.left))
        return f"{alias}: could not be stopped: these processes still run: {left}"
    if not stopped.processes:
        return f"{alias}: had ended already (process {pid})"
    how = "killed: it did not end by itself" if stopped.killed else "stopped"
    if stopped.processes == 1:
        return f"{alias}: {how} (process {pid})"
    return f"{alias}: {how} ({stopped.processes} processes, the first {pid})"


def duration(seconds: float) -> str:
    """Return a time in its largest unit."""
    for limit_s, unit_s, unit in ((100, 1, "s"), (6000, 60, "min"), (360_000, 3600, "h")):
        if seconds < limit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
