"""Shared parts of the command lines: a group that ends commands on wrong input, and options."""

from __future__ import annotations

import io
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from inframind_gym.errors import ConfigError, InfraMindError

Json = Annotated[
    bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")]


class CommandGroup(TyperGroup):
    """Group of commands that end with one line and status 2 on wrong input.

    Other errors keep their traceback. A command ends quietly when the reader of its pipe, such as
    `head`, has ended. Characters that the terminal cannot encode are shown as "?".
    """

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command as a program."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        warnings.formatwarning = _one_line
        return super().main(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was parsed.

        Raises:
            SystemExit: The input is wrong, or the pipe is cut.
        """
        try:
            return super().invoke(ctx)
        except InfraMindError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            raise SystemExit(2) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(0) from None


def _one_line(message: Warning | str, *_: object, **__: object) -> str:
    """Format a warning without the place in the code."""
    return f"warning: {message}\n"


def refuse_to_overwrite(force: bool, *paths: Path | None) -> None:
    """Raise a ConfigError if a file exists and there was no `--force`."""
    for path in paths:
        if path is not None and path.is_file() and not force:
            raise ConfigError(f"{path}: is there already. Overwrite it with --force.")
