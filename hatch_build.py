"""Build hook of the wheel: adds the trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class TrainersHook(BuildHookInterface[Any]):
    """Adds the trainers to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Put the trainers into the wheel."""
        if version == "standard":  # an editable install finds them in the checkout
            root = Path(self.root)
            for pattern in ("*.py", "bid_price/*.py", "configs/*.yaml", "data/*"):
                for folder in ("agents", "baselines"):
                    for path in (root / folder).glob(pattern):
                        target = f"inframind_gym/_laboratory/{path.relative_to(root).as_posix()}"
                        build_data["force_include"][str(path)] = target
