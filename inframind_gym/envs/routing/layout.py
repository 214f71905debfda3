"""Layout of an observation: the place of each quantity, and the way back to its unit.

Source: InfraMind (arXiv 2606.11440). The observation is

    "full"   [e_q 384 | e_r 384     | b_rem 1 | d_queue M | d_e2e M | (kv M) | (in_flight M)]
    "index"  [query index | role index | b_rem 1 | d_queue M | d_e2e M | (kv M) | (in_flight M)]

with b_rem = log(max(b, 1)) / log(300), d_queue = depth / 16, d_e2e = log(1 + e2e) / log(300), and
the KV-cache use as a fraction of the cache. A further feature, `in_flight`, is the number of calls
that the router itself has sent to each model and that are not answered, / 16: unlike the others it
is not polled and never old. M is the number of models.

That is the scope "call". `InfraMind-Planner-v0` shows less: no role (scope "plan", with
`observe="infra"`), or nothing but the query (scope "query").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError, unknown

EMBED_DIM: Final = 384
LOG_SCALE_S: Final = 300.0  # seconds at which the log-scaled features are 1
SYSTEM_FEATURES: Final = ("queue", "e2e", "kv", "in_flight")
SCOPES: Final = ("call", "plan", "query")

_LOG_SCALE: Final = math.log(LOG_SCALE_S)


@dataclass(frozen=True)
class ObservationLayout:
    """Slices of an observation and the inverse of every normalisation.

    Every method takes observations of any leading shape, `(..., size)`.

    Args:
        num_models: number of models M.
        embedding: "full" (768 numbers of query and role) or "index" (two indices).
        system_features: which per-model telemetry follows the budget, in this order.
        queue_norm: requests at which `d_queue` is 1 (`queue_norm` of the pool).
        scope: "call": everything; "plan": without the role; "query": the query alone.

    Raises:
        ConfigError: an unknown embedding mode or scope, or an unknown or repeated system feature.
    """

    num_models: int
    embedding: Literal["full", "index"] = "full"
    system_features: tuple[str, ...] = ("queue", "e2e")
    queue_norm: float = 16.0
    scope: Literal["call", "plan", "query"] = "call"

    def __post_init__(self) -> None:
        """Check the arguments and make `system_features` a tuple (JSON gives lists)."""
        object.__setattr__(self, "system_features", tuple(self.system_features))
        if self.num_models < 1:
            raise ConfigError(f"num_models is {self.num_models}; a pool has at least one model")
        if self.embedding not in ("full", "index"):
            raise ConfigError(unknown("embedding mode", self.embedding, ("full", "index")))
        if self.scope not in SCOPES:
            raise ConfigError(unknown("scope", self.scope, SCOPES))
        if self.scope == "query":
            object.__setattr__(self, "system_features", ())
        for feature in self.system_features:
            if feature not in SYSTEM_FEATURES:
                raise ConfigError(unknown("system feature", feature, SYSTEM_FEATURES))
        if len(set(self.system_features)) != len(self.system_features):
            raise ConfigError(f"system_features {self.system_features} names a feature twice")

    @property
    def size(self) -> int:
        """Width of an observation: 779 for five models, "full", queue and e2e."""
        if self.scope == "query":
            return int(self.query.stop)
        return self.budget + 1 + self.num_models * len(self.system_features)

    @property
    def query(self) -> slice:
        """The query: its embedding ("full") or its index ("index")."""
        return slice(0, EMBED_DIM) if self.embedding == "full" else slice(0, 1)

    @property
    def role(self) -> slice:
        """The role: its embedding ("full") or its index ("index"); empty beyond scope "call"."""
        end = self.query.stop
        return slice(end, 2 * end if self.scope == "call" else end)

    @property
    def budget(self) -> int:
        """Position of b_rem.

        Raises:
            ConfigError: the observation holds the query alone.
        """
        if self.scope == "query":
            raise ConfigError(
                "the observation holds the query alone, no budget and no telemetry; make the "
                'environment with observe="infra"'
            )
        return int(self.role.stop)

    @property
    def resource(self) -> slice:
        """Everything that is not the query or the role: b_rem and the telemetry."""
        return slice(self.role.stop, self.size)

    def has(self, feature: str) -> bool:
        """Return whether the observation holds "queue", "e2e", "kv" or "in_flight"."""
        return feature in self.system_features

    def system(self, feature: str) -> slice:
        """The M numbers of one telemetry feature.

        Raises:
            ConfigError: the observation does not hold it.
        """
        if feature not in self.system_features:
            raise ConfigError(
                f"the observation has no {feature!r} telemetry (it has "
                f"{', '.join(self.system_features) or 'none'}); make the environment with "
                f"system_features that include {feature!r}"
            )
        start = self.budget + 1 + self.num_models * self.system_features.index(feature)
        return slice(start, start + self.num_models)

    def query_index(self, observation: NDArray[np.float32]) -> NDArray[np.int64]:
        """Index of the query's task, shape (...). Only in "index" observations."""
        return self._index(observation, 0)

    def role_index(self, observation: NDArray[np.float32]) -> NDArray[np.int64]:
        """Index of the role, shape (...). Only in "index" observations of scope "call"."""
        if self.scope != "call":
            raise ConfigError("the observation is a planner's: it holds no role")
        return self._index(observation, 1)

    def remaining_budget_s(self, observation: NDArray[np.float32]) -> NDArray[np.float64]:
        """Seconds of budget that are left, shape (...); at least 1, where the feature is cut."""
        return np.exp(_float64(observation[..., self.budget]) * _LOG_SCALE)

    def queue_depth_req(self, observation: NDArray[np.float32]) -> NDArray[np.float64]:
        """Requests running and waiting at each model at the last poll, shape (..., M)."""
        return _float64(observation[..., self.system("queue")]) * self.queue_norm

    def e2e_s(self, observation: NDArray[np.float32]) -> NDArray[np.float64]:
        """Mean end-to-end seconds of the calls that finished between two polls, shape (..., M)."""
        return np.expm1(_float64(observation[..., self.system("e2e")]) * _LOG_SCALE)

    def kv_frac(self, observation: NDArray[np.float32]) -> NDArray[np.float64]:
        """Share of each model's KV cache in use at the last poll, shape (..., M)."""
        return _float64(observation[..., self.system("kv")])

    def in_flight_req(self, observation: NDArray[np.float32]) -> NDArray[np.float64]:
        """Calls of the router's own at each model, sent and not answered, now, shape (..., M)."""
        return _float64(observation[..., self.system("in_flight")]) * self.queue_norm

    def _index(self, observation: NDArray[np.float32], position: int) -> NDArray[np.int64]:
        if self.embedding != "index":
            raise ConfigError(
                "the observation holds embeddings, not indices; make the environment with "
                'observation="index"'
            )
        return np.asarray(np.rint(observation[..., position]), np.int64)


def _float64(values: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.asarray(values, np.float64)
