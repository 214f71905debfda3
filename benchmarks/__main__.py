"""``python -m benchmarks``: the commands of ``inframind bench``, and those of the laboratory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks import fidelity  # noqa: F401  (adds its command)
from inframind_gym.evaluation.cli import app

Docs = Annotated[Path, typer.Option(help="Folder of the pages.")]
Check = Annotated[
    bool, typer.Option("--check", help="Change nothing; fail if a table is out of date.")
]


def _end(stale: list[Path], check: bool) -> None:
    print("\n".join(f"{page} was out of date" for page in stale) or "all tables are up to date")
    raise typer.Exit(int(check and bool(stale)))


@app.command()
def results(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Finished results folders to record first: standard, ablations, …"),
    ] = None,
    docs: Docs = Path("docs"),
    check: Check = False,
) -> None:
    """Record runs, and refresh tables and picture of docs/results.md from the records."""
    from benchmarks.results import record, refresh_pages

    for folder in folders or ():
        print(f"recorded: {record(folder)}")
    _end(refresh_pages(docs, check=check), check)


@app.command()
def agents(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Finished trainings of ppo_lagrangian to record.")
    ] = None,
    docs: Docs = Path("docs"),
    check: Check = False,
) -> None:
    """Record trainings, and refresh table and picture of docs/agents.md from the record."""
    from benchmarks.agents import record, refresh_pages

    if runs:
        record(runs)
    _end(refresh_pages(docs, check=check), check)


@app.command()
def paper(
    runs: Annotated[Path, typer.Option(help="Folder of trainings and plays.")] = Path("runs/paper"),
    jobs: Annotated[
        int | None, typer.Option(min=0, help="Most trainings and plays; 0: the page alone.")
    ] = None,
    docs: Docs = Path("docs"),
    check: Check = False,
) -> None:
    """Train and play what docs/results/paper.md shows, where it was stopped, and refresh it.

    Hours of one core; several may run at once. The page waits for all of them.
    """
    from benchmarks.paper import collect, missing, read_record, work
    from benchmarks.paper_page import refresh_page

    if not check:
        work(runs, jobs)
    figures = read_record() if check else collect(runs)
    if left := missing(figures):
        print(f"{len(left)} jobs are to go, the first is {left[0]}; the same command does them")
        raise typer.Exit(int(check))
    _end(refresh_page(figures, docs, check=check), check)


@app.command()
def refit(
    places: Annotated[
        list[str], typer.Argument(metavar="TRACK[/SCENARIO]...", help="Whole tracks, or scenarios.")
    ],
    queries: Annotated[
        int, typer.Option(min=1, help="Simulated queries that a fit may use for one scenario.")
    ] = 5_000_000,
    out: Annotated[Path, typer.Option(help="File of refits, which is added to.")] = Path(
        "refits.yaml"
    ),
    enter: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY=PLAYS:QUERIES",
            help="Fit nothing: write down that POLICY plays the places as PLAYS, for example "
            "bid_price=bid_price:runs/x/best:9000000, trained with so many simulated queries; of "
            "several trainings PLAYS,PLAYS.",
        ),
    ] = None,
    routers: Annotated[
        str,
        typer.Option(
            help="Fit plan and strategy of these routers, e.g. spill,jsq, the constant of "
            "backpressure, or train these learners, e.g. sb3_ppo, in runs/refits."
        ),
    ] = "",
) -> None:
    """Fit recipes or routers to scenarios of tracks, or enter what was trained for them."""
    from baselines.refit import enter_fit, places_of, refit_places

    chosen = places_of(places)
    if enter is not None:
        enter_fit(out, enter, [f"{track}/{scenario}" for track, scenario in chosen], queries)
        return
    names = [name for name in routers.split(",") if name]
    refit_places(chosen, queries, out, routers=names)


@app.command()
def speed(
    only: Annotated[list[str] | None, typer.Argument(metavar="[FIGURE]...")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Pairs of processes a figure.")] = 5,
    against: Annotated[
        str | None, typer.Option(metavar="REF|FOLDER", help="Measured in turn with this revision.")
    ] = None,
) -> None:
    """Measure the speed of the simulator on one core: medians, and ratios to another revision."""
    from benchmarks.speed import measure
    from inframind_gym.evaluation.store import provenance

    facts = provenance()
    versions = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    print(f"{facts['machine']['processor']}, Python {facts['python']}, {versions}\n")
    rows = measure(only or [], repeats, against)
    heading = ["figure", "here", *([f"{against}", "times as fast"] if against else [])]
    print("\n".join(f"| {' | '.join(row)} |" for row in [heading, ["---"] * len(heading), *rows]))


if __name__ == "__main__":
    app()
