"""Writes the results page from its evidence; prose stands in ``docs/results.template.md``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.errors import BenchmarkError
from benchmarks.fidelity import fill
from benchmarks.results_page import tables
from benchmarks.results_page.evidence import Evidence
from benchmarks.results_page.plots import draw_all
from inframind_gym.files import replace_text

TEMPLATE: Final = Path(__file__).resolve().parents[2] / "docs" / "results.template.md"
FIGURES: Final = "results"  # folder of the figures, beside the page
_HEAD: Final = (
    "<!-- Written by `python -m benchmarks results` from docs/results.template.md: edit that file, "
    "not this one. -->\n\n"
)


@dataclass(frozen=True)
class Written:
    """The files of the page."""

    page: Path
    figures: tuple[Path, ...]


def write(evidence: Evidence, out: Path, template: Path = TEMPLATE) -> Written:
    """Write the page and its figures.

    Args:
        evidence: What it shows.
        out: Folder for ``results.md`` and ``results/*.svg``.
        template: Prose with ``{{name}}`` where numbers and tables go.

    Raises:
        BenchmarkError: matplotlib is missing, the template asks for a name that is unknown, or a
            file cannot be read or written.
    """
    try:
        text = fill(template.read_text(encoding="utf-8"), blocks(evidence))
        figures = draw_all(evidence, out / FIGURES)
    except OSError as error:
        raise BenchmarkError(f"{error.filename}: {error.strerror or error}.") from None
    replace_text(out / "results.md", _HEAD + text)
    return Written(out / "results.md", tuple(figures))


def blocks(evidence: Evidence) -> dict[str, str]:
    """Everything that a template may ask for, by name."""
    published = "published" in evidence.scores
    absent = "The plan has no suite for the published protocol."
    return {
        **_numbers(evidence),
        "targets_table": tables.targets_table(evidence),
        "entries_table": tables.entries_table(evidence),
        "informed": tables.informed_table(evidence),
        "informed_share": tables.informed_shares(evidence),
        "summary": tables.summary_table(evidence, "default"),
        "datasets": tables.dataset_tables(evidence, "default"),
        "differences": tables.differences_tables(evidence, "default"),
        "ablations": tables.ablations_tables(evidence),
        "load": tables.load_table(evidence, "default"),
        "strategies": tables.shares_table(evidence, "default", "strategy_share"),
        "models": tables.shares_table(evidence, "default", "model_share"),
        "summary_published": tables.summary_table(evidence, "published") if published else absent,
        "datasets_published": tables.dataset_tables(evidence, "published") if published else absent,
        "beside": tables.beside_table(evidence) if published else absent,
        "effects": tables.effects_table(evidence) if published else absent,
        "load_published": tables.load_table(evidence, "published") if published else absent,
        "missing": "\n".join(f"- {text}" for text in evidence.missing) or "Nothing.",
    }


def _numbers(evidence: Evidence) -> dict[str, str]:
    """Single numbers for prose."""
    suite = evidence.scores["default"].suite
    headers = [header for scores in evidence.scores.values() for header in scores.headers]
    revisions = {str((h.get("git") or {}).get("commit", "unknown"))[:12] for h in headers}
    machines = {f"{h['machine']['processor']}, {h['machine']['cores']} cores" for h in headers}
    code = {h["settings"]["code of inframind_gym"] for h in headers}
    sweeps = sum(
        len(line)
        for scores in evidence.scores.values()
        for cells in scores.cells.values()
        for rows in cells.values()
        for line in rows
    )
    queries = suite.num_queries or 0
    seeds = [len(e.training_seeds) for e in evidence.entries if e.training and e.kind != "ablation"]
    return {
        "agent": f"`{evidence.plan.agent}`",
        "paper": f"`{evidence.plan.paper}`",
        "replayed": f"`{evidence.plan.replayed}`",
        "oblivious": f"`{evidence.plan.oblivious}`",
        "bound": f"`{evidence.plan.bound}`",
        "source": evidence.published.source,
        "targets_met": str(sum(target.met is True for target in evidence.targets)),
        "targets": str(len(evidence.targets)),
        "datasets_count": str(len(suite.workloads)),
        "rates": ", ".join(f"{rate:g}" for rate in suite.rates_per_min),
        "queries": str(queries),
        "sweep_seeds": str(len(suite.seed_list)),
        "training_seeds": str(min(seeds, default=0)),
        "sweeps": f"{sweeps:,}",
        "episodes": f"{sweeps * queries:,}",
        "machine": "; ".join(sorted(machines)),
        "revisions": ", ".join(sorted(revisions)),
        "one_simulator": "one version of the simulator"
        if len(code) == 1
        else f"**{len(code)} versions of the simulator: run again from scratch before quoting**",
    }


def lines(evidence: Evidence) -> Iterator[str]:
    """The targets for the terminal."""
    verdicts = {True: "met", False: "missed", None: "not known"}
    for target in evidence.targets:
        yield f"{verdicts[target.met]}: {target.name}: {target.reached}"
        if target.short:
            yield f"  {target.short}"


def as_json(evidence: Evidence, written: Written) -> dict[str, Any]:
    """The targets and the main scores as JSON content."""
    return {
        "page": str(written.page),
        "figures": [str(path) for path in written.figures],
        "targets": [
            {"name": t.name, "met": t.met, "reached": t.reached, "missed": t.short}
            for t in evidence.targets
        ],
        "goodput": {
            protocol: {
                entry: {
                    f"{w}@{r:g}": scores.draws(entry, (w, r), "goodput").value
                    for w, r in scores.places
                }
                for entry in scores.cells
            }
            for protocol, scores in evidence.scores.items()
        },
        "missing": evidence.missing,
    }
