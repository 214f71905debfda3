"""What trainings tell of themselves: the checkpoints' configurations, and the metrics' last values.

Where a training is missing, nothing is told of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agents.tracking import METRICS_FILE, read_metrics
from benchmarks.results_page.plan import EntryConfig
from inframind_gym.policies.checkpoint import CONFIG_FILE

TOLD: Final = ("validation/violation_rate", "lagrange/lambda")  # metrics that the page quotes
_MILLION: Final = 1_000_000


@dataclass(frozen=True)
class Note:
    """What one training tells.

    Attributes:
        seed: Of the training.
        workload: That it is for; "" for all.
        config: The checkpoint's configuration; empty where it is missing.
        last: The last value of each metric of TOLD.
    """

    seed: int
    workload: str
    config: dict[str, Any]
    last: dict[str, float]


def notes_of(entry: EntryConfig, workloads: Sequence[str]) -> tuple[Note, ...]:
    """What an entry's trainings tell that are here; of an entry that is not trained, nothing."""
    notes = []
    for seed, workload in _trainings(entry, workloads):
        config, metrics = (
            Path(entry.policy_of(seed, workload).split(":")[1]) / CONFIG_FILE,
            Path(entry.folder(seed, workload)) / METRICS_FILE,
        )
        content = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
        last: dict[str, float] = {}
        for line in read_metrics(metrics) if metrics.is_file() else ():
            last |= {name: line[name] for name in TOLD if math.isfinite(line.get(name, math.nan))}
        if content or last:
            notes.append(Note(seed, workload, content, last))
    return tuple(notes)


def contents(notes: Sequence[Note]) -> list[dict[str, Any]]:
    """The configurations of checkpoints."""
    return [note.config for note in notes if note.config]


def last_values(notes: Sequence[Note], metric: str) -> list[float]:
    """The last value of a metric in each training that tells it."""
    return [note.last[metric] for note in notes if metric in note.last]


def queries(content: Mapping[str, Any]) -> tuple[float, float] | None:
    """Queries that a checkpoint was trained on, and the share of them at idle servers.

    Args:
        content: The checkpoint's configuration.

    Returns:
        None where it does not tell.
    """
    training = content.get("training", {})
    if content.get("algorithm") == "headway":  # which did not note it
        return 9_851_200, 2_880_000 / 9_851_200
    if "queries" in content:
        played = content["queries"]
        return sum(played.values()), played["idle"] / sum(played.values())
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
            bursts = ", and bursts" if settings.get("objective", {}).get("bursts") else ""
            return f"{min(rates):g} to {max(rates):g}/min{bursts}"
    return None


def objective(content: Mapping[str, Any]) -> str | None:
    """What Headway was trained for, in words; None for all others."""
    goal = content.get("config", {}).get("objective")
    if goal is None:
        return None
    words = f"goodput + {goal['solved']:g} solved"
    if goal["shortfall"]:
        promise = f"{100 * goal['within_share']:g}% within {goal['within_s']:g} s"
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
