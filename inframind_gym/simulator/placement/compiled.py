"""The decorator of this room's compiled entry points, which knows what they rest on."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from inframind_gym.simulator.jit import SIMULATOR, inner, make_jit

__all__ = ["inner", "placement_jit"]

_HERE: Final = Path(__file__).parent
_PACKAGE: Final = Path(__file__).parents[2]

placement_jit: Final = make_jit(
    *SIMULATOR,
    _HERE,
    _PACKAGE / "policies/placement/flow",
    _PACKAGE / "envs/placement/observation.py",
    _PACKAGE / "live/placement/events.py",
)
