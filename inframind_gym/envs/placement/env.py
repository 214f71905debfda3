"""InfraMind-Placement-v0: which model is awake on which GPU."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from inframind_gym.envs.checks import SampleMask, check_actions, check_options
from inframind_gym.envs.observations import ObservationForm, Places
from inframind_gym.envs.placement.config import (
    DEFAULT_CLUSTER,
    DEFAULT_DEMAND,
    placement_config,
)
from inframind_gym.envs.placement.context import (
    PlacementContext,
    PlacementSpec,
    contexts,
    spec_of,
)
from inframind_gym.envs.placement.observation import GPU_FEATURES, HIGHEST, MODEL_FEATURES, STATES
from inframind_gym.envs.placement.reward import TERMS
from inframind_gym.envs.placement.simulation import PlacementSimulation
from inframind_gym.errors import ConfigError, unknown

RENDER_MODES = ("ansi", "rgb_array")


def placement_spaces(
    simulation: PlacementSimulation,
) -> tuple[spaces.Box, Places | None, spaces.MultiDiscrete]:
    """Return the space of flat observations, the places of a Dict's entries, the action space."""
    box = spaces.Box(0.0, HIGHEST, (simulation.observation_size,), np.float32)
    gpus, models = simulation.num_gpus, simulation.num_models
    places = None
    if simulation.config.observation == "dict":
        of_gpus, of_models = np.split(
            np.arange(box.shape[0]), [gpus * (STATES * models + GPU_FEATURES)]
        )
        places = {
            "gpus": of_gpus.reshape(gpus, -1),
            "models": of_models.reshape(models, MODEL_FEATURES),
        }
    return box, places, spaces.MultiDiscrete([models + 1] * gpus)


class PlacementEnv(gym.Env[Any, NDArray[np.int64]]):
    """Decide every five seconds which model each GPU of a cluster holds awake.

    ## Description

    Jobs of several agent calls arrive; each call needs one model of a catalogue and is answered
    only where that model is awake. A GPU holds one awake model at a time. Switching it takes time:
    the one that is there drains and falls asleep (seconds, the first time longer) or is offloaded,
    the one that comes wakes up (seconds) or is loaded (half a minute and more). Models of tensor
    parallelism k span k neighbouring GPUs. Calls that are ready are routed every second to the
    awake instance of least drain latency. Each rule is a module of
    `inframind_gym.simulator.placement`.

    ## Action Space

    `MultiDiscrete([M + 1] * G)`: per GPU 0, leave it alone, or 1 + the model to make active.
    `info["action_mask"]`, a tuple of G int8 arrays (M + 1,), marks the choices that are open to
    each GPU, and so does `action_masks()`, (G·(M + 1),) of bool: the GPU is STABLE, the model fits,
    is not loading anywhere and its block of GPUs is free. A mask cannot express that all GPUs of a
    block choose the same model; a choice of only some of them is illegal. Illegal choices do
    nothing and cost reward; the rule is in `inframind_gym.simulator.placement.choices`. No legal
    action is masked out.

    ## Observation Space

    `Box(0, 5, (G·(4·M + 7) + 12·M,))`: the models on each GPU and the calls that wait for each
    model, number by number in `inframind_gym.envs.placement.observation`. With
    `observation="dict"` a Dict of the same numbers: `gpus` (G, 4·M + 7) and `models` (M, 12).

    ## Rewards and costs

    Minus the request-seconds of the interval, waiting and service, scaled so that the mean reward
    of an episode is minus the mean latency of a call in units of `latency_scale_s`. Less
    `illegal_penalty` times the share of illegal choices. `info["rewards"]` holds the terms
    "waiting", "service" and "illegal" (`inframind_gym.envs.placement.reward`). `info["cost"]`: jobs
    whose deadline passed in the interval.

    ## Starting State

    Time 0, no jobs; with `initial="spread"` one model awake on each block of GPUs, from a random
    model on.

    ## Episode End

    Truncated after `num_decisions` decisions. Never terminated. Jobs that are in the cluster then
    are not counted by `info["jobs"]` and `info["mean_latency_s"]`; the reward, the cost,
    `info["late_share"]` and `info["mean_call_latency_s"]` count theirs too.

    ## Arguments

    All are JSON types.

    * `cluster`: name or path of a cluster (`envs_configs/placement/clusters`).
    * `demand`: name or path of a demand (`envs_configs/placement/demands`).
    * `trace`: CSV file that a demand of kind "trace" replays.
    * `load`: factor on the demand's rate.
    * `routing_interval_s`: δt1, between two times of routing.
    * `decision_interval_s`: δt2, of a step; a whole multiple of δt1.
    * `num_decisions`: length of an episode.
    * `initial`: "spread": every block of GPUs begins with a model awake, in the order of the
      cluster's list from a random one on; "empty": no model is on any GPU.
    * `illegal_penalty`: reward lost when all choices of a decision are illegal; a share of them
      loses that share.
    * `latency_scale_s`: seconds in a call that cost a reward of 1.
    * `ema`: weight of a new observation in the times that the agent sees.
    * `timing_spread`: log-normal spread of each model's true times around its card, per episode.
    * `timing_noise`: log-normal spread of each single transition around that.
    * `foreign_memory`: memory that other processes take, which makes starts fail: every `every_s`
      seconds (30) uniform in 0..`max_MB` (12,000), at most what is free.
    * `observation`: "flat" or "dict".
    * `render_mode`: None, "ansi" (text) or "rgb_array".

    ## Version History

    * v0: first version.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        cluster: str = DEFAULT_CLUSTER,
        demand: str = DEFAULT_DEMAND,
        trace: str | None = None,
        load: float = 1.0,
        routing_interval_s: float = 1.0,
        decision_interval_s: float = 5.0,
        num_decisions: int = 120,
        initial: Literal["spread", "empty"] = "spread",
        illegal_penalty: float = 0.1,
        latency_scale_s: float = 10.0,
        ema: float = 0.3,
        timing_spread: float = 0.2,
        timing_noise: float = 0.1,
        foreign_memory: dict[str, float] | None = None,
        observation: Literal["flat", "dict"] = "flat",
        render_mode: str | None = None,
        **unknown_arguments: Any,
    ) -> None:
        arguments = {**locals(), **unknown_arguments}
        for name in ("self", "render_mode", "unknown_arguments"):
            del arguments[name]
        self._set_up(PlacementSimulation(placement_config(arguments), 1), render_mode)

    def _set_up(self, simulation: PlacementSimulation, render_mode: str | None) -> None:
        """Set spaces and state of an environment with this cluster."""
        if render_mode not in (None, *RENDER_MODES):
            raise ConfigError(unknown("render_mode", render_mode, RENDER_MODES))
        self.render_mode = render_mode
        self.simulation = simulation
        self.config = simulation.config
        box, places, choices = placement_spaces(simulation)
        self._form = ObservationForm(box, places)
        self.observation_space = self._form.space
        self.action_space = choices
        self._sample_mask = SampleMask(choices)
        self._highs = np.asarray(choices.nvec)
        self._row = np.zeros(1, np.int64)
        # Written again by every step: whoever is shown them gets a copy.
        self._observations = simulation.observations()
        self._running = False
        self._episode_cost = 0.0
        self._episode_reward = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode.

        Raises:
            ConfigError: an option is given; there are none.
        """
        super().reset(seed=seed)
        check_options(options, ())
        self.simulation.start(self._row, [self.np_random], self._observations)
        self._running = True
        self._episode_cost = 0.0
        self._episode_reward = 0.0
        return self._form.of(self._observations[0].copy()), {
            "cost": 0.0,
            "time_s": 0.0,
            "action_mask": self._sample_mask.of(self.action_masks()),
        }

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Carry out a decision and let `decision_interval_s` pass.

        Raises:
            ActionError: an action of the wrong shape or out of range.
            gymnasium.error.ResetNeeded: the episode is over.
        """
        if not self._running:
            raise gym.error.ResetNeeded("the episode is over; call reset() before step()")
        self.simulation.step(check_actions(action, self._highs, 1), self._observations)
        terms = self.simulation.terms[0].tolist()
        reward = sum(terms)
        episode = self.simulation.state.episode[0]
        cost = float(episode["late"])
        self._episode_cost += cost
        self._episode_reward += reward
        truncated = int(episode["decision"]) >= self.config.num_decisions
        info: dict[str, Any] = {
            "cost": cost,
            "rewards": dict(zip(TERMS, terms, strict=True)),
            "illegal": int(episode["illegal"]),
            "time_s": float(episode["tick"] * self.config.routing_interval_s),
            "action_mask": self._sample_mask.of(self.action_masks()),
        }
        if truncated:
            self._running = False
            info |= {
                "episode_cost": self._episode_cost,
                "episode_reward": self._episode_reward,
                **self.simulation.summary(0),
            }
        return self._form.of(self._observations[0].copy()), reward, False, truncated, info

    # Information for policies

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the choices that are open to each GPU, (G·(M + 1),), as MaskablePPO takes them."""
        mask: NDArray[np.bool_] = self.simulation.state.mask[0].flatten()
        return mask

    def context(self) -> PlacementContext:
        """Return the input of a placement policy, arrays with a first axis of 1."""
        return contexts(self.simulation, self._row)

    def placement_spec(self) -> PlacementSpec:
        """Return the facts of the run that a placement policy is reset with."""
        return spec_of(self.simulation)

    def completed(self) -> NDArray[Any]:
        """Return the jobs that ended in the last step, (k,) JOB_DONE."""
        return self.simulation.completed(0)

    def render(self) -> Any:
        """Return the cluster: a table ("ansi") or a picture, (540, 960, 3) uint8 ("rgb_array")."""
        if self.render_mode != "rgb_array":
            return None if self.render_mode is None else self.simulation.table(0)
        from inframind_gym.envs.placement.rendering import draw_frame

        return draw_frame(self.simulation, self._episode_reward, self._episode_cost)
