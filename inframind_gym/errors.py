"""Errors that users see, and their wording: what is wrong, the nearest valid name, the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import import_module
from numbers import Real
from pathlib import Path
from typing import Any, cast


class InfraMindError(ValueError):
    """Base class of every error that wrong input causes."""


class ConfigError(InfraMindError):
    """A file, folder, argument or command line that cannot be used; the message has the remedy."""


class TaskError(ConfigError):
    """A task file, a task record or an embedding is wrong."""


class ActionError(InfraMindError):
    """An action lies outside of the action space, or selects a model that is down."""


def install_command(extra: str) -> str:
    """Return the command that installs the package with an extra, from a checkout or the index."""
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file():
        return f'`pip install -e "{checkout}[{extra}]"`'
    return f'`pip install "inframind-gym[{extra}]"`'


def needs(what: str, package: str, extra: str) -> str:
    """Return the message that a feature, such as `--track wandb`, needs a package of an extra."""
    command = install_command(extra)
    return f"{what} needs {package}, which is not installed. Install the extra `{extra}`: {command}"


def require(module: str, what: str, extra: str) -> Any:
    """Import a module that an extra of this package installs, for the feature `what`.

    Raises:
        ConfigError: It is not installed; says how to install it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(needs(what, error.name or module, extra)) from None


def shortened(value: object, most_chars: int = 100) -> str:
    """Return a value's text, cut to fit into a message."""
    text = str(value)
    return text if len(text) <= most_chars else f"{text[: most_chars - 1]}…"


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return `" Did you mean 'x'?"` for the nearest known name; empty if none comes close."""
    names = (str(candidate) for candidate in known)
    table = {other.lower(): other for other in names if other != str(name)}  # a broken link
    wanted = shortened(name).lower()  # the comparison takes time quadratic in the length
    matches = difflib.get_close_matches(wanted, list(table), n=1, cutoff=0.6)
    return f" Did you mean '{table[matches[0]]}'?" if matches else ""


def unknown(kind: str, name: object, known: Iterable[object]) -> str:
    """Return the message for an unknown name of a kind ("pool"): the nearest, and all known."""
    names = [str(candidate) for candidate in known]
    listing = ", ".join(names) if names else "none"
    return f"unknown {kind} {shortened(name)!r}.{did_you_mean(name, names)} Known: {listing}."


def require_within(value: object, low: float, high: float, name: str = "") -> float:
    """Return `value` if it is a number from `low` to `high`; `name` begins the error's message.

    Raises:
        ConfigError: If `value` is not a number, or is outside.
    """
    number = cast("float", value)
    if isinstance(value, Real) and not isinstance(value, bool) and low <= number <= high:
        return number
    raise ConfigError(
        f"{name} must be a number from {low:g} to {high:g}, got {value!r:.60}".lstrip()
    )
