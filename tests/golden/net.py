"""Frozen results of the areas of the house: what a refactoring must not change.

An area is a module of this folder with `CASES`, a dict from a case's name to a function that plays
it and returns a short text: a digest (`digest_of`), or rounded figures where torch computes.
`python -m tests.golden.net [AREA …]` plays areas and compares them with `<area>.json` beside them;
`--write` writes the files. `--against CHECKOUT` plays these cases with the packages of another
checkout of this repository too and compares the two.

An area may declare versions: `versions()` returns that of the "simulator" and of cases by name.
They are written with the results, and a result that differs under the same ones is not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
Cases = dict[str, Callable[[], str]]
# A child's packages are those of its working directory, and its tests those of this checkout.
_CHILD = """
import sys, agents, baselines, benchmarks, inframind_gym
sys.path.insert(0, sys.argv.pop(1))
from tests.golden.net import main
sys.exit(main())
"""


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


def versions(area: str) -> dict[str, int]:
    """Return the versions that an area declares; empty where it declares none."""
    declare = getattr(import_module(f"tests.golden.{area}"), "versions", dict)
    return dict(declare())


def frozen(area: str) -> tuple[dict[str, str], dict[str, int]]:
    """Return the frozen results of an area and their versions; empty where none were written."""
    path = FOLDER / f"{area}.json"
    results = dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    declared = results.pop("versions", {})
    return results, declared


def undeclared(area: str, results: dict[str, str], declared: dict[str, int]) -> list[str]:
    """Return the cases whose result differs from the frozen one under the same versions."""
    before, known = frozen(area)
    return [
        name
        for name, result in results.items()
        if declared
        and result != before.get(name, result)
        and all(declared.get(key) == known.get(key) for key in ("simulator", name))
    ]


def played_in(checkout: Path, chosen: list[str]) -> dict[str, dict[str, str]]:
    """Play areas with the packages of another checkout."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(FOLDER.parents[1]), "--json", *chosen],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


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
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="compare with a checkout")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    arguments = parser.parse_args()
    chosen = arguments.areas or areas()
    found = {area: {name: play() for name, play in cases(area).items()} for area in chosen}
    if arguments.json:
        print(json.dumps(found))
        return 0
    against = arguments.against
    expected = played_in(against.resolve(), chosen) if against else {}
    differing = []
    for area, results in found.items():
        if arguments.write:
            declared = versions(area)
            if changed := undeclared(area, results, declared):
                print("raise SIMULATOR_VERSION or the policy's version first; differing cases:")
                print("\n".join(changed))
                return 1
            content = ({"versions": declared} if declared else {}) | results
            text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
            (FOLDER / f"{area}.json").write_text(text, encoding="utf-8")
        before = expected[area] if against else frozen(area)[0]
        differing += [f"{area}: {name}" for name in results if results[name] != before.get(name)]
    count = sum(map(len, found.values()))
    print("\n".join(f"differs: {name}" for name in differing) or f"{count} results are equal")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
