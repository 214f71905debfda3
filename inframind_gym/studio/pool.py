"""Pools to watch: a simulated stream of queries, live servers, a gateway.

All write these events:

servers     names, and where they are known GPUs and slots; unit of the clock
sample      state of every server at an instant "t" of the clock, in seconds
decision    of a simulation: the query, its call, and where it went
query       of a simulation: a query that is over
request     of a gateway with its access log: a request that is over
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.studio.orders import PoolOrder

if TYPE_CHECKING:
    from inframind_gym.envs.routing.stream import StreamEnv
    from inframind_gym.live.gateway.top import Look
    from inframind_gym.studio.launch import PacedLog, Ways

SAMPLE_S: Final = 1.0  # of a simulation, between two samples
_ENV_ID: Final = "InfraMind-Stream-v0"
_DIGITS: Final = 3
_MOST_TAIL_BYTES: Final = 2**20  # of an access log, between two looks
_MOST_REQUESTS: Final = 50
_REQUEST: Final = (  # what is shown of a request
    *("asked", "model", "strategy", "http", "status", "attempts", "error"),
    *("latency_s", "predicted_s", "budget_s", "input_toks", "output_toks"),
)


def player(order: PoolOrder, ways: Ways) -> Callable[[PacedLog], None]:
    """Return what plays or watches a pool.

    Raises:
        ConfigError: the studio was started without that pool or gateway.
    """
    if order.source not in ways.sources():
        raise ConfigError(
            f"there is no {order.source} to watch. Start the studio with --{order.source}."
        )
    if order.source == "simulation":
        return lambda log: _Stream(order, log).play()
    if order.source == "pool":
        return lambda log: _watch_pool(order, str(ways.pool), log)
    return lambda log: _watch_gateway(order, ways, log)


class _Stream:
    """A simulated stream under a policy, paced by the clock of the wall.

    Args:
        order: what is played.
        log: of the run.
    """

    def __init__(self, order: PoolOrder, log: PacedLog) -> None:
        import gymnasium as gym

        import inframind_gym  # noqa: F401 (registers the environment)
        from inframind_gym.policies import requires_of, resolve_policy

        self.order, self.log = order, log
        self.policy = resolve_policy(order.policy)
        made = gym.make(
            _ENV_ID,
            disable_env_checker=True,
            pool=order.pool,
            workload=order.workload,
            arrival_rate_per_min=order.arrival_rate_per_min,
            num_queries=order.num_queries,
            budget_s=order.budget_s,
            observation="index",
            **requires_of(self.policy),
        )
        self.env: StreamEnv = made.unwrapped  # type: ignore[assignment]
        self.done = self.solved = self.in_time = self.good = 0
        self._sampled_s = -SAMPLE_S

    def play(self) -> None:
        """Play the stream to its end."""
        env, policy, row = self.env, self.policy, np.zeros(1, np.int64)
        observation, _ = env.reset(seed=self.order.seed)
        self._present()
        policy.reset(env.policy_spec(), [self.order.seed])
        observe = getattr(policy, "observe", None)
        began_s, over = time.monotonic(), False
        while not over:
            context = env.context()
            self._keep_pace(float(context["time_s"]), began_s)
            action = policy.act_batch(observation[None], np.array([context]), row)[0]
            self._decided(context, np.atleast_1d(action))
            observation, _, over, _, _ = env.step(action)
            ended = env.completed()
            if observe is not None and len(ended):
                observe(ended, 0)
            for record in ended:
                self._ended(record)
        self._sample(float(env.simulation.state.stream[0]["now_s"]))
        self.log.finish("complete", self._summary())

    def _present(self) -> None:
        models = self.env.simulation.pool.models
        told = {
            "names": [model.alias for model in models],
            "gpus": [model.gpu for model in models],
            "slots": [model.server.slots for model in models],
            "queries": self.order.num_queries,
            "clock": "simulated",
        }
        self.log.append("servers", told)

    def _keep_pace(self, now_s: float, began_s: float) -> None:
        """Wait until the wall's clock has come to an instant, and sample the servers."""
        if self.order.speed is not None:
            self.log.rest(began_s + now_s / self.order.speed - time.monotonic())
        if now_s >= self._sampled_s + SAMPLE_S:
            self._sample(now_s)

    def _sample(self, now_s: float) -> None:
        self._sampled_s = now_s
        loads = self.env.simulation.loads(0)
        stream = self.env.simulation.state.stream[0]
        up = self.env.models_up()
        told = {
            "t": round(now_s, _DIGITS),
            "running": [load.running for load in loads],
            "waiting": [load.waiting for load in loads],
            "kv": [round(float(load.kv_frac), _DIGITS) for load in loads],
            "up": [up >> m & 1 for m in range(len(loads))],
            "arrived": int(stream["arrived"]),
            **self._counts(),
        }
        self.log.append("sample", told)

    def _counts(self) -> dict[str, int]:
        counts = {"done": self.done, "solved": self.solved, "in_time": self.in_time}
        return counts | {"good": self.good}

    def _decided(self, context: np.void, action: Any) -> None:
        from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
        from inframind_gym.simulator.workflow.roles import ROLES
        from inframind_gym.simulator.workflow.state import PLAN
        from inframind_gym.simulator.workflow.topology import CUSTOM, STRATEGIES, TOPOLOGIES
        from inframind_gym.tasks import DOMAINS

        spent_s = float(context["time_s"] - context["arrival_s"])
        told: dict[str, Any] = {
            "t": round(float(context["time_s"]), _DIGITS),
            "query": int(context["query"]),
            "domain": DOMAINS[context["domain"]],
            "budget_s": round(float(context["budget_s"]), _DIGITS),
            "left_s": round(float(context["budget_s"]) - spent_s, _DIGITS),
        }
        if context["kind"] == PLAN:
            told |= {"plan": TOPOLOGIES[action[0]], "agents": int(action[1]) + 1}
        else:
            route = int(action[PLAN_ACTIONS if len(action) > PLAN_ACTIONS else 0])
            model, strategy = divmod(route, len(STRATEGIES))
            told |= {
                "role": ROLES[context["role"]].name,
                "topology": (*TOPOLOGIES, CUSTOM)[context["topology"]],
                "call": f"{context['node'] + 1} of {context['num_nodes']}",
                "server": model,
                "strategy": STRATEGIES[strategy],
            }
        self.log.append("decision", told)

    def _ended(self, record: np.void) -> None:
        in_time = bool(record["latency_s"] <= record["budget_s"])
        solved = bool(record["solved"])
        self.done += 1
        self.solved += solved
        self.in_time += in_time
        self.good += solved and in_time
        told = {
            "t": round(float(record["finish_s"]), _DIGITS),
            "query": int(record["query"]),
            "latency_s": round(float(record["latency_s"]), _DIGITS),
            "budget_s": round(float(record["budget_s"]), _DIGITS),
            "solved": solved,
            "calls": int(record["calls"]),
        }
        self.log.append("query", told)

    def _summary(self) -> dict[str, Any]:
        queries = max(self.done, 1)
        shares = {"goodput": self.good, "solved": self.solved, "slo": self.in_time}
        return {"queries": self.done, **{name: n / queries for name, n in shares.items()}}


def _until(order: PoolOrder, log: PacedLog, look: Callable[[float], dict[str, Any]]) -> None:
    """Sample live servers until the time is over or the run is stopped."""
    began_s, samples = time.monotonic(), 0
    while (now_s := time.monotonic() - began_s) < order.watch_s:
        log.append("sample", {"t": round(now_s, _DIGITS), **look(now_s)})
        samples += 1
        log.rest(began_s + samples * order.poll_s - time.monotonic())
    log.finish("complete", {"samples": samples, "watched_s": order.watch_s})


def _watch_pool(order: PoolOrder, name: str, log: PacedLog) -> None:
    """Watch the servers of a live pool by their metrics."""
    from inframind_gym.live.settings import LiveSettings, addresses
    from inframind_gym.live.watcher import MetricsWatcher
    from inframind_gym.simulator.server.pool import load_pool

    pool = load_pool(name)
    told = {
        "names": [model.alias for model in pool.models],
        "gpus": [model.gpu for model in pool.models],
        "slots": [model.server.slots for model in pool.models],
        "clock": "wall",
    }
    log.append("servers", told)
    with MetricsWatcher(addresses(pool), LiveSettings(), poll_s=order.poll_s) as watcher:
        watcher.wait_checked()

        def look(_: float) -> dict[str, Any]:
            seen = watcher.status()
            readings = [server.reading if server.up else None for server in seen]
            return {
                "running": [0 if r is None else int(r.running_req) for r in readings],
                "waiting": [0 if r is None else int(r.waiting_req) for r in readings],
                "kv": [0.0 if r is None else round(r.kv_frac, _DIGITS) for r in readings],
                "up": [int(server.up) for server in seen],
                "notes": [server.reason for server in seen],
            }

        _until(order, log, look)


class _Tail:
    """Lines that are added to an access log from now on.

    Args:
        path: the file; None, or one that is missing: there are none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._at = path.stat().st_size if path is not None and path.is_file() else 0

    def read(self) -> list[dict[str, Any]]:
        """Return the newest whole lines since the last call, with what is shown of them."""
        if self._path is None or not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            if self._path.stat().st_size < self._at:  # it was begun again
                self._at = 0
            file.seek(self._at)
            whole = file.read(_MOST_TAIL_BYTES).rpartition(b"\n")[0]
        self._at += len(whole) + bool(whole)
        return [_shown(line) for line in whole.splitlines()[-_MOST_REQUESTS:]]


def _shown(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
        return {key: found.get(key) for key in _REQUEST}
    except (ValueError, AttributeError):
        return {"error": "a line of the access log that cannot be read"}


def _watch_gateway(order: PoolOrder, ways: Ways, log: PacedLog) -> None:
    """Watch a gateway by its metrics, as `inframind top` does, and by its access log."""
    from inframind_gym.live.gateway.top import Look

    url, tail = str(ways.gateway), _Tail(ways.access_log)
    first = Look(url)
    ((run, _),) = first.samples["inframind_router_info"]
    names = [dict(labels)["model"] for labels, _ in first.samples["inframind_server_up"]]
    log.append("servers", {"names": names, "about": dict(run), "clock": "wall"})

    def look(now_s: float) -> dict[str, Any]:
        for request in tail.read():
            log.append("request", {"t": round(now_s, _DIGITS), **request})
        try:
            return _seen(Look(url), names)
        except InfraMindError as error:  # it may come back
            nothing = [0] * len(names)
            unseen = {key: nothing for key in ("running", "waiting", "kv", "up")}
            return {**unseen, "notes": [str(error)]}

    _until(order, log, look)


def _seen(look: Look, names: list[str]) -> dict[str, Any]:
    def each(metric: str, **labels: str) -> list[float]:
        return [look.sum(metric, model=name, **labels) for name in names]

    return {
        "running": [int(n) for n in each("calls_in_flight")],
        "waiting": [int(n) for n in each("queue_depth_seen_requests")],
        "kv": [round(share, _DIGITS) for share in each("kv_cache_seen")],
        "up": [int(n) for n in each("server_up")],
        "left_alone": [int(n) for n in each("breaker_open")],
        "decisions": [int(n) for n in each("decisions_total")],
        "failed": [int(n) for n in each("calls_total", outcome="failed")],
        "output_tokens": [int(n) for n in each("tokens_total", kind="output")],
        "in_flight": int(look.sum("queries_in_flight")),
        "done": int(look.sum("queries_total", outcome="answered")),
        "in_time": int(look.sum("queries_total", outcome="answered", in_budget="true")),
        "refused": int(look.sum("refused_total")),
    }
