"""Simulate, calibrate, benchmark and serve: routing of multi-agent LLM calls over servers."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from inframind_gym import __version__
from inframind_gym.commands import CommandGroup

_COMMANDS: Final = {  # name -> function or group, imported when it is used
    "check": "inframind_gym.check:command",
    "bench": "inframind_gym.evaluation.cli:app",
    "train": "inframind_gym.train:train",
    "submit": "inframind_gym.evaluation.cli:submit",
    "calibrate": "inframind_gym.calibration.cli:calibrate",
    "pool": "inframind_gym.live.command:app",
    "serve": "inframind_gym.live.command:serve",
    "workload": "inframind_gym.calibration.cli:app",
    "team": "inframind_gym.teams.cli:app",
    "studio": "inframind_gym.studio.command:studio",
}


@cache
def _command(name: str) -> Any:
    """Make the click command of a name in `_COMMANDS`."""
    module, _, attribute = _COMMANDS[name].partition(":")
    target = getattr(import_module(module), attribute)
    parent = typer.Typer(add_completion=False)
    if isinstance(target, typer.Typer):
        parent.add_typer(target, name=name)
    else:
        parent.command(name)(target)
    return typer.main.get_group(parent).commands[name]


class LazyGroup(CommandGroup):
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
