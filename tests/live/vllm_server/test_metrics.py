"""What a server answers, sense or nonsense: /metrics, /is_sleeping, /v1/models."""

from __future__ import annotations

import math

import pytest

from inframind_gym.live.watcher import DownError, Means, parse_metrics

pytest.importorskip("prometheus_client")


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


def test_engines_are_summed() -> None:
    both = text(3, 2, (10.0, 4)) + text(1, 0, (2.0, 2)).replace('engine="0"', 'engine="1"')
    both += 'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.6\n'
    for engine, awake in ((0, 1.0), (1, 0.0)):
        both += f'vllm:engine_sleep_state{{engine="{engine}",sleep_state="awake"}} {awake}\n'
    reading = parse_metrics(both, 0.0)
    assert (reading.running_req, reading.waiting_req) == (4, 2)
    assert (reading.e2e_s, reading.finished_req) == (12.0, 6)
    assert reading.kv_frac == pytest.approx(0.4)
    assert reading.asleep is True  # one that sleeps is enough
    assert parse_metrics(text(), 0.0).asleep is None


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
        (text().replace(" 3", " 3" + 400 * "0"), "cannot be read"),
        (text().replace('engine="0"}', 'engine="0'), "cannot be read"),
        ("\0\xff" * 100, "has no"),
    ],
)
def test_garbage(garbage: str, message: str) -> None:
    with pytest.raises(DownError, match=message):
        parse_metrics(garbage, 0.0)


def test_means_are_those_of_what_finished_in_between() -> None:
    latency = Means()
    latency.update(parse_metrics(text(e2e=(100.0, 10)), 5.0))
    assert not latency.mean_s  # of what was before, nothing is known
    started = {"process_start_time_seconds": 1e9}
    for e2e, taken_s, mean, more in (
        ((106.0, 12), 10.0, (3.0, 10.0), {}),
        ((106.0, 12), 15.0, (3.0, 10.0), {}),  # held
        ((107.0, 13), 20.0, (1.0, 20.0), {}),
        ((8.0, 4), 25.0, (2.0, 25.0), {}),  # a restart: no negative difference
        ((9.0, 5), 30.0, (1.0, 30.0), started),
        # Restarted, and it counts further than the one before did already.
        ((60.0, 6), 35.0, (10.0, 35.0), {"process_start_time_seconds": 2e9}),
    ):
        latency.update(parse_metrics(text(e2e=e2e, **more), taken_s))
        assert (latency.mean_s["e2e_s"], latency.taken_s) == mean
