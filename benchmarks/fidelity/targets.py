"""What the simulator has to reach, and what it reaches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.fidelity.evidence import OBLIVIOUS, Evidence, LogEvidence
from inframind_gym.calibration.report import FIGURES

MOST_PARAMETERS: Final = 8  # fitted to one log
# Largest medians of the absolute errors over the cells of the oblivious method.
RUNS: Final = {
    "latency_mean_abs_pct": ("median cell: mean latency", 10.0, " %"),
    "latency_p95_abs_pct": ("median cell: p95 latency", 20.0, " %"),
    "accuracy_abs_points": ("median cell: accuracy", 2.0, " points"),
}
# The same at an arrival rate whose cells were left out of the fit.
LEFT_OUT: Final = {
    "latency_mean_abs_pct": 15.0,
    "latency_p95_abs_pct": 25.0,
    "accuracy_abs_points": 2.5,
}


@dataclass(frozen=True)
class Target:
    """A figure and the most that it may be."""

    what: str
    of: str
    reached: float | None
    limit: float | None = None  # None: only reported
    unit: str = " %"
    digits: int = 1

    @property
    def met(self) -> bool | None:
        """Whether the figure is at most the limit; None where there is no limit or no figure."""
        if self.limit is None or self.reached is None:
            return None
        return self.reached <= self.limit


def targets(evidence: Evidence) -> list[Target]:
    """The figures that stand for the whole page."""
    found = [target for log in evidence.logs for target in _log(log)]
    for method, of in evidence.runs.summary.items():
        cells = f"`{method}`, {of['cells']} cells"
        for key, (what, limit, unit) in RUNS.items():
            found.append(
                Target(
                    what,
                    f"{cells}, fitted" if method == OBLIVIOUS else cells,
                    of[f"{key}_median"],
                    limit if method == OBLIVIOUS else None,
                    unit,
                )
            )
    for rate, summary in ((evidence.fit or {}).get("left_out") or {}).items():
        if OBLIVIOUS in summary:
            for key, limit in LEFT_OUT.items():
                what, _, unit = RUNS[key]
                value = summary[OBLIVIOUS][f"{key}_median"]
                place = f"`{OBLIVIOUS}`, {rate}/min left out"
                found.append(Target(what, place, value, limit, unit))
    return found


def _log(log: LogEvidence) -> Iterator[Target]:
    of, limits = log.figures["unseen"], log.entry.targets
    e2e = [abs(of["e2e_s"][name]["error_pct"]) for name in FIGURES]
    ttft = abs(of["ttft_s"]["mean"]["error_pct"])
    for what, reached, limit in (
        ("mean e2e", e2e[0], limits.e2e_mean if limits else None),
        (
            "worst e2e percentile",
            max(e2e[1:]),
            limits.e2e_percentiles if limits else None,
        ),
        ("mean TTFT", ttft, limits.ttft_mean if limits else None),
    ):
        yield Target(f"unseen requests: {what}", log.entry.title, reached, limit, digits=2)
    count = float(log.figures["parameters"]["count"])
    yield Target(
        "constants fitted or chosen", log.entry.title, count, MOST_PARAMETERS, unit="", digits=0
    )
