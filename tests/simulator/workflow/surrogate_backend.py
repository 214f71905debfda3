"""The surrogate as a `Backend`: the compiled kernel, one call at a time.

The environments have no use for it: their loop is compiled as a whole. It shows that the loop of
live servers does exactly the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.live import BackendSimulation
from inframind_gym.simulator.jit import jit
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
from inframind_gym.simulator.server.state import E2E, KV, NEVER_S, QUEUE, cards
from inframind_gym.simulator.workflow.backend import Call, Completion, Telemetry
from inframind_gym.simulator.workflow.topology import FINAL, MAX_AGENTS


class SurrogateBackend:
    """Simulated servers in virtual time, which passes only in `wait`.

    Args:
        simulation: what is run.
        key: of the stream's random numbers.
    """

    def __init__(self, simulation: BackendSimulation, key: int) -> None:
        params, timeout_s = simulation.params, simulation.config.call_timeout_s
        last_s = float(simulation.state.arrival_s[0, simulation.num_queries - 1])
        self._loop = OpenLoop(
            cards(simulation.pool),
            simulation.num_queries * MAX_AGENTS + 1,
            poll_s=simulation.pool.metrics_poll_s,
            timeout_s=NEVER_S if timeout_s is None else timeout_s,
            faults=simulation.faults.changes(key, last_s),
            late_polls=simulation.faults.late_polls,
        )
        self._constants = (params.response, params.role_fit, np.uint64(key))
        self._outcome: dict[int, tuple[Call, int, bool, bool]] = {}
        self._right: dict[int, int] = {}  # per query in flight, mask of the nodes that are right
        self._answer = np.zeros(3, np.int64)  # tokens, whether it will be cut, whether right

    def now_s(self) -> float:
        """Virtual time, s."""
        return self._loop.now_s

    def submit(self, call: Call) -> None:
        """Put the call into its server's queue; what it will answer is drawn at once."""
        right = self._right.get(call.query, 0)
        sources = zip(call.reads, call.sources, strict=True)
        numbers = (
            *(call.query, call.task, call.node, call.phase, call.model, call.strategy),
            *(call.role, call.structure, sum(1 << node for node in call.reads)),
            sum((right >> source & 1) << node for node, source in sources),
        )
        _draw(*self._constants, np.array(numbers), self._answer)
        tokens, truncated, is_right = self._answer.tolist()
        self._loop.submit(call.model, call.priority, call.prompt_tokens, tokens, call.id)
        self._outcome[call.id] = call, tokens, bool(truncated), bool(is_right)

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
    call: NDArray[np.int64],
    answer: NDArray[np.int64],
) -> None:
    """Write a call's length in tokens, whether it will be cut and whether right."""
    ordinal, task, node, phase, model = call[0], call[1], call[2], call[3], call[4]
    strategy, role, structure = call[5], call[6], call[7]
    sources, good = np.uint32(call[8]), np.uint32(call[9])
    place = call_id(node, phase, model, strategy)
    z = query_length_z(key, ordinal)
    tokens, _ = answer_tokens(tables, key, ordinal, task, z, place, phase, model, strategy)
    truncated = was_cut(tables, tokens)
    bonus = answer_bonus(
        tables, role_fit, task, role, node, phase, strategy, structure, sources, good
    )
    is_right = answer_right(tables, key, ordinal, task, place, model, bonus, truncated)
    answer[0], answer[1], answer[2] = tokens, truncated, is_right
