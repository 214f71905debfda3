"""Compiled code from Python: decorators, calls by one address, threads, machine code on disk.

An entry point (`jit`) is compiled together with every function that it calls (`inner`) and every
constant that they name, in other files too. The file of its machine code is therefore named by a
digest of all of that (`digest_of`), so stale code is never found. `compiler` makes the machine
code; it is imported only where something has to be compiled.

A compiled rule takes NamedTuples of arrays, more than five hundred numbers in all. Unpacking them
from Python objects takes longer than most steps. Here they are written once, in the form in which
compiled code reads them, and the entry point gets one address:

    address -> [word of the result, word of argument 0, word of argument 1, ...]

The word of a number is its bits. The word of an array is the address of a block of words: two
zeros (no owner to count references of), the number of elements, their size, the address of the
data, the shape and the strides. The word of a NamedTuple is the address of the blocks of its
arrays, one after the other.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.metadata import version
from operator import is_
from pathlib import Path
from queue import SimpleQueue
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple, TypeVar, cast, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from inframind_gym.progress import say

F = TypeVar("F", bound=Callable[..., object])
V = TypeVar("V")
Floats = NDArray[np.float64]
Int32s = NDArray[np.int32]
Records = NDArray[Any]

CACHE_LINE: Final = 64  # bytes
_PACKAGE: Final = Path(__file__).parents[1]
# Sources of the compiler: every digest counts them.
_COMPILER: Final = (Path(__file__), Path(__file__).with_name("compiler.py"))


# Decorators


def jit(function: F) -> F:
    """Make a function a compiled entry point.

    It is compiled at its first call with all that it calls, unless its machine code is on disk. It
    takes numbers, arrays and NamedTuples of arrays, and returns a number or nothing. It allocates
    nothing: scratch arrays are arguments, which is faster where many arrays are passed on.
    """
    return cast(F, Entry(function))


def inner(function: F) -> F:
    """Mark a function that is compiled into its callers."""
    function.__dict__["is_inner"] = True
    return function


@inner
def close_gap(array: Any, index: int, count: int) -> None:
    """Move the `count` elements behind `index` of a one-dimensional array one place forward."""
    array[index : index + count] = array[index + 1 : index + 1 + count]


@inner
def prefetch(array: Any, element: int, byte: int) -> None:
    """Ask for the cache line that holds byte `byte` of the array's flat element `element`.

    A hint without any effect on results: a batch of environments is larger than the caches, and
    what the next one needs can be on its way while this one is worked on.
    """


# Calls


_DATA: Final = 4  # word of an array's block that holds the address of its data
_PROTOTYPE: Final = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
_BITS: Final[dict[type, tuple[str, type]]] = {  # Python type: kind, type of the word
    int: ("i", np.int64),
    np.int64: ("i", np.int64),
    float: ("f", np.float64),
    np.float64: ("f", np.float64),
    bool: ("b", np.int64),
    np.bool_: ("b", np.int64),
    np.uint64: ("u", np.uint64),
}
_RESULTS: Final[dict[str, type]] = {"i": np.int64, "f": np.float64, "b": np.int64}


def kind_of(value: Any) -> Any:
    """Return the kind of an argument: "i", "f", "b" or "u", (dtype, axes), or a tuple of kinds.

    Raises:
        TypeError: A value that is no number, no array and no NamedTuple of arrays.
        ValueError: An array that is not contiguous in C order, not aligned or not writable.
    """
    if isinstance(value, np.ndarray):
        if not value.flags.carray:
            raise ValueError("compiled code takes arrays that are writable and in C order alone")
        return value.dtype, value.ndim
    if isinstance(value, tuple):
        return type(value), *map(kind_of, value)
    if type(value) in _BITS:
        return _BITS[type(value)][0]
    raise TypeError(f"compiled code takes no {type(value).__name__}")


def as_taken(value: V) -> V:
    """Return an array, or a NamedTuple of arrays, as compiled code takes it: copied if need be."""
    if isinstance(value, tuple):
        return type(value)(*map(as_taken, value))
    taken: Any = np.require(value, requirements=["C", "W", "A"])
    return cast(V, taken)


def aligned(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return zeros that begin at a line of the processor's cache: small records span few lines."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + CACHE_LINE, np.uint8)
    start = -raw.ctypes.data % CACHE_LINE
    return np.asarray(raw[start : start + size].view(dtype).reshape(shape))


_NUMBERS: Final = (np.bool_, np.int32, np.int64, np.uint32, np.float32, np.float64)
_ITEMS: Final = {NDArray[item]: item for item in _NUMBERS}  # type: ignore[valid-type]
_hints_of: Final[Callable[[Any], dict[str, Any]]] = cache(
    partial(get_type_hints, include_extras=True)  # which evaluates texts
)


def zeros(kind: type[V], sizes: Mapping[str, int], **parts: Any) -> V:
    """Return a NamedTuple of `aligned` arrays, which its fields declare, and of the given parts.

    Args:
        kind: The NamedTuple. `Annotated[Int32s, "E 3"]` is an array of shape (E, 3); records name
            their type: `Annotated[Records, "E", SERVER]`.
        sizes: Size of each axis, by name.
        parts: Fields that are not zeros.
    """
    arrays = {}
    for name, hint in _hints_of(kind).items():
        if name not in parts:
            array, axes, *dtype = get_args(hint)
            item = dtype[0] if dtype else _ITEMS[array]
            shape = tuple(sizes[axis] if axis in sizes else int(axis) for axis in axes.split())
            arrays[name] = aligned(shape, item)
    return kind(**arrays, **parts)


def record(*fields: str) -> np.dtype[Any]:
    """Return the type of aligned records; each text is "TYPE: NAME NAME …", in NumPy's terms."""
    groups = (text.split(": ") for text in fields)
    return np.dtype([(name, kind) for kind, names in groups for name in names.split()], align=True)


def filled(dtype: np.dtype[Any], **fields: Any) -> Records:
    """Return one record, (1,); fields that are not given are 0."""
    out = np.zeros(1, dtype)
    for name, value in fields.items():
        out[0][name] = value
    return out


def _words_of(value: Any) -> list[int]:
    """Return the block of an array, or the blocks of a NamedTuple of arrays."""
    if isinstance(value, tuple):
        return [word for part in value for word in _words_of(part)]
    return [0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides]


class Program(NamedTuple):
    """Machine code of an entry point for arguments of some kinds."""

    address: int  # of a function ``int32 (int64 *words)``
    result: str  # kind of the result: "i", "f", "b", or "" for nothing


class Entry:
    """A compiled entry point; it compiles at the first call with arguments of other kinds.

    Args:
        function: The function to compile.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self.py_func: Any = function
        self.__module__ = function.__module__
        self.programs: dict[tuple[Any, ...], Program] = {}  # by kinds of arguments

    def __reduce__(self) -> str:
        return str(self.py_func.__qualname__)  # copies are the same object

    def __call__(self, *arguments: Any) -> Any:
        """Call it once; for many calls with the same arrays, keep a `Bound`."""
        return Bound(self)(*arguments)


class Bound:
    """An entry point and the arguments of its last call.

    A call writes only the arguments that are other objects than in the call before. A NamedTuple,
    or an array, that is passed again must not have been given another size or place in between.
    Not to be called by two threads at a time.

    Args:
        entry: an entry point, as `jit` returns it.
    """

    def __init__(self, entry: Any) -> None:
        self._entry: Entry = entry
        self._last: list[Any] = [self]  # never an argument: nothing is written yet

    def __reduce__(self) -> tuple[type[Bound], tuple[Entry]]:
        return Bound, (self._entry,)  # without the addresses of this object's arguments

    def __call__(self, *arguments: Any) -> Any:
        """Run the compiled code; other threads may run meanwhile."""
        self.prepare(arguments)
        return self.run()

    def prepare(self, arguments: tuple[Any, ...]) -> None:
        """Write the arguments of the next `run` that are other objects than before."""
        if all(map(is_, arguments, self._last)):
            return
        for i, (value, last) in enumerate(zip(arguments, self._last, strict=False)):
            if value is not last:
                if last is self or kind_of(value) != self._kinds[i]:
                    self._bind(arguments)
                    return
                block = self._blocks[i]
                if block is not None and not isinstance(value, tuple) and value.shape == last.shape:
                    block[_DATA] = value.ctypes.data
                else:
                    self._write(i, value)
                self._last[i] = value

    def run(self) -> Any:
        """Run the compiled code with the arguments that were written last."""
        if self._call():
            raise RuntimeError(f"the compiled code of {self._entry.py_func.__name__} has failed")
        if not self._returns:
            return None
        value: Any = self._words[:1].view(_RESULTS[self._returns]).item()
        return bool(value) if self._returns == "b" else value

    def _bind(self, arguments: tuple[Any, ...]) -> None:
        """Find the code for arguments of these kinds, and write all of them."""
        self._kinds = list(map(kind_of, arguments))
        kinds, programs = tuple(self._kinds), self._entry.programs
        if kinds not in programs:
            programs[kinds] = load_program(self._entry, kinds)
        address, self._returns = programs[kinds]
        self._words = np.zeros(1 + len(arguments), np.int64)
        self._blocks: list[NDArray[np.int64] | None] = [None] * len(arguments)
        self._call = partial(_PROTOTYPE(address), self._words.ctypes.data)
        for i, value in enumerate(arguments):
            self._write(i, value)
        self._last = list(arguments)

    def _write(self, i: int, value: Any) -> None:
        if type(value) in _BITS:
            self._words[i + 1 : i + 2].view(_BITS[type(value)][1])[0] = value
            return
        block = np.array(_words_of(value), np.int64)
        self._blocks[i] = block
        self._words[i + 1] = block.ctypes.data


MOST_THREADS: Final = 256
_LEAST_ROWS: Final = 32  # of a thread: waking one takes as long as dozens of rows


class ThreadPool:
    """Threads that run an entry point together, each on its share of the rows.

    The caller's thread is one of them; the others start when they are first needed, and end with
    the pool. Not to be called by two threads at a time.

    Args:
        entry: an entry point, whose last two arguments are the first row of a share and the one
            behind its last.
        scratch: T values of one argument, one for each thread, which alone writes to it.
        place: position of that argument.
    """

    def __init__(self, entry: Any, scratch: Sequence[Any], place: int) -> None:
        self._entry, self._scratch, self._place = entry, scratch, place
        self._calls = [Bound(entry) for _ in scratch]
        self._process = 0  # id of the process that has the threads (a fork has none); 0: none

    def __reduce__(self) -> tuple[type[ThreadPool], tuple[Any, Sequence[Any], int]]:
        return ThreadPool, (self._entry, self._scratch, self._place)

    def run(self, count: int, *arguments: Any) -> None:
        """Work on `count` rows, and wait until all are done.

        Args:
            count: number of rows.
            arguments: the entry point's without the last two, as the caller's thread takes them.

        Raises:
            RuntimeError: The compiled code has failed.
        """
        if count < 2 * _LEAST_ROWS or len(self._calls) == 1:
            self._calls[0](*arguments, 0, count)
            return
        shares = min(len(self._calls), count // _LEAST_ROWS)
        if self._process != os.getpid():
            self._start()
        self._process, started = 0, 0  # if this is interrupted, the next run starts new threads
        ends = [count * i // shares for i in range(shares + 1)]
        before, behind = arguments[: self._place], arguments[self._place + 1 :]
        try:
            for i in range(1, shares):
                call = self._calls[i]
                call.prepare((*before, self._scratch[i], *behind, ends[i], ends[i + 1]))
                self._waiting.put(call)
                started += 1
            self._calls[0](*arguments, 0, ends[1])
        finally:
            failures = [self._ended.get() for _ in range(started)]
            self._process = os.getpid()
        for failure in filter(None, failures):
            raise failure

    def _start(self) -> None:
        """Start the other threads, with calls of their own."""
        self._waiting: SimpleQueue[Bound | None] = SimpleQueue()
        self._ended: SimpleQueue[Exception | None] = SimpleQueue()
        self._calls[1:] = [Bound(self._entry) for _ in self._calls[1:]]
        for _ in self._calls[1:]:
            weakref.finalize(self, self._waiting.put, None)
            threading.Thread(target=_work, args=(self._waiting, self._ended), daemon=True).start()


def _work(waiting: SimpleQueue[Bound | None], ended: SimpleQueue[Exception | None]) -> None:
    """Run the calls that wait, until one is None; put each one's error, or None, into `ended`."""
    while call := waiting.get():
        try:
            call.run()
            ended.put(None)
        except Exception as failure:
            ended.put(failure)


# Machine code: read from disk, or else compiled. The first process that needs it compiles, with a
# message, and saves it; others wait.


_STALE_S: Final = 7 * 86_400.0  # files that no process has used for so long are deleted
_load_lock: Final = threading.RLock()


def digest_of(function: Any) -> str:
    """Return the digest of all that a function is compiled from: code and constants, by name."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in _COMPILER))
    waiting, seen = [function], {function}
    while waiting:
        current = waiting.pop()
        code, names = current.__code__, current.__globals__
        constants = code.co_consts[current.__doc__ is not None :]  # without the docstring
        facts = current.__module__, current.__qualname__, code.co_varnames, code.co_names, constants
        digest.update(repr((*facts, code.co_code.hex(), current.__defaults__)).encode())
        for name in code.co_names:
            value = names.get(name)
            if isinstance(value, FunctionType):
                waiting += [value] if value not in seen else []
                seen.add(value)
            elif isinstance(value, np.ndarray | np.generic):
                digest.update(repr((name, value.dtype, value.tobytes())).encode())
            elif not isinstance(value, ModuleType):
                digest.update(repr((name, getattr(value, "_fields", ""), value)).encode())
    return digest.hexdigest()


def _layout(kind: Any) -> Any:
    """Return a kind of argument, with field names in place of the types of NamedTuples."""
    if isinstance(kind, tuple) and isinstance(kind[0], type):
        return getattr(kind[0], "_fields", ()), *map(_layout, kind[1:])
    return kind


def load_program(entry: Entry, kinds: tuple[Any, ...]) -> Program:
    """Return the machine code of an entry point, loaded for as long as the process lives.

    Args:
        entry: the entry point.
        kinds: kinds of its arguments (`kind_of`).
    """
    function = entry.py_func
    text = repr((digest_of(function), *map(_layout, kinds)))
    symbol = f"{function.__name__}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    with _load_lock:
        data = _machine_code(entry, kinds, symbol)
        import llvmlite.binding as llvm

        engine = _engine()
        engine.add_object_file(llvm.ObjectFileRef.from_data(data[1:]))
        engine.finalize_object()
        return Program(engine.get_function_address(symbol), data[:1].decode().strip())


def described() -> str:
    """Return where machine code is kept, for people."""
    how = f"compiled code: numba {version('numba')} makes it at first use"
    return f"{how}, and keeps it in {_folder()}"


def _machine_code(entry: Entry, kinds: tuple[Any, ...], symbol: str) -> bytes:
    """Return one letter, the kind of the result, and the object file for this processor."""
    import llvmlite.binding as llvm

    # numba's variables; `make processors` tests code for other processors by them.
    cpu = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    features = os.environ.get("NUMBA_CPU_FEATURES")
    if features is None:
        features = llvm.get_host_cpu_features().flatten()
    made_for = repr((cpu, features, version("numba"), version("llvmlite")))
    path = _folder() / f"{symbol}-{hashlib.sha256(made_for.encode()).hexdigest()[:8]}.bin"
    if data := _read(path):
        return data
    with _file_lock(path, entry.py_func.__name__):
        if data := _read(path):  # another process has saved it meanwhile
            return data
        from inframind_gym.simulator.compiler import compile_entry

        start_s, what = time.monotonic(), f"`{entry.py_func.__name__}`"
        say(f"inframind_gym: compiling {what}: up to a minute, later runs take it from the cache")
        result, code = compile_entry(entry.py_func, kinds, symbol, cpu, features)
        say(f"inframind_gym: compiled {what} in {time.monotonic() - start_s:.0f} s")
        data = result.ljust(1).encode() + code
        new = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            new.write_bytes(data + hashlib.sha256(data).digest())
            new.replace(path)
            for other in path.parent.iterdir():
                with suppress(OSError):
                    if time.time() - other.stat().st_mtime > _STALE_S:
                        other.unlink()
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            say(
                f"inframind_gym: compiled code cannot be kept in {path.parent}: "
                f"{error.strerror or error}. Set NUMBA_CACHE_DIR to a folder that can be written."
            )
        return data


def _read(path: Path) -> bytes | None:
    """Return the contents of a file without the sha256 at its end; None if damaged or missing."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    with suppress(OSError):
        os.utime(path)  # so that it is not deleted as stale
    return data[:-32] if hashlib.sha256(data[:-32]).digest() == data[-32:] else None


@contextmanager
def _file_lock(path: Path, name: str) -> Iterator[None]:
    """Keep other processes from making the same file; wait if one does.

    The lock is the operating system's: it ends with its process, however that ends.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock").open("a")
    except OSError:  # nothing can be saved there; a message follows after compiling
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


def _folder() -> Path:
    """Return the folder of machine code.

    It is below NUMBA_CACHE_DIR if that is set, else in the package, or in the user's cache if the
    package cannot be written to.
    """
    pycache = _PACKAGE / "__pycache__"
    if setting := os.environ.get("NUMBA_CACHE_DIR"):
        base = Path(setting)
    elif os.access(pycache if pycache.is_dir() else _PACKAGE, os.W_OK):
        base = pycache
    else:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        base = Path(home if os.path.isabs(home) else os.devnull) / "inframind_gym"  # no home: none
    return base / "kernels"


@cache
def _engine() -> Any:
    """Return LLVM's loader of object files."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(reloc="pic", codemodel="default")
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
