"""The `Backend` protocol, which scripted and live servers implement.

`backend_loop` decides which calls go to which model and when; a backend only answers them.
`ScriptedBackend` follows a script in virtual time. Live servers run on the wall clock, their calls
can fail, and their models can go down and come back.

A backend serves one stream. Its clock is at 0 when it is opened.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
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
    sources: tuple[int, ...]  # of each of these answers, the node that wrote it
    structure: int = 0  # of the workflow's graph, index into STRUCTURES


@dataclass(frozen=True, slots=True)
class Completion:
    """Result of a call."""

    call: int  # its id
    submit_s: float  # when it was sent to the server
    first_token_s: float  # NaN where unknown
    finish_s: float
    output_tokens: int
    truncated: bool = False  # the answer was cut at `max_tokens`
    failed: bool = False  # there is no answer; counts as a wrong one unless the call is sent again
    retryable: bool = True  # if it failed: another attempt may succeed
    text: str | None = None
    right: bool | None = None  # None: not judged, or it could not be; counts as wrong
    prompt_tokens: int | None = None  # as counted by the server; None: as planned
    admitted_s: float = math.nan  # when it was first scheduled; NaN where unknown
    evictions: int = 0


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The servers' metrics as they were read last; M numbers each.

    Attributes:
        polls: number of polls since the backend was opened; 0: no metrics yet.
        taken_s: when each server was read; a server that does not answer keeps its old metrics.
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
        """Send a call. Never blocks for long and never raises: a failure is a completion."""
        ...

    def wait(self, until_s: float | None) -> list[Completion]:
        """Let time run until a call completes or the time is reached, whichever is first.

        Args:
            until_s: time of the latest return; None: when a call completes. With a time that has
                passed, only calls that have completed already are returned.

        Returns:
            Completions in the order of `finish_s`; empty only when the time was reached, or a model
            has come back before it. Every call that was submitted completes once, at its own time
            limit if by nothing else.
        """
        ...

    def telemetry(self) -> Telemetry:
        """Return the metrics as they were polled last; does not poll, does not block."""
        ...

    def models_up(self) -> int:
        """Return the bit mask of the models that can be routed to now."""
        ...

    def close(self) -> None:
        """Abort the calls in flight and release all resources. May be called twice."""
        ...


@dataclass(frozen=True)
class Reply:
    """Scripted result of a call."""

    latency_s: float
    output_tokens: int = 100
    right: bool | None = True
    failed: bool = False
    retryable: bool = True  # of one that failed


class ScriptedBackend:
    """Servers without queues: every call takes as long as the script says, in virtual time.

        backend = ScriptedBackend(5, lambda call: Reply(latency_s=2.0 if call.model else 1.0))

    Args:
        num_models: M.
        reply: returns the result of a call; called when it is submitted.
        poll_s: interval at which the metrics are polled.

    Attributes:
        calls: every call that was submitted, in order.
    """

    def __init__(
        self,
        num_models: int,
        reply: Callable[[Call], Reply],
        *,
        poll_s: float = 5.0,
    ) -> None:
        self.calls: list[Call] = []
        self._reply = reply
        self._poll_s = poll_s
        self._now_s = 0.0
        self._ends: list[tuple[float, int, Completion]] = []  # heap by finish_s, then id
        self._depth = [0] * num_models
        self._recent_s: list[list[float]] = [[] for _ in range(num_models)]  # since the last poll
        empty = [0.0] * num_models
        self._metrics = Telemetry(0, empty, empty, [math.nan] * num_models, empty)

    def now_s(self) -> float:
        """Return the virtual time in s."""
        return self._now_s

    def submit(self, call: Call) -> None:
        """Ask the script when and how the call will end."""
        reply = self._reply(call)
        finish_s = self._now_s + reply.latency_s
        completion = Completion(
            call=call.id,
            submit_s=self._now_s,
            first_token_s=math.nan,
            finish_s=finish_s,
            output_tokens=0 if reply.failed else reply.output_tokens,
            failed=reply.failed,
            retryable=reply.retryable,
            right=False if reply.failed else reply.right,
        )
        self.calls.append(call)
        self._depth[call.model] += 1
        heapq.heappush(self._ends, (finish_s, call.id, completion))

    def wait(self, until_s: float | None) -> list[Completion]:
        """Advance to the next end of a call and return all that end then, or to `until_s`."""
        limit_s = math.inf if until_s is None else max(until_s, self._now_s)
        end_s = self._ends[0][0] if self._ends else math.inf
        next_s = min(limit_s, end_s)
        if next_s == math.inf:
            return []
        models = range(len(self._depth))
        while (polls := self._metrics.polls + 1) * self._poll_s < next_s:
            e2e_s = [
                sum(recent) / len(recent) if recent else last_s
                for recent, last_s in zip(self._recent_s, self._metrics.e2e_s, strict=True)
            ]
            taken_s, idle = [polls * self._poll_s for _ in models], [0.0 for _ in models]
            self._metrics = Telemetry(polls, taken_s, [*map(float, self._depth)], e2e_s, idle)
            self._recent_s = [[] for _ in models]
        self._now_s = next_s
        ended = []
        while self._ends and self._ends[0][0] == next_s:
            _, identity, completion = heapq.heappop(self._ends)
            model = self.calls[identity].model
            self._depth[model] -= 1
            self._recent_s[model].append(completion.finish_s - completion.submit_s)
            ended.append(completion)
        return ended

    def telemetry(self) -> Telemetry:
        """See `Backend`; the KV cache is always empty."""
        return self._metrics

    def models_up(self) -> int:
        """Return the bit mask of all models."""
        return (1 << len(self._depth)) - 1

    def close(self) -> None:
        """Do nothing: there are no resources."""
