"""The gateway: its servers, metrics and calls in flight, and the server of each request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs import exporter as router
from inframind_gym.errors import InfraMindError
from inframind_gym.live.chat import ChatClient
from inframind_gym.live.config import LiveSettings, addresses
from inframind_gym.live.gateway.choose import Decision, Predictor, SingleCallPolicy, World
from inframind_gym.live.gateway.config import GatewayConfig
from inframind_gym.live.gateway.request import Attempt, Query
from inframind_gym.live.guard import RequestError
from inframind_gym.live.request_log import RequestLogWriter
from inframind_gym.live.watcher import MetricsWatcher
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workflow.backend import Telemetry
from inframind_gym.simulator.workflow.topology import STRATEGIES, STRATEGY_INSTRUCTIONS

_log = logging.getLogger(__name__)
AUTO: Final = "inframind/auto"
TEAM: Final = "inframind/team"
_STRUCTURED: Final = ("tools", "response_format", "structured_outputs")  # take no instruction
AGAIN_S: Final = 5.0  # until a client should try again while no server is up

# Metrics for Prometheus. Names and labels are those of a router's metrics (`envs/exporter.py`)
# where it has the same, so that one dashboard shows both; a request counts as a query. Text that
# clients choose is never a label.
_FIRST_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_DECISION_S: Final = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 0.1)
COUNTERS: Final = {
    "decisions": router.COUNTERS["decisions"],
    "calls": ("Calls that are over.", "model outcome"),
    "call_retries": ("Calls over that repeated a failed one.", "model"),
    "tokens": ("Tokens of calls.", "model kind"),
    "queries": ("Requests that are over.", "outcome in_budget tenant asked"),
    "refused": ("Requests refused.", "reason"),
    "policy_errors": ("Decisions that the policy did not make.", ""),
}
HISTOGRAMS: Final = {
    **{name: router.HISTOGRAMS[name] for name in ("cost_ratio", "query_latency_seconds")},
    "call_latency_seconds": (
        "Time from a call's submission to its end.",
        "model",
        router.LATENCY_BUCKETS_S,
    ),
    "time_to_first_token_seconds": ("From a request's arrival, of streams.", "", _FIRST_S),
    "decision_seconds": ("Time that a policy took.", "", _DECISION_S),
}
GAUGES: Final = {
    **router.GAUGES,
    "server_time_seen_seconds": (
        "Mean of the requests that finished at a server before the last poll: ttft_s, itl_s, "
        "queue_s, inference_s, e2e_s.",
        "model time",
    ),
    "requests_seen": ("Requests running or waiting at a server, at the last poll.", "model state"),
    "kv_cache_seen": ("Share of a server's KV cache in use, at the last poll.", "model"),
}


class Gateway:
    """Servers and decisions. Made on any thread; `open` and `close` run on the event loop.

    Raises:
        InfraMindError: pool, policy and workload do not go together, or the log cannot be written.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.metrics = router.Metrics(COUNTERS, HISTOGRAMS, GAUGES, self.gauges)
        self.pool = load_pool(config.pool)
        self.policy = SingleCallPolicy(config)
        self.predictor = Predictor(self.pool, self.policy.spec)
        self.open_requests = 0  # requests that are being answered
        self.names: dict[str, int] = {}  # the bit mask of the servers of a model, by its names
        for m, model in enumerate(self.pool.models):
            for name in dict.fromkeys((model.alias, model.name)):
                self.names[name] = self.names.get(name, 0) | 1 << m
        self.models = [AUTO, TEAM, *self.names]  # that can be asked for
        self._loop: asyncio.AbstractEventLoop | None = None
        self.log = None if config.log is None else RequestLogWriter(config.log)
        self.epoch_s = time.time() - time.monotonic()  # epoch time at 0 of the monotonic clock
        servers, poll_s = addresses(self.pool), self.pool.metrics_poll_s / config.speed
        self.watcher = MetricsWatcher(
            servers, LiveSettings(), poll_s=poll_s, on_change=self._changed
        )
        self.client = ChatClient(self.watcher)
        self.in_flight = self.client.in_flight  # (M,) calls, those of workflows included
        self.watcher.open()
        self.beginning = self.watcher.begin()

    async def open(self) -> None:
        """Connect, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        await self.client.connect()

    async def close(self) -> None:
        """Disconnect."""
        await self.client.disconnect()
        await asyncio.to_thread(self.watcher.close)
        if self.log is not None:
            self.log.close()

    # The servers

    def at_s(self, time_s: float) -> float:
        """Return the servers' seconds from the gateway's beginning to a monotonic time."""
        return (time_s - self.beginning.at_s) * self.config.speed

    def now_s(self) -> float:
        """Return the time now, as `at_s`."""
        return self.at_s(time.monotonic())

    def telemetry(self) -> Telemetry:
        """Return the servers' metrics as of the last poll, in the servers' seconds."""
        telemetry, speed = self.watcher.telemetry(self.beginning), self.config.speed
        if speed == 1.0:
            return telemetry
        taken_s, e2e_s = ([speed * s for s in x] for x in (telemetry.taken_s, telemetry.e2e_s))
        return Telemetry(telemetry.polls, taken_s, telemetry.depth_req, e2e_s, telemetry.kv_frac)

    def _changed(self, server: int, up: bool, asleep: bool, why: str) -> None:
        """End the attempts at a server that went down; called on the watcher's thread.

        Streams that have begun may go on: `stall_s` limits them.
        """
        level, alias = logging.INFO if up else logging.WARNING, self.pool.models[server].alias
        _log.log(level, "%s is %s", alias, "up" if up else f"down: {why}")
        if self._loop is not None and not up:
            words, give_up = "its server went down", self.client.give_up
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(partial(give_up, server, words, begun=False))

    def gauges(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Yield the current gauges: name, labels, value."""
        telemetry = self.telemetry()
        run = ("gateway", self.pool.name, self.config.workload, self.config.policy)
        yield "router_info", run, 1.0
        yield "queries_in_flight", (), self.open_requests
        if telemetry.polls:
            yield "telemetry_age_seconds", (), self.now_s() - min(telemetry.taken_s)
        for m, status in enumerate(self.watcher.status()):
            labels = (status.alias,)
            yield "server_up", labels, status.up
            yield "calls_in_flight", labels, self.in_flight[m]
            yield "queue_depth_seen_requests", labels, telemetry.depth_req[m]
            if status.up and status.polled is not None:
                yield "requests_seen", (status.alias, "running"), status.polled.running_req
                yield "requests_seen", (status.alias, "waiting"), status.polled.waiting_req
            yield "kv_cache_seen", labels, telemetry.kv_frac[m]
            for name, mean_s in status.means.mean_s.items():
                yield "server_time_seen_seconds", (status.alias, name), mean_s * self.config.speed

    # Decisions

    def look(
        self, query: Query, wanted: int, excluded: int, *, admit: bool
    ) -> tuple[World, NDArray[np.float64]]:
        """Find the servers that a request could go to.

        Args:
            query: the request.
            wanted: bit mask of the servers of its model.
            excluded: bit mask of the servers that have failed it.
            admit: refuse it (429) if no server can make its budget.

        Returns:
            The state of the servers, and (M,) the expected latency of a call that begins now; inf
            for other servers.
        """
        usable = wanted & self.watcher.up
        up = usable & ~excluded or usable  # a failed server again rather than none
        if not up:
            words = "no server of this model is up"
            raise RequestError(503, "no_server", words, retry_after_s=AGAIN_S)
        world = World(self.now_s(), up, self.in_flight, self.telemetry())
        predicted_s = self.predictor.latency_s(
            world.telemetry, self.in_flight, query.prompt_bytes, query.max_tokens
        )
        predicted_s = np.where([up >> m & 1 for m in range(len(predicted_s))], predicted_s, np.inf)
        waited_s = world.now_s - self.at_s(query.arrived_s)
        late_s = waited_s + float(predicted_s.min()) - query.budget_s
        if admit and late_s > 0.0 and self.config.admission == "refuse":
            raise RequestError(
                429,
                "budget_unreachable",
                f"no server can answer within {query.budget_s:g} s; the soonest is expected to take"
                f" {predicted_s.min():.1f} s",
                retry_after_s=late_s / self.config.speed,
            )
        return world, predicted_s

    def choose(self, query: Query, excluded: int, shorter: int = 0, *, admit: bool) -> Attempt:
        """Choose a server for a request, see `look`; a RequestError if there is none.

        Only servers that take more than `shorter` tokens are looked at.
        """
        auto, every = query.model == AUTO, (1 << len(self.pool.models)) - 1
        lengths = [model.server.max_model_len for model in self.pool.models]
        wanted = every if auto else self.names.get(query.model, 0)
        wanted &= sum(1 << m for m, length in enumerate(lengths) if length > shorter)
        if not wanted:
            words = f"no such model; there are: {', '.join(self.models)}"
            raise RequestError(404, "model_not_found", words)
        world, predicted_s = self.look(query, wanted, excluded, admit=admit)
        arrival_s = self.at_s(query.arrived_s)
        decision = Decision(int(predicted_s.argmin()), -1, arrival_s + query.budget_s)
        if auto:
            began_s = time.perf_counter()
            try:
                decision = self.policy.decide(world, arrival_s, query.budget_s, query.domain)
            except Exception as error:  # a fault of the policy must not fail the request
                self.metrics.count("policy_errors")
                words = "policy %s failed: %s; the soonest is taken"
                bug = not isinstance(error, InfraMindError)
                _log.warning(words, self.config.policy, error, exc_info=bug)
                decision = decision._replace(strategy=STRATEGIES.index("Concise"))
            self.metrics.observe("decision_seconds", time.perf_counter() - began_s)
        return self.as_sent(query, decision, float(predicted_s[decision.model]))

    def as_sent(self, query: Query, decision: Decision, predicted_s: float) -> Attempt:
        """Return the attempt of a decision, with its request's body, and count the decision."""
        m, strategy = decision.model, decision.strategy if decision.strategy >= 0 else None
        alias = self.pool.models[m].alias
        self.metrics.count("decisions", alias, "-" if strategy is None else STRATEGIES[strategy])
        body = {**query.body, "model": self.client.servers[m].model}
        if self.pool.scheduler != "fcfs":  # the deadline in epoch microseconds
            deadline_s = self.beginning.at_s + decision.priority_s / self.config.speed
            body["priority"] = round((self.epoch_s + deadline_s) * 1e6)
        if query.stream:
            options = query.body.get("stream_options") or {}
            body["stream_options"] = {**options, "include_usage": True}
        if query.model == AUTO:
            if query.max_tokens is None:
                body["max_tokens"] = self.pool.max_output_tokens
            plain = self.config.strategies == "prompt" and not any(k in body for k in _STRUCTURED)
            if strategy is not None and plain:
                words = STRATEGY_INSTRUCTIONS[STRATEGIES[strategy]]
                messages, first = body["messages"], body["messages"][0]
                if first.get("role") == "system" and isinstance(first.get("content"), str):
                    both = f"{first['content']}\n\n{words}"
                    body["messages"] = [first | {"content": both}, *messages[1:]]
                else:
                    body["messages"] = [{"role": "system", "content": words}, *messages]
        return Attempt(m, alias, body, strategy, predicted_s)
