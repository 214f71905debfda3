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
import json
import math
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import InfraMindError, did_you_mean, unknown

_COUNTS: Final = ("input_toks", "output_toks")
_TIMES: Final = ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
_FIELDS: Final = ("request_id", *_COUNTS, *_TIMES)
_ANSWERED: Final = ("ok", "truncated")  # status of requests that have an answer
_OF_ANSWERS: Final = (*_COUNTS, "first_token_ts", "last_token_ts")
_MOST_TOKENS: Final = 1 << 24
_MOST_S: Final = 10**11  # epoch seconds of the year 5138: milliseconds are beyond
_NUMBERED: Final = re.compile(r"(.*?)(\d{1,9})\Z", re.DOTALL)


class LogError(InfraMindError):
    """A request log cannot be read, or contradicts itself."""


@dataclass(frozen=True)
class RequestLog:
    """A request log of n requests in order of arrival.

    Times are seconds since the first arrival; those of the arrivals on the front end's clock, the
    others on the engine's, which differ by a constant: see `submit_s`.

    Attributes:
        failed: Requests of the log that have no answer and are left out.
    """

    name: str
    sha256: str
    ids: tuple[str, ...]
    prompt_tokens: NDArray[np.int64]  # (n,)
    output_tokens: NDArray[np.int64]  # (n,)
    arrival_s: NDArray[np.float64]  # (n,) on the front end's clock
    queued_s: NDArray[np.float64]  # (n,) on the engine's clock, as the following
    scheduled_s: NDArray[np.float64]  # (n,) all NaN where the log has none
    first_token_s: NDArray[np.float64]  # (n,)
    last_token_s: NDArray[np.float64]  # (n,)
    failed: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def has_schedule(self) -> bool:
        """True if the log has the times at which requests were scheduled."""
        return not bool(np.isnan(self.scheduled_s).any())

    def submit_s(self, requests: int) -> NDArray[np.float64]:
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
        LogError: The file cannot be read, is empty, or a line of it is wrong: no JSON object, a
            field missing or not a number, negative or contradictory times, a repeated id, an order
            other than that of arrival. Or its requests are of several models and none was chosen.
            The message names the line and the remedy.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
        lines = raw.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise LogError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise LogError(f"{path}: is not a text file in UTF-8") from None
    rows: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    models: set[str] = set()
    failed = 0
    of_client = False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path.name}, line {number}"
        record = _record(line, where)
        of = record.get("model")
        if isinstance(of, str):
            models.add(of)
        if model is not None and of != model:
            continue
        if not _is_answered(record):
            failed += 1
            continue
        row = _row(record, where)
        first = seen.setdefault(row["request_id"], number)
        if first != number:
            raise LogError(
                f"{where}: request_id {row['request_id']!r} was used on line {first} already; "
                "give every request an id of its own"
            )
        of_client = of_client or _is_of_client(record)
        if not of_client and rows and row["arrival_time"] < rows[-1]["arrival_time"]:
            raise LogError(
                f"{where}: request {row['request_id']!r} arrived before the one on the line "
                "above; sort the lines by arrival_time"
            )
        rows.append(row)
    if model is None and len(models) > 1:
        known = ", ".join(sorted(models))
        raise LogError(f"{path.name}: holds requests of several models; choose one of {known}")
    if not rows:
        if model is not None and model not in models:
            raise LogError(f"{path.name}: {unknown('model', model, sorted(models))}")
        raise LogError(
            f"{path.name}: holds no request{' that was answered' if failed else ''}; expected one "
            "JSON object a line"
        )
    if of_client:
        rows.sort(key=lambda row: float(row["arrival_time"]))
    ids = tuple(row["request_id"] for row in rows)
    if not of_client:
        _check_numbering(ids, path.name)
    columns = {name: np.array([row[name] for row in rows]) for name in (*_COUNTS, *_TIMES)}
    if np.isnan(columns["scheduled_ts"]).any():
        columns["scheduled_ts"] = np.full(len(rows), np.nan)
    start_s = columns["queued_ts"][0]
    return RequestLog(
        name=path.name,
        sha256=hashlib.sha256(raw).hexdigest(),
        ids=ids,
        prompt_tokens=columns["input_toks"].astype(np.int64),
        output_tokens=columns["output_toks"].astype(np.int64),
        arrival_s=columns["arrival_time"] - columns["arrival_time"][0],
        queued_s=columns["queued_ts"] - start_s,
        scheduled_s=columns["scheduled_ts"] - start_s,
        first_token_s=columns["first_token_ts"] - start_s,
        last_token_s=columns["last_token_ts"] - start_s,
        failed=failed,
    )


def _record(line: str, where: str) -> dict[str, Any]:
    """Parse the JSON object of one line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LogError(f"{where}: is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise LogError(f'{where}: expected a JSON object, such as {{"request_id": ...}}')
    return record


def _row(record: dict[str, Any], where: str) -> dict[str, Any]:
    """Check one line and return its fields: the id as text, the others as numbers."""
    unscheduled = _is_of_client(record) and (
        record.get("queued_ts") is None or record.get("scheduled_ts") is None
    )
    if unscheduled:
        record = record | dict.fromkeys(("queued_ts", "scheduled_ts"), record["sent_ts"])
    missing = [name for name in _FIELDS if record.get(name) is None]
    if missing:
        spare = [name for name in record if name not in _FIELDS]
        raise LogError(
            f"{where}: {missing[0]!r} is missing.{did_you_mean(missing[0], spare)} "
            f"A line needs {', '.join(_FIELDS)}"
        )
    row: dict[str, Any] = {"request_id": str(record["request_id"])}
    for name in _COUNTS + _TIMES:
        row[name] = _number(record[name], name, where)
    for before, after in pairwise(_TIMES[1:]):
        if row[after] < row[before]:
            raise LogError(
                f"{where}: {after} ({row[after]}) comes before {before} ({row[before]}): a time "
                "between them would be negative"
            )
    if unscheduled:
        row["scheduled_ts"] = math.nan
    return row


def _number(value: object, name: str, where: str) -> float | int:
    """Check one field of a line."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise LogError(f"{where}: {name} must be a number, not {value!r}")
    if value < 0:
        raise LogError(f"{where}: {name} is {value!r:.40}; it must not be negative")
    most = _MOST_TOKENS if name in _COUNTS else _MOST_S
    if not value <= most:  # infinity and NaN, too
        raise LogError(f"{where}: {name} is {value!r:.40}; it must be a number of at most {most:,}")
    if name in _COUNTS and (value < 1 or value != int(value)):
        raise LogError(f"{where}: {name} is {value}; it must be a whole number, at least 1")
    return value


def _is_of_client(record: dict[str, Any]) -> bool:
    """Return True for a line of a client's log, False for one of a server's."""
    return record.get("sent_ts") is not None


def _is_answered(record: dict[str, Any]) -> bool:
    """Return True if the request was answered and its tokens counted, as all of a server's log."""
    if record.get("status", "ok") not in _ANSWERED:
        return False
    return not _is_of_client(record) or all(record.get(name) is not None for name in _OF_ANSWERS)


def _check_numbering(ids: tuple[str, ...], name: str) -> None:
    """Check that ids which number the requests do so in order; other ids may be anything."""
    matches = [_NUMBERED.match(identity) for identity in ids]
    if len({match[1] if match else None for match in matches}) != 1 or not matches[0]:
        return
    numbers = [int(match[2]) for match in matches if match]
    if sorted(numbers) != list(range(min(numbers), min(numbers) + len(numbers))):
        return
    for (before, earlier), (after, later) in pairwise(zip(ids, numbers, strict=True)):
        if later < earlier:
            raise LogError(
                f"{name}: the ids are not in order: {after!r} comes after {before!r}, though the "
                "lines are in order of arrival; were lines or ids mixed up?"
            )
