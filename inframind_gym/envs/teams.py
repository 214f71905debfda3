"""What the environments of the teams share: a batch of teams, and the two shells around it.

A family (`assignment`, `token_budget`, `coordination`) has a `TeamSimulation`. Its single
environment is a batch of one, its vector environment the same batch in a `BatchEnv`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Self, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from inframind_gym.envs.batch import BatchEnv
from inframind_gym.envs.checks import check_actions, check_options
from inframind_gym.envs.observations import ObservationForm
from inframind_gym.errors import ConfigError, unknown

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Float32s = NDArray[np.float32]

RENDER_MODES: Final = ("ansi", "rgb_array")
_NO_ARGUMENTS: Final = ("self", "__class__", "render_mode", "unknown_arguments")


def arguments_of(names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a simulation from the `locals()` of an environment's constructor."""
    given = {name: value for name, value in names.items() if name not in _NO_ARGUMENTS}
    return {**given, **names["unknown_arguments"]}


class TeamSimulation(ABC):
    """E teams with the same settings.

    Args:
        num_envs: E.
        form: in which one environment shows its observations.
        action_space: of one environment.
    """

    config_of: ClassVar[Any]  # checks arguments
    has_mask: bool = True

    def __init__(
        self, num_envs: int, form: ObservationForm, action_space: spaces.Discrete | spaces.Box
    ) -> None:
        self.num_envs, self.form, self.action_space = num_envs, form, action_space

    @classmethod
    def of(cls, arguments: Mapping[str, Any], num_envs: int) -> Self:
        """Make E teams from the arguments of an environment.

        Raises:
            ConfigError: an argument is unknown or has an impossible value; says what is possible.
        """
        made: Any = cls
        return cast(Self, made(cls.config_of(arguments), num_envs))

    def observations(self) -> Float32s:
        """Return a fresh array (E, d)."""
        return np.empty((self.num_envs, self.form.width), np.float32)

    def set_options(self, options: dict[str, Any] | None) -> None:
        """Take the options of a reset, for the episodes until the next one.

        Raises:
            ConfigError: an option is unknown or has an impossible value.
        """
        check_options(options, ())

    def checked(self, actions: Any) -> NDArray[Any]:
        """Return the actions of all environments, (E,).

        Raises:
            ActionError: an action of the wrong shape or out of range.
        """
        assert isinstance(self.action_space, spaces.Discrete)
        return check_actions(actions, np.array([self.action_space.n]), self.num_envs)[:, 0]

    @property
    @abstractmethod
    def mask(self) -> Bools:
        """Actions that are open, (E, a)."""

    @abstractmethod
    def start(
        self, rows: Ints, generators: Sequence[np.random.Generator], observations: Float32s
    ) -> None:
        """Begin new episodes.

        Args:
            rows: (k,) environments.
            generators: k sources of randomness, one an environment.
            observations: (E, d), written at `rows`.
        """

    def go_on(
        self, rows: Ints, generators: Sequence[np.random.Generator], observations: Float32s
    ) -> None:
        """Begin the episodes that follow others without a seed; arguments as of `start`."""
        self.start(rows, generators, observations)

    @abstractmethod
    def step_rows(self, rows: Ints, actions: NDArray[Any], observations: Float32s) -> None:
        """Carry out a decision in the environments `rows` (k,) alone.

        Args:
            rows: (k,) environments.
            actions: (E,) or (E, a), see `checked`.
            observations: (E, d), written at `rows`.
        """

    @abstractmethod
    def rewards(self) -> Floats:
        """Return (E,) rewards of the last step; 0 where there was none."""

    @abstractmethod
    def costs(self) -> Floats:
        """Return (E,) costs of the last step; 0 where there was none."""

    @abstractmethod
    def over(self) -> Bools:
        """Return (E,) whether each episode has ended, as a new array."""

    def ends(self, rows: Ints) -> tuple[Bools, Bools]:
        """Return (E,) whose episodes the step of `rows` terminated, and truncated."""
        return self.over(), np.zeros(self.num_envs, np.bool_)

    @abstractmethod
    def infos(self) -> dict[str, Any]:
        """Return what the infos of a batch tell of the last step: (E, …) arrays by name."""

    @abstractmethod
    def summaries(self, rows: Ints) -> dict[str, NDArray[Any]]:
        """Return what episodes have come to, (k,) each."""

    @abstractmethod
    def contexts(self, rows: Ints, *, truth: bool = False) -> Any:
        """Return the input of a policy for `rows`; `truth` adds the latent state, for bounds."""

    @abstractmethod
    def spec(self) -> Any:
        """Return the facts of the run that a policy is reset with."""


class TeamEnv(gym.Env[Any, Any]):
    """One team: a batch of one behind Gymnasium's interface."""

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 2}  # noqa: RUF012
    simulation: Any

    def _set_up(self, simulation: TeamSimulation, render_mode: str | None) -> None:
        """Take the simulation, a batch of one.

        Raises:
            ConfigError: there is no such render mode.
        """
        if render_mode not in (None, *RENDER_MODES):
            raise ConfigError(unknown("render_mode", render_mode, RENDER_MODES))
        self.render_mode, self.simulation = render_mode, simulation
        self.config = self.simulation.config
        self.observation_space = simulation.form.space
        self.action_space = simulation.action_space
        self._row = np.zeros(1, np.int64)
        self._started = self._running = False
        self._episode_cost = self._episode_reward = 0.0

    # What a family tells

    def _reset_info(self) -> dict[str, Any]:
        """Return what the info of a reset tells besides cost and mask."""
        return {}

    def _step_info(self, action: Any) -> dict[str, Any]:
        """Return what the info of a step tells besides cost and mask.

        Args:
            action: that was asked for.
        """
        raise NotImplementedError

    # Gymnasium

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode.

        Raises:
            ConfigError: an option is unknown or has an impossible value.
        """
        super().reset(seed=seed)
        self.simulation.set_options(options)
        observations = self.simulation.observations()
        follows = self._started and seed is None
        begin = self.simulation.go_on if follows else self.simulation.start
        begin(self._row, [self.np_random], observations)
        self._started = self._running = True
        self._episode_cost = self._episode_reward = 0.0
        info = {"cost": 0.0, **self._reset_info(), **self._mask()}
        return self.simulation.form.of(observations[0]), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Carry out a decision.

        Raises:
            ActionError: an action of the wrong shape or out of range.
            gymnasium.error.ResetNeeded: the episode is over.
        """
        if not self._running:
            raise gym.error.ResetNeeded("the episode is over; call reset() before step()")
        simulation, observations = self.simulation, self.simulation.observations()
        actions = simulation.checked(action)
        simulation.step_rows(self._row, actions, observations)
        reward, cost = float(simulation.rewards()[0]), float(simulation.costs()[0])
        self._episode_cost += cost
        self._episode_reward += reward
        terminated, truncated = (bool(ended[0]) for ended in simulation.ends(self._row))
        info: dict[str, Any] = {"cost": cost, **self._step_info(actions[0]), **self._mask()}
        if terminated or truncated:
            self._running = False
            last = simulation.summaries(self._row)
            info |= {
                "episode_cost": self._episode_cost,
                "episode_reward": self._episode_reward,
                **{name: values[0].item() for name, values in last.items()},
            }
        return simulation.form.of(observations[0]), reward, terminated, truncated, info

    def _mask(self) -> dict[str, Any]:
        simulation = self.simulation
        return {"action_mask": simulation.mask[0].astype(np.int8)} if simulation.has_mask else {}

    # Information for policies

    def action_masks(self) -> Bools:
        """Return the actions that are open, (a,), as MaskablePPO takes them."""
        return np.array(self.simulation.mask[0])

    def context(self) -> Any:
        """Return the input of a policy, arrays with a first axis of 1."""
        return self.simulation.contexts(self._row)

    def team_spec(self) -> Any:
        """Return the facts of the run that a policy is reset with."""
        return self.simulation.spec()


class TeamVectorEnv(BatchEnv):
    """Many teams in one batch (`BatchEnv`).

    Args:
        num_envs: E.
        arguments: of the environments, and those of `BatchEnv`.
    """

    simulates: ClassVar[type[TeamSimulation]]
    simulation: Any

    def __init__(self, num_envs: int = 1, **arguments: Any) -> None:
        super().__init__(num_envs, arguments)
        self.simulation = self.simulates.of(arguments, num_envs)
        self.config = self.simulation.config
        form, single = self.simulation.form, self.simulation.action_space
        self._show(form, form.width)
        self.single_observation_space, self.single_action_space = form.space, single
        self.observation_space = batch_space(form.space, num_envs)
        self.action_space = batch_space(single, num_envs)
        self._truncated = np.zeros(num_envs, np.bool_)

    def _set_options(self, options: dict[str, Any] | None) -> None:
        self.simulation.set_options(options)

    def _checked(self, actions: Any) -> NDArray[Any]:
        return np.asarray(self.simulation.checked(actions))

    def _start(self, rows: Ints, observations: Float32s, *, first: bool) -> None:
        begin = self.simulation.start if first else self.simulation.go_on
        begin(rows, [self._generators[row] for row in rows.tolist()], observations)

    def _carry_out(
        self, actions: NDArray[Any], rows: Ints, observations: Float32s
    ) -> tuple[Floats, Floats, Bools, dict[str, Any]]:
        simulation = self.simulation
        simulation.step_rows(rows, actions, observations)
        terminated, self._truncated = simulation.ends(rows)
        infos: dict[str, Any] = simulation.infos()
        infos |= {f"_{name}": self._everywhere.copy() for name in tuple(infos)}
        over = terminated | self._truncated
        return simulation.rewards(), simulation.costs(), over, infos

    def _cut_short(self, over: Bools) -> Bools:
        return over & self._truncated

    def _infos(self, costs: Floats) -> dict[str, Any]:
        if self.simulation.has_mask:
            return super()._infos(costs)
        return {"cost": costs, "_cost": self._everywhere.copy()}

    def _sample_masks(self) -> tuple[Any, ...]:
        return tuple(self.simulation.mask.astype(np.int8))

    def _summary(self, over: Bools, rewards: Floats, costs: Floats) -> dict[str, NDArray[Any]]:
        rows, summary = np.flatnonzero(over), {}
        for key, values in self.simulation.summaries(rows).items():
            summary[key] = np.zeros(self.num_envs, values.dtype)
            summary[key][rows] = values
        return summary

    # Information for policies

    def action_masks(self) -> Bools:
        """Return the actions that are open, (E, a)."""
        return np.array(self.simulation.mask)

    def contexts(self, rows: Ints | None = None) -> Any:
        """Return the input of a policy, of some rows or of all."""
        return self.simulation.contexts(self._every_row if rows is None else rows)

    def team_spec(self) -> Any:
        """Return the facts of the run that a policy is reset with."""
        return self.simulation.spec()


def term_infos(names: Sequence[str], terms: Floats) -> dict[str, NDArray[Any]]:
    """Return the terms (E, n) of rewards as the "rewards" of a batch's infos."""
    every = np.ones(len(terms), np.bool_)
    return {
        **{name: terms[:, i].copy() for i, name in enumerate(names)},
        **{f"_{name}": every.copy() for name in names},
    }
