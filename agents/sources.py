"""Which code a training rests on, as a digest."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
AGENTS: Final = ("inframind_gym", "envs_configs", "agents")  # folders of what agents.train runs
APART: Final = (  # rooms on which no training rests: editing them makes none stale
    "baselines/placement",
    "envs_configs/placement",
    "inframind_gym/calibration",
    "inframind_gym/placement",
    "inframind_gym/prompts",
    "inframind_gym/serving/launch",
    "inframind_gym/serving/vllm",
    "inframind_gym/sim2real",
    "inframind_gym/tasks/sandbox",
)
_SOURCES: Final = (".py", ".yaml", ".npy", ".npz", ".gz")


@cache
def sources_digest(folders: tuple[str, ...] = AGENTS) -> str:
    """Digest of the code, configurations and data in folders of the checkout, without APART."""
    apart = {ROOT / room for room in APART}
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in _SOURCES and apart.isdisjoint(path.parents):
                digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()
