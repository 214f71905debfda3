"""Tables of the fidelity page, in GitHub's markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from benchmarks.fidelity.contradictions import alike_but_apart
from benchmarks.fidelity.evidence import OBLIVIOUS, Evidence, LogEvidence, RunEvidence
from benchmarks.fidelity.targets import Target, targets
from benchmarks.pages.markdown import NONE, number, table
from inframind_gym.calibration.replay_choices import AGGREGATOR_LOGIT, ROUTE_AFFINITY
from inframind_gym.calibration.report import FIGURES

Row = Mapping[str, Any]
METRICS: Final = {  # of a request: name, unit, factor
    "e2e_s": ("end-to-end latency", "s", 1.0),
    "ttft_s": ("time to first token", "s", 1.0),
    "tpot_s": ("time per output token", "ms", 1e3),
}
_CARD: Final = {  # what calibration fits or chooses: unit, factor, meaning
    "base_s": ("ms", 1e3, "of a step, whatever it serves"),
    "per_seq_s": ("µs", 1e6, "for every sequence in the batch"),
    "per_kv_token_s": ("ns", 1e9, "for every cached token that is read"),
    "per_new_token_s": ("µs", 1e6, "for every token that is computed"),
    "per_attention_unit_s": ("ns", 1e9, "for every prefilled token and token of its context"),
    "sparse_s": ("ms", 1e3, "for reading all experts"),
    "sparse_tokens": ("tokens", 1.0, "that reach 63 % of the experts"),
    "async_scheduling": ("", 1.0, "a step is planned while the one before runs"),
    "prefix_caching": ("", 1.0, "evicted requests find their blocks again"),
    "shared_prefix_blocks": ("blocks", 1.0, "of a head that all prompts share"),
}
_SHARED: Final = {  # constants of the measured runs that are no table of datasets and models
    "base_s": "seconds of an engine step with one sequence",
    "per_seq_s: common factor": "on what each further sequence adds to a step, estimated for H200",
    "colocation_slowdown": "of a step, for every other busy model on the GPU",
    "sigma_query": "sd of log answer length between queries",
    "sigma_call": "sd of log answer length between calls of one query",
    "overhead_tokens": "instructions in every prompt",
    "difficulty_sd": "spread of difficulty of the dataset's questions, logits",
}
_TABLES: Final = {
    "output_tokens_median": "Median answer length, tokens",
    "ability": "Ability, logits (accuracy of one call on a question of mean difficulty)",
}
_SUMMARY: Final = (
    ("latency_mean_abs_pct", "mean latency, %"),
    ("latency_p95_abs_pct", "p95 latency, %"),
    ("accuracy_abs_points", "accuracy, points"),
)


def error(value: float | None, digits: int = 1) -> str:
    """A signed error in percent."""
    if value is None:
        return NONE
    return f"{signed(value, digits)} %"


def signed(value: float, digits: int = 1) -> str:
    """A number with its sign, unless it rounds to zero."""
    shown = f"{value:+.{digits}f}"
    return shown[1:] if float(shown) == 0 else shown.replace("-", "−")


def targets_table(evidence: Evidence) -> str:
    """What the simulator has to reach and what it reaches."""
    return table(
        ["what", "of", "target", "reached", "met"],
        [_target(target) for target in targets(evidence)],
        left=2,
    )


def _target(target: Target) -> list[str]:
    met = {None: NONE, True: "yes", False: "**no**"}[target.met]
    reached = NONE if target.reached is None else f"{target.reached:.{target.digits}f}{target.unit}"
    limit = NONE if target.limit is None else f"≤ {target.limit:g}{target.unit}"
    return [target.what, target.of, limit, reached, met]


def log_table(log: LogEvidence) -> str:
    """Errors of the requests that were not fitted and of all, for each metric and percentile."""
    rows = []
    for part, name in (("unseen", "not fitted"), ("all", "all")):
        for metric, (what, unit, factor) in METRICS.items():
            of = log.figures[part][metric]
            rows.append(
                [
                    f"{what}, {unit}",
                    name,
                    *(_measured_predicted(of[figure], factor) for figure in FIGURES),
                    NONE if of["mae_pct"] is None else f"{of['mae_pct']:.2f} %",
                ]
            )
    return table(["", "requests", *FIGURES, "mean abs. error per request"], rows, left=2)


def _measured_predicted(of: Mapping[str, float | None], factor: float) -> str:
    measured, predicted, off = of["measured"], of["predicted"], of["error_pct"]
    if measured is None or predicted is None or off is None:
        return NONE
    return f"{factor * measured:.2f} → {factor * predicted:.2f} ({error(off)})"


def card_table(log: LogEvidence) -> str:
    """What was fitted to a log or chosen by it."""
    rows = []
    for name, value in log.calibration.parameters.items():
        unit, factor, meaning = _CARD.get(name, ("", 1.0, ""))
        if isinstance(value, bool):
            shown = "yes" if value else "no"
        else:
            shown = f"{factor * value:.4g} {unit}".strip()
        rows.append([f"`{name}`", shown, meaning])
    return table(["constant", "value", "what"], rows, left=1).replace(
        "| --: | --: |", "| --: | --- |"
    )


def speed_table(evidence: Evidence) -> str:
    """How much faster than real time each log is replayed."""
    return table(
        ["log", "requests", "simulated, s", "times real time"],
        [
            [
                log.entry.title,
                str(len(log.calibration.log)),
                number(_simulated_s(log), 0),
                f"{float(f'{log.speed:.2g}'):,.0f}",
            ]
            for log in evidence.logs
        ],
    )


def _simulated_s(log: LogEvidence) -> float:
    of = log.calibration
    return float(of.served["finish_s"].max() - of.submit_s[0])


def peers_table(evidence: Evidence) -> str:
    """What other simulators claim."""
    rows = []
    for peer in evidence.peers:
        least, most = peer.error_pct
        shown = f"{least:g} to {most:g} %" if 0 < least < most else f"{most:g} %"
        shown = f"< {shown}" if least == 0 else shown
        rows.append([peer.name, shown, peer.measure, peer.speed, peer.basis, peer.source])
    headings = ["simulator", "own claim", "of what", "speed", "step times from", "source"]
    return table(headings, rows, left=len(headings))


def same_logs_table(evidence: Evidence) -> str:
    """Errors of the means on the logs for which a peer tells its own, side by side."""
    rows = []
    for log in evidence.logs:
        for who, part in (("inframind_gym, not fitted", "unseen"), ("inframind_gym, all", "all")):
            of = log.figures[part]
            errors = [error(of[metric]["mean"]["error_pct"], 2) for metric in METRICS]
            rows.append([log.entry.title, who, *errors])
        for peer in evidence.peers:
            if log.file in peer.logs:
                claim = peer.logs[log.file].model_dump()
                errors = [error(claim[metric]) for metric in METRICS]
                rows.append([log.entry.title, f"{peer.name}, all (own claim)", *errors])
    return table(["log", "simulator, requests", *(of[0] for of in METRICS.values())], rows, left=2)


def summary_table(sections: Mapping[str, Mapping[str, Any]], heading: str) -> str:
    """Absolute errors by method, for one or more sets of cells: median (90th percentile).

    Args:
        sections: Name of the set -> summary by method (`replay_report.summarise`).
        heading: Of the column of names.
    """
    rows = [
        [name, method, str(of["cells"]), *(_median_p90(of, key) for key, _ in _SUMMARY)]
        for name, summary in sections.items()
        for method, of in summary.items()
    ]
    return table([heading, "method", "cells", *(label for _, label in _SUMMARY)], rows, left=2)


def _median_p90(of: Mapping[str, float | None], key: str) -> str:
    median, p90 = of.get(f"{key}_median"), of.get(f"{key}_p90")
    return NONE if median is None or p90 is None else f"{median:.1f} ({p90:.1f})"


def cells_table(runs: RunEvidence) -> str:
    """Every cell of the oblivious method: measured → predicted (error)."""
    order = list(dict.fromkeys(row["dataset"] for row in runs.rows))
    rows = sorted(
        (row for row in runs.rows if row["method"] == OBLIVIOUS),
        key=lambda row: (
            order.index(row["dataset"]),
            row["cost_rate"] or 0.0,
            row["arrival_rate_per_min"],
        ),
    )
    return table(
        ["dataset", "cost rate", "queries/min", "mean latency, s", "p95 latency, s", "accuracy, %"],
        [_cell_row(row) for row in rows],
    )


def worst_table(runs: RunEvidence, count: int = 8) -> str:
    """The cells of the oblivious method whose mean latency is farthest off."""
    rows = [
        row
        for row in runs.rows
        if row["method"] == OBLIVIOUS and row["errors"]["latency_mean_abs_pct"] is not None
    ]
    rows.sort(key=lambda row: -row["errors"]["latency_mean_abs_pct"])
    return table(
        ["dataset", "cost rate", "queries/min", "mean latency, s", "p95 latency, s", "accuracy, %"],
        [_cell_row(row) for row in rows[:count]],
    )


def _cell_row(row: Row) -> list[str]:
    accuracy = row["accuracy"]
    off = 100 * (accuracy["predicted"] - accuracy["measured"])
    return [
        row["dataset"],
        NONE if row["cost_rate"] is None else f"{row['cost_rate']:g}",
        f"{row['arrival_rate_per_min']:g}",
        _latency(row, "mean"),
        _latency(row, "p95"),
        f"{100 * accuracy['measured']:.1f} → {100 * accuracy['predicted']:.1f} ({signed(off)})",
    ]


def _latency(row: Row, key: str) -> str:
    of = row["latency_s"][key]
    if not of["measured"]:
        return f"{NONE} → {of['predicted']:,.0f}"
    off = 100 * (of["predicted"] / of["measured"] - 1)
    return f"{of['measured']:,.0f} → {of['predicted']:,.0f} ({error(off, 0)})"


def bias_table(runs: RunEvidence, method: str) -> str:
    """Median signed error of the mean latency of a method, by dataset and arrival rate."""
    rows = [
        row for row in runs.rows if row["method"] == method and row["latency_s"]["mean"]["measured"]
    ]
    rates = sorted({row["arrival_rate_per_min"] for row in rows})
    lines = []
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        cells = []
        for rate in rates:
            of = [
                100
                * (row["latency_s"]["mean"]["predicted"] / row["latency_s"]["mean"]["measured"] - 1)
                for row in rows
                if row["dataset"] == dataset and row["arrival_rate_per_min"] == rate
            ]
            cells.append(error(float(np.median(of)), 0) if of else NONE)
        lines.append([dataset, *cells])
    return table(["dataset", *(f"{rate:g}/min" for rate in rates)], lines)


def alike_table(runs: RunEvidence) -> str:
    """Pairs of cells with nearly the same choices whose measured latencies are far apart."""
    rows = [
        [
            pair.one.dataset,
            f"{pair.one.arrival_rate_per_min:g}",
            f"{number(pair.one.cost_rate, 0)}, {number(pair.other.cost_rate, 0)}",
            f"{100 * pair.differ:.0f} %",
            _two(pair.one.latency_s["mean"], pair.other.latency_s["mean"]),
            _two(pair.one_said.latency_s["mean"], pair.other_said.latency_s["mean"]),
        ]
        for pair in alike_but_apart(runs)
    ]
    headings = ["dataset", "queries/min", "cost rates", "choices differ", "measured, s"]
    return table([*headings, "predicted, s"], rows) if rows else "None."


def _two(one_s: float, other_s: float) -> str:
    return f"{one_s:,.0f}, {other_s:,.0f} ({error(100 * (other_s / one_s - 1), 0)})"


def constants_tables(values: Mapping[str, float]) -> str:
    """The fitted constants of pool and workloads: shared ones, then by dataset and model."""
    shared = [(name, value) for name, value in values.items() if name.count(": ") < 2]
    rows = [
        [name, f"{value:.4g}", _SHARED.get(name, _SHARED.get(name.rsplit(": ", 1)[-1], ""))]
        for name, value in shared
    ]
    parts = [
        f"Of one server, of one dataset or common to all: {len(rows)}.",
        _text_last(["constant", "value", "what"], rows),
    ]
    for kind, what in _TABLES.items():
        cells = {
            tuple(name.split(": ")[:2]): value
            for name, value in values.items()
            if name.count(": ") == 2 and name.endswith(f": {kind}")
        }
        if cells:
            models = list(dict.fromkeys(model for _, model in cells))
            lines = [
                [dataset, *(_short(cells.get((dataset, model))) for model in models)]
                for dataset in dict.fromkeys(dataset for dataset, _ in cells)
            ]
            parts += [f"{what}: {len(cells)}.", table(["dataset", *models], lines)]
    return "\n\n".join(parts)


def _short(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:,.0f}" if abs(value) >= 20 else f"{value:.2f}".replace("-", "−")


def assumptions_table() -> str:
    """Numbers of the replay that no fit determines."""
    return _text_last(
        ["constant", "value", "what"],
        [
            [
                "`AGGREGATOR_LOGIT`",
                f"{AGGREGATOR_LOGIT:g}".replace("-", "−"),
                "logits that the aggregating call of `moa` gains over a deciding call",
            ],
            [
                "`ROUTE_AFFINITY`",
                f"{ROUTE_AFFINITY:g}",
                "share of an adaptive router's calls that take their query's route",
            ],
        ],
    )


def outcomes_table(outcomes: Mapping[str, Any]) -> str:
    """Quantities that the outcomes of many models tell."""
    rows = []
    for name, of in outcomes.items():
        entry = of if isinstance(of, dict) else {"value": of}
        value = entry.get("value")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        shown = f"{value:.4g}" if is_number else str(value)
        rows.append(
            [f"`{name}`", shown, str(entry.get("what", "")), str(entry.get("used_for", ""))]
        )
    return _text_last(["quantity", "value", "what", "used for"], rows)


def _text_last(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose second column alone is a number."""
    lines = table(headings, rows).split("\n")
    lines[1] = "| " + " | ".join(["---", "--:", *["---"] * (len(headings) - 2)]) + " |"
    return "\n".join(lines)
