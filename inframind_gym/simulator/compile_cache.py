"""Machine code on disk: what is damaged is made again, by one process at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from inframind_gym.progress import say

REMEDY: Final = "Set NUMBA_CACHE_DIR to a folder that can be written."
_STILL_S: Final = 15.0  # between two lines on standard error, where that is no terminal
_STALE_S: Final = 7 * 86_400.0  # without a start that uses a folder, after which it is deleted


def keep_folder(folder: Path, pattern: str) -> None:
    """Mark a folder of compiled code as used; delete old ones beside it if it is new.

    Every change of the sources makes a new folder. Those that no process has started with for a
    week are deleted. One that still runs compiles again what it lacks.

    Args:
        folder: A folder, which may not exist yet.
        pattern: Names of such folders, e.g. "kernels-*".
    """
    with suppress(OSError):
        os.utime(folder)
        return
    for other in folder.parent.glob(pattern):
        with suppress(OSError):
            if time.time() - other.stat().st_mtime > _STALE_S:
                shutil.rmtree(other)


def read_kept(path: Path) -> bytes | None:
    """Return what a file holds before the sha256 of that; a damaged one is deleted."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    held, digest = data[:-32], data[-32:]
    if hashlib.sha256(held).digest() == digest:
        return held
    say(
        f"inframind_gym: deletes compiled code that cannot be loaded ({path} is cut or damaged) "
        "and compiles it again"
    )
    with suppress(OSError):  # of somebody else: what is compiled is not kept
        path.unlink()
    return None


class Kept:
    """A file that ends with the sha256 of what it holds.

    Args:
        folder: Made where it is missing.
        name: Of the file.

    Attributes:
        possible: Whether the folder can be written.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.bin"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        self.possible = os.access(folder, os.W_OK)

    def load(self) -> bytes | None:
        """Return what was saved, if there is such; a damaged file is deleted."""
        return read_kept(self._path)

    def save(self, data: bytes) -> None:
        """Save machine code, or say that it cannot be."""
        if not self.possible:
            return  # `announced` has said so
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            new.write_bytes(data + hashlib.sha256(data).digest())
            new.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            reason = error.strerror or error
            what = f"compiled code cannot be kept in {self._path.parent}: {reason}"
            say(f"inframind_gym: {what}. {REMEDY}")

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Keep other processes from making the same; wait where one does.

        Args:
            name: Of the function, for people.
        """
        lock = self._locked(name) if self.possible else None
        try:
            yield
        finally:
            if lock is not None:
                lock.close()

    def _locked(self, name: str) -> IO[str] | None:
        path = self._path.with_suffix(".lock")
        lock = None
        try:
            lock = path.open("a+", encoding="utf-8")
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                what = f"another process, which compiles `{name}` ({path} is locked)"
                say(f"inframind_gym: waits for {what}")
                fcntl.lockf(lock, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: two processes may compile the same
            if lock is not None:
                lock.close()
            return None
        return lock


@contextmanager
def announced(name: str, *, kept: bool) -> Iterator[None]:
    """Say on standard error that a function is compiled, and the seconds that it takes.

    Args:
        name: Of the function.
        kept: Whether later runs will find what is compiled.
    """
    done = threading.Event()
    thread = threading.Thread(target=_tell, args=(name, kept, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _tell(name: str, kept: bool, done: threading.Event) -> None:
    start_s = time.monotonic()
    later = "later runs take it from the cache"
    if not kept:
        later = f"every run does, as no folder for compiled code can be written. {REMEDY}"
    what = f"inframind_gym: compiling `{name}`"
    say(f"{what}: up to a minute, longer on a busy machine; {later}")
    terminal = sys.stderr is not None and sys.stderr.isatty()
    while not done.wait(1.0 if terminal else _STILL_S):
        passed_s = time.monotonic() - start_s
        say(f"{what}: {passed_s:.0f} s", end="\r" if terminal else "\n")
    say(f"inframind_gym: compiled `{name}` in {time.monotonic() - start_s:.0f} s")
