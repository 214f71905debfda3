"""The fidelity page: ``python -m benchmarks fidelity DATA_DIR`` writes it anew.

Prose is committed in ``docs/templates/fidelity.md``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from benchmarks.fidelity import tables
from benchmarks.fidelity.contradictions import accuracies_that_differ_with_load
from benchmarks.fidelity.evidence import OBLIVIOUS, Evidence, LogEvidence, wilson_interval
from benchmarks.fidelity.plots import draw_all
from benchmarks.fidelity.targets import targets
from benchmarks.pages.writing import Written, write_page
from inframind_gym.benchmark.tables import Sheet
from inframind_gym.calibration.replay_choices import HARNESSES

PAGE: Final = "fidelity.md"
FIGURES: Final = "fidelity"  # folder of the figures, beside the page


def write(evidence: Evidence, out: Path) -> Written:
    """Write the page and its figures.

    Args:
        evidence: What it shows.
        out: Folder for `fidelity.md` and `fidelity/*.svg`.

    Raises:
        BenchmarkError: matplotlib is missing, the template asks for a name that is unknown, or a
            file cannot be read or written.
    """
    figures = draw_all(evidence, out / FIGURES)
    page = write_page(out / PAGE, PAGE, blocks(evidence), command="fidelity DATA_DIR")
    return Written(page, tuple(figures))


def sheet(evidence: Evidence) -> Sheet:
    """Targets and what is reached, for the terminal."""
    rows = []
    for target in targets(evidence):
        reached = "–" if target.reached is None else f"{target.reached:.{target.digits}f}"
        limit = "" if target.limit is None else f"<= {target.limit:g}"
        met = {None: "", True: "yes", False: "NO"}[target.met]
        unit = target.unit.strip() or "number"
        rows.append([target.what, target.of, unit, limit, reached, met])
    return Sheet("Fidelity", ["error", "of", "in", "target", "reached", "met"], rows, left=3)


def as_json(evidence: Evidence, written: Written) -> dict[str, Any]:
    """Targets and errors as JSON content."""
    return {
        "page": str(written.page),
        "figures": [str(path) for path in written.figures],
        "targets": [
            {
                "what": target.what,
                "of": target.of,
                "limit": target.limit,
                "reached": target.reached,
                "met": target.met,
            }
            for target in targets(evidence)
        ],
        "logs": {log.file: {**log.figures, "times_real_time": log.speed} for log in evidence.logs},
        "runs": evidence.runs.summary,
        "repeats": evidence.repeats,
        **evidence.where,
    }


def blocks(evidence: Evidence) -> dict[str, str]:
    """Everything that a template may ask for, by name."""
    runs, fit = evidence.runs, evidence.fit or {}
    values = fit.get("values") or {}
    left_out = fit.get("left_out") or {}
    adaptive = [method for method in runs.summary if HARNESSES[method].adaptive]
    fits = {"where the fit starts": fit["prior"]} if fit.get("prior") else {}
    return {
        **_numbers(evidence),
        "targets_table": tables.targets_table(evidence),
        "log_sections": "\n\n".join(_log_section(log) for log in evidence.logs),
        "speed_table": tables.speed_table(evidence),
        "peers_table": tables.peers_table(evidence),
        "same_logs_table": tables.same_logs_table(evidence),
        "runs_summary_table": tables.summary_table({**fits, "now": runs.summary}, "constants"),
        "cells_table": tables.cells_table(runs),
        "worst_table": tables.worst_table(runs),
        "alike_table": tables.alike_table(runs),
        "bias_table": tables.bias_table(runs, OBLIVIOUS),
        "adaptive_bias_tables": "\n\n".join(
            f"`{method}`:\n\n{tables.bias_table(runs, method)}" for method in adaptive
        )
        or "No cell of an adaptive method.",
        "left_out_table": tables.summary_table(
            {f"{rate}/min": summary for rate, summary in left_out.items()}, "left out"
        )
        if left_out
        else _absent("--cross-validate was not run", _FIT_COMMAND),
        "constants_tables": tables.constants_tables(values)
        if values
        else _absent("there is no fit on file", _FIT_COMMAND),
        "assumptions_table": tables.assumptions_table(),
        "outcomes_table": tables.outcomes_table(evidence.outcomes)
        if evidence.outcomes
        else _absent("there is no such file", _OUTCOMES_COMMAND),
        "fit_command": f"```sh\n{_FIT_COMMAND}\n```",
        "outcomes_command": f"```sh\n{_OUTCOMES_COMMAND}\n```",
        "calibrate_commands": _calibrate_commands(evidence),
    }


_FIT_COMMAND: Final = """\
python -m benchmarks.fit.measured DATA_DIR/measured_runs.json --out FOLDER --cross-validate
cp FOLDER/fit.json benchmarks/fit/fitted/b200-2gpu.json
cp FOLDER/pools/*.yaml envs_configs/pools/
cp FOLDER/workloads/*.yaml envs_configs/workloads/"""
_OUTCOMES_COMMAND: Final = (
    "python -m benchmarks.fit.outcomes DATA_DIR/mmlu_pro_outcomes.csv.gz DATA_DIR/tasks"
)


def _absent(why: str, command: str) -> str:
    return f"Not available: {why}. It is made by\n\n```sh\n{command}\n```"


def _numbers(evidence: Evidence) -> dict[str, str]:
    """Single numbers for prose."""
    runs, where = evidence.runs, evidence.where
    e2e = [abs(log.figures["unseen"]["e2e_s"]["mean"]["error_pct"]) for log in evidence.logs]
    with_limit = [target for target in targets(evidence) if target.met is not None]
    oblivious = runs.summary.get(OBLIVIOUS, {})
    inside = [
        low <= row["accuracy"]["predicted"] <= high
        for row in runs.rows
        for low, high in [wilson_interval(row["accuracy"]["measured"], row["num_queries"] or 0)]
        if row["method"] == OBLIVIOUS
    ]
    fitted = [log.calibration.fitted for log in evidence.logs]
    packages = ", ".join(f"{name} {version}" for name, version in where["packages"].items())
    others = [
        count
        for method, of in runs.summary.items()
        if method != OBLIVIOUS and (count := of["cells"])
    ]
    return {
        "logs": str(len(evidence.logs)),
        "worst_log_e2e_mean": f"{max(e2e):.1f} %",
        "fitted_requests": ", ".join(str(count) for count in dict.fromkeys(fitted)),
        "targets_met": str(sum(bool(target.met) for target in with_limit)),
        "targets": str(len(with_limit)),
        "cells": str(len(runs.rows)),
        "oblivious_cells": str(oblivious.get("cells", 0)),
        "other_cells": str(sum(int(count or 0) for count in others)),
        "oblivious_mean_median": _percent(oblivious.get("latency_mean_abs_pct_median")),
        "oblivious_mean_p90": _percent(oblivious.get("latency_mean_abs_pct_p90")),
        "accuracies_inside": f"{sum(inside)} of {len(inside)}",
        "accuracies_apart": "{} of {}".format(*accuracies_that_differ_with_load(runs)),
        "accuracies_share": f"{100 * sum(inside) / len(inside):.0f} %" if inside else "–",
        "constants": str(len((evidence.fit or {}).get("values") or {})),
        "seeds": str(runs.seeds),
        "runs_file": runs.file,
        "pool": runs.pool,
        "repeats": str(evidence.repeats),
        "machine": f"{where['machine']['processor']}; Python {where['python']}, {packages}",
    }


def _percent(value: float | int | None) -> str:
    return "–" if value is None else f"{value:.1f} %"


def _log_section(log: LogEvidence) -> str:
    of, limits = log.figures["log"], log.entry.limits
    blocks = "never full" if limits.num_kv_blocks is None else f"{limits.num_kv_blocks:,}"
    count = log.figures["parameters"]["count"]
    return "\n\n".join(
        [
            f"### {log.entry.title}",
            f"`{log.file}` (sha256 {of['sha256'][:12]}…): {of['requests']} requests, of which the "
            f"first {of['fitted']} were fitted. Server: `max_num_seqs` {limits.max_num_seqs}, "
            f"`max_num_batched_tokens` {limits.max_num_batched_tokens}, KV blocks {blocks} "
            f"({log.entry.source}). The simulation evicts {of['predicted_evictions']} times.",
            f"![{log.entry.title}: predicted against measured]({FIGURES}/log-{log.slug}.svg)",
            "Measured → predicted (error of the figure):",
            tables.log_table(log),
            f"Fitted or chosen, {count} in all:",
            tables.card_table(log),
            *(f"Warning of the calibration: {text}." for text in log.figures["warnings"]),
        ]
    )


def _calibrate_commands(evidence: Evidence) -> str:
    lines = []
    for log in evidence.logs:
        limits = log.entry.limits
        blocks = "" if limits.num_kv_blocks is None else f" --num-kv-blocks {limits.num_kv_blocks}"
        lines.append(
            f"inframind calibrate DATA_DIR/vllm_traces/{log.file} "
            f"--max-num-seqs {limits.max_num_seqs} "
            f"--max-num-batched-tokens {limits.max_num_batched_tokens}{blocks} "
            f"--out card.yaml --report report.json"
        )
    return "```sh\n" + "\n".join(lines) + "\n```"
