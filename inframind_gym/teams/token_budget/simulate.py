"""The simulated task and team: tokens of calls, and their effect on the true quality.

The truth is a plan (level 0-2), a draft (0-4 sections) and its defects, hidden or flagged. A
planner raises the plan; an executor writes the draft, better with a better plan, or revises it; a
critic turns hidden defects into flagged ones, which revisions resolve far more often. So a critic's
call gains nothing by itself, and something at the next revision. Longer answers do more; one that
`max_tokens` cuts off does less.

`TaskRules` says what a call can lead to and how likely that is; `SimulatedTask` draws from it, and
`optimum` sums over it. All draws are functions of the run's key and of their place in it (the agent
and the number of its call), so that every policy meets the same run. The numbers are in
`envs_configs/teams/token_budget.yaml`; most are priors.
"""

from __future__ import annotations

from math import comb
from typing import Annotated, Final, NamedTuple

import numpy as np

from inframind_gym.simulator.rng import uniform_array
from inframind_gym.teams.state import Bools, Floats, Ints, Keys, Rows
from inframind_gym.teams.token_budget.rules import CRITIC, EXECUTOR, PLANNER, Evidence
from inframind_gym.teams.token_budget.settings import AGENTS, COMPLEXITIES, Chance, TeamSettings

PLANS: Final = 3  # levels
SECTIONS: Final = 4
DEFECTS: Final = 5  # at most, flagged or not
REVISION: Final = 3  # kind of a call, after those of the three agents
LIKELIEST: Final = 0.98  # no chance is larger
# Streams of random numbers, apart from those of `simulator.rng`.
STREAM_TASK: Final = 40
STREAM_CALL: Final = 41
_CALLS_PER_AGENT: Final = 1024  # places of draws
_DRAWS: Final = np.arange(7, dtype=np.int64)  # of a call: length, 4 outcomes, 2 for the rating


class Product(NamedTuple):
    """Latent state of k products: plan, sections, hidden and flagged defects, (k,) each."""

    plan: Ints
    sections: Ints
    hidden: Ints
    flagged: Ints


class TaskRules:
    """Tokens, outcomes and worth of the calls of the simulated team."""

    def __init__(self, settings: TeamSettings) -> None:
        simulation, unit = settings.simulation, settings.token_unit
        self._simulation, self._unit = simulation, unit
        self._estimate, self._size = settings.prompt_estimate, simulation.prompt_tokens
        self.max_tokens = np.array([settings.max_tokens[agent] for agent in AGENTS], np.int64)
        self._sections = np.array(simulation.quality.sections, np.float64)
        self._plan_points = np.array(simulation.quality.plan, np.float64)
        lengths = simulation.lengths
        mean = np.array([lengths.planner, lengths.executor, lengths.critic, lengths.revision])
        units = np.maximum(np.rint(mean[:, :, None] * np.array(lengths.factors) / unit), 1)
        # Tokens of an answer (4, 3, K): kind of call, size, factor; distribution of factors (K,).
        self.lengths: Ints = (units * unit).astype(np.int64)
        self.weights = np.cumsum(lengths.weights)
        self.weights[-1] = 1.0
        # Tables by complexity, plan, size and whether the answer was cut off; of sums then by the
        # number of trials and of what happens at most.
        plan = _chances(simulation.planner)
        self._plan = np.stack([plan, np.ones_like(plan)], axis=-1)  # that it stays below level 2
        self._section = _sums(_chances(simulation.section), SECTIONS - 1)
        self._defect = _sums(_chances(simulation.defect), DEFECTS)
        self._fill = _sums(_chances(simulation.fill), SECTIONS)
        self._resolve = _sums(_chances(simulation.resolve), DEFECTS)
        self._find_alone = _sums(np.array(simulation.find_alone), DEFECTS)
        self._no_defect = np.array([simulation.new_defect, 1.0])
        self._flag = _sums(_chances(simulation.flag), DEFECTS)

    def prompts(self, product: Product) -> Ints:
        """Return (k, 3) tokens of the prompt of each agent's next call."""
        size = self._size
        draft = size.task + size.draft * (product.sections > 0)
        revision = draft + size.plan * (product.plan > 0) + size.per_flag * product.flagged
        return np.stack([np.full(len(draft), size.task), revision, draft], axis=1)

    def prompt_estimates(self, product: Product) -> Ints:
        """Return (k, 3) tokens of those prompts as far as is known before the calls."""
        units = np.floor(self._estimate * self.prompts(product) / self._unit).astype(int)
        return np.asarray(self._unit * units)

    def points(self, product: Product) -> Floats:
        """Return the true quality (k,), 0-100."""
        lost = self._simulation.quality.per_defect * (product.hidden + product.flagged)
        draft, plan = self._sections[product.sections] - lost, self._plan_points[product.plan]
        return np.asarray(np.maximum(np.where(product.sections > 0, draft, plan), 0.0))

    def outcomes(
        self, kind: int, complexity: Ints, product: Product, sizes: Ints, cut_off: Ints
    ) -> list[Floats]:
        """Return what k calls of a kind may lead to: distributions (k, m) of independent counts."""
        plan, sections, hidden, flagged = product
        if kind == PLANNER:
            return [self._plan[complexity, plan, sizes, cut_off]]
        if kind == EXECUTOR:
            return [
                self._section[complexity, plan, sizes, cut_off, SECTIONS - 1],
                self._defect[complexity, plan, sizes, 0, DEFECTS],
            ]
        if kind == CRITIC:
            return [self._flag[complexity, plan, sizes, cut_off, hidden]]
        return [
            self._fill[complexity, plan, sizes, cut_off, SECTIONS - sections],
            self._resolve[complexity, plan, sizes, cut_off, flagged],
            self._find_alone[hidden],
            np.broadcast_to(self._no_defect, (len(plan), 2)),
        ]

    def after(self, kind: int, product: Product, counts: list[Ints]) -> Product:
        """Return the products after k calls of a kind with these counts (k,) of `outcomes`."""
        plan, sections, hidden, flagged = product
        if kind == PLANNER:
            return product._replace(plan=np.maximum(plan, 2 - counts[0]))
        if kind == EXECUTOR:
            return Product(plan, 1 + counts[0], counts[1], np.zeros_like(flagged))
        if kind == CRITIC:
            return product._replace(hidden=hidden - counts[0], flagged=flagged + counts[0])
        filled, resolved, alone, no_defect = counts
        hidden, flagged = hidden - alone, flagged - resolved
        hidden = hidden + ((flagged + hidden < DEFECTS) & (no_defect == 0))
        return Product(plan, sections + filled, hidden, flagged)


class Calls(NamedTuple):
    """Results of k calls, (k,) each."""

    prompt: Ints  # tokens
    completion: Ints  # tokens
    cut_off: Bools  # whether the answer reached its limit
    gain: Floats  # points of true quality
    evidence: Evidence  # as far as the application sees it


class SimulatedTask(Rows):
    """n tasks with the state of their product."""

    complexity: Ints  # (n,) the true one
    seen: Ints  # (n,) the pre-flight's
    plan: Ints
    sections: Ints
    hidden: Ints
    flagged: Ints
    calls: Annotated[Ints, 3]  # of each agent so far
    bias: Floats  # (n,) of the run's ratings

    def __init__(self, settings: TeamSettings, n: int) -> None:
        super().__init__(n)
        self._simulation, self.rules = settings.simulation, TaskRules(settings)
        self._shares = np.cumsum([settings.simulation.complexity_share[c] for c in COMPLEXITIES])
        self._ticked = np.array(settings.simulation.checklist_of_plan, np.float64)
        self.keys = np.zeros(n, np.uint64)

    def start(self, rows: Ints, keys: Keys) -> None:
        """Begin new tasks, drawn from their keys (k,)."""
        self.clear(rows)
        draws = uniform_array(keys[:, None], STREAM_TASK, np.zeros_like(rows)[:, None], _DRAWS)
        true = np.minimum((draws[:, :1] > self._shares).sum(axis=1), 2)
        beside = np.where(true == 1, np.where(draws[:, 2] < 0.5, 0, 2), 1)
        self.keys[rows], self.complexity[rows] = keys, true
        right = draws[:, 1] < self._simulation.preflight_right
        self.seen[rows] = np.where(right, true, beside)
        self.bias[rows] = self._simulation.self_eval.run_sd * _normal(draws[:, 3], draws[:, 4])

    def product(self, rows: Ints) -> Product:
        """Return the state of k products."""
        return Product(self.plan[rows], self.sections[rows], self.hidden[rows], self.flagged[rows])

    def has_draft(self, rows: Ints) -> Bools:
        """Return (k,) whether there is something to review."""
        return np.asarray(self.sections[rows] > 0)

    def prompt_estimates(self, rows: Ints) -> Ints:
        """Return (k, 3) tokens of the next prompts as far as is known before the calls."""
        return self.rules.prompt_estimates(self.product(rows))

    def truth(self, rows: Ints) -> Floats:
        """Return the true quality (k,) of some teams' products, 0-100."""
        return self.rules.points(self.product(rows))

    def call(self, rows: Ints, agents: Ints, sizes: Ints, limits: Ints) -> Calls:
        """Carry out a call in each of k tasks: agent, size and most tokens of an answer, (k,)."""
        rules, before = self.rules, self.truth(rows)
        prompt = rules.prompts(self.product(rows))[np.arange(len(rows)), agents]
        place = agents * _CALLS_PER_AGENT + self.calls[rows, agents]
        draws = uniform_array(self.keys[rows, None], STREAM_CALL, place[:, None], _DRAWS)
        kinds = np.where((agents == EXECUTOR) & (self.sections[rows] > 0), REVISION, agents)
        factor = (draws[:, :1] > rules.weights).sum(axis=1)
        length = rules.lengths[kinds, sizes, factor]
        cut_off = length > limits
        x = cut_off.astype(np.int64)
        new_flags, resolved = np.zeros((2, len(rows)), np.int64)
        for kind in range(REVISION + 1):
            these = np.flatnonzero(kinds == kind)
            if not len(these):
                continue
            tasks = rows[these]
            product = self.product(tasks)
            chances = rules.outcomes(kind, self.complexity[tasks], product, sizes[these], x[these])
            counts = [
                (draws[these, 1 + i, None] > chance).sum(axis=1) for i, chance in enumerate(chances)
            ]
            for name, values in rules.after(kind, product, counts)._asdict().items():
                getattr(self, name)[tasks] = values
            if kind == CRITIC:
                new_flags[these] = counts[0]
            elif kind == REVISION:
                resolved[these] = counts[1]
        self.calls[rows, agents] += 1
        # The rating of a product by its own team is too kind, and noisy.
        noise, drafted = self._simulation.self_eval, self.sections[rows] > 0
        bias = np.where(drafted, noise.bias, noise.plan_bias) + self.bias[rows]
        rating = self.truth(rows) + bias + noise.step_sd * _normal(draws[:, 5], draws[:, 6])
        ticked = np.where(drafted, self.sections[rows] / SECTIONS, self._ticked[self.plan[rows]])
        claimed = np.asarray(self._simulation.claimed_points_per_flag * new_flags, np.float64)
        rating = np.clip(np.rint(rating), 0.0, 100.0)  # a whole number, as LLMs rate
        evidence = Evidence(rating, ticked, new_flags, resolved, claimed)
        gain = self.truth(rows) - before
        return Calls(prompt, np.minimum(length, limits), cut_off, gain, evidence)


def _chances(chance: Chance) -> Floats:
    """Return the products of the factors by complexity, plan, size, and cut off: (3, 3, 3, 2)."""
    chances = (
        np.array(chance.by_complexity)[:, None, None, None]
        * np.array(chance.by_plan)[:, None, None]
        * np.array(chance.by_size)[:, None]
        * np.array([1.0, chance.cut])
    )
    return np.asarray(np.minimum(chances, LIKELIEST))


def _sums(chance: Floats, most: int) -> Floats:
    """Return (..., n, k) chances that at most k of n happen, both up to `most`."""
    table = np.ones((*chance.shape, most + 1, most + 1))
    for n in range(1, most + 1):
        single = [comb(n, k) * chance**k * (1.0 - chance) ** (n - k) for k in range(n)]
        table[..., n, :n] = np.cumsum(np.stack(single, axis=-1), axis=-1)
    return table


def _normal(first: Floats, second: Floats) -> Floats:
    """Return standard normal numbers from two uniform ones (Box and Muller, 1958)."""
    return np.asarray(np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second))
