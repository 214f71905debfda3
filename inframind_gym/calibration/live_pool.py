"""Fit the server cards of a whole pool to calls that its live servers have answered.

`inframind calibrate` fits one server to its log. Servers that share a GPU (or the cores of a CPU)
slow each other, so with `--pool` all are fitted together, with the slowdown of every GPU: all calls
of a gateway's log, or of a live environment's, arrive when they did, and the times at which they
end are compared.
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

from inframind_gym.calibration.server_card import minimise
from inframind_gym.configs import find_config
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.files import read_objects, read_yaml
from inframind_gym.simulator.server.open_loop import replay_requests
from inframind_gym.simulator.server.pool import PoolConfig
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workflow.state import CALL

Calls = NDArray[Any]  # (c,) CALL, in order of submission
CONSTANTS: Final = ("base_s", "per_seq_s", "per_new_token_s")  # of a step, of every model
LEAST_CALLS: Final = 20  # of each model
# Of a search. With 20 samples a generation, four searches of five end where step costs make up for
# a slowdown that is off.
EVALUATIONS: Final = 12_000
SAMPLES: Final = 80


@dataclass(frozen=True)
class PoolFit:
    """Fitted cards.

    Attributes:
        pool: The pool with the cards.
        kept: Aliases of the models whose cards stay as they were: too few calls.
        mismatch: Mismatch of the fitted calls under these cards.
        before: The same under the cards that the pool had.
    """

    pool: PoolConfig
    mismatch: float
    before: float
    kept: tuple[str, ...]


def read_calls(path: Path, pool: PoolConfig) -> Calls:
    """Return the answered calls of a log; answers that were not streamed count by their end.

    Raises:
        InfraMindError: The file cannot be read, or names no model of the pool.
    """
    rows, others = [], set()
    for number, line in read_objects(path):
        if line.get("model") not in pool.aliases:
            others.add(str(line.get("model")))
            continue
        end_s = line.get("last_token_ts") or line.get("end_ts")
        times = line.get("sent_ts"), end_s, line.get("first_token_ts") or math.nan
        counts = line.get("input_toks"), line.get("output_toks"), line.get("priority") or 0.0
        row: tuple[Any, ...] = (*times, *counts)
        if line.get("status") not in ("ok", "truncated", "whole") or None in row:
            continue
        try:
            rows.append((pool.index(line["model"]), *map(float, row)))
        except (TypeError, ValueError):
            raise ConfigError(f"{path}, line {number}: a time or a count is no number") from None
    if not rows:
        known = ", ".join(sorted(others)) or "none"
        raise InfraMindError(
            f"{path}: holds no answered call of a model of pool {pool.name!r}; its models: {known}"
        )
    rows.sort(key=lambda row: row[1])
    model, sent_s, end_s, first_s, prompt, output, priority = np.array(rows).T
    calls, began_s = np.zeros(len(rows), CALL), sent_s.min()
    calls["model"], calls["prompt_tokens"], calls["output_tokens"] = model, prompt, output
    calls["submit_s"], calls["finish_s"] = sent_s - began_s, end_s - began_s
    calls["first_token_s"], calls["priority"] = first_s - began_s, priority
    return calls


def served(record: NDArray[Any], calls: Calls) -> NDArray[Any]:
    """Serve calls again on simulated servers with these cards: (c,) SERVED."""
    server, submit_s = calls["model"].astype(np.int64), calls["submit_s"]
    prompt, output = (
        np.maximum(calls[f"{of}_tokens"], 1).astype(np.int64) for of in ("prompt", "output")
    )
    return replay_requests(record, server, submit_s, prompt, output, calls["priority"])


def mismatch_of(pool: PoolConfig, calls: Calls) -> float:
    """Add up errors relative to the means: of e2e, of the models' mean e2e, and of TTFT."""
    again, submit_s = served(cards(pool), calls), calls["submit_s"]
    e2e_s, found_s = calls["finish_s"] - submit_s, again["finish_s"] - submit_s
    single = np.abs(found_s - e2e_s).mean() / e2e_s.mean()
    server = calls["model"].astype(np.int64)
    means = np.bincount(server, found_s) / np.bincount(server, e2e_s)
    of_models = np.abs(means[np.isfinite(means)] - 1.0).mean()
    timed = np.isfinite(calls["first_token_s"])
    if not timed.any():
        return float(single + of_models)
    ttft_s = (calls["first_token_s"] - submit_s)[timed]
    found_s = (again["first_token_s"] - submit_s)[timed]
    return float(single + of_models + 0.3 * np.abs(found_s - ttft_s).mean() / ttft_s.mean())


def fit_pool(pool: PoolConfig, calls: Calls) -> PoolFit:
    """Fit the step costs of the models and the slowdown of every GPU that several share.

    Args:
        pool: Launch options; the search starts from its step costs.
        calls: Answered by its servers. A model with fewer than LEAST_CALLS keeps its card.

    Raises:
        InfraMindError: Every model has answered too few calls.
    """
    counts = Counter(calls["model"].tolist())
    kept = tuple(alias for m, alias in enumerate(pool.aliases) if counts[m] < LEAST_CALLS)
    if len(kept) == len(pool.aliases):
        raise InfraMindError(
            f"{kept[0]} has answered {counts[0]} calls; {LEAST_CALLS} are needed to fit its card: "
            "let there be more of them"
        )
    fitted = [model for model in pool.models if model.alias not in kept]
    residents = Counter(model.gpu for model in fitted)
    shared = [gpu for gpu in pool.gpus if residents[gpu.name] > 1]
    steps = [[getattr(model.server.step, name) for name in CONSTANTS] for model in fitted]
    slowdowns = [gpu.colocation_slowdown for gpu in shared]
    start = np.log(np.append(np.maximum(steps, 1e-9).ravel(), np.maximum(slowdowns, 1e-2)))
    names = [gpu.name for gpu in shared]

    def mismatch(point: NDArray[np.float64]) -> float:
        return mismatch_of(_with(pool, names, kept, point), calls)

    before = mismatch(start)
    best, least = start, before
    options: dict[str, Any] = {"evaluations": EVALUATIONS, "seed": 0, "samples": SAMPLES}
    for spread in (1.0, 0.3):
        best, least = minimise(mismatch, best, spread=spread, **options)
    return PoolFit(_with(pool, names, kept, best), least, before, kept)


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
    values, models, gpus = iter(np.exp(point).tolist()), [], []
    for model in pool.models:
        if model.alias not in kept:
            constants = {name: next(values) for name in CONSTANTS}
            step = model.server.step.model_copy(update=constants)
            server = model.server.model_copy(update={"step": step, "estimate": False})
            model = model.model_copy(update={"server": server})
        models.append(model)
    slowdowns = dict(zip(shared, values, strict=True))
    for gpu in pool.gpus:
        slowdown = slowdowns.get(gpu.name, gpu.colocation_slowdown)
        gpus.append(gpu.model_copy(update={"colocation_slowdown": slowdown}))
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
            entry["colocation_slowdown"] = float(f"{gpu.colocation_slowdown:.4g}")
    for entry, model in zip(data["models"], fitted.models, strict=True):
        step = model.server.step.model_dump(exclude_defaults=True)
        entry["server"]["step"] = {name: float(f"{value:.4g}") for name, value in step.items()}
        if not model.server.estimate:
            entry["server"].pop("estimate", None)
    head = f"# {path.name} with step costs and slowdowns fitted by {origin}.\n"
    return head + yaml.safe_dump(data, sort_keys=False)
