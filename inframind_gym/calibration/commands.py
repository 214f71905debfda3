"""`inframind calibrate`, `inframind replay` and `inframind sim2real`."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from inframind_gym.errors import ConfigError, InfraMindError, friendly, require_within, unknown
from inframind_gym.files import replace_text

# Simulator and live client are imported when a command runs: they compile and load much.


def calibrate(
    log: Annotated[Path, typer.Argument(help="Request log, JSON Lines, in order of arrival.")],
    out: Annotated[Path, typer.Option(help="Server card to write, YAML; with --pool, a pool.")],
    pool: Annotated[
        str | None,
        typer.Option(
            help="Fit all models of a pool together, a name or a YAML file: the limits are its own."
        ),
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="As the server was started with.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="As the server was started with.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Figures to write, JSON.")] = None,
    num_kv_blocks: Annotated[
        int | None,
        typer.Option(
            help="As the server reports at start-up. Default: fitted if the log shows a full cache."
        ),
    ] = None,
    block_size: Annotated[int, typer.Option(help="Tokens in a KV block.")] = 16,
    data_parallel_size: Annotated[
        int | None,
        typer.Option(
            help="As the server was started with; the limits are of one engine. Default: as many "
            "as the log proves."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Alias of the model, in a log of several.")
    ] = None,
    fit_fraction: Annotated[
        float, typer.Option(help="Share of the log to fit; the rest checks the fit.")
    ] = 0.5,
) -> None:
    """Fit a server card to a request log by simulating it, and report the errors.

    With --pool the cards of all models of a gateway's log are fitted together, with the slowdown
    of those that share a GPU; a model with fewer than 20 answers keeps its card.
    """
    from inframind_gym.calibration import server_card
    from inframind_gym.calibration.report import card_yaml, log_report, log_table
    from inframind_gym.calibration.request_log import read_log

    with friendly():
        if pool is not None:
            given = (max_num_seqs, max_num_batched_tokens, num_kv_blocks, data_parallel_size, model)
            if any(option is not None for option in given):
                raise ConfigError("--pool: the file has models and limits; give no option of one.")
            _calibrate_pool(log, pool, out, report, fit_fraction)
            return
        if max_num_seqs is None or max_num_batched_tokens is None:
            raise ConfigError(
                "give --max-num-seqs and --max-num-batched-tokens, as the server was started "
                "with, or --pool."
            )
        limits = server_card.Limits(
            max_num_seqs, max_num_batched_tokens, num_kv_blocks, block_size, data_parallel_size
        )
        calibration = server_card.calibrate(read_log(log, model), limits, fit_fraction=fit_fraction)
        figures, card = log_report(calibration), card_yaml(calibration)
        replace_text(out, card)
        if report is not None:
            _write(report, figures)
    for warning in figures["warnings"]:
        typer.echo(f"warning: {warning}", err=True)
    for note in figures["notes"]:
        typer.echo(f"note: {note}", err=True)
    Console().print(log_table(calibration, figures))
    typer.echo(f"card: {out}" if report is None else f"card: {out}\nreport: {report}")


def _calibrate_pool(
    log: Path, source: str, out: Path, report: Path | None, fit_fraction: float
) -> None:
    """Fit the cards of a pool to the first part of a log, and compare on the rest."""
    from inframind_gym.calibration.live_pool import (
        fit_pool,
        mismatch_of,
        pool_yaml,
        read_calls,
        served_s,
    )
    from inframind_gym.simulator.server.pool import load_pool

    require_within(fit_fraction, 0.05, 0.95, "--fit-fraction")
    pool = load_pool(source)
    episode = read_calls(log, pool)
    count = int(fit_fraction * len(episode.calls))
    first, rest = (replace(episode, calls=part) for part in np.split(episode.calls, [count]))
    fit = fit_pool(pool, [first], all_models=False)
    checked = {"before": mismatch_of(pool, rest), "fitted": mismatch_of(fit.pool, rest)}
    origin = f"`inframind calibrate` to {log.name}, {fit.calls} calls"
    replace_text(out, pool_yaml(source, fit.pool, origin))
    table = Table("model", "calls", box=None, padding=(0, 2, 0, 0))
    for name in ("ms a step, before", "fitted", "call, s", "predicted"):
        table.add_column(name, justify="right")
    e2e_s, found_s = rest.e2e_s, served_s(fit.pool, rest)
    for m, (old, new) in enumerate(zip(pool.models, fit.pool.models, strict=True)):
        of, mine = (episode.calls["model"] == m).sum(), rest.calls["model"] == m
        means = [f"{x[mine].mean():.2f}" if mine.any() else "-" for x in (e2e_s, found_s)]
        step_ms = f"{1e3 * new.server.step.base_s:.3g}"
        told = "kept" if new.alias in fit.kept else step_ms
        table.add_row(old.alias, str(of), f"{1e3 * old.server.step.base_s:.3g}", told, *means)
    Console().print(table)
    if report is not None:
        figures = {
            "log": log.name,
            "pool": pool.name,
            "fit": {"mismatch": fit.mismatch, "before": fit.before, "calls": fit.calls},
            "checked": checked | {"calls": len(rest.calls)},
            "kept": list(fit.kept),
        }
        _write(report, figures)
    typer.echo(
        f"mismatch of the {len(rest.calls)} calls that were not fitted: {checked['before']:.3f} "
        f"before, {checked['fitted']:.3f} fitted\npool: {out}"
    )
    if checked["fitted"] > checked["before"]:
        typer.echo(
            "warning: these cards predict those calls worse than the pool's own. Record more "
            "calls, of quiet and of busy hours, or keep the pool as it is.",
            err=True,
        )


def replay(
    runs: Annotated[Path, typer.Argument(help="JSON file of measured cells.", metavar="RUNS.json")],
    pool: Annotated[str, typer.Option(help="The pool they ran on: a name or a YAML file.")],
    out: Annotated[Path, typer.Option(help="Report to write, JSON.")],
    methods: Annotated[
        str | None,
        typer.Option(help="mas, moa, gptswarm, inframind; commas between. Default: all present."),
    ] = None,
    workloads: Annotated[
        Path | None, typer.Option(help="Folder of workload YAML files. Default: the shipped ones.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Episodes to simulate for every cell.")] = 8,
    fit_lengths: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            help="Arrival rate (queries/min) at which one factor on the answers to bare prompts is "
            "fitted, a method without roles and dataset. Default: the shipped ones, from 50.",
        ),
    ] = None,
) -> None:
    """Simulate measured cells, executed as they were measured, and report the errors.

    Every cell is simulated with its own arrival rate, length and shares of models, topologies and
    strategies, and compared with the measurement: accuracy, latency, attainment of the budget.
    Adaptive methods are replayed by their measured shares, and marked.
    """
    from inframind_gym.calibration import replay
    from inframind_gym.calibration.measured_runs import read_runs
    from inframind_gym.calibration.report import cell_rows, runs_table, summarise

    began = time.monotonic()
    with friendly():
        cells = read_runs(runs, _methods(runs, methods))
        constants = replay.load_constants(pool, [cell.dataset for cell in cells], workloads)
        fitted_at = replay.FITTED_AT_PER_MIN
        if fit_lengths is not None:
            fitted_at = fit_lengths
            constants = replay.fit_lengths(cells, constants, fitted_at, seeds)
        rows = cell_rows(cells, replay.predict(cells, constants, seeds), fitted_at)
        summary = summarise(rows)
        factors = replay.factors_used(cells, constants)
        report = {
            "runs": runs.name,
            "pool": constants.pool.name,
            "seeds": seeds,
            "length_factors": {"fitted_at_per_min": fitted_at, "factors": factors},
        }
        _write(out, {**report, "summary": summary, "cells": rows})
    Console().print(runs_table(summary))
    for method, of in factors.items():
        told = ", ".join(f"{dataset} {factor:.2f}" for dataset, factor in of.items())
        typer.echo(f"{method}: agents' answers times {told}, fitted at {fitted_at:g} queries/min")
    typer.echo(f"{len(cells)} cells in {time.monotonic() - began:.0f} s: {out}")


def _methods(runs: Path, methods: str | None) -> list[str]:
    """Return the methods to replay: those asked for, or all of the file that can be replayed."""
    from inframind_gym.calibration.measured_runs import read_methods
    from inframind_gym.calibration.replay_choices import HARNESSES

    present = read_methods(runs)
    if methods is None:
        wanted = [name for name in present if name in HARNESSES]
        for name in present:
            if name not in HARNESSES:
                typer.echo(f"warning: left out: {unknown('method', name, HARNESSES)}", err=True)
    else:
        wanted = list(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip()))
        for name in wanted:
            if name not in HARNESSES:
                raise ConfigError(f"--methods: {unknown('method', name, HARNESSES)}")
            if name not in present:
                typer.echo(f"warning: {runs.name} holds no cell of {name!r}", err=True)
    chosen = [name for name in wanted if name in present]
    if not chosen:
        raise ConfigError(f"{runs}: no cell of a method that can be replayed.")
    return chosen


def sim2real(
    pool: Annotated[str, typer.Option(help="Pool of live servers: a name or a YAML file.")],
    workload: Annotated[str, typer.Option(help="Workload: a name or a YAML file.")] = "math",
    fit_rates: Annotated[
        str, typer.Option(help="Queries a minute of the episodes that are fitted.")
    ] = "30,120",
    check_rates: Annotated[
        str, typer.Option(help="Queries a minute of the episodes that are predicted.")
    ] = "60,90",
    queries: Annotated[int, typer.Option(min=1, help="Queries of an episode.")] = 90,
    seed: Annotated[int, typer.Option(help="Of the first episode; the others count up.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results/sim2real"),
) -> None:
    """Fit simulated servers to a live pool and compare the two at loads not fitted.

    Writes `report.json`, `requests.jsonl` (every live call) and `pool.yaml` (the pool with the
    fitted cards, for simulated environments) to the folder.
    """
    from inframind_gym.calibration.live_episodes import play_live, play_simulated
    from inframind_gym.calibration.live_pool import fit_pool, pool_yaml
    from inframind_gym.calibration.report import episode_report, pool_report, pool_table
    from inframind_gym.live.config import live_config
    from inframind_gym.live.simulation import LiveSimulation

    with friendly():
        fitted, checked = _rates("fit-rates", fit_rates), _rates("check-rates", check_rates)
        if repeated := set(fitted) & set(checked):
            raise InfraMindError(
                f"{min(repeated):g} queries a minute is among the rates to fit and those to check: "
                "a check must be at a load that was not fitted"
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
                "live": {},
            }
        )
        simulation = LiveSimulation(config, one_query=False)
        episodes = []
        try:
            for number, rate in enumerate((*fitted, *checked)):
                episode = play_live(simulation, rate, seed + number)
                failed = f", {episode.failed} failed" if episode.failed else ""
                typer.echo(
                    f"{rate:g} queries/min: {len(episode.calls)} calls, "
                    f"{episode.e2e_s.mean():.2f} s each{failed}",
                    err=True,
                )
                episodes.append(episode)
        finally:
            simulation.disconnect()
        fit = fit_pool(simulation.pool, episodes[: len(fitted)])
        typer.echo(
            f"fitted to {fit.calls} calls: mismatch {fit.mismatch:.3f}, before {fit.before:.3f}",
            err=True,
        )
        comparisons = [
            episode_report(
                live,
                play_simulated(config, fit.pool, live),
                simulation.pool.aliases,
                fitted=number < len(fitted),
            )
            for number, live in enumerate(episodes)
        ]
        figures = pool_report(simulation.pool, workload, fit, comparisons)
        _write(out / "report.json", figures)
        replace_text(
            out / "pool.yaml",
            pool_yaml(pool, fit.pool, "`inframind sim2real`; figures in report.json"),
        )
    Console().print(pool_table(figures))
    typer.echo(f"report: {out / 'report.json'}\npool with fitted cards: {out / 'pool.yaml'}")


def _rates(option: str, text: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(item) for item in text.split(",") if item.strip())
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise InfraMindError(f"--{option}: {text!r} is no list of positive numbers (30,120)")
    return rates


def _write(path: Path, figures: dict[str, Any]) -> None:
    replace_text(path, json.dumps(figures, indent=2, allow_nan=False) + "\n")
