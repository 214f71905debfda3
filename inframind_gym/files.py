"""Writing files so that a kill or a full disk leaves the old one whole."""

from __future__ import annotations

import os
from pathlib import Path

from inframind_gym.errors import InfraMindError


def replace_text(path: Path, text: str) -> None:
    """Write a text file in one step, see `replace_bytes`."""
    replace_bytes(path, text.encode("utf-8"))


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a file in one step, with the folders that it needs.

    What is no plain file (a terminal, /dev/null, a pipe) is written to and stays what it is.

    Raises:
        InfraMindError: The file cannot be written; what stood there before still does.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InfraMindError(f"{path}: cannot be written: {error.strerror or error}") from None
