"""Which code a training rests on, as a digest."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
AGENTS: Final = ("inframind_gym", "envs_configs", "agents")  # folders of what agents.train runs
APART: Final = (  # rooms on which no training rests: editing them makes none stale
    "inframind_gym/policies/placement/registry",
    "envs_configs/placement",
    "inframind_gym/calibration",
    "inframind_gym/simulator/placement",
    "inframind_gym/live/prompts",
    "inframind_gym/live/launch",
    "inframind_gym/live/vllm",
    "inframind_gym/tasks/sandbox",
)
_SOURCES: Final = (".py", ".yaml", ".npy", ".npz", ".gz")
INITIAL: Final = (
    "inframind_gym/policies/checkpoints/masrouter"  # what InfraMind's planner begins as
)


@cache
def sources_digest(folders: tuple[str, ...] = AGENTS) -> str:
    """Digest of the code, configurations and data in folders of the checkout, without APART.

    The versions of NumPy and numba, which do the arithmetic, are in it.
    """
    apart = {ROOT / room for room in APART}
    digest = hashlib.sha256(f"{version('numpy')} {version('numba')}\n".encode())
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            counts = path.suffix in _SOURCES or path.is_relative_to(ROOT / INITIAL)
            if counts and path.is_file() and apart.isdisjoint(path.parents):
                digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()
