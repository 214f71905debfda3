"""`inframind sim2real`: play on live servers, fit a surrogate of them, see how good it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from inframind_gym.errors import InfraMindError
from inframind_gym.files import replace_text


def sim2real(
    pool: Annotated[str, typer.Option(help="pool of live servers: a name or a YAML file")],
    workload: Annotated[str, typer.Option(help="what is asked")] = "math",
    fit_rates: Annotated[
        str, typer.Option(help="queries a minute of the sweeps that are fitted")
    ] = "30,120",
    check_rates: Annotated[
        str, typer.Option(help="queries a minute of the sweeps that are predicted")
    ] = "60,90",
    queries: Annotated[int, typer.Option(min=1, help="in a sweep")] = 90,
    seed: Annotated[int, typer.Option(help="of the first sweep; the others count up")] = 0,
    out: Annotated[Path, typer.Option(help="folder of what is found")] = Path("results/sim2real"),
) -> None:
    """Fit simulated servers to a live pool and compare the two at loads not fitted.

    Writes `report.json`, `requests.jsonl` (every live call) and `pool.yaml` (the pool with the
    fitted cards, for simulated environments) to the folder.
    """
    try:
        figures = run(
            pool,
            workload,
            _rates("fit-rates", fit_rates),
            _rates("check-rates", check_rates),
            queries=queries,
            seed=seed,
            out=out,
            say=lambda text: typer.echo(text, err=True),
        )
    except InfraMindError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    from inframind_gym.calibration.sim2real.report import table

    Console().print(table(figures))
    typer.echo(f"report: {out / 'report.json'}\npool with fitted cards: {out / 'pool.yaml'}")


def run(
    pool: str,
    workload: str,
    fit_rates: tuple[float, ...],
    check_rates: tuple[float, ...],
    *,
    queries: int,
    seed: int,
    out: Path,
    say: Any,
    live: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Play, fit, predict, compare and write.

    Args:
        pool: name or file.
        workload: name or file.
        fit_rates: of the sweeps that are fitted.
        check_rates: of those that are only predicted.
        queries: in a sweep.
        seed: of the first sweep.
        out: folder.
        say: told what is going on.
        live: settings of the client, `serving/vllm/settings.py`.

    Returns:
        The content of `report.json`.

    Raises:
        InfraMindError: the pool cannot be used, no server answers, or too many calls fail.
    """
    from inframind_gym.calibration.sim2real.fit import fit_pool
    from inframind_gym.calibration.sim2real.pool_file import pool_yaml
    from inframind_gym.calibration.sim2real.report import compared, report
    from inframind_gym.calibration.sim2real.sweep import play_live, play_simulated
    from inframind_gym.live.config import live_config
    from inframind_gym.live.simulation import LiveSimulation

    repeated = set(fit_rates) & set(check_rates)
    if repeated:
        raise InfraMindError(
            f"{min(repeated):g} queries a minute is among the rates to fit and those to check: a "
            "check must be at a load that was not fitted"
        )
    out.mkdir(parents=True, exist_ok=True)
    config = live_config(
        {
            "pool": pool,
            "workload": workload,
            "num_queries": queries,
            "observation": "index",
            "record_calls": True,
            "log": str(out / "requests.jsonl"),
            "live": live or {},
        }
    )
    simulation = LiveSimulation(config, one_query=False)
    sweeps = []
    try:
        for number, rate in enumerate((*fit_rates, *check_rates)):
            sweep = play_live(simulation, rate, seed + number)
            say(
                f"{rate:g} queries/min: {len(sweep.calls)} calls, {sweep.e2e_s.mean():.2f} s each"
                + (f", {sweep.failed} failed" if sweep.failed else "")
            )
            sweeps.append(sweep)
    finally:
        simulation.shut()
    fit = fit_pool(simulation.pool, sweeps[: len(fit_rates)])
    say(f"fitted to {fit.calls} calls: mismatch {fit.mismatch:.3f}, before {fit.before:.3f}")
    comparisons = [
        compared(
            sweep,
            play_simulated(config, fit.pool, sweep),
            simulation.pool.aliases,
            fitted=number < len(fit_rates),
        )
        for number, sweep in enumerate(sweeps)
    ]
    figures = report(simulation.pool, workload, fit, comparisons)
    replace_text(out / "report.json", json.dumps(figures, indent=2, allow_nan=False) + "\n")
    replace_text(out / "pool.yaml", pool_yaml(pool, fit.pool, out / "report.json"))
    return figures


def _rates(option: str, text: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(item) for item in text.split(",") if item.strip())
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise InfraMindError(f"--{option}: {text!r} is no list of positive numbers (30,120)")
    return rates
