"""Pools to watch: a simulated stream of queries, live servers, a gateway.

All write these events:

servers     names, and where they are known GPUs and slots; clock: "simulated" or "wall"
sample      state of every server at an instant "t" of the clock, in seconds
decision    of a simulation: the query, its call, and where it went
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.studio.settings import PacedLog, PoolSettings, Ways

if TYPE_CHECKING:
    from inframind_gym.envs.routing import StreamEnv
    from inframind_gym.live.gateway.command import Scrape

SAMPLE_S: Final = 1.0  # of a simulation, between two samples
_DIGITS: Final = 3
_COUNTERS: Final = {  # of a gateway, by server: key of a sample, metric, labels
    "running": ("calls_in_flight", {}),
    "waiting": ("queue_depth_seen_requests", {}),
    "up": ("server_up", {}),
    "left_alone": ("breaker_open", {}),
    "decisions": ("decisions_total", {}),
    "failed": ("calls_total", {"outcome": "failed"}),
    "output_tokens": ("tokens_total", {"kind": "output"}),
}


def check_source(settings: PoolSettings, ways: Ways) -> None:
    """Raise `ConfigError` where the studio was started without that pool or gateway."""
    if settings.source not in ways.sources():
        raise ConfigError(
            f"there is no {settings.source} to watch. Start the studio with --{settings.source}."
        )


def play(settings: PoolSettings, ways: Ways, log: PacedLog) -> None:
    """Play a stream, or watch live servers until the time is over."""
    players = {"simulation": _play_stream, "pool": _watch_pool, "gateway": _watch_gateway}
    players[settings.source](settings, ways, log)


def _play_stream(settings: PoolSettings, ways: Ways, log: PacedLog) -> None:
    """Play a simulated stream under a policy, paced by the wall clock; it reaches nothing."""
    import gymnasium as gym

    import inframind_gym  # noqa: F401 (registers the environment)
    from inframind_gym.policies import requires_of, resolve_policy

    policy, row = resolve_policy(settings.policy), np.zeros(1, np.int64)
    taken = {"pool", "workload", "arrival_rate_per_min", "num_queries", "budget_s"}
    env: StreamEnv = gym.make(  # type: ignore[assignment]
        "InfraMind-Stream-v0",
        disable_env_checker=True,
        observation="index",
        **settings.model_dump(include=taken),
        **requires_of(policy),
    ).unwrapped
    counts = dict.fromkeys(("done", "solved", "in_time", "good"), 0)

    def sample(now_s: float) -> None:
        simulation = env.simulation
        loads, up = simulation.loads(0), simulation.models_up_now()
        state = {
            "t": round(now_s, _DIGITS),
            "running": [load.running for load in loads],
            "waiting": [load.waiting for load in loads],
            "kv": [round(float(load.kv_frac), _DIGITS) for load in loads],
            "up": [up >> m & 1 for m in range(len(loads))],
            "arrived": int(simulation.state.stream[0]["arrived"]),
        }
        log.append("sample", {**state, **counts})

    observation, _ = env.reset(seed=settings.seed)
    servers = _named(env.simulation.pool, "simulated")
    log.append("servers", servers | {"queries": settings.num_queries})
    policy.reset(env.policy_spec(), [settings.seed])
    observe = getattr(policy, "observe", None)
    began_s, sampled_s, over = time.monotonic(), -SAMPLE_S, False
    while not over:
        context = env.context()
        now_s = float(context["time_s"])
        if settings.speed is not None:
            log.rest(began_s + now_s / settings.speed - time.monotonic())
        if now_s >= sampled_s + SAMPLE_S:
            sampled_s = now_s
            sample(now_s)
        action = policy.act_batch(observation[None], np.array([context]), row)[0]
        log.append("decision", _decision(env, context, np.atleast_1d(action)))
        observation, _, over, _, _ = env.step(action)
        ended = env.completed()
        if observe is not None and len(ended):
            observe(ended, 0)
        solved, in_time = ended["solved"] > 0, ended["latency_s"] <= ended["budget_s"]
        shares = {"done": solved | True, "solved": solved, "in_time": in_time}
        for key, outcome in (shares | {"good": solved & in_time}).items():
            counts[key] += int(outcome.sum())
    sample(float(env.simulation.state.stream[0]["now_s"]))
    count = max(counts["done"], 1)
    shown = {"goodput": counts["good"] / count, "solved": counts["solved"] / count}
    log.finish("complete", {"queries": counts["done"], **shown, "slo": counts["in_time"] / count})


def _decision(env: StreamEnv, context: np.void, action: Any) -> dict[str, Any]:
    from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
    from inframind_gym.simulator.workflow.roles import ROLES
    from inframind_gym.simulator.workflow.state import PLAN
    from inframind_gym.simulator.workflow.topology import STRATEGIES, TOPOLOGIES

    left_s = float(context["arrival_s"] + context["budget_s"] - context["time_s"])
    event: dict[str, Any] = {"t": round(float(context["time_s"]), _DIGITS)}
    event |= {"query": int(context["query"]), "left_s": round(left_s, _DIGITS)}
    if context["kind"] == PLAN:
        return event | {"call": "plan", "to": f"{TOPOLOGIES[action[0]]}, {action[1] + 1} agents"}
    route = int(action[PLAN_ACTIONS if len(action) > PLAN_ACTIONS else 0])
    model, strategy = divmod(route, len(STRATEGIES))
    alias = env.simulation.pool.models[model].alias
    role = f"{ROLES[context['role']].name}, {context['node'] + 1} of {context['num_nodes']}"
    return event | {"call": role, "server": model, "to": f"{alias}, {STRATEGIES[strategy]}"}


def _named(pool: Any, clock: str) -> dict[str, Any]:
    return {
        "names": [model.alias for model in pool.models],
        "gpus": [model.gpu for model in pool.models],
        "slots": [model.server.slots for model in pool.models],
        "clock": clock,
    }


def _until_over(settings: PoolSettings, log: PacedLog, look: Callable[[], dict[str, Any]]) -> None:
    """Sample live servers until the time is over or the run is stopped."""
    began_s, samples = time.monotonic(), 0
    while (now_s := time.monotonic() - began_s) < settings.watch_s:
        log.append("sample", {"t": round(now_s, _DIGITS), **look()})
        samples += 1
        log.rest(began_s + samples * settings.poll_s - time.monotonic())
    log.finish("complete", {"samples": samples, "watched_s": settings.watch_s})


def _watch_pool(settings: PoolSettings, ways: Ways, log: PacedLog) -> None:
    """Watch the servers of a live pool by their metrics."""
    from inframind_gym.live.settings import LiveSettings, addresses
    from inframind_gym.live.watcher import MetricsWatcher
    from inframind_gym.simulator.server.pool import load_pool

    pool = load_pool(str(ways.pool))
    log.append("servers", _named(pool, "wall"))
    with MetricsWatcher(addresses(pool), LiveSettings(), poll_s=settings.poll_s) as watcher:
        watcher.wait_checked()

        def look() -> dict[str, Any]:
            servers = watcher.status()
            readings = [server.reading if server.up else None for server in servers]
            return {
                "running": [0 if r is None else int(r.running_req) for r in readings],
                "waiting": [0 if r is None else int(r.waiting_req) for r in readings],
                "kv": [0.0 if r is None else round(r.kv_frac, _DIGITS) for r in readings],
                "up": [int(server.up) for server in servers],
                "notes": [server.reason for server in servers],
            }

        _until_over(settings, log, look)


def _watch_gateway(settings: PoolSettings, ways: Ways, log: PacedLog) -> None:
    """Watch a gateway by its metrics, as `inframind top` does."""
    from inframind_gym.live.gateway.command import Scrape

    url = str(ways.gateway)
    first = Scrape(url)
    ((about, _),) = first.samples["inframind_router_info"]
    names = [dict(labels)["model"] for labels, _ in first.samples["inframind_server_up"]]
    log.append("servers", {"names": names, "about": dict(about), "clock": "wall"})

    def counts(seen: Scrape) -> dict[str, Any]:
        by_server = {
            key: [int(seen.sum(metric, model=name, **labels)) for name in names]
            for key, (metric, labels) in _COUNTERS.items()
        }
        return {
            **by_server,
            "kv": [round(seen.sum("kv_cache_seen", model=name), _DIGITS) for name in names],
            "in_flight": int(seen.sum("queries_in_flight")),
            "done": int(seen.sum("queries_total", outcome="answered")),
            "in_time": int(seen.sum("queries_total", outcome="answered", in_budget="true")),
            "refused": int(seen.sum("refused_total")),
        }

    def look() -> dict[str, Any]:
        try:
            return counts(Scrape(url))
        except InfraMindError as error:  # it may come back
            nothing = {key: [0] * len(names) for key in ("running", "waiting", "kv", "up")}
            return {**nothing, "notes": [str(error)]}

    _until_over(settings, log, look)
