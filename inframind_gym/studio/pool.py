"""Pools to watch: a simulated stream of queries, live servers, a gateway.

All write these events:

servers     names, and where they are known GPUs and slots; clock: "simulated" or "wall"
sample      state of every server at an instant "t" of the clock, in seconds
decision    of a simulation: the query, its call, and where it went
query       of a simulation: a query that is over
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
    from inframind_gym.live.gateway.top import Look

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


def player(settings: PoolSettings, ways: Ways) -> Callable[[PacedLog], None]:
    """Return what plays or watches a pool.

    Raises:
        ConfigError: the studio was started without that pool or gateway.
    """
    if settings.source not in ways.sources():
        raise ConfigError(
            f"there is no {settings.source} to watch. Start the studio with --{settings.source}."
        )
    if settings.source == "simulation":
        return lambda log: _Stream(settings, log).play()
    watch = _watch_pool if settings.source == "pool" else _watch_gateway
    return lambda log: watch(settings, ways, log)


class _Stream:
    """A simulated stream under a policy, paced by the wall clock."""

    def __init__(self, settings: PoolSettings, log: PacedLog) -> None:
        import gymnasium as gym

        import inframind_gym  # noqa: F401 (registers the environment)
        from inframind_gym.policies import requires_of, resolve_policy

        self.settings, self.log = settings, log
        self.policy = resolve_policy(settings.policy)
        taken = {"pool", "workload", "arrival_rate_per_min", "num_queries", "budget_s"}
        made = gym.make(
            "InfraMind-Stream-v0",
            disable_env_checker=True,
            observation="index",
            **settings.model_dump(include=taken),
            **requires_of(self.policy),
        )
        self.env: StreamEnv = made.unwrapped  # type: ignore[assignment]
        self.counts = dict.fromkeys(("done", "solved", "in_time", "good"), 0)

    def play(self) -> None:
        """Play the stream to its end."""
        env, policy, row = self.env, self.policy, np.zeros(1, np.int64)
        observation, _ = env.reset(seed=self.settings.seed)
        servers = _named(env.simulation.pool, "simulated")
        self.log.append("servers", {**servers, "queries": self.settings.num_queries})
        policy.reset(env.policy_spec(), [self.settings.seed])
        observe = getattr(policy, "observe", None)
        began_s, sampled_s, over = time.monotonic(), -SAMPLE_S, False
        while not over:
            context = env.context()
            now_s = float(context["time_s"])
            if self.settings.speed is not None:
                self.log.rest(began_s + now_s / self.settings.speed - time.monotonic())
            if now_s >= sampled_s + SAMPLE_S:
                sampled_s = now_s
                self._sample(now_s)
            action = policy.act_batch(observation[None], np.array([context]), row)[0]
            self._decided(context, np.atleast_1d(action))
            observation, _, over, _, _ = env.step(action)
            ended = env.completed()
            if observe is not None and len(ended):
                observe(ended, 0)
            for record in ended:
                self._ended(record)
        self._sample(float(env.simulation.state.stream[0]["now_s"]))
        done = self.counts["done"]
        shares = {"goodput": "good", "solved": "solved", "slo": "in_time"}
        shown = {name: self.counts[key] / max(done, 1) for name, key in shares.items()}
        self.log.finish("complete", {"queries": done, **shown})

    def _sample(self, now_s: float) -> None:
        simulation = self.env.simulation
        loads, up = simulation.loads(0), simulation.models_up_now()
        sample = {
            "t": round(now_s, _DIGITS),
            "running": [load.running for load in loads],
            "waiting": [load.waiting for load in loads],
            "kv": [round(float(load.kv_frac), _DIGITS) for load in loads],
            "up": [up >> m & 1 for m in range(len(loads))],
            "arrived": int(simulation.state.stream[0]["arrived"]),
        }
        self.log.append("sample", {**sample, **self.counts})

    def _decided(self, context: np.void, action: Any) -> None:
        from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
        from inframind_gym.simulator.workflow.roles import ROLES
        from inframind_gym.simulator.workflow.state import PLAN
        from inframind_gym.simulator.workflow.topology import STRATEGIES, TOPOLOGIES

        left_s = float(context["arrival_s"] + context["budget_s"] - context["time_s"])
        event: dict[str, Any] = {"t": round(float(context["time_s"]), _DIGITS)}
        event["query"] = int(context["query"])
        if context["kind"] == PLAN:
            event |= {"call": "plan", "to": f"{TOPOLOGIES[action[0]]}, {action[1] + 1} agents"}
        else:
            route = int(action[PLAN_ACTIONS if len(action) > PLAN_ACTIONS else 0])
            model, strategy = divmod(route, len(STRATEGIES))
            alias = self.env.simulation.pool.models[model].alias
            role = f"{ROLES[context['role']].name}, {context['node'] + 1} of {context['num_nodes']}"
            event |= {"call": role, "server": model, "to": f"{alias}, {STRATEGIES[strategy]}"}
        self.log.append("decision", {**event, "left_s": round(left_s, _DIGITS)})

    def _ended(self, record: np.void) -> None:
        solved = bool(record["solved"])
        in_time = bool(record["latency_s"] <= record["budget_s"])
        outcome = {"done": True, "solved": solved, "in_time": in_time}
        for key, is_so in {**outcome, "good": solved and in_time}.items():
            self.counts[key] += is_so
        seconds = {"t": "finish_s", "latency_s": "latency_s", "budget_s": "budget_s"}
        event = {key: round(float(record[name]), _DIGITS) for key, name in seconds.items()}
        event |= {"query": int(record["query"]), "calls": int(record["calls"]), **outcome}
        self.log.append("query", event)


def _named(pool: Any, clock: str) -> dict[str, Any]:
    return {
        "names": [model.alias for model in pool.models],
        "gpus": [model.gpu for model in pool.models],
        "slots": [model.server.slots for model in pool.models],
        "clock": clock,
    }


def _until(settings: PoolSettings, log: PacedLog, look: Callable[[], dict[str, Any]]) -> None:
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

        _until(settings, log, look)


def _watch_gateway(settings: PoolSettings, ways: Ways, log: PacedLog) -> None:
    """Watch a gateway by its metrics, as `inframind top` does."""
    from inframind_gym.live.gateway.top import Look

    url = str(ways.gateway)
    first = Look(url)
    ((about, _),) = first.samples["inframind_router_info"]
    names = [dict(labels)["model"] for labels, _ in first.samples["inframind_server_up"]]
    log.append("servers", {"names": names, "about": dict(about), "clock": "wall"})

    def counts(look: Look) -> dict[str, Any]:
        by_server = {
            key: [int(look.sum(metric, model=name, **labels)) for name in names]
            for key, (metric, labels) in _COUNTERS.items()
        }
        return {
            **by_server,
            "kv": [round(look.sum("kv_cache_seen", model=name), _DIGITS) for name in names],
            "in_flight": int(look.sum("queries_in_flight")),
            "done": int(look.sum("queries_total", outcome="answered")),
            "in_time": int(look.sum("queries_total", outcome="answered", in_budget="true")),
            "refused": int(look.sum("refused_total")),
        }

    def look() -> dict[str, Any]:
        try:
            return counts(Look(url))
        except InfraMindError as error:  # it may come back
            nothing = {key: [0] * len(names) for key in ("running", "waiting", "kv", "up")}
            return {**nothing, "notes": [str(error)]}

    _until(settings, log, look)
