"""Compiled entry points outside of `inframind_gym`; their cache knows this package's sources."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from inframind_gym import _jit

F = TypeVar("F", bound=Callable[..., object])


@cache
def _digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def jit(function: F) -> F:
    """`inframind_gym._jit.jit`; a change of any file beside this one compiles it anew, too."""
    compiled: Any = _jit.jit(function)
    cache_file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if cache_file is not None and hasattr(cache_file, "_source_stamp"):
        cache_file._source_stamp = (cache_file._source_stamp, _digest())
    return cast(F, compiled)
