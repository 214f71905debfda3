"""The families of the teams of agents."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar, cast

import numpy as np

from inframind_gym.benchmark.errors import blame
from inframind_gym.benchmark.families import Family, Player
from inframind_gym.benchmark.lines import CellResult, encode_cell
from inframind_gym.benchmark.metrics import TAIL, Columns
from inframind_gym.benchmark.tables import (
    Sheet,
    about_bounds,
    cells_text,
    matrix,
    metrics_sheet,
    of_planned,
    with_margin,
)
from inframind_gym.benchmark.teams.batch import Batch
from inframind_gym.benchmark.teams.metrics import ASSIGNMENT, COORDINATION, TOKEN_BUDGET, MeanLayout
from inframind_gym.benchmark.teams.suite import (
    AssignmentSuite,
    CoordinationSuite,
    TeamCell,
    TeamSuite,
    TokenBudgetSuite,
)


class TeamFamily(Family):
    """A team: one environment, one registry of policies, means over records.

    Attributes:
        kind: Its name; that of its module here, and of its folders in `envs` and `policies`.
        env_id: Id of the environment.
        tail_of: Field of a record whose tail is a metric; the metric that is no field.
        ratios: Metrics that are quotients of two others.
        about: Explanation of the columns.
        columns: Number of leading metrics that the ranking shows; JSON has all.
    """

    env_id: ClassVar[str]
    tail: ClassVar[str]
    tail_of: ClassVar[str]
    about: ClassVar[str]
    columns: ClassVar[int]
    ratios: ClassVar[Mapping[str, tuple[str, str]]] = MappingProxyType({})
    shown = ("scenarios",)
    unit = "tasks"
    regret = "optimum"

    def resolve_policy(self, name: str) -> Any:
        """Make a policy of the team's registry, or of ``package.module:Class``."""
        return import_module(f"inframind_gym.policies.{self.kind}.registry").resolve(name)

    def header(self, suite: TeamSuite, policies: Mapping[str, Any]) -> dict[str, Any]:
        """Return the environments' specs."""
        import gymnasium as gym

        import inframind_gym  # noqa: F401  (registers the environments)

        specs = {}
        for name, arguments in suite.scenarios.items():
            spec = copy.deepcopy(gym.spec(self.env_id))
            spec.kwargs.update(arguments)
            specs[name] = dict(json.loads(spec.to_json()))
        return {"env_specs": specs}

    def simulator(
        self,
        suite: TeamSuite,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> Player:
        """Make the player of simulated teams."""
        return TeamSimulator(self, suite, stop, progress)

    def encode(
        self, cell: TeamCell, cell_id: str, columns: Columns, took_ms: list[float]
    ) -> CellResult:
        """Encode the records; times are kept apart."""
        timing = {
            "decide_median_ms": float(np.median(took_ms)),
            "decide_p95_ms": float(np.quantile(took_ms, TAIL)),
        }
        return encode_cell(self.layout({}), cell, cell_id, columns, timing)

    def layout(self, header: Mapping[str, Any]) -> MeanLayout:
        """Make the layout of sums over records."""
        derived = {self.tail, *self.ratios}
        fields = tuple(name for name in self.metrics if name not in derived)
        return MeanLayout(fields, self.tail, self.tail_of, self.ratios)

    def sheets(self, board: Mapping[str, Any]) -> list[Sheet]:
        """Make the ranking, and a table of the score by scenario."""
        policies = [row["policy"] for row in board["ranking"]]
        score = self.metrics[self.score]
        regret = "regret" in board["ranking"][0]
        lost = f" regret: what {self.regret} earns more, on the same episodes." if regret else ""
        sheets = [
            metrics_sheet(
                f"{board['suite']}: {of_planned(board, self.unit, len(policies))}",
                board["ranking"],
                tuple(self.metrics.values())[: self.columns],
                f"Means over {cells_text(board)} ± half of the 95 % interval. {self.about}{lost}"
                f"{about_bounds(board)}",
            )
        ]
        if len({row["scenario"] for row in board["by_scenario"]}) > 1:

            def text(row: Mapping[str, Any]) -> str:
                return with_margin(row, score)

            rows = board["by_scenario"]
            title = f"Mean {score.label} by scenario"
            sheets.append(matrix(title, rows, "scenario", policies, score, text))
        return sheets


@dataclass
class TeamSimulator(Player):
    """Runs batches of cells on simulated teams."""

    family: TeamFamily
    suite: TeamSuite
    stop: Callable[[], bool] = lambda: False
    progress: Callable[[int], None] = lambda _: None
    began: float = field(default=0.0, init=False)

    def ask(self, cell: TeamCell) -> None:
        """Make the policy and the team of a cell, and reset both."""
        self._batch([cell])

    def run(
        self, cells: Sequence[TeamCell]
    ) -> Iterator[list[tuple[TeamCell, Columns, list[float]]]]:
        """Run cells; yields each with its records and the milliseconds of its decisions."""
        batch = self._batch(cells)
        self.began = time.monotonic()
        columns, took_ms = batch.play(self.stop, self.progress, self.watch)
        yield [(cell, own, took_ms) for cell, own in zip(cells, columns, strict=True)]

    def _batch(self, cells: Sequence[TeamCell]) -> Batch:
        """Make the policy and the teams of cells, and reset both."""
        with blame(cells[0].policy):
            policy = self.family.resolve_policy(cells[0].policy)
        module = import_module(f"inframind_gym.benchmark.teams.{self.family.kind}")
        config = self.suite.config(cells[0].scenario)
        return cast(Batch, module.Batch(policy, cells, config))


class AssignmentFamily(TeamFamily):
    """Runs of tasks that four agents share; the mean reward of a task ranks."""

    kind = "assignment"
    suite = AssignmentSuite
    metrics = ASSIGNMENT
    columns = 7
    score = "reward"
    compared = ("reward", "quality", "load_penalty", "latency_s")
    env_id = "InfraMind-Assignment-v0"
    tail = "latency_p95_s"
    tail_of = "latency_s"
    about = (
        "Highest mean reward of a task first. quality: the true one, which the judge sees with "
        "noise; hot: decisions after which an agent is; imbalance: coefficient of variation of the "
        "agents' shares; USD of the agents' calls."
    )


class TokenBudgetFamily(TeamFamily):
    """Tasks that three agents solve within a budget of tokens; the mean return ranks."""

    kind = "token_budget"
    suite = TokenBudgetSuite
    metrics = TOKEN_BUDGET
    columns = 7
    score = "return"
    compared = ("return", "quality", "tokens", "calls")
    env_id = "InfraMind-TokenBudget-v0"
    tail = "tokens_p95"
    tail_of = "tokens"
    about = (
        "Highest mean return of a task first: quality gained less the price of the tokens. "
        "quality: the true one; reported: by the proxies that a team sees; drained: tasks that no "
        "further call could be paid for."
    )


class CoordinationFamily(TeamFamily):
    """Questions that a supervisor of five agents has answered in time; the mean return ranks."""

    kind = "coordination"
    suite = CoordinationSuite
    metrics = COORDINATION
    columns = 11
    score = "return"
    compared = ("return", "answer_score", "success", "lateness", "tokens")
    unit = "questions"
    env_id = "InfraMind-Coordination-v0"
    tail = "latency_p95_s"
    tail_of = "latency_s"
    ratios = MappingProxyType({"detection": ("caught", "lied")})
    about = (
        "Highest mean return of a question first. no fallback: questions that the agents answered; "
        "hallucinations found: of those in drafts; context kept: the exchange that a "
        "question refers to is still there; overhead and model: of a decision."
    )
