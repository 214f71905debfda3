"""Errors that users see, and their wording: what is wrong, the nearest valid name, the remedy."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Real
from typing import cast


class InfraMindError(ValueError):
    """Base class of every error that wrong input causes."""


class ConfigError(InfraMindError):
    """A pool, workload, suite, arrival specification or environment argument is wrong."""


class TaskError(InfraMindError):
    """A task file, a task record or an embedding is wrong."""


class ActionError(InfraMindError):
    """An action lies outside of the action space, or selects a model that is down."""


def nearest(name: object, known: Iterable[object]) -> str | None:
    """Return the known name that looks most like `name`, or None if none comes close."""
    table = {str(candidate).lower(): str(candidate) for candidate in known}
    matches = difflib.get_close_matches(str(name).lower(), list(table), n=1, cutoff=0.6)
    return table[matches[0]] if matches else None


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return `" Did you mean 'x'?"` for the nearest known name, or an empty string."""
    match = nearest(name, known)
    return "" if match is None else f" Did you mean '{match}'?"


def unknown(kind: str, name: object, known: Iterable[object]) -> str:
    """Return the message for an unknown name: what it is, the nearest known one, all known ones.

    Args:
        kind: What the name names, e.g. "pool" or "policy".
        name: The name that was asked for.
        known: The valid names, listed in this order.
    """
    names = [str(candidate) for candidate in known]
    listing = ", ".join(names) if names else "none"
    return f"unknown {kind} {str(name)!r}.{did_you_mean(name, names)} Known: {listing}."


def require_positive(name: str, value: object) -> float:
    """Return `value` as a float, if it is a positive, finite number.

    Args:
        name: The argument's name with its unit, e.g. "arrival_rate_per_min"; it opens the message.
        value: What the caller passed.

    Raises:
        ConfigError: If `value` is not a number, or is 0, negative, infinite or NaN.
    """
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
    if not (math.isfinite(number) and number > 0.0):
        raise ConfigError(f"{name} must be a positive, finite number, got {value!r}.")
    return number


def require_within(value: object, low: float, high: float, name: str = "") -> float:
    """Return `value`, if it is a number from `low` to `high`.

    Args:
        value: What the caller passed.
        low: Least number that is allowed.
        high: Greatest number that is allowed.
        name: The argument's name with its unit; it opens the message.

    Raises:
        ConfigError: If `value` is not a number, or is outside.
    """
    number = cast("float", value)
    if isinstance(value, Real) and not isinstance(value, bool) and low <= number <= high:
        return number
    raise ConfigError(
        f"{name} must be a number from {low:g} to {high:g}, got {value!r:.60}".lstrip()
    )
