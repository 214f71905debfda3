"""``python -m benchmarks fidelity``, ``results``, ``record``, ``shifts``, ``placement-page``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inframind_gym.benchmark.cli import Json, app, friendly, print_json


@app.command()
def fidelity(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA_DIR", help="Folder with vllm_traces/*.jsonl and measured_runs.json."
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder of fidelity.md and its figures, fidelity/*.svg.")
    ] = Path("docs"),
    pool: Annotated[
        str, typer.Option(help="Pool of the measured runs: a name or a YAML file.")
    ] = "b200-2gpu",
    workloads: Annotated[
        Path | None, typer.Option(help="Folder of workload YAML files; default: the shipped ones.")
    ] = None,
    logs: Annotated[
        Path | None,
        typer.Option(help="Server limits of the logs; default: benchmarks/fidelity/logs.yaml."),
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option(
            help="fit.json of benchmarks.fit.measured; default: "
            "benchmarks/fit/fitted/b200-2gpu.json."
        ),
    ] = None,
    outcomes: Annotated[
        Path | None,
        typer.Option(
            help="What benchmarks.fit.outcomes wrote; default: benchmarks/fit/fitted/outcomes.json."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Sweeps to simulate for every cell.")] = 8,
    repeats: Annotated[
        int, typer.Option(min=1, help="Measurements of speed, of which the median is shown.")
    ] = 5,
    as_json: Json = False,
) -> None:
    """Compare the simulator with request logs and measured runs, and write the fidelity page."""
    from benchmarks.fidelity import page, sources
    from benchmarks.fidelity.evidence import gather
    from benchmarks.pages.figures import check_matplotlib
    from inframind_gym.benchmark.tables import show

    with friendly():
        check_matplotlib()
        evidence = gather(
            data,
            pool=pool,
            workloads=workloads,
            listing=logs or sources.LOGS,
            fit=fit or sources.FIT,
            outcomes=outcomes or sources.OUTCOMES,
            seeds=seeds,
            repeats=repeats,
        )
        written = page.write(evidence, out)
        if as_json:
            print_json(page.as_json(evidence, written))
            return
        show([page.sheet(evidence)])
        print(f"{written.page} and {written.beside} beside it")


@app.command()
def results(
    docs: Annotated[Path, typer.Option(help="Folder of the pages.")] = Path("docs"),
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail if a table is out of date.")
    ] = False,
    missing: Annotated[
        bool,
        typer.Option("--missing", help="Print the commands that make what has no valid record."),
    ] = False,
    bounds: Annotated[
        bool, typer.Option("--bounds", help="Compute the fluid bounds first (minutes).")
    ] = False,
    folder: Annotated[Path, typer.Option(help="Folder of suites and results of --missing.")] = Path(
        "results"
    ),
) -> None:
    """Refresh the tables and plots of docs/results.md from the records."""
    from benchmarks.plan import load_plan
    from benchmarks.recording import missing_commands, write_bounds
    from benchmarks.results import refresh_pages

    with friendly():
        plan = load_plan()
        if missing:
            print("\n".join(missing_commands(plan, folder)) or "# every record is valid")
            return
        if bounds:
            write_bounds(plan)
        stale = refresh_pages(plan, docs, check=check)
        print("\n".join(f"{page} was out of date" for page in stale) or "all tables are up to date")
        raise typer.Exit(int(check and bool(stale)))


@app.command()
def record(
    folders: Annotated[list[Path], typer.Argument(help="Finished results folders of the plan.")],
) -> None:
    """Add finished runs to the table of records."""
    from benchmarks.plan import load_plan
    from benchmarks.recording import add

    with friendly():
        print("recorded: " + ", ".join(add(folders, load_plan())))


@app.command()
def shifts(
    folder: Annotated[Path, typer.Option(help="Folder of the suites and results.")] = Path(
        "results/shifts"
    ),
    trace: Annotated[
        Path | None, typer.Option(help="CSV file of recorded arrivals for the shift `trace`.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Refresh this page from finished results instead.")
    ] = None,
) -> None:
    """Write the suites of the distribution shifts and print the commands that run them."""
    from benchmarks.pages.regions import refresh
    from benchmarks.recording import run_command
    from benchmarks.shifts import load_shifts, slug, tables, write_suites
    from inframind_gym.benchmark.results import load_results

    with friendly():
        chosen = load_shifts()
        if page:
            found = {n: folder / slug(n) for n in chosen.shifts if (folder / slug(n)).is_dir()}
            refresh(page, tables(chosen, {n: load_results(path) for n, path in found.items()}))
            return
        for name, suite in write_suites(chosen, folder / "suites", trace).items():
            print(run_command(suite, folder / slug(name)))


@app.command()
def placement_page(
    folder: Annotated[Path, typer.Argument(help="Folder of results of a placement suite.")],
    page: Annotated[Path, typer.Option(help="The page.")] = Path("docs/placement.md"),
) -> None:
    """Refresh docs/placement.md: leaderboard and paired differences."""
    from benchmarks.pages.regions import refresh
    from benchmarks.placement_page import tables
    from inframind_gym.benchmark.results import load_results

    with friendly():
        refresh(page, tables(load_results(folder)))
