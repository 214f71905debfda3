"""`/metrics` of a simulated server: names, labels and buckets of vLLM 0.32."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from inframind_gym.live.simulated.engine import Flight

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_SECONDS: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKEN_SECONDS: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
_FIRST_SECONDS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_FEW: Final = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
_REASONS: Final = ("stop", "length", "abort", "error", "repetition")
_SLEEPS: Final = ("awake", "weights_offloaded", "discard_all")
# Of the real front end; nothing here ever counts them.
_ALWAYS_0: Final = (
    *("estimated_flops_per_gpu", "estimated_read_bytes_per_gpu", "estimated_write_bytes_per_gpu"),
    *("prefix_cache_queries", "prefix_cache_hits", "prompt_tokens_cached"),
    *("external_prefix_cache_queries", "external_prefix_cache_hits"),
    *("mm_cache_queries", "mm_cache_hits"),
)


@dataclass(frozen=True, slots=True)
class Load:
    """State of a server at one instant."""

    running: int  # requests
    waiting: int
    kv_frac: float
    evictions: int  # so far, of the requests that are not over
    level: int  # at which it sleeps; 0: it is awake


def _token_buckets(max_model_len: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, … up to the longest sequence."""
    ladder = [digit * 10.0**power for power in range(9) for digit in (1, 2, 5)]
    return tuple(each for each in ladder if each <= max_model_len)


class _Histogram:
    """Counts in buckets; prometheus-client's own takes one value at a time."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += count * value

    def buckets(self) -> list[tuple[str, float]]:
        """Return upper bounds and cumulative counts."""
        total, out = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            out.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return out


class ServerMetrics:
    """Counters and histograms of one server since its start; a collector of prometheus-client.

    Args:
        model: name of the model.
        max_model_len: tokens of prompt and output.
        cache: labels of `vllm:cache_config_info`.
        load: tells the server's state.
    """

    def __init__(
        self, model: str, max_model_len: int, cache: dict[str, str], load: Callable[[], Load]
    ) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector

        self._labels = {"model_name": model, "engine": "0"}
        self._cache, self._load = cache, load
        self._created = time.time()
        tokens = _token_buckets(max_model_len)
        self._histograms = {
            "time_to_first_token_seconds": _Histogram(_FIRST_SECONDS),
            "inter_token_latency_seconds": _Histogram(_TOKEN_SECONDS),
            "request_time_per_output_token_seconds": _Histogram(_TOKEN_SECONDS),
            "e2e_request_latency_seconds": _Histogram(_SECONDS),
            "request_queue_time_seconds": _Histogram(_SECONDS),
            "request_inference_time_seconds": _Histogram(_SECONDS),
            "request_prefill_time_seconds": _Histogram(_SECONDS),
            "request_decode_time_seconds": _Histogram(_SECONDS),
            "request_prompt_tokens": _Histogram(tokens),
            "request_generation_tokens": _Histogram(tokens),
            "request_max_num_generation_tokens": _Histogram(tokens),
            "request_params_max_tokens": _Histogram(tokens),
            "request_prefill_kv_computed_tokens": _Histogram(tokens),
            "request_params_n": _Histogram((1.0, 2.0, 5.0, 10.0, 20.0)),
            "request_num_preemptions": _Histogram(_FEW),
        }
        self._ended = dict.fromkeys(_REASONS, 0)
        self._totals = {"prompt_tokens": 0, "generation_tokens": 0, "num_preemptions": 0}
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def count(self, flight: Flight, reason: str, max_tokens: int) -> None:
        """Count a request that is over; one that was aborted has no times but the last."""
        add = {name: histogram.add for name, histogram in self._histograms.items()}
        self._ended[reason] += 1
        self._totals["num_preemptions"] += flight.evictions
        self._totals["generation_tokens"] += flight.tokens
        add["e2e_request_latency_seconds"](flight.last_token_s - flight.entered_s)
        add["request_params_max_tokens"](max_tokens)
        add["request_params_n"](1)
        add["request_prompt_tokens"](flight.prompt_tokens)
        add["request_generation_tokens"](flight.tokens)
        add["request_max_num_generation_tokens"](flight.tokens)
        if flight.admitted_s is None or flight.first_token_s is None:
            return
        self._totals["prompt_tokens"] += flight.prompt_tokens
        decode_s, more = flight.last_token_s - flight.first_token_s, flight.tokens - 1
        add["time_to_first_token_seconds"](flight.first_token_s - flight.entered_s)
        add["request_queue_time_seconds"](flight.admitted_s - flight.entered_s)
        add["request_prefill_time_seconds"](flight.first_token_s - flight.admitted_s)
        add["request_inference_time_seconds"](flight.last_token_s - flight.admitted_s)
        add["request_decode_time_seconds"](decode_s)
        add["request_prefill_kv_computed_tokens"](flight.prompt_tokens)
        add["request_num_preemptions"](flight.evictions)
        add["request_time_per_output_token_seconds"](decode_s / more if more else 0.0)
        if more:
            add["inter_token_latency_seconds"](decode_s / more, more)

    def text(self) -> bytes:
        """Return the answer to `/metrics`."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield what there is to see now."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        def family(kind: Any, name: str, values: Mapping[str, float], label: str = "") -> Metric:
            more = {} if kind is GaugeMetricFamily else {"created": self._created}
            of = list(self._labels) + ([label] if label else [])
            out: Metric = kind(f"vllm:{name}", name, labels=of)
            for each, value in values.items():
                own = [each] if label else []
                out.add_metric([*self._labels.values(), *own], value, **more)  # type: ignore
            return out

        load, totals = self._load(), dict(self._totals)
        totals["num_preemptions"] += load.evictions
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        yield family(gauge, "num_requests_running", {"": load.running})
        yield family(gauge, "num_requests_waiting", {"": load.waiting})
        waits = {"capacity": load.waiting, "deferred": 0}
        yield family(gauge, "num_requests_waiting_by_reason", waits, "reason")
        yield family(gauge, "kv_cache_usage_perc", {"": load.kv_frac})
        states = {state: float(load.level == level) for level, state in enumerate(_SLEEPS)}
        yield family(gauge, "engine_sleep_state", states, "sleep_state")
        info = gauge("vllm:cache_config_info", "cache_config_info", labels=[*self._cache, "engine"])
        info.add_metric([*self._cache.values(), "0"], 1.0)
        yield info
        for name, total in (totals | dict.fromkeys(_ALWAYS_0, 0)).items():
            yield family(counter, name, {"": total})
        yield family(counter, "request_success", self._ended, "finished_reason")
        for name, histogram in self._histograms.items():
            out = HistogramMetricFamily(f"vllm:{name}", name, labels=list(self._labels))
            out.add_metric(list(self._labels.values()), histogram.buckets(), histogram.sum)
            out.add_sample(f"vllm:{name}_created", self._labels, self._created)
            yield out
