"""Check that a training may continue what its folder holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inframind_gym.errors import ConfigError


def check_resume(
    out: Path, saved: Mapping[str, Any], run: Mapping[str, Any], *, resume: bool
) -> None:
    """Check that a training may continue what its folder holds.

    Args:
        out: the folder, named in the errors.
        saved: what the training there was made from.
        run: what this one is made from: configuration, seed, declared versions and whatever else
            decides its result.
        resume: whether it is to continue.

    Raises:
        ConfigError: it is not to continue, or the two are not the same training; names the first
            key in which they differ.
    """
    if not resume:
        raise ConfigError(
            f"{out}: holds a training; add --resume to continue it, or choose another --out."
        )
    wanted = json.loads(json.dumps(run))
    difference = _difference({key: saved.get(key) for key in wanted}, wanted)
    if difference:
        raise ConfigError(
            f"{out}: the training there has another {difference}; resume it with its own "
            "configuration and seed, or choose another --out."
        )


def _difference(saved: Any, wanted: Any, path: str = "") -> str | None:
    """The first key in which two configurations differ, with both values."""
    if saved == wanted:
        return None
    if isinstance(saved, dict) and isinstance(wanted, dict):
        for key in {**saved, **wanted}:
            found = _difference(saved.get(key), wanted.get(key), f"{path}.{key}" if path else key)
            if found:
                return found
    return f"{path} ({saved!r}, not {wanted!r})"
