"""A batch of simulated teams, behind the single and the vector environment."""

from __future__ import annotations

import uuid
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.token_budget.config import TokenBudgetConfig
from inframind_gym.envs.token_budget.context import (
    TokenBudgetContext,
    TokenBudgetSpec,
    Truth,
    contexts,
)
from inframind_gym.envs.token_budget.observation import OBSERVATION_SIZE, observe
from inframind_gym.envs.token_budget.reward import TERMS, reward_terms
from inframind_gym.teams.token_budget import rules
from inframind_gym.teams.token_budget.optimum import solve, state_of
from inframind_gym.teams.token_budget.rules import CRITIC, EXECUTOR, STOP, Ints
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
_ORDER: Final = np.array([[0, 1, 2], [1, 2, 0], [2, 1, 0]])  # who is called, and who instead


class TokenBudgetSimulation:
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

    def __init__(self, config: TokenBudgetConfig, num_envs: int) -> None:
        self.config, self.num_envs = config, num_envs
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
        self._all_rows = np.arange(num_envs)

    def observations(self) -> NDArray[np.float32]:
        """Return a fresh array (E, d)."""
        return np.empty((self.num_envs, OBSERVATION_SIZE), np.float32)

    def start(
        self,
        rows: Ints,
        generators: list[np.random.Generator],
        observations: NDArray[np.float32],
    ) -> None:
        """Begin a new episode in some environments.

        Args:
            rows: (k,) environments.
            generators: k sources of randomness, one an environment.
            observations: (E, d), written at `rows`.
        """
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

    def step(self, actions: Any, observations: NDArray[np.float32]) -> None:
        """Carry out a decision in every environment; see `step_rows`."""
        self.step_rows(self._all_rows, actions, observations)

    def step_rows(self, rows: Ints, actions: Any, observations: NDArray[np.float32]) -> None:
        """Carry out a decision in the environments `rows` (k,) alone.

        Args:
            rows: (k,) environments.
            actions: (E,) 0-15, or (E, 4) numbers of the continuous action.
            observations: (E, d), written at `rows`.
        """
        chosen = np.asarray(actions)[rows]
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
        self.tokens[rows] = tokens[rows]
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

    def truncated(self) -> NDArray[np.bool_]:
        """Return (E,) whether each episode has ended by its number of steps alone."""
        return self.state.truncated

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

    def summary(self, row: int) -> dict[str, Any]:
        """Return what an episode has come to, see `summaries`."""
        found = self.summaries(np.array([row]))
        return {name: value[0].item() for name, value in found.items()}

    def event(self, row: int) -> dict[str, Any]:
        """Return the event of a row's last step, an empty dict for a reallocation."""
        action = int(self.action[row])
        return self.state.event(row, action, self.run_id(row), rules.describe(action))

    def run_id(self, row: int) -> str:
        """Return the name of a row's episode, a function of its seed."""
        return str(uuid.UUID(int=int(self.task.keys[row])))

    # Information for policies

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

    def optimal_return(self, rows: Ints) -> NDArray[np.float64]:
        """Return the optimum's expected reward from here on, (k,); NaN for a script."""
        truth, found = self.truth(rows), np.full(len(rows), np.nan)
        if truth is None:
            return found
        spec, remaining = self.spec(), self.state.ledger.remaining[rows]
        pairs = np.stack([truth.complexity, truth.value], axis=1)
        for complexity, value in np.unique(pairs, axis=0):
            these = np.flatnonzero((pairs == [complexity, value]).all(axis=1))
            solved = solve(
                self.settings,
                int(complexity),
                spec.max_budget,
                spec.price,
                float(value),
                spec.self_eval,
            )
            found[these] = solved.look_up(solved.value, remaining[these], truth.state[these])
        return found

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
