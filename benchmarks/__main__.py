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
    docs: Annotated[Path, typer.Option(help="Folder of the pages.")] = Path("docs"),
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail if a table is out of date.")
    ] = False,
    missing: Annotated[
        bool,
        typer.Option("--missing", help="Print the commands that make what has no valid record."),
    ] = False,
    folder: Annotated[Path, typer.Option(help="Folder of suites and results of --missing.")] = Path(
        "results"
    ),
) -> None:
    """Refresh the tables and plots of docs/results.md from the records."""
    from benchmarks.plan import load_plan
    from benchmarks.recording import missing_commands
    from benchmarks.results import refresh_pages

    with friendly():
        plan = load_plan()
        if missing:
            print("\n".join(missing_commands(plan, folder)) or "# every record is valid")
            return
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
def retrieval(
    half: Annotated[
        str, typer.Option(help='Half of questions and answers: "test" or "tune".')
    ] = "test",
) -> None:
    """Measure retrieval, rewriting, grounding and trimming of the coordination team."""
    from benchmarks.retrieval import report
    from inframind_gym.errors import ConfigError, unknown

    with friendly():
        if half not in ("test", "tune"):
            raise ConfigError(unknown("half", half, ("test", "tune")))
        print(report(half))


if __name__ == "__main__":
    print_in_any_encoding()
    app()
