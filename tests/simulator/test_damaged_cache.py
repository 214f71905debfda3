"""Compiled code on disk: what is damaged, locked or cannot be kept never stops a run."""

from __future__ import annotations

import fcntl
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest

from inframind_gym.simulator import compile_cache
from inframind_gym.simulator.jit import make_jit

SOURCE = """
from pathlib import Path
from inframind_gym.simulator.jit import make_jit

@make_jit(Path(__file__))
def twice(x):
    return 2 * x
"""
CHILD = "from twice import twice; assert twice(2) == 4; print(sum(twice.stats.cache_hits.values()))"
HOLDER = "from twice import twice; twice._cache._acquire(); print('held', flush=True); input()"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "twice.py").write_text(SOURCE)
    return tmp_path


def fresh(folder: Path) -> Any:
    """The function as a new process has it: nothing compiled yet."""
    sys.modules.pop("twice", None)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("twice").twice
    finally:
        sys.path.remove(str(folder))


def hits(function: Any) -> int:
    assert function(2) == 4
    return sum(function.stats.cache_hits.values())


def start(folder: Path, code: str) -> subprocess.Popen[str]:
    root = Path(compile_cache.__file__).parents[2]
    environment = {
        "PYTHONPATH": os.pathsep.join([str(folder), str(root)]),
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


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [cut, flip, lambda data: b""])
def test_a_damaged_file_is_deleted_and_compiled_again(
    folder: Path, ending: str, damage: Callable[[bytes], bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert hits(fresh(folder)) == 0
    assert hits(fresh(folder)) == 1
    (path,) = folder.rglob(f"*.{ending}")
    path.write_bytes(damage(path.read_bytes()))
    capsys.readouterr()
    assert hits(fresh(folder)) == 0
    assert "deletes compiled code that cannot be loaded" in capsys.readouterr().err
    assert hits(fresh(folder)) == 1


def test_one_process_compiles_and_the_others_wait(folder: Path) -> None:
    ours = fresh(folder)
    ours._cache._acquire()
    child = start(folder, CHILD)
    assert child.stderr is not None
    assert "waits for another process, which compiles `twice`" in child.stderr.readline()
    assert hits(ours) == 0  # saves, and releases the lock
    out, _ = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "1\n")


def test_a_lock_ends_with_its_process(folder: Path) -> None:
    holder = start(folder, HOLDER)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    (lock,) = folder.rglob("*.lock")
    with lock.open("a") as file, pytest.raises(BlockingIOError):
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert hits(fresh(folder)) == 0


def test_a_compilation_that_fails_lets_others_go_on(folder: Path) -> None:
    function = fresh(folder)
    with pytest.raises(numba.TypingError):
        function((1, None))
    assert function._cache._lock is None


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way of the folder")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "file"))
    (tmp_path / "twice.py").write_text(SOURCE)
    assert fresh(tmp_path)(2) == 4
    assert "Set NUMBA_CACHE_DIR to a folder that can be written" in capsys.readouterr().err


def test_a_full_disk_stops_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    function = fresh(folder)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(function._cache._cache_file, "save", full)
    assert function(2) == 4
    error = capsys.readouterr().err
    assert "cannot be kept" in error and "No space left" in error and "NUMBA_CACHE_DIR" in error


def test_seconds_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(compile_cache, "_STILL_S", 0.05)

    def slow(x: int) -> int:
        return x

    dispatcher = make_jit(tmp_path)(slow)
    told = compile_cache.Announcement({dispatcher: ()})
    event = type("Event", (), {"data": {"dispatcher": dispatcher}})
    told.on_start(event)
    told.on_start(event)  # what it compiles on the way
    told.on_end(event)
    time.sleep(0.2)
    told.on_end(event)
    lines = capsys.readouterr().err.splitlines()
    assert "up to two minutes, longer on a busy machine" in lines[0]
    assert lines[1] == "inframind_gym: compiling `slow`: 0 s"
    assert lines[-1] == "inframind_gym: compiled `slow` in 0 s"
