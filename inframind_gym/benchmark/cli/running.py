"""``python -m benchmarks run``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from inframind_gym.benchmark.cli.shared import (
    Fluid,
    Json,
    RayAddress,
    app,
    friendly,
    print_json,
    show_leaderboard,
)
from inframind_gym.benchmark.progress import say


@app.command()
def run(
    suite: Annotated[
        str,
        typer.Option(
            help="A shipped suite (quick, standard, paper, results, results_published; "
            "placement_quick, placement) or a YAML file."
        ),
    ] = "quick",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the results, where an unfinished run is continued; results/SUITE."
        ),
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            help="Instead of the suite's: names and package.module:Class, with commas between."
        ),
    ] = None,
    workloads: Annotated[
        str | None, typer.Option(help="Instead of the suite's: names or YAML files.")
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Folder of questions (JSON Lines); the mixed workload becomes its datasets."
        ),
    ] = None,
    rates: Annotated[str | None, typer.Option(help="Queries per minute, e.g. 10,100.")] = None,
    budgets: Annotated[
        str | None, typer.Option(help="Seconds, or tiers (drawn per query), e.g. 30,100,tiers.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="How many (5), or which (0,1,7).")] = None,
    queries: Annotated[int | None, typer.Option(help="Queries of one sweep.")] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            help="poisson, burst, sustained, a trace's CSV file, or JSON; of a placement suite a "
            "trace's CSV file, which adds the demand `trace`."
        ),
    ] = None,
    clusters: Annotated[
        str | None, typer.Option(help="Of a placement suite: names or YAML files.")
    ] = None,
    demands: Annotated[
        str | None, typer.Option(help="Of a placement suite: names or YAML files.")
    ] = None,
    decisions: Annotated[
        int | None, typer.Option(help="Of a placement suite: decisions of one episode.")
    ] = None,
    pool: Annotated[
        str | None, typer.Option(help="Pool of servers: a name or a YAML file.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(help="surrogate, or vllm: the pool's live servers, on the wall clock."),
    ] = None,
    export_port: Annotated[
        int | None,
        typer.Option(help="Show metrics for Prometheus at this port (0: a free one), with vllm."),
    ] = None,
    scheduler: Annotated[str | None, typer.Option(help="edf, edf_late_last or fcfs.")] = None,
    execution: Annotated[str | None, typer.Option(help="parallel or published.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes, or actors on Ray; default: one for each core."),
    ] = None,
    ray_address: RayAddress = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Most sweeps that run in lock-step.")] = 128,
    fluid: Fluid = False,
    as_json: Json = False,
) -> None:
    """Run a suite and show its leaderboard; the same command again continues a stopped run."""
    from inframind_gym.benchmark.cell_workers import default_workers
    from inframind_gym.benchmark.leaderboard import leaderboard as compute
    from inframind_gym.benchmark.results import load_results
    from inframind_gym.benchmark.runner import continue_command, resolve
    from inframind_gym.benchmark.runner import run as run_suite
    from inframind_gym.benchmark.suite import (
        load_any_suite,
        parse_arrivals,
        parse_numbers,
        parse_seeds,
        split_list,
    )

    with friendly():
        chosen = load_any_suite(
            suite,
            {
                "policies": split_list(policies),
                "workloads": split_list(workloads),
                "rates_per_min": parse_numbers("--rates", rates),
                "budgets_s": parse_numbers("--budgets", budgets, words=("tiers",)),
                "seeds": parse_seeds(seeds),
                "num_queries": queries,
                "arrivals": parse_arrivals(arrivals),
                "tasks": tasks,
                "pool": pool,
                "backend": backend,
                "scheduler": scheduler,
                "execution": protocol,
                "clusters": split_list(clusters),
                "demands": split_list(demands),
                "num_decisions": decisions,
            },
        )
        folder = out or Path("results") / chosen.name
        command = sys.argv[1:]
        try:
            summary = run_suite(
                resolve(chosen),
                folder,
                workers=workers or default_workers(ray_address),
                ray_address=ray_address,
                max_rows=max_rows,
                export_port=export_port,
                command=command,
            )
        except KeyboardInterrupt:
            say(f"interrupted; finished cells are kept. Continue with: {continue_command(command)}")
            raise typer.Exit(130) from None
        if summary.stopped:
            done = summary.kept + summary.computed
            say(f"stopped: {done} of {summary.cells} cells are in {folder}.")
            say(f"Continue with: {continue_command(command)}")
            raise typer.Exit(130)
        board = compute(load_results(folder), fluid=fluid)
        if as_json:
            counted = {"computed": summary.computed, "kept": summary.kept, "wall_s": summary.wall_s}
            print_json({"out": str(folder), **counted, **board})
            return
        show_leaderboard(board)
        print(f"{summary.computed} sweeps in {summary.wall_s:.0f} s. Results: {folder}")
