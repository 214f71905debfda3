"""Command line: ``inframind submit`` and ``inframind board``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from inframind_gym.errors import friendly

_TYPER: Final[dict[str, Any]] = {
    **{"no_args_is_help": True, "add_completion": False},
    "pretty_exceptions_enable": False,
}
submit = typer.Typer(help="Submit results to the public board, and verify submissions.", **_TYPER)
board = typer.Typer(help="The public board.", **_TYPER)
SUBMISSIONS: Final = Path("benchmarks/submissions")


@submit.command("prepare")
def prepare_command(
    run: Annotated[Path, typer.Argument(help="Folder of results of a shipped suite.")],
    name: Annotated[str, typer.Option(help="Name on the board.")],
    authors: Annotated[str, typer.Option(help="Who submits.")],
    policy: Annotated[
        str | None, typer.Option(help="As the run was given it; not needed if it is the only one.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of all submissions.")] = SUBMISSIONS,
    about: Annotated[str, typer.Option(help="One or two sentences.")] = "",
    url: Annotated[str, typer.Option(help="Page of the policy.")] = "",
    training_queries: Annotated[
        int | None, typer.Option(min=0, help="Simulated queries that one training has used.")
    ] = None,
    training: Annotated[str, typer.Option(help="How the policy was trained, in words.")] = "",
) -> None:
    """Make a submission from a run: SUITE/NAME in the folder of submissions."""
    from inframind_gym.evaluation.submit.submission import Training, prepare

    with friendly():
        trained = Training(queries=training_queries, about=training)
        texts = {"name": name, "authors": authors, "about": about, "url": url}
        print(prepare(run, out, policy=policy, training=trained, **texts))


@submit.command("verify")
def verify_command(
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
    from inframind_gym.evaluation.pool import available_cores
    from inframind_gym.evaluation.submit.submission import verify

    with friendly():
        for folder in folders:
            many = workers or available_cores()
            print(verify(folder, full=full, seed=seed, workers=many), flush=True)


@board.command("build")
def build_command(
    folder: Annotated[Path, typer.Argument(help="Folder of all submissions.")] = SUBMISSIONS,
    out: Annotated[Path, typer.Option(help="Folder of the pages.")] = Path("site/board"),
) -> None:
    """Build the public board: a page of all suites, and a report of each."""
    from inframind_gym.evaluation.submit.board import build

    with friendly():
        print(build(folder, out))
