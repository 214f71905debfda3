"""Writes the results pages from their evidence; prose stands in ``docs/templates``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.pages.writing import Written, write_page
from benchmarks.results_page import published_tables, tables
from benchmarks.results_page.evidence import Evidence
from benchmarks.results_page.formats import title
from benchmarks.results_page.plots import draw_all
from benchmarks.results_page.prose import prose
from benchmarks.results_page.rests_on import SIMULATOR
from inframind_gym.benchmark.routing.suite import budget_text

PAGE: Final = "results.md"
FOLDER: Final = "results"  # of the figures and of the other pages, beside the page
_BESIDE: Final = ("load.md", "published.md")  # pages in it that are of no single dataset
_ABSENT: Final = "The plan has no suite for the published protocol."


def write(evidence: Evidence, out: Path) -> Written:
    """Write the page, the pages that it links to, and the figures.

    Args:
        evidence: What they show.
        out: Folder for ``results.md``, ``results/*.md`` and ``results/*.svg``.

    Raises:
        BenchmarkError: matplotlib is missing, a template asks for a name that is unknown, or a
            file cannot be read or written.
    """
    figures = draw_all(evidence, out / FOLDER)
    names = blocks(evidence)
    page = _write(out, PAGE, PAGE, {**names, "dataset_links": _links(evidence, f"{FOLDER}/")})
    beside = {**names, "dataset_links": _links(evidence)}
    more = [_write(out, f"{FOLDER}/{one}", f"{FOLDER}/{one}", beside) for one in _BESIDE]
    for workload in evidence.scores["default"].suite.names("workloads"):
        filled = {**names, **dataset_blocks(evidence, workload)}
        more.append(_write(out, f"{FOLDER}/{_file(workload)}", f"{FOLDER}/dataset.md", filled))
    return Written(page, tuple(figures), tuple(more))


def _write(out: Path, name: str, template: str, names: Mapping[str, str]) -> Path:
    return write_page(out / name, template, names, command="results")


def _file(workload: str) -> str:
    """Name of a dataset's page."""
    return f"{workload}.md"


def _links(evidence: Evidence, folder: str = "", but: str = "") -> str:
    """Links to the datasets' pages."""
    workloads = evidence.scores["default"].suite.names("workloads")
    links = [f"[{title(w)}]({folder}{_file(w)})" for w in workloads if w != but]
    return ", ".join(links) or "none"


def blocks(evidence: Evidence) -> dict[str, str]:
    """Everything that the templates may ask for, by name, but for links."""
    published = "published" in evidence.scores
    return {
        **_numbers(evidence),
        **prose(evidence),
        "targets_table": tables.targets_table(evidence),
        "entries_table": tables.entries_table(evidence),
        "informed": tables.informed_table(evidence),
        "informed_share": tables.informed_shares(evidence),
        "summary": tables.summary_table(evidence, "default"),
        "differences": tables.mean_differences_table(evidence, "default"),
        "best_rivals": tables.best_rivals_table(evidence, "default"),
        "best_rivals_published": tables.best_rivals_table(evidence, "published")
        if published
        else _ABSENT,
        "ablations": tables.ablations_tables(evidence),
        "load": tables.load_table(evidence, "default"),
        "strategies": tables.shares_table(evidence, "default", "strategy_share"),
        "models": tables.shares_table(evidence, "default", "model_share"),
        "summary_published": tables.summary_table(evidence, "published") if published else _ABSENT,
        "beside": published_tables.beside_table(evidence) if published else _ABSENT,
        "effects": published_tables.effects_table(evidence) if published else _ABSENT,
        "changed_effects": published_tables.changed_effects_tables(evidence)
        if published
        else _ABSENT,
        "causes": published_tables.causes_table(evidence) if published else _ABSENT,
        "load_published": tables.load_table(evidence, "published") if published else _ABSENT,
        "missing": "\n".join(f"- {text}" for text in evidence.missing) or "Nothing.",
    }


def dataset_blocks(evidence: Evidence, workload: str) -> dict[str, str]:
    """What the page of a dataset may ask for besides."""
    published = evidence.scores.get("published")
    has = published is not None and workload in published.suite.names("workloads")
    return {
        "dataset": title(workload),
        "other_datasets": _links(evidence, but=workload),
        "metrics": tables.dataset_tables(evidence, "default", workload),
        "differences": tables.dataset_differences_table(evidence, "default", workload),
        "metrics_published": tables.dataset_tables(evidence, "published", workload)
        if has
        else _ABSENT,
    }


def _numbers(evidence: Evidence) -> dict[str, str]:
    """Single numbers for prose."""
    suite = evidence.scores["default"].suite
    origins = [origin for scores in evidence.scores.values() for origin in scores.origins]
    revisions = {revision(origin.get("git") or {}) for origin in origins}
    machines = {f"{o['machine']['processor']}, {o['machine']['cores']} cores" for o in origins}
    code = {origin[SIMULATOR] for origin in origins}
    sweeps = [
        line["episodes"]
        for scores in evidence.scores.values()
        for cells in scores.cells.values()
        for rows in cells.values()
        for row in rows
        for line in row
    ]
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
        "queries": str(suite.queries_of(suite.workloads[0]) or "the dataset's number of"),
        "sweep_seeds": str(len(suite.seed_list)),
        "published_sweeps": _sweeps(evidence),
        "training_seeds": str(min(seeds, default=0)),
        "sweeps": f"{len(sweeps):,}",
        "episodes": f"{sum(sweeps):,}",
        "machine": "; ".join(sorted(machines)),
        "revisions": ", ".join(sorted(revisions)),
        "one_simulator": "one version of the simulator"
        if len(code) == 1
        else f"**{len(code)} versions of the simulator: run again from scratch before quoting**",
    }


def revision(git: Mapping[str, Any]) -> str:
    """The revision of a checkout, and whether it had files that were not committed."""
    commit = str(git.get("commit", "unknown"))[:12]
    return f"{commit} (with uncommitted files)" if git.get("dirty") else commit


def _sweeps(evidence: Evidence) -> str:
    """Sweeps, budgets and queries of the published protocol, in words."""
    if "published" not in evidence.scores:
        return _ABSENT
    suite = evidence.scores["published"].suite
    words = []
    for workload in suite.names("workloads"):
        budgets = ", ".join(budget_text(budget_s) for budget_s in suite.budgets_of(workload))
        queries = suite.queries_of(workload) or "its own number of"
        words.append(f"{title(workload)} {queries} queries, {budgets}")
    return f"{len(suite.seed_list)} for each budget ({'; '.join(words)})"


def lines(evidence: Evidence) -> Iterator[str]:
    """The targets for the terminal."""
    verdicts = {True: "met", False: "missed", None: "not known"}
    for target in evidence.targets:
        yield f"{verdicts[target.met]}: {target.name}: {target.reached}"
        if target.beside:
            yield f"  {target.beside}"
        if target.short:
            yield f"  {target.short}"


def as_json(evidence: Evidence, written: Written) -> dict[str, Any]:
    """The targets and the main scores as JSON content."""
    return {
        "page": str(written.page),
        "pages": [str(path) for path in written.more],
        "figures": [str(path) for path in written.figures],
        "targets": [
            {
                "name": t.name,
                "met": t.met,
                "reached": t.reached,
                "beside": t.beside,
                "missed": t.short,
            }
            for t in evidence.targets
        ],
        "goodput": {
            protocol: {
                entry: {
                    f"{w}@{r:g}": scores.draws(entry, (w, r), "goodput").value
                    for w, r in scores.at_rate(None, entry)
                }
                for entry in scores.cells
            }
            for protocol, scores in evidence.scores.items()
        },
        "missing": evidence.missing,
    }
