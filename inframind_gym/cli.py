"""Simulate, calibrate, benchmark and serve: routing of multi-agent LLM calls over servers."""

from __future__ import annotations

import platform
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from inframind_gym import ENVIRONMENTS, __version__
from inframind_gym.errors import InfraMindError, unknown

_COMMANDS: Final = {  # name -> function or group, imported when it is used
    "bench": "inframind_gym.benchmark.cli:app",
    "calibrate": "inframind_gym.calibration.commands:calibrate",
    "replay": "inframind_gym.calibration.commands:replay",
    "sim2real": "inframind_gym.calibration.commands:sim2real",
    "pool": "inframind_gym.live.command:app",
}
_LOADERS: Final = {  # kind of file -> function that reads and checks it
    "pools": "inframind_gym.simulator.server.pool:load_pool",
    "workloads": "inframind_gym.simulator.workload:load_workload",
    "placement/clusters": "inframind_gym.simulator.placement.cards:load_cluster",
    "placement/demands": "inframind_gym.simulator.placement.demand:load_demand",
    "suites": "inframind_gym.benchmark.suite:load_suite",
}


def _load(path: str) -> Any:
    """Import ``package.module:attribute``."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


@cache
def _command(name: str) -> Any:
    """Make the click command of a name of `_COMMANDS`."""
    found = _load(_COMMANDS[name])
    parent = typer.Typer(add_completion=False)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name)
    else:
        parent.command(name)(found)
    return typer.main.get_group(parent).commands[name]


class LazyGroup(TyperGroup):
    """Group of commands whose modules are imported when a command is used or listed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [*_COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None."""
        return _command(cmd_name) if cmd_name in _COMMANDS else super().get_command(ctx, cmd_name)


app = typer.Typer(cls=LazyGroup, no_args_is_help=True)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"inframind-gym {__version__}")
        raise typer.Exit


@app.callback()
def main(
    _: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version."),
    ] = False,
) -> None:
    """Simulate, calibrate, benchmark and serve: routing of multi-agent LLM calls over servers."""


@app.command()
def info() -> None:
    """List environments, shipped configurations and versions."""
    from rich.console import Console
    from rich.table import Table

    from inframind_gym.configs import list_configs

    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_row("inframind_gym", __version__)
    for package in ("gymnasium", "numpy", "numba", "torch", "stable-baselines3"):
        try:
            table.add_row(package, version(package))
        except PackageNotFoundError:
            table.add_row(package, "not installed")
    table.add_row("python", platform.python_version())
    table.add_row("environments", "\n".join(ENVIRONMENTS))
    for kind in _LOADERS:
        table.add_row(kind, "\n".join(list_configs(kind)))
    Console().print(table)


@app.command()
def check(
    kind: Annotated[str, typer.Argument(help=f"Kind of file: {', '.join([*_LOADERS, 'tasks'])}.")],
    name_or_path: Annotated[
        str,
        typer.Argument(help="A shipped name, a path of a YAML file, or a folder of tasks."),
    ],
    packages: Annotated[
        str, typer.Option(help="Packages that the code of tasks may import, by commas.")
    ] = "numpy",
) -> None:
    """Check a configuration file, or run the reference answers of tasks; say what is wrong."""
    from inframind_gym.configs import find_config

    try:
        if kind == "tasks":
            from inframind_gym.tasks.checking import check_tasks

            found = check_tasks(name_or_path, [p for p in packages.split(",") if p])
            typer.echo("\n".join([f"{name_or_path}: {found.lines()[0]}", *found.lines()[1:]]))
            raise typer.Exit(1 if found.failed else 0)
        if kind not in _LOADERS:
            raise InfraMindError(unknown("kind of file", kind, [*_LOADERS, "tasks"]))
        path = find_config(kind, name_or_path)
        loader = _load(_LOADERS[kind])
        loader(str(path) if kind == "suites" else path)
    except InfraMindError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{path}: valid")
