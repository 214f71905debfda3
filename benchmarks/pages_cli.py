"""``python -m benchmarks fidelity``, ``results``, ``robustness``, ``placement-page``: pages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from inframind_gym.benchmark.cli.shared import (
    Json,
    RayAddress,
    app,
    friendly,
    print_json,
)
from inframind_gym.benchmark.cores import available_cores
from inframind_gym.benchmark.progress import say


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
    plan: Annotated[
        Path | None,
        typer.Option(help="What the page is made of; default: benchmarks/results_page/plan.yaml."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of results.md; other pages and figures in results/.")
    ] = Path("docs"),
    folder: Annotated[Path, typer.Option(help="Folder of the results folders.")] = Path("results"),
    records: Annotated[
        Path | None,
        typer.Option(
            help="Folder of records: what has a valid one is not run again. Default: "
            "results/records beside the page; of a plan, --seeds or --queries of one's own, "
            "records in the folder of the results folders."
        ),
    ] = None,
    afresh: Annotated[
        bool, typer.Option("--afresh", help="Run what has a record, too; it gets a new one.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(help="Entries of the plan, with commas between; default: all.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Sweeps of every cell: how many, or which.")
    ] = None,
    queries: Annotated[int | None, typer.Option(help="Queries of one sweep.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes, or actors on Ray, for the sweeps.")
    ] = None,
    trainings: Annotated[
        int | None,
        typer.Option(min=1, help="Trainings side by side; default: one for each core."),
    ] = None,
    ray_address: RayAddress = None,
    page_only: Annotated[
        bool, typer.Option("--page-only", help="Write the page from what is there.")
    ] = False,
    redo: Annotated[
        bool, typer.Option("--redo", help="Delete results and trainings of other code or settings.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train and run what is missing and write the results page; continues where it was stopped."""
    from benchmarks.pages.figures import check_matplotlib
    from benchmarks.results_page import page
    from benchmarks.results_page.evidence import gather
    from benchmarks.results_page.plan import PLAN, load_plan, suites_of
    from benchmarks.results_page.produce import produce
    from benchmarks.results_page.scores import check_suites
    from inframind_gym.benchmark.cell_workers import default_workers
    from inframind_gym.benchmark.errors import StoppedError
    from inframind_gym.benchmark.runner import continue_command
    from inframind_gym.benchmark.suite import parse_seeds, split_list

    with friendly():
        check_matplotlib()
        own = plan is not None or seeds is not None or queries is not None
        records = records or (folder if own else out / "results") / "records"
        chosen = load_plan(plan or PLAN)
        entries = chosen.only(split_list(only))
        suites = suites_of(chosen, {"seeds": parse_seeds(seeds), "num_queries": queries})
        check_suites(suites)
        if not page_only:
            try:
                produce(
                    entries,
                    suites,
                    folder,
                    workers=workers or default_workers(ray_address),
                    trainings_at_once=trainings or available_cores(),
                    ray_address=ray_address,
                    redo=redo,
                    records=records,
                    afresh=afresh,
                )
            except (KeyboardInterrupt, StoppedError):
                say(f"stopped. Continue with: {continue_command(sys.argv[1:])}")
                raise typer.Exit(130) from None
        evidence = gather(chosen, entries, suites, folder, records)
        written = page.write(evidence, out)
        if as_json:
            print_json(page.as_json(evidence, written))
            return
        for line in page.lines(evidence):
            print(line)
        print(f"{written.page} and {written.beside} beside it")


@app.command()
def robustness(
    circumstances: Annotated[
        Path | None,
        typer.Option(help="Default: benchmarks/robustness/circumstances.yaml."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Recorded arrivals, a CSV file; without it that circumstance is left out."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of robustness.md.")] = Path("docs"),
    folder: Annotated[Path, typer.Option(help="Folder of the results folders.")] = Path(
        "results/robustness"
    ),
    only: Annotated[
        str | None, typer.Option(help="Circumstances, with commas between; default: all.")
    ] = None,
    policies: Annotated[
        str | None, typer.Option(help="Instead of the file's; with commas between.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes, or actors on Ray, for the sweeps.")
    ] = None,
    ray_address: RayAddress = None,
    redo: Annotated[
        bool, typer.Option("--redo", help="Delete results of other code or settings.")
    ] = False,
) -> None:
    """Play policies where the world is not as they were fitted to it, and write the page."""
    from benchmarks.robustness.circumstances import CIRCUMSTANCES, chosen, load_circumstances
    from benchmarks.robustness.page import write
    from benchmarks.robustness.produce import produce
    from inframind_gym.benchmark.cell_workers import default_workers
    from inframind_gym.benchmark.errors import StoppedError
    from inframind_gym.benchmark.runner import continue_command
    from inframind_gym.benchmark.suite import split_list

    with friendly():
        plan = load_circumstances(circumstances or CIRCUMSTANCES, split_list(policies))
        try:
            found = produce(
                plan,
                chosen(plan, split_list(only), traced=trace is not None),
                folder,
                trace=trace,
                workers=workers or default_workers(ray_address),
                ray_address=ray_address,
                redo=redo,
            )
        except (KeyboardInterrupt, StoppedError):
            say(f"stopped. Continue with: {continue_command(sys.argv[1:])}")
            raise typer.Exit(130) from None
        print(write(plan, found, out))


@app.command()
def placement_page(
    folder: Annotated[Path, typer.Argument(help="Folder of results of a placement suite.")],
    out: Annotated[Path, typer.Option(help="Folder of placement.md.")] = Path("docs"),
) -> None:
    """Write docs/placement.md: leaderboard, paired differences, times of the solvers."""
    from benchmarks.placement_page import write
    from benchmarks.placement_solver import measure
    from inframind_gym.benchmark.results import load_results

    with friendly():
        print(write(load_results(folder), out, solver=measure()))
