"""`inframind pool`: start, look at and stop the servers of a pool."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from inframind_gym.errors import ConfigError, InfraMindError, unknown
from inframind_gym.live.launch.progress import (
    UpProgress,
    coloured,
    duration,
    how_it_ended,
    show_failure,
)
from inframind_gym.simulator.server.pool import load_pool

# What talks to servers is imported when a command runs.
if TYPE_CHECKING:
    from inframind_gym.live.launch.state import PoolState

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
    from inframind_gym.live.launch.launcher import Launcher

    console = Console(highlight=False)
    end_by_exception()
    try:
        config = load_pool(pool)
        launcher = Launcher(config, state=state, python=python, host=host)
        show = UpProgress(console)
        try:
            with show:
                launches = launcher.up(timeout_s=timeout, keep_going=keep_going, watch=show)
        except (KeyboardInterrupt, SystemExit):
            console.print("Interrupted. What this command started was stopped.", style="yellow")
            raise typer.Exit(130) from None
    except InfraMindError as error:
        refuse(error)
    failed = [launch for launch in launches if launch.phase == "failed"]
    for launch in failed:
        show_failure(console, launch)
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
        from inframind_gym.live.launch.status import pool_status

        rows = pool_status(load_pool(pool), state)
    except InfraMindError as error:
        refuse(error)
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
                coloured(row.state),
                row.url,
                "" if row.pid is None else str(row.pid),
                "" if row.up_s is None else duration(row.up_s),
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
    """Show what the servers say.

    A pool whose file is gone or broken is found by its name.
    """
    from inframind_gym.live.launch.failures import last_lines

    try:
        ours, aliases = _logged(pool, state)
        if model is not None and model not in aliases:
            raise ConfigError(unknown("model", model, aliases))
    except InfraMindError as error:
        refuse(error)
    wanted = [model] if model is not None else aliases
    width = max((len(alias) for alias in wanted), default=0)
    files = {alias: ours.log(alias) for alias in wanted}
    if not any(path.exists() for path in files.values()):
        refuse(InfraMindError(f"there are no logs in {ours.folder}: nothing was started"))

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
    from inframind_gym.live.launch.started import StartedServers
    from inframind_gym.live.launch.state import PoolState

    try:
        stopped = StartedServers(PoolState(_name(pool, state), state)).down(grace)
    except InfraMindError as error:
        refuse(error)
    for each in stopped:
        typer.echo(how_it_ended(each))
    if not stopped:
        typer.echo("Nothing to stop: no server of this pool was started here.")
    if any(each.left for each in stopped):
        raise typer.Exit(1)


@app.command()
def compose(pool: PoolOption) -> None:
    """Write a Docker Compose file for the pool to standard output."""
    from inframind_gym.live.launch.compose import compose_file

    try:
        typer.echo(compose_file(load_pool(pool)), nl=False)
    except InfraMindError as error:
        refuse(error)


def _logged(pool: str, state: Path | None) -> tuple[PoolState, list[str]]:
    """Where a pool's logs are, and the models that have one; of a lost pool, those that started."""
    from inframind_gym.live.launch.state import PoolState

    ours = PoolState(_name(pool, state), state)
    try:
        models = load_pool(pool).models
    except ConfigError:
        return ours, list(ours.read())
    return ours, [model.alias for model in models if model.url is None]


def _name(pool: str, state: Path | None) -> str:
    """Name of a pool; of one whose file is not to be had, if something of it was started."""
    from inframind_gym.live.launch.state import known_pools

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


def _state_option(state: Path | None) -> str:
    return "" if state is None else f" --state {state}"


def end_by_exception() -> None:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does: with everything stopped it started."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for each in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)  # it is ending
        raise SystemExit(128 + number)

    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, end)


def refuse(error: InfraMindError) -> NoReturn:
    """Say what is wrong, and end."""
    typer.echo(f"error: {error}", err=True)
    raise typer.Exit(2) from None
