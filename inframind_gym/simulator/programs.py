"""Machine code of entry points: what came with the package or was kept, or else compiled now.

A wheel of a release carries object files for processors in general (`SHIPPED_FOR`). Without them
the first process compiles, which it says, and keeps the result; others wait for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from inframind_gym.progress import say
from inframind_gym.simulator.native import Program

_PACKAGE: Final = Path(__file__).parents[1]
_STALE_S: Final = 7 * 86_400.0  # without a start that uses a folder, after which it is deleted
_one_thread: Final = threading.RLock()
# By machine: the processors that a wheel's code is for, by LLVM's name, and what they must have.
SHIPPED_FOR: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "x86_64": ("x86-64-v2", ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")),
    "aarch64": ("generic", ()),
}


def load_program(function: Callable[..., object], digest: str, kinds: tuple[Any, ...]) -> Program:
    """Return the machine code of an entry point, loaded for as long as the process lives.

    Args:
        function: the entry point.
        digest: of the sources that are compiled in.
        kinds: of its arguments (`native.kind_of`).
    """
    text = repr((function.__module__, function.__qualname__, digest, kinds))
    symbol = f"{function.__name__}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    with _one_thread:
        folder = shipped()
        data = None if folder is None else _read(folder / f"{symbol}.bin")
        data = data or _compiled(function, digest, kinds, symbol)
        import llvmlite.binding as llvm

        engine = _engine()
        engine.add_object_file(llvm.ObjectFileRef.from_data(data[1:]))
        engine.finalize_object()
        return Program(engine.get_function_address(symbol), data[:1].decode().strip())


def described() -> str:
    """Return where machine code comes from, for people."""
    folder = shipped()
    if folder is not None:
        count, (processor, _) = len(list(folder.glob("*.bin"))), SHIPPED_FOR[folder.name]
        return (
            f"compiled code: came with the package, {count} entry points for {processor}, "
            f"{folder}; what it lacks numba {version('numba')} compiles"
        )
    kept = _folder("").parent
    return f"compiled code: numba {version('numba')} makes it at first use, and keeps it in {kept}"


@cache
def shipped() -> Path | None:
    """Return the folder of the code that came with the package, if this processor can run it.

    INFRAMIND_KERNELS names another folder; set to nothing, that code is left alone.
    """
    setting = os.environ.get("INFRAMIND_KERNELS")
    folder = _PACKAGE / "_kernels" if setting is None else Path(setting or os.devnull)
    machine = platform.machine()
    if machine not in SHIPPED_FOR or not (folder / machine).is_dir():
        return None
    import llvmlite.binding as llvm

    has = llvm.get_host_cpu_features()
    _, needed = SHIPPED_FOR[machine]
    return folder / machine if all(has.get(feature) for feature in needed) else None


def _compiled(
    function: Callable[..., object], digest: str, kinds: tuple[Any, ...], symbol: str
) -> bytes:
    """Return kind of the result, one letter, and object file for this machine's processor."""
    import llvmlite.binding as llvm

    # numba's two variables; what a wheel carries is compiled with them.
    cpu = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    features = os.environ.get("NUMBA_CPU_FEATURES")
    if features is None:
        features = llvm.get_host_cpu_features().flatten()
    made_for = repr((cpu, features, version("numba"), version("llvmlite")))
    path = _folder(digest) / f"{symbol}-{hashlib.sha256(made_for.encode()).hexdigest()[:8]}.bin"
    if data := _read(path):
        return data
    with _alone(path, function.__name__):
        if data := _read(path):  # another process has saved it meanwhile
            return data
        from inframind_gym.simulator.compiler import compile_entry

        start_s, what = time.monotonic(), f"`{function.__name__}`"
        say(f"inframind_gym: compiling {what}: up to a minute, later runs take it from the cache")
        result, code = compile_entry(function, kinds, symbol, cpu, features)
        say(f"inframind_gym: compiled {what} in {time.monotonic() - start_s:.0f} s")
        data = result.ljust(1).encode() + code
        new = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            new.write_bytes(data + hashlib.sha256(data).digest())
            new.replace(path)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            say(
                f"inframind_gym: compiled code cannot be kept in {path.parent}: "
                f"{error.strerror or error}. Set NUMBA_CACHE_DIR to a folder that can be written."
            )
        return data


def _read(path: Path) -> bytes | None:
    """Return what a file holds before the sha256 of that; None where it is damaged or missing."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data[:-32] if hashlib.sha256(data[:-32]).digest() == data[-32:] else None


@contextmanager
def _alone(path: Path, name: str) -> Iterator[None]:
    """Keep other processes from making the same file; wait where one does.

    The lock is the operating system's: it ends with its process, however that ends.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock").open("a")
    except OSError:  # nothing can be kept there, which is said later
        yield
        return
    with lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            say(f"inframind_gym: waits for another process, which compiles `{name}`")
            fcntl.lockf(lock, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: two processes may compile the same
            pass
        yield


def _folder(digest: str) -> Path:
    """Return the folder of machine code from sources of that digest.

    It is below NUMBA_CACHE_DIR where that is set, else in the package, or in the user's cache where
    the package cannot be written to. A new one deletes those that no process has started with for
    a week: every change of the sources makes one.
    """
    own = _PACKAGE / "__pycache__"
    if setting := os.environ.get("NUMBA_CACHE_DIR"):
        base = Path(setting)
    elif os.access(own if own.is_dir() else _PACKAGE, os.W_OK):
        base = own
    else:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        base = Path(home if os.path.isabs(home) else os.devnull) / "inframind_gym"  # no home: none
    folder = base / f"kernels-{digest}"
    with suppress(OSError):
        os.utime(folder)
        return folder
    for other in base.glob("kernels-*"):
        with suppress(OSError):
            if time.time() - other.stat().st_mtime > _STALE_S:
                shutil.rmtree(other)
    return folder


@cache
def _engine() -> Any:
    """Return LLVM's loader of object files."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(reloc="pic", codemodel="default")
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
