"""Plans are the agent's, and somebody else carries them out: what `InfraMind-Planner-v0` runs on.

A built-in router carries plans out inside the compiled loop (level "planner" of the simulation).
Any other executor is a policy in Python: the simulation then stops at every call too (level
"joint"), and the policy is asked for its route until the query is over. Both look the same from
outside: one step is one plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing.config import EnvConfig, PlannerConfig
from inframind_gym.envs.routing.layout import EMBED_DIM
from inframind_gym.envs.routing.simulation import Leg, Simulation
from inframind_gym.errors import ActionError, ConfigError
from inframind_gym.policies import (
    ObservationLayout,
    Policy,
    PolicySpec,
    feedback_of,
    requires_of,
    resolve_policy,
)
from inframind_gym.simulator.workflow.dispatch import BEGIN, DECISION, PLAN_ACTIONS, STEP
from inframind_gym.simulator.workflow.params import ROUTERS
from inframind_gym.simulator.workflow.state import CONTEXT, IS_DUE

BUILT_IN: Final = ROUTERS[:-1]  # all but "none"
USUAL_FEATURES: Final = ("queue", "e2e")  # an executor that requires nothing sees these at least
_NO_CONTEXT: Final = np.zeros((), CONTEXT)
# Beside a stream's key: the executor's seed tells nothing of the stream.
_SEED_OF_EXECUTOR: Final = 1


class PlannerSimulation(Simulation):
    """E closed loops in which a step is one plan, carried out to the end of its query.

    Args:
        config: what to simulate, and who carries out the plans.
        num_envs: E.
        num_threads: as of `Simulation`.

    Attributes:
        config: as it was given.
        layout: of the planner's observation.

    Raises:
        ConfigError: as of `Simulation`; or there is no such executor, or it cannot carry out the
            plans of another.
    """

    def __init__(self, config: PlannerConfig, num_envs: int, num_threads: int = 1) -> None:
        self._executor = config.executor
        self._policy = None if config.executor in BUILT_IN else _find_executor(config.executor)
        requires = {} if self._policy is None else _requirements(self._policy, config)
        infra = config.system_features if config.observe == "infra" else ()
        shown: tuple[str, ...] = ()
        if self._policy is not None:
            usual = tuple(dict.fromkeys((*USUAL_FEATURES, *config.system_features)))
            shown = tuple(requires.get("system_features", usual))
        inner = config.model_dump(include=set(EnvConfig.model_fields))
        inner |= {
            "level": "planner" if self._policy is None else "joint",
            "observation": requires.get("observation", "index"),
            "system_features": shown + tuple(f for f in infra if f not in shown),
            "scheduler": requires.get("scheduler", config.scheduler),
        }
        super().__init__(
            EnvConfig.model_validate(inner),
            num_envs,
            one_query=True,
            controlled_router=config.executor if self._policy is None else None,
            num_threads=num_threads,
        )
        wide, self.config = self.layout, config
        self._wide = np.zeros((num_envs, self.observation_size), np.float32)
        self._set_executor(wide, requires.get("level", "executor"), shown)
        self._set_planner(wide, infra, "plan" if config.observe == "infra" else "query")

    def _set_executor(self, wide: ObservationLayout, level: str, shown: tuple[str, ...]) -> None:
        """Say what the executor sees, and find it in what the loops write."""
        self._executor_level = level
        self._executor_layout = replace(wide, system_features=shown)
        self._seen = np.arange(self._executor_layout.size)
        if level == "joint":  # with the flag of plans, which stands at the end
            self._seen = np.append(self._seen, self._wide.shape[1] - 1)
        self._feedback = None if self._policy is None else feedback_of(self._policy)
        self._joint = np.zeros((self.num_envs, PLAN_ACTIONS + 1), np.int64)
        self._call_rewards, self._call_costs = np.zeros(self.num_envs), np.zeros(self.num_envs)
        self._executor_is_stale = True
        self._amid = False

    def _set_planner(
        self, wide: ObservationLayout, infra: tuple[str, ...], scope: Literal["plan", "query"]
    ) -> None:
        """Say what the planner sees, and find it in what the loops write."""
        self.layout = replace(
            wide, embedding=self.config.embedding, system_features=infra, scope=scope
        )
        self.observation_size = self.layout.size
        columns = [wide.budget] if scope == "plan" else []
        for feature in infra:
            columns += range(wide.system(feature).start, wide.system(feature).stop)
        self._columns = np.array(columns, np.int64)
        # The last row is of no task: the query is over.
        nothing = np.zeros((1, EMBED_DIM), np.float32)
        self._embedding = np.concatenate([self.params.task_embedding, nothing])

    @property
    def title(self) -> str:
        """Name of these environments, for people."""
        return "InfraMind Planner"

    def executor_spec(self) -> PolicySpec:
        """The facts of the run as the executor sees them."""
        return replace(
            super().policy_spec(), layout=self._executor_layout, level=self._executor_level
        )

    def reset_executor(self) -> None:
        """Reset the executor when the next streams begin."""
        self._executor_is_stale = True

    def _drive(self, leg: Leg) -> None:
        if leg.mode == BEGIN:
            self._begin(leg.starts)
        if self._policy is None or leg.mode != STEP:
            super()._drive(leg._replace(observations=self._wide))
        else:
            self._carry_out(self._policy, leg)
        self._show(leg.rows, leg.contexts, leg.observations)

    def _begin(self, starts: NDArray[Any]) -> None:
        """Streams begin: reset the executor if it is to be, with a seed for every row."""
        self._amid = False
        if self._policy is None or not self._executor_is_stale:
            return
        self._executor_is_stale = False
        seeds = [
            int(np.random.SeedSequence((key, _SEED_OF_EXECUTOR)).generate_state(1, np.uint64)[0])
            for key in starts["key"].tolist()
        ]
        with _blame(self._executor):
            self._policy.reset(self.executor_spec(), seeds)

    def _carry_out(self, policy: Policy, leg: Leg) -> None:
        """Hand in the plans of `rows` and route their calls until their queries are over."""
        if self._amid:
            raise ConfigError(
                f"executor {self._executor!r} failed in the middle of a workflow: call "
                "reset() before step()"
            )
        self._amid = True
        self._joint[:, :PLAN_ACTIONS] = leg.actions
        rows, rewards, costs = leg.rows, leg.rewards, leg.costs
        rewards[rows] = costs[rows] = 0.0
        calls = leg._replace(
            actions=self._joint,
            observations=self._wide,
            rewards=self._call_rewards,
            costs=self._call_costs,
        )
        running = rows
        while len(running):
            super()._drive(calls._replace(rows=running))
            rewards[running] += self._call_rewards[running]
            costs[running] += self._call_costs[running]
            running = running[self.status[running] == DECISION]
            if len(running):
                self._joint[running, PLAN_ACTIONS] = self._routes(policy, running, leg.contexts)
                leg.contexts[running] = _NO_CONTEXT  # an episode that is over leaves no decision
        if self._feedback is not None:
            with _blame(self._executor):
                for row in rows.tolist():
                    self._feedback(self.completed(row), row)
        self._amid = False

    def _routes(
        self, policy: Policy, rows: NDArray[np.int64], contexts: NDArray[Any]
    ) -> NDArray[np.int64]:
        """The executor's routes for the calls that wait in `rows`, (n,)."""
        with _blame(self._executor):
            given = policy.act_batch(self._wide[np.ix_(rows, self._seen)], contexts[rows], rows)
        actions = np.asarray(given)
        joint = self._executor_level == "joint"
        wanted = (len(rows), PLAN_ACTIONS + 1) if joint else (len(rows),)
        if actions.dtype.kind not in "iu" or actions.shape != wanted:
            raise ActionError(
                f"executor {self._executor!r} gave {actions.dtype} of shape "
                f"{actions.shape}; expected integers of shape {wanted}"
            )
        routes = actions[:, PLAN_ACTIONS] if joint else actions
        wrong = (routes < 0) | (routes >= self.num_routes)
        if wrong.any():
            raise ActionError(
                f"executor {self._executor!r} gave route {routes[wrong][0]}; it must be in "
                f"0..{self.num_routes - 1}"
            )
        return routes

    def _show(
        self, rows: NDArray[np.int64], contexts: NDArray[Any], observations: NDArray[np.float32]
    ) -> None:
        """Write what the planner sees."""
        due = self.state.stream["live"][rows] == IS_DUE
        task = np.where(due, contexts["task"][rows], -1)
        query = self.layout.query
        if self.layout.embedding == "full":
            observations[rows, query] = self._embedding[task]
        else:
            observations[rows, 0] = task
        if len(self._columns):
            observations[rows, query.stop :] = self._wide[np.ix_(rows, self._columns)]


def _find_executor(name: str) -> Policy:
    try:
        return resolve_policy(name)
    except ConfigError as error:
        raise ConfigError(f"executor: {error} Built in: {', '.join(BUILT_IN)}.") from error


def _requirements(policy: Policy, config: PlannerConfig) -> dict[str, Any]:
    """Arguments that the executor insists on, checked against those given."""
    requires = requires_of(policy)
    name = f"executor {config.executor!r}"
    if "planner" in requires:
        raise ConfigError(
            f"{name} insists on a plan of its own, {requires['planner']}, and cannot carry out "
            "those of another; choose one that routes the calls of any plan"
        )
    if not getattr(policy, "carries_out_any_plan", True):
        raise ConfigError(
            f"{name} routes along plans of its own, and cannot carry out those of another; choose "
            "one that routes the calls of any plan"
        )
    if requires.get("level") == "planner":
        raise ConfigError(f"{name} plans and does not route; choose one that routes calls")
    scheduler = requires.get("scheduler", config.scheduler)
    if config.scheduler not in (None, scheduler):
        raise ConfigError(
            f"{name} insists on scheduler={scheduler!r}, the environment was made with "
            f"scheduler={config.scheduler!r}; leave it out or give the same"
        )
    return requires


@contextmanager
def _blame(name: str) -> Iterator[None]:
    """Add to whatever an executor raises, which is foreign code, who it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"raised by executor {name!r} of InfraMind-Planner-v0")
        raise
