"""`inframind pool`: start, look at and stop the servers of a pool."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.serving.pool import load_pool

# What talks to servers is imported when a command runs.
if TYPE_CHECKING:
    from inframind_gym.serving.vllm.launcher import Launch
    from inframind_gym.serving.vllm.started import Stopped

app = typer.Typer(no_args_is_help=True, help="Start, look at and stop the vLLM servers of a pool.")

PoolOption = Annotated[str, typer.Option("--pool", help="A shipped pool's name, or a YAML file.")]
StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        help="Folder where it is kept what was started. Default: $INFRAMIND_STATE, or "
        "~/.local/state/inframind_gym.",
        show_default=False,
    ),
]
_COLOURS: Final = {
    "up": "green",
    "asleep": "cyan",
    "starting": "yellow",
    "queued": "dim",
    "stopped": "dim",
}
_MOST_LINES: Final = 15  # of the log of a server that failed


@app.command()
def up(
    pool: PoolOption,
    python: Annotated[
        Path | None,
        typer.Option(
            help="Interpreter that has vLLM. Default: $VLLM_PYTHON, .venv-vllm, or this one.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where servers listen: 127.0.0.1, or 0.0.0.0 for the network.")
    ] = "127.0.0.1",
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds for each server to come up.")
    ] = 1800.0,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="When one fails, leave the others up.")
    ] = False,
    state: StateOption = None,
) -> None:
    """Start the servers that do not run, and wait until all answer.

    Servers on one GPU are started one after the other. When one fails, the end of its log is shown
    and everything that this command started is stopped (see --keep-going); so it is on Ctrl-C.
    What runs already is left as it is. Models with a `url` are only looked at.
    """
    from inframind_gym.serving.vllm.launcher import Launcher

    console = Console(highlight=False)
    _end_by_exception()
    try:
        config = load_pool(pool)
        launcher = Launcher(config, state=state, python=python, host=host)
        show = _Show(console)
        try:
            with show:
                launches = launcher.up(timeout_s=timeout, keep_going=keep_going, watch=show)
        except (KeyboardInterrupt, SystemExit):
            console.print("Interrupted. What this command started was stopped.", style="yellow")
            raise typer.Exit(130) from None
    except InfraMindError as error:
        _refuse(error)
    failed = [launch for launch in launches if launch.phase == "failed"]
    for launch in failed:
        _show_failure(console, launch)
    if failed:
        if keep_going:
            console.print(
                f"{len(launches) - len(failed)} of {len(launches)} servers are up. `up` again "
                f"starts the others, `inframind pool down --pool {pool}` stops all."
            )
        else:
            console.print("Everything that this command started was stopped (see --keep-going).")
        raise typer.Exit(1)
    if all(launch.already or launch.adopted for launch in launches):
        console.print(f"All {len(launches)} servers were up already.")
    console.print(f"Stop them: inframind pool down --pool {pool}{_state_option(state)}")


@app.command()
def status(
    pool: PoolOption,
    state: StateOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show how the servers are. Exit status 0: all are up; 1: not all."""
    try:
        from inframind_gym.serving.vllm.pool_status import pool_status

        rows = pool_status(load_pool(pool), state)
    except InfraMindError as error:
        _refuse(error)
    if as_json:
        typer.echo(json.dumps([row.to_json() for row in rows], indent=1))
    else:
        table = _table("model", "state", "url", "pid", "up for", "MB", "run", "wait", "KV")
        notes = any(row.note for row in rows)
        if notes:
            table.add_column("", overflow="fold")
        for row in rows:
            cells: list[str | Text] = [
                row.alias,
                _coloured(row.state),
                row.url,
                "" if row.pid is None else str(row.pid),
                "" if row.up_s is None else _duration(row.up_s),
                "" if row.memory_mb is None else f"{row.memory_mb:.0f}",
                "" if row.running is None else str(row.running),
                "" if row.waiting is None else str(row.waiting),
                "" if row.kv_frac is None else f"{row.kv_frac:.0%}",
            ]
            table.add_row(*cells, *[Text(row.note, "dim")] * notes)
        Console(highlight=False).print(table)
    raise typer.Exit(0 if all(row.state == "up" for row in rows) else 1)


@app.command()
def logs(
    pool: PoolOption,
    model: Annotated[
        str | None, typer.Argument(help="Alias of a model. Default: all.", show_default=False)
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is said from now on.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many at first.")] = 20,
    state: StateOption = None,
) -> None:
    """Show what the servers say."""
    from inframind_gym.serving.vllm.pool_state import PoolState
    from inframind_gym.serving.vllm.start_failures import last_lines

    try:
        config = load_pool(pool)
        if model is not None:
            config.index(model)
    except InfraMindError as error:
        _refuse(error)
    ours = PoolState(config.name, state)
    wanted = [model] if model is not None else [m.alias for m in config.models if m.url is None]
    width = max((len(alias) for alias in wanted), default=0)
    files = {alias: ours.log(alias) for alias in wanted}
    if not any(path.exists() for path in files.values()):
        _refuse(InfraMindError(f"there are no logs in {ours.folder}: nothing was started"))

    def say(alias: str, line: str) -> None:
        typer.echo(line if model is not None else f"{alias:{width}} | {line}")

    sizes = {alias: _size(path) for alias, path in files.items()}
    for alias, path in files.items():
        for line in last_lines(path, lines):
            say(alias, line)
    if follow:
        try:
            _follow(files, sizes, say)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


@app.command()
def down(
    pool: PoolOption,
    grace: Annotated[
        float, typer.Option(min=0.0, help="Seconds for a server to end by itself.")
    ] = 20.0,
    state: StateOption = None,
) -> None:
    """Stop what `up` started: each server with all its processes, and nothing else.

    A pool whose file is gone or broken is stopped by its name.
    """
    from inframind_gym.serving.vllm.pool_state import PoolState
    from inframind_gym.serving.vllm.started import StartedServers

    try:
        stopped = StartedServers(PoolState(_name(pool, state), state)).down(grace)
    except InfraMindError as error:
        _refuse(error)
    for each in stopped:
        typer.echo(_how_it_ended(each))
    if not stopped:
        typer.echo("Nothing to stop: no server of this pool was started here.")
    if any(each.left for each in stopped):
        raise typer.Exit(1)


@app.command()
def compose(pool: PoolOption) -> None:
    """Write a Docker Compose file for the pool to standard output."""
    from inframind_gym.serving.vllm.compose import compose_file

    try:
        typer.echo(compose_file(load_pool(pool)), nl=False)
    except InfraMindError as error:
        _refuse(error)


class _Show:
    """Progress of `up`: one line a server on a terminal, one line an event elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._said: dict[str, str] = {}
        self._spinners: dict[str, Spinner] = {}

    def __enter__(self) -> _Show:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, launches: Sequence[Launch]) -> None:
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
            taken = "" if launch.phase == "queued" else _duration(launch.took_s)
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
        return f"{alias}: up after {_duration(launch.took_s)} at {launch.url}"
    if launch.phase == "failed":
        return f"{alias}: failed after {_duration(launch.took_s)}"
    return f"{alias}: stopped" if launch.phase == "stopped" and launch.pid else ""


def _phase(launch: Launch) -> Text:
    if launch.phase == "up" and (launch.adopted or launch.already):
        return Text("up (not started here)" if launch.adopted else "up already", "green")
    return _coloured(launch.phase)


def _coloured(state: str) -> Text:
    return Text(state, _COLOURS.get(state, "bold red"))


def _show_failure(console: Console, launch: Launch) -> None:
    from inframind_gym.serving.vllm.start_failures import last_lines

    console.print()
    console.print(Text(f"{launch.model.alias}: {launch.note}", "bold red"), soft_wrap=True)
    if launch.advice:
        console.print(f"What to do: {launch.advice}.", soft_wrap=True, markup=False)
    if launch.log is not None:
        console.print(f"The last lines of {launch.log}:", style="dim", soft_wrap=True)
        for line in last_lines(launch.log, _MOST_LINES):
            console.print(f"  {line}", markup=False, soft_wrap=True, style="dim")
    console.print()


def _how_it_ended(stopped: Stopped) -> str:
    alias, pid = stopped.alias, stopped.pid
    if stopped.left:
        left = ", ".join(map(str, stopped.left))
        return f"{alias}: could not be stopped: these processes still run: {left}"
    if not stopped.processes:
        return f"{alias}: had ended already (process {pid})"
    how = "killed: it did not end by itself" if stopped.killed else "stopped"
    return f"{alias}: {how} ({stopped.processes} processes, the first {pid})"


def _name(pool: str, state: Path | None) -> str:
    """Name of a pool; of one whose file is not to be had, if something of it was started."""
    from inframind_gym.serving.vllm.pool_state import known_pools

    try:
        return load_pool(pool).name
    except ConfigError as error:
        known = known_pools(state)
        if pool in known:
            return pool
        if known:
            raise ConfigError(
                f"{error}\nServers that were started can be stopped by the name of their pool: "
                f"{', '.join(known)}."
            ) from None
        raise


def _follow(files: dict[str, Path], sizes: dict[str, int], say: Callable[[str, str], None]) -> None:
    """Say what comes, for ever; a log that is begun anew is read from its beginning."""
    rest = dict.fromkeys(files, b"")
    inodes = {alias: _inode(path) for alias, path in files.items()}
    while True:
        for alias, path in files.items():
            if _inode(path) != inodes[alias] or _size(path) < sizes[alias]:
                inodes[alias], sizes[alias], rest[alias] = _inode(path), 0, b""
            if _size(path) == sizes[alias]:
                continue
            with path.open("rb") as file:
                file.seek(sizes[alias])
                data = rest[alias] + file.read()
                sizes[alias] = file.tell()
            *lines, rest[alias] = data.split(b"\n")
            for line in lines:
                say(alias, line.decode("utf-8", "replace"))
        sys.stdout.flush()
        time.sleep(0.3)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _inode(path: Path) -> int:
    return path.stat().st_ino if path.exists() else 0


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        right = column in ("pid", "up for", "MB", "run", "wait", "KV")
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    return table


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 360000 else f"{seconds / 86400:.0f} d"


def _state_option(state: Path | None) -> str:
    return "" if state is None else f" --state {state}"


def _end_by_exception() -> None:
    """Let SIGTERM and SIGHUP end `up` as Ctrl-C does: with everything stopped that it started."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for each in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)  # it is ending
        raise SystemExit(128 + number)

    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, end)


def _refuse(error: InfraMindError) -> NoReturn:
    typer.echo(f"error: {error}", err=True)
    raise typer.Exit(2) from None
