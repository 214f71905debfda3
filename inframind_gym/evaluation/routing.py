"""The family of `InfraMind-Stream-v0`: workloads x arrival rates x budgets, metrics of queries."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from inframind_gym.configs import StrictModel, list_configs, within
from inframind_gym.envs.routing_config import RANGES
from inframind_gym.errors import require_within, unknown
from inframind_gym.evaluation.errors import BenchmarkError
from inframind_gym.evaluation.metrics import Columns, Layout, Metric, by_name
from inframind_gym.evaluation.play import LIVE_ID, Player, RoutingPlayer
from inframind_gym.evaluation.suite import (
    Axis,
    Cell,
    Place,
    Suite,
    absolute,
    check_names,
    content_hash,
    file_hash,
    name_of,
)
from inframind_gym.evaluation.tables import (
    Table,
    about_bounds,
    cells_text,
    matrix,
    metrics_table,
    of_planned,
    short,
)
from inframind_gym.live.settings import LiveSettings, addresses
from inframind_gym.policies import requires_of
from inframind_gym.simulator.arrivals import make_arrivals
from inframind_gym.simulator.posterior import split_draw
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workflow.topology import CUSTOM, STRATEGIES, TOPOLOGIES
from inframind_gym.simulator.workload import estimates, load_profiles, load_workload

MIXED: Final = "mixed"  # the workload that a folder of tasks replaces by its datasets
SLO_TARGETS_S: Final = (10, 30, 50, 100, 200, 300)
PRICE: Final = "usd_per_1k_queries"  # of pools with prices alone
SHARES: Final = ("model_share", "strategy_share", "topology_share")
METRICS: Final = by_name(
    Metric("accuracy", "solved", "%", "higher"),
    Metric("goodput", "goodput", "%", "higher"),
    Metric("slo_own", "SLO", "%", "higher"),
    *(Metric(f"slo_{t}s", f"≤{t} s", "%", "higher") for t in SLO_TARGETS_S),
    Metric("latency_mean_s", "mean", "s", "lower"),
    Metric("latency_p95_s", "p95", "s", "lower"),
    Metric("cost_ratio", "cost", "", "lower"),
    Metric("imbalance", "imbalance", "", "lower"),
    Metric("tokens_per_query", "tokens/query"),
    Metric("output_tokens_per_query", "output tokens/query"),
    Metric("calls_per_query", "calls/query"),
    Metric("truncated_share", "cut", "%", "lower"),
    Metric("wait_s", "wait", "s", "lower"),
    Metric("wasted_share", "wasted", "%", "lower"),
    Metric(PRICE, "$ / 1k queries", "", "lower"),
)
_SHOWN: Final = ("goodput", "accuracy", "slo_own", "slo_100s", "latency_mean_s", "latency_p95_s")
_MAIN: Final = tuple(METRICS[name] for name in (*_SHOWN, "cost_ratio"))
PLAIN_SUMS: Final = (
    *("queries", "accuracy", "latency_mean_s", "slo_own"),
    *(f"slo_{target}s" for target in SLO_TARGETS_S),
    *("goodput", "cost_ratio"),
    *("calls_per_query", "prompt_tokens", "output_tokens", "truncated_calls"),
    *("ended_calls", "wait_s", "generated_tokens", "wasted_tokens"),
)

Division = Annotated[
    Literal["orchestrate", "route"],
    Field(exclude_if=lambda division: division == "orchestrate"),
]
Budget = float | Literal["tiers"]


def _checked_budget(value: Any) -> Budget:
    return "tiers" if value == "tiers" else require_within(value, *RANGES["budget_s"])


Rate = Annotated[float, within(*RANGES["arrival_rate_per_min"])]
NumQueries = Annotated[int, within(*RANGES["num_queries"])]
Budgets = Annotated[
    tuple[Annotated[Budget, BeforeValidator(_checked_budget)], ...], Field(min_length=1)
]


def own_arguments(division: str, policy: Any) -> dict[str, Any]:
    """Return the arguments of the environment that are a policy's own, by the division.

    In "orchestrate" it gets what it requires. In "route" every query has one agent: a policy that
    plans keeps its level if it can be held to that (`plan_single_calls`, called by the player), and
    any other routes along the plan IO x 1, whatever it requires.
    """
    own = requires_of(policy)
    holds = own.get("level") == "joint" and hasattr(policy, "plan_single_calls")
    if division == "orchestrate" or holds:
        return own
    return own | {"level": "executor", "planner": {"topology": "IO", "num_agents": 1}}


def about_division(board: Mapping[str, Any]) -> str:
    """Return the part of a title on the division."""
    return f", division {board['division']}" if "division" in board else ""


def budget_text(budget_s: Budget) -> str:
    """Format a budget."""
    return budget_s if isinstance(budget_s, str) else f"{budget_s:g} s"


@dataclasses.dataclass(frozen=True, slots=True)
class QueryLayout(Layout):
    """Layout of a row of sums over queries.

    Attributes:
        models: Aliases of the pool's models.
        strategies: Prompt strategies.
        topologies: Collaboration topologies.
        priced: Whether the pool has prices: the last column is then what a query costs, USD.
    """

    tail: ClassVar[str] = "latency_p95_s"

    models: tuple[str, ...]
    strategies: tuple[str, ...]
    topologies: tuple[str, ...]
    priced: bool = False

    def measured(self, metrics: Mapping[str, Metric]) -> tuple[str, ...]:
        """Return the names of those metrics that its records give: a price only with prices."""
        return tuple(name for name in metrics if name != PRICE or self.priced)

    def share_slices(self) -> dict[str, tuple[slice, tuple[str, ...]]]:
        """Return the columns of each share's counts, and the names that they count."""
        named = (self.models, self.strategies, self.topologies)
        ends = itertools.accumulate(map(len, named), initial=len(PLAIN_SUMS))
        slices = itertools.starmap(slice, itertools.pairwise(ends))
        return dict(zip(SHARES, zip(slices, named, strict=True), strict=True))

    def table(self, columns: Columns) -> NDArray[np.float64]:
        """Return what each query adds to the sums, ``(num_queries, width)``."""
        solved, latency_s = columns["solved"], columns["latency_s"]
        in_time = latency_s <= columns["budget_s"]
        plain = [
            np.ones(len(solved)),
            solved,
            latency_s,
            in_time,
            *(latency_s <= target for target in SLO_TARGETS_S),
            solved * in_time,
            *(columns[key] for key in ("cost", "calls", "prompt_tokens", "output_tokens")),
            *(columns[key] for key in ("truncated_calls", "ended_calls", "wait_s")),
            columns["generated_tokens"],
            columns["generated_tokens"] * (~in_time | (columns["calls"] == 0)),
        ]
        chosen = (columns["model"], columns["strategy"], columns["topology"][:, None])
        counted = [
            np.stack([(of == index).sum(axis=1) for index in range(len(names))], axis=1)
            for of, (_, names) in zip(chosen, self.share_slices().values(), strict=True)
        ]
        usd = [columns["usd"]] if self.priced else []
        return np.column_stack([*plain, *counted, *usd]).astype(np.float64)

    def evaluate(self, sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Compute all metrics but ``latency_p95_s`` from sums ``(..., width)``, ``(...)`` each."""
        total = dict(zip(PLAIN_SUMS, np.moveaxis(sums, -1, 0), strict=False))
        queries = total.pop("queries")
        tokens = ("prompt_tokens", "output_tokens", "truncated_calls")
        prompt, output, cut = (total.pop(name) for name in tokens)
        calls, wait_s, generated, wasted = (total.pop(name) for name in PLAIN_SUMS[-4:])
        return {
            **{name: value / queries for name, value in total.items()},
            "tokens_per_query": (prompt + output) / queries,
            "output_tokens_per_query": output / queries,
            "truncated_share": cut / np.maximum(total["calls_per_query"], 1.0),
            "wait_s": wait_s / np.maximum(calls, 1.0),
            "wasted_share": wasted / np.maximum(generated, 1.0),
            "imbalance": imbalance(sums[..., self.share_slices()["model_share"][0]]),
            **({PRICE: 1000.0 * sums[..., -1] / queries} if self.priced else {}),
        }

    def values(self, columns: Columns) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return every query's latency, and the query."""
        return columns["latency_s"], np.arange(len(columns["latency_s"]))

    def shares(self, sums: NDArray[np.float64]) -> dict[str, dict[str, float]]:
        """Return shares of models and strategies (of decisions) and of topologies (of queries)."""
        return {
            share: dict(zip(names, (sums[at] / max(sums[at].sum(), 1.0)).tolist(), strict=True))
            for share, (at, names) in self.share_slices().items()
        }


def imbalance(calls: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the population standard deviation over the mean of the models' shares of decisions.

    Shares of [.25, .5, .125, .125] give 0.612.

    Args:
        calls: Calls of each model, ``(..., num_models)``.

    Returns:
        0 for equal shares, ``sqrt(num_models - 1)`` if one model takes all; 0 where there are no
        calls. ``(...)``.
    """
    mean = calls.mean(axis=-1)
    return np.asarray(calls.std(axis=-1) / np.where(mean > 0, mean, 1.0), dtype=np.float64)


class WorkloadSettings(StrictModel):
    """Settings of one workload that replace the suite's; None leaves the suite's."""

    budgets_s: Budgets | None = None
    num_queries: NumQueries | None = None


class RoutingSuite(Suite):
    """A suite of `InfraMind-Stream-v0`.

    Attributes:
        pool: Name or path of the pool of servers.
        workloads: Names or paths of workloads; `math#7` is `math` under the posterior draw 7 of its
            quality (`posterior.py`), on the same episodes.
        rates_per_min: Mean arrival rates.
        budgets_s: Latency budgets; "tiers" draws every query's budget from the workload's tiers.
        num_queries: Queries of one episode; null takes each workload's own number.
        by_workload: Budgets and numbers of queries of single workloads in place of these, by name.
        arrivals: An arrival process: "poisson", "burst", or a mapping such as
            ``{kind: trace, path: arrivals.csv, rescale: true}``.
        execution: Order of a workflow's calls: "parallel" (the nodes of a wave run at once) or
            "sequential" (one call after the other, the final call not counted: as published); null
            takes each workload's own.
        scheduler: Order of the servers' queues; null takes the pool's.
        tasks: "builtin", or a folder of questions.
        split: Part of the tasks that is asked.
        system_features: Telemetry of the servers that a policy observes.
        metrics_poll_s: Seconds between two polls of it; null takes the pool's.
        down_models: Aliases of models that are out of service.
        division: "orchestrate": policies plan, or have the plan that they require; "route": all
            have one agent a query, the plan IO x 1.
        backend: "surrogate", or "vllm": the pool's live servers, on the wall clock.
        live: Settings of calls to live servers.
    """

    env_id: ClassVar = "InfraMind-Stream-v0"
    axes: ClassVar = (
        Axis("workload", "workloads", "workload", "by_workload", is_file=True),
        Axis("rate_per_min", "rates_per_min", "rate/min", "by_rate", False, "{:g}".format, float),
        Axis("budget_s", "budgets_s", "budget", "by_budget", False, budget_text, _checked_budget),
    )
    metrics: ClassVar = METRICS
    score: ClassVar = "goodput"
    compared: ClassVar = ("goodput", "accuracy", "slo_own", "latency_mean_s")
    shown: ClassVar = ("tasks", "backend", "pool")
    unit: ClassVar = "queries"
    play: ClassVar = RoutingPlayer

    kind: Literal["routing"] = "routing"
    pool: str = "b200-2gpu"
    workloads: tuple[str, ...] = Field(min_length=1)
    rates_per_min: tuple[Rate, ...] = Field(min_length=1)
    budgets_s: Budgets
    num_queries: NumQueries | None = None
    by_workload: dict[str, WorkloadSettings] = Field(default_factory=dict)
    arrivals: str | dict[str, Any] = "poisson"
    execution: Literal["parallel", "sequential"] | None = None
    scheduler: Literal["edf", "edf_late_last", "fcfs"] | None = None
    tasks: str = "builtin"
    split: Literal["train", "val", "test", "all"] = "test"
    system_features: tuple[str, ...] = ("queue", "e2e")
    metrics_poll_s: Annotated[float, within(*RANGES["metrics_poll_s"])] | None = None
    down_models: tuple[str, ...] = ()
    division: Division = "orchestrate"
    backend: Literal["surrogate", "vllm"] = "surrogate"
    live: LiveSettings = LiveSettings()

    @model_validator(mode="after")
    def _plays_what_it_sets(self) -> Self:
        known = {split_draw(name)[0] for name in self.names("workloads")}
        for name in self.by_workload:
            if name not in known:
                raise ValueError(f"by_workload: {unknown('workload', name, sorted(known))}")
        return self

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
        """Return the queries of an episode of a workload; None: its own number."""
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
        if "path" in arrivals:
            update["arrivals"] = {**arrivals, "path": str(Path(arrivals["path"]).resolve())}
        names, datasets = self.workloads, None
        if self.tasks != "builtin":
            datasets = datasets_of(self.tasks, self.split)
            update["tasks"] = str(Path(self.tasks).resolve())
            played = (one for name in names for one in (datasets if name == MIXED else (name,)))
            names, shipped = tuple(dict.fromkeys(played)), list_configs("workloads")
            for name in names:
                if name in datasets and name not in shipped:
                    raise BenchmarkError(
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
                raise BenchmarkError(
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
            "tasks": tasks_hash(self.tasks),
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

    def env_kwargs(self, place: Place, policy: Any) -> dict[str, Any]:
        """Return the JSON arguments of the environment in which a policy meets a workload."""
        kwargs: dict[str, Any] = {
            **{name: getattr(self, name) for name in ("pool", "tasks", "split", "arrivals")},
            **{name: getattr(self, name) for name in ("scheduler", "execution", "metrics_poll_s")},
            "workload": self.source("workloads", place[0]),
            "num_queries": self.queries_of(place[0]),
            "system_features": list(self.system_features),
            "down_models": list(self.down_models),
            "observation": "index",
            "record_calls": True,
        }
        if self.backend == "vllm":
            kwargs["live"] = self.live.model_dump(mode="json")
        return kwargs | own_arguments(self.division, policy)

    @classmethod
    def env_spec(cls, kwargs: Mapping[str, Any], env_id: str = "") -> dict[str, Any]:
        """Return the JSON spec of the environment on simulated or on live servers."""
        return super().env_spec(kwargs, LIVE_ID if "live" in kwargs else env_id)

    def header(self, policies: Mapping[str, Any]) -> dict[str, Any]:
        """Return environments' specs, names of models, strategies and topologies, estimates."""
        pool = load_pool(self.pool)
        notes: dict[str, Any] = {"pool": pool.notes}
        if self.backend == "vllm":
            from inframind_gym.live.watcher import is_simulated

            if simulated := [one.alias for one in addresses(pool) if is_simulated(one.url)]:
                notes["servers"] = [f"simulated servers, no vLLM: {', '.join(simulated)}"]
        for name in self.names("workloads"):
            notes[name] = estimates(load_workload(self.source("workloads", name)))
        names = names_of(pool.aliases)
        shared = {"priced": pool.has_prices, "estimates": notes, "names": names}
        return shared | {"division": self.division} | super().header(policies)

    def player(self, progress: Callable[[int], None] = lambda _: None, **live: Any) -> Player:
        """Make the player: on simulated servers, or on those of the pool."""
        if self.backend == "surrogate":
            return RoutingPlayer(self, progress)
        from inframind_gym.evaluation.live import LivePlayer

        return LivePlayer(self, progress, **live)

    @classmethod
    def layout(cls, header: Mapping[str, Any]) -> QueryLayout:
        """Make the layout of sums of a folder."""
        names = {key: tuple(names) for key, names in header["names"].items()}
        return QueryLayout(**names, priced=header.get("priced", False))

    @classmethod
    def tables(cls, board: Mapping[str, Any]) -> list[Table]:
        """Make the ranking, tables by workload, rate and budget, and what was used."""
        ranking = board["ranking"]
        priced = PRICE in ranking[0]
        main = (*_MAIN, METRICS[PRICE]) if priced else _MAIN
        paid = " $: GPUs from the first arrival to the last answer, and tokens." if priced else ""
        live = f", live on {Path(board['pool']).stem}" if board["backend"] == "vllm" else ""
        caption = (
            f"Means over {cells_text(board)} (workload x rate x budget) ± half of the 95 % "
            "interval. Goodput: solved within the query's own budget; SLO: answered within it; "
            f"cost: latency over budget.{paid}{about_bounds(board)}"
        )
        title = f"{board['suite']}: {of_planned(board, 'queries')}{about_division(board)}{live}"
        rates = {row["rate_per_min"]: None for row in board["by_rate"]}
        return [
            metrics_table(title, ranking, main, caption),
            *_goodput_table(board, cls.axes[0]),
            *(
                metrics_table(
                    f"At {rate:g} queries/min",
                    [row for row in board["by_rate"] if row["rate_per_min"] == rate],
                    main,
                )
                for rate in rates
            ),
            *_goodput_table(board, cls.axes[2]),
            _used_table(ranking),
        ]


def _goodput_table(board: Mapping[str, Any], axis: Axis) -> list[Table]:
    """Return the table of goodput along an axis with several values."""
    rows = board[axis.table]
    values = list(dict.fromkeys(row[axis.name] for row in rows))
    if len(values) == 1:
        return []
    table = matrix(
        f"Goodput % by {axis.label} (solved %)",
        rows,
        axis.name,
        [row["policy"] for row in board["ranking"]],
        METRICS["goodput"],
        lambda row: f"{100 * row['goodput']:.1f} ({100 * row['accuracy']:.1f})",
        axis.text,
    )
    return [table]


def _used_table(ranking: Sequence[Mapping[str, Any]]) -> Table:
    """Return the shares of models and strategies in the decisions of every policy."""
    models, strategies = (list(ranking[0][share]) for share in SHARES[:2])
    names = ("imbalance", "tokens_per_query", "truncated_share", "wait_s", "wasted_share")
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
            *("imbal.", "tokens/q", "cut %", "wait s", "wasted %"),
        ],
        body,
        "Imbalance: standard deviation over mean of the models' shares. "
        "Cut: calls that hit the limit of output tokens. Wait: of a call, in its server's queue. "
        "Wasted: of the tokens that were written, those for queries past their budget.",
    )


def names_of(models: Sequence[str]) -> dict[str, list[str]]:
    """Return the meaning of the numbers in records, as ``run.json`` has it."""
    topologies = [*TOPOLOGIES, CUSTOM]
    return {"models": list(models), "strategies": list(STRATEGIES), "topologies": topologies}


def datasets_of(tasks: str, split: str) -> tuple[str, ...]:
    """Return the datasets in a folder of tasks.

    Raises:
        InfraMindError: There is no such folder, or its tasks cannot be read.
    """
    from inframind_gym.tasks import load_tasks

    if not Path(tasks).is_dir():
        raise BenchmarkError(f"tasks: there is no folder {tasks}.")
    return tuple(dict.fromkeys(load_tasks(tasks, split=split).datasets))


def tasks_hash(tasks: str) -> str:
    """Hash the files of a folder of questions; of the built-in ones return the name."""
    if tasks == "builtin":
        return tasks
    files = (path for path in Path(tasks).iterdir() if path.name.endswith((".jsonl", ".jsonl.gz")))
    return content_hash([[path.name, file_hash(path)] for path in sorted(files)])
