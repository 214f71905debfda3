"""The simulated task and team: what calls cost, and what they are truly worth.

The truth is a plan (level 0-2), a draft (0-4 sections) and its defects, hidden or flagged. A
planner raises the plan; an executor writes the draft, better with a better plan, or revises it; a
critic turns hidden defects into flagged ones, which revisions resolve far more often. So a critic's
call gains nothing by itself, and something at the next revision. Longer answers do more; one that
`max_tokens` cuts off does less.

An agent's rating of the team's own product is too kind and noisy. All draws are functions of the
run's key and of their place in it (the agent and the number of its call), so that every policy
meets the same run. The numbers are in `envs_configs/teams/token_budget.yaml`; most are priors.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.rng import uniform_array
from inframind_gym.teams.token_budget.chances import DEFECTS, REVISION, SECTIONS, tables
from inframind_gym.teams.token_budget.rules import CRITIC, EXECUTOR, PLANNER, Evidence
from inframind_gym.teams.token_budget.settings import (
    AGENTS,
    COMPLEXITIES,
    Script,
    SimulationSettings,
    TeamSettings,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Streams of random numbers, apart from those of `simulator.rng`.
STREAM_TASK: Final = 40
STREAM_CALL: Final = 41
_CALLS_PER_AGENT: Final = 1024  # places of draws
_DRAWS: Final = np.arange(7, dtype=np.int64)  # of a call: length, 4 outcomes, 2 for the rating


class Calls(NamedTuple):
    """Results of k calls.

    Attributes:
        prompt, completion: (k,) tokens.
        cut_off: (k,) whether the answer reached its limit.
        gain: (k,) points of true quality.
        evidence: what the application sees of it.
    """

    prompt: Ints
    completion: Ints
    cut_off: Bools
    gain: Floats
    evidence: Evidence


class SimulatedTask:
    """n tasks with the state of their product; all arrays have a row a task.

    Args:
        settings: constants of the team.
        n: number of tasks.

    Attributes:
        max_tokens: (3, 3) of an answer, by agent and size.
        weights: of the proxies of quality.
        complexity: (n,) true one, and `seen`, the pre-flight's.
        value: (n,) of the quality, below 1 where the task was narrowed.
        plan, sections, hidden, flagged: (n,) state of the product.
        calls: (n, 3) made so far.
    """

    has_overhead: Final = True

    def __init__(self, settings: TeamSettings, n: int) -> None:
        self._settings: SimulationSettings = settings.simulation
        self._estimate, self._unit = settings.prompt_estimate, settings.token_unit
        self._tables = tables(settings.simulation, settings.token_unit)
        self.max_tokens, self.weights = max_tokens(settings), settings.proxy_weights
        self._shares = np.cumsum(settings.simulation.complexity_share.values)
        self._sections = np.array(settings.simulation.quality.sections, np.float64)
        self._plan_points = np.array(settings.simulation.quality.plan, np.float64)
        self._ticked = np.array(settings.simulation.checklist_of_plan, np.float64)
        self.keys = np.zeros(n, np.uint64)
        self.complexity, self.seen, self.plan, self.sections, self.hidden, self.flagged = np.zeros(
            (6, n), np.int64
        )
        self.calls = np.zeros((n, 3), np.int64)
        self.value, self._bias = np.ones(n), np.zeros(n)

    def start(self, rows: Ints, keys: NDArray[np.uint64]) -> None:
        """Begin new tasks, drawn from their keys (k,)."""
        draws = uniform_array(keys[:, None], STREAM_TASK, np.zeros_like(rows)[:, None], _DRAWS)
        true = np.minimum((draws[:, :1] > self._shares).sum(axis=1), 2)
        beside = np.where(true == 1, np.where(draws[:, 2] < 0.5, 0, 2), 1)
        self.keys[rows], self.complexity[rows] = keys, true
        right = draws[:, 1] < self._settings.preflight_right
        self.seen[rows] = np.where(right, true, beside)
        self.value[rows] = 1.0
        self._bias[rows] = self._settings.self_eval.run_sd * _normal(draws[:, 3], draws[:, 4])
        for part in (self.plan, self.sections, self.hidden, self.flagged, self.calls):
            part[rows] = 0

    def scope_down(self, rows: Ints) -> None:
        """Narrow some tasks: a step less complex, and worth less."""
        for part in (self.complexity, self.seen):
            part[rows] = np.maximum(part[rows] - 1, 0)
        self.value[rows] = self._settings.scope_down_value

    def has_draft(self, rows: Ints) -> Bools:
        """Return (k,) whether there is something to review."""
        return np.asarray(self.sections[rows] > 0)

    def prompts(self, rows: Ints) -> Ints:
        """Return (k, 3) tokens of the prompt of each agent's next call."""
        size = self._settings.prompt_tokens
        draft = size.task + size.draft * (self.sections[rows] > 0)
        revision = draft + size.plan * (self.plan[rows] > 0) + size.per_flag * self.flagged[rows]
        return np.stack([np.full(len(rows), size.task), revision, draft], axis=1)

    def prompt_estimates(self, rows: Ints) -> Ints:
        """Return (k, 3) tokens of those prompts as far as is known before the calls."""
        return self._unit * np.floor(self._estimate * self.prompts(rows) / self._unit).astype(int)

    def truth(self, rows: Ints) -> Floats:
        """Return the true quality (k,) of what some teams have, 0-100."""
        sections, plan = self.sections[rows], self.plan[rows]
        lost = self._settings.quality.per_defect * (self.hidden[rows] + self.flagged[rows])
        points = np.where(sections > 0, self._sections[sections] - lost, self._plan_points[plan])
        return np.asarray(self.value[rows] * np.maximum(points, 0.0))

    def call(self, rows: Ints, agents: Ints, sizes: Ints, limits: Ints) -> Calls:
        """Carry out a call in each of k tasks.

        Args:
            rows: (k,) tasks, all different.
            agents, sizes: (k,) who answers, and how long the answer is meant to be.
            limits: (k,) `max_tokens`.
        """
        before, prompt = self.truth(rows), self.prompts(rows)[np.arange(len(rows)), agents]
        place = agents * _CALLS_PER_AGENT + self.calls[rows, agents]
        draws = uniform_array(self.keys[rows, None], STREAM_CALL, place[:, None], _DRAWS)
        kinds = np.where((agents == EXECUTOR) & (self.sections[rows] > 0), REVISION, agents)
        factor = (draws[:, :1] > self._tables.weights).sum(axis=1)
        wanted = self._tables.lengths[kinds, sizes, factor]
        cut_off = wanted > limits
        x = cut_off.astype(np.int64)
        found, resolved = np.zeros((2, len(rows)), np.int64)
        for kind, act in (
            (PLANNER, self._plan),
            (EXECUTOR, self._draft),
            (CRITIC, self._review),
            (REVISION, self._revise),
        ):
            these = np.flatnonzero(kinds == kind)
            if len(these):
                count = act(rows[these], sizes[these], x[these], draws[these])
                target = found if kind == CRITIC else resolved
                target[these] = count
        self.calls[rows, agents] += 1
        evidence = self._evidence(rows, draws, found, resolved)
        gain = self.truth(rows) - before
        return Calls(prompt, np.minimum(wanted, limits), cut_off, gain, evidence)

    def _plan(self, rows: Ints, sizes: Ints, x: Ints, draws: Floats) -> Any:
        chance = self._tables.plan[self.complexity[rows], sizes, x]
        self.plan[rows] = np.maximum(self.plan[rows], np.where(draws[:, 1] < chance, 2, 1))
        return 0

    def _draft(self, rows: Ints, sizes: Ints, x: Ints, draws: Floats) -> Any:
        complexity, plan = self.complexity[rows], self.plan[rows]
        more = _count(draws[:, 1], self._tables.section[complexity, plan, sizes, x, SECTIONS - 1])
        self.sections[rows] = 1 + more
        self.hidden[rows] = _count(draws[:, 2], self._tables.defect[complexity, plan, DEFECTS])
        return 0

    def _review(self, rows: Ints, sizes: Ints, x: Ints, draws: Floats) -> Any:
        table = self._tables.flag[self.complexity[rows], sizes, x, self.hidden[rows]]
        found = _count(draws[:, 1], table)
        self.hidden[rows] -= found
        self.flagged[rows] += found
        return found

    def _revise(self, rows: Ints, sizes: Ints, x: Ints, draws: Floats) -> Any:
        missing = SECTIONS - self.sections[rows]
        self.sections[rows] += _count(draws[:, 1], self._tables.fill[sizes, x, missing])
        resolved = _count(draws[:, 2], self._tables.resolve[sizes, x, self.flagged[rows]])
        self.flagged[rows] -= resolved
        self.hidden[rows] -= _count(draws[:, 3], self._tables.find_alone[self.hidden[rows]])
        room = self.flagged[rows] + self.hidden[rows] < DEFECTS
        self.hidden[rows] += room & (draws[:, 4] < self._settings.new_defect)
        return resolved

    def _evidence(self, rows: Ints, draws: Floats, found: Ints, resolved: Ints) -> Evidence:
        noise, drafted = self._settings.self_eval, self.sections[rows] > 0
        kind = np.where(drafted, noise.bias, noise.plan_bias) + self._bias[rows]
        rating = self.truth(rows) + kind + noise.step_sd * _normal(draws[:, 5], draws[:, 6])
        ticked = np.where(drafted, self.sections[rows] / SECTIONS, self._ticked[self.plan[rows]])
        claimed = np.asarray(self._settings.claimed_points_per_flag * found, np.float64)
        rating = np.clip(np.rint(rating), 0.0, 100.0)  # a whole number, as LLMs rate
        return Evidence(rating, ticked, found, resolved, claimed)


class ScriptedTask:
    """n copies of a run that is written down; calls beyond it repeat the last one and gain nothing.

    Args:
        settings: constants of the team.
        n: number of tasks.
        script: the calls of each agent.
    """

    has_overhead: Final = False

    def __init__(self, settings: TeamSettings, n: int, script: Script) -> None:
        calls = (script.calls.planner, script.calls.executor, script.calls.critic)
        self._most = np.array([len(own) for own in calls])
        shape = (3, int(self._most.max()))
        self._tokens, self._quality = np.zeros(shape, np.int64), np.zeros(shape)
        self._claimed = np.zeros(shape)
        for agent, own in enumerate(calls):
            for i, one in enumerate(own):
                self._tokens[agent, i], self._quality[agent, i] = one.tokens, one.quality
                self._claimed[agent, i] = one.claimed
        self.max_tokens = np.full((3, 3), self._tokens.max())  # of a written call none is cut
        self.keys = np.zeros(n, np.uint64)
        self.complexity = np.full(n, COMPLEXITIES.index(script.preflight))
        self.seen = self.complexity.copy()
        self.value, self._score = np.ones(n), np.zeros(n)
        self._flagged, self.calls = np.zeros(n, np.int64), np.zeros((n, 3), np.int64)
        self.weights = script.proxy_weights

    def start(self, rows: Ints, keys: NDArray[np.uint64]) -> None:
        """Begin the script anew."""
        self.keys[rows] = keys
        for part in (self._score, self._flagged, self.calls):
            part[rows] = 0

    def scope_down(self, rows: Ints) -> None:
        """Leave the task as it is written."""

    def has_draft(self, rows: Ints) -> Bools:
        """Return (k,) whether the executor was called."""
        return np.asarray(self.calls[rows, EXECUTOR] > 0)

    def prompts(self, rows: Ints) -> Ints:
        """Return zeros (k, 3): the script counts whole calls."""
        return np.zeros((len(rows), 3), np.int64)

    prompt_estimates = prompts

    def truth(self, rows: Ints) -> Floats:
        """Return the quality (k,) after the last call."""
        return np.asarray(self._score[rows])

    def call(self, rows: Ints, agents: Ints, sizes: Ints, limits: Ints) -> Calls:
        """Carry out the next call of the script in each of k tasks; see `SimulatedTask.call`."""
        number = self.calls[rows, agents]
        fresh = number < self._most[agents]
        at = agents, np.minimum(number, self._most[agents] - 1)
        before = self._score[rows]
        self._score[rows] = np.where(fresh, np.maximum(self._quality[at], before), before)
        self.calls[rows, agents] += 1
        wanted, claimed = self._tokens[at], np.where(fresh, self._claimed[at], 0.0)
        found = (claimed > 0.0).astype(np.int64)
        resolved = np.where(agents == EXECUTOR, self._flagged[rows], 0)
        self._flagged[rows] += found - resolved
        unknown = np.full(len(rows), np.nan)
        evidence = Evidence(self.truth(rows), unknown, found, resolved, claimed)
        gain, none = self._score[rows] - before, np.zeros(len(rows), np.int64)
        return Calls(none, np.minimum(wanted, limits), wanted > limits, gain, evidence)


Task = SimulatedTask | ScriptedTask


def max_tokens(settings: TeamSettings) -> Ints:
    """Return (3, 3) tokens of an answer at most, by agent and size."""
    return np.array([getattr(settings.max_tokens, agent) for agent in AGENTS], np.int64)


def make_task(settings: TeamSettings, profile: str, n: int) -> Task:
    """Make the tasks of a profile.

    Raises:
        ConfigError: there is no such profile.
    """
    script = settings.script(profile)
    return SimulatedTask(settings, n) if script is None else ScriptedTask(settings, n, script)


def _count(draw: Floats, table: Floats) -> Ints:
    """Return (k,) how many happened: draws (k,) in (0, 1), distribution functions (k, m)."""
    return np.asarray((draw[:, None] > table).sum(axis=1))


def _normal(first: Floats, second: Floats) -> Floats:
    """Return standard normal numbers from two uniform ones (Box and Muller, 1958)."""
    return np.asarray(np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second))
