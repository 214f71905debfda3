"""Decorators of all compiled code.

A function of ours is compiled together with everything that it calls and with the constants that
it names, in other files too. So what is kept of it carries the digest of all sources that are
compiled in: stale code is never found. A test checks that no entry point uses another file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast

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
        "envs/layout.py",
        "envs/routing_kernel.py",
    )
)
# Sources of the compiler, which every entry point is made by.
COMPILER: Final = tuple(
    Path(__file__).with_name(name) for name in ("jit.py", "native.py", "compiler.py")
)


@cache
def source_digest(sources: tuple[Path, ...]) -> str:
    """Digest of Python sources, those of the compiler included.

    Args:
        sources: modules, and folders in place of the modules right in them.
    """
    digest = hashlib.sha256()
    for source in (*COMPILER, *sources):
        for path in sorted(source.glob("*.py")) if source.is_dir() else [source]:
            digest.update(f"{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


# Every compiled entry point, and the sources that are compiled in.
entry_points: Final[dict[Any, tuple[Path, ...]]] = {}


def make_jit(*sources: Path) -> Callable[[F], F]:
    """Return the decorator of compiled entry points that use these sources.

    A function is compiled at its first call with all that it calls, unless its machine code is
    kept (`programs`). It takes numbers, arrays and NamedTuples of arrays, and returns a number or
    nothing. It allocates nothing: scratch space is handed in, which is faster where many arrays are
    passed on.

    Args:
        sources: modules and folders whose text is compiled in; a change of one recompiles.
    """

    def decorate(function: F) -> F:
        digest = source_digest(sources)

        def load(kinds: tuple[Any, ...]) -> Program:
            from inframind_gym.simulator.programs import load_program

            return load_program(function, digest, kinds)

        entry = Entry(function, load)
        entry_points[entry] = sources
        return cast(F, entry)

    return decorate


jit: Final = make_jit(*SIMULATOR)  # for the routing environments


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
