"""The page of the agents: `python -m benchmarks agents [RUN ...]`.

Tables and pictures of docs/agents.md come from `benchmarks/records/agents`:

trainings.csv   metrics of every training of `ppo_lagrangian`, an update a row
prices.csv      price of a second of a slot by load: those `bid_price` was given, and those that
                `adaptive` and `ppo_lagrangian` find while they play (`play_prices`)
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import RULE, csv_text, refresh, save_all, table
from benchmarks.results import RECORDS
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.tracker import METRICS, read_metrics
from inframind_gym.files import replace_text
from inframind_gym.policies import checkpoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAININGS, PRICES = "trainings.csv", "prices.csv"
LOADS: Final = (0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.1, 1.25)
CURVES: Final = {  # of a training: title
    "charts/goodput": "goodput",
    "charts/violation_rate": "share of late queries",
    "lagrange/lambda": "λ, right answers a late query",
    "lagrange/mu": "μ, right answers a second",
}
VALIDATION: Final = ("validation/goodput", "validation/in_time")
BY_LOAD: Final = tuple(f"validation/goodput/load/{x:g}" for x in (0.3, 0.6, 0.9, 1.1))
WORKLOAD: Final = "math"
CAPACITY_PER_MIN: Final = 181.0
MODEL, GPU = 1, 1  # mistral-24b, whose price is shown, and its GPU
LEAST_PRICE: Final = 1e-5  # that is shown, and that the two learn
PLAYERS: Final = {"adaptive": "#009e73", "ppo_lagrangian": "#d55e00"}
Floats = NDArray[np.float64]
Rows = list[dict[str, str]]


def read(name: str, records: Path = RECORDS) -> Rows:
    """Return the rows of a record."""
    with (records / "agents" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def record(runs: Sequence[Path], records: Path = RECORDS) -> None:
    """Record the metrics of finished trainings; those of the same names are replaced.

    Raises:
        ConfigError: A folder holds no metrics of a training of `ppo_lagrangian`.
    """
    names = [*(f"{n}/load/{x:g}" for n in CURVES for x in LOADS), *CURVES, *VALIDATION, *BY_LOAD]
    rows: list[dict[str, Any]] = []
    for run in runs:
        by_step: dict[int, dict[str, float]] = {}
        path = run / METRICS
        for metrics in read_metrics(path) if path.is_file() else ():
            by_step.setdefault(int(metrics["step"]), {}).update(metrics)
        if not any("lagrange/mu" in metrics for metrics in by_step.values()):
            raise ConfigError(
                f"{run}: holds no metrics of ppo_lagrangian. Name a folder that `inframind train "
                "ppo_lagrangian --out FOLDER` has written."
            )
        for step in sorted(by_step):
            row = {name: f"{by_step[step][name]:.5g}" for name in names if name in by_step[step]}
            rows.append({"run": run.name, "queries": step} | {n: row.get(n, "") for n in names})
        if checkpoint.exists(run / "best"):  # its validation by load, means over worlds
            of_best = checkpoint.load(run / "best")[1]["training"]["validation"]["goodput"]
            cells: dict[str, list[float]] = {name: [] for name in BY_LOAD}
            for cell, goodput in of_best.items():
                cells[f"validation/goodput/load/{cell.rpartition('/')[2]}"].append(goodput)
            rows[-1] |= {name: f"{np.mean(values):.5g}" for name, values in cells.items()}
    named = {run.name for run in runs}
    before = read(TRAININGS, records) if (records / "agents" / TRAININGS).is_file() else []
    rows = [row for row in before if row["run"] not in named] + rows
    kinds = list(dict.fromkeys(_kind(row["run"]) for row in rows))
    rows.sort(key=lambda row: (kinds.index(_kind(row["run"])), row["run"]))
    replace_text(records / "agents" / TRAININGS, csv_text(rows))


def play_prices(records: Path = RECORDS, queries: int = 1200, streams: int = 3) -> None:
    """Play streams at each load, and record the mean prices after a third of their queries."""
    import gymnasium as gym

    from inframind_gym.policies import resolve_policy
    from inframind_gym.policies.bid_price import SHIPPED, load_model
    from inframind_gym.simulator.workflow.dispatch import DECISION

    model = load_model(SHIPPED / WORKLOAD)
    rows: list[dict[str, Any]] = []
    for rate, base in zip(model.rates_per_min, model.prices.base[0], strict=True):
        rho, price = f"{rate / CAPACITY_PER_MIN:.4g}", f"{np.exp(base[MODEL]):.4g}"
        rows.append({"policy": "bid_price", "load": rho, "mu": price, "lambda": ""})
    settings: dict[str, Any] = {"workload": WORKLOAD, "split": "val", "num_queries": queries}
    settings |= {"level": "joint", "observation": "index", "system_features": ("in_flight",)}
    settings["budget_s"] = (10.0, 30.0, 50.0, 100.0, 200.0)
    every = np.arange(streams * len(LOADS))
    env: Any = gym.make_vec("InfraMind-Stream-v0", num_envs=len(every), **settings).unwrapped
    loads = np.repeat(LOADS, streams)
    for name in PLAYERS:
        policy: Any = resolve_policy(name)
        simulation = env.simulation
        simulation.set_options({"arrival_rate_per_min": loads * CAPACITY_PER_MIN})
        simulation.seeded()
        policy.reset(env.policy_spec(), [int(row) for row in every])
        observations = simulation.observations()
        simulation.reset(every, [np.random.default_rng(int(r)) for r in every], observations)
        read_, noted = np.zeros(len(every), np.int64), []
        while (simulation.status == DECISION).all():
            contexts = simulation.contexts(every)
            actions = policy.act_batch(observations, contexts, every)
            simulation.step(every, simulation.checked(actions), observations)
            last = simulation.state.stream["finished"]
            for row in np.flatnonzero(last > read_):
                policy.observe(simulation.state.completed[row, read_[row] : last[row]], int(row))
            read_ = last.copy()
            if contexts["query"].min() > queries // 3:
                lagrange = getattr(policy, "lagrange", np.zeros(len(every)))
                noted.append([np.exp(policy.log_price[:, GPU]), lagrange.copy()])
        price, lagrange = np.mean(noted, axis=0)
        for load in LOADS:
            at = loads == load
            mu, late = price[at].mean(), lagrange[at].mean()
            rows.append({"policy": name, "load": load, "mu": f"{mu:.4g}", "lambda": f"{late:.4g}"})
    replace_text(records / "agents" / PRICES, csv_text(rows))


def refresh_pages(docs: Path, *, records: Path = RECORDS, check: bool = False) -> list[Path]:
    """Refresh tables and, unless only checking, the pictures; return the pages that were stale."""
    trainings, page = read(TRAININGS, records), docs / "agents.md"
    fresh = refresh(page, {"trainings": _table(trainings)}, check=check)
    if not check:
        prices = read(PRICES, records)
        drawings = {"training": lambda: _curves(trainings), "prices": lambda: _prices(prices)}
        save_all(drawings, docs / "images")
    return [] if fresh else [page]


def _kind(run: str) -> str:
    """Return what a training leaves out: its folder's name without the seed."""
    return run.rstrip("0123456789")


def _column(rows: Rows, name: str) -> Floats:
    return np.array([float(row[name]) for row in rows if row[name]])


def _table(rows: Rows) -> str:
    """Tabulate trainings by what was left out: the validation, and the last updates."""
    body = []
    for kind in dict.fromkeys(_kind(row["run"]) for row in rows):
        runs = [r for r in dict.fromkeys(row["run"] for row in rows) if _kind(r) == kind]
        ends = [[row for row in rows if row["run"] == run] for run in runs]
        figures = []
        for name, scale, digits in (
            ("validation/goodput", 100.0, 1),
            *((name, 100.0, 1) for name in BY_LOAD),
            ("validation/in_time", 100.0, 1),
            ("lagrange/lambda/load/0.2", 1.0, 3),
            ("lagrange/mu/load/1.1", 1e3, 2),
        ):
            best = [_column(end, name) for end in ends]
            values = [scale * (b.max() if "validation" in name else b[-5:].mean()) for b in best]
            spread = f" ({min(values):.{digits}f}–{max(values):.{digits}f})"
            figures.append(f"{np.mean(values):.{digits}f}" + (spread if len(values) > 1 else ""))
        if kind == "no-prices":
            figures[-1] = "–"  # what nobody pays stays where it began
        body.append([kind if kind != "seed" else "as shipped", str(len(runs)), *figures])
    heads = ["training", "seeds", "goodput %", *(f"ρ {n.rpartition('/')[2]}" for n in BY_LOAD)]
    return table([*heads, "in time %", "λ at ρ 0.2", "μ at ρ 1.1, 10⁻³"], body)


def _curves(rows: Rows) -> Figure:
    """Draw goodput, late share, λ and μ over a training: mean and range of the seeds."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    runs = [r for r in dict.fromkeys(row["run"] for row in rows) if _kind(r) == "seed"]
    figure = Figure(figsize=(9.0, 5.4), layout="constrained")
    panels = figure.subplots(2, 2).ravel()
    shown, colours = LOADS[::2], colormaps["viridis"]
    for panel, (name, title) in zip(panels, CURVES.items(), strict=True):
        for i, load in enumerate(shown):
            each = [
                _column([row for row in rows if row["run"] == run], f"{name}/load/{load:g}")
                for run in runs
            ]
            length = min(map(len, each))
            values = np.array([column[:length] for column in each])
            steps = _column([r for r in rows if r["run"] == runs[0]], "queries")[:length] / 1e6
            colour = colours(0.9 - 0.8 * i / (len(shown) - 1))
            panel.plot(steps, values.mean(axis=0), color=colour, lw=1.6, label=f"ρ {load:g}")
            panel.fill_between(
                steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, lw=0
            )
        panel.set_title(title)
        panel.grid(axis="y", color=RULE, lw=0.6)
        panel.set_ylim(bottom=0.0)
    panels[0].set_ylim(0.6, 0.85)
    for panel in panels[2:]:
        panel.set_xlabel("million queries")
    panels[0].legend(frameon=False, ncols=2, fontsize=9, loc="lower right")
    return figure


def _prices(rows: Rows) -> Figure:
    """Draw the price of a second of a slot of `mistral-24b` at no load, and λ."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1.0))
    for policy, colour in {"bid_price": "#0072b2", **PLAYERS}.items():
        of = [row for row in rows if row["policy"] == policy]
        price = np.maximum(_column(of, "mu"), LEAST_PRICE)
        left.plot(_column(of, "load"), price, "o-", color=colour, ms=4, label=policy)
        if policy == "ppo_lagrangian":
            right.plot(_column(of, "load"), _column(of, "lambda"), "o-", color=colour, ms=4)
    left.set_yscale("log")
    left.set_title("price of a second of a slot, right answers")
    left.legend(frameon=False, fontsize=9)
    right.set_title("λ, right answers a late query")
    for panel in (left, right):
        panel.set_xlabel("load ρ, share of capacity")
        panel.grid(axis="y", color=RULE, lw=0.6)
    return figure
