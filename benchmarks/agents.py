"""The page of the agents: `python -m benchmarks agents [RUN ...]`.

Table and picture of the trainings in docs/agents.md come from `trainings.csv.gz` of
`benchmarks/records/agents`: metrics of every training of `ppo_lagrangian`, a row for each update.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import RULE, csv_text, refresh, table
from benchmarks.results import RECORDS
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.tracker import METRICS, read_metrics
from inframind_gym.files import replace_bytes
from inframind_gym.policies import checkpoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAININGS: Final = Path("agents", "trainings.csv.gz")  # in the folder of records
LOADS: Final = (0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.1, 1.25)
CURVES: Final = {  # of a training: title
    "charts/goodput": "goodput",
    "charts/violation_rate": "share of late queries",
    "lagrange/lambda": "λ, right answers a late query",
    "lagrange/mu": "μ, right answers a second",
}
VALIDATION: Final = ("validation/goodput", "validation/in_time")
BY_LOAD: Final = tuple(f"validation/goodput/load/{x:g}" for x in (0.3, 0.6, 0.9, 1.1))
Floats = NDArray[np.float64]
Rows = list[dict[str, str]]


def read(records: Path = RECORDS) -> Rows:
    """Return the rows of the record."""
    with gzip.open(records / TRAININGS, "rt", encoding="utf-8", newline="") as file:
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
    before = read(records) if (records / TRAININGS).is_file() else []
    rows = [row for row in before if row["run"] not in named] + rows
    kinds = list(dict.fromkeys(_kind(row["run"]) for row in rows))
    rows.sort(key=lambda row: (kinds.index(_kind(row["run"])), row["run"]))
    replace_bytes(records / TRAININGS, gzip.compress(csv_text(rows).encode(), mtime=0))


def refresh_pages(docs: Path, *, records: Path = RECORDS, check: bool = False) -> list[Path]:
    """Refresh the table and, unless only checking, the picture; return the page if stale."""
    trainings = read(records)
    figures = {docs / "images/training.svg": lambda: _curves(trainings)}
    return refresh(docs / "agents.md", {"trainings": _table(trainings)}, figures, check=check)


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
            figures[-1] = "–"  # without prices μ stays where it began
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
