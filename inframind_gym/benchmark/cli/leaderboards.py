"""``python -m benchmarks leaderboard`` and ``compare``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from inframind_gym.benchmark.cli.shared import (
    BootstrapSeed,
    Fluid,
    Json,
    Markdown,
    app,
    friendly,
    print_json,
    show_leaderboard,
)
from inframind_gym.benchmark.errors import BenchmarkError


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


def _sides(targets: Sequence[str], policies: Sequence[str] | None) -> list[tuple[Any, Any]]:
    """What is to be compared with what: pairs of `inframind_gym.benchmark.compare.Side`."""
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
