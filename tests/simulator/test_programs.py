"""Machine code on disk: stale code is never found, and what is damaged or locked stops no run."""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from inframind_gym.simulator import compiler, jit, programs
from inframind_gym.simulator.jit import entry_points, source_digest

ROOT = Path(jit.__file__).parents[2]
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
        rooms = {own, *jit.COMPILER}
        for room in entry_points[k]:
            rooms |= set(room.glob("*.py")) if room.is_dir() else {room}
        assert files_used_by(own, k.py_func.__name__) <= rooms, k


def test_the_walk_finds_constants_of_other_modules() -> None:
    kernel = source_of("inframind_gym.envs.placement_kernel")
    assert kernel is not None
    found = files_used_by(kernel, "drive")
    assert source_of("inframind_gym.simulator.placement.state") in found


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("inframind_gym.envs.placement_kernel", "drive"),
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
    assert source_digest(copied) != before == source_digest(sources)


def test_a_new_folder_deletes_those_that_nobody_used_for_a_week(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    for name, days in {"kernels-a": 8, "kernels-b": 8, "kernels-c": 6, "notes": 99}.items():
        (tmp_path / name).mkdir()
        then = time.time() - days * 86_400.0
        os.utime(tmp_path / name, (then, then))
    assert programs._folder("b") == tmp_path / "kernels-b"  # is there: now it is in use
    assert len(list(tmp_path.iterdir())) == 4
    programs._folder("new")
    assert {path.name for path in tmp_path.iterdir()} == {"kernels-b", "kernels-c", "notes"}


# Files of one function.

SOURCE = """
from pathlib import Path
from inframind_gym.simulator.jit import make_jit

@make_jit(Path(__file__))
def twice(x):
    return 2 * x

@make_jit(Path(__file__))
def wrong(x):
    return x, x
"""
CHILD = "from twice import twice; assert twice(2) == 4; print('done')"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "twice.py").write_text(SOURCE)
    return tmp_path


def fresh(folder: Path, name: str = "twice") -> Any:
    """The function as a new process has it: nothing compiled yet."""
    sys.modules.pop("twice", None)
    sys.path.insert(0, str(folder))
    try:
        return getattr(importlib.import_module("twice"), name)
    finally:
        sys.path.remove(str(folder))


def compilations(function: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """Call the function; how often it was compiled for that."""
    compile_entry, count = compiler.compile_entry, []

    def counted(*arguments: Any) -> Any:
        count.append(arguments)
        return compile_entry(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(compiler, "compile_entry", counted)
        assert function(2) == 4
    return len(count)


def start(folder: Path, code: str) -> subprocess.Popen[str]:
    environment = {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "NUMBA_CACHE_DIR": str(folder / "cache"),
    }
    return subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def test_a_damaged_file_is_compiled_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compilations(fresh(folder), monkeypatch) == 1
    assert compilations(fresh(folder), monkeypatch) == 0
    (path,) = folder.rglob("*.bin")
    damages: list[Callable[[bytes], bytes]] = [cut, flip, lambda data: b""]
    for damage in damages:
        path.write_bytes(damage(path.read_bytes()))
        assert compilations(fresh(folder), monkeypatch) == 1
        assert compilations(fresh(folder), monkeypatch) == 0


def test_other_sources_and_processors_have_code_of_their_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compilations(fresh(folder), monkeypatch) == 1
    (folder / "twice.py").write_text(SOURCE.replace("2 * x", "x + x"))
    source_digest.cache_clear()
    assert compilations(fresh(folder), monkeypatch) == 1
    assert len(list(folder.rglob("*.bin"))) == 2


def test_one_process_compiles_and_the_others_wait(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compilations(fresh(folder), monkeypatch) == 1
    (path,) = folder.rglob("*.bin")
    data = path.read_bytes()
    path.unlink()
    with programs._alone(path, "twice"):
        child = start(folder, CHILD)
        assert child.stderr is not None
        assert "waits for another process, which compiles `twice`" in child.stderr.readline()
        path.write_bytes(data)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "done\n")
    assert "compiling" not in err


def test_a_compilation_that_fails_lets_others_go_on(folder: Path) -> None:
    with pytest.raises(TypeError, match="wrong returns"):
        fresh(folder, "wrong")(1)
    child = start(folder, "from twice import wrong; wrong(1)")
    _, err = child.communicate(timeout=60)
    assert "wrong returns" in err and "waits for" not in err


def test_a_folder_that_cannot_be_written_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "file").write_text("in the way of the folder")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder / "file"))
    assert fresh(folder)(2) == 4
    assert "Set NUMBA_CACHE_DIR to a folder that can be written" in capsys.readouterr().err


def test_a_full_disk_stops_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert fresh(folder)(2) == 4
    error = capsys.readouterr().err
    assert "cannot be kept" in error and "No space left" in error and "NUMBA_CACHE_DIR" in error
