"""A backend that follows a script: given latencies and answers, in virtual time.

For tests that a person can check by hand, and for trying out what happens when calls fail and
models go down and come back.

    backend = ScriptedBackend(5, lambda call: Reply(latency_s=2.0 if call.model else 1.0))
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inframind_gym.simulator.workflow.backend import Call, Completion, Telemetry


@dataclass(frozen=True)
class Reply:
    """Result of a call."""

    latency_s: float
    output_tokens: int = 100
    right: bool | None = True
    truncated: bool = False
    failed: bool = False
    retryable: bool = True  # of one that failed
    text: str | None = None


@dataclass(frozen=True)
class Outage:
    """A model is down from `from_s` on until `until_s`.

    Calls that it has at `from_s` fail then; calls that are sent to it later fail at once.
    """

    model: int
    from_s: float
    until_s: float = math.inf


class ScriptedBackend:
    """Servers without queues: every call takes as long as the script says.

    Args:
        num_models: M.
        reply: what comes of a call; asked when it is submitted.
        outages: when models are down.
        poll_s: interval at which the metrics are polled.

    Attributes:
        calls: every call that was submitted, in order.
        closed: whether `close` was called.
    """

    def __init__(
        self,
        num_models: int,
        reply: Callable[[Call], Reply],
        *,
        outages: Sequence[Outage] = (),
        poll_s: float = 5.0,
    ) -> None:
        self.calls: list[Call] = []
        self.closed = False
        self._num_models = num_models
        self._reply = reply
        self._outages = tuple(outages)
        self._poll_s = poll_s
        self._now_s = 0.0
        self._ends: list[tuple[float, int, Completion]] = []  # a heap: when, which, what
        self._depth = [0] * num_models
        self._recent_s: list[list[float]] = [[] for _ in range(num_models)]  # since the last poll
        self._metrics = Telemetry(
            0, [0.0] * num_models, [0.0] * num_models, [math.nan] * num_models, [0.0] * num_models
        )

    def now_s(self) -> float:
        """Virtual time, s."""
        return self._now_s

    def submit(self, call: Call) -> None:
        """Look up in the script when and how the call will end."""
        reply = self._reply(call)
        finish_s = self._now_s + reply.latency_s
        failed = reply.failed
        for outage in self._outages:
            hit = outage.from_s < finish_s and self._now_s < outage.until_s
            if hit and outage.model == call.model:
                finish_s, failed = max(outage.from_s, self._now_s), True
        completion = Completion(
            call=call.id,
            submit_s=self._now_s,
            first_token_s=math.nan,
            finish_s=finish_s,
            output_tokens=0 if failed else reply.output_tokens,
            truncated=reply.truncated and not failed,
            failed=failed,
            retryable=reply.retryable,
            text=None if failed else reply.text,
            right=False if failed else reply.right,
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
        self._poll_before(next_s)
        self._now_s = next_s
        ended = []
        while self._ends and self._ends[0][0] == next_s:
            _, identity, completion = heapq.heappop(self._ends)
            model = self.calls[identity].model
            self._depth[model] -= 1
            self._recent_s[model].append(completion.finish_s - completion.submit_s)
            ended.append(completion)
        return ended

    def _poll_before(self, next_s: float) -> None:
        """Poll as often as is due before `next_s`."""
        while (polls := self._metrics.polls + 1) * self._poll_s < next_s:
            mean_s = [
                sum(recent) / len(recent) if recent else held
                for recent, held in zip(self._recent_s, self._metrics.e2e_s, strict=True)
            ]
            self._metrics = Telemetry(
                polls,
                [polls * self._poll_s] * self._num_models,
                [float(depth) for depth in self._depth],
                mean_s,
                [0.0] * self._num_models,
            )
            self._recent_s = [[] for _ in range(self._num_models)]

    def telemetry(self) -> Telemetry:
        """The metrics of the last poll; the KV cache is always empty."""
        return self._metrics

    def models_up(self) -> int:
        """Models without an outage now."""
        up = (1 << self._num_models) - 1
        for outage in self._outages:
            if outage.from_s <= self._now_s < outage.until_s:
                up &= ~(1 << outage.model)
        return up

    def close(self) -> None:
        """Nothing more will be asked."""
        self.closed = True
