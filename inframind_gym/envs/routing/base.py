"""Base classes of the single routing environments: step, masks, records and rendering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.checks import SampleMask, check_actions, check_options
from inframind_gym.envs.observations import ObservationForm
from inframind_gym.envs.routing.actions import action_mask, action_space
from inframind_gym.envs.routing.config import DEFAULT_POOL, DEFAULT_WORKLOAD, RANGES, env_config
from inframind_gym.envs.routing.observation import observation_space, places
from inframind_gym.envs.routing.simulation import DECISION, STREAM_OVER, Simulation
from inframind_gym.errors import ConfigError, require_within, unknown

if TYPE_CHECKING:
    from inframind_gym.envs.routing.spec import PolicySpec

RESET_OPTIONS = ("arrival_rate_per_min", "budget_s")
RENDER_MODES = ("rgb_array",)


def passed_on(local: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of an environment, from the `locals()` of its constructor."""
    others: dict[str, Any] = local["others"]
    return {k: v for k, v in local.items() if k not in ("self", "__class__", "others")} | others


class InfraMindEnv(gym.Env[Any, Any]):
    """A router of multi-agent LLM calls in front of vLLM servers.

    The subclasses are the registered environments; see there.

    Args: see `ExecutorEnv`.

    Raises:
        ConfigError: an argument that is unknown or has an impossible value.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # noqa: RUF012
    one_query: ClassVar[bool]

    def __init__(
        self,
        *,
        pool: str = DEFAULT_POOL,
        workload: str | dict[str, Any] = DEFAULT_WORKLOAD,
        tasks: str = "builtin",
        split: Literal["train", "val", "test", "all"] = "test",
        arrival_rate_per_min: float = 100.0,
        budget_s: float | Sequence[float] | None = None,
        num_queries: int | None = None,
        arrivals: str | dict[str, Any] = "poisson",
        scheduler: Literal["edf", "edf_late_last", "fcfs"] | None = None,
        execution: Literal["parallel", "sequential"] | None = None,
        planner: dict[str, Any] | None = None,
        agents: dict[str, Any] | None = None,
        background: Literal["static_mix", "round_robin", "least_loaded", "none"] = "static_mix",
        level: Literal["executor", "planner", "joint"] = "executor",
        observation: Literal["full", "index", "dict"] = "full",
        system_features: Sequence[Literal["queue", "e2e", "kv", "in_flight"]] = ("queue", "e2e"),
        metrics_poll_s: float | None = None,
        call_timeout_s: float | None = None,
        call_attempts: int = 3,
        record_calls: bool = False,
        down_models: Sequence[str] = (),
        faults: Sequence[dict[str, Any]] = (),
        render_mode: Literal["rgb_array"] | None = None,
        **others: Any,
    ) -> None:
        arguments = passed_on(locals())
        del arguments["render_mode"]
        if render_mode is not None and render_mode not in RENDER_MODES:
            raise ConfigError(unknown("render_mode", render_mode, RENDER_MODES))
        self.render_mode = render_mode
        self.simulation = self._simulate(arguments)
        self.config = self.simulation.config
        self._form = ObservationForm(observation_space(self.simulation), places(self.simulation))
        self.observation_space = self._form.space
        choices = action_space(self.simulation)
        self.action_space = choices
        self._sample_mask = SampleMask(choices)
        highs = getattr(choices, "nvec", getattr(choices, "n", None))
        self._highs = np.atleast_1d(np.asarray(highs))
        self._num_routes = self.simulation.num_routes if self.simulation.level == "executor" else 0
        self._mask_of = -1
        self._mask = np.zeros(0, np.bool_)
        self._rate = self.config.arrival_rate_per_min
        self._budget = self.config.one_budget_s
        self._row = np.zeros(1, np.int64)
        self._route = np.zeros((1, 1), np.int64)
        self._reward = np.zeros(1)
        self._cost = np.zeros(1)
        self._episode_cost = 0.0
        self._episode_reward = 0.0
        self._running = False
        self._log = self._decision_log()
        # Written again by every step: whoever is shown them gets a copy.
        self._observations, self._contexts = self.simulation.buffers()
        self._look_at_context()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._look_at_context()  # a copy's own

    def _look_at_context(self) -> None:
        """Take views of what a step reads of its context: fields of records are slow to find."""
        self._context_bytes = self._contexts.view(np.uint8)
        self._shown = [self._contexts[field] for field in ("time_s", "query", "node", "models_up")]

    def _simulate(self, arguments: dict[str, Any]) -> Simulation:
        """Check the arguments and make the simulation."""
        return Simulation(env_config(arguments), 1, one_query=self.one_query)

    def _decision_log(self) -> Any:
        """Return what rendering keeps of the last decisions; None where nothing is rendered."""
        if self.render_mode is None:
            return None
        from inframind_gym.envs.routing.rendering import DecisionLog

        return DecisionLog(6)

    # What a policy may know

    def context(self) -> np.void:
        """The decision that waits, a CONTEXT record (`inframind_gym.simulator.workflow.state`)."""
        context: np.void = self._contexts[0].copy()
        return context

    def completed(self) -> NDArray[Any]:
        """The agent's queries that ended in the last step, (k,) COMPLETED."""
        return self.simulation.completed(0)

    def calls(self) -> NDArray[Any]:
        """Every completed call of the current stream, (k,) CALL; needs `record_calls=True`."""
        return self.simulation.calls(0)

    @property
    def queries_done(self) -> int:
        """Number of the agent's queries that ended in this episode."""
        if self.one_query:
            return int(not self._running)
        return int(self.simulation.state.stream[0]["finished"])

    def policy_spec(self) -> PolicySpec:
        """The public facts of the run, for `Policy.reset`."""
        return self.simulation.policy_spec()

    def models_up(self) -> int:
        """Bit mask of the models that can be routed to now; may be called on any thread."""
        stream = self.simulation.state.stream[0]
        return int(stream["models_up"]) if stream["num_queries"] else self.simulation.models_up

    def action_masks(self) -> NDArray[np.bool_]:
        """Actions that make sense now: routes to models that are up.

        Returns:
            (M·S,) for the executor, the form that MaskablePPO wants; at the other levels the masks
            of all parts of the action, one after the other.
        """
        return self._current_mask().copy()

    def _current_mask(self) -> NDArray[np.bool_]:
        up = self._shown[3].item()
        if up != self._mask_of:
            self._mask_of = up
            self._mask = action_mask(self.simulation, up, self._highs)
        return self._mask

    # Gymnasium

    def _set_options(self, options: dict[str, Any] | None) -> None:
        numbers: dict[str, float] = {}
        for key, value in check_options(options, RESET_OPTIONS).items():
            drawn = key == "budget_s" and isinstance(value, float) and np.isnan(value)
            numbers[key] = value if drawn else require_within(value, *RANGES[key], key)
        self._rate = numbers.get("arrival_rate_per_min", self._rate)
        self._budget = numbers.get("budget_s", self._budget)

    def _begin(self, *, inside: bool) -> Any:
        self._context_bytes.fill(0)
        self.simulation.start(
            self._row,
            [self.np_random],
            np.array([self._rate]),
            np.array([self._budget]),
            self._observations,
            self._contexts,
            inside=inside,
        )
        return self._episode_starts()

    def _episode_starts(self) -> Any:
        self._episode_cost = 0.0
        self._episode_reward = 0.0
        self._running = True
        if self._log is not None:
            self._log.clear()
        return self._form.of(self._observations[0].copy())

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Carry out the decision and let time run to the next one.

        Raises:
            ActionError: an action out of range.
            gymnasium.error.ResetNeeded: the episode is over.
        """
        if not self._running:
            raise gym.error.ResetNeeded("the episode is over; call reset() before step()")
        actions = self._checked(action)
        decided = None if self._log is None else self._contexts.copy()
        self._context_bytes.fill(0)
        status = self.simulation.step(
            actions, self._observations, self._contexts, self._reward, self._cost
        )
        terminated = status.item() != DECISION
        reward, cost = self._reward.item(), self._cost.item()
        self._episode_cost += cost
        self._episode_reward += reward
        self._running = not terminated
        if decided is not None:
            self._log.add(decided[0], actions[0], reward, cost)
        info = self._info(cost)
        if terminated:
            info["episode_cost"] = self._episode_cost
            info |= self._summary()
        return self._form.of(self._observations[0].copy()), reward, terminated, False, info

    def _checked(self, action: Any) -> NDArray[np.int64]:
        if self._num_routes and isinstance(action, int | np.integer):
            number = int(action)
            if 0 <= number < self._num_routes:
                self._route[0, 0] = number
                return self._route
        return check_actions(action, self._highs, 1)

    def _info(self, cost: float) -> dict[str, Any]:
        time_s, query, node, _ = self._shown
        return {
            "cost": cost,
            "time_s": time_s.item(),
            "query": query.item(),
            "node": node.item(),
            "action_mask": self._sample_mask.of(self._current_mask()),
        }

    def _first_info(self) -> dict[str, Any]:
        """Return the info of a reset, which names models whose server cards are estimates."""
        estimates = self.simulation.pool.estimates
        return self._info(0.0) | ({"estimates": estimates} if estimates else {})

    def _summary(self) -> dict[str, Any]:
        raise NotImplementedError

    def render(self) -> Any:
        """Return a picture of queues, budget and the last decisions, (540, 960, 3) uint8."""
        if self.render_mode is None:
            return None
        from inframind_gym.envs.routing.rendering import draw_frame

        return draw_frame(self.simulation, self._contexts[0], self._log, self._rate)


class TaggedQueryEnv(InfraMindEnv):
    """An environment whose episode is one tagged query in background traffic.

    The stream of queries goes on from episode to episode, and starts again when it is over.
    """

    one_query: ClassVar[bool] = True
    _begun = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start the episode of the next query; see Starting State."""
        super().reset(seed=seed)
        self._set_options(options)
        fresh = seed is not None or bool(options) or self._running or not self._begun
        self._begun = True
        if fresh:
            observation = self._begin(inside=True)
        else:
            self._context_bytes.fill(0)
            self.simulation.resume(self._row, self._observations, self._contexts)
            if self.simulation.status[0] == STREAM_OVER:
                observation = self._begin(inside=False)
            else:
                observation = self._episode_starts()
        return observation, self._first_info()

    def _summary(self) -> dict[str, Any]:
        query = self.completed()[-1]
        return {
            "solved": int(query["solved"]),
            "latency_s": float(query["latency_s"]),
            "budget_s": float(query["budget_s"]),
        }
