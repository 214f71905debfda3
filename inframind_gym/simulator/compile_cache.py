"""Compiled functions on disk: damaged ones are compiled again, by one process at a time.

numba's own cache fails at every start when one of its files was cut, and lets two first starts
compile the same for minutes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
import shutil
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from numba.core import caching, event

from inframind_gym.progress import say

REMEDY: Final = "Set NUMBA_CACHE_DIR to a folder that can be written."
_STILL_S: Final = 15.0  # between two lines on standard error, where that is no terminal
_STALE_S: Final = 7 * 86_400.0  # without a start that uses a folder, after which it is deleted

_Files: Final[Any] = caching.IndexDataCacheFile  # numba's caches have no types
_Function: Final[Any] = caching.FunctionCache
_Results: Final[Any] = caching.CompileResultCacheImpl


class _CheckedFiles(_Files):  # type: ignore[misc]
    """numba's files of one function; each ends with the sha256 of what it holds."""

    def _dump(self, obj: object) -> bytes:
        data: bytes = super()._dump(obj)
        return data + hashlib.sha256(data).digest()  # unpickling stops before it

    def _load_index(self) -> Any:
        try:
            with open(self._index_path, "rb") as file:
                if pickle.load(file) == self._version:
                    _check(file)
        except FileNotFoundError:
            return {}
        return super()._load_index()

    def _load_data(self, name: str) -> Any:
        with open(self._data_path(name), "rb") as file:
            _check(file)
        return super()._load_data(name)

    def delete(self) -> None:
        """Delete all files of the function that can be deleted."""
        stem = self._index_name.removesuffix(".nbi")
        for path in Path(self._cache_path).glob(f"{stem}*.nb[ic]"):
            try:
                path.unlink()
            except OSError:
                return  # of somebody else: what is compiled is not kept


def _check(file: IO[bytes]) -> None:
    data = file.read()
    if hashlib.sha256(data[:-32]).digest() != data[-32:]:
        raise ValueError(f"{file.name} is cut or damaged")


class _Located(_Results):  # type: ignore[misc]
    """Cache of a function in the given folder or nowhere, as stale code is elsewhere."""

    _locator_classes = (caching.UserProvidedCacheLocator,)


class CheckedCache(_Function):  # type: ignore[misc]
    """Cache of one function in `numba.config.CACHE_DIR`.

    A process that does not find it compiles it while it holds a lock of the operating system, which
    ends with the process, however it ends. Others wait and then load what it has saved.

    Raises:
        RuntimeError: The folder cannot be written.
    """

    _impl_class = _Located

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file: Any = _CheckedFiles(self._cache_path, self._impl.filename_base, stamp)
        self._lock: IO[str] | None = None

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Load a compiled function; without one take the lock, which the caller has to release."""
        found = self._load(signature, target)
        if found is None:
            self._acquire()
            found = self._load(signature, target)  # another process may have saved it
        return found

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Save a compiled function, or say that it cannot be."""
        try:
            super().save_overload(signature, compiled)
        except OSError as error:
            reason = error.strerror or error
            what = f"compiled code cannot be kept in {self._cache_path}: {reason}"
            say(f"inframind_gym: {what}. {REMEDY}")

    def release(self) -> None:
        """Let other processes compile or load."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _load(self, signature: Any, target: Any) -> Any:
        try:
            return super().load_overload(signature, target)
        except Exception as error:  # whatever unpickling a damaged file ends with
            why = f"compiled code that cannot be loaded ({error})"
            say(f"inframind_gym: deletes {why} and compiles it again")
            self._cache_file.delete()
            return None

    def _acquire(self) -> None:
        if self._lock is not None:
            return
        path = Path(self._cache_path) / f"{self._impl.filename_base}.lock"
        try:
            self._lock = path.open("a+", encoding="utf-8")
            try:
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                name = self._py_func.__name__
                what = f"another process, which compiles `{name}` ({path} is locked)"
                say(f"inframind_gym: waits for {what}")
                fcntl.lockf(self._lock, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: two processes may compile the same
            self.release()


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


def use_cache(dispatcher: Any) -> None:
    """Cache what a numba dispatcher compiles, in `numba.config.CACHE_DIR` if that is possible."""
    try:
        cache = CheckedCache(dispatcher.py_func)
    except RuntimeError:  # no folder: see `Announcement`
        return
    compile_one = dispatcher.compile

    def compile_alone(signature: Any) -> Any:
        try:
            return compile_one(signature)
        finally:
            cache.release()

    dispatcher._cache = cache
    dispatcher.compile = compile_alone


class Announcement(event.Listener):
    """Message on standard error while a function is compiled, with the seconds that it takes.

    Args:
        dispatchers: Functions that are announced; those that they compile on the way are not.
    """

    def __init__(self, dispatchers: Any) -> None:
        self._dispatchers = dispatchers
        self._under_way: list[Any] = []
        self._done = threading.Event()
        self._thread = threading.Thread()

    def on_start(self, event: Any) -> None:
        """Announce a compilation."""
        dispatcher = event.data["dispatcher"]
        if dispatcher not in self._dispatchers:
            return
        self._under_way.append(dispatcher)
        if len(self._under_way) == 1:
            self._done.clear()
            kept = isinstance(dispatcher._cache, CheckedCache)
            arguments = (dispatcher.py_func.__name__, kept)
            self._thread = threading.Thread(target=self._tell, args=arguments, daemon=True)
            self._thread.start()

    def on_end(self, event: Any) -> None:
        """Say how long it took."""
        if event.data["dispatcher"] not in self._dispatchers:
            return
        self._under_way.pop()
        if not self._under_way:
            self._done.set()
            self._thread.join()

    def _tell(self, name: str, kept: bool) -> None:
        start_s = time.monotonic()
        later = "later runs take it from the cache"
        if not kept:
            later = f"every run does, as no folder for compiled code can be written. {REMEDY}"
        what = f"inframind_gym: compiling `{name}`"
        say(f"{what}: up to two minutes, longer on a busy machine; {later}")
        terminal = sys.stderr is not None and sys.stderr.isatty()
        while not self._done.wait(1.0 if terminal else _STILL_S):
            passed_s = time.monotonic() - start_s
            say(f"{what}: {passed_s:.0f} s", end="\r" if terminal else "\n")
        say(f"inframind_gym: compiled `{name}` in {time.monotonic() - start_s:.0f} s")
