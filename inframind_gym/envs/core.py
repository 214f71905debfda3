"""`Env` and `VectorEnv`, the two Gymnasium interfaces to a `Simulation`.

A family of environments is a `Simulation` (a batch of E environments with the same settings) and a
pydantic model of its arguments. Its single environment is a batch of one:

    class PlacementEnv(Env):
        arguments = PlacementConfig  # its fields are the constructor's arguments
        simulate = PlacementSimulation

    class PlacementVectorEnv(VectorEnv):
        single = PlacementEnv
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from inspect import Parameter, Signature
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from pydantic import BaseModel

from inframind_gym.configs import validate, without_checks
from inframind_gym.errors import ActionError, ConfigError, require, require_within, unknown
from inframind_gym.simulator.jit import MOST_THREADS

if TYPE_CHECKING:
    from inframind_gym.envs.render import Frame

    _VectorEnv = gym.vector.VectorEnv[Any, NDArray[np.int64], NDArray[Any]]
else:  # before Gymnasium 1.4 it is not generic
    _VectorEnv = gym.vector.VectorEnv

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Float32s = NDArray[np.float32]
Places = dict[str, Ints]
Rngs = Sequence[np.random.Generator]
Parameters = dict[str, tuple[Any, Any]]  # name -> (default, type)
Seeds = int | Sequence[int | None] | None  # of environment 0, or one for each environment
# Observations, rewards, terminations, truncations and infos of a step.
BatchStep = tuple[Any, Floats, Bools, Bools, dict[str, Any]]

MOST_ENVS: Final = 65_536
RENDER_MODES: Final = ("ansi", "rgb_array")
DECISIONS_SHOWN: Final = 12  # in a picture


class ObservationForm:
    """Form of an environment's observations: one Box, or a Dict of parts of it.

    Args:
        flat: Box of all numbers, (d,).
        places: for each entry of the Dict, the indices of its numbers in the Box, in the entry's
            shape; None: observations are the Box itself.

    Attributes:
        space: observation space of one environment.
        width: d.
    """

    def __init__(self, flat: spaces.Box, places: Places | None = None) -> None:
        self._places = places
        self.space: spaces.Space[Any] = flat
        self.width = len(flat.low)
        if places is not None:
            boxes = {
                name: spaces.Box(flat.low[at], flat.high[at], dtype=np.float32)
                for name, at in places.items()
            }
            self.space = spaces.Dict(boxes)  # type: ignore[arg-type]

    def of(self, flat: Float32s) -> Any:
        """Return flat observations (..., d) in this form; the arrays of a Dict are new."""
        if self._places is None:
            return flat
        return {name: flat[..., at] for name, at in self._places.items()}


class Simulation(ABC):
    """E environments with the same settings.

    Args:
        num_envs: E.
        form: form of one environment's observations.
        action_space: action space of one environment.

    Attributes:
        config: the checked arguments.
        highs: (a,) number of choices of each part of an action; empty for a Box.
        has_mask: True if `info` holds an action mask.
        split: split that the tasks are drawn from; None where they have no splits.
        rewards, costs: (E,) of the last step; 0 in environments that did not step.
        terminated, truncated: (E,) True where the episode has ended.
        term_names: names of the n terms whose sum is the reward; empty: it has none.
        terms: (E, n) terms of the last step's reward, in the order of `term_names`.
    """

    config: Any
    has_mask: bool = True
    split: str | None = None
    term_names: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, num_envs: int, form: ObservationForm, action_space: spaces.Space[Any]
    ) -> None:
        self.num_envs, self.form, self.action_space = num_envs, form, action_space
        choices = getattr(action_space, "nvec", getattr(action_space, "n", ()))
        self.highs: Ints = np.atleast_1d(np.asarray(choices, np.int64))
        ends = [0, *np.cumsum(self.highs).tolist()]
        is_multi = isinstance(action_space, spaces.MultiDiscrete)
        self._parts = [slice(a, b) for a, b in pairwise(ends)] if is_multi else []  # of a mask
        self.rewards, self.costs = np.zeros(num_envs), np.zeros(num_envs)
        self.terminated = np.zeros(num_envs, np.bool_)
        self.truncated = np.zeros(num_envs, np.bool_)
        self.terms = np.zeros((num_envs, len(self.term_names)))

    def observations(self) -> Float32s:
        """Return a new array for observations, (E, d), not initialised."""
        return np.empty((self.num_envs, self.form.width), np.float32)

    # Episodes

    def set_options(self, options: dict[str, Any] | None) -> None:
        """Take the options of a reset, for the episodes until the next one.

        Raises:
            ConfigError: an option is unknown or has an impossible value.
        """
        check_options(options, ())

    def seeded(self) -> None:
        """Forget what was learned: the next `reset` has a seed."""
        return

    @abstractmethod
    def reset(self, rows: Ints, rngs: Rngs, observations: Float32s, *, first: bool = True) -> None:
        """Begin new episodes.

        Args:
            rows: (k,) environments.
            rngs: k sources of randomness, one for each of `rows`.
            observations: (E, d), written at `rows`.
            first: False where the episodes follow others and neither seed nor options were given.
        """

    def checked(self, actions: Any) -> NDArray[Any]:
        """Return the actions of all environments, (E,) or (E, a).

        Raises:
            ActionError: an action of the wrong shape or out of range.
        """
        checked = check_actions(actions, self.highs, self.num_envs)
        return checked[:, 0] if isinstance(self.action_space, spaces.Discrete) else checked

    @abstractmethod
    def step(self, rows: Ints, actions: NDArray[Any], observations: Float32s) -> None:
        """Carry out a decision in the environments `rows`; write `rewards` and the other results.

        Args:
            rows: (k,) environments.
            actions: (E,) or (E, a), see `checked`.
            observations: (E, d), written at `rows`.
        """

    def over(self) -> Bools:
        """Return True where an episode is over, (E,)."""
        return self.terminated | self.truncated

    # Results, and information for policies

    @property
    def mask(self) -> Bools:
        """Actions that are open, (E, n); the parts of a MultiDiscrete follow one another."""
        return np.ones((self.num_envs, int(self.highs.sum())), np.bool_)

    def mask_of(self, row: int) -> Bools:
        """Return the actions that are open to an environment, (n,); not to be written to."""
        mask: Bools = self.mask[row]
        return mask

    def sample_mask(self, mask: Bools) -> Any:
        """Return a mask (n,) as `action_space.sample` takes it: int8, for MultiDiscrete a tuple."""
        numbers = mask.astype(np.int8)
        return tuple([numbers[part] for part in self._parts]) if self._parts else numbers

    def sample_mask_of(self, row: int) -> Any:
        """Return a new mask of an environment, as `action_space.sample` takes it."""
        return self.sample_mask(self.mask_of(row))

    def sample_masks(self) -> tuple[Any, ...]:
        """Return the masks of all environments as `action_space.sample` takes them."""
        return tuple(map(self.sample_mask, self.mask) if self._parts else self.mask.astype(np.int8))

    def infos(self) -> dict[str, Any]:
        """Return the infos of a batch's step besides cost, terms and mask: (E, …) arrays."""
        return {}

    def reset_info(self) -> dict[str, Any]:
        """Return a new dict: the info of a reset of environment 0 besides cost and mask."""
        return {}

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """Return a new dict: the info of a step of environment 0 besides cost, terms and mask."""

    @abstractmethod
    def summaries(self, rows: Ints, rewards: Floats, costs: Floats) -> dict[str, NDArray[Any]]:
        """Return the results of episodes that are over, by name, (k,) each.

        Args:
            rows: (k,) environments.
            rewards, costs: (k,) sums over their episodes.
        """

    @abstractmethod
    def contexts(self, rows: Ints, *, truth: bool = False) -> Any:
        """Return the input of a policy for `rows`; `truth` adds the latent state, for bounds."""

    @abstractmethod
    def policy_spec(self) -> Any:
        """Return the facts of the run that a policy is reset with."""

    def describe(self, action: Any) -> tuple[str, str]:
        """Return an action in words, and what it decides; called before its step."""
        return " ".join(map(str, np.atleast_1d(action).tolist())), ""

    def frame(self) -> Frame:
        """Return what a picture of environment 0 shows: tables and bars; nothing changes."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the simulation's resources."""
        return


def checked_arguments(model: type[BaseModel], arguments: Mapping[str, Any]) -> Any:
    """Return arguments as an instance of `model`; `ConfigError` says what is possible."""
    return validate(dict(arguments), model, source="environment")


def _signature(model: type[BaseModel], first: Parameters, last: Parameters) -> Signature:
    """Return a keyword-only signature: `first`, the fields of the model, `last`."""
    fields: Parameters = {
        name: (field.get_default(call_default_factory=True), without_checks(field.annotation))
        for name, field in model.model_fields.items()
    }
    return Signature(
        [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (default, annotation) in (first | fields | last).items()
        ]
    )


class Env(gym.Env[Any, Any]):
    """Single environment: a batch of one behind Gymnasium's interface.

    Args:
        render_mode: None, "ansi" (tables) or "rgb_array" (a picture, (540, 960, 3) uint8);
            `gym.make` also takes "human", a window (extra `render`).
        **arguments: the fields of the class's `arguments`.

    Raises:
        ConfigError: an argument is unknown or has an impossible value; says what is possible.
    """

    # Gymnasium's wrapper shows "human"; without pygame it comes here, whose error names our extra.
    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": [*RENDER_MODES, *([] if find_spec("pygame") else ["human"])],
        "render_fps": 4,
    }
    arguments: ClassVar[type[BaseModel]]
    simulate: ClassVar[Callable[..., Simulation]]  # called with config, num_envs, num_threads
    simulation: Any

    def __init_subclass__(cls) -> None:
        """Show the arguments in the signature."""
        super().__init_subclass__()
        if "arguments" in vars(cls):
            mode: Parameters = {"render_mode": (None, "str | None")}
            cls.__signature__ = _signature(cls.arguments, {}, mode)  # type: ignore[attr-defined]

    @classmethod
    def simulation_of(
        cls, arguments: Mapping[str, Any], num_envs: int, num_threads: int = 1
    ) -> Any:
        """Check the arguments and make the simulation of E environments."""
        config = checked_arguments(cls.arguments, arguments)
        return cls.simulate(config, num_envs, num_threads=num_threads)

    def __init__(self, *, render_mode: str | None = None, **arguments: Any) -> None:
        if render_mode == "human":
            require("pygame", "a window (render_mode='human')", "render")
        if render_mode not in (None, *RENDER_MODES):
            raise ConfigError(unknown("render_mode", render_mode, RENDER_MODES))
        self.render_mode = render_mode
        self.metadata = self.metadata | {"render_modes": list(RENDER_MODES)}
        self.simulation = self.simulation_of(arguments, 1)
        self.config = self.simulation.config
        self.observation_space = self.simulation.form.space
        self.action_space = self.simulation.action_space
        self._row = np.zeros(1, np.int64)  # the only one
        # Every step writes to it: callers get copies.
        self._observations = self.simulation.observations()
        self._started = self._running = False
        self._episode_cost = self._episode_reward = 0.0
        self._decisions: deque[tuple[str, str]] = deque(maxlen=DECISIONS_SHOWN)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; see Starting State.

        Raises:
            ConfigError: an option is unknown or has an impossible value.
        """
        super().reset(seed=seed)
        simulation = self.simulation
        simulation.set_options(options)
        if seed is not None:
            simulation.seeded()
        first = seed is not None or bool(options) or not self._started
        simulation.reset(self._row, [self.np_random], self._observations, first=first)
        self._started = self._running = True
        self._episode_cost = self._episode_reward = 0.0
        self._decisions.clear()
        return self._outputs(simulation.reset_info(), 0.0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Carry out a decision and let time run to the next one.

        Raises:
            ActionError: an action of the wrong shape or out of range.
            gymnasium.error.ResetNeeded: the episode is over.
        """
        if not self._running:
            raise gym.error.ResetNeeded("the episode is over; call reset() before step()")
        simulation = self.simulation
        actions = simulation.checked(action)
        if self.render_mode is not None:
            self._decisions.append(self.describe(actions[0]))
        simulation.step(self._row, actions, self._observations)
        reward, cost = float(simulation.rewards[0]), float(simulation.costs[0])
        self._episode_cost += cost
        self._episode_reward += reward
        terminated, truncated = simulation.terminated.item(), simulation.truncated.item()
        observation, info = self._outputs(simulation.info(), cost)
        if simulation.term_names:
            terms = simulation.terms[0].tolist()
            info["rewards"] = dict(zip(simulation.term_names, terms, strict=True))
        if terminated or truncated:
            self._running = False
            sums = self._episode_reward, self._episode_cost
            summaries = simulation.summaries(self._row, np.array(sums[:1]), np.array(sums[1:]))
            info["episode_reward"], info["episode_cost"] = sums
            info |= {name: values[0].item() for name, values in summaries.items()}
        return observation, reward, terminated, truncated, info

    def _outputs(self, info: dict[str, Any], cost: float) -> tuple[Any, dict[str, Any]]:
        """Return the present observation, and `info` with cost and mask."""
        info["cost"] = cost
        if self.simulation.has_mask:
            info["action_mask"] = self.simulation.sample_mask_of(0)
        return self.simulation.form.of(self._observations[0].copy()), info

    def render(self) -> Any:
        """Return tables ("ansi") or a picture, (540, 960, 3) uint8 ("rgb_array")."""
        if self.render_mode is None:
            return None
        from inframind_gym.envs import render

        sums = f"reward {self._episode_reward:.2f}, cost {self._episode_cost:.4g}"
        frame = self.frame()._replace(decisions=tuple(reversed(self._decisions)), sums=sums)
        return render.text(frame) if self.render_mode == "ansi" else render.picture(frame)

    def describe(self, action: Any) -> tuple[str, str]:
        """Return an action in words, and what it decides; called before its step."""
        return cast("tuple[str, str]", self.simulation.describe(action))

    def frame(self) -> Frame:
        """Return what `render` shows: tables and bars; the simulation does not change."""
        return cast("Frame", self.simulation.frame())

    def close(self) -> None:
        """Release the simulation's resources."""
        self.simulation.close()
        self._started = self._running = False
        super().close()

    # Information for policies

    def action_masks(self) -> Bools:
        """Return the actions that are open, (n,), as MaskablePPO takes them."""
        return np.array(self.simulation.mask_of(0))

    def context(self) -> Any:
        """Return the input of a policy, arrays with a first axis of 1."""
        return self.simulation.contexts(self._row)

    def policy_spec(self) -> Any:
        """Return the facts of the run that a policy is reset with."""
        return self.simulation.policy_spec()


class VectorEnv(_VectorEnv):
    """E environments that step together; row i does what a single environment of its seed does.

    Where an episode ends, the next one begins in the same step (`AutoresetMode.SAME_STEP`): the
    observation is the next episode's first, `infos["final_obs"]` and `infos["final_info"]` are the
    old one's last; rewards, costs and records are always those of the step that was taken.
    `infos["action_mask"]` fits `action_space.sample(mask=…)`; `contexts()` has the next decisions.

    Args:
        num_envs: E.
        num_threads: threads that share the rows of compiled environments; results do not change.
        **arguments: arguments of the single environment.

    Raises:
        ConfigError: an argument is unknown or has an impossible value; says what is possible.
    """

    single: ClassVar[type[Env]]
    simulation: Any
    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init_subclass__(cls) -> None:
        """Show the arguments in the signature."""
        super().__init_subclass__()
        if "single" in vars(cls):
            batch: Parameters = {"num_envs": (1, "int"), "num_threads": (1, "int")}
            arguments = cls.single.arguments
            cls.__signature__ = _signature(arguments, batch, {})  # type: ignore[attr-defined]

    def __init__(
        self, num_envs: int = 1, *, num_threads: int = 1, render_mode: None = None, **arguments: Any
    ) -> None:
        for name, number, most in (
            ("num_envs", num_envs, MOST_ENVS),
            ("num_threads", num_threads, MOST_THREADS),
        ):
            require_within(number, 1, most, name)
            if not isinstance(number, int | np.integer):
                raise ConfigError(f"{name} must be an integer, got {number!r}")
        if render_mode is not None:
            raise ConfigError("a vector environment is not rendered; make a single one to look at")
        self.num_envs, self.num_threads = int(num_envs), int(num_threads)
        simulation = self.single.simulation_of(arguments, self.num_envs, self.num_threads)
        self.simulation, self.config = simulation, simulation.config
        self.single_observation_space = simulation.form.space
        self.single_action_space = space = simulation.action_space
        self.observation_space = batch_space(simulation.form.space, self.num_envs)
        self.action_space = batch_space(space, self.num_envs)
        if isinstance(space, spaces.MultiDiscrete):
            # Not Gymnasium's Box of integers, which samples without masks.
            self.action_space = spaces.MultiDiscrete(np.tile(space.nvec, (self.num_envs, 1)))
        self._generators: list[np.random.Generator] = []  # empty before the first reset
        self._episode_costs, self._episode_rewards = np.zeros(num_envs), np.zeros(num_envs)
        self._every_row = np.arange(num_envs)

    def reset(
        self, *, seed: Seeds = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode everywhere.

        Args:
            seed: of environment 0 (environment i takes seed + i), or one for each environment.
            options: options of the single environment.

        Raises:
            ConfigError: an option is wrong, or the number of seeds.
        """
        self.simulation.set_options(options)
        if seed is not None:
            self.simulation.seeded()
        if seed is not None or not self._generators:
            self._generators = [seeding.np_random(s)[0] for s in row_seeds(seed, self.num_envs)]
        self._episode_costs[:] = self._episode_rewards[:] = 0.0
        observations = self.simulation.observations()
        self.simulation.reset(self._every_row, self._generators, observations)
        infos: dict[str, Any] = {"cost": np.zeros(self.num_envs)}
        if self.simulation.split is not None:
            infos["split"] = np.full(self.num_envs, self.simulation.split)
        return self.simulation.form.of(observations), self._batch_infos(infos)

    def step(self, actions: Any) -> BatchStep:
        """Carry out one action in every environment.

        Raises:
            ActionError: an action of the wrong shape or out of range.
            ConfigError: `reset` was not called.
        """
        if not self._generators:
            raise ConfigError("call reset() before step()")
        simulation = self.simulation
        checked = simulation.checked(actions)
        observations = simulation.observations()
        simulation.step(self._every_row, checked, observations)
        rewards, costs = simulation.rewards.copy(), simulation.costs.copy()
        terminated, truncated = simulation.terminated.copy(), simulation.truncated.copy()
        infos = {"cost": costs, **simulation.infos()}
        if simulation.term_names:
            terms = dict(zip(simulation.term_names, simulation.terms.T.copy(), strict=True))
            present = {f"_{name}": np.ones(self.num_envs, np.bool_) for name in terms}
            infos["rewards"] = terms | present
        self._episode_costs += costs
        self._episode_rewards += rewards
        over = terminated | truncated
        rows, final = over.nonzero()[0], dict[str, Any]()
        if len(rows):
            final_obs = np.empty(self.num_envs, object)
            for row in rows.tolist():
                final_obs[row] = simulation.form.of(observations[row].copy())
            final = {"final_obs": final_obs, "_final_obs": over}
            final |= {"final_info": self._final_info(rows, costs), "_final_info": over.copy()}
            rngs = [self._generators[row] for row in rows.tolist()]
            simulation.reset(rows, rngs, observations, first=False)
        infos = self._batch_infos(infos) | final
        return simulation.form.of(observations), rewards, terminated, truncated, infos

    def _batch_infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        """Add action masks, and for each name `_name`: True in every row, as all rows have it."""
        if self.simulation.has_mask:
            infos["action_mask"] = self.simulation.sample_masks()
        return infos | {f"_{name}": np.ones(self.num_envs, np.bool_) for name in infos}

    def _final_info(self, rows: Ints, costs: Floats) -> dict[str, NDArray[Any]]:
        """Return the last infos of the episodes of `rows`, which are over; reset their sums."""
        over = self.simulation.over()
        rewards, sums = self._episode_rewards[rows], self._episode_costs[rows]
        self._episode_rewards[rows] = self._episode_costs[rows] = 0.0
        values = {"cost": costs[rows], "episode_cost": sums, "episode_reward": rewards}
        final: dict[str, NDArray[Any]] = {}
        for name, results in (values | self.simulation.summaries(rows, rewards, sums)).items():
            final[name] = np.zeros(self.num_envs, results.dtype)
            final[name][rows] = results
        return final | {f"_{name}": over.copy() for name in final}

    def close_extras(self, **_: Any) -> None:
        """Release the simulation's resources."""
        self.simulation.close()

    # Information for policies

    def action_masks(self) -> Bools:
        """Return the actions that are open, (E, n)."""
        return np.array(self.simulation.mask)

    def contexts(self, rows: Ints | None = None) -> Any:
        """Return the input of a policy, of some rows or of all."""
        return self.simulation.contexts(self._every_row if rows is None else self._every_row[rows])

    def policy_spec(self) -> Any:
        """Return the facts of the run that a policy is reset with."""
        return self.simulation.policy_spec()


def row_seeds(seed: Seeds, num_envs: int) -> list[int | None]:
    """Return the seed of each row of a batch: seed + i for row i, or the i-th of a list.

    Raises:
        ConfigError: neither an integer nor a list of them, or a list of the wrong length.
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


def check_actions(actions: Any, highs: Ints, num_envs: int, out: Ints | None = None) -> Ints:
    """Return actions as a contiguous, writable array (num_envs, a), every number in its range.

    Args:
        actions: one action for each environment, in any form that NumPy takes.
        highs: (a,) int64 number of choices of each part.
        num_envs: number of actions that are expected.
        out: array (num_envs, a) to write and return; None: a new one.

    Raises:
        ActionError: a wrong shape, a number that is not an integer, or one out of range.
    """
    array = np.asarray(actions)
    if array.dtype.kind not in "iu":
        raise ActionError(
            f"actions must be integers, got {array.dtype} ({actions!r}); use the action space"
        )
    parts = len(highs)
    fits = (
        array.shape == (num_envs, parts)
        or (parts == 1 and array.shape == (num_envs,))
        or (num_envs == 1 and array.shape == (parts,))
        or (num_envs == parts == array.size == 1)
    )
    if not fits:
        raise ActionError(
            f"actions have shape {array.shape}; expected {num_envs} of {parts} numbers each"
        )
    array = array.reshape(num_envs, parts)
    checked = np.empty((num_envs, parts), np.int64) if out is None else out
    np.copyto(checked, array, casting="same_kind")
    # As unsigned numbers, negative ones are large.
    if np.count_nonzero(checked.view(np.uint64) >= highs.view(np.uint64)):
        env, part = np.argwhere((array < 0) | (array >= highs))[0].tolist()
        where = f" of environment {env}" if num_envs > 1 else ""
        where += f", part {part}" if parts > 1 else ""
        raise ActionError(
            f"action {array[env, part]}{where} is out of range: it must be in 0..{highs[part] - 1}"
        )
    return checked


def check_options(options: object, known: Sequence[str]) -> dict[str, Any]:
    """Return the options of a `reset`.

    Raises:
        ConfigError: they are not a dict, or one is unknown.
    """
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise ConfigError(f"reset: options must be a dict or None, got {options!r}")
    for key in options:
        if key not in known:
            raise ConfigError(f"reset: {unknown('option', key, known)}")
    return options
