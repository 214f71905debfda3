"""The `Backend` protocol, which simulated and real servers implement alike.

`backend_loop` submits calls and waits for what comes of them; which calls, to which model and when,
is never a backend's business. Three implementations: the compiled surrogate in virtual time
(`server/surrogate_backend.py`), a scripted one (`scripted_backend.py`), and live servers, whose
time is the wall clock's, whose calls can fail and whose models can go down and come back.

A backend serves one stream. Its clock stands at 0 when it is opened.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Call:
    """One call to a model, as the event loop submits it."""

    id: int  # of the stream's calls, in order of submission
    query: int  # ordinal in the stream
    task: int  # what it asks, index into the run's tasks
    topology: int  # index into TOPOLOGIES
    node: int  # execution of the workflow; 0 for the deciding call
    phase: int  # FIRST, SECOND or FINAL (`topology.py`)
    model: int  # index into the pool's models
    strategy: int  # index into STRATEGIES
    role: int  # index into ROLES; -1 for the deciding call
    priority: float  # lower first; a deadline in s where the scheduler is EDF
    deadline_s: float  # of the query: arrival + budget
    prompt_tokens: int  # planned; real prompts have the length that they have
    max_tokens: int  # where the answer is cut
    reads: tuple[int, ...]  # nodes whose answers are in the prompt; its own in the SECOND phase
    sources: tuple[int, ...]  # for each of them the node that wrote it, if it was handed on
    structure: int = 0  # of the workflow's graph, index into STRUCTURES


@dataclass(frozen=True, slots=True)
class Completion:
    """Result of a call."""

    call: int  # its id
    submit_s: float  # when the server was given it
    first_token_s: float  # NaN where unknown
    finish_s: float
    output_tokens: int
    truncated: bool = False  # the answer was cut at `max_tokens`
    failed: bool = False  # there is no answer; counts as a wrong one unless the call is sent again
    retryable: bool = True  # of one that failed: something else can come of it the next time
    text: str | None = None
    right: bool | None = None  # None: not judged (nobody does, or nobody could); counts as wrong
    prompt_tokens: int | None = None  # as counted by the server; None: as planned
    admitted_s: float = math.nan  # when it was first scheduled; NaN where unknown
    evictions: int = 0


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The servers' metrics as they were read last; M numbers each.

    Attributes:
        polls: how often they have been read since the backend was opened; 0: all is empty.
        taken_s: when each server's were; a server that doesn't answer has old ones.
        depth_req: requests running and waiting.
        e2e_s: mean latency of the requests that finished between two polls, the last such value
            where none did; NaN before there is any.
        kv_frac: share of the KV cache in use, 0..1.
    """

    polls: int
    taken_s: Sequence[float]
    depth_req: Sequence[float]
    e2e_s: Sequence[float]
    kv_frac: Sequence[float]


@runtime_checkable
class Backend(Protocol):
    """Servers of M models, for the length of one stream."""

    def now_s(self) -> float:
        """Time since the backend was opened, in s; it never runs backwards."""
        ...

    def submit(self, call: Call) -> None:
        """Hand a call over, now. Never blocks for long and never fails: failure is a completion."""
        ...

    def wait(self, until_s: float | None) -> list[Completion]:
        """Let time run until a call completes or the time is reached, whichever is first.

        Args:
            until_s: when to come back at the latest; None: when something completes. A time that
                has passed asks for what has completed already.

        Returns:
            Completions in the order of `finish_s`; empty only when the time was reached, or a model
            has come back before it. Every call that was submitted completes once, at its own time
            limit if by nothing else.
        """
        ...

    def telemetry(self) -> Telemetry:
        """The metrics as they were polled last; doesn't poll, doesn't block."""
        ...

    def models_up(self) -> int:
        """Bit mask of the models that can be routed to now."""
        ...

    def close(self) -> None:
        """Give up what is still in flight and let go of everything. May be called twice."""
        ...
