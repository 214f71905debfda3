"""What a person can mend: commands print it without a traceback and exit with status 2."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from inframind_gym.errors import InfraMindError


class BenchmarkError(InfraMindError):
    """A suite, results folder or command line that cannot be used; names the remedy."""


class StoppedError(Exception):
    """The person at the keyboard wants the run to end."""


class PolicyFailedError(BenchmarkError):
    """A policy raised an error or gave no valid action; the message ends with the traceback."""

    @classmethod
    def of(cls, policy: str, error: Exception) -> PolicyFailedError:
        """Blame a policy for an error."""
        trace = "".join(traceback.format_exception(error))
        return cls(f"policy {policy!r} failed with {type(error).__name__}: {error}\n\n{trace}")


@contextmanager
def blame(policy: str) -> Iterator[None]:
    """Turn whatever a policy raises, which is foreign code, into an error that names it."""
    try:
        yield
    except Exception as error:
        raise PolicyFailedError.of(policy, error) from error
