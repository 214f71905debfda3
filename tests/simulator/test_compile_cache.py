"""The cache of compiled code: an edit of anything that is compiled in makes its entries stale."""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from inframind_gym.simulator import jit as _jit
from inframind_gym.simulator import programs
from inframind_gym.simulator.compile_cache import keep_folder
from inframind_gym.simulator.jit import entry_points, source_digest

ROOT = Path(_jit.__file__).parents[2]
PACKAGES = ("inframind_gym", "agents", "baselines")
DECORATORS = ("@jit", "@make_jit", "@placement_jit")


@cache
def modules() -> tuple[str, ...]:
    """Those with compiled entry points."""
    return tuple(
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if any(line.startswith(DECORATORS) for line in path.read_text("utf-8").splitlines())
    )


def kernels() -> list[Any]:
    for module in modules():
        importlib.import_module(module)
    return [k for k in entry_points if k.py_func.__module__.partition(".")[0] in PACKAGES]


def source_of(module: str) -> Path | None:
    path = ROOT / module.replace(".", "/")
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


@cache
def names_of(path: Path) -> tuple[dict[str, tuple[Path, str]], dict[str, set[str]]]:
    """What a module takes from others of ours, and which names each of its own rests on."""
    taken: dict[str, tuple[Path, str]] = {}
    own: dict[str, set[str]] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGES):
            source = source_of(node.module or "")
            taken |= {a.asname or a.name: (source, a.name) for a in node.names if source}
        elif isinstance(node, ast.FunctionDef):
            own[node.name] = {name for part in node.body for name in named_in(part)}
        elif isinstance(node, ast.ClassDef):
            own[node.name] = set()
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in (n for target in targets for n in named_in(target)):
                own[name] = set(named_in(node.value))
    return taken, own


def named_in(node: ast.AST) -> Iterator[str]:
    return (n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def files_used_by(path: Path, name: str) -> set[Path]:
    """The files of ours that a name of a module is compiled from."""
    found: set[tuple[Path, str]] = set()
    waiting = [(path, name)]
    while waiting:
        here = waiting.pop()
        if here in found:
            continue
        found.add(here)
        taken, own = names_of(here[0])
        if here[1] in taken:
            waiting.append(taken[here[1]])
        waiting += [(here[0], other) for other in own.get(here[1], ())]
    return {path for path, name in found if name in {**names_of(path)[0], **names_of(path)[1]}}


def test_all_compiled_code_uses_the_one_decorator() -> None:
    assert len(kernels()) >= len(modules()) > 10
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            assert path.name == "compiler.py" or "njit" not in path.read_text("utf-8"), path


def test_kernels_use_no_file_outside_of_their_sources() -> None:
    for k in kernels():
        own = Path(k.py_func.__code__.co_filename)
        rooms = {own, *_jit.COMPILER}
        for room in entry_points[k]:
            rooms |= set(room.glob("*.py")) if room.is_dir() else {room}
        assert files_used_by(own, k.py_func.__name__) <= rooms, k


def test_the_walk_finds_constants_of_other_modules() -> None:
    groups = source_of("inframind_gym.policies.placement.groups")
    assert groups is not None
    found = files_used_by(groups, "settle_groups")
    assert source_of("inframind_gym.simulator.placement.state") in found


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("inframind_gym.policies.placement.groups", "settle_groups"),
        ("inframind_gym.envs.placement.entry", "drive"),
    ],
)
def test_a_changed_constant_of_another_file_changes_the_folder(
    module: str, name: str, tmp_path: Path
) -> None:
    sources = entry_points[getattr(importlib.import_module(module), name)]
    package = ROOT / "inframind_gym"
    copy = tmp_path / "inframind_gym"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__", "*.npy", "*.gz"))
    copied = tuple(copy / room.relative_to(package) for room in sources)
    before = source_digest(copied)
    state = copy / "simulator/placement/state.py"
    text = state.read_text(encoding="utf-8")
    assert "NONE: Final = -1" in text
    state.write_text(text.replace("NONE: Final = -1", "NONE: Final = -2"), encoding="utf-8")
    source_digest.cache_clear()
    _jit._text.cache_clear()
    assert source_digest(copied) != before == source_digest(sources)


def test_a_new_folder_deletes_those_that_nobody_used_for_a_week(tmp_path: Path) -> None:
    day_s = 86_400.0
    for name, days in {"kernels-a": 8, "kernels-b": 8, "kernels-c": 6, "notes": 99}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel.nbi").touch()
        then = time.time() - days * day_s
        os.utime(tmp_path / name, (then, then))
    keep_folder(tmp_path / "kernels-b", "kernels-*")  # is there: now it is in use
    assert len(list(tmp_path.iterdir())) == 4
    keep_folder(tmp_path / "kernels-new", "kernels-*")
    assert {path.name for path in tmp_path.iterdir()} == {"kernels-b", "kernels-c", "notes"}


def test_a_start_marks_the_folder_of_its_kernels_as_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    folder = tmp_path / "kernels-abc"
    folder.mkdir()
    os.utime(folder, (0.0, 0.0))
    assert programs._folder("abc") == folder
    assert time.time() - folder.stat().st_mtime < 60.0
