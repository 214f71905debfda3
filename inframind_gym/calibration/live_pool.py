"""Fit the server cards of a whole pool to episodes that its live servers have played.

`inframind calibrate` fits one server to its log. Servers that share a GPU (or the cores of a CPU)
slow each other, so all are fitted together here, with the slowdown of every GPU: all calls arrive
when they did, and the times at which they end are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from numpy.typing import NDArray

from inframind_gym.calibration.fit import minimise
from inframind_gym.calibration.live_episodes import Episode
from inframind_gym.configs import find_config
from inframind_gym.errors import InfraMindError
from inframind_gym.files import read_yaml
from inframind_gym.simulator.server.pool import PoolConfig
from inframind_gym.simulator.server.replay import replay_requests
from inframind_gym.simulator.server.state import cards

CONSTANTS: Final = ("base_s", "per_seq_s", "per_new_token_s")  # of a step, of every model
LEAST_CALLS: Final = 20  # of each model
_LEAST_S: Final = 1e-9  # start of a constant that is 0 in the pool's file
_LEAST_SLOWDOWN: Final = 1e-2
_TTFT_WEIGHT: Final = 0.3
# Of a search. With 20 samples a generation, four searches of five end where step costs make up for
# a slowdown that is off.
_EVALUATIONS: Final = 12_000
_SAMPLES: Final = 80


@dataclass(frozen=True)
class PoolFit:
    """Fitted cards.

    Attributes:
        pool: The pool with the cards.
        mismatch: Mismatch of the fitted episodes under these cards.
        before: The same under the cards that the pool had.
        calls: Number of calls compared.
    """

    pool: PoolConfig
    mismatch: float
    before: float
    calls: int


def fit_pool(pool: PoolConfig, episodes: Sequence[Episode]) -> PoolFit:
    """Fit the step costs of all models and the slowdown of every GPU that several share.

    Args:
        pool: Launch options; the search starts from its step costs.
        episodes: Played on its servers.

    Raises:
        InfraMindError: A model has answered too few calls.
    """
    counts = Counter(int(m) for episode in episodes for m in episode.calls["model"])
    for m, alias in enumerate(pool.aliases):
        if counts[m] < LEAST_CALLS:
            raise InfraMindError(
                f"{alias} has answered {counts[m]} calls; {LEAST_CALLS} are needed to fit its "
                "card: let the episodes have more queries"
            )
    residents = Counter(model.gpu for model in pool.models)
    shared = [gpu for gpu in pool.gpus if residents[gpu.name] > 1]
    names = [gpu.name for gpu in shared]
    steps = [[getattr(model.server.step, name) for name in CONSTANTS] for model in pool.models]
    slowdowns = [gpu.colocation_slowdown for gpu in shared]
    start = np.log(
        np.append(np.maximum(steps, _LEAST_S).ravel(), np.maximum(slowdowns, _LEAST_SLOWDOWN))
    )
    replays = [_Replay(episode) for episode in episodes]

    def mismatch(point: NDArray[np.float64]) -> float:
        record = cards(_with(pool, names, point))
        return float(np.mean([replay.mismatch(record) for replay in replays]))

    before = mismatch(start)
    best, least = start, before
    for spread in (1.0, 0.3):
        best, least = minimise(
            mismatch, best, spread=spread, evaluations=_EVALUATIONS, seed=0, samples=_SAMPLES
        )
    return PoolFit(_with(pool, names, best), least, before, sum(counts.values()))


class _Replay:
    """The calls of an episode, served again in simulation as they arrived."""

    def __init__(self, episode: Episode) -> None:
        calls = episode.calls
        self._server = calls["model"].astype(np.int64)
        self._submit_s = calls["submit_s"]
        self._prompt = np.maximum(calls["prompt_tokens"], 1).astype(np.int64)
        self._output = np.maximum(calls["output_tokens"], 1).astype(np.int64)
        self._priority = calls["priority"]
        self._e2e_s, self._ttft_s = episode.e2e_s, episode.ttft_s
        self._timed = np.isfinite(self._ttft_s)

    def mismatch(self, record: NDArray[Any]) -> float:
        """Add up errors relative to the means: of e2e, of the models' mean e2e, and of TTFT."""
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
    """Return the pool with other constants.

    Args:
        pool: The pool.
        shared: Names of the GPUs that several models share.
        point: Logarithms of the CONSTANTS, model by model, then of the shared GPUs' slowdowns.
    """
    values = np.exp(point).tolist()
    models = []
    for m, model in enumerate(pool.models):
        constants = zip(CONSTANTS, values[m * len(CONSTANTS) :], strict=False)
        step = model.server.step.model_copy(update=dict(constants))
        server = model.server.model_copy(update={"step": step, "estimate": False})
        models.append(model.model_copy(update={"server": server}))
    slowdowns = dict(zip(shared, values[len(models) * len(CONSTANTS) :], strict=True))
    gpus = [
        gpu.model_copy(
            update={"colocation_slowdown": slowdowns.get(gpu.name, gpu.colocation_slowdown)}
        )
        for gpu in pool.gpus
    ]
    return pool.model_copy(update={"models": tuple(models), "gpus": tuple(gpus)})


def pool_yaml(source: str, fitted: PoolConfig, report: Path) -> str:
    """Return the text of a pool's file, with the cards of `fitted` in place of its own.

    Args:
        source: Name or path of the file that the pool was read from.
        fitted: The pool with fitted cards.
        report: File with the figures of the fit.
    """
    path = Path(find_config("pools", source))
    data, _ = read_yaml(path)
    data["name"] = f"{fitted.name}-fitted"
    for entry, gpu in zip(data["gpus"], fitted.gpus, strict=True):
        if gpu.colocation_slowdown:
            entry["colocation_slowdown"] = _rounded(gpu.colocation_slowdown)
    for entry, model in zip(data["models"], fitted.models, strict=True):
        step = model.server.step.model_dump(exclude_defaults=True)
        entry["server"]["step"] = {name: _rounded(value) for name, value in step.items()}
        entry["server"].pop("estimate", None)
    head = (
        f"# {path.name} with step costs and slowdowns fitted by `inframind sim2real`; the figures "
        f"are in {report.name}.\n"
    )
    return head + yaml.safe_dump(data, sort_keys=False)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
