"""Calls of compiled code with one pointer in place of hundreds of arguments.

A compiled rule takes NamedTuples of arrays, more than five hundred numbers in all. Unpacking them
from Python objects takes longer than most steps. Here they are written once, in the form in which
compiled code holds them, and an entry point is given one address:

    address -> [word of the result, word of argument 0, word of argument 1, ...]

The word of a number is its bits. The word of an array is the address of a block of words: two
zeros (no owner to count references of), the number of elements, their size, the address of the
data, the shape and the strides. The word of a NamedTuple is the address of the blocks of its
arrays, one after the other.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import partial
from operator import is_
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

V = TypeVar("V")

CACHE_LINE: Final = 64  # bytes
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


class Program(NamedTuple):
    """Machine code of an entry point for arguments of some kinds.

    Attributes:
        address: of a function ``int32 (int64 *words)``.
        result: kind of what it returns: "i", "f", "b", or "" for nothing.
    """

    address: int
    result: str


def kind_of(value: Any) -> Any:
    """Return what compiled code depends on: "i", "f", "b" or "u", dtype and axes, or a tuple.

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
    """Zeros that begin at a line of the processor's cache, so that small records span few lines."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + CACHE_LINE, np.uint8)
    start = -raw.ctypes.data % CACHE_LINE
    return np.asarray(raw[start : start + size].view(dtype).reshape(shape))


def _words_of(value: Any) -> list[int]:
    """Return the block of an array, or the blocks of a NamedTuple of arrays."""
    if isinstance(value, tuple):
        return [word for part in value for word in _words_of(part)]
    return [0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides]


class Entry:
    """A compiled entry point; it compiles at the first call with arguments of other kinds.

    Args:
        function: What is compiled.
        load: Returns the machine code for arguments of some kinds (`kind_of`).
    """

    def __init__(
        self, function: Callable[..., object], load: Callable[[tuple[Any, ...]], Program]
    ) -> None:
        self.py_func, self.load = function, load
        self.__module__ = function.__module__
        self.programs: dict[tuple[Any, ...], Program] = {}  # by kinds of arguments

    def __reduce__(self) -> str:
        return self.py_func.__qualname__  # the same one in every copy

    def __call__(self, *arguments: Any) -> Any:
        """Call it once; who calls it often with the same arrays keeps a `Bound`."""
        return Bound(self)(*arguments)


class Bound:
    """An entry point and the arguments of its last call.

    A call writes only the arguments that are other objects than in the call before. A NamedTuple,
    or an array, that is passed again must not have been given another size or place in between.
    Not to be called by two threads at a time.

    Args:
        entry: an entry point, as `make_jit` returns it.
    """

    def __init__(self, entry: Any) -> None:
        self._entry: Entry = entry
        self._last: list[Any] = [self]  # no argument: nothing is written yet

    def __reduce__(self) -> tuple[type[Bound], tuple[Entry]]:
        return Bound, (self._entry,)  # addresses are of this one's arguments

    def __call__(self, *arguments: Any) -> Any:
        """Run the compiled code; other threads may run meanwhile."""
        self.prepare(*arguments)
        return self.run()

    def prepare(self, *arguments: Any) -> None:
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
            programs[kinds] = self._entry.load(kinds)
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
