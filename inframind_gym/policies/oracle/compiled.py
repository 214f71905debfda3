"""The decorator of this room's compiled entry points, which knows what they rest on."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from inframind_gym.simulator.jit import SIMULATOR, make_jit

jit: Final = make_jit(*SIMULATOR, Path(__file__).parent)
