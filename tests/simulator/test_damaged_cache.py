"""Machine code on disk: what is damaged, locked or cannot be kept never stops a run."""

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

import pytest

from inframind_gym.simulator import compile_cache, compiler, jit
from inframind_gym.simulator.compile_cache import Kept, announced

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


def test_a_damaged_file_is_deleted_and_compiled_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compilations(fresh(folder), monkeypatch) == 1
    assert compilations(fresh(folder), monkeypatch) == 0
    (path,) = folder.rglob("*.bin")
    damages: list[Callable[[bytes], bytes]] = [cut, flip, lambda data: b""]
    for damage in damages:
        path.write_bytes(damage(path.read_bytes()))
        capsys.readouterr()
        assert compilations(fresh(folder), monkeypatch) == 1
        assert "deletes compiled code that cannot be loaded" in capsys.readouterr().err
        assert compilations(fresh(folder), monkeypatch) == 0


def test_other_sources_and_processors_have_code_of_their_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compilations(fresh(folder), monkeypatch) == 1
    (folder / "twice.py").write_text(SOURCE.replace("2 * x", "x + x"))
    jit._text.cache_clear()
    jit.source_digest.cache_clear()
    assert compilations(fresh(folder), monkeypatch) == 1
    assert len(list(folder.rglob("*.bin"))) == 2


def test_one_process_compiles_and_the_others_wait(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compilations(fresh(folder), monkeypatch) == 1
    (path,) = folder.rglob("*.bin")
    data = path.read_bytes()
    path.unlink()
    kept = Kept(path.parent, path.stem)
    with kept.alone("twice"):
        child = start(folder, CHILD)
        assert child.stderr is not None
        assert "waits for another process, which compiles `twice`" in child.stderr.readline()
        path.write_bytes(data)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "done\n")
    assert "compiling" not in err


def test_a_lock_ends_with_its_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = start(
        folder,
        "from pathlib import Path; from inframind_gym.simulator.compile_cache import Kept\n"
        f"with Kept(Path({str(folder)!r}), 'some').alone('some'):\n"
        "    print('held', flush=True); input()",
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with (folder / "some.lock").open("a") as file, pytest.raises(BlockingIOError):
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with Kept(folder, "some").alone("some"):
        pass


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


def test_seconds_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compile_cache, "_STILL_S", 0.05)
    with announced("slow", kept=True):
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert "up to a minute, longer on a busy machine" in lines[0]
    assert lines[1] == "inframind_gym: compiling `slow`: 0 s"
    assert lines[-1] == "inframind_gym: compiled `slow` in 0 s"
