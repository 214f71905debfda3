"""The `Policy` protocol: the one interface of the policies of all families.

A policy is reset once with the facts of the run and one seed per *row* (a row is one of the
environments that run side by side) and is then asked for the actions of several rows at once.
Everything that a policy draws or counts belongs to a row: the same row with the same seed must get
the same actions whether it runs alone or in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from inframind_gym.envs.core import Bools, Float32s, Floats, Ints
from inframind_gym.envs.layout import PolicySpec
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.simulator.rng import STREAM_POLICY, uniform_array
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.state import PLAN

REQUIRABLE: Final = ("level", "observation", "planner", "scheduler", "system_features")
"""Arguments of an environment that a policy may require: how queries are planned, what is observed,
how servers schedule. All others belong to the scenario and are the same for every policy."""

Context: TypeAlias = np.void
"""One record of the CONTEXT dtype (`inframind_gym.simulator.workflow.state`)."""

Contexts: TypeAlias = NDArray[np.void]
"""(n,) structured array of the CONTEXT dtype."""

Action: TypeAlias = int | Ints
"""A route, or an array of 8 or 9 numbers at the levels "planner" and "joint"."""

Completed: TypeAlias = NDArray[np.void]
"""(k,) structured array of the COMPLETED dtype: queries that finished during one step."""


# The facts of a run and the contexts of decisions; those of routing unless a family says otherwise.
Spec = TypeVar("Spec", default=PolicySpec)
Seen = TypeVar("Seen", default=Contexts)
_Spec = TypeVar("_Spec", default=PolicySpec, contravariant=True)
_Seen = TypeVar("_Seen", default=Contexts, contravariant=True)


@runtime_checkable
class Policy(Protocol[_Spec, _Seen]):
    """Decides for several rows at once.

    In routing, actions are routes (`PolicySpec.action`), plans or both, see
    `inframind_gym.policies`; in placement a number for each GPU, in teams one number.

    Some members are optional:

    - `observe(completed, row)`: called after every step with what finished in it, for policies that
      learn online. In routing `completed` holds queries of one `row`; in assignment it holds tasks
      of all rows, and `row` is an array with the row of each.
    - `carries_out_any_plan`: False if the policy can only route queries that it planned itself;
      it is then refused as an executor of InfraMind-Planner-v0.
    - `plan_single_calls()`: called once after `reset` where every query must be one call of one
      agent (division "route", gateway): until the next `reset` the policy makes only such plans.
      None, the default, if it has no such mode; it is then asked for routes only.
    - `requires`: required arguments of the environment, with keys from REQUIRABLE:
      `{"planner": {"topology": "IO", "num_agents": 5}}`, `{"level": "joint"}`,
      `{"observation": "full"}`.
    - `multiplier`: number, the λ of the constraint it was trained with; shown while it serves.
    - `bound`: True if it uses what no real policy can know: it is listed but never ranked.
      `sees_truth`: True if its contexts must also hold the latent state of a simulated team.
    """

    name: str

    def reset(self, spec: _Spec, seeds: Sequence[int]) -> None:
        """Forget everything and prepare for `len(seeds)` rows, one seed each."""

    def act_batch(self, observations: Float32s, contexts: _Seen, rows: Ints) -> Ints:
        """The actions of several rows at once.

        Args:
            observations: (n, d), one a row.
            contexts: (n,) structured array, or arrays with a first axis of n.
            rows: (n,) indices into the seeds of `reset`, each at most once.

        Returns:
            (n,) numbers, or (n, k) where an action has k parts.
        """


class BasePolicy(Generic[Spec, Seen]):
    """A policy; a subclass writes `act_batch`. What it remembers must be kept per row.

    Attributes:
        name: unique name, under which results are filed; the registry sets that of a built-in one.
        version: raised when its actions change; results of other versions are not reused.
        requires: required arguments of the environment.
        carries_out_any_plan: whether it can route queries that another policy has planned.
        plan_single_calls: method that limits its plans to one call a query; None: it has none.
        spec: the facts of the run.
        seeds: (rows,) uint64.
        decisions: (rows,) decisions made so far; a subclass that uses `uniform` counts them.
    """

    name: str = "policy"
    version: int = 1
    requires: Mapping[str, Any] = MappingProxyType({})
    carries_out_any_plan: bool = True
    plan_single_calls: Callable[[], None] | None = None
    spec: Spec
    seeds: NDArray[np.uint64]
    decisions: Ints

    def reset(self, spec: Spec, seeds: Sequence[int]) -> None:
        """Keep the facts of the run and the seed of every row."""
        self.spec = spec
        self.seeds = np.array([int(seed) % 2**64 for seed in seeds], np.uint64)
        self.decisions = np.zeros(len(seeds), np.int64)

    def act(self, observation: Float32s, context: Context) -> Action:
        """The action of row 0 alone."""
        contexts: Any = np.asarray(context).reshape(1)
        action = self.act_batch(np.asarray(observation)[None], contexts, np.zeros(1, np.int64))[0]
        return action if np.ndim(action) else int(action)

    def act_batch(self, observations: Float32s, contexts: Seen, rows: Ints) -> Ints:
        """The actions of `rows`; see `Policy.act_batch`."""
        raise NotImplementedError

    def draw(self, rows: Ints, ordinals: Ints, use: Ints | int = 0) -> Floats:
        """Return a uniform number (n,) per row: a function of its seed, `ordinals` and `use`."""
        return uniform_array(self.seeds[rows], STREAM_POLICY, ordinals, use)

    def uniform(self, rows: Ints, use: int) -> Floats:
        """Return a uniform number (n,) per row for the decision that is due."""
        return self.draw(rows, self.decisions[rows], use)


class ContextPolicy(BasePolicy[Spec, Seen]):
    """A policy that decides from the contexts alone, by `choose`."""

    def act_batch(self, observations: Float32s, contexts: Seen, rows: Ints) -> Ints:
        """Return the actions of the rows, by `choose`."""
        return np.asarray(self.choose(contexts, rows), np.int64)

    def choose(self, context: Seen, rows: Ints) -> Ints:
        """Return the actions of the rows (n,) whose state is `context`."""
        raise NotImplementedError


class JointPolicy(BasePolicy):
    """A policy that plans queries and routes their calls: at level "joint"."""

    requires: Mapping[str, Any] = MappingProxyType({"level": "joint"})

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Prepare for `len(seeds)` rows.

        Raises:
            ConfigError: the policy does not plan here.
        """
        super().reset(spec, seeds)
        if spec.level != "joint":
            wanted = ", ".join(f"{key}={value!r}" for key, value in requires_of(self).items())
            raise ConfigError(
                f"policy {self.name!r} plans and routes: make the environment with {wanted}"
            )

    def act_batch(self, observations: Float32s, contexts: Contexts, rows: Ints) -> Ints:
        """Return the actions (n, 9) of `rows`: a plan or a route, whichever is due."""
        actions = np.zeros((len(rows), PLAN_ACTIONS + 1), np.int64)
        is_plan = contexts["kind"] == PLAN
        plan, route = np.flatnonzero(is_plan), np.flatnonzero(~is_plan)
        if len(plan):  # `take` is several times as fast as an index
            seen, due = observations.take(plan, axis=0), contexts.take(plan)
            actions[plan, :-1] = self.plans(seen, due, rows[plan])
        if len(route):
            seen, due = observations.take(route, axis=0), contexts.take(route)
            actions[route, -1] = self.routes(seen, due, rows[route])
        self.decisions[rows] += 1
        return actions

    def plans(self, observations: Float32s, contexts: Contexts, rows: Ints) -> Ints:
        """Return plans (n, 8) of queries that have just arrived, in different rows."""
        raise NotImplementedError

    def routes(self, observations: Float32s, contexts: Contexts, rows: Ints) -> Ints:
        """Return routes (n,) of calls that are ready, in different rows."""
        raise NotImplementedError


def with_room(array: NDArray[Any], queries: Ints) -> NDArray[Any]:
    """Return `array` (rows, queries, ...), padded with zeros until all `queries` index axis 1."""
    room, needed = array.shape[1], int(queries.max()) + 1
    more = max(needed, 2 * room, 64) - room if needed > room else 0
    return np.pad(array, ((0, 0), (0, more), *[(0, 0)] * (array.ndim - 2))) if more else array


def models_up(contexts: Contexts, num_models: int) -> Bools:
    """Models that may be chosen, (n, M): those that are up, or all where none is."""
    bits = np.uint32(1) << np.arange(num_models, dtype=np.uint32)
    up: Bools = (np.asarray(contexts["models_up"])[:, None] & bits) != 0
    up[~up.any(axis=1)] = True
    return up


def first_up(start: Ints, up: Bools) -> Ints:
    """The first model that is up at or after `start` (n,), going round; `up` is (n, M)."""
    num_models = up.shape[1]
    order = (start[:, None] + np.arange(num_models)) % num_models
    ahead = np.take_along_axis(up, order, axis=1).argmax(axis=1)
    return np.asarray((start + ahead) % num_models, np.int64)


def place_in(mask: Bools, u: Floats) -> Ints:
    """Return one true column a row of `mask` (n, k), all equally likely for uniform `u` (n,)."""
    place = np.floor(u * mask.sum(axis=1)).astype(np.int64) + 1
    return np.asarray((np.cumsum(mask, axis=1) >= place[:, None]).argmax(axis=1))


def draw_from(weights: Floats, u: Floats) -> Ints:
    """Draw one column (n,) a row in proportion to `weights` (n, k), with uniform `u` (n,)."""
    edges = np.cumsum(weights, axis=1)
    return np.asarray((edges <= (u * edges[:, -1])[:, None]).sum(axis=1), np.int64)


def multiplier_of(owner: object) -> float | None:
    """The λ of a policy or its trainer, its `multiplier`."""
    multiplier = getattr(owner, "multiplier", None)
    return float(multiplier) if isinstance(multiplier, Real) else None


def requires_of(policy: Any) -> dict[str, Any]:
    """Arguments of the environment that the policy requires.

    Raises:
        ConfigError: an argument is not in REQUIRABLE.
    """
    requires: Mapping[str, Any] = getattr(policy, "requires", {})
    for argument in requires:
        if argument not in REQUIRABLE:
            problem = unknown("argument", argument, REQUIRABLE)
            raise ConfigError(f"policy {policy.name!r}: requires: {problem}")
    return dict(requires)
