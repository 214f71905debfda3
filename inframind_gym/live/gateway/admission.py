"""Prediction of a call's latency, and the requests that cannot make their budget any more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing.layout import ObservationLayout
from inframind_gym.envs.routing.spec import PolicySpec
from inframind_gym.policies.queue_aware import LowestExpectedLatencyPolicy
from inframind_gym.simulator.server.pool import PoolConfig
from inframind_gym.simulator.server.telemetry import E2E, QUEUE

_BYTES_A_TOKEN = 4.0
_ROW = np.zeros(1, np.int64)


class Predictor:
    """Expected seconds of a call at each of M models, by the rule of `lowest_expected_latency`.

    Args:
        pool: the server cards are believed.
        spec: facts of the run, of the policy that routes.
    """

    def __init__(self, pool: PoolConfig, spec: PolicySpec) -> None:
        layout = ObservationLayout(
            spec.num_models, "index", ("queue", "e2e"), queue_norm=spec.queue_norm
        )
        self._rule = LowestExpectedLatencyPolicy()
        facts = {name: getattr(spec, name) for name in PolicySpec.__dataclass_fields__}
        self._rule.reset(PolicySpec(**(facts | {"layout": layout, "level": "executor"})), [0])
        self._observation = np.zeros((1, layout.size), np.float32)
        self._layout, self._call_s = layout, spec.expected_call_s
        cards = [model.server for model in pool.models]
        self._idle_s = np.array([card.call_s(0.0, 1.0) for card in cards])
        self._token_s = np.array([card.call_s(0.0, 2.0) for card in cards]) - self._idle_s
        self._prompt_s = (
            np.array([card.call_s(1000.0, 1.0) for card in cards]) - self._idle_s
        ) / 1000.0
        self._polls = -1
        self._own_at_poll = np.zeros(spec.num_models)

    def latency_s(
        self,
        seen: NDArray[np.float32],
        polls: int,
        depth_req: Sequence[float],
        in_flight: NDArray[np.int64],
        prompt_bytes: int,
        max_tokens: int | None,
    ) -> NDArray[np.float64]:
        """Return the expected latency at each model, (M,).

        The load of a server is the gateway's own calls, counted now, and those of others as of the
        last poll. A call that may write fewer tokens than usual, or reads more, takes as much less
        or more of its own time.

        Args:
            seen: (3, M) metrics, normalised.
            polls: number of polls so far.
            depth_req: (M,) requests at the last poll.
            in_flight: (M,) own calls.
            prompt_bytes: of the request.
            max_tokens: of the answer; None: as usual.
        """
        depth = np.asarray(depth_req, np.float64)
        if polls != self._polls:
            self._polls, self._own_at_poll = polls, in_flight.astype(np.float64)
        load = in_flight + np.maximum(depth - self._own_at_poll, 0.0)
        row = self._observation
        row[:, self._layout.system("queue")] = seen[QUEUE]
        row[:, self._layout.system("e2e")] = seen[E2E]
        polled = np.round(self._layout.queue_depth_req(row[0]), 3)
        # The rule adds what was sent since the poll.
        self._rule.sent = (load - polled)[None]
        expected: NDArray[np.float64] = self._rule.expected_latency_s(row, _ROW, 0.0)[0]
        expected = expected + prompt_bytes / _BYTES_A_TOKEN * self._prompt_s
        if max_tokens is not None:
            longest_s = self._idle_s + (max_tokens - 1) * self._token_s
            expected = expected - np.maximum(self._call_s - longest_s, 0.0)
        longest: NDArray[np.float64] = np.maximum(expected, self._idle_s)
        return longest
