"""Which files of `inframind_gym` the results of a family rest on.

An edit of a file that no cell of a family ever imports must not refuse the results of that family.
A family names the rooms that it leaves out; the tests run a cell of each and look at what was
imported (`tests/benchmarks/test_bench_provenance.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import inframind_gym

PACKAGE: Final = Path(inframind_gym.__file__).resolve().parent
# Rooms and modules, as paths in the package.
ASIDE: Final = (
    "calibration",
    "cli.py",
    "cmaes.py",
    "serving/launch",
    "sim2real",
)  # tools around it
LIVE: Final = (  # what speaks to servers
    "envs/exporter.py",
    "envs/live.py",
    "envs/router_metrics",
    "orchestration/live.py",
    "placement/live",
    "prompts",
    "serving/vllm",
)
PLACEMENT: Final = (
    "envs/placement.py",
    "envs/placement_live.py",
    "envs/placement_vector.py",
    "placement",
)
ROUTING: Final = ("envs", "orchestration", "quality", "tasks")
_SHARED: Final = (  # of rooms that are left out, what every family imports
    "envs/__init__.py",
    "serving/vllm/__init__.py",
    "serving/vllm/settings.py",
)
_SKIPPED: Final = ("__pycache__", "_configs")  # what is no source; settings hash it where it counts


def simulator_files(left_out: Sequence[str] = ()) -> Iterator[Path]:
    """The package's files, the data beside its sources included.

    Args:
        left_out: Rooms and modules to leave out, as paths in the package.
    """
    for path in sorted(PACKAGE.rglob("*")):
        skipped = set(_SKIPPED) & set(path.relative_to(PACKAGE).parts)
        if path.is_file() and not skipped and not is_left_out(path, left_out):
            yield path


def is_left_out(path: Path, left_out: Sequence[str]) -> bool:
    """Whether a file of the package belongs to what is left out."""
    place = path.relative_to(PACKAGE)
    if place.as_posix() in _SHARED:
        return False
    return any(place.is_relative_to(room) for room in left_out)
