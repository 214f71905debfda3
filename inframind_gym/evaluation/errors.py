"""Errors of the benchmark; commands print those of wrong input on one line, with status 2."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from inframind_gym.errors import InfraMindError


class BenchmarkError(InfraMindError):
    """A suite, results folder or command line that cannot be used; the message has the remedy."""


class PolicyFailedError(BenchmarkError):
    """A policy cannot play, raised an error or gave no valid action.

    Args:
        policy: Its name.
        reason: One line.
        trace: Traceback of an error that is neither wrong input nor a wrong action.
    """

    def __init__(self, policy: str, reason: str, trace: str = "") -> None:
        super().__init__(policy, reason, trace)
        self.policy, self.reason, self.trace = policy, reason, trace

    def __str__(self) -> str:
        return f"policy {self.policy}: {self.reason}" + (f"\n\n{self.trace}" if self.trace else "")


@contextmanager
def blame(policy: str) -> Iterator[None]:
    """Turn whatever a policy raises into an error that names it."""
    try:
        yield
    except PolicyFailedError:
        raise
    except InfraMindError as error:
        raise PolicyFailedError(policy, str(error)) from error
    except (Exception, SystemExit) as error:
        trace = "".join(traceback.format_exception(error))
        reason = f"failed with {type(error).__name__}: {error}"
        raise PolicyFailedError(policy, reason, trace) from error
