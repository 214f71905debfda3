"""The surrogate as a `Backend`: the compiled kernel, one call at a time.

The environments don't use it: their loop is compiled as a whole (`workflow/event_loop.py`). It
shows that the loop of live servers does exactly the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import jit
from inframind_gym.simulator.native import Bound
from inframind_gym.simulator.quality import (
    ResponseTables,
    answer_bonus,
    answer_right,
    answer_tokens,
    call_id,
    query_length_z,
    was_cut,
)
from inframind_gym.simulator.server.open_loop import OpenLoop
from inframind_gym.simulator.server.state import NEVER_S
from inframind_gym.simulator.server.telemetry import E2E, KV, QUEUE
from inframind_gym.simulator.workflow.backend import Call, Completion, Telemetry
from inframind_gym.simulator.workflow.topology import FINAL

# Tokens of a call's prompt and of its answer.
Lengths = Callable[[Call], tuple[int, int]]


class SurrogateBackend:
    """Simulated servers in virtual time, which passes only in `wait`.

    Args:
        card: (M,) server cards (`inframind_gym.simulator.server.state.cards(pool)`).
        tables: the response model.
        role_fit: (T, R) how well a role suits a task.
        key: of the stream's random numbers, 0..2**64 - 1.
        max_calls: most calls in flight.
        poll_s: interval at which the metrics are polled.
        call_timeout_s: after which a call has failed; None: never.
        faults: (F,) FAULT, changes of the servers' conditions; empty: none.
        late_polls: polls by which their readings are late at most.
        lengths: of prompts and answers, where they are known; None: as planned and drawn.
    """

    def __init__(
        self,
        card: NDArray[Any],
        tables: ResponseTables,
        role_fit: NDArray[np.float32],
        key: int,
        *,
        max_calls: int,
        poll_s: float = 5.0,
        call_timeout_s: float | None = None,
        faults: NDArray[Any] | None = None,
        late_polls: int = 0,
        lengths: Lengths | None = None,
    ) -> None:
        timeout_s = NEVER_S if call_timeout_s is None else call_timeout_s
        self._loop = OpenLoop(
            *(card, max_calls),
            poll_s=poll_s,
            timeout_s=timeout_s,
            faults=faults,
            late_polls=late_polls,
        )
        self._constants = (tables, role_fit, np.uint64(key))
        self._lengths = lengths
        self._outcome: dict[int, tuple[Call, int, bool, bool]] = {}
        self._right: dict[int, int] = {}  # per query in flight, mask of the nodes that are right
        self._answer = np.zeros(3, np.int64)  # tokens, whether it will be cut, whether right
        self._draw = Bound(_draw)

    def now_s(self) -> float:
        """Virtual time, s."""
        return self._loop.now_s

    def submit(self, call: Call) -> None:
        """Put the call into its server's queue; what it will answer is drawn at once."""
        known = self._right.get(call.query, 0)
        prompt, answer = (call.prompt_tokens, 0) if self._lengths is None else self._lengths(call)
        sources = zip(call.reads, call.sources, strict=True)
        self._draw(
            *self._constants,
            *(call.query, call.task, call.node, call.phase, call.model, call.strategy),
            *(call.role, call.structure, answer),
            sum(1 << node for node in call.reads),
            sum((known >> source & 1) << node for node, source in sources),
            self._answer,
        )
        tokens, truncated, right = self._answer.tolist()
        self._loop.submit(call.model, call.priority, prompt, tokens, call.id)
        self._outcome[call.id] = call, tokens, bool(truncated), bool(right)

    def wait(self, until_s: float | None) -> list[Completion]:
        """Advance to the next completion, or to `until_s` or a server's return before it."""
        if until_s is None and not self._outcome:
            return []
        ended = self._loop.advance(NEVER_S if until_s is None else until_s)
        return [self._completion(record) for record in ended]

    def _completion(self, ended: np.void) -> Completion:
        call, tokens, truncated, right = self._outcome.pop(int(ended["call"]))
        failed = bool(ended["failed"])
        if failed:
            tokens, truncated, right = 0, False, False
        if call.phase == FINAL and not failed:
            self._right.pop(call.query, None)
        elif call.phase != FINAL:
            bit = 1 << call.node
            others = self._right.get(call.query, 0) & ~bit
            self._right[call.query] = others | bit if right else others
        return Completion(
            call=call.id,
            submit_s=float(ended["submit_s"]),
            first_token_s=float(ended["first_token_s"]),
            finish_s=float(ended["finish_s"]),
            output_tokens=tokens,
            truncated=truncated,
            failed=failed,
            right=right,
            admitted_s=float(ended["admitted_s"]),
            evictions=int(ended["evictions"]),
        )

    def telemetry(self) -> Telemetry:
        """The metrics of the last poll."""
        return Telemetry(
            polls=self._loop.polls,
            taken_s=self._loop.taken_s.tolist(),
            depth_req=self._loop.metrics[QUEUE].tolist(),
            e2e_s=self._loop.metrics[E2E].tolist(),
            kv_frac=self._loop.metrics[KV].tolist(),
        )

    def models_up(self) -> int:
        """All of them, but for those that a fault has taken down."""
        return self._loop.models_up

    def close(self) -> None:
        """Nothing to let go of."""


@jit
def _draw(
    tables: ResponseTables,
    role_fit: NDArray[np.float32],
    key: int,
    ordinal: int,
    task: int,
    node: int,
    phase: int,
    model: int,
    strategy: int,
    role: int,
    structure: int,
    known_tokens: int,
    reads: int,
    right: int,
    answer: NDArray[np.int64],
) -> None:
    """Write a call's length in tokens, whether it will be cut and whether right.

    The length is `known_tokens`, or drawn where that is 0.
    """
    place = call_id(node, phase, model, strategy)
    z = query_length_z(key, ordinal)
    tokens, _ = answer_tokens(tables, key, ordinal, task, z, place, phase, model, strategy)
    if known_tokens > 0:
        tokens = known_tokens
    truncated = was_cut(tables, tokens)
    sources, good = np.uint32(reads), np.uint32(right)
    bonus = answer_bonus(
        tables, role_fit, task, role, node, phase, strategy, structure, sources, good
    )
    is_right = answer_right(tables, key, ordinal, task, place, model, bonus, truncated)
    answer[0], answer[1], answer[2] = tokens, truncated, is_right
