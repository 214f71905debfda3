"""Many environments in one compiled batch: `gym.make_vec("InfraMind-Stream-v0", num_envs=1024)`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.batch import BatchEnv, Seeds, signature_in_a_batch
from inframind_gym.envs.checks import SampleMask, check_options
from inframind_gym.envs.routing.actions import action_mask, action_space
from inframind_gym.envs.routing.base import RESET_OPTIONS
from inframind_gym.envs.routing.config import RANGES, env_config, planner_config
from inframind_gym.envs.routing.executor import ExecutorEnv
from inframind_gym.envs.routing.observation import observation_space, places
from inframind_gym.envs.routing.planner import PlannerEnv
from inframind_gym.envs.routing.planner_simulation import PlannerSimulation
from inframind_gym.envs.routing.simulation import DECISION, STREAM_OVER, Simulation
from inframind_gym.envs.routing.spec import PolicySpec
from inframind_gym.envs.routing.stream import StreamEnv
from inframind_gym.errors import ConfigError


class InfraMindVectorEnv(BatchEnv):
    """The routing environments in a batch (`BatchEnv`).

    Args:
        num_envs: E.
        one_query: Executor and Planner (one query is an episode) or Stream (a stream is).
        arguments: as of the single environments, `autoreset_mode` and `num_threads`.

    `reset(seed=…, options=…)`: the options `arrival_rate_per_min` and `budget_s` are numbers, or
    arrays (E,) with one number an environment; a budget of NaN is drawn from the tiers.
    """

    def __init__(self, num_envs: int, *, one_query: bool, **arguments: Any) -> None:
        super().__init__(num_envs, arguments)
        self._one_query = one_query
        self.simulation = self._simulate(arguments)
        self.config = self.simulation.config
        actions = action_space(self.simulation)
        self._set_spaces(observation_space(self.simulation), places(self.simulation), actions)
        self._mask = action_mask(self.simulation, self.simulation.models_up, self._highs)
        self._sample_mask = SampleMask(actions)
        shared = self._sample_mask.of(self._mask)  # by all rows and steps, and so not to write to
        for part in shared if isinstance(shared, tuple) else (shared,):
            part.flags.writeable = False
        self._masks = (shared,) * num_envs
        self._rates = np.full(num_envs, self.config.arrival_rate_per_min)
        self._budgets = np.full(num_envs, self.config.one_budget_s)
        _, self._contexts = self.simulation.buffers()
        # Written anew at every step, like `_actions`.
        self._rewards, self._costs = np.zeros(num_envs), np.zeros(num_envs)
        self._completed: tuple[NDArray[np.int64], NDArray[Any]] | None = None

    def _simulate(self, arguments: dict[str, Any]) -> Simulation:
        """Check the arguments and make the closed loops."""
        config = env_config(arguments)
        threads = self.num_threads
        return Simulation(config, self.num_envs, one_query=self._one_query, num_threads=threads)

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
        if self.simulation.faults.size:
            return np.stack([self._mask_of(up) for up in self._contexts["models_up"].tolist()])
        return np.tile(self._mask, (self.num_envs, 1))

    def _mask_of(self, up: int) -> NDArray[np.bool_]:
        return action_mask(self.simulation, up, self._highs)

    def _start(
        self, rows: NDArray[np.int64], observations: NDArray[np.float32], *, first: bool
    ) -> None:
        if first:
            self._completed = None
        else:
            self.completed()
        if self._one_query and not first:
            self.simulation.resume(rows, observations, self._contexts)
            rows = rows[self.simulation.status[rows] == STREAM_OVER]
        if len(rows):
            self.simulation.start(
                rows,
                [self._generators[row] for row in rows.tolist()],
                self._rates[rows],
                self._budgets[rows],
                observations,
                self._contexts,
                inside=first and self._one_query,
            )

    def _carry_out(
        self,
        actions: NDArray[np.int64],
        rows: NDArray[np.int64],
        observations: NDArray[np.float32],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_], dict[str, Any]]:
        rewards, costs = self._rewards, self._costs
        if len(rows) < self.num_envs:
            rewards[:] = costs[:] = 0.0
        status = self.simulation.step(
            actions, observations, self._contexts, rewards, costs, rows=rows
        )
        self._completed = None  # gathered when asked for, or before the next episodes begin
        return rewards.copy(), costs.copy(), status != DECISION, {}

    def _sample_masks(self) -> tuple[Any, ...]:
        if self.simulation.faults.size:
            masks = {}
            up = self._contexts["models_up"].tolist()
            for mask in set(up):
                masks[mask] = self._sample_mask.of(self._mask_of(mask))
            return tuple(masks[mask] for mask in up)
        return self._masks

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

    def _set_options(self, options: dict[str, Any] | None) -> None:
        numbers = {
            key: self._per_row(key, value)
            for key, value in check_options(options, RESET_OPTIONS).items()
        }
        self._rates = numbers.get("arrival_rate_per_min", self._rates)
        self._budgets = numbers.get("budget_s", self._budgets)

    def _per_row(self, key: str, value: Any) -> NDArray[np.float64]:
        """An option as (E,) numbers; a budget of NaN stands for the tiers."""
        low, high = RANGES[key]
        try:
            rows = np.broadcast_to(np.asarray(value, np.float64), (self.num_envs,)).copy()
        except (TypeError, ValueError, OverflowError):
            rows = np.full(self.num_envs, -np.inf)
        drawn = np.isnan(rows) & (key == "budget_s")
        if not (drawn | ((low <= rows) & (rows <= high))).all():
            several = f", or {self.num_envs} of them" if self.num_envs > 1 else ""
            raise ConfigError(
                f"{key} must be a number from {low:g} to {high:g}{several}, got {value!r:.60}"
            )
        return rows


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
        return PlannerSimulation(planner_config(arguments), self.num_envs, self.num_threads)

    def reset(
        self, *, seed: Seeds = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new stream everywhere; with a seed the executor forgets what it has learned."""
        if seed is not None:
            self.simulation.reset_executor()
        return super().reset(seed=seed, options=options)
