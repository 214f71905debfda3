"""The pool's file with fitted cards in it."""

from __future__ import annotations

from pathlib import Path

import yaml

from inframind_gym.configs import find_config
from inframind_gym.simulator.server.pool import PoolConfig


def pool_yaml(source: str, fitted: PoolConfig, report: Path) -> str:
    """The text of a pool's file, with the cards of `fitted` in place of its own.

    Args:
        source: name or path of the file that the pool was read from.
        fitted: the pool with fitted cards.
        report: where the figures of the fit are.
    """
    path = Path(find_config("pools", source))
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    data["name"] = f"{fitted.name}-fitted"
    for entry, gpu in zip(data["gpus"], fitted.gpus, strict=True):
        if gpu.colocation_slowdown:
            entry["colocation_slowdown"] = _rounded(gpu.colocation_slowdown)
    for entry, model in zip(data["models"], fitted.models, strict=True):
        step = model.server.step.model_dump(exclude_defaults=True)
        entry["server"]["step"] = {name: _rounded(value) for name, value in step.items()}
    head = (
        f"# {path.name} with step costs and slowdowns fitted by `inframind sim2real`; the figures "
        f"are in {report.name}.\n"
    )
    return head + yaml.safe_dump(data, sort_keys=False)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
