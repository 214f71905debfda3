"""The decorator of this room's compiled entry points.

`inframind_gym._jit` stamps the cache with the sources of the routing environments. What is compiled
here also depends on the folder it stands in, whose digest is added to the stamp: a stale kernel is
never run, and an edit in here leaves the other environments' kernels valid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from inframind_gym._jit import inner, jit

__all__ = ["inner", "placement_jit"]

F = TypeVar("F", bound=Callable[..., object])


@cache
def folder_digest(folder: Path) -> str:
    """Digest of the Python sources of a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def placement_jit(function: F) -> F:
    """`inframind_gym._jit.jit`, with the sources of the function's folder in the cache's stamp."""
    dispatcher: Any = jit(function)
    file = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if file is not None and hasattr(file, "_source_stamp"):
        folder = Path(function.__code__.co_filename).parent
        file._source_stamp = (file._source_stamp, folder_digest(folder))
    return dispatcher  # type: ignore[no-any-return]
