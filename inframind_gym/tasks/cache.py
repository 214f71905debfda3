"""A folder of arrays that are known by the hash of what they were made from.

A file is the sha256 of its payload (32 bytes) and the payload, an ``.npy`` array: a file that was
cut short or changed is noticed and written again. Two processes, or one that is killed, never leave
half a file.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import InfraMindError
from inframind_gym.files import replace_bytes

CACHE_ENV = "INFRAMIND_CACHE"


def cache_folder(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the cache folder: the argument, ``$INFRAMIND_CACHE``, or ~/.cache/inframind_gym."""
    usual = Path.home() / ".cache" / "inframind_gym"
    return Path(cache_dir or os.environ.get(CACHE_ENV) or usual)


def read_array(path: Path) -> NDArray[Any] | None:
    """Return the array of a cache file, or None if there is none or it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if len(content) < 32 or hashlib.sha256(content[32:]).digest() != content[:32]:
        return None
    try:
        array: NDArray[Any] = np.load(io.BytesIO(content[32:]), allow_pickle=False)
    except ValueError:
        return None
    return array


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write a cache file in one step; a folder that cannot be written is a warning, no error."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    payload = buffer.getvalue()
    try:
        replace_bytes(path, hashlib.sha256(payload).digest() + payload)
    except InfraMindError as error:
        warnings.warn(
            f"{error}; set ${CACHE_ENV} to a folder that can be written, or the same texts are "
            "embedded again next time",
            stacklevel=2,
        )
