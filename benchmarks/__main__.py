"""``python -m benchmarks``: the commands of ``inframind bench``, and those of the laboratory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks import fidelity  # noqa: F401  (adds its command)
from inframind_gym.benchmark.cli import app
from inframind_gym.cli import print_in_any_encoding
from inframind_gym.errors import friendly


@app.command()
def results(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Finished results folders to record first: standard, ablations, …"),
    ] = None,
    docs: Annotated[Path, typer.Option(help="Folder of the pages.")] = Path("docs"),
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail if a table is out of date.")
    ] = False,
) -> None:
    """Record runs, and refresh tables and picture of docs/results.md from the records."""
    from benchmarks.record import record
    from benchmarks.results import refresh_pages

    with friendly():
        for folder in folders or ():
            print(f"recorded: {record(folder)}")
        stale = refresh_pages(docs, check=check)
        print("\n".join(f"{page} was out of date" for page in stale) or "all tables are up to date")
        raise typer.Exit(int(check and bool(stale)))


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
) -> None:
    """Fit the fixed recipes to scenarios of tracks, or enter what was trained for them."""
    from baselines.refit import places_of, refit_places
    from inframind_gym.benchmark.tracks.refits import enter_fit

    with friendly():
        chosen = places_of(places)
        if enter is not None:
            enter_fit(out, enter, [f"{track}/{scenario}" for track, scenario in chosen], queries)
            return
        refit_places(chosen, queries, out)


@app.command()
def retrieval(
    half: Annotated[
        str, typer.Option(help='Half of questions and answers: "test" or "tune".')
    ] = "test",
    provider: Annotated[
        str | None, typer.Option(metavar="NAME|URL", help="Whose model rewrites questions too.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model of the provider.")] = None,
) -> None:
    """Measure retrieval, rewriting, grounding and trimming of the coordination team."""
    from benchmarks.retrieval import report
    from inframind_gym.errors import ConfigError, unknown

    with friendly():
        if half not in ("test", "tune"):
            raise ConfigError(unknown("half", half, ("test", "tune")))
        print(report(half, provider, model))


if __name__ == "__main__":
    print_in_any_encoding()
    app()
