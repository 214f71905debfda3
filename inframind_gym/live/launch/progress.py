"""What `inframind pool` shows: progress of servers that come up, failures, how servers ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

# What talks to servers is imported when a command runs.
if TYPE_CHECKING:
    from inframind_gym.live.launch.launcher import Launch
    from inframind_gym.live.launch.started import Stopped

_COLOURS: Final = {
    "up": "green",
    "asleep": "cyan",
    "starting": "yellow",
    "queued": "dim",
    "stopped": "dim",
}
_MOST_LINES: Final = 15  # of the log of a server that failed


class UpProgress:
    """Progress of `up`: one line a server on a terminal, one line an event elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._said: dict[str, str] = {}
        self._spinners: dict[str, Spinner] = {}

    def __enter__(self) -> UpProgress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, launches: Sequence[Launch]) -> None:
        """Show how far they are."""
        if self._live is not None:
            self._live.update(self._table(launches))
            return
        for launch in launches:
            line = _event(launch)
            if line and self._said.get(launch.model.alias) != line:
                self._said[launch.model.alias] = line
                self._console.print(line, soft_wrap=True, markup=False)

    def _table(self, launches: Sequence[Launch]) -> Group:
        table = Table.grid(padding=(0, 2))
        for _ in range(5):
            table.add_column(no_wrap=True)
        width = self._console.width - 36 - max(len(launch.model.alias) for launch in launches)
        for launch in launches:
            alias = launch.model.alias
            mark: Spinner | Text = Text(
                {"up": "✔", "failed": "✘"}.get(launch.phase, "·"),
                {"up": "green", "failed": "red"}.get(launch.phase, "dim"),
            )
            if launch.phase == "starting":
                mark = self._spinners.setdefault(alias, Spinner("dots", style="yellow"))
            taken = "" if launch.phase == "queued" else duration(launch.took_s)
            if launch.adopted or (launch.already and launch.phase == "up"):
                taken = ""
            note = Text(launch.note.partition("\n")[0] or launch.url, "dim")
            note.truncate(max(width, 20), overflow="ellipsis")
            table.add_row(mark, alias, _phase(launch), taken, note)
        up = sum(launch.phase == "up" for launch in launches)
        return Group(table, Text(f"{up} of {len(launches)} up", "dim"))


def _event(launch: Launch) -> str:
    """What is new of a server, in a line; "" for nothing."""
    alias = launch.model.alias
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


def _phase(launch: Launch) -> Text:
    if launch.phase == "up" and (launch.adopted or launch.already):
        return Text("up (not started here)" if launch.adopted else "up already", "green")
    return coloured(launch.phase)


def coloured(state: str) -> Text:
    """A state, in its colour."""
    return Text(state, _COLOURS.get(state, "bold red"))


def show_failure(console: Console, launch: Launch) -> None:
    """Show why a server did not come up, what to do about it and the end of its log."""
    from inframind_gym.live.launch.failures import last_lines

    console.print()
    console.print(Text(f"{launch.model.alias}: {launch.note}", "bold red"), soft_wrap=True)
    if launch.advice:
        console.print(f"What to do: {launch.advice}.", soft_wrap=True, markup=False)
    if launch.log is not None:
        console.print(f"The last lines of {launch.log}:", style="dim", soft_wrap=True)
        for line in last_lines(launch.log, _MOST_LINES):
            console.print(f"  {line}", markup=False, soft_wrap=True, style="dim")
    console.print()


def how_it_ended(stopped: Stopped) -> str:
    """What became of a server that was to be stopped."""
    alias, pid = stopped.alias, stopped.pid
    if stopped.left:
        left = ", ".join(map(str, stopped.left))
        return f"{alias}: could not be stopped: these processes still run: {left}"
    if not stopped.processes:
        return f"{alias}: had ended already (process {pid})"
    how = "killed: it did not end by itself" if stopped.killed else "stopped"
    return f"{alias}: {how} ({stopped.processes} processes, the first {pid})"


def duration(seconds: float) -> str:
    """A time in its largest unit."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 360000 else f"{seconds / 86400:.0f} d"
