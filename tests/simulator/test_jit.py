"""Compiled code: kinds of arguments, files that it rests on, machine code on disk, threads."""

from __future__ import annotations

import copy
import gc
import importlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import inframind_gym  # noqa: F401  (registers the environments)
from inframind_gym.simulator import compiler, jit
from inframind_gym.simulator.jit import Bound, ThreadPool, digest_of

ROOT = Path(jit.__file__).parents[2]
PACKAGES = ("inframind_gym", "agents", "baselines")
RECORD = np.dtype([("small", "i2"), ("large", "f8")], align=True)


# Calls


class Part(NamedTuple):
    numbers: NDArray[np.float64]
    table: NDArray[np.int32]  # (n, m)


class World(NamedTuple):
    part: Part
    record: NDArray[Any]


@jit.jit
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


@jit.jit
def fill(out: Any) -> None:
    """Write the number of axes everywhere, and the value 7 into the first element."""
    value = 7
    for index in np.ndindex(out.shape):
        out[index] = value
        value = out.ndim


@jit.jit
def flatten(out: Any) -> None:
    """Write a number through a view, which numba makes by a C function of its own."""
    out.reshape(out.size)[0] = 7


class Notes(NamedTuple):
    """A thread's own."""

    done: NDArray[np.int64]  # (1,) rows


@jit.jit
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


# What code rests on: stale code is never found


def kernels() -> dict[str, str]:
    """Digests of entry points, those of every environment among them."""
    from inframind_gym.envs import placement_kernel, routing_kernel
    from inframind_gym.live.placement import events
    from inframind_gym.teams.assignment import simulate

    entries = (routing_kernel.drive, placement_kernel.drive, simulate._advance)
    return {f"{e.__module__}": digest_of(e.py_func) for e in (*entries, events.begin_interval)}


def test_every_constant_and_function_is_in_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    from inframind_gym.simulator import rng
    from inframind_gym.simulator.placement import episode
    from inframind_gym.simulator.server import engine

    before = kernels()
    assert len(set(before.values())) == 4
    for module, name, value, concerned in (
        (episode, "ONE_STEP", 1e-8, {"placement_kernel"}),
        (engine, "_ONE", np.uint32(2), {"routing_kernel", "simulate"}),
        (engine, "bits", engine.stretch_s, {"routing_kernel", "simulate"}),
        (rng, "_mix", rng.normal, {"routing_kernel", "placement_kernel", "events"}),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, value)
            changed = {of for of, digest in kernels().items() if digest != before[of]}
        assert {of.rpartition(".")[2] for of in changed} == concerned, name
    assert kernels() == before


def test_other_processes_have_the_same_digests_and_fields_are_part_of_the_name() -> None:
    code = "from tests.simulator.test_jit import kernels; print(kernels())"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(kernels()), done.stderr

    class Swapped(NamedTuple):
        table: NDArray[np.int32]
        numbers: NDArray[np.float64]

    kinds = [jit._layout(jit.kind_of(pair(np.zeros(1), np.zeros(1)))) for pair in (Part, Swapped)]
    assert kinds[0] != kinds[1] and kinds[0][1:] == kinds[1][1:]


def test_numba_is_called_in_one_file_alone() -> None:
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        assert path.name == "compiler.py" or "njit" not in path.read_text("utf-8"), path


# Machine code on disk: what is damaged or locked stops no run


SOURCE = """
from inframind_gym.simulator.jit import jit

@jit
def twice(x):
    return 2 * x

@jit
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
    (folder / "twice.py").write_text(SOURCE.replace("2 * x", "x + 1 * x"))
    assert compilations(fresh(folder), monkeypatch) == 1
    assert len(list(folder.rglob("*.bin"))) == 2


def test_one_process_compiles_and_the_others_wait(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compilations(fresh(folder), monkeypatch) == 1
    (path,) = folder.rglob("*.bin")
    data = path.read_bytes()
    path.unlink()
    with jit._file_lock(path, "twice"):
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


def test_a_run_that_fails_waits_for_its_threads() -> None:
    pool, scratch = pool_of(3)
    count = 3_000_000
    rows, out = np.arange(count), np.zeros(count, np.int64)
    for _ in range(2):
        threads = threading.active_count()
        with pytest.raises(TypeError, match="takes no str"):
            pool.run(count, rows, "of the caller's thread", out)
        assert not out[0] and out[-1] == 2 * rows[-1] and out[count // 3 : -1].all()
        out[:] = 0
    pool.run(count, rows, scratch[0], out)
    assert np.array_equal(out, 2 * rows) and threading.active_count() == threads
