"""Many environments in one compiled batch: `gym.make_vec("InfraMind-Stream-v0", num_envs=1024)`."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter, Signature, signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.batch import BatchEnv
from inframind_gym.envs.routing.actions import action_mask, action_space
from inframind_gym.envs.routing.base import RESET_OPTIONS
from inframind_gym.envs.routing.config import env_config, planner_config
from inframind_gym.envs.routing.executor import ExecutorEnv
from inframind_gym.envs.routing.observation import observation_space
from inframind_gym.envs.routing.planner import PlannerEnv
from inframind_gym.envs.routing.planner_simulation import PlannerSimulation
from inframind_gym.envs.routing.simulation import DECISION, STREAM_OVER, Simulation
from inframind_gym.envs.routing.spec import PolicySpec
from inframind_gym.envs.routing.stream import StreamEnv
from inframind_gym.errors import ConfigError, unknown


class InfraMindVectorEnv(BatchEnv):
    """E environments that step together; row i does what a single environment of its seed does.

    Autoreset is SAME_STEP: where an episode ends, `infos["final_obs"]` and `infos["final_info"]`
    tell how, and the observation is the first of the next episode. The rewards, costs and records
    of a row are always those of the step that was taken.

    Args:
        num_envs: E.
        one_query: Executor and Planner (one query is an episode) or Stream (a stream is).
        arguments: as of the single environments.

    `reset(seed=…, options=…)`: the options `arrival_rate_per_min` and `budget_s` are numbers, or
    arrays (E,) with one number an environment; a budget of NaN is drawn from the tiers.
    """

    def __init__(self, num_envs: int, *, one_query: bool, **arguments: Any) -> None:
        super().__init__(num_envs, arguments)
        self._one_query = one_query
        self.simulation = self._simulate(arguments)
        self.config = self.simulation.config
        self._set_spaces(observation_space(self.simulation), action_space(self.simulation))
        self._rates = np.full(num_envs, self.config.arrival_rate_per_min)
        budget = np.nan if self.config.budget_s is None else self.config.budget_s
        self._budgets = np.full(num_envs, budget)
        _, self._contexts = self.simulation.buffers()
        self._completed: tuple[NDArray[np.int64], NDArray[Any]] | None = None

    def _simulate(self, arguments: dict[str, Any]) -> Simulation:
        """Check the arguments and make the closed loops."""
        return Simulation(env_config(arguments), self.num_envs, one_query=self._one_query)

    def contexts(self) -> NDArray[Any]:
        """(E,) CONTEXT: the decisions that wait."""
        return self._contexts.copy()

    def completed(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """The agent's queries that ended in the last step: (k,) environments, (k,) COMPLETED."""
        if self._completed is None:
            self._completed = self.simulation.completed_batch()
        return self._completed

    def calls(self, env: int) -> NDArray[Any]:
        """Calls of the current stream of an environment that are done; needs `record_calls`."""
        return self.simulation.calls(env)

    def policy_spec(self) -> PolicySpec:
        """The public facts of the run, for `Policy.reset`."""
        return self.simulation.policy_spec()

    def action_masks(self) -> NDArray[np.bool_]:
        """(E, M·S) routes to models that are up; at other levels as of the single environments."""
        mask = action_mask(self.simulation, self.simulation.models_up, self._highs)
        return np.tile(mask, (self.num_envs, 1))

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start a new stream everywhere.

        Args:
            seed: of environment 0 (environment i takes seed + i), or one a environment.
            options: see the class.
        """
        self._set_options(options)
        self._begin(seed)
        observations, self._contexts = self.simulation.buffers()
        self._start(np.arange(self.num_envs), observations, inside=self._one_query)
        self._completed = None
        return observations, self._infos(np.zeros(self.num_envs))

    def step(
        self, actions: Any
    ) -> tuple[
        NDArray[np.float32],
        NDArray[np.float64],
        NDArray[np.bool_],
        NDArray[np.bool_],
        dict[str, Any],
    ]:
        """Carry out one action in every environment.

        Raises:
            ActionError: an action out of range.
            ConfigError: `reset` was not called.
        """
        checked = self._check(actions)
        observations, self._contexts = self.simulation.buffers()
        rewards, costs = np.empty(self.num_envs), np.empty(self.num_envs)
        status = self.simulation.step(checked, observations, self._contexts, rewards, costs)
        terminations = status != DECISION
        self._episode_costs += costs
        self._episode_rewards += rewards
        self._completed = None  # gathered when asked for
        infos = self._infos(costs)
        if terminations.any():
            self._completed = self.simulation.completed_batch()
            self._end(np.flatnonzero(terminations), observations, infos)
        truncations = np.zeros(self.num_envs, np.bool_)
        return observations, rewards, terminations, truncations, infos

    def _begin_again(self, rows: NDArray[np.int64], observations: NDArray[np.float32]) -> None:
        if self._one_query:
            self.simulation.resume(rows, observations, self._contexts)
            rows = rows[self.simulation.status[rows] == STREAM_OVER]
        if len(rows):
            self._start(rows, observations, inside=False)

    def _summary(
        self, over: NDArray[np.bool_], rewards: NDArray[np.float64], costs: NDArray[np.float64]
    ) -> dict[str, NDArray[Any]]:
        if not self._one_query:
            queries = self.simulation.num_queries
            return {
                "queries": np.where(over, queries, 0),
                "solve_rate": rewards / queries,
                "mean_cost": costs / queries,
            }
        rows, records = self.completed()
        summary: dict[str, NDArray[Any]] = {}
        for key in ("solved", "latency_s", "budget_s"):
            summary[key] = np.zeros(self.num_envs, np.int64 if key == "solved" else np.float64)
            summary[key][rows] = records[key]
        return summary

    def _start(
        self, rows: NDArray[np.int64], observations: NDArray[np.float32], *, inside: bool
    ) -> None:
        self.simulation.start(
            rows,
            [self._generators[row] for row in rows.tolist()],
            self._rates[rows],
            self._budgets[rows],
            observations,
            self._contexts,
            inside=inside,
        )

    def _set_options(self, options: dict[str, Any] | None) -> None:
        numbers: dict[str, NDArray[np.float64]] = {}
        for key, value in (options or {}).items():
            if key not in RESET_OPTIONS:
                raise ConfigError(f"reset: {unknown('option', key, RESET_OPTIONS)}")
            numbers[key] = self._per_row(key, value)
        self._rates = numbers.get("arrival_rate_per_min", self._rates)
        self._budgets = numbers.get("budget_s", self._budgets)

    def _per_row(self, key: str, value: Any) -> NDArray[np.float64]:
        """An option as (E,) numbers; a budget of NaN stands for the tiers."""
        try:
            rows = np.broadcast_to(np.asarray(value, np.float64), (self.num_envs,)).copy()
        except (TypeError, ValueError):
            rows = np.zeros(self.num_envs)
        drawn = np.isnan(rows) & (key == "budget_s")
        if not (drawn | (np.isfinite(rows) & (rows > 0))).all():
            raise ConfigError(
                f"{key} must be a positive, finite number or {self.num_envs} of them, got {value!r}"
            )
        return rows


def signature_in_a_batch(single: type) -> Signature:
    """Signature of a vector environment: `num_envs`, and the arguments of the single one."""
    num_envs = Parameter("num_envs", Parameter.KEYWORD_ONLY, default=1, annotation="int")
    shared = signature(single).parameters.values()
    return Signature([num_envs, *(p for p in shared if p.name not in ("render_mode", "others"))])


class ExecutorVectorEnv(InfraMindVectorEnv):
    """`InfraMind-Executor-v0` in a batch; arguments as of `ExecutorEnv`."""

    __signature__ = signature_in_a_batch(ExecutorEnv)

    def __init__(self, num_envs: int = 1, **arguments: Any) -> None:
        super().__init__(num_envs, one_query=True, **arguments)


class StreamVectorEnv(InfraMindVectorEnv):
    """`InfraMind-Stream-v0` in a batch; arguments as of `StreamEnv`."""

    __signature__ = signature_in_a_batch(StreamEnv)

    def __init__(self, num_envs: int = 1, **arguments: Any) -> None:
        super().__init__(num_envs, one_query=False, **arguments)


class PlannerVectorEnv(InfraMindVectorEnv):
    """`InfraMind-Planner-v0` in a batch; arguments as of `PlannerEnv`.

    The calls of all rows are routed together.
    """

    __signature__ = signature_in_a_batch(PlannerEnv)
    simulation: PlannerSimulation

    def __init__(self, num_envs: int = 1, **arguments: Any) -> None:
        super().__init__(num_envs, one_query=True, **arguments)

    def _simulate(self, arguments: dict[str, Any]) -> PlannerSimulation:
        return PlannerSimulation(planner_config(arguments), self.num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start a new stream everywhere; with a seed the executor forgets what it has learned."""
        if seed is not None:
            self.simulation.reset_executor()
        return super().reset(seed=seed, options=options)
