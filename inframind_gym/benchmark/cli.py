"""Command line: ``inframind bench``, in a checkout also ``python -m benchmarks``.

Tables go to standard output, progress and errors to standard error. With ``--json`` standard output
is one JSON object and nothing else. Wrong input ends with one line and status 2, an interrupted run
with status 130. Heavy modules are imported by the command that needs them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.errors import friendly, require
from inframind_gym.progress import say

if TYPE_CHECKING:
    from inframind_gym.benchmark.compare import Side

app = typer.Typer(
    help="Run policies on suites of episodes, and compare the results.",
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
    bool, typer.Option("--fluid", help="Compute the informed bound (extra `bounds`).")
]
BootstrapSeed = Annotated[int, typer.Option(help="Seed of the intervals.")]


def print_json(content: dict[str, Any]) -> None:
    """Print one JSON object."""
    print(json.dumps(content, allow_nan=False))


def show_leaderboard(board: dict[str, Any], *, markdown: bool = False) -> None:
    """Print the tables of a leaderboard."""
    from inframind_gym.benchmark.tables import leaderboard_sheets, show

    sheets = leaderboard_sheets(board)
    show(sheets, markdown=markdown)
    if not sheets:
        print(
            "No cell has been finished by every policy yet; --json shows the rows that are there."
        )
    for note in board["notes"]:
        print(f"Note: {note.rstrip('.')}.")


@app.command()
def run(
    suite: Annotated[
        str,
        typer.Option(
            help="A shipped suite (starter; standard_quick, standard; published, "
            "published_parallel; placement_quick, placement; assignment_quick, "
            "assignment_queue_quick, token_budget_quick, coordination_quick) or a YAML file."
        ),
    ] = "starter",
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
        str | None,
        typer.Option(
            "--workloads", "--workload", help="Instead of the suite's: names or YAML files."
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Folder of questions (JSON Lines); the mixed workload becomes its datasets."
        ),
    ] = None,
    quality_draws: Annotated[
        int | None,
        typer.Option(help="Play every cell under so many draws of what is uncertain of quality."),
    ] = None,
    rates: Annotated[str | None, typer.Option(help="Queries per minute, e.g. 10,100.")] = None,
    budgets: Annotated[
        str | None, typer.Option(help="Seconds, or tiers (drawn per query), e.g. 30,100,tiers.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="How many (5), or which (0,1,7).")] = None,
    queries: Annotated[
        int | None, typer.Option(help="Queries of one episode; of a track those that are scored.")
    ] = None,
    tracks: Annotated[str | None, typer.Option(help="Names of tracks, or YAML files.")] = None,
    scenarios: Annotated[str | None, typer.Option(help="Of the tracks: some scenarios.")] = None,
    loads: Annotated[
        str | None, typer.Option(help="Of the tracks: shares of the capacity, e.g. 0.6,0.9.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="test, or val: questions and seeds for choices made on the way."),
    ] = None,
    refits: Annotated[
        Path | None,
        typer.Option(help="Of the tracks: policies that were fitted for them (YAML file)."),
    ] = None,
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
    execution: Annotated[
        str | None, typer.Option(help="Order of a workflow's calls: parallel or sequential.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes, or actors on Ray; default: one for each core."),
    ] = None,
    ray_address: RayAddress = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Most episodes in lock-step.")] = 128,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="A policy that cannot play ends the run."),
    ] = False,
    fluid: Fluid = False,
    wandb: Annotated[
        bool,
        typer.Option(
            "--wandb",
            help="Log board and report to W&B: offline, unless WANDB_MODE says otherwise "
            "(extra `track`).",
        ),
    ] = False,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard",
            help="Write the board for TensorBoard, into the folder's own folder `tensorboard` "
            "(extra `track`).",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a suite and show its leaderboard; the same command again continues a stopped run."""
    from inframind_gym.benchmark.cell_workers import default_workers
    from inframind_gym.benchmark.leaderboard import leaderboard as compute
    from inframind_gym.benchmark.results import load_results
    from inframind_gym.benchmark.runner import continue_command
    from inframind_gym.benchmark.runner import run as run_suite
    from inframind_gym.benchmark.suite import (
        load_suite,
        parse_arrivals,
        parse_numbers,
        parse_seeds,
        split_list,
    )

    with friendly():
        if wandb:
            require("wandb", "--wandb", "track")
        if tensorboard:
            require("tensorboard", "--tensorboard", "track")
        chosen = load_suite(
            suite,
            {
                "policies": split_list(policies),
                "workloads": split_list(workloads),
                "quality_draws": quality_draws,
                "rates_per_min": parse_numbers("--rates", rates),
                "budgets_s": parse_numbers("--budgets", budgets, words=("tiers",)),
                "seeds": parse_seeds(seeds),
                "num_queries": queries,
                "arrivals": parse_arrivals(arrivals),
                "tasks": tasks,
                "pool": pool,
                "backend": backend,
                "scheduler": scheduler,
                "execution": execution,
                "clusters": split_list(clusters),
                "demands": split_list(demands),
                "num_decisions": decisions,
                "tracks": split_list(tracks),
                "scenarios": split_list(scenarios),
                "loads": parse_numbers("--loads", loads),
                "split": split,
                "refits": None if refits is None else str(refits),
            },
        )
        folder = out or Path("results") / chosen.name
        command = sys.argv[1:]
        try:
            summary = run_suite(
                chosen.resolve(),
                folder,
                workers=workers or default_workers(ray_address),
                ray_address=ray_address,
                max_rows=max_rows,
                export_port=export_port,
                strict=strict,
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
        results = load_results(folder, summary.results)
        board = compute(results, fluid=fluid)
        if wandb or tensorboard:
            from inframind_gym.benchmark.report import upload

            if wandb:
                upload.log_to_wandb(results, board)
            if tensorboard:
                upload.log_to_tensorboard(results, board)
        if as_json:
            counted = {"computed": summary.computed, "kept": summary.kept, "wall_s": summary.wall_s}
            print_json({"out": str(folder), **counted, **board})
            return
        show_leaderboard(board)
        print(f"{summary.computed} episodes in {summary.wall_s:.0f} s. Results: {folder}")


@app.command()
def limits(
    tracks: Annotated[list[str], typer.Argument(help="Names of tracks, or YAML files.")],
    again: Annotated[
        bool, typer.Option("--again", help="Compute bounds that hold still, too.")
    ] = False,
) -> None:
    """Compute capacities and bounds of tracks, a minute a scenario (extra `bounds`)."""
    from inframind_gym.benchmark.tracks.limits import Bounds, compute_limits

    with friendly():
        bounds = Bounds()
        for track in tracks:
            path = compute_limits(
                track,
                again=again,
                bounds=bounds,
                found=lambda name, one: say(f"{name}: {one.capacity_per_min:g} queries/min"),
            )
            print(path)


@app.command()
def leaderboard(
    folder: Annotated[Path, typer.Argument(help="Folder of results.")],
    bootstrap_seed: BootstrapSeed = 0,
    fluid: Fluid = False,
    markdown: Markdown = False,
    as_json: Json = False,
) -> None:
    """Rank the policies of a results folder, with 95 % intervals."""
    from inframind_gym.benchmark.leaderboard import leaderboard as compute
    from inframind_gym.benchmark.results import load_results

    with friendly():
        board = compute(load_results(folder), bootstrap_seed=bootstrap_seed, fluid=fluid)
        if as_json:
            print_json(board)
        else:
            show_leaderboard(board, markdown=markdown)


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
    from inframind_gym.benchmark.compare import compare as compute
    from inframind_gym.benchmark.compare import comparison_sheets
    from inframind_gym.benchmark.suite import split_list
    from inframind_gym.benchmark.tables import show

    with friendly():
        comparisons = [
            compute(a, b, bootstrap_seed=bootstrap_seed)
            for a, b in _sides(targets, split_list(policies))
        ]
        if as_json:
            print_json({"comparisons": comparisons})
            return
        for comparison in comparisons:
            show(comparison_sheets(comparison), markdown=markdown)
            for note in comparison["notes"]:
                print(f"Note: {note}.")


def _sides(targets: Sequence[str], policies: Sequence[str] | None) -> list[tuple[Side, Side]]:
    """Return the pairs to compare."""
    from inframind_gym.benchmark.compare import Side
    from inframind_gym.benchmark.results import load_results

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
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of results, of any families.")
    ],
    out: Annotated[Path, typer.Option(help="The HTML file; it needs no network.")] = Path(
        "report.html"
    ),
    episode: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CELL:POLICY:SEED",
            help="Show this episode, too, e.g. mixed/200/100:bid_price:3; may be repeated.",
        ),
    ] = None,
    episodes: Annotated[
        int,
        typer.Option(
            min=0,
            help="Most further episodes of each run that are played again: the worst and the "
            "median one of each policy. This runs the policies that the folder names; 0: none.",
        ),
    ] = 12,
    bootstrap_seed: BootstrapSeed = 0,
) -> None:
    """Write a report of results as one HTML file, with timelines of episodes."""
    from inframind_gym.benchmark.report.page import write_report

    with friendly():
        write_report(
            folders,
            out,
            episodes=episode or (),
            most_episodes=episodes,
            bootstrap_seed=bootstrap_seed,
        )
        print(out)


@app.command()
def speed(
    only: Annotated[
        str | None, typer.Option(help="Figures to measure, e.g. kernel_rps,import_s.")
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="Measurements, of which the median is shown.")
    ] = 5,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="REF", help="Measure this git revision in turn with it; in a checkout."
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="CSV file of production traffic to replay; adds figures of it."),
    ] = None,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Measure the growth with size instead (minutes).")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures as JSON, too.")
    ] = None,
    markdown: Markdown = False,
) -> None:
    """Measure the speed of the simulator on one core of this machine."""
    from inframind_gym.benchmark.speed.measure import measure, speed_sheet
    from inframind_gym.benchmark.speed.scaling import measure_scaling, scaling_sheet
    from inframind_gym.benchmark.suite import split_list
    from inframind_gym.benchmark.tables import show
    from inframind_gym.files import replace_text

    with friendly():
        names = split_list(only)
        if scaling:
            found = measure_scaling(names, repeats=repeats, against=against)
            sheet = scaling_sheet(found)
        else:
            found = measure(names, repeats=repeats, against=against, trace=trace)
            sheet = speed_sheet(found)
        show([sheet], markdown=markdown)
        if json_file is not None:
            replace_text(json_file, json.dumps(found, indent=2, allow_nan=False) + "\n")
