"""Routers of tasks: Q-learning over task type and load state, and fixed rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.rng import STREAM_POLICY
from inframind_gym.teams.assignment import rules
from inframind_gym.teams.assignment.draws import Draws
from inframind_gym.teams.assignment.model import TaskAssignment, all_actions
from inframind_gym.teams.assignment.names import Ties


class Router(Protocol):
    """Chooser of an action for each task; a learner also gets the reward.

    Attributes:
        actions: What may be chosen.
        epsilon: Probability of exploring; 0 for what does not explore.
    """

    actions: list[TaskAssignment]
    epsilon: float

    def select_action(self, task_type: str, load_state: str) -> tuple[int, TaskAssignment]:
        """Return the index of the chosen action, and the action."""
        ...

    def update(
        self,
        task_type: str,
        load_state: str,
        action_idx: int,
        reward: float,
        next_task_type: str | None,
        next_load_state: str,
    ) -> None:
        """Learn from an adjusted reward."""

    def ended(self, action_idx: int) -> None:
        """Note that the agent's call of an action has ended, answered or failed."""

    def decay_epsilon(self) -> None:
        """Explore less."""


class Action(Protocol):
    """Named object of a choice."""

    def key(self) -> str:
        """Return the action as one string."""
        ...


ActionT = TypeVar("ActionT", bound=Action)


class QLearningCoordinator(Generic[ActionT]):
    """Epsilon-greedy Q-learning (Watkins and Dayan 1992) over states (task type, load state).

    Args:
        task_types: First half of the state.
        load_states: Second half of the state.
        actions: What may be chosen.
        lr: Learning rate.
        gamma: Discount.
        epsilon: Probability of exploring at the start.
        epsilon_min: The least that it decays to.
        epsilon_decay: Its factor at every `decay_epsilon`.
        ties: Which of equally good actions is taken: the first, or a random one.
        seed: For the draws of `select_action` when the caller brings none.
        keep_history: Let `history` grow by one record an update.

    Attributes:
        q_table: (task type, load state) -> (actions,) values, all 0 at the start.
        visits: (task type, load state) -> (actions,) updates.
        history: One mapping for each update.
    """

    def __init__(
        self,
        task_types: Sequence[str],
        load_states: Sequence[str],
        actions: Sequence[ActionT],
        lr: float = rules.LEARNING_RATE,
        gamma: float = rules.DISCOUNT,
        epsilon: float = rules.EPSILON,
        epsilon_min: float = rules.EPSILON_MIN,
        epsilon_decay: float = rules.EPSILON_DECAY,
        *,
        ties: Ties = "first",
        seed: int = 0,
        keep_history: bool = True,
    ) -> None:
        self.task_types = list(task_types)
        self.load_states = list(load_states)
        self.actions = list(actions)
        self.lr = lr
        self.gamma = gamma
        self.epsilon = epsilon
        self.epsilon_min = epsilon_min
        self.epsilon_decay = epsilon_decay
        self.ties = ties
        states = [(t, s) for t in self.task_types for s in self.load_states]
        self.q_table: dict[tuple[str, str], NDArray[np.float64]] = {
            state: np.zeros(len(self.actions)) for state in states
        }
        self.visits = {state: np.zeros(len(self.actions), np.int64) for state in states}
        self.keep_history = keep_history
        self.history: list[dict[str, Any]] = []
        self._draws = Draws(seed)
        self._decisions = 0

    def select_action(
        self,
        task_type: str,
        load_state: str,
        *,
        allowed: NDArray[np.bool_] | None = None,
        draws: tuple[float, float] | None = None,
    ) -> tuple[int, ActionT]:
        """Choose an action: a random one with probability epsilon, else one of the best.

        Args:
            task_type: First half of the state.
            load_state: Second half of the state.
            allowed: (actions,) which may be chosen; all of them if None.
            draws: Two uniform numbers, for exploring or not, and for the place; own ones if None.

        Returns:
            The action's index and the action.
        """
        explore, which = draws or self._own_draws()
        if explore < self.epsilon:
            found = range(len(self.actions)) if allowed is None else np.flatnonzero(allowed)
            index = int(found[int(which * len(found))])
        else:
            values = self.q_table[task_type, load_state]
            values = values if allowed is None else np.where(allowed, values, -np.inf)
            best = np.flatnonzero(values == values.max())
            index = int(best[0 if self.ties == "first" else int(which * len(best))])
        return index, self.actions[index]

    def update(
        self,
        task_type: str,
        load_state: str,
        action_idx: int,
        reward: float,
        next_task_type: str | None,
        next_load_state: str,
    ) -> None:
        """Q += lr * (reward + gamma * max Q(next state) - Q); no next state if the type is None."""
        row = self.q_table[task_type, load_state]
        old_q, max_next_q = float(row[action_idx]), 0.0
        if next_task_type is not None:
            max_next_q = float(self.q_table[next_task_type, next_load_state].max())
        target = float(rules.td_target(reward, max_next_q, self.gamma))
        row[action_idx] = rules.q_update(old_q, target, self.lr)
        self.visits[task_type, load_state][action_idx] += 1
        if self.keep_history:
            self.history.append(
                {
                    "task_type": task_type,
                    "load_state": load_state,
                    "action": self.actions[action_idx].key(),
                    "reward": reward,
                    "td_target": target,
                    "old_q": old_q,
                    "new_q": float(row[action_idx]),
                }
            )

    def ended(self, action_idx: int) -> None:
        """See `Router`."""

    def decay_epsilon(self) -> None:
        """Explore less: epsilon becomes max(epsilon_min, epsilon * epsilon_decay)."""
        self.epsilon = float(rules.decayed(self.epsilon, self.epsilon_min, self.epsilon_decay))

    def policy(self, load_state: str = "balanced") -> dict[str, ActionT | None]:
        """Return the best action for each task type in a load state; None where none was tried."""
        return {task_type: self._best(task_type, load_state) for task_type in self.task_types}

    def _best(self, task_type: str, load_state: str) -> ActionT | None:
        tried = self.visits[task_type, load_state] > 0
        values = np.where(tried, self.q_table[task_type, load_state], -np.inf)
        return self.actions[int(values.argmax())] if tried.any() else None

    def _own_draws(self) -> tuple[float, float]:
        explore, which = (self._draws.at(STREAM_POLICY, self._decisions, i) for i in (0, 1))
        self._decisions += 1
        return explore, which


class FixedRouter:
    """Base of routers that learn nothing; methods are those of `Router`."""

    def __init__(self, seed: int = 0) -> None:
        self.actions = list(all_actions())
        self.epsilon = 0.0
        self._draws = Draws(seed)
        self._decisions = 0

    def choose(self) -> int:
        """Return the index of an action."""
        raise NotImplementedError

    def select_action(self, task_type: str, load_state: str) -> tuple[int, TaskAssignment]:
        """Return the index of the chosen action, and the action."""
        index = self.choose()
        self._decisions += 1
        return index, self.actions[index]

    def update(self, *_: Any, **__: Any) -> None:
        """Learn nothing."""

    def ended(self, action_idx: int) -> None:
        """Count nothing."""

    def decay_epsilon(self) -> None:
        """Change nothing."""


class RandomRouter(FixedRouter):
    """Choose any of the actions."""

    def choose(self) -> int:
        """See `FixedRouter`."""
        return self._draws.one_of(len(self.actions), STREAM_POLICY, self._decisions)


class RoundRobin(FixedRouter):
    """Choose the agents in turn, on the first provider."""

    def choose(self) -> int:
        """See `FixedRouter`."""
        return int(rules.in_turn(self._decisions))


class LeastBusy(FixedRouter):
    """Choose the action with fewest calls in flight, the first of equals.

    This is the rule of LiteLLM's "least-busy" strategy (its `router_strategy/least_busy.py` as of
    2026; issues 39322 and 38746 of BerriAI/litellm describe the effect): a call raises its
    deployment's count, its end lowers it, and the comparison is strict. Where calls come one after
    the other all counts are 0 at every decision, so all of them go to the first deployment.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.in_flight = [0] * len(self.actions)

    def choose(self) -> int:
        """See `FixedRouter`."""
        index = self.in_flight.index(min(self.in_flight))
        self.in_flight[index] += 1
        return index

    def ended(self, action_idx: int) -> None:
        """Count the end of a call."""
        self.in_flight[action_idx] -= 1


FIXED_ROUTERS: Final[dict[str, type[FixedRouter]]] = {
    "random": RandomRouter,
    "round_robin": RoundRobin,
    "least_busy": LeastBusy,
}
