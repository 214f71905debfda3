"""Measured against predicted: the figures that `calibrate`, `replay` and `sim2real` report.

A pair of figures is ``{"measured", "predicted", "error_pct"}``, with a signed error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import yaml
from numpy.typing import NDArray
from rich.table import Table

from inframind_gym.calibration.concurrency import (
    cache_was_full,
    count_at,
    load_range,
    most_blocks,
    most_running,
    starved_s,
)
from inframind_gym.calibration.measured_runs import QUANTILES, SLO_S, MeasuredCell
from inframind_gym.calibration.replay_choices import HARNESSES
from inframind_gym.errors import InfraMindError

if TYPE_CHECKING:
    from inframind_gym.calibration.live_episodes import Episode
    from inframind_gym.calibration.live_pool import PoolFit
    from inframind_gym.calibration.replay import Prediction
    from inframind_gym.calibration.server_card import Calibration
    from inframind_gym.simulator.server.pool import PoolConfig

METRICS: Final = ("ttft_s", "tpot_s", "e2e_s")
FIGURES: Final = ("mean", "p50", "p90", "p95", "p99")
ERRORS: Final = ("latency_mean_abs_pct", "latency_p95_abs_pct", "accuracy_abs_points")
_POOR_FIT_PCT: Final = 10.0
# A predicted peak of running requests may be off by either; beyond both the card is refused.
_CONCURRENCY_REQ: Final = 4
_CONCURRENCY_SHARE: Final = 0.25
Pair = dict[str, float | None]


def pair(measured: float | None, predicted: float | None) -> Pair:
    """Return a measured figure and a predicted one, with the error in percent if both exist."""
    error = 100.0 * (predicted / measured - 1.0) if measured and predicted is not None else None
    return {"measured": measured, "predicted": predicted, "error_pct": error}


def compare(measured: NDArray[np.float64], predicted: NDArray[np.float64]) -> dict[str, Pair]:
    """Return the FIGURES of two samples as pairs; of None if one is empty."""
    if not len(measured) or not len(predicted):
        return {name: pair(None, None) for name in FIGURES}
    both = (measured, predicted)
    found = {"mean": pair(*(float(values.mean()) for values in both))}
    for name in FIGURES[1:]:
        found[name] = pair(*(float(np.percentile(values, float(name[1:]))) for values in both))
    return found


# Request logs


def log_report(calibration: Calibration) -> dict[str, Any]:
    """Return the figures of a calibration, as JSON.

    Returns:
        `all` and `unseen` (the requests that were not fitted): for `ttft_s`, `tpot_s`, `e2e_s`, in
        seconds, the FIGURES as pairs, and `mae_pct`, the mean over the requests of the absolute
        error relative to the measured value. Latencies start at the arrival. Further `parameters`,
        `log`, `card`, `concurrency` (the most requests that ran at once), `warnings` and `notes`.
    """
    log = calibration.log
    ran, runs = _concurrency(calibration)
    return {
        "all": _part(calibration, slice(0, None)),
        "unseen": _part(calibration, slice(calibration.fitted, None)),
        "parameters": {
            "count": len(calibration.parameters),
            "values": dict(calibration.parameters),
            "mismatch": calibration.mismatch,
            "simulations": calibration.evaluations,
        },
        "card": calibration.card.model_dump(),
        "log": {
            "name": log.name,
            "sha256": log.sha256,
            "requests": len(log),
            "fitted": calibration.fitted,
            "fit_fraction": calibration.fit_fraction,
            "predicted_evictions": int(calibration.served["evictions"].sum()),
        },
        "concurrency": {"measured": ran, "predicted": runs},
        "warnings": warnings(calibration),
        "notes": notes(calibration),
    }


def latencies(
    calibration: Calibration,
) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]]:
    """Return for each metric: measured (n,) and predicted (n,), s, and which requests have it."""
    log, served, submit_s = calibration.log, calibration.served, calibration.submit_s
    steps = np.maximum(log.output_tokens - 1, 1)
    measured_tpot_s = (log.last_token_s - log.first_token_s) / steps
    measured = {
        "ttft_s": log.first_token_s - submit_s,
        "tpot_s": np.where(log.output_tokens > 1, measured_tpot_s, 0.0),
        "e2e_s": log.last_token_s - submit_s,
    }
    predicted = {
        "ttft_s": served["first_token_s"] - submit_s,
        "tpot_s": (served["finish_s"] - served["first_token_s"]) / steps,
        "e2e_s": served["finish_s"] - submit_s,
    }
    return {name: (measured[name], predicted[name], measured[name] > 0.0) for name in METRICS}


def _part(calibration: Calibration, part: slice) -> dict[str, Any]:
    """Return the figures of some of the requests."""
    figures: dict[str, Any] = {}
    for name, (measured, predicted, has) in latencies(calibration).items():
        was, said = measured[part][has[part]], predicted[part][has[part]]
        mae_pct = float(100.0 * np.mean(np.abs(said / was - 1.0))) if len(was) else None
        figures[name] = {**compare(was, said), "mae_pct": mae_pct}
    return figures


def card_yaml(calibration: Calibration) -> str:
    """Return the card as YAML that reads as a `ServerCard`, its origin in comments.

    Raises:
        InfraMindError: The card contradicts the log's own concurrency.
    """
    _check_concurrency(calibration)
    log, figures = calibration.log, _part(calibration, slice(calibration.fitted, None))
    lines = [
        "Server card, fitted to a request log by `inframind calibrate`.",
        f"log: {log.name}, {len(log)} requests, sha256 {log.sha256}",
        f"fitted: the first {calibration.fitted} requests "
        f"(fit-fraction {calibration.fit_fraction:g})",
        f"parameters fitted or chosen: {len(calibration.parameters)} "
        f"({', '.join(calibration.parameters)})",
        f"errors on the other {len(log) - calibration.fitted} requests, in percent:",
    ]
    for metric, of in figures.items():
        if of["mae_pct"] is not None:
            errors = ", ".join(f"{name} {of[name]['error_pct']:+.2f}" for name in FIGURES)
            lines.append(f"  {metric[:-2]}: {errors}; mean absolute {of['mae_pct']:.2f}")
    if "num_kv_blocks" in calibration.parameters:
        lines.append("num_kv_blocks was not given: fitted, because requests waited for the cache")
    elif calibration.limits.num_kv_blocks is None:
        lines.append("num_kv_blocks was not given: so many that the cache never fills up")
    if calibration.limits.data_parallel_size is None and calibration.card.data_parallel_size > 1:
        lines.append("data_parallel_size was not given: the fewest engines for what ran at once")
    lines += notes(calibration)
    if "per_attention_unit_s" not in calibration.parameters:
        lines.append("per_attention_unit_s: not fitted, per_new_token_s / 24576 (width 4096)")
    lines.append("max_model_len: the longest request of the log")
    body = yaml.safe_dump(calibration.card.model_dump(), sort_keys=False)
    return "".join(f"# {line}\n" for line in lines) + body


def notes(calibration: Calibration) -> list[str]:
    """Return what the fitted requests leave open: constants and loads."""
    card, evidence = calibration.card, calibration.card.evidence
    if evidence is None:
        return []
    found = []
    if evidence.not_identified:
        found.append(
            f"{', '.join(evidence.not_identified)}: not identified by the fitted requests. Half or "
            "twice as large, the other constants make up for it: take care with other loads"
        )
    fewest, most = evidence.sequences
    found.append(
        f"fitted to {fewest} to {most} sequences at once and {evidence.new_tokens[0]} to "
        f"{evidence.new_tokens[1]} new tokens a step"
    )
    log, served = calibration.log, calibration.served
    of_all = load_range(card, log.prompt_tokens, served, len(log))[0]
    if of_all[0] < fewest or of_all[1] > most:
        found.append(f"all requests: {of_all[0]} to {of_all[1]} sequences, beyond what was fitted")
    return found


def _concurrency(calibration: Calibration) -> tuple[int, int]:
    """Return the most requests that ran at once: measured (0: not in the log) and predicted."""
    log, served = calibration.log, calibration.served
    predicted = count_at(served["admitted_s"], served["finish_s"], served["admitted_s"])
    return most_running(log, len(log)), int(predicted.max())


def _check_concurrency(calibration: Calibration) -> None:
    """Refuse a card under which other numbers of requests run at once than did."""
    measured, predicted = _concurrency(calibration)
    card, name = calibration.card, calibration.log.name
    if measured > card.slots:
        least = -(-measured // card.max_num_seqs)
        raise InfraMindError(
            f"{name}: up to {measured} requests ran at once and the server has {card.slots} slots "
            f"(max-num-seqs {card.max_num_seqs} x data-parallel-size {card.data_parallel_size}): "
            f"check max-num-seqs, or give --data-parallel-size {least} or more"
        )
    apart = abs(predicted - measured)
    if measured and apart > max(_CONCURRENCY_REQ, _CONCURRENCY_SHARE * measured):
        raise InfraMindError(
            f"{name}: at most {measured} requests ran at once, and {predicted} do with the fitted "
            "card: no prediction of it can be right. Give the limits that the server was started "
            "with: --num-kv-blocks (its log says how many), --max-num-seqs, "
            "--max-num-batched-tokens, --data-parallel-size"
        )


def warnings(calibration: Calibration) -> list[str]:
    """Return the signs in the log that contradict the given launch options."""
    found = []
    log, limits = calibration.log, calibration.limits
    if log.failed:
        found.append(
            f"{log.failed} requests of the log were not answered and are left out, though the "
            "server may have worked on them"
        )
    engines = calibration.card.data_parallel_size
    if limits.num_kv_blocks is None and cache_was_full(log, len(log), calibration.card.slots):
        waited_s = starved_s(log, len(log), calibration.card.slots)
        held = most_blocks(log, len(log), limits.block_size) // engines
        size = calibration.parameters.get("num_kv_blocks")
        taken = "never fills up" if size is None else f"holds {round(size)} blocks"
        found.append(
            f"requests waited for {waited_s:.0f} s while neither slots nor the token budget were "
            "used up: the KV cache was probably full, unless the log begins on a busy server. It "
            f"is taken to be one that {taken}. Give --num-kv-blocks; the requests that ran at once "
            f"held up to about {held} blocks of {limits.block_size} tokens"
            f"{' an engine' if engines > 1 else ''}"
        )
    if limits.data_parallel_size is None and engines > 1:
        found.append(
            f"up to {most_running(log, calibration.fitted)} requests ran at once, more than "
            f"max-num-seqs ({limits.max_num_seqs}): taken to be {engines} data-parallel engines, "
            "the fewest that can. Give --data-parallel-size"
        )
    late_s = float(np.max(log.queued_s - calibration.submit_s))
    steps = np.maximum(log.output_tokens - 1, 1)
    tpot_s = float(np.median((log.last_token_s - log.first_token_s) / steps))
    if late_s > max(1.0, 20.0 * tpot_s):
        found.append(
            f"a request reached the engine {late_s:.1f} s after its arrival_time: the front end "
            "was slow, or the two clocks drift apart; either is counted as latency"
        )
    off = _part(calibration, slice(0, calibration.fitted))["e2e_s"]["mae_pct"]
    if off > _POOR_FIT_PCT:
        found.append(
            f"even the fitted requests are {off:.0f} % off in e2e: the server did something that "
            "the simulation does not, or it was started with other options than given here"
        )
    return found


def log_table(calibration: Calibration, figures: Mapping[str, Any]) -> Table:
    """Return the figures of the requests that were not fitted, for the terminal."""
    unseen = len(calibration.log) - calibration.fitted
    rows = []
    for metric, unit, factor in (("ttft_s", "s", 1.0), ("tpot_s", "ms", 1e3), ("e2e_s", "s", 1.0)):
        of = figures["unseen"][metric]
        if of["mae_pct"] is not None:
            cells = (_shown(of[name], factor) for name in FIGURES)
            rows.append([f"{metric[:-2]}, {unit}", *cells, f"\n{of['mae_pct']:.2f} %"])
    title = f"the {unseen} requests not fitted: measured / predicted, error"
    return _table(title, ["", *FIGURES, "per request"], rows)


# Measured runs


def cell_rows(
    cells: Sequence[MeasuredCell],
    predictions: Sequence[Prediction],
    fitted_at_per_min: float | None = None,
) -> list[dict[str, Any]]:
    """Return one record a cell, as JSON: its settings, pairs of figures, absolute errors.

    Errors are None where the cell lacks the measured figure.

    Args:
        cells: As measured.
        predictions: One a cell.
        fitted_at_per_min: Arrival rate at which the lengths of methods without roles were fitted.
    """
    return [
        {
            **_cell_row(cell, said),
            "lengths_fitted": cell.arrival_rate_per_min == fitted_at_per_min
            and not HARNESSES[cell.method].has_roles,
        }
        for cell, said in zip(cells, predictions, strict=True)
    ]


def _cell_row(cell: MeasuredCell, said: Prediction) -> dict[str, Any]:
    limit_s = cell.budget_s or SLO_S
    latency_s = {
        name: _rounded(pair(cell.latency_s.get(name), said.latency_s[name]))
        for name in ("mean", *QUANTILES)
    }
    mean_off, p95_off = (latency_s[name]["error_pct"] for name in ("mean", "p95"))
    errors = {
        "latency_mean_abs_pct": None if mean_off is None else abs(mean_off),
        "latency_p95_abs_pct": None if p95_off is None else abs(p95_off),
        "accuracy_abs_points": 100.0 * abs(said.accuracy - cell.accuracy),
    }
    within = {"measured": cell.share_within(limit_s), "predicted": said.within_limit}
    return {
        "cell": cell.source.split(": ", 1)[-1],
        "method": cell.method,
        "adaptive": HARNESSES[cell.method].adaptive,
        "dataset": cell.dataset,
        "arrival_rate_per_min": cell.arrival_rate_per_min,
        "budget_s": cell.budget_s,
        "cost_rate": cell.cost_rate,
        "num_queries": cell.num_queries,
        "accuracy": {
            "measured": cell.accuracy,
            **_rounded({"predicted": said.accuracy, "predicted_se": said.accuracy_se}),
        },
        "latency_s": latency_s,
        **_rounded({"latency_mean_predicted_se_pct": 100.0 * said.latency_mean_se}),
        "slo": {"limit_s": limit_s, **_rounded(within)},
        **_rounded({"calls": said.calls}),
        "tokens": {
            "prompt": _rounded(pair(cell.prompt_tokens, said.prompt_tokens)),
            "completion": _rounded(pair(cell.completion_tokens, said.completion_tokens)),
        },
        "errors": _rounded(errors),
    }


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Pair]:
    """Return the median and the 90th percentile of the absolute errors, by method.

    Of a method that has cells with `lengths_fitted` the other ones count, if there are any.
    """
    summary = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        unseen = [row for row in own if not row["lengths_fitted"]]
        of = [row["errors"] for row in unseen or own]
        entry: Pair = {"cells": len(of)}
        for name in ERRORS:
            known = [errors[name] for errors in of if errors[name] is not None]
            for suffix, level in (("median", 50.0), ("p90", 90.0)):
                entry[f"{name}_{suffix}"] = float(np.percentile(known, level)) if known else None
        summary[method] = _rounded(entry)
    return summary


def runs_table(summary: Mapping[str, Pair]) -> Table:
    """Return the summary of measured runs for the terminal."""
    rows = [
        [method, str(of["cells"]), *(median_and_p90(of, name) for name in ERRORS)]
        for method, of in summary.items()
    ]
    headings = ["method", "cells", "mean latency %", "p95 latency %", "accuracy points"]
    return _table("Absolute errors: median (90th percentile)", headings, rows)


def median_and_p90(of: Mapping[str, float | None], name: str) -> str:
    """Return one error of a summary as text; a dash where nothing was measured."""
    median, p90 = of[f"{name}_median"], of[f"{name}_p90"]
    return "–" if median is None or p90 is None else f"{median:.1f} ({p90:.1f})"


# A live pool


def episode_report(
    live: Episode, simulated: Episode, models: Sequence[str], *, fitted: bool
) -> dict[str, Any]:
    """Return the figures of an episode that was played live and simulated, as JSON.

    Args:
        live: The live episode.
        simulated: The same arrivals and decisions.
        models: Aliases.
        fitted: True if the cards were fitted to this episode.

    Returns:
        The FIGURES as pairs: of the calls `e2e_s` (and by model) and `ttft_s`, where the server
        streams; of the queries `query_s`; further the shares of queries in budget.
    """
    by_model = {}
    for index, alias in enumerate(models):
        mine, theirs = live.calls["model"] == index, simulated.calls["model"] == index
        if mine.any() and theirs.any():
            by_model[alias] = compare(live.e2e_s[mine], simulated.e2e_s[theirs])
    ttft_s = [of.ttft_s[np.isfinite(of.ttft_s)] for of in (live, simulated)]
    queries = [of.completed["latency_s"] for of in (live, simulated)]
    return {
        "rate_per_min": live.rate_per_min,
        "seed": live.seed,
        "fitted": fitted,
        "queries": len(live.completed),
        "calls": len(live.calls),
        "failed_calls": live.failed,
        "e2e_s": compare(live.e2e_s, simulated.e2e_s),
        "ttft_s": compare(*ttft_s),
        "query_s": compare(*queries),
        "in_budget": {
            name: float((of.completed["latency_s"] <= of.completed["budget_s"]).mean())
            for name, of in (("measured", live), ("predicted", simulated))
        },
        "e2e_s_by_model": by_model,
    }


def pool_report(
    pool: PoolConfig, workload: str, fit: PoolFit, episodes: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the fit of a live pool and its episodes, as JSON."""
    return {
        "pool": pool.name,
        "workload": workload,
        "fit": {"mismatch": fit.mismatch, "before": fit.before, "calls": fit.calls},
        "cards": {
            model.alias: model.server.step.model_dump(exclude_defaults=True)
            for model in fit.pool.models
        },
        "colocation_slowdown": {gpu.name: gpu.colocation_slowdown for gpu in fit.pool.gpus},
        "episodes": list(episodes),
    }


def pool_table(figures: Mapping[str, Any]) -> Table:
    """Return the episodes of a live pool for the terminal."""
    columns = {
        "call, mean s": ("e2e_s", "mean"),
        "call, p95 s": ("e2e_s", "p95"),
        "first token, s": ("ttft_s", "mean"),
        "query, mean s": ("query_s", "mean"),
        "query, p95 s": ("query_s", "p95"),
    }
    rows = [
        [
            f"{episode['rate_per_min']:g}, {'fitted' if episode['fitted'] else 'unseen'}",
            *(_shown(episode[metric][figure]) for metric, figure in columns.values()),
        ]
        for episode in figures["episodes"]
    ]
    title = f"{figures['pool']}, {figures['workload']}: measured / predicted, error"
    return _table(title, ["queries/min", *columns], rows)


# Formatting


def _rounded(values: Mapping[str, float | None]) -> Pair:
    """Round to five digits, except measured figures and counts."""
    return {
        name: float(f"{value:.5g}") if isinstance(value, float) and name != "measured" else value
        for name, value in values.items()
    }


def _shown(of: Mapping[str, float | None], factor: float = 1.0) -> str:
    measured, predicted, error = of["measured"], of["predicted"], of["error_pct"]
    if measured is None or predicted is None or error is None:
        return "–"
    return f"{factor * measured:.2f} / {factor * predicted:.2f}\n{error:+.2f} %"


def _table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == headings[0] else "right")
    for row in rows:
        table.add_row(*row)
    return table
