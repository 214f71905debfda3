"""Metrics for Prometheus: they are what the records say, and their server ends cleanly."""

from __future__ import annotations

import re
import socket
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import inframind_gym
from inframind_gym.envs import exporter
from inframind_gym.envs.exporter import ExportMetrics
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.live.gateway import gateway
from inframind_gym.policies import resolve_policy
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workflow.state import PLAN
from inframind_gym.simulator.workflow.topology import STRATEGIES, TOPOLOGIES

pytest.importorskip("prometheus_client", reason="needs the extra `live`")

pytest.importorskip("aiohttp")
from prometheus_client.parser import text_string_to_metric_families

from tests.live.vllm_server.fake import until

assert inframind_gym  # ids are registered
MODELS = tuple(load_pool("b200-2gpu").aliases)
STREAM, LIVE = "InfraMind-Stream-v0", "InfraMind-StreamLive-v0"
Samples = dict[tuple[str, tuple[str, ...]], float]


def scrape(url: str) -> Samples:
    """Every sample over HTTP: name and the labels' values, in the order of their names -> value."""
    with urllib.request.urlopen(url, timeout=60) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        text = response.read().decode()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, tuple(sample.labels[label] for label in sorted(sample.labels))
            assert key not in found
            found[key] = sample.value
    return found


def of(samples: Samples, name: str) -> dict[tuple[str, ...], float]:
    """The samples of one name that aren't 0."""
    return {labels: value for (n, labels), value in samples.items() if n == name and value}


def play(env: Any, episodes: int = 1) -> tuple[Counter[Any], list[float], Any]:
    """Sampled actions: routes and plans by name, budgets left at the decisions, and records."""
    env.action_space.seed(0)
    decided: Counter[Any] = Counter()
    remaining_s, records = [], []
    for episode in range(episodes):
        env.reset(seed=None if episode else 0)
        over = False
        while not over:
            context = env.unwrapped.context()
            passed_s = context["time_s"] - context["arrival_s"]
            remaining_s.append(float(context["budget_s"] - passed_s))
            action = env.action_space.sample()
            model, strategy = divmod(int(np.ravel(action)[-1]), len(STRATEGIES))
            route = MODELS[model], STRATEGIES[strategy]
            decided[(TOPOLOGIES[action[0]],) if context["kind"] == PLAN else route] += 1
            _, _, over, _, _ = env.step(action)
            records.append(env.unwrapped.completed())
    return decided, remaining_s, np.concatenate(records)


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    """Makes environments that export their metrics, and closes them."""
    made: list[Any] = []

    def one(env_id: str, **arguments: Any) -> ExportMetrics[Any, Any]:
        arguments = {"num_queries": 12, "observation": "index"} | arguments
        made.append(ExportMetrics(gym.make(env_id, **arguments), port=0))
        return made[-1]

    yield one
    for env in made:
        env.close()


# A sweep in which many queries end and leave their place to others, late ones among them.
@pytest.mark.parametrize("level", ["executor", "joint"])
@pytest.mark.parametrize("env_id", [STREAM, LIVE])
def test_counts_are_what_the_records_say(env_id: str, level: str, make: Any) -> None:
    scripted = {"scripted_s": 9.0} if env_id == LIVE else {}
    env = make(env_id, level=level, num_queries=60, **scripted)
    decided, remaining_s, records = play(env, episodes=2)
    samples = scrape(env.url)
    counted = of(samples, "inframind_decisions_total") | of(samples, "inframind_plans_total")
    assert counted == decided
    assert samples["inframind_episodes_total", ()] == 2 and len(records) == 120
    in_budget = np.where(records["latency_s"] <= records["budget_s"], "true", "false")
    outcome = np.where(records["solved"] == 1, "solved", "wrong")
    queries = Counter(zip(in_budget.tolist(), outcome.tolist(), strict=True))
    assert of(samples, "inframind_queries_total") == queries
    assert len(queries) == 4 or env_id == LIVE  # all that can become of a query
    for name, values, edge in (
        ("remaining_budget_seconds", np.array(remaining_s), 50.0),
        ("cost_ratio", records["cost"], 1.0),
        ("query_latency_seconds", records["latency_s"], 30.0),
    ):
        assert samples[f"inframind_{name}_count", ()] == len(values)
        assert samples[f"inframind_{name}_sum", ()] == pytest.approx(values.sum())
        assert samples[f"inframind_{name}_bucket", (str(edge),)] == (values <= edge).sum()


@pytest.mark.parametrize("env_id", [STREAM, LIVE])
def test_the_present_is_what_the_router_was_told(env_id: str, make: Any) -> None:
    busy = {"num_queries": 100, "down_models": ("llama-8b",), "arrival_rate_per_min": 200.0}
    env = make(env_id, **busy, **({"scripted_s": 30.0} if env_id == LIVE else {}))
    before, up = scrape(env.url), {(m,): 1 for m in MODELS if m != "llama-8b"}
    assert ("inframind_telemetry_age_seconds", ()) not in before  # nobody has asked the servers yet
    assert of(before, "inframind_server_up") == up
    observation, _ = env.reset(seed=0)
    for _ in range(150):
        observation, *_ = env.step(7)
    samples, raw = scrape(env.url), env.unwrapped
    depth_req = raw.policy_spec().layout.queue_depth_req(observation)
    for m, alias in enumerate(MODELS):
        seen = samples["inframind_queue_depth_seen_requests", (alias,)]
        assert seen == pytest.approx(depth_req[m], abs=1e-4)
        in_flight = raw.simulation.state.in_flight[0, 0, m]
        assert samples["inframind_calls_in_flight", (alias,)] == in_flight
    assert depth_req.max() > 10 and of(samples, "inframind_server_up") == up
    age_s = samples["inframind_telemetry_age_seconds", ()]
    assert 0 < age_s == float(raw.context()["telemetry_age_s"])
    done = sum(of(samples, "inframind_queries_total").values())
    arrived = raw.simulation.state.stream[0]["arrived"]
    assert samples["inframind_queries_in_flight", ()] == arrived - done > 0


def test_lambda_is_shown_where_there_is_one_and_moves(make: Any) -> None:
    env, shown = make(STREAM), ("inframind_lambda", ())
    assert shown not in scrape(env.url)
    policy: Any = resolve_policy("least_loaded")
    env.follow(policy)
    samples = scrape(env.url)
    # environment, policy, pool, workload
    about = ("InfraMind Stream", "least_loaded", "b200-2gpu", "mixed")
    assert of(samples, "inframind_router_info") == {about: 1} and shown not in samples
    for followed in (policy, SimpleNamespace()):  # a policy, or what trains one
        env.follow(followed)
        for multiplier in (0.0, 0.25):
            followed.multiplier = multiplier
            assert scrape(env.url)[shown] == multiplier


# The server


def test_closing_frees_the_port_and_ends_every_thread() -> None:
    before = set(threading.enumerate())
    env = ExportMetrics(gym.make(STREAM), port=0)
    scrape(env.url)
    port = int(env.url.split(":")[2].split("/")[0])
    with pytest.raises(InfraMindError, match=rf"127\.0\.0\.1:{port}: Address already in use.* 0 "):
        ExportMetrics(gym.make(STREAM), port=port)
    with socket.create_connection(("127.0.0.1", port)):  # a client that says nothing
        until(lambda: len(set(threading.enumerate()) - before) == 2)
        env.close()
    env.close()
    until(lambda: set(threading.enumerate()) == before)  # its thread ends with the client
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    with pytest.raises(ConfigError, match="port must be a number from 0 to 65535"):
        ExportMetrics(gym.make(STREAM), port=65536)


def test_a_running_router_can_be_scraped_from_another_thread(make: Any) -> None:
    env, totals, decided = make(STREAM, num_queries=60), list[float](), 0

    def keep_scraping() -> None:
        while len(totals) < 20:
            totals.append(sum(of(scrape(env.url), "inframind_decisions_total").values()))

    with ThreadPoolExecutor(1) as pool:
        scraping = pool.submit(keep_scraping)
        while not scraping.done():
            decided += play(env)[0].total()
        scraping.result()
    assert totals == sorted(totals)
    assert sum(of(scrape(env.url), "inframind_decisions_total").values()) == decided


# What there is to see


def test_every_metric_is_in_the_documentation() -> None:
    """Those of routers, and below what a gateway adds."""
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    of_routers, of_gateways = (
        set(re.findall(r"^\| `(inframind_\w+)`", part, re.MULTILINE))
        for part in text.split("\nA [gateway]")
    )

    def names(tables: Any) -> set[str]:
        counters = {f"inframind_{name}_total" for name in tables.COUNTERS}
        return counters | {f"inframind_{n}" for n in (*tables.GAUGES, *tables.HISTOGRAMS)}

    assert names(exporter) == of_routers
    assert names(gateway) - of_routers == of_gateways
