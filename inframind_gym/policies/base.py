"""The `Policy` protocol: the one interface behind which everything that routes stands.

A policy is reset once with the facts of the run and one seed per *row* (a row is one of the
environments that run side by side) and is then asked for an action whenever a call is ready.
Everything that a policy draws or counts belongs to a row: the same row with the same seed must get
the same actions whether it runs alone or in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing.spec import PolicySpec
from inframind_gym.errors import ConfigError, unknown

REQUIRABLE: Final = ("level", "observation", "planner", "scheduler", "system_features")
"""Arguments of an environment that belong to the router: how it plans, what it looks at, in which
order it asks the servers to serve. All others are the world's, the same for every policy."""

Context: TypeAlias = np.void
"""One record of the CONTEXT dtype (`inframind_gym.simulator.workflow.state`)."""

Contexts: TypeAlias = NDArray[np.void]
"""(n,) structured array of the CONTEXT dtype."""

Action: TypeAlias = int | NDArray[np.int64]
"""A route, or an array of 8 or 9 numbers at the levels "planner" and "joint"."""

Completed: TypeAlias = NDArray[np.void]
"""(k,) structured array of the COMPLETED dtype: queries that finished during one step."""


@runtime_checkable
class Policy(Protocol):
    """Chooses the model and the strategy of every call.

    At level "executor" an action is a route (`PolicySpec.action`). At level "planner" it is a plan,
    eight numbers: topology, agents less one, and the role of each of six agents within the query's
    domain. At level "joint" it is a plan and a route, nine numbers, of which only those that the
    decision's kind needs are read: `contexts["kind"]` is PLAN or ROUTE
    (`inframind_gym.simulator.workflow.state`).

    Four members are optional:

    - `observe(completed, row)`: called after every step with the queries of `row` that finished in
      it, for policies that learn online.
    - `carries_out_any_plan`: False where a policy routes only queries that it has planned itself;
      such a one is no executor of InfraMind-Planner-v0.
    - `requires`: arguments of the environment that a policy insists on, some of REQUIRABLE:
      `{"planner": {"topology": "IO", "num_agents": 5}}`, `{"level": "joint"}`,
      `{"observation": "full"}`.
    - `multiplier`: the λ of the constraint that it was trained with, a number; shown to those who
      watch a router.
    """

    name: str

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Forget everything and prepare for `len(seeds)` rows, one seed each."""

    def act(self, observation: NDArray[np.float32], context: Context) -> Action:
        """The action of row 0, from its observation (d,) and its context."""

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The actions of several rows at once.

        Args:
            observations: (n, d), one a row.
            contexts: (n,) structured array.
            rows: (n,) which of the rows given to `reset` these are, each at most once.

        Returns:
            (n,) routes, or (n, 8) and (n, 9) numbers at the levels "planner" and "joint": what
            `act` would give for each row on its own.
        """


class BasePolicy:
    """A policy of which only one of `act` and `act_batch` has to be written.

    The other follows: `act` asks `act_batch` for one row, `act_batch` asks `act` row after row with
    `self.row` set. `reset` keeps `self.spec` and `self.seeds`, an (n,) uint64 array. What a
    subclass remembers between decisions must be kept per row. A class that has only `act` and is
    loaded by path gets one instance a row and so needs no care (`inframind_gym.policies.loading`).

    Attributes:
        name: unique name, under which results are filed.
        version: raised by a change that alters its actions; results of another are not reused.
        requires: arguments of the environment that the policy insists on.
        carries_out_any_plan: whether it routes queries that somebody else has planned.
        row: the row that `act` is asked for.
    """

    name: str = "policy"
    version: int = 1
    requires: Mapping[str, Any] = MappingProxyType({})
    carries_out_any_plan: bool = True
    row: int = 0
    spec: PolicySpec
    seeds: NDArray[np.uint64]

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Keep the facts of the run and the seed of every row."""
        self.spec = spec
        self.seeds = np.array([int(seed) % 2**64 for seed in seeds], np.uint64)
        self.row = 0

    def act(self, observation: NDArray[np.float32], context: Context) -> Action:
        """The action of `self.row` (row 0 unless set)."""
        if type(self).act_batch is BasePolicy.act_batch:
            raise TypeError(f"{type(self).__name__} must define act or act_batch")
        contexts = np.asarray(context).reshape(1)
        rows = np.array([self.row], np.int64)
        action = self.act_batch(np.asarray(observation)[None], contexts, rows)[0]
        return action if np.ndim(action) else int(action)

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The actions of `rows`, one call of `act` each."""
        if type(self).act is BasePolicy.act:
            raise TypeError(f"{type(self).__name__} must define act or act_batch")
        actions = []
        for i, row in enumerate(rows.tolist()):
            self.row = row
            actions.append(self.act(observations[i], contexts[i]))
        self.row = 0
        return stack_actions(actions)


def stack_actions(actions: Sequence[Any]) -> NDArray[Any]:
    """The actions of several rows as one array; of objects where they are no integers (2.7, NaN).

    Who asked checks the array, and can name the wrong action.
    """
    try:
        stacked = np.array(actions, None if len(actions) else np.int64)
    except ValueError:  # of different shapes
        stacked = np.zeros(0)
    return stacked if stacked.dtype.kind in "iu" else np.fromiter(actions, object, len(actions))


def models_up(contexts: Contexts, num_models: int) -> NDArray[np.bool_]:
    """Models that may be chosen.

    Args:
        contexts: (n,) structured array with the bit mask `models_up`.
        num_models: number of models M.

    Returns:
        (n, M) booleans; all true where every model is down, for then no choice is better.
    """
    bits = np.uint32(1) << np.arange(num_models, dtype=np.uint32)
    up: NDArray[np.bool_] = (np.asarray(contexts["models_up"])[:, None] & bits) != 0
    up[~up.any(axis=1)] = True
    return up


def feedback_of(policy: Policy) -> Callable[[Completed, int], None] | None:
    """The policy's `observe(completed, row)`, or None where it does not learn online."""
    observe: Callable[[Completed, int], None] | None = getattr(policy, "observe", None)
    return observe


def multiplier_of(owner: object) -> float | None:
    """The λ of a policy or of what trains one, or None where it has none.

    Args:
        owner: its `multiplier` is a number, or has the number as its `value`.
    """
    multiplier = getattr(owner, "multiplier", None)
    value = getattr(multiplier, "value", multiplier)
    return float(value) if isinstance(value, Real) else None


def requires_of(policy: Policy) -> dict[str, Any]:
    """Arguments of the environment that the policy insists on.

    Raises:
        ConfigError: an argument that is not a policy's to choose.
    """
    requires: Mapping[str, Any] = getattr(policy, "requires", {})
    for argument in requires:
        if argument not in REQUIRABLE:
            problem = unknown("argument", argument, REQUIRABLE)
            raise ConfigError(f"policy {policy.name!r}: requires: {problem}")
    return dict(requires)
