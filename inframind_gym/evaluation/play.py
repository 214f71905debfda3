"""The player: one policy in several episodes in lock-step, each a row of one simulation.

A row's result depends on its own cell alone: not on the other rows, not on the size of the batch,
not on the process. Simulations and policies have to keep to that, and tests check both. The loop is
that of the environment without autoreset: when an episode is over, its simulation can still be
read.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from inframind_gym.envs.core import check_actions, checked_arguments
from inframind_gym.errors import InfraMindError
from inframind_gym.evaluation.cells import Cell
from inframind_gym.timeouts import HungError, interruptible

Fields = dict[str, NDArray[Any]]  # records of an episode by field, ``(num_records, ...)`` each
Played = tuple[Cell, Fields]


class PolicyFailedError(InfraMindError):
    """A policy cannot play, raised an error, or gave no valid action or none in time.

    `trace` is the traceback of an unexpected error; empty for wrong input and wrong actions.
    """

    def __init__(self, policy: str, reason: str, trace: str = "") -> None:
        super().__init__(policy, reason, trace)
        self.policy, self.reason, self.trace = policy, reason, trace

    def __str__(self) -> str:
        return f"policy {self.policy}: {self.reason}" + (f"\n\n{self.trace}" if self.trace else "")


@contextmanager
def blame(cells: Sequence[Any]) -> Iterator[None]:
    """Turn errors and timeouts of the cells' policy into an error that names the policy."""
    policy = cells[0].policy
    try:
        yield
    except PolicyFailedError:
        raise
    except InfraMindError as error:
        raise PolicyFailedError(policy, str(error)) from error
    except (Exception, SystemExit, HungError) as error:
        trace = "".join(traceback.format_exception(error))
        reason = f"failed with {type(error).__name__}: {error}"
        if isinstance(error, HungError):
            where = f"{cells[0]}, the first of a batch of {len(cells)}"
            reason = f"did not answer in {error.args[0]:g} s (policy_limit_s): {where}"
        raise PolicyFailedError(policy, reason, trace) from error


class Batch:
    """Cells of one group, begun on one simulation; keeps the records of their episodes."""

    def __init__(self, player: Any, cells: Sequence[Cell], policy: Any, simulation: Any) -> None:
        self.player, self.suite = player, player.suite
        self.cells, self.policy, self.simulation = cells, policy, simulation  # a cell a row
        self.observations = simulation.observations()  # (E, d), written by every step
        self.actions = np.zeros((len(cells), len(simulation.highs)), np.int64)  # of the last step

    def begin(self) -> None:
        """Prepare for records; the simulation has been reset."""

    def note(self, rows: NDArray[np.int64]) -> int:
        """Take the records of a step of some rows (k,); return the number of finished records."""
        raise NotImplementedError

    def over(self) -> NDArray[np.bool_]:
        """Return the rows whose episodes are over, (E,)."""
        over: NDArray[np.bool_] = self.simulation.over()
        return over

    def columns(self, row: int) -> Fields:
        """Return the records of a row's episode, which is over."""
        raise NotImplementedError

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Blame the policy for errors in a block, and limit the block's time."""
        with blame(self.cells), interruptible() as within:
            within(self.suite.policy_limit_s)
            yield


class Player:
    """Plays batches of cells of a suite; `progress` is called with numbers of finished records."""

    one_at_a_time: ClassVar[bool] = False  # whether episodes play one after the other, each alone

    def __init__(self, suite: Any, progress: Callable[[int], None] = lambda _: None) -> None:
        self.suite, self.progress = suite, progress
        self.batch: type[Any] = suite.batch
        self._last: tuple[Any, Any] | None = None  # key and simulation of the last batch

    def run(self, cells: Sequence[Cell]) -> list[Played]:
        """Play cells of one group (`Suite.group_of`) to the ends of their episodes.

        Raises:
            PolicyFailedError: The policy cannot play, raised an error or gave no valid action.
        """
        return self.play(self.begin(cells))

    def begin(self, cells: Sequence[Cell]) -> Any:
        """Make the policy and the simulation of cells, and reset both.

        Raises:
            PolicyFailedError: The policy cannot play there.
        """
        batch = self.make(cells)
        with blame(cells):
            self.reset(batch)
        self.reset_policy(batch)
        batch.begin()
        return batch

    def play(self, batch: Batch) -> list[Played]:
        """Play a batch that has begun."""
        simulation, policy = batch.simulation, batch.policy
        truth = getattr(policy, "sees_truth", False)
        with interruptible() as within:
            while len(rows := np.flatnonzero(~batch.over())):
                contexts = simulation.contexts(rows, truth=truth)
                with blame(batch.cells):
                    within(self.suite.policy_limit_s)
                    actions = policy.act_batch(batch.observations[rows], contexts, rows)
                    within(0.0)
                    batch.actions[rows] = check_actions(actions, simulation.highs, len(rows))
                actions = simulation.checked(batch.actions)
                simulation.step(rows, actions, batch.observations)
                self.progress(batch.note(rows))
        return [(cell, batch.columns(row)) for row, cell in enumerate(batch.cells)]

    def check(self, cell: Cell) -> None:
        """Check that a policy can play a cell.

        Raises:
            PolicyFailedError: It cannot.
        """
        self.begin([cell])

    def refused(self, cells: Iterable[Cell]) -> Iterator[PolicyFailedError]:
        """Yield the error of every policy that cannot play one of some cells."""
        failed: set[str] = set()
        for cell in cells:
            try:
                if cell.policy not in failed:
                    self.check(cell)
            except PolicyFailedError as error:
                failed.add(cell.policy)
                yield error

    def warm_up(self, cell: Cell) -> None:
        """Take one step as in a cell, so that compiled code is in the cache."""
        batch = self.begin([cell])
        actions = batch.simulation.checked(batch.actions)
        batch.simulation.step(np.zeros(1, np.int64), actions, batch.observations)

    def close(self) -> None:
        """Close the last simulation."""
        if self._last is not None:
            self._last[1].close()
            self._last = None

    # Parts, which families replace

    def policy(self, cells: Sequence[Cell]) -> Any:
        """Make the policy that plays cells."""
        return self.suite.resolve_policy(self.suite.plays(cells[0]))

    def arguments_of(self, cells: Sequence[Cell], policy: Any) -> dict[str, Any]:
        """Return the arguments of the environment of cells."""
        kwargs: dict[str, Any] = self.suite.env_kwargs(cells[0].place, policy)
        return kwargs

    def make(self, cells: Sequence[Cell], policy: Any = None) -> Any:
        """Make the policy of cells unless it is given, and a simulation; the last one is reused.

        A bound may bring a class of simulation of its own.
        """
        with blame(cells):
            policy = self.policy(cells) if policy is None else policy
            kwargs, rows = self.arguments_of(cells, policy), len(cells)
            own = getattr(policy, "simulation", None) if getattr(policy, "bound", False) else None
            if self._last is None or self._last[0] != (own, kwargs, rows):
                self.close()
                environment = self.suite.environment()
                if own is None:
                    simulation = environment.simulation_of(kwargs, rows)
                else:
                    simulation = own(checked_arguments(environment.arguments, kwargs), rows)
                self._last = (own, kwargs, rows), simulation
            return self.batch(self, cells, policy, self._last[1])

    def reset(self, batch: Batch) -> None:
        """Begin the episodes of a batch."""
        simulation, cells = batch.simulation, batch.cells
        simulation.set_options(self.suite.options(cells))
        simulation.seeded()
        generators = [seeding.np_random(cell.episode_seed)[0] for cell in cells]
        simulation.reset(np.arange(len(cells)), generators, batch.observations)

    def reset_policy(self, batch: Batch) -> None:
        """Reset the policy of a batch for its simulation."""
        with batch.calling():
            seeds = [cell.policy_seed for cell in batch.cells]
            batch.policy.reset(batch.simulation.policy_spec(), seeds)
            self.suite.prepare(batch.policy)
