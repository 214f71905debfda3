"""Base class of the vector environments: seeds, steps, sums over an episode, autoreset."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from inspect import Parameter, Signature, signature
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from inframind_gym.envs.checks import check_actions, check_options
from inframind_gym.envs.observations import ObservationForm, Places
from inframind_gym.envs.spare import SpareArrays
from inframind_gym.errors import ConfigError, require_within, unknown
from inframind_gym.simulator.threads import MOST_THREADS

Seeds = int | Sequence[int | None] | None  # of environment 0, or one an environment
# Observations, rewards, terminations, truncations and infos of a step.
BatchStep = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]
MOST_ENVS: Final = 65_536
# What a vector environment takes besides the arguments of the single one.
_OF_A_BATCH: Final = (
    Parameter("num_envs", Parameter.KEYWORD_ONLY, default=1, annotation="int"),
    Parameter("num_threads", Parameter.KEYWORD_ONLY, default=1, annotation="int"),
    Parameter("autoreset_mode", Parameter.KEYWORD_ONLY, default="SameStep", annotation="str"),
)


class BatchEnv(VectorEnv[Any, NDArray[np.int64], NDArray[Any]]):
    """E environments that step together; row i does what a single environment of its seed does.

    With `autoreset_mode="SameStep"` the observation where an episode ends is the first of the next
    one; `infos["final_obs"]` and `infos["final_info"]` tell how it ended. With "NextStep", which
    some of Gymnasium's vector wrappers ask for, the observation and the infos are the last of the
    episode; the next step ignores the row's action and begins the next episode, with reward 0.
    The rewards, costs and records of a row are always those of the step that was taken.
    `infos["action_mask"]` has the form of `action_space.sample(mask=…)`.

    Args:
        num_envs: E.
        arguments: of the environments; `render_mode`, `autoreset_mode` and `num_threads` are taken
            out: so many threads share the rows of compiled environments, with the same results.

    Raises:
        ConfigError: `num_envs`, `num_threads` or `autoreset_mode` is impossible, or the batch is to
            be rendered.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    truncates: bool = False  # whether episodes end by truncation

    def __init__(self, num_envs: int, arguments: dict[str, Any]) -> None:
        self.num_envs = _whole(num_envs, MOST_ENVS, "num_envs")
        self.num_threads = _whole(arguments.pop("num_threads", 1), MOST_THREADS, "num_threads")
        if arguments.pop("render_mode", None) is not None:
            raise ConfigError("a vector environment is not rendered; make a single one to look at")
        self.metadata = {"autoreset_mode": _autoreset_mode(arguments.pop("autoreset_mode", None))}
        self._generators: list[np.random.Generator] = []  # none before the first reset
        self._episode_costs = np.zeros(num_envs)
        self._episode_rewards = np.zeros(num_envs)
        self._every_row = np.arange(num_envs)
        self._everywhere = np.ones(num_envs, np.bool_)
        self._over = self._every_row[:0]  # rows that the next step resets ("NextStep")

    def _set_spaces(
        self,
        observation: spaces.Box,
        places: Places | None,
        action: spaces.MultiDiscrete | spaces.Discrete,
    ) -> None:
        """Set the spaces of one environment and of the batch."""
        self._show(ObservationForm(observation, places), len(observation.low))
        self.single_observation_space, self.single_action_space = self._form.space, action
        self.observation_space = batch_space(self._form.space, self.num_envs)
        if isinstance(action, spaces.Discrete):
            self._highs = np.array([action.n])
            self.action_space = batch_space(action, self.num_envs)
        else:  # not Gymnasium's Box of integers, which samples without masks
            self._highs = action.nvec
            self.action_space = spaces.MultiDiscrete(np.tile(action.nvec, (self.num_envs, 1)))
        # Compiled code reads the same array at every step: it need not be told again.
        self._actions = np.zeros((self.num_envs, len(self._highs)), np.int64)

    def _show(self, form: ObservationForm, width: int) -> None:
        """Set the form of observations, and how many numbers one has."""
        self._form = form
        self._observations = SpareArrays((self.num_envs, width), np.float32)

    # What a family does

    @abstractmethod
    def _start(
        self, rows: NDArray[np.int64], observations: NDArray[np.float32], *, first: bool
    ) -> None:
        """Begin an episode in the environments `rows`, and write what they see.

        Args:
            rows: (k,) environments.
            observations: (E, d), written at `rows`.
            first: after a reset, and not after another episode.
        """

    @abstractmethod
    def _carry_out(
        self,
        actions: NDArray[np.int64],
        rows: NDArray[np.int64],
        observations: NDArray[np.float32],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_], dict[str, Any]]:
        """Carry out a step of the environments `rows`.

        Args:
            actions: (E, a), in range.
            rows: (k,) environments; the others have just begun an episode.
            observations: (E, d), written at `rows`.

        Returns:
            (E,) rewards and costs, 0 in the other rows; (E,) whose episode is over; more infos.
        """

    @abstractmethod
    def _summary(
        self, over: NDArray[np.bool_], rewards: NDArray[np.float64], costs: NDArray[np.float64]
    ) -> dict[str, NDArray[Any]]:
        """The last info of the single environments, in a batch.

        Args:
            over: (E,) whose episode is over.
            rewards, costs: (E,) sums of those episodes, 0 elsewhere.

        Returns:
            (E,) arrays.
        """

    @abstractmethod
    def _sample_masks(self) -> tuple[Any, ...]:
        """The masks of the decisions that wait, as `action_space.sample` takes them."""

    def _cut_short(self, over: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return (E,) which of the episodes that are over ended by truncation, as a new array."""
        return over.copy() if self.truncates else np.zeros_like(over)

    def _checked(self, actions: Any) -> NDArray[Any]:
        """Return the actions of a step as (E, a), until the next step, or raise ActionError."""
        return check_actions(actions, self._highs, self.num_envs, self._actions)

    def _set_options(self, options: dict[str, Any] | None) -> None:
        check_options(options, ())

    # Gymnasium

    def reset(
        self, *, seed: Seeds = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode everywhere.

        Args:
            seed: of environment 0 (environment i takes seed + i), or one an environment.
            options: those of the single environment.

        Raises:
            ConfigError: an option is wrong, or the number of seeds.
        """
        self._set_options(options)
        if seed is not None or not self._generators:
            self._generators = [seeding.np_random(s)[0] for s in row_seeds(seed, self.num_envs)]
        self._episode_costs[:] = 0.0
        self._episode_rewards[:] = 0.0
        self._over = self._every_row[:0]
        observations = self._observations.take()
        self._start(self._every_row, observations, first=True)
        return self._form.of(observations), self._infos(np.zeros(self.num_envs))

    def step(self, actions: Any) -> BatchStep:
        """Carry out one action in every environment.

        Raises:
            ActionError: an action of the wrong shape or out of range.
            ConfigError: `reset` was not called.
        """
        if not self._generators:
            raise ConfigError("call reset() before step()")
        checked = self._checked(actions)
        observations, rows = self._observations.take(), self._every_row
        if len(self._over):
            self._start(self._over, observations, first=False)
            rows = np.setdiff1d(rows, self._over, assume_unique=True)
        rewards, costs, over, more = self._carry_out(checked, rows, observations)
        self._episode_costs += costs
        self._episode_rewards += rewards
        self._over = over.nonzero()[0]
        if not len(self._over):
            ends = (over.copy(), over.copy())
            return self._form.of(observations), rewards, *ends, more | self._infos(costs)
        final = self._final_info(over, costs)
        cut_short = self._cut_short(over)
        if self.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP:
            more |= final
        else:
            final_obs = np.empty(self.num_envs, object)
            for row in self._over.tolist():
                final_obs[row] = self._form.of(observations[row].copy())
            more |= {"final_obs": final_obs, "_final_obs": over}
            more |= {"final_info": final, "_final_info": over.copy()}
            self._start(self._over, observations, first=False)
            self._over = self._every_row[:0]
        ends = (over & ~cut_short, cut_short)
        return self._form.of(observations), rewards, *ends, more | self._infos(costs)

    def _infos(self, costs: NDArray[np.float64]) -> dict[str, Any]:
        masks = {"action_mask": self._sample_masks(), "_action_mask": self._everywhere.copy()}
        return {"cost": costs, "_cost": self._everywhere.copy(), **masks}

    def _final_info(
        self, over: NDArray[np.bool_], costs: NDArray[np.float64]
    ) -> dict[str, NDArray[Any]]:
        """The info of the episodes that are over, whose sums begin again."""
        episode_costs = np.where(over, self._episode_costs, 0.0)
        episode_rewards = np.where(over, self._episode_rewards, 0.0)
        self._episode_costs[over] = 0.0
        self._episode_rewards[over] = 0.0
        final = {
            "cost": np.where(over, costs, 0.0),
            "episode_cost": episode_costs,
            "episode_reward": episode_rewards,
        } | self._summary(over, episode_rewards, episode_costs)
        return final | {f"_{key}": over.copy() for key in final}


def _whole(number: Any, most: int, name: str) -> int:
    """Return a whole number from 1 to `most`."""
    require_within(number, 1, most, name)
    if not isinstance(number, int | np.integer):
        raise ConfigError(f"{name} must be an integer, got {number!r}")
    return int(number)


def _autoreset_mode(mode: Any) -> AutoresetMode:
    """The autoreset mode that is named; SAME_STEP for None."""
    known = (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)
    for candidate in known:
        if mode in (candidate, candidate.value):
            return candidate
    if mode is None:
        return AutoresetMode.SAME_STEP
    raise ConfigError(unknown("autoreset_mode", mode, [candidate.value for candidate in known]))


def signature_in_a_batch(single: type) -> Signature:
    """Signature of a vector environment: its own arguments, and those of the single one."""
    shared = [
        p.replace(kind=Parameter.KEYWORD_ONLY)
        for p in signature(single).parameters.values()
        if p.name != "render_mode" and p.kind is not Parameter.VAR_KEYWORD
    ]
    return Signature([*_OF_A_BATCH, *shared])


def row_seeds(seed: Seeds, num_envs: int) -> list[int | None]:
    """The seed of every row of a batch: row i takes seed + i, or its own of a list.

    Raises:
        ConfigError: no integer and no list of them, or a list of the wrong length.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        return [int(seed) + i for i in range(num_envs)]
    if isinstance(seed, str) or not isinstance(seed, Sequence | np.ndarray):
        raise ConfigError(f"seed must be an integer or a list of {num_envs}, got {seed!r}")
    if len(seed) != num_envs:
        raise ConfigError(f"{len(seed)} seeds for {num_envs} environments")
    return list(seed)
