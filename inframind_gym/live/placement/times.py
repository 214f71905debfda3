"""Times of phases that a placement has learned, in a file that outlives it.

    STATE/POOL+placement/times.json

A placement that begins averages on from them; models that the file does not know begin with the
times of their cards.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, RootModel

from inframind_gym.configs import StrictModel
from inframind_gym.errors import InfraMindError
from inframind_gym.files import read_json, replace_text
from inframind_gym.simulator.placement.state import LOAD, OFFLOAD, SLEEP, WAKE

_log = logging.getLogger(__name__)
_Seconds = Annotated[float, Field(ge=0.0, le=86_400.0, allow_inf_nan=False)]
_COLUMNS: Final = {"wake_s": WAKE, "sleep_s": SLEEP, "load_s": LOAD, "offload_s": OFFLOAD}


class ModelTimes(StrictModel):
    """Averages of one model, by its alias; `model` is what was served under it."""

    model: str
    wake_s: _Seconds
    sleep_s: _Seconds
    load_s: _Seconds
    offload_s: _Seconds


class _Times(RootModel[dict[str, ModelTimes]]):
    """Content of the file."""


def read_times(path: Path, models: Sequence[tuple[str, str]], seen_s: NDArray[np.float64]) -> None:
    """Replace the times of the models that a file knows.

    A file that cannot be used is reported by a warning and leaves all times as they are.

    Args:
        path: the file; none is no fault.
        models: alias of each, and what is served under it: the times of other weights are not used.
        seen_s: (M, TIMES), changed.
    """
    try:
        known = _Times.model_validate(read_json(path)).root if path.exists() else {}
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
        _log.warning("%s: learned times are not used, those of the cards are: %s", path, why)
        return
    for m, (alias, model) in enumerate(models):
        if alias in known and known[alias].model == model:
            for name, kind in _COLUMNS.items():
                seen_s[m, kind] = getattr(known[alias], name)


def write_times(path: Path, models: Sequence[tuple[str, str]], seen_s: NDArray[np.float64]) -> None:
    """Write the times of all models at once, or warn that this is impossible."""
    content = {
        alias: ModelTimes(
            model=model, **{name: float(seen_s[m, kind]) for name, kind in _COLUMNS.items()}
        )
        for m, (alias, model) in enumerate(models)
    }
    try:
        replace_text(path, _Times(content).model_dump_json(indent=1) + "\n")
    except InfraMindError as error:
        _log.warning("learned times are not kept: %s", error)
