"""Command line: ``python -m benchmarks``.

Commands: ``run``, ``leaderboard``, ``compare``, ``speed``, ``fidelity``, ``results``,
``placement-page``. Tables go to standard output, progress and errors to standard error. With
``--json`` standard output is one JSON object and nothing else. What a person can mend ends with one
line and status 2, an interrupted run with status 130.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.cores import available_cores
from benchmarks.errors import BenchmarkError
from benchmarks.progress import say
from inframind_gym.errors import InfraMindError

app = typer.Typer(
    help="Run policies on suites of sweeps, and compare the results.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[
    bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Tables as markdown.")]
RayAddress = Annotated[
    str | None,
    typer.Option(
        help="Run on a Ray cluster: ray://host:port, host:port, auto, or local (extra `ray`)."
    ),
]
Fluid = Annotated[
    bool, typer.Option("--fluid", help="Compute fluid bounds (seconds a cell; extra `bounds`).")
]
BootstrapSeed = Annotated[int, typer.Option(help="Seed of the intervals.")]


@contextmanager
def _friendly() -> Iterator[None]:
    try:
        yield
    except InfraMindError as error:
        say(f"error: {error}")
        raise typer.Exit(2) from None
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, allow_nan=False))


@app.command()
def run(
    suite: Annotated[
        str,
        typer.Option(
            help="A shipped suite (quick, standard, paper; placement_quick, placement) or a YAML "
            "file."
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
    protocol: Annotated[str | None, typer.Option(help="parallel or published.")] = None,
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
    from benchmarks.leaderboard import leaderboard as compute
    from benchmarks.results import load_results
    from benchmarks.runner import continue_command, resolve
    from benchmarks.runner import run as run_suite
    from benchmarks.suite import (
        load_any_suite,
        parse_arrivals,
        parse_numbers,
        parse_seeds,
        split_list,
    )
    from benchmarks.workers import default_workers

    with _friendly():
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
                "protocol": protocol,
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
            _print_json({"out": str(folder), **counted, **board})
            return
        _show_leaderboard(board)
        print(f"{summary.computed} sweeps in {summary.wall_s:.0f} s. Results: {folder}")


@app.command()
def leaderboard(
    folder: Annotated[Path, typer.Argument(help="Folder of results.")],
    bootstrap_seed: BootstrapSeed = 0,
    fluid: Fluid = False,
    markdown: Markdown = False,
    as_json: Json = False,
) -> None:
    """Rank the policies of a results folder, with 95 % intervals."""
    from benchmarks.leaderboard import leaderboard as compute
    from benchmarks.results import load_results

    with _friendly():
        board = compute(load_results(folder), bootstrap_seed=bootstrap_seed, fluid=fluid)
        if as_json:
            _print_json(board)
        else:
            _show_leaderboard(board, markdown=markdown)


def _show_leaderboard(board: dict[str, Any], *, markdown: bool = False) -> None:
    from benchmarks.tables import leaderboard_sheets, show

    sheets = leaderboard_sheets(board)
    show(sheets, markdown=markdown)
    if not sheets:
        print(
            "No cell has been finished by every policy yet; --json shows the rows that are there."
        )
    for note in board["notes"]:
        print(f"Note: {note}.")


@app.command()
def compare(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR POLICY_A POLICY_B | DIR_A DIR_B",
            help="One folder and two policies, or two folders.",
        ),
    ],
    policies: Annotated[
        str | None,
        typer.Option(
            help="A,B: two policies of one folder, or A of the first and B of the second folder."
        ),
    ] = None,
    bootstrap_seed: BootstrapSeed = 0,
    markdown: Markdown = False,
    as_json: Json = False,
) -> None:
    """Paired differences B - A on common random numbers, with 95 % intervals."""
    from benchmarks.compare import compare as compute
    from benchmarks.compare import comparison_sheets
    from benchmarks.suite import split_list
    from benchmarks.tables import show

    with _friendly():
        comparisons = [
            compute(a, b, bootstrap_seed=bootstrap_seed)
            for a, b in _sides(targets, split_list(policies))
        ]
        if as_json:
            _print_json({"comparisons": comparisons})
            return
        for comparison in comparisons:
            show(comparison_sheets(comparison), markdown=markdown)
            for note in comparison["notes"]:
                print(f"Note: {note}.")


def _sides(targets: Sequence[str], policies: Sequence[str] | None) -> list[tuple[Any, Any]]:
    """What is to be compared with what: pairs of `benchmarks.compare.Side`."""
    from benchmarks.compare import Side
    from benchmarks.results import load_results

    folders = [target for target in targets if Path(target).is_dir()]
    named = [target for target in targets if target not in folders]
    missing = [name for name in named if "/" in name]
    if not folders or len(folders) > 2 or missing:
        what = f"there is no folder {missing[0]}. " if missing else ""
        raise BenchmarkError(f"{what}Write: compare DIR POLICY_A POLICY_B, or compare DIR_A DIR_B.")
    chosen = [*named, *(policies or ())]
    results = [load_results(Path(folder)) for folder in folders]
    a, b = results[0], results[-1]
    if len(chosen) == 2:
        return [(Side(a, chosen[0]), Side(b, chosen[1]))]
    if len(folders) == 1:
        raise BenchmarkError(
            f"compare takes two policies of {folders[0]}, got {len(chosen)}. "
            f"It has: {', '.join(a.policies)}."
        )
    both = chosen or [policy for policy in a.policies if policy in b.policies]
    if not both:
        raise BenchmarkError("the two folders have no policy in common; name two: --policies A,B.")
    return [(Side(a, policy), Side(b, policy)) for policy in both]


@app.command()
def speed(
    repeats: Annotated[
        int, typer.Option(min=1, help="Measurements, of which the median is shown.")
    ] = 5,
    only: Annotated[
        str | None, typer.Option(help="Figures to measure, e.g. kernel_rps,import_s.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the speed of the simulator on one core of this machine."""
    from benchmarks.speed import measure, speed_sheet
    from benchmarks.suite import split_list
    from benchmarks.tables import show

    with _friendly():
        figures = measure(split_list(only), repeats=repeats)
        if as_json:
            _print_json(figures)
        else:
            show([speed_sheet(figures)])


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
        typer.Option(help="Server limits of the logs; default: benchmarks/fidelity_logs.yaml."),
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option(
            help="fit.json of benchmarks.fit_measured; default: "
            "benchmarks/results/fit_b200-2gpu.json."
        ),
    ] = None,
    outcomes: Annotated[
        Path | None,
        typer.Option(
            help="What benchmarks.fit_outcomes wrote; default: benchmarks/results/outcomes.json."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Sweeps to simulate for every cell.")] = 8,
    repeats: Annotated[
        int, typer.Option(min=1, help="Measurements of speed, of which the median is shown.")
    ] = 5,
    as_json: Json = False,
) -> None:
    """Compare the simulator with request logs and measured runs, and write the fidelity page."""
    from benchmarks import fidelity as page
    from benchmarks import fidelity_sources as sources
    from benchmarks.fidelity_evidence import gather
    from benchmarks.fidelity_plots import check_matplotlib
    from benchmarks.tables import show

    with _friendly():
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
            _print_json(page.as_json(evidence, written))
            return
        show([page.sheet(evidence)])
        print(f"{written.page} and {len(written.figures)} figures beside it")


@app.command()
def results(
    plan: Annotated[
        Path | None, typer.Option(help="What the page is made of; benchmarks/results.yaml.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of results.md and its figures, results/*.svg.")
    ] = Path("docs"),
    folder: Annotated[Path, typer.Option(help="Folder of the results folders.")] = Path("results"),
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
        bool, typer.Option("--redo", help="Delete results of other code or settings.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train and run what is missing and write the results page; continues where it was stopped."""
    from benchmarks.fidelity_plots import check_matplotlib
    from benchmarks.results_page import page
    from benchmarks.results_page.evidence import gather
    from benchmarks.results_page.plan import PLAN, load_plan, suites_of
    from benchmarks.results_page.produce import produce
    from benchmarks.results_page.scores import check_suites
    from benchmarks.rollout import StoppedError
    from benchmarks.runner import continue_command
    from benchmarks.suite import parse_seeds, split_list
    from benchmarks.workers import default_workers

    with _friendly():
        check_matplotlib()
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
                )
            except (KeyboardInterrupt, StoppedError):
                say(f"stopped. Continue with: {continue_command(sys.argv[1:])}")
                raise typer.Exit(130) from None
        evidence = gather(chosen, entries, suites, folder)
        written = page.write(evidence, out)
        if as_json:
            _print_json(page.as_json(evidence, written))
            return
        for line in page.lines(evidence):
            print(line)
        print(f"{written.page} and {len(written.figures)} figures beside it")


@app.command()
def placement_page(
    folder: Annotated[Path, typer.Argument(help="Folder of results of a placement suite.")],
    out: Annotated[Path, typer.Option(help="Folder of placement.md.")] = Path("docs"),
) -> None:
    """Write docs/placement.md: leaderboard, paired differences, times of the solvers."""
    from benchmarks.placement.page import write
    from benchmarks.placement_solver import measure
    from benchmarks.results import load_results

    with _friendly():
        print(write(load_results(folder), out, solver=measure()))
