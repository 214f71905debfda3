"""Errors of the benchmark; commands print those of wrong input on one line, with status 2."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from inframind_gym.errors import InfraMindError
from inframind_gym.timeouts import HungError


class BenchmarkError(InfraMindError):
    """A suite, results folder or command line that cannot be used; the message has the remedy."""


class PolicyFailedError(BenchmarkError):
    """A policy cannot play, raised an error, or gave no valid action or none in time.

    It has a trace of an error that is neither wrong input nor a wrong action.
    """

    def __init__(self, policy: str, reason: str, trace: str = "") -> None:
        super().__init__(policy, reason, trace)
        self.policy, self.reason, self.trace = policy, reason, trace

    def __str__(self) -> str:
        return f"policy {self.policy}: {self.reason}" + (f"\n\n{self.trace}" if self.trace else "")


@contextmanager
def blame(cells: Sequence[Any]) -> Iterator[None]:
    """Turn whatever the policy of cells raises, or that it hangs, into an error that names it."""
    policy = cells[0].policy
    try:
        yield
    except PolicyFailedError:
        raise
    except InfraMindError as error:
        raise PolicyFailedError(policy, str(error)) from error
    except (Exception, SystemExit, HungError) as error:
        trace = "".join(traceback.format_exception(error))
        reason = f"failed with {type(error).__name__}: {error}"
        if isinstance(error, HungError):
            where = f"{cells[0]}, the first of a batch of {len(cells)}"
            reason = f"did not answer in {error.args[0]:g} s (policy_limit_s): {where}"
        raise PolicyFailedError(policy, reason, trace) from error
