"""The family of `InfraMind-Stream-v0`: workloads x arrival rates x budgets.

`StreamSuite` has what all suites of streams share, also those of tracks; its `env_kwargs` joins the
arguments of a place, the division and what a policy requires.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import load_env_creator
from pydantic import BeforeValidator, Field, model_validator

from inframind_gym.configs import StrictModel, list_configs, within
from inframind_gym.envs.routing_config import RANGES
from inframind_gym.errors import ConfigError, InfraMindError, require_within, unknown
from inframind_gym.evaluation.cells import (
    Axis,
    Cell,
    Place,
    absolute,
    check_names,
    content_hash,
    file_hash,
    name_of,
)
from inframind_gym.evaluation.metrics import Layout
from inframind_gym.evaluation.play import Batch, Played, Player, PolicyFailedError
from inframind_gym.evaluation.queries import METRICS, SHARES, QueryBatch, QueryLayout, names_of
from inframind_gym.evaluation.suite import Suite
from inframind_gym.evaluation.tables import Table, short
from inframind_gym.live.config import LiveSettings, addresses
from inframind_gym.policies import requires_of
from inframind_gym.progress import say
from inframind_gym.simulator.arrivals import make_arrivals
from inframind_gym.simulator.posterior import split_draw
from inframind_gym.simulator.server.pool import Scheduler, load_pool
from inframind_gym.simulator.workload import estimates, load_profiles, load_workload

LIVE_ID: Final = "InfraMind-StreamLive-v0"
MIXED: Final = "mixed"  # the workload that a folder of tasks replaces by its datasets

Budget = float | Literal["tiers"]


def _checked_budget(value: Any) -> Budget:
    return "tiers" if value == "tiers" else require_within(value, *RANGES["budget_s"])


Rate = Annotated[float, within(*RANGES["arrival_rate_per_min"])]
NumQueries = Annotated[int, within(*RANGES["num_queries"])]
Budgets = Annotated[
    tuple[Annotated[Budget, BeforeValidator(_checked_budget)], ...], Field(min_length=1)
]


# What suites of streams share


class StreamSuite(Suite):
    """Base of suites of streams."""

    env_id: ClassVar = "InfraMind-Stream-v0"
    players: ClassVar = "routing"
    unit: ClassVar = "queries"

    tasks: str = "builtin"  # "builtin", or a folder of questions
    split: str = "test"  # part of the tasks that is asked
    scheduler: Scheduler | None = None  # order of the servers' queues; null takes the pool's
    # "orchestrate": policies plan, or have the plan that they require; "route": all have one agent
    # a query, the plan IO x 1
    division: Annotated[
        Literal["orchestrate", "route"],
        Field(exclude_if=lambda division: division == "orchestrate"),
    ] = "orchestrate"

    @property
    def models(self) -> tuple[str, ...]:
        """Aliases of models, by their indices in records."""
        raise NotImplementedError

    def arguments(self, place: Place) -> dict[str, Any]:
        """Return the arguments of the environment of a place."""
        raise NotImplementedError

    def env_kwargs(self, place: Place, policy: Any) -> dict[str, Any]:
        """Return the JSON arguments of the environment in which a policy meets a place.

        In "orchestrate" a policy gets the arguments that it requires. In "route" every query has
        one agent: a policy that plans keeps its level if it can plan single calls
        (`plan_single_calls`, see `prepare`), and any other routes along the plan IO x 1,
        whatever it requires.
        """
        required = requires_of(policy)
        plans_one = required.get("level") == "joint" and getattr(policy, "plan_single_calls", None)
        if self.division == "route" and not plans_one:
            one_agent = {"topology": "IO", "num_agents": 1}
            required = required | {"level": "executor", "planner": one_agent}
        common: dict[str, Any] = {"tasks": self.tasks, "split": self.split}
        common |= {"scheduler": self.scheduler, "observation": "index", "record_calls": True}
        return common | self.arguments(place) | required

    def prepare(self, policy: Any) -> None:
        """Restrict a policy that can plan single calls to them, in the division "route"."""
        plan_single_calls = getattr(policy, "plan_single_calls", None)
        if self.division == "route" and plan_single_calls:
            plan_single_calls()

    @cached_property
    def datasets(self) -> tuple[str, ...] | None:
        """Datasets of the folder of tasks; None for the built-in tasks."""
        from inframind_gym.tasks import load_tasks

        if self.tasks == "builtin":
            return None
        if not Path(self.tasks).is_dir():
            raise ConfigError(f"tasks: there is no folder {self.tasks}.")
        return tuple(dict.fromkeys(load_tasks(self.tasks, split=self.split).datasets))

    def resolve(self) -> Self:
        """Check the folder of tasks, and make its path absolute.

        Raises:
            InfraMindError: There is no such folder, or its tasks cannot be read.
        """
        _ = self.datasets
        tasks = self.tasks if self.tasks == "builtin" else str(Path(self.tasks).resolve())
        return super(StreamSuite, self.model_copy(update={"tasks": tasks})).resolve()

    def settings(self) -> dict[str, Any]:
        """Return the settings with a hash of the tasks' files in place of their path."""
        tasks = self.tasks
        if tasks != "builtin":
            paths = (p for p in Path(tasks).iterdir() if p.name.endswith((".jsonl", ".jsonl.gz")))
            tasks = content_hash([[path.name, file_hash(path)] for path in sorted(paths)])
        return super().settings() | {"tasks": tasks}

    def header(self) -> dict[str, Any]:
        """Add the names of models, strategies and topologies, and the division."""
        shared = {"names": names_of(self.models), "division": self.division}
        return shared | super().header()


def about_division(board: Mapping[str, Any]) -> str:
    """Return the part of a title that names the division."""
    return f", division {board['division']}" if "division" in board else ""


# Workloads, rates and budgets


def _used_table(ranking: Sequence[Mapping[str, Any]]) -> Table:
    """Return the shares of models and strategies in the decisions of every policy."""
    models, strategies = (list(ranking[0][share]) for share in SHARES[:2])
    names = (
        "imbalance",
        "tokens_per_query",
        "truncated_share",
        "wait_s",
        "avoidable_s",
        "wasted_share",
        "idle_share",
    )
    used = [METRICS[name] for name in names]
    body = []
    for row in ranking:
        shares = [*row["model_share"].values(), *row["strategy_share"].values()]
        texts = [f"{100 * share:.0f}" for share in shares]
        body.append([short(row["policy"]), *texts, *(one.text(row[one.name]) for one in used)])
    return Table(
        "What was used: % of decisions",
        [
            "policy",
            *(name.replace("-", "\n") for name in models),
            *strategies,
            *("imbal.", "tokens/q", "cut %", "wait s", "avoidable s", "wasted %", "idle %"),
        ],
        body,
        "Imbalance: standard deviation over mean of the models' shares. "
        "Cut: calls that hit the limit of output tokens. Wait: of a call, in its server's queue; "
        "avoidable: that while another server had no call. Wasted: of the tokens that were "
        "written, those for queries past their budget. Idle: slots of servers without a call.",
    )


class WorkloadSettings(StrictModel):
    """Settings of one workload that replace the suite's; None leaves the suite's."""

    budgets_s: Budgets | None = None
    num_queries: NumQueries | None = None


class RoutingSuite(StreamSuite):
    """A suite of `InfraMind-Stream-v0`."""

    axes: ClassVar = (
        Axis("workload", "workloads", "workload", "Goodput % by workload (solved %)", is_file=True),
        Axis(
            "rate_per_min",
            "rates_per_min",
            "rate/min",
            "At {} queries/min",
            text="{:g}".format,
            read=float,
        ),
        Axis(
            "budget_s",
            "budgets_s",
            "budget",
            "Goodput % by budget (solved %)",
            text=lambda budget: budget if isinstance(budget, str) else f"{budget:g} s",
            read=_checked_budget,
        ),
    )
    metrics: ClassVar = METRICS
    layout_class: ClassVar[type[Layout]] = QueryLayout
    score: ClassVar = "goodput"
    beside: ClassVar = "accuracy"
    main: ClassVar = (
        "goodput",
        "accuracy",
        "slo_own",
        "slo_100s",
        "latency_mean_s",
        "latency_p95_s",
        "cost_ratio",
    )
    compared: ClassVar = ("goodput", "accuracy", "slo_own", "latency_mean_s")
    caption: ClassVar = (
        "Means over {cells} (workload x rate x budget) ± half of the 95 % interval. Goodput: "
        "solved within the query's own budget; SLO: answered within it; cost: latency over budget."
    )
    batch: ClassVar = QueryBatch
    shown: ClassVar = ("tasks", "backend", "pool", "division")
    merged: ClassVar = ("estimates",)

    kind: Literal["routing"] = "routing"
    pool: str = "b200-2gpu"  # name or path of the pool of servers
    # Names or paths of workloads; `math#7` is `math` under the posterior draw 7 of its quality
    # (`posterior.py`), on the same episodes
    workloads: tuple[str, ...] = Field(min_length=1)
    rates_per_min: tuple[Rate, ...] = Field(min_length=1)  # mean arrival rates
    # Latency budgets; "tiers" draws every query's budget from the workload's tiers
    budgets_s: Budgets
    # Queries of one episode; null takes each workload's own number
    num_queries: NumQueries | None = None
    # Budgets and numbers of queries that replace these for some workloads, by name
    by_workload: dict[str, WorkloadSettings] = Field(default_factory=dict)
    # An arrival process: "poisson", "burst", a CSV file of recorded arrivals, which are rescaled to
    # the cell's rate, or a mapping such as ``{kind: burst, factor: 3}``
    arrivals: str | dict[str, Any] = "poisson"
    # Order of a workflow's calls: "parallel" (the nodes of a wave run at once), or "sequential" as
    # published (one call after the other, the final one not counted); null: each workload's own
    execution: Literal["parallel", "sequential"] | None = None
    split: Literal["train", "val", "test", "all"] = "test"
    # "surrogate", or "vllm": the pool's live servers, on the wall clock
    backend: Literal["surrogate", "vllm"] = "surrogate"
    live: LiveSettings = LiveSettings()  # settings of calls to live servers

    @model_validator(mode="after")
    def _has_their_workloads(self) -> Self:
        known = {split_draw(name)[0] for name in self.names("workloads")}
        for name in self.by_workload:
            if name not in known:
                raise ValueError(f"by_workload: {unknown('workload', name, sorted(known))}")
        return self

    @classmethod
    def about(cls, board: Mapping[str, Any]) -> str:
        """Return the division, and the pool if its servers are live."""
        live = f", live on {Path(board['pool']).stem}" if board.get("backend") == "vllm" else ""
        return about_division(board) + live

    @classmethod
    def tables(cls, board: Mapping[str, Any], tables: list[Table]) -> list[Table]:
        """Add the shares of what was used."""
        return [*tables, _used_table(board["ranking"])]

    def overridden(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Replace settings, those of single workloads included."""
        played = [name_of(workload) for workload in changes.get("workloads", self.workloads)]
        own = {
            name: {key: None if key in changes else value for key, value in settings}
            for name, settings in self.by_workload.items()
            if name in played
        }
        return {**self.model_dump(), "by_workload": own, **changes}

    def _of_workload(self, workload: str) -> WorkloadSettings:
        """Return the settings of a workload that replace the suite's."""
        return self.by_workload.get(split_draw(name_of(workload))[0], WorkloadSettings())

    def places(self) -> Iterator[Place]:
        """Yield every workload at every rate with every budget."""
        for workload in self.names("workloads"):
            budgets_s = self._of_workload(workload).budgets_s or self.budgets_s
            yield from itertools.product((workload,), self.rates_per_min, budgets_s)

    def queries_of(self, workload: str) -> int | None:
        """Return the number of queries of an episode; None: the workload's own number."""
        return self._of_workload(workload).num_queries or self.num_queries

    def length(self, cell: Cell) -> int:
        """Return the queries of an episode."""
        workload = cell.place[0]
        source = self.source("workloads", workload)
        return self.queries_of(workload) or load_workload(source).num_queries

    def resolve(self) -> Self:
        """Check all that the suite names; a folder's datasets replace the mixed workload.

        Raises:
            InfraMindError: A pool, workload, arrival process or folder of tasks cannot be used.
        """
        aliases = load_pool(self.pool).aliases
        update: dict[str, Any] = {"pool": absolute(self.pool)}
        arrivals = make_arrivals(self.arrivals).to_json()
        if "path" in arrivals:  # a file alone is played at the cells' rates
            rescale = {"rescale": True} if isinstance(self.arrivals, str) else {}
            path = str(Path(arrivals["path"]).resolve())
            update["arrivals"] = {**arrivals, **rescale, "path": path}
        names, datasets = self.workloads, self.datasets
        if datasets is not None:
            chosen = (one for name in names for one in (datasets if name == MIXED else (name,)))
            names, shipped = tuple(dict.fromkeys(chosen)), list_configs("workloads")
            for name in names:
                if name in datasets and name not in shipped:
                    raise ConfigError(
                        f"{self.tasks} holds questions of {name!r}: "
                        f"{unknown('workload', name, shipped)} Write a workload for them and name "
                        "its file with --set workloads=FILE."
                    )
            check_names(names)
        for name in names:
            workload = load_workload(name)
            for part in load_profiles(workload).values():
                part.profile.require_models(aliases)
            if datasets is not None and workload.dataset not in (None, *datasets):
                raise ConfigError(
                    f"workload {name} asks questions of {workload.dataset!r}; {self.tasks} has "
                    f"those of {', '.join(datasets) or 'nothing'}."
                )
        return super(RoutingSuite, self.model_copy(update={**update, "workloads": names})).resolve()

    def settings(self) -> dict[str, Any]:
        """Return the settings with hashes of pool, tasks and trace in place of their paths."""
        arrivals = make_arrivals(self.arrivals).to_json()
        if "path" in arrivals:
            arrivals["path"] = file_hash(arrivals["path"])
        return {
            **super().settings(),
            "pool": content_hash(load_pool(self.pool).model_dump(mode="json")),  # not its comments
            "arrivals": arrivals,
            "by_workload": {name: own.num_queries for name, own in self.by_workload.items()},
        }

    def fingerprint(self, setting: str, name: str) -> str:
        """Hash a workload's settings and those of the workloads that it mixes."""
        workload = load_workload(self.source(setting, name))
        profiles = {
            dataset: [part.weight, part.profile.model_dump(mode="json")]
            for dataset, part in load_profiles(workload).items()
        }
        return content_hash([workload.model_dump(mode="json"), profiles])

    @property
    def models(self) -> tuple[str, ...]:
        """Aliases of the pool's models."""
        return load_pool(self.pool).aliases

    def arguments(self, place: Place) -> dict[str, Any]:
        """Return the arguments of the environment of a workload."""
        kwargs: dict[str, Any] = {
            "pool": self.pool,
            "arrivals": self.arrivals,
            "execution": self.execution,
            "workload": self.source("workloads", place[0]),
            "num_queries": self.queries_of(place[0]),
        }
        if self.backend == "vllm":
            kwargs["live"] = self.live.model_dump(mode="json")
        return kwargs

    def header(self) -> dict[str, Any]:
        """Add notes on estimated constants of pool and workloads."""
        pool = load_pool(self.pool)
        notes: dict[str, Any] = {"pool": pool.notes}
        if self.backend == "vllm":
            from inframind_gym.live.watcher import is_simulated

            if simulated := [one.alias for one in addresses(pool) if is_simulated(one.url)]:
                notes["servers"] = [f"simulated servers, no vLLM: {', '.join(simulated)}"]
        for name in self.names("workloads"):
            notes[name] = estimates(load_workload(self.source("workloads", name)))
        return {"estimates": notes} | super().header()

    def environment(self) -> Any:
        """Return the class of the environment: on simulated servers, or on those of the pool."""
        if self.backend == "surrogate":
            return super().environment()
        return load_env_creator(str(gym.spec(LIVE_ID).entry_point))

    def options(self, cells: Sequence[Cell]) -> dict[str, Any]:
        """Return the rate and budget of every row; nan: budgets from the tiers."""
        _, rates, budgets = zip(*(cell.place for cell in cells), strict=True)
        budgets_s = [np.nan if budget == "tiers" else budget for budget in budgets]
        return {"arrival_rate_per_min": np.array(rates), "budget_s": np.array(budgets_s)}

    def player(self, progress: Callable[[int], None] = lambda _: None, **live: Any) -> Player:
        """Make the player: on simulated servers, or on those of the pool."""
        if self.backend == "surrogate":
            return super().player(progress)
        return LivePlayer(self, progress, **live)


# Live servers


class LiveBatch(QueryBatch):
    """An episode on live servers."""

    def begin(self) -> None:
        """Open the window, and note the count of ungraded answers, which spans all episodes."""
        super().begin()
        self.ungraded = self.simulation.ungraded

    def columns(self, row: int) -> Any:
        """Return the queries; say which calls failed and which answers were not graded."""
        cell = self.cells[0]
        if failed := int(self.done["failed_calls"].sum()):
            say(
                f"warning: {cell}: calls that failed: {failed}; they were sent again, or count "
                "as wrong answers. The log of requests has the reasons."
            )
        if ungraded := self.simulation.ungraded - self.ungraded:
            say(f"warning: {cell}: {ungraded} answers could not be graded, and count as wrong")
        return super().columns(row)


class LivePlayer(Player):
    """Player of episodes on a pool's live servers.

    Every policy meets the same queries, arrivals and budgets; answers and latencies are the
    servers' own. Every call is appended to the file `log`.
    """

    one_at_a_time = True

    def __init__(
        self,
        suite: Any,
        progress: Callable[[int], None] = lambda _: None,
        *,
        log: Path | None = None,
    ) -> None:
        super().__init__(suite, progress)
        self.batch, self.log = LiveBatch, log

    def arguments_of(self, cells: Sequence[Cell], policy: Any) -> dict[str, Any]:
        """Return the arguments of the environment of cells, with the file of the log."""
        log = None if self.log is None else str(self.log)
        return super().arguments_of(cells, policy) | {"log": log}

    def check(self, cell: Cell) -> None:
        """Check that a policy can play a cell, without the servers."""
        self.reset_policy(self.make([cell]))

    def begin(self, cells: Sequence[Cell]) -> Any:
        """Begin an episode.

        Raises:
            PolicyFailedError: The policy cannot play on this pool.
            InfraMindError: No server answers, which is not the policy's fault.
        """
        batch = self.make(cells)
        self.reset(batch)
        batch.begin()
        self.reset_policy(batch)
        return batch

    def play(self, batch: Batch) -> list[Played]:
        """Play an episode that has begun; say what to do where the servers are gone."""
        try:
            return super().play(batch)
        except InfraMindError as error:
            servers = batch.simulation.servers
            if isinstance(error, PolicyFailedError) or servers is None or servers.watcher.up:
                raise
            raise ConfigError(
                f"{batch.cells[0]}: {error}. Finished cells are kept, and so are the calls of this "
                f"one ({self.log}). Bring the servers up (inframind pool up --pool "
                f"{self.suite.pool}); the same command goes on from there."
            ) from None
