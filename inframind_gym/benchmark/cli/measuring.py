"""``python -m benchmarks speed``."""

from __future__ import annotations

from typing import Annotated

import typer

from inframind_gym.benchmark.cli.shared import (
    Json,
    app,
    friendly,
    print_json,
)


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
    """Measure the speed of the simulator on one core of this machine, and of a training on two."""
    from inframind_gym.benchmark.speed import measure, speed_sheet
    from inframind_gym.benchmark.suite import split_list
    from inframind_gym.benchmark.tables import show

    with friendly():
        figures = measure(split_list(only), repeats=repeats)
        if as_json:
            print_json(figures)
        else:
            show([speed_sheet(figures)])
