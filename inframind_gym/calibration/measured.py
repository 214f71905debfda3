"""Measured runs: the published cells of a routing comparison, read from JSON.

    {method: {dataset: [cell, ...]}, "metadata": {...}}

A cell is one sweep: a method at one arrival rate and one budget (or cost rate), with its accuracy,
the distribution of its latencies, and what the method chose: shares of models, strategies and
topologies, agents, executions ("steps") or active edges. Fields that a method has no use for can be
missing, and fields that nobody here reads are passed over. Source of the format: the measurements
published by the authors of InfraMind (arXiv 2606.11440).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import Any, Final

from inframind_gym.errors import ConfigError, unknown

QUANTILES: Final = {"p5": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95}
LEAST_RATE_PER_MIN: Final = 0.01  # a sweep that lasts for weeks is polled every few seconds
MOST_RATE_PER_MIN: Final = 1e6
MOST_QUERIES: Final = 100_000.0  # of one sweep
_NOT_METHODS: Final = ("metadata",)
_SPELLINGS: Final = {
    "arrival_rate": ("arrival_rate", "arrival_rate_per_min", "rate_per_min"),
    "budget": ("budget", "budget_s"),
    "latency": ("latency", "latency_s"),
    "median": ("median", "p50"),
    "episodes": ("n_episodes", "num_queries", "n"),
    "models": ("model_distribution",),
    "topologies": ("topology_distribution",),
    "strategies": ("strategy_distribution",),
    "routes": ("model_strategy_joint",),
    "agents": ("num_agents", "n_agents"),
    "steps": ("steps_per_episode", "steps"),
    "edges": ("edges", "active_edges", "num_edges", "edges_per_episode", "mean_edges"),
}
_SHARE_TOLERANCE: Final = 0.05  # published shares are rounded, and rare choices left out


@dataclass(frozen=True)
class MeasuredCell:
    """One measured sweep.

    Attributes:
        source: where it stands, for messages: "runs.json: mas.math[3]".
        method: "mas", "inframind", ...
        dataset: of its queries.
        arrival_rate_per_min: queries a minute.
        num_queries: queries in the sweep; None: not told.
        accuracy: share of them that were solved.
        latency_s: "mean", the QUANTILES, "min" and "max", as far as they were measured, in s.
        budget_s: latency budget; None for methods that have none.
        cost_rate: of a method that is trained with one.
        model_share: name of the model, as its server knows it -> share of the executions.
        strategy_share: prompt strategy -> share.
        route_share: (model, strategy) -> share.
        topology_share: topology -> share of the queries.
        num_agents: mean number of agents.
        steps: mean number of executions of a query.
        edges: mean number of active edges of a query's graph.
        prompt_tokens: mean of all calls of a query.
        completion_tokens: mean of all calls of a query.
    """

    source: str
    method: str
    dataset: str
    arrival_rate_per_min: float
    num_queries: int | None
    accuracy: float
    latency_s: Mapping[str, float]
    budget_s: float | None = None
    cost_rate: float | None = None
    model_share: Mapping[str, float] | None = None
    strategy_share: Mapping[str, float] | None = None
    route_share: Mapping[tuple[str, str], float] | None = None
    topology_share: Mapping[str, float] | None = None
    num_agents: float | None = None
    steps: float | None = None
    edges: float | None = None
    prompt_tokens: float | None = None
    completion_tokens: float | None = None

    def share_within(self, limit_s: float) -> float | None:
        """Share of the queries that took at most `limit_s`, read off the measured quantiles.

        Returns:
            Interpolated linearly; None where fewer than two quantiles were measured.
        """
        marks = {"min": 0.0, **QUANTILES, "max": 1.0}
        known = [
            (self.latency_s[key], share) for key, share in marks.items() if key in self.latency_s
        ]
        if len(known) < 2:
            return None
        if limit_s >= known[-1][0]:
            return known[-1][1]
        if limit_s < known[0][0]:
            return 0.0
        for (low_s, low), (high_s, high) in pairwise(known):
            if low_s <= limit_s < high_s:
                return low + (high - low) * (limit_s - low_s) / (high_s - low_s)
        return known[-1][1]


def read_runs(path: str | Path, methods: Sequence[str] | None = None) -> list[MeasuredCell]:
    """Read measured cells.

    Args:
        path: a JSON file.
        methods: which to read; None: all that the file has.

    Returns:
        The cells, in the file's order.

    Raises:
        ConfigError: the file cannot be read, has none of a method that was asked for, or a cell
            lacks what every cell has, or holds an impossible number; says where.
    """
    path = Path(path)
    data = _read_json(path)
    present = _methods(data)
    for method in methods or ():
        if method not in present:
            raise ConfigError(f"{path}: {unknown('method', method, present)}")
    cells = [
        cell
        for method in (present if methods is None else methods)
        for cell in _method_cells(data[method], method, f"{path.name}: {method}")
    ]
    if not cells:
        raise ConfigError(f"{path}: holds no measured cell.")
    return cells


def read_methods(path: str | Path) -> list[str]:
    """The methods that a file has cells of, whatever these are.

    Raises:
        ConfigError: the file cannot be read or is no JSON object.
    """
    return _methods(_read_json(Path(path)))


def _methods(data: Mapping[str, Any]) -> list[str]:
    return [key for key in data if key not in _NOT_METHODS]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not JSON ({error}).") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: wanted {{method: {{dataset: [cell, ...]}}}} at the top.")
    return data


def _method_cells(datasets: object, method: str, source: str) -> Iterable[MeasuredCell]:
    if not isinstance(datasets, dict):
        raise ConfigError(f"{source}: wanted a list of cells for every dataset.")
    for dataset, cells in datasets.items():
        if not isinstance(cells, list):
            raise ConfigError(f"{source}.{dataset}: wanted a list of cells.")
        for index, cell in enumerate(cells):
            yield _read_cell(cell, method, str(dataset), f"{source}.{dataset}[{index}]")


def _read_cell(cell: object, method: str, dataset: str, source: str) -> MeasuredCell:
    if not isinstance(cell, dict):
        raise ConfigError(f"{source}: wanted a cell, {{arrival_rate: ..., accuracy: ...}}.")
    tokens = cell.get("tokens_per_episode") or {}
    routes = _shares(cell, "routes", source)
    topologies = _shares(cell, "topologies", source)
    rate = _number(cell, "arrival_rate", source, least=LEAST_RATE_PER_MIN, most=MOST_RATE_PER_MIN)
    if rate is None:
        raise ConfigError(f"{source}: lacks arrival_rate (queries a minute).")
    accuracy = _number(cell, "accuracy", source, most=1.0)
    if accuracy is None:
        raise ConfigError(f"{source}: lacks accuracy (a share between 0 and 1).")
    episodes = _number(cell, "episodes", source, least=1.0, most=MOST_QUERIES)
    return MeasuredCell(
        source=source,
        method=method,
        dataset=dataset,
        arrival_rate_per_min=rate,
        num_queries=None if episodes is None else round(episodes),
        accuracy=accuracy,
        latency_s=_latencies(cell, source),
        budget_s=_number(cell, "budget", source, least=1e-9),
        cost_rate=_number(cell, "cost_rate", source),
        model_share=_shares(cell, "models", source),
        strategy_share=_shares(cell, "strategies", source),
        route_share=None if routes is None else _pairs(routes, source),
        topology_share=None
        if topologies is None
        else {name.rsplit("/", 1)[-1]: share for name, share in topologies.items()},
        num_agents=_number(cell, "agents", source, least=1.0),
        steps=_number({**tokens, **cell}, "steps", source),
        edges=_number({**tokens, **cell}, "edges", source),
        prompt_tokens=_number(tokens, "prompt", source),
        completion_tokens=_number(tokens, "completion", source),
    )


def _get(record: Mapping[str, Any], field: str) -> tuple[str, Any]:
    """The first spelling of a field that the record has, and its value (None: it has none)."""
    for name in _SPELLINGS.get(field, (field,)):
        if record.get(name) is not None:
            return name, record[name]
    return field, None


def _number(
    record: Mapping[str, Any],
    field: str,
    source: str,
    *,
    least: float = 0.0,
    most: float = math.inf,
) -> float | None:
    """A number, or the mean where the file gives a distribution; None where it is missing."""
    name, value = _get(record, field)
    if isinstance(value, dict):
        name, value = f"{name}.mean", value.get("mean")
    if value is None:
        return None
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ConfigError(f"{source}: {name} is {value!r}; wanted a number.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (least <= number <= most and math.isfinite(number)):
        bounds = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
        raise ConfigError(f"{source}: {name} is {number:g}; it must be a number, {bounds}.")
    return number


def _latencies(cell: Mapping[str, Any], source: str) -> dict[str, float]:
    name, value = _get(cell, "latency")
    if isinstance(value, Real):
        value = {"mean": value}
    if not isinstance(value, dict):
        raise ConfigError(f"{source}: lacks latency ({{mean: seconds, p5: ..., p95: ...}}).")
    found = {
        key: _number(value, key, f"{source}: {name}") for key in ("mean", "min", "max", *QUANTILES)
    }
    out = {key: number for key, number in found.items() if number is not None}
    if "mean" not in out:
        raise ConfigError(f"{source}: {name} lacks its mean.")
    order = [key for key in ("min", *QUANTILES, "max") if key in out]
    for low, high in pairwise(order):
        if out[low] > out[high]:
            raise ConfigError(
                f"{source}: {name}: {low} ({out[low]:g}) exceeds {high} ({out[high]:g})."
            )
    return out


def _shares(cell: Mapping[str, Any], field: str, source: str) -> dict[str, float] | None:
    """Shares of a choice, scaled to sum to 1."""
    name, value = _get(cell, field)
    if value is None or value == {}:
        return None
    if not isinstance(value, dict):
        raise ConfigError(f"{source}: {name}: wanted {{name: share}}.")
    shares = {str(key): _number(value, key, f"{source}: {name}", most=1.0) or 0.0 for key in value}
    total = math.fsum(shares.values())
    if abs(total - 1.0) > _SHARE_TOLERANCE:
        raise ConfigError(f"{source}: {name}: the shares sum to {total:.3g}; they must sum to 1.")
    return {key: share / total for key, share in shares.items()}


def _pairs(routes: Mapping[str, float], source: str) -> dict[tuple[str, str], float]:
    out = {}
    for name, share in routes.items():
        model, bar, strategy = name.rpartition("|")
        if not bar:
            raise ConfigError(f'{source}: {name!r} names no route; wanted "model|strategy".')
        out[model, strategy] = share
    return out
