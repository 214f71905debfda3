"""Fit a server card to the first part of a request log.

The constants of the step cost are found by CMA-ES. How the server schedules (async scheduling,
prefix caching, FACTS §3) is not in the log: it is chosen by which choice explains the fitted
requests better, and what departs from vLLM's defaults, or costs a constant more, must earn its
place by explaining them clearly better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.calibration.log import RequestLog
from inframind_gym.calibration.trial import Candidate, Limits, Options, Trial, check_sizes
from inframind_gym.errors import InfraMindError
from inframind_gym.simulator.server.pool import ServerCard

LEAST_FITTED: Final = 8  # requests without which there is nothing to fit
_GAIN_OF_CHANGE: Final = 0.15  # of the mismatch, that a constant more or another option explains
_GAIN_OF_BLOCK: Final = 0.05  # the same for a longer head that all prompts share


@dataclass(frozen=True)
class Calibration:
    """A card fitted to a log, and the log as the card predicts it."""

    log: RequestLog
    card: ServerCard
    limits: Limits
    fitted: int  # so many requests, the first, were compared with
    fit_fraction: float
    mismatch: float
    submit_s: NDArray[np.float64]  # (n,) arrivals on the engine's clock
    served: NDArray[Any]  # (n,) SERVED, on the same clock
    parameters: dict[str, float | int | bool]  # what was fitted or chosen
    evaluations: int


def calibrate(log: RequestLog, limits: Limits, *, fit_fraction: float = 0.5) -> Calibration:
    """Fit a server card to the first part of a log.

    Args:
        log: The log.
        limits: The server's launch options.
        fit_fraction: Share of the requests, from the first on, to fit; in (0, 1).

    Returns:
        The card and its prediction of the whole log.

    Raises:
        InfraMindError: The fraction is out of range or leaves too few requests, or a request does
            not fit the limits.
    """
    if not 0.0 < fit_fraction < 1.0:
        raise InfraMindError(
            f"fit-fraction must lie between 0 and 1, not {fit_fraction}: a part of the log is "
            "fitted and the rest tells how good the fit is"
        )
    fitted = round(fit_fraction * len(log))
    if fitted < LEAST_FITTED or fitted == len(log):
        raise InfraMindError(
            f"{log.name}: {fitted} of {len(log)} requests would be fitted; at least "
            f"{LEAST_FITTED} are needed, and at least one to check against: take a longer log or "
            "another fit-fraction"
        )
    check_sizes(log, limits)
    trial = Trial(log, limits, fitted)
    best = _choose(trial)
    card = trial.card(best.options, best.constants)
    served = trial.simulate(best.options, best.constants)
    return Calibration(
        log=log,
        card=card,
        limits=limits,
        fitted=fitted,
        fit_fraction=fit_fraction,
        mismatch=best.mismatch,
        submit_s=trial.submit_s,
        served=served,
        parameters=best.constants | best.options.chosen(trial.contended),
        evaluations=trial.evaluations,
    )


def _choose(trial: Trial) -> Candidate:
    """The candidate that explains the fitted requests best without needless constants.

    Where the log hardly tells, vLLM's defaults stand: async scheduling and prefix caching.
    """
    found = [_choose_caching(trial, _first(trial, Options(switch))) for switch in (True, False)]
    best = _prefer_async(*found)
    options = best.options
    best = trial.search(options, best.constants, spread=0.2)
    for extra in (("per_attention_unit_s",), ("per_seq_s",), ("sparse_s", "sparse_tokens")):
        richer = _first(trial, options, extra)
        if richer.beats(best, _GAIN_OF_CHANGE):
            best = richer
    best = trial.search(options, best.constants, spread=0.1)
    # With a constant more, the other way of scheduling may be the better one.
    flipped = replace(options, async_scheduling=not options.async_scheduling)
    return _prefer_async(best, trial.search(flipped, best.constants, spread=0.2))


def _prefer_async(one: Candidate, other: Candidate) -> Candidate:
    """Of two candidates the one with async scheduling, unless the other is clearly better."""
    default, change = (one, other) if one.options.async_scheduling else (other, one)
    return change if change.beats(default, _GAIN_OF_CHANGE) else default


def _first(trial: Trial, options: Options, extra: tuple[str, ...] = ()) -> Candidate:
    """The best constants, the basic ones and `extra`, from several starts."""
    found = (trial.search(options, start, spread=0.5) for start in trial.starts(extra))
    return min(found, key=lambda candidate: candidate.mismatch)


def _choose_caching(trial: Trial, plain: Candidate) -> Candidate:
    """Whether evicted requests found their blocks again, and how long a head all prompts share.

    Without evictions the log does not tell, and it does not matter.
    """
    if not trial.contended or trial.limits.num_kv_blocks is None:
        return plain
    best: Candidate | None = None
    blocks = 0
    while blocks <= trial.most_prefix_blocks():
        options = replace(plain.options, prefix_caching=True, prefix_blocks=blocks)
        start = (best or plain).constants
        found = trial.search(options, start, spread=0.3)
        if best is not None and not found.beats(best, _GAIN_OF_BLOCK):
            break
        best = found
        blocks = max(1, 2 * blocks)
    assert best is not None
    return plain if plain.beats(best, _GAIN_OF_CHANGE) else best
