"""The package's learned agent: one network that plans queries and routes calls, played with NumPy.

The servers are a set. One small network reads each of them, with the call that waits; the mean of
what it says stands for the pool. What a server is follows from public facts: seconds of a call,
ability, slots. So the same weights play any number of servers, and models they have not seen.

`encode`, `route_logits` and `plan_logits` are written once: the training calls them with tensors of
torch, a game with arrays. Checkpoints come from `agents/ppo_lagrangian.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from inframind_gym.configs import Number, PositiveInt, validate
from inframind_gym.envs.layout import EMBED_DIM, PolicySpec
from inframind_gym.errors import ConfigError
from inframind_gym.policies.base import BasePolicy, Contexts, models_up
from inframind_gym.policies.bid_price import role_orders
from inframind_gym.policies.checkpoint import (
    CONFIG_FILE,
    SHIPPED,
    check_shapes,
    fingerprint,
    load,
)
from inframind_gym.policies.networks import draw, log_softmax
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.state import PLAN
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, MAX_NODES, TOPOLOGIES
from inframind_gym.tasks import DOMAINS

NAME: Final = "ppo_lagrangian"
SAMPLE: Final = "sample"
SYSTEM_FEATURES: Final = ("queue", "e2e", "kv", "in_flight")
PLANS: Final = (len(TOPOLOGIES), MAX_AGENTS, len(RoleRule))  # topology, agents less one, roles
NUM_PLANS: Final = math.prod(PLANS)

CALL: Final = 10 + len(TOPOLOGIES) + len(DOMAINS)  # numbers of the decision that waits
LOAD: Final = 5  # numbers of a server that change
SERVER: Final = LOAD + 2 + 3  # with two on the budget and three that never change
QUERY, ROLE = 16, 8  # widths of what texts say
_RATE_WINDOW_S: Final = 60.0
_RATE_PRIOR: Final = (1.0, 0.05)  # arrivals in minutes that are assumed at the start

Array = Any  # of NumPy, or a tensor of torch
Floats = NDArray[np.floating[Any]]


def shapes(num_strategies: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of every parameter; matrices are (inputs, outputs)."""
    sizes = {
        "query": (EMBED_DIM, QUERY),
        "role": (EMBED_DIM, ROLE),
        "call": (CALL + QUERY + ROLE, hidden),
        "server": (SERVER + hidden, hidden),
        "pool": (2 * hidden, hidden),
        "route": (2 * hidden, hidden),
        "route_out": (hidden, num_strategies),
        "plan": (hidden, hidden),
        "plan_out": (hidden, NUM_PLANS),
    }
    found: dict[str, tuple[int, ...]] = {}
    for name, size in sizes.items():
        found |= {name: size, f"{name}_bias": size[1:]}
    return found


class Seen(NamedTuple):
    """Decisions of n rows as the network sees them."""

    task: Array  # (n,) index
    role: Array  # (n,) index; the one after the last: none, a plan is due
    call: Array  # (n, CALL)
    server: Array  # (n, M, SERVER)


def embed(w: Mapping[str, Array], tasks: Array, roles: Array, act: Any) -> tuple[Array, Array]:
    """Return the parts (T, QUERY) and (R + 1, ROLE) of the network that only texts decide.

    Args:
        w: the weights.
        tasks: (T, 384) embeddings of questions.
        roles: (R + 1, 384) of roles, the last one 0.
        act: the activation, of the arrays' library.
    """
    return act(tasks @ w["query"] + w["query_bias"]), act(roles @ w["role"] + w["role_bias"])


def encode(
    w: Mapping[str, Array], texts: tuple[Array, Array], seen: Seen, act: Any, cat: Any
) -> tuple[Array, Array, Array]:
    """Return what is made of servers (n, M, H) and pool (n, H), and the state (n, 2 · H).

    Args:
        w: the weights.
        texts: of `embed`.
        seen: the decisions.
        act: the activation, of the arrays' library.
        cat: joins arrays along the last axis.
    """
    parts = (seen.call, texts[0][seen.task], texts[1][seen.role])
    call = act(cat(parts) @ w["call"] + w["call_bias"])
    of_call = call @ w["server"][SERVER:] + w["server_bias"]
    server = act(seen.server @ w["server"][:SERVER] + of_call[:, None])
    state = cat((call, server.mean(1)))
    return server, act(state @ w["pool"] + w["pool_bias"]), state


def route_logits(w: Mapping[str, Array], server: Array, pool: Array, act: Any) -> Array:
    """Return logits of routes (n, M, S); arguments as of `encode`."""
    hidden = pool.shape[-1]
    of_pool = pool @ w["route"][hidden:] + w["route_bias"]
    return (
        act(server @ w["route"][:hidden] + of_pool[:, None]) @ w["route_out"] + w["route_out_bias"]
    )


def plan_logits(w: Mapping[str, Array], pool: Array, act: Any) -> Array:
    """Return logits of plans (n, NUM_PLANS); arguments as of `encode`."""
    return act(pool @ w["plan"] + w["plan_bias"]) @ w["plan_out"] + w["plan_out_bias"]


class Eyes:
    """Makes what the network sees of observations and contexts.

    It remembers, per row, how many queries have arrived of late.

    Args:
        spec: the facts of the run.
        rows: how many.

    Attributes:
        rates_per_min: (rows,) arrivals, over the last minute.
    """

    def __init__(self, spec: PolicySpec, rows: int) -> None:
        self._layout, self._slots = spec.layout, spec.max_num_seqs / spec.queue_norm
        self._log_call = np.log(spec.expected_call_s)
        facts = (self._log_call - 2.0, spec.ability, np.log(spec.max_num_seqs / 16.0))
        self._facts = np.stack(facts, axis=1) / 2.0
        self._log_most = np.log(60.0 * (spec.max_num_seqs / spec.expected_call_s).sum())
        self._no_role = len(spec.role_embeddings)
        self._seen_s = np.zeros(rows)
        self._counts = np.tile(_RATE_PRIOR, (rows, 1))

    @property
    def rates_per_min(self) -> Floats:
        """(rows,) arrivals a minute."""
        return np.asarray(self._counts[:, 0] / self._counts[:, 1])

    def see(self, observations: Floats, contexts: Contexts, rows: NDArray[np.int64]) -> Seen:
        """Return what is seen of the decisions of some rows, as float32."""
        is_plan = contexts["kind"] == PLAN
        routed, now_s = ~is_plan, contexts["time_s"]
        kept = np.exp(-np.maximum(now_s - self._seen_s[rows], 0.0) / _RATE_WINDOW_S)
        self._seen_s[rows] = now_s
        self._counts[rows, 0] = self._counts[rows, 0] * kept + is_plan
        self._counts[rows, 1] = self._counts[rows, 1] * kept + _RATE_WINDOW_S / 60.0 * (1.0 - kept)
        log_rate = np.log(self.rates_per_min[rows])

        system = {name: observations[:, self._layout.system(name)] for name in SYSTEM_FEATURES}
        queued, sent = system["queue"] / self._slots, system["in_flight"] / self._slots
        parts = (np.log1p(queued), np.minimum(queued, 1.0), np.log1p(sent), np.minimum(sent, 1.0))
        load = np.stack([*parts, system["kv"]], axis=2)
        log_wait = system["e2e"] * math.log(300.0)  # of the seconds that calls took of late
        log_left = observations[:, self._layout.budget] * math.log(300.0)
        server = np.empty((*load.shape[:2], SERVER), np.float32)
        server[..., :LOAD] = load
        server[..., LOAD] = np.clip(log_left[:, None] - self._log_call - load[..., 2], -4, 4) / 2
        server[..., LOAD + 1] = np.clip(log_left[:, None] - log_wait, -4, 4) / 2
        server[..., LOAD + 2 :] = self._facts

        topology = routed[:, None] & (contexts["topology"][:, None] == np.arange(len(TOPOLOGIES)))
        call = (
            log_left / 3.0 - 1.0,
            np.minimum(np.exp(log_left) / 300.0, 3.0),
            np.log(np.maximum(contexts["budget_s"], 1.0)) / 3.0 - 1.0,
            is_plan,
            routed * contexts["wave"] / 4.0,
            routed * (contexts["num_waves"] - contexts["wave"]) / 4.0,
            routed * contexts["node"] / MAX_NODES,
            routed * contexts["num_agents"] / MAX_AGENTS,
            log_rate / 2.0 - 2.0,
            log_rate - self._log_most + 2.0,
            topology,
            contexts["domain"][:, None] == np.arange(len(DOMAINS)),
        )
        role = np.where(is_plan, self._no_role, contexts["role"]).astype(np.int64)
        columns = np.column_stack(call).astype(np.float32)
        return Seen(contexts["task"].astype(np.int64), role, columns, server)


class Player:
    """Log-probabilities of actions, in NumPy.

    Args:
        weights: as `shapes` says.
        spec: the facts of the run.
        dtype: of the arithmetic. In float64 an action does not depend on the rows beside it.
    """

    def __init__(self, weights: Mapping[str, Floats], spec: PolicySpec, dtype: Any) -> None:
        self._w = {name: np.asarray(array, dtype) for name, array in weights.items()}
        self._dtype = dtype
        roles = np.vstack([spec.role_embeddings, np.zeros((1, EMBED_DIM), np.float32)])
        tasks = np.asarray(spec.task_embeddings, dtype)
        self._texts = embed(self._w, tasks, roles.astype(dtype), _relu)

    def log_probs(
        self, seen: Seen, up: NDArray[np.bool_], is_plan: NDArray[np.bool_]
    ) -> tuple[Floats, Floats]:
        """Return log-probabilities of routes (k, M·S) and of plans (n - k, NUM_PLANS).

        Args:
            seen: n decisions.
            up: (n, M) models that may be chosen.
            is_plan: (n,) a plan is due and not a route.
        """
        call, server = seen.call.astype(self._dtype), seen.server.astype(self._dtype)
        seen = seen._replace(call=call, server=server)
        server, pool, _ = encode(self._w, self._texts, seen, _relu, _cat)
        is_route = ~is_plan
        routes = route_logits(self._w, server[is_route], pool[is_route], _relu)
        routes[~up[is_route]] = -np.inf
        plans = plan_logits(self._w, pool[is_plan], _relu)
        return log_softmax(routes.reshape(-1, math.prod(routes.shape[1:]))), log_softmax(plans)


def _relu(array: Floats) -> Floats:
    return np.maximum(array, 0.0, out=array)


def _cat(arrays: Sequence[Floats]) -> Floats:
    return np.concatenate(arrays, axis=-1)


class Plans:
    """Actions of the plans that the network chooses among.

    Args:
        spec: the facts of the run.
    """

    def __init__(self, spec: PolicySpec) -> None:
        self._roles = role_orders(spec.task_embeddings, spec.role_embeddings)

    def actions(self, plans: NDArray[np.int64], contexts: Contexts) -> NDArray[np.int64]:
        """Return plans (n,) as actions (n, 8), the roles that fit the question best first."""
        topology, agents, rule = np.unravel_index(plans, PLANS)
        roles = self._roles[contexts["task"], contexts["domain"], rule]
        return np.column_stack([topology, agents, roles])


class PpoLagrangianCheckpoint(BaseModel):
    """Keys of `config.json` that are read."""

    num_strategies: PositiveInt
    hidden: PositiveInt  # width of the layers
    multiplier: Number | None = None  # λ


class PpoLagrangianPolicy(BasePolicy):
    """The likeliest actions of a checkpoint's network, on any pool and workload.

    Args:
        checkpoint: folder of a checkpoint; without it the shipped one.
        mode: "sample" draws actions, as in training.

    Raises:
        ConfigError: there is no such checkpoint, it is damaged, or of another network.
    """

    name = NAME
    version = 2

    def __init__(self, checkpoint: str | None = None, mode: str | None = None) -> None:
        if mode not in (None, SAMPLE):
            raise ConfigError(f"mode is {mode!r}; it is {SAMPLE!r} or left out.")
        self.folder = Path(checkpoint) if checkpoint else SHIPPED / NAME
        self.name = ":".join((NAME, *(a for a in (checkpoint, mode) if a is not None)))
        self.sample = mode == SAMPLE
        self._weights, self._config = _open(self.folder)
        self.fingerprint = fingerprint(self.folder)  # results of others are not these
        self.multiplier = self._config.multiplier
        self.requires = {"level": "joint", "system_features": list(SYSTEM_FEATURES)}

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Prepare for `len(seeds)` rows.

        Raises:
            ConfigError: the level is another, or the number of strategies.
        """
        super().reset(spec, seeds)
        if spec.num_strategies != self._config.num_strategies:
            raise ConfigError(
                f"{self.folder}: was trained for {self._config.num_strategies} strategies; "
                f"here are {spec.num_strategies}."
            )
        if spec.level != "joint" or not len(spec.task_embeddings):
            raise ConfigError(
                f"policy {self.name!r} plans and routes: make the environment with "
                'level="joint" and what else `requires` says.'
            )
        self._eyes, self._plans = Eyes(spec, len(seeds)), Plans(spec)
        self._player = Player(self._weights, spec, np.float64)

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the actions (n, 9) of `rows`: a plan or a route, whichever is due."""
        seen = self._eyes.see(observations, contexts, rows)
        up = models_up(contexts, self.spec.num_models)
        is_plan = contexts["kind"] == PLAN
        actions = np.zeros((len(rows), PLAN_ACTIONS + 1), np.int64)
        routes, plans = self._player.log_probs(seen, up, is_plan)
        chosen = self._choose(plans, rows[is_plan])
        actions[is_plan, :PLAN_ACTIONS] = self._plans.actions(chosen, contexts[is_plan])
        actions[~is_plan, PLAN_ACTIONS] = self._choose(routes, rows[~is_plan])
        self.decisions[rows] += 1
        return actions

    def _choose(self, log_probs: Floats, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.sample:
            return draw(log_probs, self.uniform(rows, 0))
        return np.asarray(log_probs.argmax(axis=1), np.int64)


def _open(folder: Path) -> tuple[dict[str, Floats], PpoLagrangianCheckpoint]:
    """Return weights and keys of a checkpoint that fit one another."""
    weights, content = load(folder)
    config = validate(content, PpoLagrangianCheckpoint, source=str(folder / CONFIG_FILE))
    check_shapes(folder, weights, shapes(config.num_strategies, config.hidden))
    return weights, config
