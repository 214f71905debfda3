"""What vLLM's `/metrics` says, read with prometheus-client's parser (FACTS §3).

    reading = parse_metrics(text, taken_s=time.monotonic())
    means.update(reading)
    means.of["e2e"]  # mean latency of what finished since the reading before, s

Values are summed over the engines of a server. Counters and histograms count since the server was
started: what is of interest is the difference between two readings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from inframind_gym.errors import InfraMindError

RUNNING: Final = "vllm:num_requests_running"
WAITING: Final = "vllm:num_requests_waiting"
SLEEP: Final = "vllm:engine_sleep_state"
FINISHED: Final = "vllm:request_success_total"
# The first name that a server has is taken: old ones only as a fallback.
KV: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
HISTOGRAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "e2e": ("vllm:e2e_request_latency_seconds",),
    "ttft": ("vllm:time_to_first_token_seconds",),
    "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "queue": ("vllm:request_queue_time_seconds",),
    "prefill": ("vllm:request_prefill_time_seconds",),
    "decode": ("vllm:request_decode_time_seconds",),
    "inference": ("vllm:request_inference_time_seconds",),
}
COUNTERS: Final[Mapping[str, str]] = {
    "preemptions": "vllm:num_preemptions_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
}
# When the process, or its first counter, was made: another one means another process.
_STARTED: Final = ("process_start_time_seconds", "vllm:e2e_request_latency_seconds_created")
_PARTS: Final = ("sum", "count")
_WANTED: Final = frozenset(
    [RUNNING, WAITING, SLEEP, FINISHED, *KV, *COUNTERS.values(), *_STARTED]
    + [f"{name}_{part}" for names in HISTOGRAMS.values() for name in names for part in _PARTS]
)


class MetricsError(InfraMindError):
    """A text is not that of a vLLM server's metrics."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One server's metrics at one instant."""

    taken_s: float  # on the monotonic clock
    running_req: float
    waiting_req: float
    kv_frac: float  # 0..1, mean over engines
    asleep: bool | None  # None: the server doesn't say
    totals: Mapping[str, tuple[float, float]]  # by HISTOGRAMS: sum in s, and count
    counters: Mapping[str, float]  # by COUNTERS; those that the server has
    finished: Mapping[str, float]  # requests by reason: "stop", "length", "abort", ...
    started: float  # tells processes apart; NaN: unknown


def parse_metrics(text: str, taken_s: float) -> Reading:
    """Read what a server answered to `/metrics`.

    Args:
        text: the answer, in the Prometheus text format.
        taken_s: when it came, on the monotonic clock.

    Raises:
        MetricsError: the text is no such answer: a line cannot be read, a number is none, or the
            numbers of running and waiting requests are missing.
    """
    from prometheus_client.parser import text_string_to_metric_families

    # Most lines are buckets of histograms that nobody asks for: not worth parsing.
    lines = [line for line in text.split("\n") if _name(line) in _WANTED]
    values: dict[str, list[float]] = {}
    awake: list[float] = []
    finished: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                value = float(sample.value)
                if not math.isfinite(value) or value < 0.0:
                    raise MetricsError(f"{sample.name} is {value}")
                values.setdefault(sample.name, []).append(value)
                if sample.name == SLEEP and sample.labels.get("sleep_state") == "awake":
                    awake.append(value)
                elif sample.name == FINISHED:
                    reason = sample.labels.get("finished_reason", "unknown")
                    finished[reason] = finished.get(reason, 0.0) + value
    except (ValueError, KeyError, IndexError) as error:
        if isinstance(error, MetricsError):
            raise
        raise MetricsError(f"the answer to /metrics cannot be read: {error}") from None
    for name in (RUNNING, WAITING):
        if name not in values:
            raise MetricsError(f"the answer to /metrics has no {name}: is this a vLLM server?")
    cache = next((values[name] for name in KV if name in values), [0.0])
    totals = {}
    for key, names in HISTOGRAMS.items():
        for name in names:
            if f"{name}_sum" in values and f"{name}_count" in values:
                totals[key] = (sum(values[f"{name}_sum"]), sum(values[f"{name}_count"]))
                break
    return Reading(
        taken_s=taken_s,
        running_req=sum(values[RUNNING]),
        waiting_req=sum(values[WAITING]),
        kv_frac=sum(cache) / len(cache),
        asleep=None if not awake else min(awake) < 1.0,
        totals=totals,
        counters={key: sum(values[name]) for key, name in COUNTERS.items() if name in values},
        finished=finished,
        started=max((max(values[name]) for name in _STARTED if name in values), default=math.nan),
    )


def _name(line: str) -> str:
    """The name of a sample: what precedes the labels or the value."""
    brace = line.find("{")
    return line[:brace] if brace >= 0 else line.partition(" ")[0]


class Means:
    """Mean times of the requests that finished between two readings of one server.

    A server that was started anew counts from 0 again: all that it counted is then the difference.

    Attributes:
        of: by HISTOGRAMS: the mean in s; the last one where nothing finished since; NaN before
            there is any.
        taken_s: when the mean was taken, on the monotonic clock; -inf before there is any.
    """

    def __init__(self) -> None:
        self.of = dict.fromkeys(HISTOGRAMS, math.nan)
        self.taken_s = dict.fromkeys(HISTOGRAMS, -math.inf)
        self._last: Reading | None = None

    def update(self, reading: Reading) -> None:
        """Take the next reading; of the first one, nothing is known but where counting starts."""
        last, self._last = self._last, reading
        if last is None:
            return
        anew = _restarted(last, reading)
        for key, (total_s, count) in reading.totals.items():
            before_s, before = (0.0, 0.0) if anew else last.totals.get(key, (0.0, 0.0))
            if count > before:
                self.of[key] = (total_s - before_s) / (count - before)
                self.taken_s[key] = reading.taken_s


def _restarted(last: Reading, reading: Reading) -> bool:
    """Whether the two readings are of different processes."""
    if reading.started != last.started and not math.isnan(reading.started + last.started):
        return True
    return any(
        total_s < last.totals[key][0] or count < last.totals[key][1]
        for key, (total_s, count) in reading.totals.items()
        if key in last.totals
    )
