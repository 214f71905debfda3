"""Live against simulated: what is compared, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from inframind_gym.calibration.sim2real.fit import Fit
from inframind_gym.calibration.sim2real.sweep import Sweep
from inframind_gym.simulator.server.pool import PoolConfig


def compared(
    live: Sweep, simulated: Sweep, models: Sequence[str], *, fitted: bool
) -> dict[str, Any]:
    """Figures of a sweep that was played live and simulated, as JSON.

    Args:
        live: as it was.
        simulated: the same arrivals and decisions.
        models: aliases.
        fitted: whether the cards were fitted to this sweep.

    Returns:
        For calls (`e2e_s`, `ttft_s`, and `e2e_s` of each model) and queries (`query_s`): means, and
        for those of all calls and queries the 95th percentile, as {"live", "simulated",
        "error_pct"}; further the shares of queries in budget.
    """
    by_model = {}
    for m, alias in enumerate(models):
        mine, theirs = live.calls["model"] == m, simulated.calls["model"] == m
        if mine.any() and theirs.any():
            by_model[alias] = _both(live.e2e_s[mine], simulated.e2e_s[theirs], np.mean)
    return {
        "rate_per_min": live.rate_per_min,
        "seed": live.seed,
        "fitted": fitted,
        "queries": len(live.completed),
        "calls": len(live.calls),
        "failed_calls": live.failed,
        "e2e_s": _both(live.e2e_s, simulated.e2e_s, np.mean),
        "e2e_p95_s": _both(live.e2e_s, simulated.e2e_s, _p95),
        "ttft_s": _both(_told(live.ttft_s), _told(simulated.ttft_s), np.mean),
        "query_s": _both(live.completed["latency_s"], simulated.completed["latency_s"], np.mean),
        "query_p95_s": _both(live.completed["latency_s"], simulated.completed["latency_s"], _p95),
        "in_budget": {"live": _in_budget(live), "simulated": _in_budget(simulated)},
        "e2e_s_by_model": by_model,
    }


def report(
    pool: PoolConfig, workload: str, fit: Fit, comparisons: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Everything that was found, as JSON."""
    return {
        "pool": pool.name,
        "workload": workload,
        "fit": {"mismatch": fit.mismatch, "before": fit.before, "calls": fit.calls},
        "cards": {
            model.alias: model.server.step.model_dump(exclude_defaults=True)
            for model in fit.pool.models
        },
        "colocation_slowdown": {gpu.name: gpu.colocation_slowdown for gpu in fit.pool.gpus},
        "sweeps": list(comparisons),
    }


def table(figures: dict[str, Any]) -> Table:
    """What a person looks at."""
    sheet = Table(title=f"{figures['pool']}, {figures['workload']}: live / simulated, error")
    sheet.add_column("queries/min", justify="right")
    sheet.add_column("")
    for heading in (
        "call, mean s",
        "call, p95 s",
        "first token, s",
        "query, mean s",
        "query, p95 s",
    ):
        sheet.add_column(heading, justify="right")
    for sweep in figures["sweeps"]:
        cells = [
            f"{of['live']:.2f} / {of['simulated']:.2f}\n{of['error_pct']:+.1f} %"
            for of in (sweep[k] for k in ("e2e_s", "e2e_p95_s", "ttft_s", "query_s", "query_p95_s"))
        ]
        kind = "fitted" if sweep["fitted"] else "unseen"
        sheet.add_row(f"{sweep['rate_per_min']:g}", kind, *cells)
    return sheet


def _both(live: NDArray[Any], simulated: NDArray[Any], figure: Any) -> dict[str, float]:
    one, other = float(figure(live)), float(figure(simulated))
    return {"live": one, "simulated": other, "error_pct": 100.0 * (other / one - 1.0)}


def _told(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Without those that are unknown; a server that streams tells the time of its first token."""
    known: NDArray[np.float64] = values[np.isfinite(values)]
    return known


def _p95(values: NDArray[Any]) -> float:
    return float(np.quantile(values, 0.95))


def _in_budget(sweep: Sweep) -> float:
    return float((sweep.completed["latency_s"] <= sweep.completed["budget_s"]).mean())
