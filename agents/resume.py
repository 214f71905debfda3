"""Which training a folder holds, and whether the one that is asked for may go on with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from agents.sources import sources_digest
from inframind_gym.errors import ConfigError

CODES: Final = "charts/codes"  # metric: how many codes a training has run on, once it is not one


def check_resume(
    out: Path, saved: Mapping[str, Any], run: Mapping[str, Any], *, resume: bool
) -> None:
    """Let a training go on with what its folder holds.

    Args:
        out: the folder, named in the errors.
        saved: what the training there was made from.
        run: what this one is made from: configuration, seed and whatever else decides its result.
        resume: whether it is to go on.

    Raises:
        ConfigError: it is not to go on, or the two are not the same training; names the first key
            in which they differ.
    """
    if not resume:
        raise ConfigError(
            f"{out}: holds a training; add --resume to go on with it, or choose another --out."
        )
    wanted = json.loads(json.dumps(run))
    difference = _difference({key: saved.get(key) for key in wanted}, wanted)
    if difference:
        raise ConfigError(
            f"{out}: the training there has another {difference}; resume it with its own "
            "configuration and seed, or choose another --out."
        )


def check_code(out: Path, saved: Sequence[str], *, changed: bool) -> tuple[str, ...]:
    """Let a training go on only with the code that it was begun with, unless that is wanted.

    Args:
        out: the folder, named in the error.
        saved: what this function returned when the training was last begun or resumed; empty if
            its state tells none.
        changed: whether to go on with other code, too, which is said on standard error.

    Returns:
        Digests of the code that the training has run on, in order; its state and its checkpoint
        keep them.

    Raises:
        ConfigError: the code is another one, and `changed` is false.
    """
    now = sources_digest()
    if saved and saved[-1] == now:
        return tuple(saved)
    what = f"{saved[-1][:12] if saved else 'unknown'}, now {now[:12]}"
    if not changed:
        raise ConfigError(
            f"{out}: the training there was begun with other code ({what}) and would not end as it "
            "does with either: go back to that code, delete the folder to train anew, or go on "
            "regardless with --resume-changed-code."
        )
    print(f"{out}: goes on with other code ({what})", file=sys.stderr, flush=True)
    return (*(saved or ("unknown",)), now)


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
