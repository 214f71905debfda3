"""Report of a server card: the figures of its request log, measured and predicted.

A pair of figures is ``{"measured", "predicted", "error_pct"}``, with a signed error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import yaml
from numpy.typing import NDArray

from inframind_gym.calibration.server_card import (
    Calibration,
    cache_was_full,
    count_at,
    load_range,
    most_blocks,
    most_running,
    starved_s,
)
from inframind_gym.errors import InfraMindError
from inframind_gym.progress import plain_table

if TYPE_CHECKING:
    from rich.table import Table

METRICS: Final = ("ttft_s", "tpot_s", "e2e_s")
FIGURES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "mean": np.mean,
    **{f"p{rank}": partial(np.percentile, q=rank) for rank in (50, 90, 95, 99)},
}
Array = NDArray[np.float64]
Pair = dict[str, float | None]


def pair(measured: float | None, predicted: float | None) -> Pair:
    """Return a measured figure and a predicted one, with the error in percent if both exist."""
    error = 100.0 * (predicted / measured - 1.0) if measured and predicted is not None else None
    return {"measured": measured, "predicted": predicted, "error_pct": error}


# Request logs


def log_report(calibration: Calibration) -> dict[str, Any]:
    """Return the figures of a calibration, as JSON.

    Returns:
        `all` and `unseen` (the requests that were not fitted): for `ttft_s`, `tpot_s`, `e2e_s`, in
        seconds, the FIGURES as pairs, and `mae_pct`, the mean over the requests of the absolute
        error relative to the measured value. Latencies start at the arrival. Further `parameters`,
        `log`, `card`, `concurrency` (the most requests that ran at once), `warnings` and `notes`.
    """
    log, (ran, runs) = calibration.log, _concurrency(calibration)
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


def latencies(calibration: Calibration) -> dict[str, tuple[Array, Array, NDArray[np.bool_]]]:
    """Return for each metric: measured (n,) and predicted (n,), s, and which requests have it."""
    log, served, submit_s = calibration.log, calibration.served, calibration.submit_s
    steps = np.maximum(log.output_tokens - 1, 1)

    def of(first_s: Array, last_s: Array) -> tuple[Array, Array, Array]:
        return first_s - submit_s, (last_s - first_s) / steps, last_s - submit_s

    measured = of(log.first_token_s, log.last_token_s)
    predicted = of(served["first_token_s"], served["finish_s"])
    one_token = log.output_tokens < 2
    return {
        name: (was, said, (was > 0.0) & ~(one_token & (name == "tpot_s")))
        for name, was, said in zip(METRICS, measured, predicted, strict=True)
    }


def _part(calibration: Calibration, part: slice) -> dict[str, Any]:
    """Return the figures of some of the requests."""
    figures: dict[str, Any] = {}
    for name, (measured, predicted, has) in latencies(calibration).items():
        was, said = measured[part][has[part]], predicted[part][has[part]]
        figures[name] = {
            of: pair(*(float(figure(values)) if len(values) else None for values in (was, said)))
            for of, figure in FIGURES.items()
        }
        mae_pct = float(100.0 * np.mean(np.abs(said / was - 1.0))) if len(was) else None
        figures[name]["mae_pct"] = mae_pct
    return figures


def card_yaml(calibration: Calibration) -> str:
    """Return the card as YAML that reads as a `ServerCard`, its origin in comments.

    Raises:
        InfraMindError: Under the card, other numbers of requests run at once than did.
    """
    log, card, limits = calibration.log, calibration.card, calibration.limits
    measured, predicted = _concurrency(calibration)
    if measured > card.slots:
        raise InfraMindError(
            f"{log.name}: up to {measured} requests ran at once and the server has {card.slots} "
            f"slots (max-num-seqs {card.max_num_seqs} x data-parallel-size "
            f"{card.data_parallel_size}): check max-num-seqs, or give --data-parallel-size "
            f"{-(-measured // card.max_num_seqs)} or more"
        )
    if measured and abs(predicted - measured) > max(4, 0.25 * measured):
        raise InfraMindError(
            f"{log.name}: at most {measured} requests ran at once, and {predicted} do with the "
            "fitted card. Give the limits that the server was started with: --num-kv-blocks (its "
            "log says how many), --max-num-seqs, --max-num-batched-tokens, --data-parallel-size"
        )
    lines = [
        "Server card, fitted to a request log by `inframind calibrate`.",
        f"log: {log.name}, {len(log)} requests, sha256 {log.sha256}",
        f"fitted: the first {calibration.fitted} requests "
        f"(fit-fraction {calibration.fit_fraction:g})",
        f"parameters fitted or chosen: {len(calibration.parameters)} "
        f"({', '.join(calibration.parameters)})",
        f"errors on the other {len(log) - calibration.fitted} requests, in percent:",
    ]
    for metric, of in _part(calibration, slice(calibration.fitted, None)).items():
        if of["mae_pct"] is not None:
            errors = ", ".join(f"{name} {of[name]['error_pct']:+.2f}" for name in FIGURES)
            lines.append(f"  {metric[:-2]}: {errors}; mean absolute {of['mae_pct']:.2f}")
    if "num_kv_blocks" in calibration.parameters:
        lines.append("num_kv_blocks was not given: fitted, because requests waited for the cache")
    elif limits.num_kv_blocks is None:
        lines.append("num_kv_blocks was not given: so many that the cache never fills up")
    if limits.data_parallel_size is None and card.data_parallel_size > 1:
        lines.append("data_parallel_size was not given: the fewest engines for what ran at once")
    lines += notes(calibration)
    if "per_attention_unit_s" not in calibration.parameters:
        lines.append("per_attention_unit_s: not fitted, per_new_token_s / 24576 (width 4096)")
    lines.append("max_model_len: the longest request of the log")
    body = yaml.safe_dump(card.model_dump(), sort_keys=False)
    return "".join(f"# {line}\n" for line in lines) + body


def _concurrency(calibration: Calibration) -> tuple[int, int]:
    """Return the most requests that ran at once: measured (0: not in the log) and predicted."""
    log, served = calibration.log, calibration.served
    predicted = count_at(served["admitted_s"], served["finish_s"], served["admitted_s"])
    return most_running(log, len(log)), int(predicted.max())


def notes(calibration: Calibration) -> list[str]:
    """Return what the fitted requests leave open: constants and loads."""
    card, evidence, log = calibration.card, calibration.card.evidence, calibration.log
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
    least, peak = load_range(card, log.prompt_tokens, calibration.served, len(log))[0]
    if least < fewest or peak > most:
        found.append(f"all requests: {least} to {peak} sequences, beyond what was fitted")
    return found


def warnings(calibration: Calibration) -> list[str]:
    """Return the signs in the log that contradict the given launch options."""
    log, limits, found = calibration.log, calibration.limits, []
    if log.failed:
        found.append(
            f"{log.failed} requests of the log were not answered and are left out, though the "
            "server may have worked on them"
        )
    engines, slots = calibration.card.data_parallel_size, calibration.card.slots
    if limits.num_kv_blocks is None and cache_was_full(log, len(log), slots):
        held = most_blocks(log, len(log), limits.block_size) // engines
        size = calibration.parameters.get("num_kv_blocks")
        taken = "never fills up" if size is None else f"holds {round(size)} blocks"
        found.append(
            f"requests waited for {starved_s(log, len(log), slots):.0f} s while neither slots nor "
            "the token budget were used up: the KV cache was probably full, unless the log begins "
            f"on a busy server. It is taken to be one that {taken}. Give --num-kv-blocks; the "
            f"requests that ran at once held up to about {held} blocks of {limits.block_size} "
            f"tokens{' an engine' if engines > 1 else ''}"
        )
    if limits.data_parallel_size is None and engines > 1:
        found.append(
            f"up to {most_running(log, calibration.fitted)} requests ran at once, more than "
            f"max-num-seqs ({limits.max_num_seqs}): taken to be {engines} data-parallel engines, "
            "the fewest that can. Give --data-parallel-size"
        )
    off = _part(calibration, slice(0, calibration.fitted))["e2e_s"]["mae_pct"]
    if off > 10.0:
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
    heads = ("", *(f">{name}" for name in FIGURES), ">per request")
    title = f"the {unseen} requests not fitted: measured / predicted, error"
    return plain_table(*heads, rows=rows, title=title)


def _shown(of: Mapping[str, float | None], factor: float = 1.0) -> str:
    measured, predicted, error = of["measured"], of["predicted"], of["error_pct"]
    if measured is None or predicted is None or error is None:
        return "–"
    return f"{factor * measured:.2f} / {factor * predicted:.2f}\n{error:+.2f} %"
