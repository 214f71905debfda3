"""The decorator of this room's compiled entry points, which knows what they rest on."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from inframind_gym._jit import SIMULATOR, inner, make_jit

__all__ = ["inner", "placement_jit"]

_HERE: Final = Path(__file__).parent

placement_jit: Final = make_jit(*SIMULATOR, _HERE, _HERE / "flow")
