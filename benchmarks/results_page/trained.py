"""What trainings tell of themselves: the checkpoints' configurations, and the metrics' last values.

The trainings are where the plan has them; on another machine they may be missing, and then nothing
is told.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.results_page.plan import EntryConfig

METRICS: Final = "metrics.jsonl"  # in a training's folder
CONFIG: Final = "config.json"  # in a checkpoint's
_MILLION: Final = 1_000_000


def contents(entry: EntryConfig, workloads: Sequence[str]) -> list[dict[str, Any]]:
    """The configurations of an entry's checkpoints; those that are missing are left out."""
    found = []
    for seed, workload in _trainings(entry, workloads):
        folder = entry.policy_of(seed, workload).split(":")[1]
        path = Path(folder) / CONFIG
        if path.is_file():
            found.append(json.loads(path.read_text(encoding="utf-8")))
    return found


def last_values(entry: EntryConfig, workloads: Sequence[str], metric: str) -> list[float]:
    """The last value of a metric in each of an entry's trainings; missing ones are left out."""
    found = []
    for seed, workload in _trainings(entry, workloads):
        path = Path(entry.folder(seed, workload)) / METRICS
        if not path.is_file():
            continue
        lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        values = [line[metric] for line in lines if metric in line]
        found += values[-1:]
    return found


def queries(content: Mapping[str, Any]) -> tuple[float, float] | None:
    """Queries that a checkpoint was trained on, and the share of them at idle servers.

    Args:
        content: The checkpoint's configuration.

    Returns:
        None where it does not tell.
    """
    training = content.get("training", {})
    if content.get("algorithm") == "headway":
        config = content["config"]
        search, rates = config["search"], config["rates_per_min"]
        idle = sum(stage["queries"] for stage in config["survey"])
        sweeps = len(rates) + len(config.get("burst_rates_per_min", ()))
        searched = search["generations"] * search["candidates"] * search["sweeps_per_rate"]
        loaded = config["load_sweeps"] * len(rates) * config["load_queries"]
        total = idle + loaded + searched * sweeps * search["queries"]
        return total, idle / total
    if content.get("algorithm") == "masrouter":
        return training["updates"] * training["batch_size"], 1.0
    return (training["episodes"], 0.0) if "episodes" in training else None


def loads(content: Mapping[str, Any]) -> str | None:
    """The arrival rates that a checkpoint was trained at, in words; None where it tells none."""
    training = content.get("training", {})
    for group in (content.get("config", {}), training.get("config", {}), training):
        settings = group.get("environment", group)
        rates = settings.get("rates_per_min")
        if rates:
            bursts = ", and bursts" if settings.get("burst_rates_per_min") else ""
            return f"{min(rates):g} to {max(rates):g}/min{bursts}"
    return None


def objective(content: Mapping[str, Any]) -> str | None:
    """What Headway was trained for, in words; None for all others."""
    goal = content.get("config", {}).get("objective")
    if goal is None:
        return None
    words = f"goodput + {goal['solved']:g} solved"
    if goal["shortfall"]:
        promise = f"{goal['within_share']:.0%} within {goal['within_s']:g} s"
        words += f" − {goal['shortfall']:g} × what is missing from {promise}"
    return words


def about(number: float) -> str:
    """A large number in words, to two or three figures."""
    if number >= _MILLION:
        return f"{number / _MILLION:.1f} million"
    return f"{round(number, -3):,.0f}" if number >= 10_000 else f"{number:,.0f}"


def _trainings(entry: EntryConfig, workloads: Sequence[str]) -> list[tuple[int, str]]:
    """Seed and workload of each of an entry's trainings."""
    if entry.training is None:
        return []
    own = entry.workloads_of(workloads) if entry.by_workload else ("",)
    return [(seed, workload) for workload in own for seed in entry.training_seeds]
