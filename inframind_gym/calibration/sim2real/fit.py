"""The server cards of a whole pool, fitted to sweeps that its servers have played.

`inframind calibrate` fits one server to its log. Servers that share a GPU (or the cores of a CPU)
slow each other, so here all are fitted together, with the slowdown of every GPU: all calls arrive
when they did, and the times at which they end are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.calibration.cmaes import minimise
from inframind_gym.calibration.sim2real.sweep import Sweep
from inframind_gym.errors import InfraMindError
from inframind_gym.simulator.server.pool import PoolConfig
from inframind_gym.simulator.server.replay import replay_requests
from inframind_gym.simulator.server.state import cards

CONSTANTS: Final = ("base_s", "per_seq_s", "per_new_token_s")  # of a step, of every model
LEAST_CALLS: Final = 20  # of a model, to be fitted
_LEAST_S: Final = 1e-9  # where a constant starts that the pool's file gives as 0
_TTFT_WEIGHT: Final = 0.3
_EVALUATIONS: Final = 4000


@dataclass(frozen=True)
class Fit:
    """Fitted cards.

    Attributes:
        pool: the pool with the cards.
        mismatch: what they leave unexplained of the fitted sweeps.
        before: what the cards that the pool had leave unexplained.
        calls: that were compared.
    """

    pool: PoolConfig
    mismatch: float
    before: float
    calls: int


def fit_pool(pool: PoolConfig, sweeps: Sequence[Sweep]) -> Fit:
    """Fit the step costs of all models and the slowdown of every GPU that several share.

    Args:
        pool: launch options; its step costs are where the search starts.
        sweeps: played on its servers.

    Raises:
        InfraMindError: a model has answered too few calls.
    """
    counts = Counter(int(m) for sweep in sweeps for m in sweep.calls["model"])
    for m, alias in enumerate(pool.aliases):
        if counts[m] < LEAST_CALLS:
            raise InfraMindError(
                f"{alias} has answered {counts[m]} calls; {LEAST_CALLS} are needed to fit its "
                "card: let the sweeps have more queries"
            )
    shared = [gpu.name for gpu in pool.gpus if _residents(pool, gpu.name) > 1]
    start = np.concatenate(
        [
            [np.log(max(getattr(model.server.step, name), _LEAST_S)) for name in CONSTANTS]
            for model in pool.models
        ]
        + [[np.log(max(_slowdown(pool, name), 1e-2))] for name in shared]
    )
    replays = [_Replay(sweep) for sweep in sweeps]

    def mismatch(point: NDArray[np.float64]) -> float:
        record = cards(_with(pool, shared, point))
        return float(np.mean([replay.mismatch(record) for replay in replays]))

    before = mismatch(start)
    best, least = start, before
    for spread in (1.0, 0.3):
        best, least = minimise(mismatch, best, spread=spread, evaluations=_EVALUATIONS, seed=0)
    return Fit(_with(pool, shared, best), least, before, sum(counts.values()))


class _Replay:
    """A sweep's calls, to be served again as they arrived."""

    def __init__(self, sweep: Sweep) -> None:
        calls = sweep.calls
        self._server = calls["model"].astype(np.int64)
        self._submit_s = calls["submit_s"]
        self._prompt = np.maximum(calls["prompt_tokens"], 1).astype(np.int64)
        self._output = np.maximum(calls["output_tokens"], 1).astype(np.int64)
        self._priority = calls["priority"]
        self._e2e_s, self._ttft_s = sweep.e2e_s, sweep.ttft_s
        self._timed = np.isfinite(self._ttft_s)

    def mismatch(self, record: NDArray[Any]) -> float:
        """Errors relative to the means: of e2e, of the models' mean e2e, and of TTFT."""
        served = replay_requests(
            record, self._server, self._submit_s, self._prompt, self._output, self._priority
        )
        e2e_s = served["finish_s"] - self._submit_s
        single = np.abs(e2e_s - self._e2e_s).mean() / self._e2e_s.mean()
        means = np.bincount(self._server, e2e_s) / np.bincount(self._server, self._e2e_s)
        of_models = np.abs(means[np.isfinite(means)] - 1.0).mean()
        timed = self._timed
        if not timed.any():
            return float(single + of_models)
        ttft_s = (served["first_token_s"] - self._submit_s)[timed]
        first = np.abs(ttft_s - self._ttft_s[timed]).mean() / self._ttft_s[timed].mean()
        return float(single + of_models + _TTFT_WEIGHT * first)


def _with(pool: PoolConfig, shared: Sequence[str], point: NDArray[np.float64]) -> PoolConfig:
    """The pool with other constants: logarithms, model by model, then the GPUs' slowdowns."""
    values = np.exp(point)
    models = []
    for m, model in enumerate(pool.models):
        own = values[m * len(CONSTANTS) : (m + 1) * len(CONSTANTS)]
        step = model.server.step.model_copy(update=dict(zip(CONSTANTS, own.tolist(), strict=True)))
        models.append(
            model.model_copy(update={"server": model.server.model_copy(update={"step": step})})
        )
    slowdowns = dict(zip(shared, values[len(pool.models) * len(CONSTANTS) :].tolist(), strict=True))
    gpus = tuple(
        gpu.model_copy(update={"colocation_slowdown": slowdowns[gpu.name]})
        if gpu.name in slowdowns
        else gpu
        for gpu in pool.gpus
    )
    return pool.model_copy(update={"models": tuple(models), "gpus": gpus})


def _residents(pool: PoolConfig, gpu: str) -> int:
    return sum(model.gpu == gpu for model in pool.models)


def _slowdown(pool: PoolConfig, name: str) -> float:
    return next(gpu.colocation_slowdown for gpu in pool.gpus if gpu.name == name)
