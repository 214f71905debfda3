"""The gateway at work: its servers, what is in flight, and where a request goes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.live.gateway.choose import (
    Breakers,
    Decision,
    Predictor,
    SingleCallPolicy,
    World,
)
from inframind_gym.live.gateway.config import GatewayConfig
from inframind_gym.live.gateway.guard import Keyring, RequestError
from inframind_gym.live.gateway.metrics import Metrics
from inframind_gym.live.servers import VllmServers
from inframind_gym.live.settings import LiveSettings, addresses, open_session
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workflow.backend import Telemetry
from inframind_gym.simulator.workflow.topology import STRATEGIES

if TYPE_CHECKING:
    from inframind_gym.live.gateway.proxy import Attempt
    from inframind_gym.live.gateway.request import Query

_log = logging.getLogger(__name__)
AUTO: Final = "inframind/auto"
TEAM: Final = "inframind/team"
_AGAIN_S: Final = 5.0  # until another attempt makes sense where no server is up


@dataclass(frozen=True, slots=True)
class Choice:
    """Server that a request is sent to, and why."""

    server: int
    alias: str
    strategy: int | None  # index into STRATEGIES; None: the client named the model
    priority: int | None  # as sent
    predicted_s: float
    queue_req: int  # at the server, as polled last


class Gateway:
    """Servers and decisions. Made on any thread; `open` and `close` on the loop.

    Args:
        config: checked.

    Attributes:
        servers: connections of workflows, watcher and log.
        in_flight: (M,) calls at each server, those of workflows included.
        open_requests: requests being answered.
        draining: no further requests are wanted.

    Raises:
        InfraMindError: pool, policy and workload do not go together, or the log cannot be written.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self.config, self.metrics = config, Metrics()
        self.pool = load_pool(config.pool)
        if config.metrics_poll_s is not None:
            self.pool = self.pool.model_copy(update={"metrics_poll_s": config.metrics_poll_s})
        self.addresses = addresses(self.pool)
        self.keyring = Keyring(config.keys)
        self.policy = SingleCallPolicy(config)
        self.predictor = Predictor(self.pool, self.policy.spec)
        count = len(self.pool.models)
        self.breakers = Breakers(count, config.breaker)
        self.in_flight = np.zeros(count, np.int64)
        self.counting = threading.Lock()  # of `in_flight`
        self.open_requests = 0
        self.draining = False
        self.names: dict[str, int] = {}  # bit masks: several servers may have one name
        for m, model in enumerate(self.pool.models):
            for name in dict.fromkeys((model.alias, model.name)):
                self.names[name] = self.names.get(name, 0) | 1 << m
        self.models = [AUTO, TEAM, *self.names]
        self.session: Any = None  # of aiohttp
        self._attempts: list[set[Attempt]] = [set() for _ in range(count)]
        self._loop: asyncio.AbstractEventLoop | None = None
        settings = LiveSettings(
            connect_s=config.limits.connect_s,
            max_in_flight=2 * config.limits.max_in_flight,  # sockets on both sides
            floor_s=min(LiveSettings().floor_s, config.limits.answer_s),
            cap_s=config.limits.answer_s,
        )
        self.servers = VllmServers(self.pool, settings, log=config.log)
        self.servers.on_down = self._is_down
        try:
            self.servers.watcher.wait_checked()
            self.beginning = self.servers.watcher.begin()
        except BaseException:
            self.servers.close()
            raise

    async def open(self) -> None:
        """Make the connections of this loop."""
        self._loop = asyncio.get_running_loop()
        self.session = open_session(None, self.config.limits.connect_s)

    async def close(self) -> None:
        """Disconnect."""
        if self.session is not None:
            await self.session.close()
        await asyncio.get_running_loop().run_in_executor(None, self.servers.close)

    # The servers

    def now_s(self) -> float:
        """Return the seconds since the gateway began, as the servers count them."""
        return (time.monotonic() - self.beginning.at_s) * self.config.speed

    def usable(self) -> int:
        """Return the bit mask of the servers that can be sent to now."""
        return self.servers.watcher.up & self.breakers.closed()

    def telemetry(self) -> Telemetry:
        """Return what was polled last, in the servers' seconds."""
        telemetry, speed = self.servers.watcher.telemetry(self.beginning), self.config.speed
        if speed == 1.0:
            return telemetry
        taken_s, e2e_s = ([speed * s for s in x] for x in (telemetry.taken_s, telemetry.e2e_s))
        return Telemetry(telemetry.polls, taken_s, telemetry.depth_req, e2e_s, telemetry.kv_frac)

    def begin(self, attempt: Attempt) -> None:
        """An attempt begins."""
        m = attempt.choice.server
        with self.counting:
            self.in_flight[m] += 1
        self._attempts[m].add(attempt)
        self.breakers.begin(m)

    def end(self, attempt: Attempt, ok: bool | None) -> None:
        """An attempt is over; see `Breakers.end`."""
        m = attempt.choice.server
        with self.counting:
            self.in_flight[m] -= 1
        self._attempts[m].discard(attempt)
        self.breakers.end(m, ok)

    def _is_down(self, server: int, why: str) -> None:
        """End the attempts at a server that went down; on the watcher's thread.

        Streams that have begun go on while their server sends: they have a time limit of their own.
        """

        def end() -> None:
            for attempt in list(self._attempts[server]):
                if not attempt.started:
                    attempt.end()

        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(end)

    def gauges(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Return the gauges of `/metrics`: name, labels, value."""
        telemetry, closed = self.telemetry(), self.breakers.closed()
        run = ("gateway", self.pool.name, self.config.workload, self.config.policy)
        yield "router_info", run, 1.0
        yield "queries_in_flight", (), self.open_requests
        if telemetry.polls:
            yield "telemetry_age_seconds", (), self.now_s() - min(telemetry.taken_s)
        for m, status in enumerate(self.servers.watcher.status()):
            labels = (status.alias,)
            yield "server_up", labels, status.up
            yield "breaker_open", labels, not closed >> m & 1
            yield "calls_in_flight", labels, self.in_flight[m]
            yield "queue_depth_seen_requests", labels, telemetry.depth_req[m]
            yield "kv_cache_seen", labels, telemetry.kv_frac[m]

    # Decisions

    def choose(self, query: Query, excluded: int, *, admit: bool) -> Choice:
        """Decide where a request goes.

        Args:
            query: the request.
            excluded: bit mask of the servers that have failed it.
            admit: refuse it if it cannot make its budget.

        Raises:
            RequestError: no such model, no server, or no time.
        """
        auto = query.model == AUTO
        wanted = (1 << len(self.pool.models)) - 1 if auto else self.names.get(query.model, 0)
        if not wanted:
            known = ", ".join(filter(query.tenant.may_ask, self.models))
            raise RequestError(404, "model_not_found", f"no such model; there are: {known}")
        usable = wanted & self.usable()
        up = usable & ~excluded or usable  # at the same server again rather than not at all
        if not up:
            raise RequestError(
                503, "no_server", "no server of this model is up", retry_after_s=_AGAIN_S
            )
        now_s, telemetry = self.now_s(), self.telemetry()
        arrival_s = (query.arrived_s - self.beginning.at_s) * self.config.speed
        predicted, soonest = self.predict(query, telemetry, up)
        if admit:
            self.admit(query, float(predicted[soonest]))
        decision = Decision(soonest, -1, arrival_s + query.budget_s)
        if auto:
            world = World(now_s, up, self.in_flight, telemetry)
            decision = self._decide(query, world, arrival_s, decision)
        alias = self.pool.models[decision.model].alias
        strategy = decision.strategy if auto else None
        self.metrics.count("decisions", alias, "-" if strategy is None else STRATEGIES[strategy])
        priority = None
        if self.pool.scheduler != "fcfs":  # the deadline in epoch microseconds
            weighted_s = (decision.priority_s - query.lead_s) / self.config.speed
            priority = round((self.servers.epoch_s + self.beginning.at_s + weighted_s) * 1e6)
        return Choice(
            server=decision.model,
            alias=alias,
            strategy=strategy,
            priority=priority,
            predicted_s=float(predicted[decision.model]),
            queue_req=int(telemetry.depth_req[decision.model]),
        )

    def predict(
        self, query: Query, telemetry: Telemetry, up: int
    ) -> tuple[NDArray[np.float64], int]:
        """Return the expected latency of one call at each server, (M,), and the soonest of `up`."""
        self.policy.note(telemetry)
        predicted = self.predictor.latency_s(
            self.policy.seen[0],
            telemetry.polls,
            telemetry.depth_req,
            self.in_flight,
            query.prompt_bytes,
            query.max_tokens,
        )
        open_ = np.array([bool(up >> m & 1) for m in range(len(predicted))])
        return predicted, int(np.where(open_, predicted, np.inf).argmin())

    def admit(self, query: Query, expected_s: float) -> None:
        """Refuse a request that cannot make its budget.

        Args:
            query: the request.
            expected_s: latency of a call that begins now, at the soonest server.

        Raises:
            RequestError: 429.
        """
        waited_s = (time.monotonic() - query.arrived_s) * self.config.speed
        late_s = waited_s + expected_s - query.budget_s
        if late_s > 0.0 and self.config.admission == "refuse":
            raise RequestError(
                429,
                "budget_unreachable",
                f"no server can answer within {query.budget_s:g} s; the soonest is expected to take"
                f" {expected_s:.1f} s",
                retry_after_s=late_s / self.config.speed,
            )

    def _decide(self, query: Query, world: World, arrival_s: float, fallback: Decision) -> Decision:
        began_s = time.perf_counter()
        try:
            return self.policy.decide(world, arrival_s, query.budget_s, query.domain)
        except Exception:  # foreign code: a request is served all the same
            self.metrics.count("policy_errors")
            _log.exception("policy %s failed; the soonest server is taken", self.config.policy)
            return fallback._replace(strategy=STRATEGIES.index("Concise"))
        finally:
            self.metrics.observe("decision_seconds", time.perf_counter() - began_s)
