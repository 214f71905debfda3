"""Decorators of all compiled code, and the cache that keeps it on disk.

Numba caches a compiled function and invalidates the entry when *that function's file* changes. A
function of ours is compiled together with everything that it calls and with the constants that it
names, in other files too. So the folder of its cache carries the digest of all sources that are
compiled in: a stale kernel is never found. A test checks that no kernel uses another file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any, Final, TypeVar, cast

import numba
from llvmlite import ir
from numba.core import event, types
from numba.extending import intrinsic

from inframind_gym.simulator.arguments import Arguments, load_arguments, type_of
from inframind_gym.simulator.compile_cache import Announcement, use_cache
from inframind_gym.simulator.native import Entry, Program

F = TypeVar("F", bound=Callable[..., object])

_PACKAGE: Final = Path(__file__).parents[1]
# Sources of the kernels of the routing environments.
SIMULATOR: Final = tuple(
    _PACKAGE / source
    for source in (
        "simulator/rng.py",
        "simulator/quality.py",
        "simulator/server",
        "simulator/workflow",
        "envs/routing/entry.py",
        "envs/routing/layout.py",
        "envs/routing/observation.py",
        "envs/routing/reward.py",
    )
)


@cache
def source_digest(sources: tuple[Path, ...]) -> str:
    """Digest of Python sources, this file included.

    Args:
        sources: modules, and folders in place of the modules right in them.
    """
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for source in sources:
        for path in sorted(source.glob("*.py")) if source.is_dir() else [source]:
            digest.update(f"{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _cached_by(digest: str) -> Iterator[None]:
    """Let functions that are decorated here be cached in a folder of that digest.

    It is below NUMBA_CACHE_DIR where that is set, else in the package, or in the user's cache where
    the package cannot be written to. Where that cannot be either, nothing is cached.
    """
    config: Any = numba.config
    given = config.CACHE_DIR
    own = _PACKAGE / "__pycache__"
    if given:
        base = Path(given)
    elif os.access(own if own.is_dir() else _PACKAGE, os.W_OK):
        base = own
    else:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        base = Path(home if os.path.isabs(home) else os.devnull) / "inframind_gym"  # no home: none
    config.CACHE_DIR = str(base / f"kernels-{digest}")
    try:
        yield
    finally:
        config.CACHE_DIR = given


# Without the runtime (_nrt) compiled code cannot allocate arrays, and does not count references:
# counting them would take most of the time, since every function is handed whole NamedTuples.
# Floating-point arithmetic is strict (no reassociation): every path gives the same bits.
_OPTIONS: Final[dict[str, Any]] = {"nogil": True, "error_model": "numpy", "_nrt": False}
_njit: Final[Any] = numba.njit  # `_nrt` is missing from numba's own stubs


# Every compiled entry point, and the sources that are compiled in.
entry_points: Final[dict[Any, tuple[Path, ...]]] = {}
_dispatchers: Final[set[Any]] = set()  # theirs


_register: Final[Any] = event.register
_register("numba:compile", Announcement(_dispatchers))


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


def _call(address: Any) -> Any:
    """Call `function` with the arguments that lie at an address."""
    return function(*load_arguments(address))  # noqa: F821


def _enter(function: Callable[..., object]) -> Any:
    """Return a dispatcher of `function` that takes its arguments by one address (`native`)."""
    names = {"function": inner(function), "load_arguments": load_arguments}
    enter = FunctionType(_call.__code__, names, function.__name__)
    enter.__qualname__, enter.__module__ = function.__qualname__, function.__module__
    return _njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)(enter)


def _load(dispatcher: Any, kinds: tuple[Any, ...]) -> Program:
    """Compile for arguments of these kinds, or load from the cache."""
    signature = (Arguments(type_of((tuple, *kinds))),)
    dispatcher.compile(signature)
    compiled = dispatcher.overloads[signature]
    address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return Program(address, _RESULTS[compiled.signature.return_type], compiled)


_RESULTS: Final = {types.int64: "i", types.float64: "f", types.boolean: "b", types.none: ""}


def make_jit(*sources: Path, allocates: bool = False) -> Callable[[F], F]:
    """Return the decorator of compiled entry points that use these sources.

    A function is compiled at its first call with all that it calls, and cached on disk. It takes
    numbers, arrays and NamedTuples of arrays, and returns a number or nothing.

    Args:
        sources: modules and folders whose text is compiled in; a change of one recompiles.
        allocates: whether it may allocate arrays, and return them. Otherwise scratch space is
            handed in, which is faster where many arrays are passed on.
    """
    options = {k: v for k, v in _OPTIONS.items() if k != "_nrt"}

    def decorate(function: F) -> F:
        with _cached_by(source_digest(sources)):
            dispatcher = _njit(**options)(function) if allocates else _enter(function)
            use_cache(dispatcher)
        _dispatchers.add(dispatcher)
        entry = dispatcher if allocates else Entry(function, partial(_load, dispatcher))
        entry_points[entry] = sources
        return cast(F, entry)

    return decorate


jit: Final = make_jit(*SIMULATOR)  # for the routing environments


def inner(function: F) -> F:
    """Compile `function` into its callers: no cache entry of its own."""
    return cast(F, _njit(forceinline=True, **_OPTIONS)(function))
