"""Fit the server cards of a whole pool to calls that its live servers have answered.

`inframind calibrate` fits one server to its log. Servers that share a GPU (or the cores of a CPU)
slow each other, so with `--pool` all are fitted together, with the slowdown of every GPU: all calls
of a gateway's log, or of a live environment's, arrive when they did, and the times at which they
end are compared.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from numpy.typing import NDArray

from inframind_gym.calibration.request_log import LineSpeed, one_speed
from inframind_gym.calibration.server_card import minimise
from inframind_gym.configs import find_config, validate
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.files import read_objects, read_yaml
from inframind_gym.simulator.server.open_loop import replay_requests
from inframind_gym.simulator.server.pool import PoolConfig, StepCost
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workflow.state import CALL

Calls = NDArray[Any]  # (c,) CALL, in order of submission
CONSTANTS: Final = ("base_s", "per_seq_s", "per_new_token_s")  # of a step, of every model
LEAST_CALLS: Final = 20  # of each model
# Of a search. With 20 samples a generation, four searches of five end where step costs make up for
# a slowdown that is off.
EVALUATIONS: Final = 12_000
SAMPLES: Final = 80
LOGARITHMS: Final = (-40.0, 10.0)  # of constants; a search that runs away overflows


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
        speed = validate(line, LineSpeed, source=f"{path}, line {number}").speed
        try:
            sent_s, end_s, first_s, *numbers = map(float, (*row, speed))
            if not np.isfinite([sent_s, end_s, *numbers]).all():
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            raise ConfigError(f"{path}, line {number}: a time or a count is no number") from None
        rows.append((pool.index(line["model"]), sent_s, end_s, first_s, *numbers))
    if not rows:
        known = ", ".join(sorted(others)) or "none"
        raise InfraMindError(
            f"{path}: holds no answered call of a model of pool {pool.name!r}; its models: {known}"
        )
    rows.sort(key=lambda row: row[1])
    *columns, speeds = np.array(rows).T
    model, sent_s, end_s, first_s, prompt, output, priority = columns
    speed, calls, began_s = one_speed(speeds, path), np.zeros(len(rows), CALL), sent_s.min()
    calls["model"], calls["prompt_tokens"], calls["output_tokens"] = model, prompt, output
    calls["submit_s"], calls["finish_s"] = (sent_s - began_s) * speed, (end_s - began_s) * speed
    calls["first_token_s"], calls["priority"] = (first_s - began_s) * speed, priority
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
    sums_s = np.bincount(server, e2e_s)
    asked = sums_s != 0.0
    of_models = np.abs(np.bincount(server, found_s)[asked] / sums_s[asked] - 1.0).mean()
    timed = np.isfinite(calls["first_token_s"])
    if not timed.any():
        return float(single + of_models)
    ttft_s = (calls["first_token_s"] - submit_s)[timed]
    found_s = (again["first_token_s"] - submit_s)[timed]
    return float(single + of_models + 0.3 * np.abs(found_s - ttft_s).mean() / ttft_s.mean())


def fit_pool(pool: PoolConfig, calls: Calls) -> tuple[PoolConfig, tuple[str, ...]]:
    """Fit the step costs of the models and the slowdown of every GPU that several share.

    The search starts from the pool's own step costs.

    Returns:
        The pool with fitted cards, and the aliases of the models that keep theirs: those with fewer
        than LEAST_CALLS.

    Raises:
        InfraMindError: Every model has answered too few calls.
    """
    counts = np.bincount(calls["model"], minlength=len(pool.models)).tolist()
    fitted = [m for m, count in enumerate(counts) if count >= LEAST_CALLS]
    if not fitted:
        raise InfraMindError(
            f"{pool.aliases[0]} has answered {counts[0]} calls; {LEAST_CALLS} are needed to fit "
            "its card: let there be more of them"
        )
    residents = Counter(pool.models[m].gpu for m in fitted)
    shared = [g for g, gpu in enumerate(pool.gpus) if residents[gpu.name] > 1]

    def with_constants(point: NDArray[np.float64]) -> PoolConfig:
        """Return the pool with constants: logarithms, model by model, then of the slowdowns."""
        constants = np.exp(np.clip(point, *LOGARITHMS)).tolist()
        values, models, gpus = iter(constants), list(pool.models), list(pool.gpus)
        for m in fitted:
            step = models[m].server.step.model_copy(update={n: next(values) for n in CONSTANTS})
            new = {"step": step, "estimate": False, "evidence": None}
            server = models[m].server.model_copy(update=new)
            models[m] = models[m].model_copy(update={"server": server})
        for g in shared:
            gpus[g] = gpus[g].model_copy(update={"colocation_slowdown": next(values)})
        return pool.model_copy(update={"models": tuple(models), "gpus": tuple(gpus)})

    steps = [[getattr(pool.models[m].server.step, name) for name in CONSTANTS] for m in fitted]
    slowdowns = [pool.gpus[g].colocation_slowdown for g in shared]
    best = np.log(np.append(np.maximum(steps, 1e-9).ravel(), np.maximum(slowdowns, 1e-2)))
    options = {"evaluations": EVALUATIONS, "samples": SAMPLES, "seed": 0}
    for spread in (1.0, 0.3):
        best, _ = minimise(
            lambda point: mismatch_of(with_constants(point), calls), best, spread=spread, **options
        )
    kept = tuple(alias for m, alias in enumerate(pool.aliases) if m not in fitted)
    return with_constants(best), kept


def pool_yaml(source: str, fitted: PoolConfig, origin: str) -> str:
    """Return the text of a pool's file, with the cards of `fitted`; a comment has their origin."""
    path = Path(find_config("pools", source))
    data, _ = read_yaml(path)
    data["name"] = f"{fitted.name[:57]}-fitted"  # 64 characters at most
    if str(data.get("description", "")).startswith("Estimated: "):
        data["description"] = data["description"].replace("Estimated", "Fitted", 1)
    for entry, gpu in zip(data["gpus"], fitted.gpus, strict=True):
        if gpu.colocation_slowdown:
            entry["colocation_slowdown"] = float(f"{gpu.colocation_slowdown:.4g}")
    for entry, model in zip(data["models"], fitted.models, strict=True):
        card, step = entry["server"], model.server.step
        if StepCost(**card["step"]) == step:
            continue  # it keeps its card
        constants = step.model_dump(exclude_defaults=True)
        card["step"] = {name: float(f"{value:.4g}") for name, value in constants.items()}
        for of_old_step in ("estimate", "evidence"):
            card.pop(of_old_step, None)
    head = f"# {path.name} with step costs and slowdowns fitted by {origin}.\n"
    return head + yaml.safe_dump(data, sort_keys=False)
