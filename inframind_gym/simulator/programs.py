"""Machine code of entry points: what came with the package or was kept, or else compiled now.

A wheel for a platform carries object files for processors in general (`SHIPPED_FOR`). Without them
a process compiles while it holds a lock of the operating system, which ends with the process,
however it ends. Others wait and then load what it has saved.
"""

from __future__ import annotations

import hashlib
import os
import platform
import threading
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from inframind_gym.simulator.compile_cache import Kept, announced, keep_folder, read_kept
from inframind_gym.simulator.native import Program

_PACKAGE: Final = Path(__file__).parents[1]
_one_thread: Final = threading.RLock()
# By machine: the processors that a wheel's code is for, by LLVM's name, and what they must have.
SHIPPED_FOR: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "x86_64": ("x86-64-v2", ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")),
    "aarch64": ("generic", ()),
}


def load_program(function: Callable[..., object], digest: str, kinds: tuple[Any, ...]) -> Program:
    """Return the machine code of an entry point.

    Args:
        function: the entry point.
        digest: of the sources that are compiled in.
        kinds: of its arguments (`native.kind_of`).
    """
    symbol = symbol_of(function, digest, kinds)
    with _one_thread:
        result, code = _object_file(function, digest, kinds, symbol)
        return Program(_address(code, symbol), result)


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


def symbol_of(function: Callable[..., object], digest: str, kinds: tuple[Any, ...]) -> str:
    """Return the name of an entry point's machine code, of its own for all that it depends on."""
    text = [function.__module__, function.__qualname__, digest, *map(_text_of, kinds)]
    return f"{function.__name__}_{hashlib.sha256(repr(text).encode()).hexdigest()[:16]}"


def _text_of(kind: Any) -> object:
    if isinstance(kind, str):
        return kind
    first, *rest = kind
    if isinstance(first, type):
        fields = getattr(first, "_fields", ())
        return first.__module__, first.__qualname__, fields, *map(_text_of, rest)
    return first.descr, first.itemsize, *rest


def _object_file(
    function: Callable[..., object], digest: str, kinds: tuple[Any, ...], symbol: str
) -> tuple[str, bytes]:
    """Return kind of the result and object file."""
    folder = shipped()
    data = None if folder is None else read_kept(folder / f"{symbol}.bin")
    if data is None:
        data = _compiled(function, digest, kinds, symbol)
    return data[:1].decode().strip(), data[1:]


@cache
def shipped() -> Path | None:
    """Return the folder of the code that came with the package, if this processor can run it.

    INFRAMIND_KERNELS names another folder; set to nothing, that code is left alone.
    """
    given = os.environ.get("INFRAMIND_KERNELS")
    folder = _PACKAGE / "_kernels" if given is None else Path(given or os.devnull)
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
    """Return kind of the result, one letter, and object file as this machine keeps them."""
    cpu, features = host()
    made_for = repr((cpu, features, version("numba"), version("llvmlite")))
    kept = Kept(_folder(digest), f"{symbol}-{hashlib.sha256(made_for.encode()).hexdigest()[:8]}")
    data = kept.load()
    if data is None:
        with kept.alone(function.__name__):
            data = kept.load()  # another process may have saved it
            if data is None:
                from inframind_gym.simulator.compiler import compile_entry

                with announced(function.__name__, kept=kept.possible):
                    result, code = compile_entry(function, kinds, symbol, cpu, features)
                data = result.ljust(1).encode() + code
                kept.save(data)
    return data


@cache
def host() -> tuple[str, str]:
    """Return LLVM's name of this processor, and its features; as numba, by two variables."""
    import llvmlite.binding as llvm

    cpu = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    features = os.environ.get("NUMBA_CPU_FEATURES")
    return cpu, llvm.get_host_cpu_features().flatten() if features is None else features


def _folder(digest: str) -> Path:
    """Return the folder of machine code from sources of that digest.

    It is below NUMBA_CACHE_DIR where that is set, else in the package, or in the user's cache where
    the package cannot be written to. Where that cannot be either, nothing is kept.
    """
    given = os.environ.get("NUMBA_CACHE_DIR")
    own = _PACKAGE / "__pycache__"
    if given:
        base = Path(given)
    elif os.access(own if own.is_dir() else _PACKAGE, os.W_OK):
        base = own
    else:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        base = Path(home if os.path.isabs(home) else os.devnull) / "inframind_gym"  # no home: none
    folder = base / f"kernels-{digest}"
    keep_folder(folder, "kernels-*")
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


def assembled(text: str) -> Any:
    """Load a module in LLVM's language, for as long as the process lives; return the loader.

    It has `get_function_address(name)`.
    """
    import llvmlite.binding as llvm

    with _one_thread:
        engine = _engine()
        engine.add_module(llvm.parse_assembly(text))
        engine.finalize_object()
        return engine


def _address(code: bytes, symbol: str) -> int:
    """Load an object file for as long as the process lives; return the address of its entry."""
    import llvmlite.binding as llvm

    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address: int = engine.get_function_address(symbol)
    return address
