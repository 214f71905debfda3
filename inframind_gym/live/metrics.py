"""Metrics of a vLLM server, read with prometheus-client's parser.

Values are summed over the engines of a server. Counters and histograms count since the server was
started: the difference between two readings is of interest.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from inframind_gym.errors import InfraMindError

RUNNING: Final = "vllm:num_requests_running"
WAITING: Final = "vllm:num_requests_waiting"
_SLEEP: Final = "vllm:engine_sleep_state"
_KV: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # now, before 0.10
_SUM: Final = "vllm:e2e_request_latency_seconds_sum"
_COUNT: Final = "vllm:e2e_request_latency_seconds_count"
# When the process, or its first counter, was made: another one means another process.
_STARTED: Final = ("process_start_time_seconds", "vllm:e2e_request_latency_seconds_created")
_WANTED: Final = frozenset([RUNNING, WAITING, _SLEEP, _SUM, _COUNT, *_KV, *_STARTED])


class MetricsError(InfraMindError):
    """A text is not that of a vLLM server's metrics."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One server's metrics at one instant."""

    taken_s: float  # on the monotonic clock
    running_req: float
    waiting_req: float
    kv_frac: float  # 0..1, mean over engines
    asleep: bool | None  # None: the server does not report it
    e2e_s: float  # latencies of the requests that finished since its start, summed
    finished_req: float  # their number
    started: float  # identifies the process; NaN: unknown


def parse_metrics(text: str, taken_s: float) -> Reading:
    """Read a server's answer to `/metrics`.

    Args:
        text: the answer, in the Prometheus text format.
        taken_s: its time, on the monotonic clock.

    Raises:
        MetricsError: the text is no such answer: a line cannot be read, a number is none, or the
            numbers of running and waiting requests are missing.
    """
    from prometheus_client.parser import text_string_to_metric_families

    # Most lines are buckets of histograms, which are not used: not worth parsing.
    lines = [line for line in text.split("\n") if re.split("[{ ]", line, maxsplit=1)[0] in _WANTED]
    values: dict[str, list[float]] = {}
    awake: list[float] = []
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                value = float(sample.value)
                if not math.isfinite(value) or value < 0.0:
                    raise MetricsError(f"{sample.name} is {value}")
                values.setdefault(sample.name, []).append(value)
                if sample.name == _SLEEP and sample.labels.get("sleep_state") == "awake":
                    awake.append(value)
    except (ValueError, KeyError, IndexError) as error:
        raise MetricsError(f"the answer to /metrics cannot be read: {error}") from None
    for name in (RUNNING, WAITING):
        if name not in values:
            raise MetricsError(f"the answer to /metrics has no {name}: is this a vLLM server?")
    cache = next((values[name] for name in _KV if name in values), [0.0])
    counted = _SUM in values and _COUNT in values
    return Reading(
        taken_s=taken_s,
        running_req=sum(values[RUNNING]),
        waiting_req=sum(values[WAITING]),
        kv_frac=sum(cache) / len(cache),
        asleep=min(awake) < 1.0 if awake else None,
        e2e_s=sum(values[_SUM]) if counted else 0.0,
        finished_req=sum(values[_COUNT]) if counted else 0.0,
        started=max((max(values[name]) for name in _STARTED if name in values), default=math.nan),
    )


class MeanLatency:
    """Mean latency of the requests that finished between two readings of one server.

    A server that was restarted counts from 0 again: the difference is all that it has counted.

    Attributes:
        mean_s: the last one where nothing finished since; NaN before there is any.
        taken_s: time of the mean, on the monotonic clock; -inf before there is any.
    """

    def __init__(self) -> None:
        self.mean_s, self.taken_s = math.nan, -math.inf
        self._last: Reading | None = None

    def update(self, reading: Reading) -> None:
        """Take the next reading; the first one is where counting starts."""
        last, self._last = self._last, reading
        if last is None:
            return
        before_s, before = last.e2e_s, last.finished_req
        known = not math.isnan(reading.started + last.started)
        if (known and reading.started != last.started) or (
            reading.e2e_s < before_s or reading.finished_req < before
        ):
            before_s, before = 0.0, 0.0
        if reading.finished_req > before:
            self.mean_s = (reading.e2e_s - before_s) / (reading.finished_req - before)
            self.taken_s = reading.taken_s
