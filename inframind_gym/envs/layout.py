"""Facts that a policy may read: the layout of observations, and the public facts of a run.

Source: InfraMind (arXiv 2606.11440). The observation is

    "full"   [e_q 384 | e_r 384     | b_rem 1 | d_queue M | d_e2e M | (kv M) | (in_flight M)]
    "index"  [query index | role index | b_rem 1 | d_queue M | d_e2e M | (kv M) | (in_flight M)]
    "compact" [b_rem 1 | arrivals 1 | of each model: COMPACT]

with b_rem = log(max(b, 1)) / log(300), d_queue = depth / 16, d_e2e = log(1 + e2e) / log(300), and
the KV-cache use as a fraction of the cache. A further feature, `in_flight`, is the number of calls
that the router itself has sent to each model and that are not answered, / 16: unlike the others it
is not polled and never old. M is the number of models.

That is the scope "call". `InfraMind-Planner-v0` shows less: no role (scope "plan", with
`observe="infra"`), or nothing but the query (scope "query").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from inframind_gym.envs.core import Float32s, Floats, Ints
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.simulator.server.telemetry import LOG_SCALE
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.tasks import EMBED_DIM

if TYPE_CHECKING:
    from inframind_gym.simulator.workflow.backend import Telemetry

LONGEST_S: Final = 1e6  # bound of the time features: nothing observed lasts longer
SystemFeature = Literal["queue", "e2e", "kv", "in_flight"]
SYSTEM_FEATURES: Final[tuple[str, ...]] = get_args(SystemFeature)

# Numbers of each model in a "compact" observation, with their lowest and highest.
COMPACT: Final = {
    "own_load": (0.0, 10.0),  # the router's calls that are not answered, over the server's slots
    "gpu_load": (0.0, 10.0),  # the same, summed over the models of its GPU
    "queue_load": (0.0, 10.0),  # requests at the server at the last poll, over its slots
    "e2e": (0.0, 3.0),  # as in the other forms
    "slack": (-3.0, 3.0),  # ln(seconds left / seconds of a call at the present load) / 3
    "call_s": (-3.0, 3.0),  # ln(seconds of a call at light load) / ln 300
    "ability": (-10.0, 10.0),  # of the model at the workload, logits
}
COMPACT_SEEN: Final = ("queue", "e2e", "in_flight")  # telemetry that it is computed from
ARRIVALS_OVER_S: Final = 60.0  # time constant of the mean of arrivals
MOST_ARRIVALS: Final = 3.0  # feature of a million queries a minute


@dataclass(frozen=True)
class ObservationLayout:
    """Slices of an observation and the inverse of every normalisation.

    Every method takes observations of any leading shape, `(..., size)`.

    Args:
        num_models: number of models M.
        embedding: "full" (768 numbers of query and role), "index" (two indices) or "compact".
        system_features: which per-model telemetry follows the budget, in this order.
        queue_norm: requests at which `d_queue` is 1 (`queue_norm` of the pool).
        scope: "call": everything; "plan": without the role; "query": the query alone.
    """

    num_models: int
    embedding: Literal["full", "index", "compact"] = "full"
    system_features: tuple[str, ...] = ("queue", "e2e")
    queue_norm: float = 16.0
    scope: Literal["call", "plan", "query"] = "call"

    def __post_init__(self) -> None:
        """Set `system_features` to () where an observation holds no telemetry as polled."""
        has_none = self.scope == "query" or self.embedding == "compact"
        object.__setattr__(self, "system_features", () if has_none else tuple(self.system_features))

    @property
    def size(self) -> int:
        """Width of an observation: 779 for five models, "full", queue and e2e."""
        if self.scope == "query":
            return int(self.query.stop)
        if self.embedding == "compact":
            return 2 + self.num_models * len(COMPACT)
        return self.budget + 1 + self.num_models * len(self.system_features)

    @property
    def written(self) -> ObservationLayout:
        """Layout of what the loops write: for "compact", the numbers that it is computed from."""
        if self.embedding != "compact":
            return self
        return replace(self, embedding="index", system_features=COMPACT_SEEN)

    @property
    def query(self) -> slice:
        """The query: its embedding ("full"), its index ("index") or nothing ("compact")."""
        return slice(0, {"full": EMBED_DIM, "index": 1, "compact": 0}[self.embedding])

    @property
    def role(self) -> slice:
        """The role: its embedding ("full") or its index ("index"); empty unless scope is "call"."""
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

    def box(self, num_tasks: int, max_queue: float) -> spaces.Box:
        """Return the space of observations.

        Args:
            num_tasks: T; query indices are 0..T - 1.
            max_queue: upper bound of the queue features.
        """
        low, high = np.zeros(self.size, np.float32), np.ones(self.size, np.float32)
        low[self.query] = low[self.role] = -1.0
        if self.embedding == "index":
            high[self.query], high[self.role] = num_tasks - 1, len(ROLES) - 1
        if self.embedding == "compact":
            high[1] = MOST_ARRIVALS
            self.servers(low)[:], self.servers(high)[:] = np.array(list(COMPACT.values())).T
        longest = math.log(LONGEST_S) / LOG_SCALE
        if self.scope != "query":
            high[self.budget] = longest
        for feature, highest in (("queue", max_queue), ("in_flight", max_queue), ("e2e", longest)):
            if self.has(feature):
                high[self.system(feature)] = highest
        return spaces.Box(low, high, dtype=np.float32)

    def places(self, width: int) -> dict[str, Ints]:
        """Return the indices of each entry of the Dict form in an observation, (width,)."""
        index = np.arange(width)
        places = {"query": index[self.query], "role": index[self.role]}
        if self.scope != "query":
            resource = index[self.resource]
            places["budget"] = resource[:1]
            places["servers"] = resource[1:].reshape(-1, self.num_models).T
            places["plan"] = index[self.size :]  # at level "joint", the flag of plans
        return {name: entry for name, entry in places.items() if entry.size}

    def query_index(self, observation: Float32s) -> Ints:
        """Return the index of the query's task, shape (...). Only in "index" observations."""
        if self.embedding != "index":
            raise ConfigError(
                "the observation holds embeddings, not indices; make the environment with "
                'observation="index"'
            )
        return np.asarray(np.rint(observation[..., 0]), np.int64)

    def remaining_budget_s(self, observation: Float32s) -> Floats:
        """Return the seconds of budget that are left, shape (...); below 1 s it shows 1."""
        return np.exp(_float64(observation[..., self.budget]) * LOG_SCALE)

    def queue_depth_req(self, observation: Float32s) -> Floats:
        """Return the requests running and waiting at each model at the last poll, (..., M)."""
        return _float64(observation[..., self.system("queue")]) * self.queue_norm

    def e2e_s(self, observation: Float32s) -> Floats:
        """Return the mean end-to-end seconds of the calls that finished between polls, (..., M)."""
        return np.expm1(_float64(observation[..., self.system("e2e")]) * LOG_SCALE)

    def kv_frac(self, observation: Float32s) -> Floats:
        """Return the share of each model's KV cache in use at the last poll, (..., M)."""
        return _float64(observation[..., self.system("kv")])

    def in_flight_req(self, observation: Float32s) -> Floats:
        """Return the router's own calls at each model that are not answered by now, (..., M)."""
        return _float64(observation[..., self.system("in_flight")]) * self.queue_norm

    def servers(self, observation: Float32s) -> Float32s:
        """Return each model's numbers in a "compact" observation, (..., M, 7), as in COMPACT.

        Raises:
            ConfigError: the observation is of another form.
        """
        if self.embedding != "compact":
            raise ConfigError('make the environment with observation="compact"')
        rows: Float32s = observation[..., 2 : self.size]
        return rows.reshape(*observation.shape[:-1], self.num_models, len(COMPACT))


def _float64(values: Float32s) -> Floats:
    return np.asarray(values, np.float64)


_NO_EMBEDDINGS: Final = np.zeros((0, EMBED_DIM), np.float32)


@dataclass(frozen=True, eq=False)
class PolicySpec:
    """The public facts of a run. M models, S strategies, B budget tiers, T tasks, R roles.

    Nothing here depends on the run's seed: a policy may use all of it. Arrays are copied to the
    stated type and made read-only.
    """

    models: tuple[str, ...]  # (M,) aliases in the order of the action, for example "qwen-14b"
    strategies: tuple[str, ...]  # (S,) names in the order of the action: Flash, Concise, DeepThink
    layout: ObservationLayout  # where each quantity lies in an observation
    workload: str  # its name
    budget_tiers_s: Floats  # (B,) budgets that queries may carry
    model_share: Floats  # (M,) sums to 1: the measured oblivious mix of the workload
    strategy_share: Floats  # (S,) sums to 1: the measured mix of strategies
    # (M,) seconds of one call at light load, from the server card and the workload's median lengths
    expected_call_s: Floats
    ability: Floats  # (M,) logits: how good each model is at the workload
    max_num_seqs: Ints  # (M,) calls that a server runs at once, its KV cache allowing
    # (M,) number of each model's GPU: models with the same one share it. Empty: each has its own.
    gpu: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    queue_norm: float = 16.0  # requests at which the feature d_queue is 1
    scheduler: str = "edf"  # or "edf_late_last", "fcfs"
    metrics_poll_s: float = 5.0  # between two polls of the telemetry
    level: str = "executor"  # decisions that the policy makes; or "planner", "joint"
    # (T, 384) and (R, 384): rows are the query and role indices of an "index" observation.
    task_embeddings: Float32s = field(default_factory=lambda: _NO_EMBEDDINGS)
    role_embeddings: Float32s = field(default_factory=lambda: _NO_EMBEDDINGS)

    def __post_init__(self) -> None:
        """Convert every field."""
        if not len(self.gpu):
            object.__setattr__(self, "gpu", np.arange(len(self.models)))
        arrays: dict[str, NDArray[Any]] = {}
        for name in "budget_tiers_s", "model_share", "strategy_share", "expected_call_s", "ability":
            arrays[name] = np.array(getattr(self, name), np.float64)
        for name in "max_num_seqs", "gpu":
            arrays[name] = np.array(getattr(self, name), np.int64)
        for name in "task_embeddings", "role_embeddings":  # large: not copied
            arrays[name] = np.asarray(getattr(self, name), np.float32).view()
        for name, array in arrays.items():
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        for name in ("models", "strategies"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def num_models(self) -> int:
        """Number of models M."""
        return len(self.models)

    @property
    def num_strategies(self) -> int:
        """Number of strategies S."""
        return len(self.strategies)

    @property
    def num_actions(self) -> int:
        """Number of joint actions M * S."""
        return self.num_models * self.num_strategies

    def action(self, model: Any, strategy: Any) -> Any:
        """Return the action a = m * S + s of a model and a strategy, numbers or arrays."""
        return model * self.num_strategies + strategy

    def model_of(self, action: Ints) -> Ints:
        """Return the models m = a // S of an array of actions."""
        return action // self.num_strategies

    def strategy_of(self, action: Ints) -> Ints:
        """Return the strategies s = a % S of an array of actions."""
        return action % self.num_strategies

    def model_index(self, model: str) -> int:
        """Position of a model's alias; `ConfigError` names the nearest where there is none."""
        return _place("model", model, self.models)

    def strategy_index(self, strategy: str) -> int:
        """Position of a strategy's name; `ConfigError` names the nearest where there is none."""
        return _place("strategy", strategy, self.strategies)


def _place(kind: str, name: str, known: tuple[str, ...]) -> int:
    if name not in known:
        raise ConfigError(unknown(kind, name, known))
    return known.index(name)


class Compact:
    """Converter of observations with telemetry (COMPACT_SEEN) to "compact" ones, in a batch.

    Args:
        spec: facts of the run.
        rows: number of streams, each of which has a running mean of arrivals.
    """

    def __init__(self, spec: PolicySpec, rows: int) -> None:
        self.spec, self._layout = spec, spec.layout.written
        self._same_gpu = (spec.gpu[:, None] == spec.gpu).astype(np.float64)
        self._log_call = np.log(np.maximum(spec.expected_call_s, 1e-3))
        self._time_s, self._arrived, self._rate = np.zeros((3, rows))
        self._low, self._high = np.array(list(COMPACT.values())).T

    def forget(self, rows: Ints) -> None:
        """Begin new streams in some rows."""
        self._time_s[rows] = self._arrived[rows] = self._rate[rows] = 0.0

    def forget_begun(self, time_s: Any, query: Any, rows: Ints) -> None:
        """Begin new streams in the rows whose clock or query ordinal went back.

        For callers that do not know when streams begin, where every query has one call.
        """
        self.forget(rows[(time_s < self._time_s[rows]) | (query + 1 < self._arrived[rows])])

    def of(self, seen: Float32s, time_s: Any, query: Any, rows: Ints) -> Float32s:
        """Return the observations of the decisions that wait in `rows`, (n, 2 + 7 M).

        Columns behind those of the layout (at level "joint" the flag of plans) are kept.

        Args:
            seen: (n, d) observations in the form of `spec.layout.written`.
            time_s: (n,) instants of the decisions.
            query: (n,) ordinals of their queries, which tell how many have arrived.
            rows: (n,) streams.
        """
        layout, spec = self._layout, self.spec
        before_s, before = self._time_s[rows], self._arrived[rows]
        before = np.where(before == 0.0, query, before)  # a stream's first decision: one arrival
        arrived = np.maximum(query + 1.0, before)
        decayed = self._rate[rows] * np.exp((before_s - time_s) / ARRIVALS_OVER_S)
        rate = decayed + (arrived - before) * (60.0 / ARRIVALS_OVER_S)
        self._time_s[rows], self._arrived[rows], self._rate[rows] = time_s, arrived, rate
        # At the start the mean is over the seconds that have passed.
        per_min = rate / -np.expm1(-np.maximum(time_s, 1.0) / ARRIVALS_OVER_S)
        left_s = layout.remaining_budget_s(seen)
        own_load = layout.in_flight_req(seen) / spec.max_num_seqs
        end = 2 + spec.num_models * len(COMPACT)
        out = np.empty((len(rows), end + seen.shape[1] - layout.size), np.float32)
        out[:, 0] = np.log(left_s) / LOG_SCALE
        out[:, 1] = np.minimum(np.log1p(per_min) / LOG_SCALE, MOST_ARRIVALS)
        numbers = np.empty((len(COMPACT), len(rows), spec.num_models))
        numbers[0] = own_load
        numbers[1] = own_load @ self._same_gpu
        numbers[2] = layout.queue_depth_req(seen) / spec.max_num_seqs
        numbers[3] = seen[:, layout.system("e2e")]
        numbers[4] = (np.log(left_s)[:, None] - self._log_call - np.log1p(own_load)) / 3.0
        numbers[5] = self._log_call / LOG_SCALE
        numbers[6] = spec.ability
        numbers = np.moveaxis(numbers, 0, -1)
        out[:, 2:end] = np.clip(numbers, self._low, self._high).reshape(len(rows), -1)
        out[:, end:] = seen[:, layout.size :]
        return out


def observe(
    spec: PolicySpec,
    telemetry: Telemetry,
    in_flight: Ints,
    *,
    task: int,
    budget_s: float,
    role: int = -1,
) -> Float32s:
    """Return the observation of one decision, as `routing_kernel` writes it, for other callers.

    Args:
        spec: facts of the run.
        telemetry: the servers' metrics as they were read last.
        in_flight: (M,) the router's own calls that are not answered.
        task: index into `spec.task_embeddings`.
        budget_s: seconds of budget that are left.
        role: index into `spec.role_embeddings`; -1: a plan is due, not a route.

    Returns:
        (1, d), d = `spec.layout.written.size`, and at level "joint" one more.
    """
    layout = spec.layout.written
    out = np.zeros((1, layout.size + (spec.level == "joint")), np.float32)
    row = out[0]
    if layout.embedding == "full":
        row[layout.query] = spec.task_embeddings[task]
        row[layout.role] = spec.role_embeddings[role] if role >= 0 else 0.0
    else:
        row[layout.query], row[layout.role] = task, role
    row[layout.budget] = math.log(max(budget_s, 1.0)) / LOG_SCALE
    values = {
        "queue": np.asarray(telemetry.depth_req) / spec.queue_norm,
        "e2e": np.log1p(np.nan_to_num(telemetry.e2e_s)) / LOG_SCALE,
        "kv": np.asarray(telemetry.kv_frac),
        "in_flight": in_flight / spec.queue_norm,
    }
    for feature in layout.system_features:
        row[layout.system(feature)] = values[feature]
    if spec.level == "joint":
        row[-1] = role < 0
    return out
