"""The decorators of compiled placement code, with the files whose text is compiled in."""

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
    _PACKAGE / "envs/placement_kernel.py",
)
