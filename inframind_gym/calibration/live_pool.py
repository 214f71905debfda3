"""Fit the server cards of a whole pool to calls that its live servers have answered.

`inframind calibrate` fits one server to its log. Servers that share a GPU (or the cores of a CPU)
slow each other, so all are fitted together here, with the slowdown of every GPU: all calls arrive
when they did, and the times at which they end are compared. The calls are those of episodes, or
those of a gateway's log.
"""

from __future__ import annotations

import math
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
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.files import read_objects, read_yaml
from inframind_gym.simulator.server.pool import PoolConfig
from inframind_gym.simulator.server.replay import replay_requests
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workflow.state import CALL, COMPLETED

CONSTANTS: Final = ("base_s", "per_seq_s", "per_new_token_s")  # of a step, of every model
LEAST_CALLS: Final = 20  # of each model
_ANSWERED: Final = ("ok", "truncated", "whole")  # status of calls that have an answer
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
        kept: Aliases of the models whose cards stay as they were: too few calls.
        mismatch: Mismatch of the fitted episodes under these cards.
        before: The same under the cards that the pool had.
        calls: Number of calls compared.
    """

    pool: PoolConfig
    mismatch: float
    before: float
    calls: int
    kept: tuple[str, ...] = ()


def read_calls(path: Path, pool: PoolConfig) -> Episode:
    """Return the answered calls of a gateway's log, or of a live environment's, as an episode.

    Answers that were not streamed count too: their end is known.

    Raises:
        InfraMindError: The file cannot be read, or names no model of the pool.
    """
    rows, failed, others = [], 0, set()
    for number, line in read_objects(path):
        alias = line.get("model")
        if alias not in pool.aliases:
            others.add(str(alias))
            continue
        end_s = line.get("last_token_ts") or line.get("end_ts")
        tokens = line.get("input_toks"), line.get("output_toks")
        if line.get("status") not in _ANSWERED or None in (line.get("sent_ts"), end_s, *tokens):
            failed += 1
            continue
        row = (pool.index(alias), line["sent_ts"], end_s, line.get("first_token_ts"), *tokens)
        try:
            rows.append(tuple(math.nan if x is None else float(x) for x in row))
        except (TypeError, ValueError):
            raise ConfigError(f"{path}, line {number}: a time or a count is no number") from None
        rows[-1] += (float(line.get("priority") or 0.0),)
    if not rows:
        known = ", ".join(sorted(others)) or "none"
        raise InfraMindError(
            f"{path}: holds no answered call of a model of pool {pool.name!r}; its models: {known}"
        )
    model, sent_s, end_s, first_s, prompt, output, priority = np.array(rows).T
    order = np.argsort(sent_s, kind="stable")
    calls = np.zeros(len(rows), CALL)
    began_s = sent_s.min()
    for name, column in (
        *(("model", model), ("prompt_tokens", prompt), ("output_tokens", output)),
        *(("submit_s", sent_s - began_s), ("finish_s", end_s - began_s)),
        *(("first_token_s", first_s - began_s), ("priority", priority)),
    ):
        calls[name] = column[order]
    per_min = 60.0 * len(rows) / max(float(calls["submit_s"][-1]), 1e-9)
    return Episode(per_min, 0, calls, np.zeros(0, COMPLETED), failed)


def fit_pool(pool: PoolConfig, episodes: Sequence[Episode], *, all_models: bool = True) -> PoolFit:
    """Fit the step costs of the models and the slowdown of every GPU that several share.

    Args:
        pool: Launch options; the search starts from its step costs.
        episodes: Played on its servers.
        all_models: False: a model that has answered too few calls keeps its card.

    Raises:
        InfraMindError: A model, or with `all_models` off every model, has answered too few calls.
    """
    counts = Counter(int(m) for episode in episodes for m in episode.calls["model"])
    rare = [alias for m, alias in enumerate(pool.aliases) if counts[m] < LEAST_CALLS]
    if rare and (all_models or len(rare) == len(pool.aliases)):
        m = pool.index(rare[0])
        raise InfraMindError(
            f"{rare[0]} has answered {counts[m]} calls; {LEAST_CALLS} are needed to fit its "
            "card: let there be more of them"
        )
    fitted = [model.alias not in rare for model in pool.models]
    residents = Counter(
        model.gpu for model, is_fitted in zip(pool.models, fitted, strict=True) if is_fitted
    )
    shared = [gpu for gpu in pool.gpus if residents[gpu.name] > 1]
    names = [gpu.name for gpu in shared]
    steps = [
        [getattr(model.server.step, name) for name in CONSTANTS]
        for model in pool.models
        if model.alias not in rare
    ]
    slowdowns = [gpu.colocation_slowdown for gpu in shared]
    start = np.log(
        np.append(np.maximum(steps, _LEAST_S).ravel(), np.maximum(slowdowns, _LEAST_SLOWDOWN))
    )
    replays = [_Replay(episode) for episode in episodes]

    def mismatch(point: NDArray[np.float64]) -> float:
        record = cards(_with(pool, names, rare, point))
        return float(np.mean([replay.mismatch(record) for replay in replays]))

    before = mismatch(start)
    best, least = start, before
    for spread in (1.0, 0.3):
        best, least = minimise(
            mismatch, best, spread=spread, evaluations=_EVALUATIONS, seed=0, samples=_SAMPLES
        )
    found = _with(pool, names, rare, best)
    return PoolFit(found, least, before, sum(counts.values()), tuple(rare))


def mismatch_of(pool: PoolConfig, episode: Episode) -> float:
    """Return the mismatch of an episode under a pool's cards, as `fit_pool` counts it."""
    return _Replay(episode).mismatch(cards(pool))


def served_s(pool: PoolConfig, episode: Episode) -> NDArray[np.float64]:
    """Return the latencies (c,) of the calls of an episode under a pool's cards."""
    served = _Replay(episode).served(cards(pool))
    return np.asarray(served["finish_s"] - episode.calls["submit_s"], np.float64)


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

    def served(self, record: NDArray[Any]) -> NDArray[Any]:
        """Serve the calls on simulated servers with these cards."""
        return replay_requests(
            record, self._server, self._submit_s, self._prompt, self._output, self._priority
        )

    def mismatch(self, record: NDArray[Any]) -> float:
        """Add up errors relative to the means: of e2e, of the models' mean e2e, and of TTFT."""
        served = self.served(record)
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


def _with(
    pool: PoolConfig, shared: Sequence[str], kept: Sequence[str], point: NDArray[np.float64]
) -> PoolConfig:
    """Return the pool with other constants.

    Args:
        pool: The pool.
        shared: Names of the GPUs that several models share.
        kept: Aliases of the models that keep theirs.
        point: Logarithms of the CONSTANTS, model by model, then of the shared GPUs' slowdowns.
    """
    values = np.exp(point).tolist()
    models, used = [], 0
    for model in pool.models:
        if model.alias in kept:
            models.append(model)
            continue
        constants = zip(CONSTANTS, values[used:], strict=False)
        used += len(CONSTANTS)
        step = model.server.step.model_copy(update=dict(constants))
        server = model.server.model_copy(update={"step": step, "estimate": False})
        models.append(model.model_copy(update={"server": server}))
    slowdowns = dict(zip(shared, values[used:], strict=True))
    gpus = [
        gpu.model_copy(
            update={"colocation_slowdown": slowdowns.get(gpu.name, gpu.colocation_slowdown)}
        )
        for gpu in pool.gpus
    ]
    return pool.model_copy(update={"models": tuple(models), "gpus": tuple(gpus)})


def pool_yaml(source: str, fitted: PoolConfig, origin: str) -> str:
    """Return the text of a pool's file, with the cards of `fitted` in place of its own.

    Args:
        source: Name or path of the file that the pool was read from.
        fitted: The pool with fitted cards.
        origin: What they were fitted by, and where its figures are, for the comment.
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
        if not model.server.estimate:
            entry["server"].pop("estimate", None)
    head = f"# {path.name} with step costs and slowdowns fitted by {origin}.\n"
    return head + yaml.safe_dump(data, sort_keys=False)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
