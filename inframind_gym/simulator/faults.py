"""Faults of servers within an episode: the argument `faults` of the environments.

    faults:
      - {kind: down, model: qwen-14b, from_s: 60, to_s: 240}
      - {kind: slow, every_s: 600, lasts_s: 120, factor: 2}   # at random times, some model
      - {kind: telemetry, from_s: 300, to_s: 400, delay_s: 30}   # of all models; no delay_s: lost

`server/faults.py` says what they do to a server.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from inframind_gym.configs import StrictModel, within
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.server.pool import PoolConfig
from inframind_gym.simulator.server.state import FAULT, LOST

MOST_DRAWN: Final = 64  # faults of one entry in a stream
MOST_LATE_POLLS: Final = 1000
LONGEST_S: Final = 1e6
_DRAW: Final = 0x0FA17  # sets these random numbers apart from others with the stream's key
_SPREAD: Final = 0.5  # a drawn fault lasts (1 ± this) times `lasts_s`, uniformly

Seconds = Annotated[float, within(0.001, LONGEST_S)]


class Fault(StrictModel):
    """A fault at a fixed time, or faults at random times."""

    # "down": the server loses its calls and is closed until it is back; "slow": its steps take
    # `factor` times as long; "telemetry": its readings are late or lost
    kind: Literal["down", "slow", "telemetry"]
    # alias. None: with drawn times a random model every time, of "telemetry" all models
    model: str | None = None
    # start of a fault at a fixed time
    from_s: Annotated[float, within(0.0, LONGEST_S)] | None = None
    to_s: Seconds | None = None  # its end
    # mean time from the end of a drawn fault to the next, exponentially distributed
    every_s: Seconds | None = None
    # mean length of a drawn fault, which is between half and one and a half of that
    lasts_s: Seconds | None = None
    factor: Annotated[float, within(0.01, 1000.0)] | None = None  # of "slow"
    # of "telemetry", rounded up to polls; None: the readings are lost
    delay_s: Seconds | None = None

    @model_validator(mode="after")
    def _check(self) -> Fault:
        fixed = (self.from_s is not None) + (self.to_s is not None)
        drawn = (self.every_s is not None) + (self.lasts_s is not None)
        if (fixed, drawn) not in ((2, 0), (0, 2)):
            raise ValueError("give from_s and to_s, or every_s and lasts_s for random times")
        if fixed and not self.from_s < self.to_s:  # type: ignore[operator]
            raise ValueError(f"to_s ({self.to_s:g}) must be after from_s ({self.from_s:g})")
        if fixed and self.kind != "telemetry" and self.model is None:
            raise ValueError(f'a fault "{self.kind}" at a fixed time needs a model')
        if (self.factor is not None) != (self.kind == "slow"):
            raise ValueError('factor belongs to "slow", and "slow" needs it')
        if self.delay_s is not None and self.kind != "telemetry":
            raise ValueError('delay_s belongs to "telemetry"')
        return self


class Faults:
    """The faults of streams on a pool.

    Args:
        faults: The entries.
        pool: The servers; readings are late by whole polls of it.
        usable: Bit mask of the models that are in service at all.

    Attributes:
        size: Most changes of conditions in a stream, the last at infinity; 0: there are no faults.
        late_polls: Polls by which readings are late at most, lost ones apart.

    Raises:
        ConfigError: A model that is not in the pool or is out of service, or readings that are
            late by too many polls.
    """

    def __init__(self, faults: Sequence[Fault], pool: PoolConfig, usable: int) -> None:
        self._faults = tuple(faults)
        self._every = tuple(m for m in range(len(pool.models)) if usable >> m & 1)
        self._models = [None if f.model is None else pool.index(f.model) for f in faults]
        self._late = [0] * len(faults)
        self.late_polls = self.size = 0
        for i, (fault, model) in enumerate(zip(faults, self._models, strict=True)):
            if model is not None and model not in self._every:
                raise ConfigError(f"faults: {fault.model} is one of down_models")
            touched = 1
            if fault.kind == "telemetry":
                touched = len(self._every) if model is None else 1
                self._late[i] = LOST
                if fault.delay_s is not None:
                    self._late[i] = math.ceil(fault.delay_s / pool.metrics_poll_s)
                    self.late_polls = max(self.late_polls, self._late[i])
            self.size += 2 * touched * (MOST_DRAWN if fault.from_s is None else 1)
        self.size += bool(faults)
        if self.late_polls > MOST_LATE_POLLS:
            raise ConfigError(
                f"faults: a delay_s of {self.late_polls} polls is too long, at most "
                f"{MOST_LATE_POLLS}; raise metrics_poll_s, or leave delay_s out for lost readings"
            )

    def changes(self, key: int, until_s: float) -> NDArray[Any]:
        """Return the changes of a stream.

        Args:
            key: Of the stream's random numbers.
            until_s: No drawn fault begins later.

        Returns:
            (F,) FAULT, F = `size`, by time; those that are not needed are at infinity.
        """
        out = np.zeros(self.size, FAULT)
        out["at_s"], out["pace"] = np.inf, 1.0
        spans = [span for i in range(len(self._faults)) for span in self._spans(i, key, until_s)]
        now: dict[int, tuple[float, int, int]] = {}
        row = 0
        for at_s in sorted({time for _, _, *times in spans for time in times}):
            active = [(i, on) for i, on, from_s, to_s in spans if from_s <= at_s < to_s]
            for m in self._every:
                mine = [i for i, models in active if m in models]
                condition = (
                    math.prod(self._faults[i].factor or 1.0 for i in mine),
                    max((self._late[i] for i in mine), default=0),
                    int(any(self._faults[i].kind == "down" for i in mine)),
                )
                if condition != now.get(m, (1.0, 0, 0)):
                    now[m] = condition
                    pace, late, down = condition
                    out[row] = (at_s, pace, late, m, down)
                    row += 1
        return out

    def _spans(
        self, i: int, key: int, until_s: float
    ) -> Iterator[tuple[int, tuple[int, ...], float, float]]:
        """Yield the faults of entry `i` in a stream: the entry, models, start and end, s."""
        fault, model = self._faults[i], self._models[i]
        rng = np.random.default_rng([_DRAW, i, key])
        times: list[tuple[float, float]] = []
        if fault.every_s is None or fault.lasts_s is None:
            times.append((fault.from_s or 0.0, fault.to_s or 0.0))
        else:
            time_s = rng.exponential(fault.every_s)
            while time_s <= until_s and len(times) < MOST_DRAWN:
                end_s = time_s + fault.lasts_s * rng.uniform(1.0 - _SPREAD, 1.0 + _SPREAD)
                times.append((time_s, end_s))
                time_s = end_s + rng.exponential(fault.every_s)
        for from_s, to_s in times:
            models = self._every if model is None else (model,)
            if model is None and fault.kind != "telemetry":
                models = (self._every[int(rng.integers(len(self._every)))],)
            yield i, models, from_s, to_s
