"""The posterior of the constants of quality: its draws on file, and how far it can be trusted.

Measured accuracies leave many constants of quality open. `Fit.laplace` gives their normal
distribution about the best constants (a Laplace approximation with the Hessian of Gauss and
Newton); here its draws become the shipped ``envs_configs/workloads/posterior.csv``.

It is checked in two ways. Elliptical slice sampling (Murray, Adams, MacKay 2010) draws from the
prior times the likelihood of accuracies whose logits, not the accuracies themselves, are linear in
the constants. And some draws are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.fit.quality import QualityLayout, accuracy_noise
from inframind_gym.calibration.fit import Vector
from inframind_gym.calibration.measured_runs import MeasuredCell
from inframind_gym.simulator.workflow.topology import STRUCTURES

DRAWS: Final = 144  # so many that their covariance can be exact: twice the constants
# Contrasts of cells whose mix of models is nearly the same: dataset, cost rates from and to.
CONTRASTS: Final = (("gsm_hard", 5.0, 10.0), ("gsm_hard", 10.0, 15.0), ("mmlu_pro", 10.0, 15.0))
CHAIN: Final = 60_000  # steps of the slice sampler, of which a fifth are left out at the start
_HEADER: Final = (
    "# Joint draws from the posterior of the workloads' quality: Laplace approximation about their"
    " YAML values, python -m benchmarks.fit.measured. Draws 2n and 2n + 1 mirror each other."
)


class Posterior(NamedTuple):
    """Normal posterior of the P constants of quality, and accuracies of R cells about its mean."""

    layout: QualityLayout
    mean: Vector  # (P,)
    covariance: Vector  # (P, P)
    accuracy: Vector  # (R,) simulated at the mean
    slope: Vector  # (R, P) its derivatives


def draw(posterior: Posterior, count: int, seed: int = 0) -> Vector:
    """Return (count, P) draws in pairs that mirror each other.

    So the mean of any number of pairs is exact; with at least P pairs, so is the covariance of all.
    """
    half = count // 2
    z = np.random.default_rng(seed).standard_normal((half, len(posterior.mean)))
    if half >= len(posterior.mean):
        left, _, right = np.linalg.svd(z, full_matrices=False)
        z = left @ right * np.sqrt(half)  # the nearest one whose columns are orthogonal
    away = z @ np.linalg.cholesky(posterior.covariance).T
    pairs = np.stack([away, -away], axis=1).reshape(2 * half, -1)
    return np.asarray(posterior.mean + pairs, np.float64)


def columns(layout: QualityLayout, dataset: str) -> dict[str, str]:
    """Return the parameters that a workload's YAML has, by their names in the layout."""
    found = {}
    for name in layout.names():
        owner, _, rest = name.partition(": ")
        if owner != dataset or rest == "aggregation_gain":
            continue
        model, _, ability = rest.partition(": ")
        found[name] = f"models.{model}.{ability}" if ability else f"quality.{rest}"
    return found


def to_csv(layout: QualityLayout, draws: Vector) -> str:
    """Return the draws (N, P) as the text of a CSV file: a row a draw and workload."""
    paths = list(columns(layout, layout.datasets[0]).values())
    lines = [_HEADER, ",".join(("draw", "workload", *paths))]
    names = layout.names()
    for number, x in enumerate(draws):
        values = dict(zip(names, layout.values(x).tolist(), strict=True))
        for dataset in layout.datasets:
            row = (f"{values[name]:.4f}" for name in columns(layout, dataset))
            lines.append(",".join((str(number), dataset, *row)))
    return "\n".join(lines) + "\n"


def report(
    posterior: Posterior,
    cells: Sequence[MeasuredCell],
    simulate: Callable[[Vector], Vector],
    simulated_draws: int = 6,
) -> dict[str, Any]:
    """Return what the posterior says, and the checks of its approximations.

    Args:
        posterior: of the cells' accuracies.
        cells: The R cells.
        simulate: Accuracies (R,) of the cells at given constants (P,).
        simulated_draws: How many draws are simulated.
    """
    sampled = slice_samples(posterior, cells)
    sd, chain_sd = np.sqrt(np.diag(posterior.covariance)), sampled.std(axis=0)
    apart = sampled.mean(axis=0) - posterior.mean
    draws = draw(posterior, DRAWS)[: 2 * simulated_draws : 2]
    said = np.array([simulate(x) for x in draws])
    emulator = _emulator(posterior)
    emulated = np.array([emulator(x) for x in draws])
    return {
        "gains": gains_table(posterior),
        "contrasts": contrasts(posterior, cells),
        "laplace_against_slice_sampling": {
            "samples": len(sampled),
            "largest_shift_of_a_mean_in_sd": float(np.abs(apart / sd).max()),
            "median_ratio_of_sd": float(np.median(chain_sd / sd)),
            "range_of_ratio_of_sd": [float((chain_sd / sd).min()), float((chain_sd / sd).max())],
        },
        "simulated_draws": {
            "draws": simulated_draws,
            "cells": len(cells),
            "rms_accuracy_spread_of_draws": float((said - posterior.accuracy).std()),
            "rms_accuracy_off_emulator": float(np.sqrt(((said - emulated) ** 2).mean())),
        },
    }


def gains_table(posterior: Posterior) -> dict[str, dict[str, dict[str, float]]]:
    """Return mean and sd (logits) of the gains by dataset, and by domain over its datasets.

    Also the sd that the prior has, and the probability that the gain is positive.
    """
    layout, names = posterior.layout, posterior.layout.names()
    _, precision = layout.prior()
    prior = np.linalg.inv(precision)
    rows = [f"structure_gain.{name}" for name in STRUCTURES] + ["aggregation_gain"]
    groups = {dataset: [dataset] for dataset in layout.datasets}
    for domain in dict.fromkeys(layout.domains):
        own = zip(layout.datasets, layout.domains, strict=True)
        groups[domain] = [dataset for dataset, of in own if of == domain]
    table: dict[str, dict[str, dict[str, float]]] = {}
    for group, datasets in groups.items():
        for row in rows:
            weight = np.zeros(len(names))
            weight[[names.index(f"{dataset}: {row}") for dataset in datasets]] = 1 / len(datasets)
            table.setdefault(group, {})[row.removeprefix("structure_gain.")] = {
                "mean": round(float(weight @ posterior.mean), 3),
                "sd": round(float(np.sqrt(weight @ posterior.covariance @ weight)), 3),
                "prior_sd": round(float(np.sqrt(weight @ prior @ weight)), 3),
            }
    return table


def contrasts(posterior: Posterior, cells: Sequence[MeasuredCell]) -> list[dict[str, Any]]:
    """Return measured and posterior differences of accuracy between cost rates, in points."""
    out = []
    for dataset, low, high in CONTRASTS:
        weight = np.zeros(len(cells))
        for rate, sign in ((low, -1.0), (high, 1.0)):
            own = [i for i, c in enumerate(cells) if c.dataset == dataset and c.cost_rate == rate]
            if own:
                weight[own] = sign / len(own)
        if not weight.any():
            continue
        share = np.array([cell.accuracy for cell in cells])
        queries = np.array([cell.num_queries or 500 for cell in cells])
        slope = weight @ posterior.slope
        out.append(
            {
                "dataset": dataset,
                "cost_rates": [low, high],
                "measured": 100.0 * float(weight @ share),
                "measured_sd": 100.0 * float(np.sqrt(weight**2 @ (share * (1 - share) / queries))),
                "posterior": 100.0 * float(weight @ posterior.accuracy),
                "posterior_sd": 100.0 * float(np.sqrt(slope @ posterior.covariance @ slope)),
            }
        )
    return out


def slice_samples(
    posterior: Posterior, cells: Sequence[MeasuredCell], steps: int = CHAIN, seed: int = 0
) -> Vector:
    """Return (S, P) samples of the emulated posterior, by elliptical slice sampling."""
    mean, precision = posterior.layout.prior()
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(np.linalg.inv(precision))
    whiten = np.linalg.inv(np.linalg.cholesky(accuracy_noise(cells)))
    measured = np.array([cell.accuracy for cell in cells])
    accuracy = _emulator(posterior)

    def log_likelihood(away: Vector) -> float:
        r = whiten @ (accuracy(mean + away) - measured)
        return float(-0.5 * r @ r)

    at = posterior.mean - mean
    level, kept = log_likelihood(at), []
    for step in range(steps):
        other = root @ rng.standard_normal(len(at))
        floor = level + np.log(rng.random())
        angle = rng.uniform(0.0, 2.0 * np.pi)
        low, high = angle - 2.0 * np.pi, angle
        while True:
            tried = at * np.cos(angle) + other * np.sin(angle)
            level = log_likelihood(tried)
            if level > floor:
                break
            low, high = (angle, high) if angle < 0.0 else (low, angle)
            angle = rng.uniform(low, high)
        at = tried
        if step >= steps // 5 and step % 10 == 0:
            kept.append(mean + at)
    return np.array(kept)


def _emulator(posterior: Posterior) -> Callable[[Vector], Vector]:
    """Return accuracies (R,) as a function of constants (P,), linear in their logits."""
    share = np.clip(posterior.accuracy, 1e-3, 1.0 - 1e-3)
    slope = posterior.slope / (share * (1.0 - share))[:, None]
    logit = np.log(share / (1.0 - share)) - slope @ posterior.mean

    def accuracy(x: Vector) -> Vector:
        return np.asarray(1.0 / (1.0 + np.exp(-logit - slope @ x)), np.float64)

    return accuracy
