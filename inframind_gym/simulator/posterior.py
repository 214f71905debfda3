"""Posterior draws of the quality parameters that measured runs do not identify.

`posterior.csv` in the folder of a workload's file has a row for each draw and workload, and a
column for each parameter, named by its place in the file (`quality.difficulty_sd`). A draw is joint
over the workloads of a folder. `math#7` is the workload `math` with draw 7.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from inframind_gym.errors import ConfigError, unknown
from inframind_gym.files import read_csv

POSTERIOR: Final = "posterior.csv"
_FIRST_COLUMNS: Final = ["draw", "workload"]
_WITH_DRAW: Final = re.compile(r"(.+)#(\d{1,9})", re.DOTALL)

Draws = dict[int, dict[str, float]]  # number of a draw -> place in the workload's file -> value


def split_draw(text: str) -> tuple[str, int | None]:
    """Split `math#7` into the workload and the number of its draw; None without one."""
    match = _WITH_DRAW.fullmatch(text)
    return (match[1], int(match[2])) if match else (text, None)


def draws_of(path: Path) -> Draws:
    """Return the draws of a workload's file; an empty dict if it has no posterior.

    Raises:
        ConfigError: The posterior cannot be read.
    """
    posterior = path.with_name(POSTERIOR)
    if not posterior.is_file():
        return {}
    return _read(posterior, posterior.stat().st_mtime_ns).get(path.stem, {})


def with_draw(path: Path, content: Any, draw: int) -> Any:
    """Return the content of a workload's file with the values of a draw.

    Raises:
        ConfigError: There is no such draw.
    """
    draws = draws_of(path)
    if not draws:
        raise ConfigError(
            f"{path}: has no draws of its quality: {path.with_name(POSTERIOR)} has no row of "
            f"{path.stem!r}. Take a workload that has (inframind check NAME), or leave the draw out"
        )
    if draw not in draws:
        numbers = sorted(draws)
        gaps = any(b != a + 1 for a, b in pairwise(numbers))
        known = numbers if gaps else [f"{numbers[0]} to {numbers[-1]}"]
        raise ConfigError(f"{path}: {unknown('draw', draw, known)}")
    for place, value in draws[draw].items():
        content = _replaced(content, place, value)
    return content


def _replaced(content: Any, place: str, value: float) -> Any:
    """Return a mapping with the value at a dotted place replaced; keys may contain dots."""
    mapping = content if isinstance(content, dict) else {}
    known = [key for key in mapping if place == key or place.startswith(f"{key}.")]
    key = max(known, key=len, default=place.partition(".")[0])
    rest = place[len(key) + 1 :]
    return {**mapping, key: _replaced(mapping.get(key), rest, value) if rest else value}


@lru_cache(maxsize=8)
def _read(path: Path, _mtime_ns: int) -> dict[str, Draws]:
    """Read a posterior: workload -> its draws; lines that begin with "#" are comments."""
    rows = [(line, row) for line, row in read_csv(path) if row and not row[0].startswith("#")]
    names = rows[0][1] if rows else []
    if names[:2] != _FIRST_COLUMNS or len(set(names)) < len(names):
        raise ConfigError(f"{path}: wanted columns draw, workload, and one for each parameter.")
    posterior: dict[str, Draws] = {}
    for line, row in rows[1:]:
        try:
            number = int(row[0])
            values = {
                name: float(text)
                for name, text in zip(names[2:], row[2:], strict=True)
                if text.strip()
            }
        except ValueError:
            raise ConfigError(
                f"{path}:{line}: wanted {len(names)} columns: a whole number, the name of a "
                "workload, and numbers."
            ) from None
        if posterior.setdefault(row[1], {}).setdefault(number, values) is not values:
            raise ConfigError(f"{path}:{line}: draw {number} of {row[1]!r} is there twice.")
    return posterior
