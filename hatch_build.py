"""Build hook of the wheel: adds the trainers, and machine code where INFRAMIND_COMPILE is set.

`make wheel` sets it. What any other build installs compiles at first use.
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
        """Put the trainers into the wheel, and machine code from a folder of the build."""
        if version == "standard":  # an editable install finds them in the checkout
            root = Path(self.root)
            for pattern in ("*.py", "bid_price/*.py", "configs/*.yaml", "data/*"):
                for folder in ("agents", "baselines"):
                    for path in (root / folder).glob(pattern):
                        target = f"inframind_gym/_laboratory/{path.relative_to(root).as_posix()}"
                        build_data["force_include"][str(path)] = target
        if not os.environ.get("INFRAMIND_COMPILE"):
            return
        machine, folder = platform.machine(), Path(self.root, "build", "kernels")
        command = [sys.executable, "-m", "benchmarks.kernels", str(folder)]
        subprocess.run(command, cwd=self.root, check=True)
        build_data["pure_python"] = False
        # The code needs nothing of the C library but its mathematics, under any version.
        build_data["tag"] = f"py3-none-manylinux_2_17_{machine}"
        build_data["force_include"][str(folder / machine)] = f"inframind_gym/_kernels/{machine}"
