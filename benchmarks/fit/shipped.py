"""Copies of the shipped YAML files with fitted constants in their places."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.calibration.replay import Constants, load_constants
from inframind_gym.configs import find_config
from inframind_gym.files import replace_text


def write(constants: Constants, out: Path) -> Constants:
    """Write copies of the shipped pool and workloads with these constants; return them read again.

    Comments and all other settings are those of the shipped files.
    """
    pool = constants.pool
    text = find_config("pools", pool.name).read_text("utf-8")
    for gpu in pool.gpus:
        slowdown = f"{gpu.colocation_slowdown:.3g}"
        text = _set(text, "colocation_slowdown", slowdown, after=f"- {{name: {gpu.name},")
    for model in pool.models:
        step, place = model.server.step, f"alias: {model.alias}\n"
        text = _set(text, "base_s", f"{step.base_s:.4g}", after=place)
        text = _set(text, "per_seq_s", f"{step.per_seq_s:.3e}", after=place)
    path = out / "pools" / f"{pool.name}.yaml"
    replace_text(path, text)
    for dataset, profile in constants.profiles.items():
        text = find_config("workloads", dataset).read_text("utf-8")
        for alias, of in profile.models.items():
            place = f"\n  {alias}:"
            text = _set(text, "share", f"{of.share:.3f}", after=place)
            tokens = f"{of.output_tokens_median:.0f}"
            text = _set(text, "output_tokens_median", tokens, after=place)
            text = _set(text, "ability", f"{of.ability:.2f}", after=place)
        agents = profile.planner.num_agents
        output, quality = profile.output, profile.quality
        for key, value in {
            "num_agents": f"{next(iter(agents))}" if len(agents) == 1 else _flow(agents),
            "topologies": _flow(profile.planner.topologies),
            "strategy_mix": _flow(profile.strategy_mix),
            "sigma_query": f"{output.sigma_query:.3f}",
            "sigma_call": f"{output.sigma_call:.3f}",
            "difficulty_slope": f"{output.difficulty_slope:g}",
            "final_factor": f"{output.final_factor:.3g}",
            "strategy_factor": _flow(output.strategy_factor),
            "overhead_tokens": f"{profile.prompt.overhead_tokens}",
            "role_calls": str(profile.agents.role_calls).lower(),
            "visible_tests": f"{profile.agents.visible_tests:g}",
            "difficulty_sd": f"{quality.difficulty_sd:g}",
            "latent_correlation": f"{quality.latent_correlation:g}",
            "truncated_right_frac": f"{quality.truncated_right_frac:g}",
            "strategy_gain": _flow(quality.strategy_gain),
            "structure_gain": _flow(quality.structure_gain),
        }.items():
            text = _set(text, key, value)
        replace_text(out / "workloads" / f"{dataset}.yaml", text)
    return load_constants(path, list(constants.profiles), out / "workloads")


def _set(text: str, key: str, value: str, *, after: str = "") -> str:
    """Replace the value of the first `key` after a place, outside of comments."""
    head, place, tail = text.partition(after) if after else ("", "", text)
    found = re.search(rf"(?m)^(?!#)(?:.*?\b)?{key}: *(\{{[^}}]*\}}|[^,}}\n]+)", tail)
    if found is None:
        raise BenchmarkError(f"the shipped file has no {key}{f' after {after!r}' if after else ''}")
    return head + place + tail[: found.start(1)] + value + tail[found.end(1) :]


def _flow(shares: Mapping[Any, float]) -> str:
    return "{" + ", ".join(f"{name}: {share:.3f}" for name, share in shares.items()) + "}"
