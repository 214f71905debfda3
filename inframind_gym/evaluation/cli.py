"""Command lines: ``inframind bench`` (in a checkout ``python -m benchmarks``) and ``submit``.

Tables go to standard output, progress and errors to standard error. With ``--json`` standard output
is one JSON object and nothing else. Wrong input ends with one line and status 2, an interrupted run
with status 130.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from inframind_gym.commands import CommandGroup, Force, Json, refuse_to_overwrite
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.board import leaderboard, leaderboard_tables, load_results
from inframind_gym.evaluation.bounds import compute_limits
from inframind_gym.evaluation.compare import compare, comparison_tables, sides_of
from inframind_gym.evaluation.report.page import write_report
from inframind_gym.evaluation.runner import run as run_suite
from inframind_gym.evaluation.submission import MANIFEST, joined, prepare, verify
from inframind_gym.evaluation.suite import load_suite
from inframind_gym.evaluation.tables import show
from inframind_gym.evaluation.tracker import track_board, trackers_of
from inframind_gym.progress import say

app = typer.Typer(
    cls=CommandGroup,
    help="Run policies on suites of episodes, and compare the results.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
submit = typer.Typer(help="Submit results, and verify submissions.", no_args_is_help=True)
SUBMISSIONS: Final = Path("benchmarks/submissions")

Markdown = Annotated[bool, typer.Option("--markdown", help="Tables as markdown.")]


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
        str | None, typer.Option(help="Instead of the suite's: A,B, names or package.module:Class.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="How many (5), or which (0,1,7).")] = None,
    workloads: Annotated[
        str | None,
        typer.Option(
            "--workloads", "--workload", help="Instead of the suite's: names or YAML files."
        ),
    ] = None,
    pool: Annotated[str | None, typer.Option(help="Of servers: a name or a YAML file.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any other setting of the suite, e.g. rates=10,100, budgets=30,tiers, queries=50, "
            "tracks=steady, split=val, backend=vllm, arrivals=trace.csv; may be repeated.",
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; else one a core.")] = None,
    tables: Annotated[Literal["first", "all"], typer.Option(help="What it shows.")] = "first",
    track: Annotated[
        str,
        typer.Option(
            help="Log board and report: wandb (offline, unless WANDB_MODE says otherwise), "
            "tensorboard, or both with a comma (extra `track`)."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Run a suite and show its leaderboard; the same command again continues a stopped run."""
    trackers = trackers_of(track)
    options = {"policies": policies, "seeds": seeds, "workloads": workloads, "pool": pool}
    texts = [f"{key}={text}" for key, text in options.items() if text is not None]
    loaded = load_suite(suite, settings=[*texts, *(settings or ())]).resolve()
    folder, command = out or Path("results") / loaded.name, sys.argv[1:]
    summary = run_suite(loaded, folder, workers=workers, command=command)
    if summary.stopped:
        done = summary.kept + summary.computed
        say(f"stopped: {done} of {summary.cells} cells are in {folder}.")
        program = Path(sys.argv[0])
        as_module = [Path(sys.executable).name, "-m", program.parent.name]
        called = as_module if program.name == "__main__.py" else [program.name]
        say(f"Continue with: {shlex.join([*called, *command])}")
        raise typer.Exit(130)
    results = load_results(folder).of(loaded)
    board = leaderboard(results)
    if trackers:
        track_board(results, board, trackers)
    if as_json:
        counted = {"computed": summary.computed, "kept": summary.kept, "wall_s": summary.wall_s}
        print(json.dumps({"out": str(folder), **counted, **board}, allow_nan=False))
        return
    shown = leaderboard_tables(board)
    show(shown[:1] if tables == "first" else shown, board["notes"])
    print(f"{summary.computed} episodes in {summary.wall_s:.0f} s. Results: {folder}")


@app.command()
def limits(
    tracks: Annotated[list[str], typer.Argument(help="Names of tracks, or YAML files.")],
    again: Annotated[
        bool, typer.Option("--again", help="Compute bounds that hold still, too.")
    ] = False,
) -> None:
    """Compute capacities and bounds of tracks, a minute a scenario."""
    for track in tracks:
        print(compute_limits(track, again=again))


@app.command("leaderboard")
def show_leaderboard(
    folder: Annotated[
        Path, typer.Argument(help="Folder of results, of submissions, or of a suite's alone.")
    ],
    markdown: Markdown = False,
    as_json: Json = False,
) -> None:
    """Rank the policies of a results folder, or of submissions, with 95 % intervals."""
    submitted = [*folder.glob(f"[!.]*/{MANIFEST}"), *folder.glob(f"*/[!.]*/{MANIFEST}")]
    suites = sorted({path.parent.parent for path in submitted})
    found = map(joined, suites) if suites else [load_results(folder)]
    boards = {results.folder.name: leaderboard(results) for results in found}
    if as_json:  # the only one, or all by their suites
        content: object = boards if len(boards) > 1 else next(iter(boards.values()))
        print(json.dumps(content, allow_nan=False))
        return
    for board in boards.values():
        show(leaderboard_tables(board), board["notes"], markdown=markdown)


@app.command("compare")
def show_comparison(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR POLICY_A POLICY_B | DIR_A DIR_B [POLICY_A POLICY_B]",
            help="One folder and two policies, or two folders.",
        ),
    ],
    markdown: Markdown = False,
    as_json: Json = False,
) -> None:
    """Paired differences B - A on common random numbers, with 95 % intervals.

    Of two folders the policies that differ are compared, the only one that the other has not, else
    those of the same name.
    """
    folders = [target for target in targets if Path(target).is_dir()]
    names = [target for target in targets if target not in folders]
    missing = [f"there is no folder {name}. " for name in names if "/" in name and ":" not in name]
    if missing or len(folders) not in (1, 2):
        wanted = "Write: compare DIR POLICY_A POLICY_B, or compare DIR_A DIR_B."
        raise ConfigError(f"{missing[0] if missing else ''}{wanted}")
    results = [load_results(Path(folder)) for folder in folders]
    comparisons = [compare(a, b) for a, b in sides_of(results, names)]
    if as_json:
        print(json.dumps({"comparisons": comparisons}, allow_nan=False))
        return
    for comparison in comparisons:
        show(comparison_tables(comparison), comparison["notes"], markdown=markdown)


@app.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of results, of any families.")
    ],
    out: Annotated[Path | None, typer.Option(help="Default: report.html in RUN.")] = None,
    force: Force = False,
) -> None:
    """Write a report of results as one HTML file, which needs no network."""
    page = out or folders[0] / "report.html"
    refuse_to_overwrite(force, page)
    write_report(folders, page)
    print(page)


# `inframind submit`


@submit.command("prepare")
def make_submission(
    run: Annotated[Path, typer.Argument(help="Folder of results of a shipped suite.")],
    name: Annotated[str, typer.Option(help="Name on the board.")],
    authors: Annotated[str, typer.Option(help="Who submits.")],
    policy: Annotated[
        str | None, typer.Option(help="As the run was given it; not needed if it is the only one.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of all submissions.")] = SUBMISSIONS,
    training_queries: Annotated[
        int | None, typer.Option(min=0, help="Simulated queries that one training has used.")
    ] = None,
) -> None:
    """Make a submission from a run: SUITE/NAME in the folder of submissions."""
    about = {"name": name, "authors": authors}
    print(prepare(run, out, policy=policy, training_queries=training_queries, **about))


@submit.command("verify")
def verify_submissions(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Submissions.")],
    full: Annotated[bool, typer.Option("--full", help="Play all cells again.")] = False,
    seed: Annotated[
        int | None, typer.Option(help="Of the choice of cells, to repeat a verification.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; default: one for each core.")
    ] = None,
) -> None:
    """Check submissions, and play a random third of their cells again."""
    for folder in folders:
        print(verify(folder, full=full, seed=seed, workers=workers), flush=True)
