"""A batch of simulated teams, behind the single and the vector environment."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from inframind_gym.envs.observations import ObservationForm
from inframind_gym.envs.teams import TeamSimulation, term_infos
from inframind_gym.envs.token_budget.config import TokenBudgetConfig, token_budget_config
from inframind_gym.envs.token_budget.context import (
    TokenBudgetContext,
    TokenBudgetSpec,
    Truth,
    contexts,
)
from inframind_gym.envs.token_budget.observation import HIGH, LOW, observe
from inframind_gym.envs.token_budget.reward import TERMS, reward_terms
from inframind_gym.errors import ActionError
from inframind_gym.teams.token_budget import rules
from inframind_gym.teams.token_budget.optimum import state_of
from inframind_gym.teams.token_budget.rules import CRITIC, EXECUTOR, NUM_ACTIONS, STOP, Ints
from inframind_gym.teams.token_budget.settings import (
    AGENTS,
    SIZES,
    STRATEGIES,
    TeamSettings,
    load_settings,
)
from inframind_gym.teams.token_budget.simulate import SimulatedTask, make_task
from inframind_gym.teams.token_budget.state import TeamState

LOGIT_SCALE: Final = 4.0  # of the continuous action
STOP_ABOVE: Final = 0.5  # last number of the continuous action
CONTINUOUS_SIZE: Final = 4  # logits of three shares, and of stopping
_ORDER: Final = np.array([[0, 1, 2], [1, 2, 0], [2, 1, 0]])  # who is called, and who instead


class TokenBudgetSimulation(TeamSimulation):
    """E teams with the same settings.

    Args:
        config: the environment's arguments.
        num_envs: E.

    Attributes:
        settings: constants of the team.
        task: what the calls do.
        state: ledgers, scores and what is open.
        terms: (E, 2) terms of the last step's reward, in the order of `reward.TERMS`.
        tokens, action: (E,) of the last step; of a continuous one the call that it led to.

    Raises:
        ConfigError: there is no such team or profile, or the budget is none of its token units.
    """

    config_of = staticmethod(token_budget_config)

    def __init__(self, config: TokenBudgetConfig, num_envs: int) -> None:
        self.has_mask = config.action == "discrete"
        discrete, numbers = spaces.Discrete(NUM_ACTIONS), (CONTINUOUS_SIZE,)
        choices = discrete if self.has_mask else spaces.Box(-1.0, 1.0, numbers, np.float32)
        super().__init__(num_envs, ObservationForm(spaces.Box(LOW, HIGH), None), choices)
        self.config = config
        self.settings: TeamSettings = load_settings(config.team)
        self.task = make_task(self.settings, config.profile, num_envs)
        paid = config.overhead and self.task.has_overhead
        self.preflight = self.settings.overhead.preflight if paid else 0
        self.self_eval = self.settings.overhead.self_eval if paid else 0
        self.state = TeamState(
            self.settings,
            num_envs,
            self.task.max_tokens,
            self.task.weights,
            self.self_eval,
            config.max_steps,
        )
        self.terms = np.zeros((num_envs, len(TERMS)))
        self.tokens, self.action, self._turn = np.zeros((3, num_envs), np.int64)
        self._area = np.zeros(num_envs)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Calls, cuts, reallocations and stops that are open, (E, 16)."""
        return self.state.mask

    def checked(self, actions: Any) -> NDArray[Any]:
        """Return the actions of all environments, (E,) or (E, 4).

        Raises:
            ActionError: an action of the wrong shape or out of range, or not finite.
        """
        if self.has_mask:
            return super().checked(actions)
        return continuous_actions(actions, self.num_envs)

    def start(
        self,
        rows: Ints,
        generators: Sequence[np.random.Generator],
        observations: NDArray[np.float32],
    ) -> None:
        """See `TeamSimulation`."""
        low, high = self.config.budget_range
        unit = self.settings.token_unit
        keys = np.array([rng.integers(2**64, dtype=np.uint64) for rng in generators])
        budget = np.full(len(rows), low // unit * unit)
        if high > low:
            ratio = np.array([rng.random() for rng in generators])
            budget = np.floor(low * (high / low) ** ratio / unit).astype(np.int64) * unit
        self.task.start(rows, keys)
        self.state.begin(
            rows, budget, STRATEGIES.index(self.config.strategy), self.task.seen[rows], 0
        )
        if self.config.scope_down:
            small = budget < self.state.minimum_budget(rows)
            self.task.scope_down(rows[small])
            self.state.seen[rows] = self.task.seen[rows]
        self.state.ledger.overhead[rows] += self.preflight
        self.terms[rows] = 0.0
        for part in (self.tokens, self._turn, self._area):
            part[rows] = 0
        self._look(rows)
        observations[rows] = observe(self.state, rows)

    def _look(self, rows: Ints) -> None:
        self.state.look(rows, self.task.prompt_estimates(rows), self.task.has_draft(rows))

    def step_rows(
        self, rows: Ints, actions: NDArray[Any], observations: NDArray[np.float32]
    ) -> None:
        """See `TeamSimulation`; the actions are (E,) 0-15, or (E, 4) numbers."""
        chosen = actions[rows]
        discrete = chosen if chosen.ndim == 1 else self._allocate(rows, chosen)
        calling, agents, sizes, limits = self.state.decide(rows, discrete)
        self.action[rows] = discrete
        gain, tokens = np.zeros((2, self.num_envs))
        if len(calling):
            before = self.task.truth(calling)
            calls = self.task.call(calling, agents, sizes, limits)
            used = calls.prompt + calls.completion
            rules.spend(self.state.ledger, calling, agents, used)
            self.state.ledger.overhead[calling] += self.self_eval
            self.state.score(calling, agents, used, calls.evidence)
            gain[calling], tokens[calling] = calls.gain, used + self.self_eval
            self._area[calling] += before * tokens[calling]
        self.tokens = tokens.astype(np.int64)
        self.terms = np.zeros_like(self.terms)
        self.terms[rows] = reward_terms(gain[rows], tokens[rows], self.config.price)
        self._look(rows)
        observations[rows] = observe(self.state, rows)

    def _allocate(self, rows: Ints, numbers: NDArray[np.float64]) -> Ints:
        """Allocate what remains by continuous actions (k, 4); return the calls that follow.

        The agent whose turn it is is called at the largest size that its allocation pays; where it
        pays none, another agent; where none can be called, the team stops.
        """
        logits = LOGIT_SCALE * np.clip(numbers[:, :3].astype(np.float64), -1.0, 1.0)
        weights = np.exp(logits)
        rules.share_out(self.state.ledger, rows, weights / weights.sum(axis=1, keepdims=True))
        self.state.open_actions(rows)
        limits = self.state.limits[rows]
        order = _ORDER[self._turn[rows]]
        open_ = np.take_along_axis(limits[:, :, 0] > 0, order, axis=1)
        agents = order[np.arange(len(rows)), open_.argmax(axis=1)]
        at_size = limits[np.arange(len(rows)), agents] >= self.task.max_tokens[agents]
        sizes = np.maximum(at_size.sum(axis=1) - 1, 0)
        ends = ~open_.any(axis=1) | (numbers[:, 3] > STOP_ABOVE)
        follows = np.where(agents == EXECUTOR, CRITIC, EXECUTOR)
        self._turn[rows] = np.where(ends, self._turn[rows], follows)
        return np.where(ends, STOP, agents * len(SIZES) + sizes)

    # Results

    def over(self) -> NDArray[np.bool_]:
        """Return (E,) whether each episode has ended."""
        return self.state.over.copy()

    def ends(self, rows: Ints) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return (E,) whose episodes have ended by a decision, and by their number of steps."""
        truncated = self.state.truncated
        return self.state.over & ~truncated, self.state.over & truncated

    def rewards(self) -> NDArray[np.float64]:
        """Return (E,) rewards of the last step."""
        return np.asarray(self.terms.sum(axis=1))

    def infos(self) -> dict[str, Any]:
        """Return terms of the rewards, actions, tokens and reasons of the last step."""
        return {
            "rewards": term_infos(TERMS, self.terms),
            "action": self.action.copy(),
            "tokens": self.tokens.copy(),
            "reason": self.state.reason.copy(),
        }

    def costs(self) -> NDArray[np.float64]:
        """Return (E,) shares of the budgets that the last step took."""
        return np.asarray(self.tokens / np.maximum(self.state.ledger.budget, 1))

    def summaries(self, rows: Ints) -> dict[str, NDArray[Any]]:
        """Return what episodes have come to, (k,) each.

        `quality` is the true one, `reported_quality` that of the proxies; `drained` says whether
        no call was left to be paid, `overshoot` by how many tokens the budget was exceeded;
        `quality_area` is the mean true quality over the budget, spent token by token.
        """
        ledger, progress = self.state.ledger, self.state.progress
        budget, spent = ledger.budget[rows], ledger.spent[rows]
        truth, rest = self.task.truth(rows), np.maximum(ledger.remaining[rows], 0)
        least = self.settings.min_completion_tokens + self.self_eval
        needed = self.state.estimates[rows].min(axis=1) + least
        return {
            "quality": truth,
            "reported_quality": progress.score[rows],
            "tokens": spent,
            "agent_tokens": ledger.used[rows].sum(axis=1),
            "overhead_tokens": ledger.overhead[rows],
            "budget": budget,
            "unspent_share": rest / budget,
            "overshoot": np.maximum(spent - budget, 0),
            "drained": (ledger.remaining[rows] < needed).astype(np.int64),
            "calls": progress.calls[rows].sum(axis=1),
            "decisions": self.state.steps[rows],
            "quality_area": (self._area[rows] + truth * rest) / budget,
        }

    def event(self, row: int) -> dict[str, Any]:
        """Return the event of a row's last step, an empty dict for a reallocation."""
        action = int(self.action[row])
        return self.state.event(row, action, self.run_id(row), rules.describe(action))

    def run_id(self, row: int) -> str:
        """Return the name of a row's episode, a function of its seed."""
        return str(uuid.UUID(int=int(self.task.keys[row])))

    def contexts(self, rows: Ints, *, truth: bool = False) -> TokenBudgetContext:
        """Return the input of a policy; `truth` adds the latent state, for the optimum alone."""
        return contexts(self.state, rows, self.truth(rows) if truth else None)

    def truth(self, rows: Ints) -> Truth | None:
        """Return the latent state of simulated tasks, None for a script."""
        task = self.task
        if not isinstance(task, SimulatedTask):
            return None
        state = state_of(
            task.plan[rows], task.sections[rows], task.hidden[rows], task.flagged[rows]
        )
        return Truth(task.complexity[rows], task.value[rows], state)

    def spec(self) -> TokenBudgetSpec:
        """Return the facts of the run that a policy is reset with."""
        config = self.config
        return TokenBudgetSpec(
            self.settings, config.price, config.budget_range[1], config.max_steps, self.self_eval
        )

    def table(self, row: int) -> str:
        """Return a team as text, a line an agent."""
        ledger, progress = self.state.ledger, self.state.progress
        lines = [
            f"{ledger.spent[row]:,} of {ledger.budget[row]:,} tokens, quality "
            f"{progress.score[row]:.0f} by the proxies, {progress.flags_open[row]} open flags",
            "agent     calls    used    left  last ROI",
        ]
        for i, agent in enumerate(AGENTS):
            last = "cut" if ledger.cut[row, i] else f"{progress.last_roi[row, i]:8.4f}"
            lines.append(
                f"{agent:9}{progress.calls[row, i]:6d}{ledger.used[row, i]:8,d}"
                f"{ledger.left[row, i]:8,d}  {last:>8}"
            )
        return "\n".join(lines)


def continuous_actions(actions: Any, num_envs: int) -> NDArray[np.float64]:
    """Return continuous actions as a new array (num_envs, 4).

    Raises:
        ActionError: a wrong shape, or a number that is not finite.
    """
    try:
        array = np.array(actions, np.float64)
    except (TypeError, ValueError):
        raise ActionError(f"actions must be numbers, got {actions!r:.80}") from None
    if array.size != num_envs * CONTINUOUS_SIZE or array.shape[-1:] != (CONTINUOUS_SIZE,):
        raise ActionError(
            f"actions have shape {array.shape}; expected {num_envs} of {CONTINUOUS_SIZE} numbers "
            "each"
        )
    if not np.isfinite(array).all():
        raise ActionError("actions must be finite numbers, got nan or inf")
    return array.reshape(num_envs, CONTINUOUS_SIZE)
