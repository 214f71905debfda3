"""Fit the constants of pool and workloads to measured runs: ``python -m benchmarks.fit.measured``.

Reads measured cells (`inframind_gym.calibration.measured_runs`), and writes the numbers into copies
of the shipped YAML files; their comments state the origin of each constant. The fit begins with the
means of its priors, so the same cells give the same files whatever is shipped. ``--cross-validate``
also fits without each of the arrival rates in turn and predicts it; ``--workers`` shares these fits
out to processes. ``--keep`` fits nothing: the shipped files are those of the fit on file.

A folder that it writes holds pools, workloads with the draws of their quality, and ``fit.json``,
which is kept as ``benchmarks/fit/fitted/b200-2gpu.json``. A fit without a rate lies in
``without/RATE.json`` as soon as it is done, and is not made again from the same cells.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks.fit.facts import with_facts
from benchmarks.fit.joint import Fit
from benchmarks.fit.posterior import DRAWS, draw, report, to_csv
from benchmarks.fit.shipped import write
from inframind_gym.calibration.measured_runs import MeasuredCell, read_runs
from inframind_gym.calibration.replay import (
    Constants,
    factors_used,
    load_constants,
    predict,
)
from inframind_gym.calibration.replay_choices import HARNESSES
from inframind_gym.calibration.report import cell_rows, summarise
from inframind_gym.errors import friendly
from inframind_gym.files import read_json, replace_text
from inframind_gym.progress import say

FITTED: Final = Path(__file__).resolve().parent / "fitted"  # the fits on file
POOL: Final = "b200-2gpu"  # the servers of the measured runs


def left_out(
    cells: Sequence[MeasuredCell], start: Constants, rate_per_min: float, out: Path
) -> dict[str, Any]:
    """Return the errors on the cells of a rate, of constants that are fitted to all others.

    Methods that were measured at no other rate are left out on both sides. What was found is
    written to the folder `out`, and read from there if it is of the same cells.
    """
    path = out / "without" / f"{rate_per_min:g}.json"
    of_cells = hashlib.sha256(repr(list(cells)).encode()).hexdigest()
    if path.is_file() and (done := read_json(path))["cells"] == of_cells:
        say(f"without {rate_per_min:g} queries/min: {path}")
        return dict(done["errors"])
    say(f"without {rate_per_min:g} queries/min")
    rest = [cell for cell in cells if cell.arrival_rate_per_min != rate_per_min]
    fit = Fit(rest, with_facts(start, rest), neutral=True)
    fit.run()
    seen = {cell.method for cell in rest}
    own = [c for c in cells if c.arrival_rate_per_min == rate_per_min and c.method in seen]
    found = errors(own, fit.constants())
    done = {"cells": of_cells, "errors": found, "values": _rounded(fit.values())}
    replace_text(path, json.dumps(done, indent=1) + "\n")
    return found


def errors(cells: Sequence[MeasuredCell], constants: Constants) -> dict[str, Any]:
    """Return the summary of the errors, by method."""
    return summarise(cell_rows(cells, predict(cells, constants)))


def fit_all(
    cells: Sequence[MeasuredCell], start: Constants, out: Path, kept: Mapping[str, float] | None
) -> dict[str, Any]:
    """Fit all cells and write the files; return constants, posterior and errors by name.

    Args:
        cells: Of all methods.
        start: Constants whose fitted places are overwritten.
        out: Folder of the files.
        kept: Constants by name, which are not fitted again; only their posterior is computed.
    """
    fit = Fit(cells, with_facts(start, cells), first=kept)
    if kept is None:
        fit.run()
    written = write(fit.constants(), out)
    posterior = fit.laplace()
    draws = to_csv(posterior.layout, draw(posterior, DRAWS))
    replace_text(out / "workloads" / "posterior.csv", draws)
    read = replace(fit.constants(), pool=written.pool, profiles=written.profiles)
    return {
        "values": _rounded(fit.values()),
        "length_factors": factors_used(cells, read),
        "posterior": report(posterior, cells, fit.accuracies),
        "fitted": errors(cells, read),
    }


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.6g}") for name, value in values.items()}


def main(
    runs: Annotated[Path, typer.Argument(help="JSON file of measured cells.")],
    out: Annotated[Path, typer.Option(help="Folder for YAML files, posterior.csv and fit.json.")],
    cross_validate: Annotated[
        bool, typer.Option(help="Also leave out each arrival rate in turn.")
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option(help="fit.json whose constants are written, with a posterior about them."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes for fits without a rate, beside the one to all.")
    ] = 1,
) -> None:
    """Fit pool and workloads to measured runs."""
    with friendly(), ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        cells = read_runs(runs, list(HARNESSES))
        start = load_constants(POOL, [cell.dataset for cell in cells])
        anew = replace(start, length_factors={})
        kept = read_json(keep)["values"] if keep else None
        rates = sorted({c.arrival_rate_per_min for c in cells}) if cross_validate else []
        folds = {f"{rate:g}": pool.submit(left_out, cells, anew, rate, out) for rate in rates}
        figures = fit_all(cells, anew if kept is None else start, out, kept)
        figures["left_out"] = {}
        for rate, fold in folds.items():
            replace_text(out / "fit.json", json.dumps(figures, indent=1) + "\n")
            figures["left_out"][rate] = fold.result()
        replace_text(out / "fit.json", json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
