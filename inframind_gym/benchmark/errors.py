"""Errors of the benchmark; commands print those of wrong input on one line, with status 2."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from inframind_gym.errors import InfraMindError


class BenchmarkError(InfraMindError):
    """A suite, results folder or command line that cannot be used; the message has the remedy."""


class StoppedError(Exception):
    """The run was asked to end, by Ctrl-C or SIGTERM."""


class PolicyFailedError(BenchmarkError):
    """A policy raised an error or gave no valid action; the message ends with the traceback."""


@contextmanager
def blame(policy: str) -> Iterator[None]:
    """Turn whatever a policy raises into an error that names it."""
    try:
        yield
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        raise PolicyFailedError(
            f"policy {policy!r} failed with {type(error).__name__}: {error}\n\n{trace}"
        ) from error
