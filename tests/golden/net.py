"""Frozen results of the areas of the house: what a refactoring must not change.

An area is a module of this folder with `CASES`, a dict from a case's name to a function that plays
it and returns a short text: a digest (`digest_of`), or rounded figures where torch computes.
`python -m tests.golden.net [AREA …]` plays areas and compares them with `<area>.json` beside them;
`--write` writes the files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
Cases = dict[str, Callable[[], str]]


def areas() -> list[str]:
    """Return the names of the areas: modules with a file of frozen results, or with `CASES`."""
    return sorted(
        path.stem
        for path in FOLDER.glob("*.py")
        if "CASES" in path.read_text(encoding="utf-8") and path.stem not in ("net", "test_net")
    )


def cases(area: str) -> Cases:
    """Return the cases of an area."""
    found: Cases = import_module(f"tests.golden.{area}").CASES
    return found


def frozen(area: str) -> dict[str, str]:
    """Return the frozen results of an area; empty where none were written."""
    path = FOLDER / f"{area}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def digest_of(value: Any) -> str:
    """Return 16 hexadecimal digits of plain data, arrays with their types and shapes, or bytes.

    Of a float the first 30 bits count: the last ones differ between processors.
    """
    state = hashlib.sha256()

    def add(item: Any) -> None:
        if isinstance(item, dict):
            for key in sorted(item, key=str):
                add(str(key))
                add(item[key])
        elif isinstance(item, list | tuple):
            state.update(f"[{len(item)}".encode())
            for part in item:
                add(part)
        elif isinstance(item, np.ndarray | np.generic):
            array = np.asarray(item)
            if array.dtype.names:
                add({name: array[name] for name in array.dtype.names})
            elif array.dtype.kind == "O":
                add(array.tolist())
            else:
                state.update(f"{array.dtype.str}{array.shape}".encode())
                if array.dtype.kind == "f":
                    mantissa, exponent = np.frexp(np.nan_to_num(array.astype(np.float64)))
                    array = np.stack([np.rint(mantissa * 2.0**30), exponent])
                state.update(np.ascontiguousarray(array).tobytes())
        elif isinstance(item, float):
            add(np.float64(item))
        elif isinstance(item, bytes):
            state.update(item)
        else:
            state.update(repr(item).encode())

    add(value)
    return state.hexdigest()[:16]


def main() -> int:
    """Play areas, and compare or write; the exit status is 1 if a result differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("areas", nargs="*", metavar="AREA")
    parser.add_argument("--write", action="store_true", help="write the frozen results")
    arguments = parser.parse_args()
    differing = []
    for area in arguments.areas or areas():
        results = {name: play() for name, play in cases(area).items()}
        if arguments.write:
            text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
            (FOLDER / f"{area}.json").write_text(text, encoding="utf-8")
        before = frozen(area)
        differing += [f"{area}: {name}" for name in results if results[name] != before.get(name)]
    print("\n".join(f"differs: {name}" for name in differing) or "all results are as frozen")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
