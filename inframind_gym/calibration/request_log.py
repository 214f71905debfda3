"""Request logs: one JSON object a line, with the times that vLLM records of every request.

Fields of a line: `request_id`; `input_toks` and `output_toks`; `arrival_time`, when the front end
took the request, in epoch seconds; and, in seconds of the engine's monotonic clock, `queued_ts`
(read from the engine's input queue, between two steps), `scheduled_ts` (a step was planned that
serves the request), `first_token_ts` and `last_token_ts` (the steps that emitted those tokens had
ended). Other fields are ignored. LLMServingSim publishes logs of this form
(https://github.com/casys-kaist/LLMServingSim).

A client's log (`live/request_log.py`), which has `sent_ts`, is read as well. Its times are those of
the client: a request was queued when it was sent, unless the server reports otherwise, and
`scheduled_ts` may be unknown. Its lines are in the order in which the requests ended, and may be of
several models or of requests that failed: those are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from inframind_gym.configs import validate
from inframind_gym.errors import ConfigError, did_you_mean, unknown
from inframind_gym.files import read_objects

Array = NDArray[np.float64]
_ANSWERED: Final = ("ok", "truncated")  # status of requests that have an answer
_TIMES: Final = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
_WHOLE: Final = BeforeValidator(lambda v: int(v) if isinstance(v, float) and v.is_integer() else v)
_UNKNOWN: Final = BeforeValidator(lambda value: 1.0 if value is None else value)
_Tokens = Annotated[int, _WHOLE, Field(ge=1, le=1 << 24)]
# Epoch seconds up to the year 5138: milliseconds are beyond.
_Seconds = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]


class LineSpeed(BaseModel):
    """The speed of simulated servers over their client's clock, as a line of the log has it."""

    model_config = ConfigDict(strict=True)

    speed: Annotated[float, _UNKNOWN, Field(gt=0, le=1e4)] = 1.0


class LogLine(LineSpeed):
    """A request that was answered, as a line of the log has it."""

    request_id: Annotated[str, BeforeValidator(str)]
    input_toks: _Tokens
    output_toks: _Tokens
    arrival_time: _Seconds
    queued_ts: _Seconds
    scheduled_ts: _Seconds
    first_token_ts: _Seconds
    last_token_ts: _Seconds
    sent_ts: _Seconds | None = None  # of a client's log; None in a server's
    unscheduled: bool = False  # `queued_ts` and `scheduled_ts` are the client's `sent_ts`

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, record: dict[str, Any]) -> dict[str, Any]:
        sent_ts = record.get("sent_ts")
        unscheduled = sent_ts is not None and None in [record.get(name) for name in _TIMES[:2]]
        if unscheduled:
            record = record | dict.fromkeys(_TIMES[:2], sent_ts)
        needed = [name for name, field in cls.model_fields.items() if field.is_required()]
        for name in needed:
            if record.get(name) is None:
                hint = did_you_mean(name, [other for other in record if other not in needed])
                wanted = f"A line needs {', '.join(needed)}"
                raise ValueError(f"{name!r} is missing.{hint} {wanted}")
        return record | {"unscheduled": unscheduled}

    @model_validator(mode="after")
    def _check_order(self) -> LogLine:
        for before, after in pairwise(_TIMES):
            first, second = getattr(self, before), getattr(self, after)
            if second < first:
                raise ValueError(f"{after} ({second}) comes before {before} ({first})")
        return self


@dataclass(frozen=True)
class RequestLog:
    """A request log of n requests in order of arrival.

    Times are seconds since the first arrival; those of the arrivals on the front end's clock, the
    others on the engine's, which differ by a constant: see `submit_s`.
    """

    name: str
    sha256: str
    ids: tuple[str, ...]
    prompt_tokens: NDArray[np.int64]  # (n,)
    output_tokens: NDArray[np.int64]  # (n,)
    arrival_s: Array  # (n,) on the front end's clock
    queued_s: Array  # (n,) on the engine's clock, as the following
    scheduled_s: Array  # (n,) all NaN where the log has none
    first_token_s: Array  # (n,)
    last_token_s: Array  # (n,)
    failed: int = 0  # requests of the log that have no answer and are left out

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def has_schedule(self) -> bool:
        """True if the log has the times at which requests were scheduled."""
        return not bool(np.isnan(self.scheduled_s).any())

    def submit_s(self, requests: int) -> Array:
        """Return the arrivals (n,) on the engine's clock, where latencies start.

        `queued_ts` itself is no arrival: it waits for the end of the step under way. The clocks are
        matched by the request that waited least among the first `requests`.
        """
        offset_s = float(np.min(self.queued_s[:requests] - self.arrival_s[:requests]))
        return self.arrival_s + offset_s


def read_log(path: str | Path, model: str | None = None) -> RequestLog:
    """Read and check a request log.

    Args:
        path: The file.
        model: Of a log whose lines name their `model`: read only the lines of this one.

    Raises:
        InfraMindError: The file cannot be read, is empty, or a line of it is wrong: no JSON object,
            a field missing or not a number, negative or contradictory times, a repeated id, an
            order other than that of arrival. Or its requests are of several models and none was
            chosen. The message names the line.
    """
    path, failed = Path(path), 0
    rows: list[LogLine] = []
    seen: dict[str, int] = {}
    models: set[str] = set()
    for number, record in read_objects(path):
        where, of = f"{path}, line {number}", record.get("model")
        if isinstance(of, str):
            models.add(of)
        if model is not None and of != model:
            continue
        of_answers = ("input_toks", "output_toks", *_TIMES[2:])
        complete = record.get("sent_ts") is None or None not in map(record.get, of_answers)
        if record.get("status", "ok") not in _ANSWERED or not complete:
            failed += 1
            continue
        row = validate(record, LogLine, source=where)
        first = seen.setdefault(row.request_id, number)
        if first != number and row.sent_ts is None:  # clients of a gateway name their requests
            raise ConfigError(
                f"{where}: request_id {row.request_id!r} was used on line {first} already"
            )
        if row.sent_ts is None and rows and row.arrival_time < rows[-1].arrival_time:
            raise ConfigError(
                f"{where}: request {row.request_id!r} arrived before the one on the line above; "
                "sort the lines by arrival_time"
            )
        rows.append(row)
    if model is None and len(models) > 1:
        known = ", ".join(sorted(models))
        raise ConfigError(f"{path}: holds requests of several models; choose one of {known}")
    if not rows and model is not None and model not in models:
        raise ConfigError(f"{path}: {unknown('model', model, sorted(models))}")
    if not rows:
        raise ConfigError(f"{path}: holds no answered request; expected one JSON object a line")
    rows.sort(key=lambda row: row.arrival_time)

    speed = one_speed([row.speed for row in rows], path)

    def column(name: str) -> Array:
        return np.array([getattr(row, name) for row in rows], np.float64)

    def times(name: str, first: str) -> Array:
        since_s: Array = column(name) - column(first)[0]
        return since_s * speed

    unscheduled = any(row.unscheduled for row in rows)
    return RequestLog(
        name=path.name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        ids=tuple(row.request_id for row in rows),
        prompt_tokens=column("input_toks").astype(np.int64),
        output_tokens=column("output_toks").astype(np.int64),
        arrival_s=times("arrival_time", "arrival_time"),
        queued_s=times("queued_ts", "queued_ts"),
        scheduled_s=times("scheduled_ts", "queued_ts") * (np.nan if unscheduled else 1.0),
        first_token_s=times("first_token_ts", "queued_ts"),
        last_token_s=times("last_token_ts", "queued_ts"),
        failed=failed,
    )


def one_speed(speeds: Sequence[float] | Array, path: Path) -> float:
    """Return the speed of all lines of a log; a ConfigError if there are several."""
    if len(known := np.unique(speeds).tolist()) > 1:
        both = f"{known[0]:g} and {known[-1]:g} (lines without `speed` count as 1)"
        raise ConfigError(f"{path}: was recorded at the speeds {both}: give the lines of one")
    return float(known[0])
