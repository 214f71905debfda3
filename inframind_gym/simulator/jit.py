"""The one decorator behind which all compiled code stands.

Numba caches compiled functions on disk and invalidates an entry when *that function's file*
changes. A function of ours is compiled together with everything that it calls and with the
constants that it names, in other files too; so the stamp of every cache entry holds the digest of
the *rooms* whose text is compiled in: a stale kernel is never run. A test checks that no kernel
rests on a file outside its rooms.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba
from llvmlite import ir
from numba.core import event, types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., object])

_HERE: Final = Path(__file__).parents[1]
# What the kernels of the routing environments rest on.
SIMULATOR: Final = tuple(
    _HERE / room
    for room in (
        "simulator",
        "simulator/server",
        "simulator/quality",
        "simulator/workflow",
        "envs/routing/entry.py",
    )
)


@cache
def source_digest(rooms: tuple[Path, ...]) -> str:
    """Digest of Python sources, this file's included: what the cache of a kernel is stamped with.

    Args:
        rooms: modules, and folders, which stand for the modules right in them.
    """
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for room in rooms:
        for path in sorted(room.glob("*.py")) if room.is_dir() else [room]:
            digest.update(f"{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _stamp_with_sources(dispatcher: object, rooms: tuple[Path, ...]) -> None:
    cache_file = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if cache_file is not None and hasattr(cache_file, "_source_stamp"):
        cache_file._source_stamp = (cache_file._source_stamp, source_digest(rooms))


# Without the runtime (_nrt) compiled code cannot allocate arrays, and does not count references:
# counting them would take most of the time, since every function is handed whole NamedTuples.
# Floating-point arithmetic is strict (no reassociation): every path gives the same bits.
_OPTIONS: Final[dict[str, Any]] = {"nogil": True, "error_model": "numpy", "_nrt": False}
_njit: Final[Any] = numba.njit  # `_nrt` is missing from numba's own stubs


# Every compiled entry point that was made, and the rooms whose text its cache is stamped with.
entry_points: Final[dict[Any, tuple[Path, ...]]] = {}


class _Announcement(event.Listener):
    """Says on standard error when one of our functions has to be compiled, which takes a while."""

    def on_start(self, event: Any) -> None:
        """A compilation begins; one that the cache answers does not."""
        if event.data["dispatcher"] in entry_points:
            name = event.data["dispatcher"].py_func.__name__
            print(
                f"inframind_gym: compiling `{name}`, up to a minute; later runs take it from the "
                "cache",
                file=sys.stderr,
                flush=True,
            )

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


_register: Final[Any] = event.register
_register("numba:compile", _Announcement())


def _prefetch(typing_context: Any, array: Any, element: Any, byte: Any) -> Any:
    """Ask for the cache line that holds byte `byte` of the array's flat element `element`.

    A hint without any effect on results: a batch of environments is larger than the caches, and
    what the next one needs can be on its way while this one is worked on.
    """
    signature = types.void(array, types.intp, types.intp)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        data = context.make_array(array_type)(context, builder, arguments[0]).data
        byte_pointer = ir.IntType(8).as_pointer()
        size = ir.Constant(ir.IntType(64), context.get_abi_sizeof(data.type.pointee))
        offset = builder.add(builder.mul(arguments[1], size), arguments[2])
        address = builder.gep(builder.bitcast(data, byte_pointer), [offset])
        word = ir.IntType(32)
        signature_of_hint = ir.FunctionType(ir.VoidType(), [byte_pointer, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch.p0", (), signature_of_hint)
        flags = [ir.Constant(word, flag) for flag in (0, 3, 1)]  # read, keep, data
        builder.call(function, [address, *flags])
        return context.get_dummy_value()

    return signature, codegen


prefetch: Final[Any] = intrinsic(_prefetch)


def make_jit(*rooms: Path, allocates: bool = False) -> Callable[[F], F]:
    """The decorator of compiled entry points that rest on these rooms.

    It compiles a function with all that it calls at its first call, and caches it on disk.

    Args:
        rooms: modules and folders whose text is compiled in; the function's own file always counts.
        allocates: whether it may allocate arrays. Otherwise scratch space is handed in, which is
            faster where many arrays are passed on.
    """
    options = {k: v for k, v in _OPTIONS.items() if not (allocates and k == "_nrt")}

    def decorate(function: F) -> F:
        dispatcher = _njit(cache=True, **options)(function)
        entry_points[dispatcher] = rooms
        _stamp_with_sources(dispatcher, rooms)
        return cast(F, dispatcher)

    return decorate


jit: Final = make_jit(*SIMULATOR)  # for the routing environments


def inner(function: F) -> F:
    """Compile `function` into its callers: no cache entry of its own."""
    return cast(F, _njit(forceinline=True, **_OPTIONS)(function))
