"""Compiled code: kinds of arguments, files that it rests on, machine code on disk, threads."""

from __future__ import annotations

import ast
import copy
import gc
import importlib
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import inframind_gym  # noqa: F401  (registers the environments)
from inframind_gym.simulator import compiler, jit
from inframind_gym.simulator.jit import Bound, ThreadPool, entry_points, make_jit, source_digest

ROOT = Path(jit.__file__).parents[2]
PACKAGES = ("inframind_gym", "agents", "baselines")
DECORATORS = ("@jit", "@make_jit", "@placement_jit")
RECORD = np.dtype([("small", "i2"), ("large", "f8")], align=True)


# Calls


class Part(NamedTuple):
    numbers: NDArray[np.float64]
    table: NDArray[np.int32]  # (n, m)


class World(NamedTuple):
    part: Part
    record: NDArray[Any]


@make_jit(Path(__file__))
def read(
    world: World, whole: int, real: float, flag: bool, key: Any, out: NDArray[np.float64]
) -> int:
    """Write one number of every argument; return an extent."""
    table = world.part.table
    out[0] = world.part.numbers[1]
    out[1] = table[1, 2]
    out[2] = world.record[0].large
    out[3] = whole
    out[4] = real
    out[5] = 1.0 if flag else 0.0
    out[6] = key >> np.uint64(60)
    world.record[0].small += 1
    return table.shape[1] + table.size


@make_jit(Path(__file__))
def fill(out: Any) -> None:
    """Write the number of axes everywhere, and the value 7 into the first element."""
    value = 7
    for index in np.ndindex(out.shape):
        out[index] = value
        value = out.ndim


@make_jit(Path(__file__))
def flatten(out: Any) -> None:
    """Write a number through a view, which numba makes by a C function of its own."""
    out.reshape(out.size)[0] = 7


class Notes(NamedTuple):
    """A thread's own."""

    done: NDArray[np.int64]  # (1,) rows


@make_jit(Path(__file__))
def double(
    rows: NDArray[np.int64], notes: Notes, out: NDArray[np.int64], first: int, last: int
) -> None:
    """Write twice the row in its place."""
    for i in range(first, last):
        out[rows[i]] += 2 * rows[i]
        notes.done[0] += 1


@pytest.mark.parametrize("call", [read, Bound(read)])
def test_arguments_arrive_and_those_that_are_replaced_are_written(call: Any) -> None:
    part = Part(np.arange(3.0), np.arange(6, dtype=np.int32).reshape(2, 3))
    world, out, other = World(part, np.array([(4, 2.5)], RECORD)), np.zeros(7), np.zeros(7)
    assert call(world, -3, 0.25, True, np.uint64(2**63), out) == 3 + 6
    assert out.tolist() == [1.0, 5.0, 2.5, -3.0, 0.25, 1.0, 8.0]
    call(world, 2, 2.5, False, np.uint64(2**60), other)
    assert other.tolist() == [1.0, 5.0, 2.5, 2.0, 2.5, 0.0, 1.0]
    wide = World(Part(np.full(2, 9.0), np.zeros((4, 5), np.int32)), world.record)
    assert call(wide, 2, 2.5, True, np.uint64(0), out) == 5 + 20
    assert out[0] == 9.0 and world.record["small"].tolist() == [7]


def test_arrays_of_other_kinds_have_code_of_their_own() -> None:
    run = Bound(fill)
    for out in (np.zeros(3), np.zeros(5), np.zeros(2, np.int32), np.zeros((2, 2)), np.zeros(3)):
        run(out)
        assert out.ravel().tolist() == [7.0] + [float(out.ndim)] * (out.size - 1)


@pytest.mark.parametrize(
    "array", [np.zeros(4)[::2], np.zeros((2, 2)).T, np.zeros(9, np.uint8)[1:].view(np.float64)]
)
def test_arrays_that_compiled_code_would_misread_are_refused(array: Any) -> None:
    with pytest.raises(ValueError, match="C order"):
        fill(array)
    with pytest.raises(TypeError, match="takes no list"):
        fill([1, 2])


def test_code_that_needs_numba_is_refused() -> None:
    with pytest.raises(TypeError, match="flatten calls numba_attempt_nocopy_reshape"):
        flatten(np.zeros((2, 3)))


def test_a_copy_writes_into_arrays_of_its_own() -> None:
    run = Bound(fill)
    run(np.zeros(3))
    for twin in (copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        out = np.zeros(3)
        twin(out)
        assert out.tolist() == [7.0, 1.0, 1.0]


_SCATTERED = """
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
import gymnasium as gym
import inframind_gym
from inframind_gym.simulator import jit
jit._engine()
size = PAGES * 4096
for _ in range(3000):  # fill what is free between libraries
    libc.mmap(None, 16 * 4096, 0, 0x22, -1, 0)
holes = [libc.mmap(None, size, 0, 0x22, -1, 0) for _ in range(6)]
libc.mmap(None, 6 << 30, 0, 0x4022, -1, 0)  # what does not fit into a hole lies 6 GB away
for hole in holes[::2]:
    libc.munmap(hole, size)
env = gym.make("InfraMind-Stream-v0")
env.reset(seed=0)
for _ in range(50):
    env.step(3)
"""


@pytest.mark.parametrize("pages", [8, 40])
def test_code_may_lie_far_from_its_constants(pages: int) -> None:
    program = _SCATTERED.replace("PAGES", str(pages))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]


# Sources: stale code is never found


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


def test_entry_points_use_the_one_decorator_and_no_file_outside_of_their_sources() -> None:
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        text = path.read_text("utf-8")
        assert path.name == "compiler.py" or "njit" not in text, path
        if any(line.startswith(DECORATORS) for line in text.splitlines()):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    ours = [e for e in entry_points if e.py_func.__module__.partition(".")[0] in PACKAGES]
    assert len(ours) > 20
    for entry in ours:
        own = Path(entry.py_func.__code__.co_filename)
        rooms = {*jit.COMPILER}
        for room in entry_points[entry]:
            rooms |= set(room.glob("*.py")) if room.is_dir() else {room}
        assert files_used_by(own, entry.py_func.__name__) <= rooms, entry.py_func


def test_a_changed_constant_of_another_file_changes_the_digest(tmp_path: Path) -> None:
    kernel = source_of("inframind_gym.envs.placement_kernel")
    state = source_of("inframind_gym.simulator.placement.state")
    assert kernel is not None and state in files_used_by(kernel, "drive")
    drive: Any = importlib.import_module("inframind_gym.envs.placement_kernel").drive
    package, twin = ROOT / "inframind_gym", tmp_path / "inframind_gym"
    shutil.copytree(package, twin, ignore=shutil.ignore_patterns("__pycache__", "*.npy", "*.gz"))
    copied = tuple(twin / room.relative_to(package) for room in entry_points[drive])
    assert source_digest(copied) == drive.digest
    path = twin / "simulator/placement/state.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("NONE: Final = -1", "NONE: Final = -2"), encoding="utf-8")
    source_digest.cache_clear()
    assert source_digest(copied) != drive.digest


# Machine code on disk: what is damaged or locked stops no run


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


def test_code_is_compiled_once_and_again_when_damaged_or_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compilations(fresh(folder), monkeypatch) == 1
    assert compilations(fresh(folder), monkeypatch) == 0
    (path,) = folder.rglob("*.bin")
    damages: list[Callable[[bytes], bytes]] = [
        lambda data: data[: len(data) // 2],
        lambda data: bytes([data[0], data[1] ^ 1]) + data[2:],
        lambda data: b"",
    ]
    for damage in damages:
        path.write_bytes(damage(path.read_bytes()))
        assert compilations(fresh(folder), monkeypatch) == 1
        assert compilations(fresh(folder), monkeypatch) == 0
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
    with jit._alone(path, "twice"):
        child = start(folder, "from twice import twice; assert twice(2) == 4; print('done')")
        assert child.stderr is not None
        assert "waits for another process, which compiles `twice`" in child.stderr.readline()
        path.write_bytes(data)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "done\n")
    assert "compiling" not in err


def test_a_compilation_that_fails_lets_others_go_on(folder: Path) -> None:
    with pytest.raises(TypeError, match="wrong returns"):
        fresh(folder, "wrong")(1)
    _, err = start(folder, "from twice import wrong; wrong(1)").communicate(timeout=60)
    assert "wrong returns" in err and "waits for" not in err


def test_a_folder_that_cannot_be_written_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "file").write_text("in the way of the folder")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder / "file"))
    assert fresh(folder)(2) == 4
    assert "Set NUMBA_CACHE_DIR to a folder that can be written" in capsys.readouterr().err


# Threads


def pool_of(num_threads: int) -> tuple[ThreadPool, list[Notes]]:
    scratch = [Notes(np.zeros(1, np.int64)) for _ in range(num_threads)]
    return ThreadPool(double, scratch, place=1), scratch


@pytest.mark.parametrize(("count", "threads"), [(0, 1), (1, 1), (63, 1), (64, 2), (1000, 3)])
def test_every_row_is_worked_on_once(count: int, threads: int) -> None:
    pool, scratch = pool_of(3)
    rows, out = np.arange(count), np.zeros(count, np.int64)
    for _ in range(100):
        pool.run(count, rows, scratch[0], out)
    assert out.tolist() == (200 * rows).tolist()
    done = [int(notes.done[0]) for notes in scratch]
    assert sum(done) == 100 * count and not any(done[threads:])


def test_threads_end_with_their_pool() -> None:
    before = set(threading.enumerate())
    pool, scratch = pool_of(4)
    pool.run(1000, np.arange(1000), scratch[0], np.zeros(1000, np.int64))
    started = set(threading.enumerate()) - before
    assert started
    del pool
    gc.collect()
    for thread in started:
        thread.join(10.0)
        assert not thread.is_alive()


def test_a_forked_process_has_threads_of_its_own() -> None:
    pool, scratch = pool_of(2)
    rows, out = np.arange(320), np.zeros(320, np.int64)
    pool.run(320, rows, scratch[0], out)
    out[:] = 0
    child = os.fork()
    if not child:
        pool.run(320, rows, scratch[0], out)
        os._exit(0 if out.tolist() == list(range(0, 640, 2)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
