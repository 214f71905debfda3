"""Build hook of the wheel: adds machine code for this platform (`benchmarks/kernels.py`).

Where it cannot be made, or with INFRAMIND_PURE=1, the wheel is one for every platform, and what it
installs compiles at first use.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelHook(BuildHookInterface[Any]):
    """Makes a wheel for a platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into a folder of the build, and put that into the wheel."""
        if version == "editable" or os.environ.get("INFRAMIND_PURE"):
            return
        machine, folder = platform.machine(), Path(self.root, "build", "kernels")
        command = [sys.executable, "-m", "benchmarks.kernels", str(folder)]
        # pip's isolated builds find what they installed by PYTHONPATH, too.
        path = os.pathsep.join(filter(None, [self.root, os.environ.get("PYTHONPATH")]))
        done = subprocess.run(command, cwd=self.root, env={**os.environ, "PYTHONPATH": path})
        if done.returncode or platform.system() != "Linux":
            self.app.display_warning("no machine code is in the wheel: it is for every platform")
            return
        build_data["pure_python"] = False
        # The code needs nothing of the C library but its mathematics, under any version.
        build_data["tag"] = f"py3-none-manylinux_2_17_{machine}"
        build_data["force_include"][str(folder / machine)] = f"inframind_gym/_kernels/{machine}"
