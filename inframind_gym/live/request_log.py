"""Request log: one JSON object a line, one line for each call that ended or failed.

`inframind calibrate` reads it (`calibration/request_log.py`). Times that end in `_ts` are seconds
of this machine's monotonic clock. An unknown value is null.

    request_id       unique in this log; also sent to the server (X-Request-Id)
    model            alias in the pool
    status           see `chat.Status`: "ok" and "truncated" have an answer
    input_toks, output_toks      as the server counted them
    arrival_time     when the request was sent to the server, epoch s
    submit_ts        when the call was made: it may have waited for a socket
    sent_ts          when it was sent
    queued_ts, scheduled_ts      from the server's own durations, set back from the first token;
                                 null unless it runs with --enable-per-request-metrics
    first_token_ts, last_token_ts   when these tokens arrived here
    end_ts           when it was over
    attempts         how often it was sent
    priority         as sent; null: none
    error            the failure, in words
    episode, call, query, task, topology, node, phase, role, strategy, max_tokens   of the call
    speed            of a gateway's line: seconds of the servers a second of the times here
    right            whether the answer was; null: not graded
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inframind_gym.errors import InfraMindError

if TYPE_CHECKING:
    from inframind_gym.live.chat import ChatResult

_log = logging.getLogger(__name__)


def log_record(
    request_id: str, model: str | None, result: ChatResult, epoch_s: float, **more: Any
) -> dict[str, Any]:
    """Return the line of a call that ended; `epoch_s`: epoch time at 0 of the monotonic clock."""
    times_s = {
        "submit_ts": result.submit_s,
        "sent_ts": result.sent_s,
        "queued_ts": result.queued_s,
        "scheduled_ts": result.scheduled_s,
        "first_token_ts": result.first_token_s,
        "last_token_ts": result.last_token_s,
        "end_ts": result.finish_s or time.monotonic(),
        "arrival_time": None if result.sent_s is None else result.sent_s + epoch_s,
    }
    return {
        "request_id": request_id,
        "model": model,
        "status": result.status,
        "input_toks": result.prompt_tokens,
        "output_toks": result.output_tokens,
        **{name: None if s is None else round(s, 6) for name, s in times_s.items()},
        "attempts": result.attempts,
        "error": result.error,
        **more,
    }


class RequestLogWriter:
    """Writer of lines, each appended in a single write: a crash loses none that was written.

    The file and its folders are made if needed. An InfraMindError: it cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._failed = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b", buffering=0)
            size = self._file.tell()
            cut = size and os.pread(self._file.fileno(), 1, size - 1) != b"\n"
        except OSError as error:
            raise InfraMindError(f"{self.path}: cannot be written: {error.strerror}") from None
        if cut:  # the machine went down in the middle of a line
            self._append(b"\n")

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record. A full disk is warned of, once, and ends no run."""
        text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
        # Half a character, as a server can send one, is written as JSON's escape of it: \\ud800.
        self._append(text.encode("utf-8", "backslashreplace") + b"\n")

    def _append(self, line: bytes) -> None:
        with self._lock:
            try:
                while line and not self._file.closed:
                    line = line[self._file.write(line) :]
            except OSError as error:
                if not self._failed:
                    _log.warning("%s: requests are no longer logged: %s", self.path, error)
                self._failed = True

    def close(self) -> None:
        """Close the file. May be called twice."""
        with self._lock:
            self._file.close()
