"""InfraMind-TokenBudget-v0: which agent may still spend tokens, and when to stop."""

from __future__ import annotations

import uuid
from numbers import Real
from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import BeforeValidator

from inframind_gym.configs import StrictModel, within
from inframind_gym.envs.core import Env, Float32s, ObservationForm, Rngs, Simulation, VectorEnv
from inframind_gym.envs.render import GOOD, Bar, Frame, Headline, Table
from inframind_gym.errors import ActionError
from inframind_gym.teams.state import Bools, Columns, Ints, keys_of
from inframind_gym.teams.token_budget import rules
from inframind_gym.teams.token_budget import settings as constants
from inframind_gym.teams.token_budget.optimum import state_of
from inframind_gym.teams.token_budget.rules import STOP, TeamState
from inframind_gym.teams.token_budget.simulate import SimulatedTask

LEAST_BUDGET: Final = 500
MOST_BUDGET: Final = 200_000


def _in_tokens(budget: Any) -> Any:
    """Refuse what is neither a budget nor a range of two."""
    ends = budget if isinstance(budget, list | tuple) and len(budget) == 2 else [budget]
    numbers = all(isinstance(end, Real) and not isinstance(end, bool) for end in ends)
    if not numbers or not all(LEAST_BUDGET <= e <= MOST_BUDGET and e % 1 == 0 for e in ends):
        raise ValueError(
            f"must be tokens from {LEAST_BUDGET} to {MOST_BUDGET}, or [least, most] of them, got "
            f"{budget!r:.60}"
        )
    if ends[0] > ends[-1]:
        raise ValueError(f"a range goes up, got {list(ends)}")
    return budget


class TokenBudgetConfig(StrictModel):
    """Arguments of `TokenBudgetEnv`, described there, with the values that they may have."""

    team: str = constants.DEFAULT
    budget: Annotated[int | tuple[int, int], BeforeValidator(_in_tokens)] = 20_000
    strategy: constants.Strategy = "adaptive"
    price: Annotated[float, within(0.0, 1.0)] = 0.001
    overhead: bool = True
    max_steps: Annotated[int, within(1, 1000)] = 20
    action: Literal["discrete", "continuous"] = "discrete"

    @property
    def budget_range(self) -> tuple[int, int]:
        """Least and largest budget in tokens."""
        return self.budget if isinstance(self.budget, tuple) else (self.budget, self.budget)


class TokenBudgetSpec(NamedTuple):
    """Facts of a run that a policy is reset with."""

    settings: constants.TeamSettings  # constants of the team
    price: float  # points of quality that a token costs
    max_budget: int  # largest budget of a team, in tokens
    max_steps: int  # decisions of an episode
    self_eval: int  # tokens of the rating after each call


TERMS: Final = ("quality", "tokens")


# Observations

_ONE_HOT: Final = np.eye(3)
# Functions of a state and of 1 / budget (k,), in the order of the class's table; see `Columns`.
_COLUMNS: Final = Columns(
    {
        "remaining": (1, -1, 1, lambda state, share: state.remaining * share),
        "budget": (1, 0, 2, lambda state, _: np.log10(state.budget) / 5.0),
        "left": (3, 0, 1, lambda state, share: state.left * share[:, None]),
        "returned": (1, 0, 1, lambda state, share: state.free * share),
        "used": (3, 0, 2, lambda state, share: state.used * share[:, None]),
        "last_roi": (3, -5, 5, lambda state, _: 100.0 * state.last_roi),
        "last_points": (3, -1, 1, lambda state, _: state.last_delta / 100.0),
        "score": (1, 0, 1, lambda state, _: state.score / 100.0),
        "flags_open": (1, 0, 2, lambda state, _: state.flags_open / 5.0),
        "flags_resolved": (1, 0, 2, lambda state, _: state.flags_resolved / 5.0),
        "checklist": (1, 0, 1, lambda state, _: np.fmax(state.checklist, 0.0)),
        "calls": (3, 0, 10, lambda state, _: state.calls / 10.0),
        "cut": (3, 0, 1, lambda state, _: state.cut),
        "steps": (1, 0, 1, lambda state, _: state.steps / state.max_steps),
        "seen": (3, 0, 1, lambda state, _: _ONE_HOT[state.seen]),
        "strategy": (3, 0, 1, lambda state, _: _ONE_HOT[state.strategy]),
    }
)
OBSERVATION_SIZE: Final = len(_COLUMNS.box.low)


def observe(state: TeamState, rows: Ints) -> Float32s:
    """Return the observations of some teams, (k, 32)."""
    seen = state.view(rows)
    return _COLUMNS.of(seen, 1.0 / seen.budget)


# The batch of teams

LOGIT_SCALE: Final = 4.0  # of the continuous action
STOP_ABOVE: Final = 0.5  # last number of the continuous action
CONTINUOUS_SIZE: Final = 4  # logits of three shares, and of stopping
_ORDER: Final = np.array([[0, 1, 2], [1, 2, 0], [2, 1, 0]])  # by turn: agents to try, in order


class TokenBudgetSimulation(Simulation):
    """E teams with the same settings; NumPy computes all rows at once.

    Attributes:
        settings: constants of the team.
        task: the simulated tasks, which answer the calls.
        state: ledgers, scores and masks.
        tokens, action: (E,) of the last step; of a continuous action the call that it led to.

    Raises:
        ConfigError: there is no such team.
    """

    config: TokenBudgetConfig
    term_names = TERMS

    def __init__(self, config: TokenBudgetConfig, num_envs: int, num_threads: int = 1) -> None:
        self.has_mask = config.action == "discrete"
        choices: spaces.Space[Any] = spaces.Discrete(rules.NUM_ACTIONS)
        if not self.has_mask:
            choices = spaces.Box(-1.0, 1.0, (CONTINUOUS_SIZE,), np.float32)
        super().__init__(num_envs, ObservationForm(_COLUMNS.box), choices)
        self.config = config
        self.settings: constants.TeamSettings = constants.load_settings(config.team)
        self.task = SimulatedTask(self.settings, num_envs)
        overhead = self.settings.overhead
        self.preflight = overhead.preflight if config.overhead else 0
        self.self_eval = overhead.self_eval if config.overhead else 0
        self.state = TeamState(self.settings, num_envs, self.self_eval, config.max_steps)
        self.tokens, self.action, self._turn = np.zeros((3, num_envs), np.int64)
        self._area = np.zeros(num_envs)  # sums of true quality times tokens

    @property
    def mask(self) -> Bools:
        """Calls, cuts, reallocations and stops that are open, (E, 16)."""
        return self.state.mask

    def checked(self, actions: Any) -> NDArray[Any]:
        """Return the actions of all environments, (E,) or (E, 4).

        Raises:
            ActionError: an action of the wrong shape or out of range, or not finite.
        """
        if self.has_mask:
            return super().checked(actions)
        try:
            numbers: NDArray[Any] = np.array(actions, np.float64)
        except (TypeError, ValueError):
            numbers = np.zeros(0)
        numbers = numbers[None] if numbers.ndim == 1 else numbers
        if numbers.shape != (self.num_envs, CONTINUOUS_SIZE) or not np.isfinite(numbers).all():
            shape = f"{self.num_envs} of {CONTINUOUS_SIZE} finite numbers each"
            raise ActionError(f"actions must be {shape}, got {actions!r:.80}")
        return numbers

    def reset(self, rows: Ints, rngs: Rngs, observations: Float32s, *, first: bool = True) -> None:
        """Begin new episodes; see `Simulation`."""
        low, high = self.config.budget_range
        unit = self.settings.token_unit
        keys = keys_of(rngs)
        budget = np.full(len(rows), low // unit * unit)
        if high > low:
            ratio = np.array([rng.random() for rng in rngs])
            budget = np.floor(low * (high / low) ** ratio / unit).astype(np.int64) * unit
        self.task.start(rows, keys)
        strategy = constants.STRATEGIES.index(self.config.strategy)
        self.state.begin(rows, budget, strategy, self.task.seen[rows], self.preflight)
        self.terms[rows] = 0.0
        for array in (self.tokens, self._turn, self._area, self.terminated, self.truncated):
            array[rows] = 0
        self._observe(rows, observations)

    def _observe(self, rows: Ints, observations: Float32s) -> None:
        """Update the masks of `rows`, and write their observations."""
        self.state.look(rows, self.task.prompt_estimates(rows), self.task.has_draft(rows))
        observations[rows] = observe(self.state, rows)

    def step(self, rows: Ints, actions: NDArray[Any], observations: Float32s) -> None:
        """Carry out decisions of `rows`; the actions are (E,) 0-15, or (E, 4) numbers."""
        chosen = actions[rows]
        discrete = chosen if chosen.ndim == 1 else self._allocate(rows, chosen)
        calling, agents, sizes, limits = self.state.decide(rows, discrete)
        self.action[rows] = discrete
        gain, tokens = np.zeros((2, self.num_envs))
        if len(calling):
            before = self.task.truth(calling)
            calls = self.task.call(calling, agents, sizes, limits)
            used = calls.prompt + calls.completion
            rules.spend(self.state, calling, agents, used)
            self.state.overhead[calling] += self.self_eval
            self.state.take(calling, agents, used, calls.evidence)
            gain[calling], tokens[calling] = calls.gain, used + self.self_eval
            self._area[calling] += before * tokens[calling]
        self.tokens = tokens.astype(np.int64)
        self.terms = np.zeros_like(self.terms)
        self.terms[rows, 0] = gain[rows] / 100.0
        self.terms[rows, 1] = -self.config.price * tokens[rows] / 100.0
        self._observe(rows, observations)
        self.rewards = np.asarray(self.terms.sum(axis=1))
        self.costs = np.asarray(self.tokens / np.maximum(self.state.budget, 1))
        self.truncated = self.state.over & self.state.truncated
        self.terminated = self.state.over & ~self.state.truncated

    def _allocate(self, rows: Ints, numbers: NDArray[np.float64]) -> Ints:
        """Allocate what remains by continuous actions (k, 4); return the discrete ones, (k,).

        The agent whose turn it is gets a call of the largest size that its allocation pays. Where
        it pays none, the next agent does; where none can be called, the team stops.
        """
        logits = LOGIT_SCALE * np.clip(numbers[:, :3].astype(np.float64), -1.0, 1.0)
        weights = np.exp(logits)
        rules.share_out(self.state, rows, weights / weights.sum(axis=1, keepdims=True))
        self.state.open_actions(rows)
        limits = self.state.limits[rows]
        order = _ORDER[self._turn[rows]]
        can_call = np.take_along_axis(limits[:, :, 0] > 0, order, axis=1)
        agents = order[np.arange(len(rows)), can_call.argmax(axis=1)]
        fits = limits[np.arange(len(rows)), agents] >= self.state.max_tokens[agents]  # S, M, L
        sizes = np.maximum(fits.sum(axis=1) - 1, 0)
        stops = ~can_call.any(axis=1) | (numbers[:, 3] > STOP_ABOVE)
        next_agents = np.where(agents == rules.EXECUTOR, rules.CRITIC, rules.EXECUTOR)
        self._turn[rows] = np.where(stops, self._turn[rows], next_agents)
        return np.where(stops, STOP, agents * len(constants.SIZES) + sizes)

    # Results

    def infos(self) -> dict[str, Any]:
        """Return actions, tokens and reasons of the last step."""
        return {
            "action": self.action.copy(),
            "tokens": self.tokens.copy(),
            "reason": self.state.reason.copy(),
        }

    def reset_info(self) -> dict[str, Any]:
        """Return the name of the run, and a warning where the budget is too small."""
        info: dict[str, Any] = {"run_id": self.run_id()}
        budget = int(self.state.budget[0])
        minimum = int(self.state.minimum_budget(np.zeros(1, np.int64))[0])
        if budget < minimum:
            info["warning"] = rules.suggestion(budget, minimum, int(self.state.seen[0]))
            info["suggested_minimum"] = minimum
        return info

    def info(self) -> dict[str, Any]:
        """Return the event of the step and why the team stopped."""
        action = int(self.action[0])
        return {
            "event": self.state.event(0, action, self.run_id(), rules.describe(action)),
            "cutoff_reason": rules.REASONS[int(self.state.reason[0])],
        }

    def summaries(self, rows: Ints, *_: Any) -> dict[str, NDArray[Any]]:
        """Return the results of episodes, (k,) each.

        `quality` is the true one, `reported_quality` that of the proxies; `drained` is 1 where no
        further call could be paid, `overshoot` the tokens spent beyond the budget; `quality_area`
        is the mean true quality over the budget, spent token by token.
        """
        state = self.state
        budget, spent = state.budget[rows], state.spent[rows]
        truth, rest = self.task.truth(rows), np.maximum(state.remaining[rows], 0)
        shortest_answer = self.settings.min_completion_tokens + self.self_eval
        needed = state.estimates[rows].min(axis=1) + shortest_answer
        return {
            "quality": truth,
            "reported_quality": state.score[rows],
            "tokens": spent,
            "agent_tokens": state.used[rows].sum(axis=1),
            "overhead_tokens": state.overhead[rows],
            "budget": budget,
            "unspent_share": rest / budget,
            "overshoot": np.maximum(spent - budget, 0),
            "drained": (state.remaining[rows] < needed).astype(np.int64),
            "calls": state.calls[rows].sum(axis=1),
            "decisions": state.steps[rows],
            "quality_area": (self._area[rows] + truth * rest) / budget,
        }

    def run_id(self) -> str:
        """Return the name of environment 0's episode, a function of its seed."""
        return str(uuid.UUID(int=int(self.task.keys[0])))

    def contexts(self, rows: Ints, *, truth: bool = False) -> TeamState:
        """Return the input of a policy; `truth` adds the latent state, for the optimum alone."""
        seen = self.state.rows(rows)
        if truth:
            seen.truth = rules.Truth(self.task.complexity[rows], state_of(*self.task.product(rows)))
        return seen

    def policy_spec(self) -> TokenBudgetSpec:
        """Return the facts of the run that a policy is reset with."""
        config = self.config
        return TokenBudgetSpec(
            self.settings, config.price, config.budget_range[1], config.max_steps, self.self_eval
        )

    def describe(self, action: Any) -> tuple[str, str]:
        """Return an action in words, and tokens and quality before it."""
        spent, score = int(self.state.spent[0]), self.state.score[0]
        words = rules.describe(int(action)) if self.has_mask else "allocate"
        return words, f"after {spent:,} tokens, quality {score:.0f} by the proxies"

    def frame(self) -> Frame:
        """Return the ledger, with a row for each agent."""
        state, rows = self.state, []
        budget, spent = int(state.budget[0]), int(state.spent[0])
        for i, agent in enumerate(constants.AGENTS):
            used, left = int(state.used[0, i]), int(state.left[0, i])
            bars = Bar(used / budget, f"{used:,}"), Bar(left / budget, f"{left:,}")
            last = "cut" if state.cut[0, i] else f"{state.last_roi[0, i]:.4f}"
            rows.append((agent, str(int(state.calls[0, i])), *bars, last))
        overhead = f"overhead {int(state.overhead[0]):,}, returned {int(state.free[0]):,} tokens"
        flags = f"flags: {state.flags_open[0]} open, {state.flags_resolved[0]} resolved"
        score = float(state.score[0])
        bar = Bar(score / 100.0, f"{score:.0f} of 100", GOOD)
        price = f"price {self.config.price:g} points a token"
        return Frame(
            "InfraMind Token budget",
            (f"{constants.COMPLEXITIES[int(state.seen[0])]} task", self.config.strategy, price),
            f"{spent:,} / {budget:,} tokens",
            f"{budget - spent:,} left",
            (Table("Ledger", ("calls", "used", "left", "last ROI"), rows, overhead),),
            Headline("Quality by the proxies", flags, bar),
            results=f"decision {state.steps[0]} of {self.config.max_steps}",
        )


class TokenBudgetEnv(Env):
    """Decide who of planner, executor and critic spends the next tokens, and when to stop.

    ## Description

    A team answers a task on a budget of tokens. The planner plans, the executor drafts and revises,
    the critic finds defects, which revisions then resolve. The budget is a hard ceiling; each agent
    has a soft allocation in it. A pre-flight guesses the complexity of the task; after each call an
    LLM rates the product, too kindly. The rules are in `inframind_gym.teams.token_budget.rules`,
    the simulated task is in `.simulate`, the constants are in `envs_configs/teams`.

    ## Action Space

    `Discrete(16)`:

    | action | |
    |---|---|
    | 0-8 | call planner, executor or critic (a // 3) at size S, M or L (a % 3) |
    | 9-11 | cut planner, executor or critic: its allocation returns to the pool |
    | 12-14 | reallocate what the others have not spent to planner, executor or critic |
    | 15 | stop |

    `info["action_mask"]` marks the actions that are open. A call is refused where ceiling or
    allocation leave too little for an answer, a review before there is a draft. An action that is
    not open does nothing and takes a step.

    With `action="continuous"` `Box(-1, 1, (4,))`: three logits (times 4), whose softmax shares out
    all that remains, and a number that stops above 0.5. Planner, executor, critic, executor, … are
    then called in turn, at the largest size that their share pays. There is no mask.

    ## Observation Space

    `Box(32,)`, numbers that the application could see, too: proxies of the quality, never the
    quality. B is the budget.

    | numbers | | range |
    |---|---|---|
    | 1 | tokens left, over the budget B | -1..1 |
    | 1 | log10 of B, over 5 | 0..2 |
    | 3 | left of the allocation of planner, executor, critic, over B | 0..1 |
    | 1 | returned by agents that were cut, over B | 0..1 |
    | 3 | used by each agent, over B | 0..2 |
    | 3 | points per 100 tokens of each agent's last call (ROI x 100) | -5..5 |
    | 3 | points of each agent's last call, over 100 | -1..1 |
    | 1 | quality by the proxies, over 100 | 0..1 |
    | 2 | flags of the critic: open, resolved, over 5 | 0..2 |
    | 1 | share of the structural checklist; 0 where there is none | 0..1 |
    | 3 | calls of each agent, over 10 | 0..10 |
    | 3 | 1 for an agent that was cut | 0..1 |
    | 1 | decisions so far, over the most | 0..1 |
    | 3 | complexity by the pre-flight: simple, moderate, complex | 0..1 |
    | 3 | mode of the allocations: frontload, critique_heavy, adaptive | 0..1 |

    ## Rewards and costs

    Points of true quality (0-100) that the decision gained, over 100, less the price of its tokens,
    over 100: the terms "quality" and "tokens" of `info["rewards"]`. True quality is the latent one
    that a held-out checker would measure. The price is in points per token. With it the rule "stop
    when the marginal ROI falls below the price" is the policy that is greedy by one step; what
    learning can gain beyond it is credit for calls that pay later, the critic's above all.

    `info["cost"]`: the tokens of the step over the budget. The pre-flight's tokens are spent before
    the first decision: they count in the ledger, in no reward and in no cost.

    ## Starting State

    A task of random complexity; the pre-flight (200 tokens) is paid. A budget below the minimum of
    that complexity adds "warning" and "suggested_minimum" to `info`.

    ## Episode End

    Terminated by stopping, when all agents are cut, or when no call can be paid. Truncated after
    `max_steps` decisions.

    ## Info

    "event" is the event that WebSocket clients of the application get, an empty dict for a
    reallocation; "cutoff_reason" is "" or one of roi, policy, stop, budget, all_cut, steps,
    refused. The last step adds "episode_cost", "episode_reward" and the numbers of
    `TokenBudgetSimulation.summaries`.

    ## Arguments

    All are JSON types.

    * `team`: name or path of the constants (`envs_configs/teams`).
    * `budget`: tokens, or [least, most], from which each episode draws (log-uniform); rounded down
      to `token_unit` (50).
    * `strategy`: mode of the initial allocations: frontload, critique_heavy or adaptive.
    * `price`: points of quality (0-100) that a token costs.
    * `overhead`: whether pre-flight and self-evaluations take tokens.
    * `max_steps`: decisions of an episode.
    * `action`: "discrete" or "continuous".
    * `render_mode`: None, "ansi" (text) or "rgb_array".

    ## Version History

    * v0: first version.
    """

    metadata: dict[str, Any] = Env.metadata | {"render_fps": 2}
    arguments = TokenBudgetConfig
    simulate = TokenBudgetSimulation


class TokenBudgetVectorEnv(VectorEnv):
    """`InfraMind-TokenBudget-v0` in a batch (`VectorEnv`); arguments as of `TokenBudgetEnv`.

    In place of events, which are texts, the infos have arrays: "action" (what was carried out),
    "tokens" and "reason" (a place in `teams.token_budget.rules.REASONS`).
    """

    single = TokenBudgetEnv
