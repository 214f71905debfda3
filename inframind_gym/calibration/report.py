"""What a calibration is worth: predicted against measured, and the card with its provenance."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import yaml
from numpy.typing import NDArray

from inframind_gym.calibration.fit import Calibration

METRICS: Final = ("ttft_s", "tpot_s", "e2e_s")
FIGURES: Final = ("mean", "p50", "p90", "p95", "p99")
_POOR_FIT_PCT: Final = 10.0


def report(calibration: Calibration) -> dict[str, Any]:
    """The figures of a calibration, as JSON.

    Returns:
        `all` and `unseen` (the requests that were not fitted): for `ttft_s`, `tpot_s`, `e2e_s`, in
        seconds, `mean`, `p50`, `p90`, `p95`, `p99` as `{"measured", "predicted", "error_pct"}`, and
        `mae_pct`, the mean over the requests of the absolute error relative to the measured value.
        Latencies start at the arrival. Further `parameters`, `log`, `card` and `warnings`.
    """
    card = calibration.card
    return {
        "all": _part(calibration, slice(0, None)),
        "unseen": _part(calibration, slice(calibration.fitted, None)),
        "parameters": {
            "count": len(calibration.parameters),
            "values": dict(calibration.parameters),
            "mismatch": calibration.mismatch,
            "simulations": calibration.evaluations,
        },
        "card": card.model_dump(),
        "log": {
            "name": calibration.log.name,
            "sha256": calibration.log.sha256,
            "requests": len(calibration.log),
            "fitted": calibration.fitted,
            "fit_fraction": calibration.fit_fraction,
            "predicted_evictions": int(calibration.served["evictions"].sum()),
        },
        "warnings": warnings(calibration),
    }


def card_yaml(calibration: Calibration) -> str:
    """The card as YAML that reads as a `ServerCard`, with where it comes from in comments."""
    log, figures = calibration.log, report(calibration)["unseen"]
    lines = [
        "# Server card, fitted to a request log by `inframind calibrate`.",
        f"# log: {log.name}, {len(log)} requests, sha256 {log.sha256}",
        f"# fitted: the first {calibration.fitted} requests "
        f"(fit-fraction {calibration.fit_fraction:g})",
        f"# parameters fitted or chosen: {len(calibration.parameters)} "
        f"({', '.join(calibration.parameters)})",
        f"# errors on the other {len(log) - calibration.fitted} requests, in percent:",
    ]
    for metric in METRICS:
        of = figures[metric]
        if of["mae_pct"] is not None:
            errors = ", ".join(f"{name} {of[name]['error_pct']:+.2f}" for name in FIGURES)
            lines.append(f"#   {metric[:-2]}: {errors}; mean absolute {of['mae_pct']:.2f}")
    if calibration.limits.num_kv_blocks is None:
        lines.append("# num_kv_blocks was not given: so many that the cache never fills up")
    if "per_attention_unit_s" not in calibration.parameters:
        lines.append("# per_attention_unit_s: not fitted, per_new_token_s / 24576 (width 4096)")
    lines.append("# max_model_len: the longest request of the log")
    body = yaml.safe_dump(calibration.card.model_dump(), sort_keys=False)
    return "\n".join(lines) + "\n" + body


def warnings(calibration: Calibration) -> list[str]:
    """What in the log speaks against the options that were given."""
    found = []
    log, limits = calibration.log, calibration.limits
    if log.failed:
        found.append(
            f"{log.failed} requests of the log were not answered and are left out, though the "
            "server may have worked on them"
        )
    starved_s, span_s = starvation_s(calibration) if log.tells_schedule else (0.0, 0.0)
    if limits.num_kv_blocks is None and starved_s > max(1.0, 0.1 * span_s):
        found.append(
            f"requests waited for {starved_s:.0f} s of {span_s:.0f} s while fewer than "
            f"{limits.max_num_seqs} ran: the KV cache was probably full, unless the log begins on "
            "a busy server. Give --num-kv-blocks; the requests that ran at once held up to about "
            f"{_most_blocks(calibration)} blocks of {limits.block_size} tokens"
        )
    most = 0
    if log.tells_schedule:
        most = int(_running_at(log.scheduled_s, log.last_token_s, log.scheduled_s).max())
    if most > limits.max_num_seqs:
        found.append(
            f"up to {most} requests ran at once, more than max-num-seqs ({limits.max_num_seqs})"
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


def starvation_s(calibration: Calibration) -> tuple[float, float]:
    """Time in which requests waited though slots were free, and the length of the log, s."""
    log = calibration.log
    times = np.unique(np.concatenate([log.queued_s, log.scheduled_s, log.last_token_s]))
    lasts = np.diff(times)
    middle = times[:-1] + 0.5 * lasts
    running = _running_at(log.scheduled_s, log.last_token_s, middle)
    waiting = _running_at(log.queued_s, log.scheduled_s, middle)
    starved = (waiting > 0) & (running < calibration.limits.max_num_seqs)
    return float(lasts[starved].sum()), float(times[-1] - times[0])


def _running_at(
    start_s: NDArray[np.float64], end_s: NDArray[np.float64], times: NDArray[np.float64]
) -> NDArray[np.int64]:
    """How many intervals [start, end) hold each time."""
    begun = np.searchsorted(np.sort(start_s), times, side="right")
    ended = np.searchsorted(np.sort(end_s), times, side="right")
    return (begun - ended).astype(np.int64)


def _most_blocks(calibration: Calibration) -> int:
    """Blocks that running requests held at most, if each emitted its tokens at an even pace."""
    log = calibration.log
    most = 0
    for now_s in log.scheduled_s:
        running = (log.scheduled_s <= now_s) & (log.last_token_s > now_s)
        lasts = np.maximum(log.last_token_s - log.first_token_s, 1e-9)
        done = np.clip((now_s - log.first_token_s) / lasts, 0.0, 1.0)
        tokens = (log.prompt_tokens + done * log.output_tokens)[running]
        most = max(most, int(np.ceil(tokens / calibration.limits.block_size).sum()))
    return most


def latencies(
    calibration: Calibration,
) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]]:
    """Per metric: measured (n,), predicted (n,), s, and which requests have it."""
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
    """The figures of some of the requests."""
    figures = {}
    for name, (measured, predicted, has) in latencies(calibration).items():
        figures[name] = compare(measured[part][has[part]], predicted[part][has[part]])
    return figures


def compare(measured: NDArray[np.float64], predicted: NDArray[np.float64]) -> dict[str, Any]:
    """Mean and percentiles of measured (n,) against predicted (n,), and the error per request.

    Without a request that has the metric, all figures are None.
    """
    if not len(measured):
        nothing = {"measured": None, "predicted": None, "error_pct": None}
        return {name: dict(nothing) for name in FIGURES} | {"mae_pct": None}
    figures: dict[str, Any] = {}
    for name in FIGURES:
        was, expected = (
            float(values.mean() if name == "mean" else np.percentile(values, float(name[1:])))
            for values in (measured, predicted)
        )
        figures[name] = {
            "measured": was,
            "predicted": expected,
            "error_pct": 100.0 * (expected / was - 1.0),
        }
    figures["mae_pct"] = float(100.0 * np.mean(np.abs(predicted / measured - 1.0)))
    return figures
