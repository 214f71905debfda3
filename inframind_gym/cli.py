"""`inframind`: what is installed, configuration files, calibration, and pools of servers."""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from inframind_gym import ENVIRONMENTS, __version__
from inframind_gym.benchmark.cli import app as bench_app
from inframind_gym.calibration.commands import calibrate, replay, sim2real
from inframind_gym.configs import find_config, list_configs
from inframind_gym.errors import InfraMindError
from inframind_gym.live.launch.command import app as pool_app
from inframind_gym.live.placement.command import place
from inframind_gym.simulator.placement.cards import load_cluster
from inframind_gym.simulator.placement.demand import load_demand
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workload import load_workload

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
app.command()(calibrate)
app.command()(replay)
app.command()(sim2real)
pool_app.command()(place)
app.add_typer(pool_app, name="pool")
app.add_typer(bench_app, name="bench")
_LOADERS: dict[str, Callable[[Path], object]] = {
    "pools": load_pool,
    "workloads": load_workload,
    "placement/clusters": load_cluster,
    "placement/demands": load_demand,
}


@app.command()
def info() -> None:
    """List environments, pools, workloads and the versions of what they stand on."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_row("inframind_gym", __version__)
    for package in ("gymnasium", "numpy", "numba", "torch", "stable-baselines3"):
        try:
            table.add_row(package, version(package))
        except PackageNotFoundError:
            table.add_row(package, "not installed")
    table.add_row("python", platform.python_version())
    table.add_row("environments", "\n".join(ENVIRONMENTS))
    for kind in _LOADERS:
        table.add_row(kind, "\n".join(list_configs(kind)))
    Console().print(table)


@app.command()
def check(
    kind: Annotated[
        str, typer.Argument(help="pools, workloads, placement/clusters or placement/demands")
    ],
    name_or_path: Annotated[str, typer.Argument(help="a shipped name, or the path of a YAML file")],
) -> None:
    """Check a file of one's own, for example a pool's, and say what is wrong with it."""
    try:
        path = find_config(kind, name_or_path)
        _LOADERS[kind](Path(path))
    except InfraMindError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{path}: valid")
