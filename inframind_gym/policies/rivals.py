"""Known rules of load balancing in the setting of their authors: one call, one agent a query.

Each reads the calls that the router itself has sent and that are not answered ("in_flight"), which
are exact where polled metrics are old.

- `jsq`: join the shortest queue. Winston (1977), "Optimality of the shortest line discipline".
- `sq2`: the shorter of two drawn queues. Mitzenmacher (2001), "The Power of Two Choices in
  Randomized Load Balancing".
- `spill`: the best server that has room, else the fastest; overflow routing of call centres and
  content networks.
- `backpressure`: drift plus penalty. Neely (2010), "Stochastic Network Optimization", section 4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError
from inframind_gym.policies.base import BasePolicy, Contexts, models_up
from inframind_gym.simulator.item_response import sigmoid
from inframind_gym.simulator.rng import STREAM_POLICY, uniform_array

ONE_AGENT: Final = {"topology": "IO", "num_agents": 1}
CONCISE: Final = "Concise"
CALLS: Final = 2.0  # of a query with one agent: its answer, and the call that decides
FULL_SLOWDOWN: Final = 0.3  # of a call in a full batch over one that is alone
LOGITS: Final = MappingProxyType({"Flash": -0.3, "Concise": 0.0, "DeepThink": 0.15})


class OneAgentRule(BasePolicy, ABC):
    """A rule that scores routes: the highest score among models that are up, the first of equals.

    Args:
        strategy: of every call.
    """

    requires = MappingProxyType(
        {"planner": ONE_AGENT, "system_features": ["in_flight"], "observation": "index"}
    )

    def __init__(self, strategy: str = CONCISE) -> None:
        self.name = type(self).name + (f":{strategy}" if strategy != CONCISE else "")
        self.strategy = strategy

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return routes, (n,)."""
        spec = self.spec
        in_flight = spec.layout.in_flight_req(observations)
        left_s = contexts["budget_s"] - (contexts["time_s"] - contexts["arrival_s"])
        scores = self.scores(in_flight, left_s[:, None], contexts, rows)  # (n, M) or (n, M, S)
        up = models_up(contexts, spec.num_models)
        if scores.ndim == 2:
            models = np.where(up, scores, -np.inf).argmax(axis=1)
            return np.asarray(spec.action(models, spec.strategy_index(self.strategy)), np.int64)
        scores = np.where(up[..., None], scores, -np.inf)
        return np.asarray(scores.reshape(len(rows), -1).argmax(axis=1), np.int64)

    @abstractmethod
    def scores(
        self,
        in_flight: NDArray[np.float64],
        left_s: NDArray[np.float64],
        contexts: Contexts,
        rows: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Return the score of every model (n, M) or route (n, M, S).

        Args:
            in_flight: (n, M) calls at each model.
            left_s: (n, 1) seconds of the budgets that are left.
            contexts: (n,) decisions.
            rows: (n,) environments.
        """

    def expected_s(self, in_flight: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the seconds until a query sent now would be answered, (n, M)."""
        spec = self.spec
        load = in_flight / spec.max_num_seqs
        wait = np.maximum(in_flight + 1.0 - spec.max_num_seqs, 0.0) / spec.max_num_seqs
        slow = 1.0 + FULL_SLOWDOWN * np.minimum(load, 1.0)
        return np.asarray(CALLS * spec.expected_call_s * slow * (1.0 + wait))


class ShortestQueuePolicy(OneAgentRule):
    """Join the shortest queue, by calls per slot."""

    name = "jsq"

    def scores(
        self,
        in_flight: NDArray[np.float64],
        left_s: NDArray[np.float64],
        contexts: Contexts,
        rows: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Return minus the calls per slot, (n, M)."""
        return -in_flight / self.spec.max_num_seqs


class PowerOfTwoPolicy(OneAgentRule):
    """The shorter queue of two models that are drawn for each call."""

    name = "sq2"

    def scores(
        self,
        in_flight: NDArray[np.float64],
        left_s: NDArray[np.float64],
        contexts: Contexts,
        rows: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Return minus the calls per slot of two models that are up, (n, M); -inf for others."""
        up, n = models_up(contexts, self.spec.num_models), len(rows)
        draws = np.stack(
            [
                uniform_array(self.seeds[rows], STREAM_POLICY, contexts["query"], m)
                for m in range(self.spec.num_models)
            ],
            axis=1,
        )
        drawn = np.argsort(np.where(up, draws, 2.0), axis=1)[:, :2]
        scores = np.full(in_flight.shape, -1e9)
        at = np.arange(n)[:, None], drawn
        scores[at] = -(in_flight / self.spec.max_num_seqs)[at]
        return scores


class SpillPolicy(OneAgentRule):
    """The strongest model with a free slot that makes the deadline, else the fastest with Flash."""

    name = "spill"

    def scores(
        self,
        in_flight: NDArray[np.float64],
        left_s: NDArray[np.float64],
        contexts: Contexts,
        rows: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Return the abilities of models that fit, and below them minus the seconds, (n, M, S)."""
        spec, expected_s = self.spec, self.expected_s(in_flight)
        fits = (in_flight < spec.max_num_seqs) & (expected_s <= left_s)
        scores = np.full((*in_flight.shape, spec.num_strategies), -1e12)
        scores[..., spec.strategy_index("Flash")] = -1e6 - expected_s
        scores[..., spec.strategy_index(self.strategy)] = np.where(fits, spec.ability, -1e12)
        return scores


VALUE: Final = 30.0


class BackpressurePolicy(OneAgentRule):
    """Drift plus penalty: V times the chance of an answer in time, less queue times service.

    Args:
        value: V, in calls per slot times seconds that a right answer is worth. The default is the
            best of 8 on the validation split of `steady/math` at two loads.
    """

    def __init__(self, value: str | float = VALUE) -> None:
        try:
            super().__init__()
            self.value = float(value)
        except ValueError:
            self.value = -1.0
        if not self.value > 0.0:
            raise ConfigError(f"backpressure: value is {value!r}; it must be a number above 0")
        self.name = "backpressure" if self.value == VALUE else f"backpressure:{self.value:g}"

    def scores(
        self,
        in_flight: NDArray[np.float64],
        left_s: NDArray[np.float64],
        contexts: Contexts,
        rows: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Return V·P(solved in time) − Q·s for every route, (n, M, S)."""
        spec = self.spec
        gains = np.array([LOGITS.get(name, 0.0) for name in spec.strategies])
        right = sigmoid(spec.ability[:, None] + gains)  # (M, S)
        in_time = self.expected_s(in_flight) <= left_s
        drift = in_flight / spec.max_num_seqs * CALLS * spec.expected_call_s
        return np.asarray(self.value * right * in_time[..., None] - drift[..., None])
