"""One simulated server: vLLM's HTTP over a model of the engine, its metrics, and faults on demand.

It answers the fields that clients, the gateway and rules of Prometheus read. `POST
/fault?kind=hang&for_s=5` breaks it, at the port of any model of the pool (`model=ALIAS`: another
one, for one that is killed hears nothing).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from aiohttp import web

from inframind_gym.errors import ConfigError, unknown
from inframind_gym.live.settings import LOOPBACK, host_name
from inframind_gym.live.simulated.answers import (
    Answer,
    AnswerLengths,
    RefusedError,
    dump,
    read_request,
    times,
    tokens_of,
)
from inframind_gym.live.simulated.engine import Engine, Flight
from inframind_gym.live.watcher import SIMULATED
from inframind_gym.simulator.server.pool import ModelConfig

if TYPE_CHECKING:
    from prometheus_client.core import Metric

GARBAGE: Final = b"data: {<html>\n\n"
_MOST_BYTES: Final = 1 << 26  # of a request
_DRAIN_S: Final = 0.02  # between two looks whether a server has nothing left to do
_SLEEPS: Final = ("awake", "weights_offloaded", "discard_all")
_REASONS: Final = ("stop", "length", "abort", "error")
_BUCKETS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, float("inf"))
_HISTOGRAMS: Final = (
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "request_queue_time_seconds"),
    *("request_inference_time_seconds", "e2e_request_latency_seconds"),
)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Kind = Literal[
    "none",
    "kill",  # its port is closed, all connections are reset; it comes back empty
    "hang",  # takes connections and says nothing; goes on when it is over
    "error",  # requests are answered with `status`
    "garbage",  # requests are answered with nonsense, status 200; streams under way end with it
    "slow",  # every step takes `factor` times as long
]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and for how long."""

    kind: Kind = "none"
    for_s: float | None = None  # None: until the next one
    status: int = 503
    factor: float = 10.0
    on: str = "/"  # beginning of the paths that hang, or are answered so


def read_fault(query: dict[str, str]) -> Fault:
    """Read the fault in the query of a request.

    Raises:
        ConfigError: there is no such fault, or a number is wrong.
    """
    known: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    kind = query.get("kind", "")
    if kind not in known:
        raise ConfigError(unknown("fault", kind, known))
    try:
        for_s = float(query["for_s"]) if "for_s" in query else None
        status, factor = int(query.get("status", 503)), float(query.get("factor", 10.0))
    except ValueError as error:
        raise ConfigError(f"for_s, status and factor are numbers: {error}") from None
    if not (400 <= status < 600 and 0.0 < factor < 1e6 and (for_s is None or 0.0 < for_s < 1e9)):
        raise ConfigError("for_s and factor must be positive, status from 400 to 599")
    return Fault(known[kind], for_s, status, factor, query.get("on", "/"))


class ModelServer:
    """The server of one model, on the loop that runs.

    Args:
        engine: the kernel of the pool.
        index: of the model in the pool.
        config: of the model.
        lengths: draws the tokens of answers.
        seed: of what is drawn.
        peers: all servers of the pool, by alias: faults are told to any of them.
        password: that clients have to send; None: none, and requests have to name this machine.

    Attributes:
        fault: that it has.
        goes_on: set while it does not hang.
        asked: completions so far.
    """

    def __init__(
        self,
        engine: Engine,
        index: int,
        config: ModelConfig,
        lengths: AnswerLengths,
        *,
        seed: int = 0,
        peers: dict[str, ModelServer] | None = None,
        password: str | None = None,
    ) -> None:
        self.config = config
        self.fault = Fault()
        self.log = logging.getLogger(f"{__name__}.{config.alias}")
        self.engine, self.index, self.lengths, self.seed = engine, index, lengths, seed
        self._peers = {} if peers is None else peers
        self._peers[config.alias] = self
        self._password = password
        self._runner: web.ServerRunner | None = None
        self._address = ("127.0.0.1", config.port or 0)
        self._cure: asyncio.TimerHandle | None = None
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self._step_s = engine.card[index].copy()
        self.asked = 0
        self._born()
        self._routes: dict[tuple[str, str], Handler] = {
            ("POST", "/v1/chat/completions"): self._complete,
            ("POST", "/v1/completions"): self._complete,
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._empty,
            ("GET", "/metrics"): self._metrics,
            ("POST", "/fault"): self._set_fault,
        }
        if config.sleep_mode:  # vLLM has these in its developer mode alone
            self._routes |= {
                ("POST", "/sleep"): self._sleep,
                ("POST", "/wake_up"): self._wake_up,
                ("GET", "/is_sleeping"): self._is_sleeping,
            }

    def _born(self) -> None:
        """Count from 0, awake."""
        self._born_s = time.time()
        self._level = 0  # at which it sleeps
        self._ended = dict.fromkeys(_REASONS, 0)
        self._tokens = {"prompt_tokens": 0, "generation_tokens": 0, "num_preemptions": 0}
        self._sums = dict.fromkeys(_HISTOGRAMS, 0.0)
        self._counts = {name: [0] * len(_BUCKETS) for name in _HISTOGRAMS}
        self.engine.wake(self.index)

    @property
    def port(self) -> int:
        """Where it listens, or did."""
        return self._address[1]

    async def start(self, host: str = "127.0.0.1") -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        server = web.Server(
            self._serve,
            request_factory=lambda message, payload, protocol, writer, task: web.BaseRequest(
                message, payload, protocol, writer, task, loop, client_max_size=_MOST_BYTES
            ),
            handler_cancellation=True,
            access_log=None,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=0.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, self.port, backlog=1024).start()
        self._address = (host, self._runner.addresses[0][1])

    async def kill(self) -> None:
        """Go away as a process that is killed: connections are reset, none is taken."""
        runner, self._runner = self._runner, None
        if runner is None or runner.server is None:
            return
        for site in list(runner.sites):
            await site.stop()
        for connection in list(runner.server.connections):
            if connection.transport is not None:
                sock = connection.transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.transport.abort()
        self.engine.abort(self.index)

    async def set_fault(self, fault: Fault) -> None:
        """Have a fault from now on, in place of the one that there is."""
        if self._cure is not None:
            self._cure.cancel()
            self._cure = None
        self.fault = fault
        self.log.warning("fault: %s", fault)
        factor = fault.factor if fault.kind == "slow" else 1.0
        card = self.engine.card[self.index]
        for name in card.dtype.names:
            if name.endswith("_s"):
                card[name] = factor * self._step_s[name]
        if fault.kind == "hang":
            self.goes_on.clear()
        else:
            self.goes_on.set()
        if fault.kind == "kill":
            await self.kill()
        elif self._runner is None:
            self._born()
            await self.start(self._address[0])
        if fault.for_s is not None:
            loop = asyncio.get_running_loop()
            self._cure = loop.call_later(
                fault.for_s, lambda: loop.create_task(self.set_fault(Fault()))
            )

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        path, fault = request.path, self.fault
        if path != "/fault" and fault.kind != "none" and path.startswith(fault.on):
            if fault.kind == "hang":
                await self.goes_on.wait()
            elif fault.kind == "error":
                return _json(
                    RefusedError(fault.status, "the server has a fault").body, fault.status
                )
            elif fault.kind == "garbage":
                return web.Response(body=GARBAGE, content_type="application/json")
        headers = request.headers
        if self._password is not None:
            given, wanted = headers.get("Authorization", ""), f"Bearer {self._password}"
            right = hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())
            if path.startswith(("/v1", "/fault")) and not right:
                return _json({"error": "Unauthorized"}, 401)
        elif host_name(headers.get("Host", "")) not in LOOPBACK or "Origin" in headers:
            return _json({"error": "without a password this machine's programs alone may ask"}, 403)
        handler = self._routes.get((request.method, path))
        if handler is None:
            known = any(path == each for _, each in self._routes)
            return _json({"detail": "not for this path"}, 405 if known else 404)
        try:
            return await handler(request)
        except RefusedError as error:
            return _json(error.body, error.status)

    # Completions

    async def _complete(self, http: web.BaseRequest) -> web.StreamResponse:
        """Answer a request for a completion; its client can go away at any time."""
        card = self.config.server
        request = read_request(await http.read(), http.path, self.config.name, card.max_model_len)
        drawn = f"seed {request.seed}" if request.seed is not None else str(self.asked)
        key = f"{self.seed}/{self.config.alias}/{drawn}"
        if request.tokens is not None:
            tokens = request.tokens
        elif request.text is not None:
            tokens = tokens_of(request.text)
        elif request.ignore_eos:
            tokens = request.max_tokens
        else:
            tokens = self.lengths.draw(self.index, key, request.strategy)
        tokens = max(1, min(max(tokens, request.min_tokens), request.max_tokens))
        reason = "length" if tokens >= request.max_tokens else "stop"
        flight = Flight(
            server=self.index,
            prompt_tokens=request.prompt_tokens,
            output_tokens=tokens,
            priority=float(request.priority),
            streams=request.stream,
        )
        if not self.engine.enter(flight):
            raise RefusedError(503, "too many requests")
        self.asked += 1
        answer = Answer(request, key, http.headers.get("X-Request-Id"))
        try:
            if request.stream:
                return await self._stream(http, flight, answer, reason)
            while not flight.over:
                await flight.news.wait()
                flight.news.clear()
            await self.goes_on.wait()
            ended = "abort" if flight.aborted else reason
            body = answer.whole(flight.tokens, tokens, ended, self._times(flight))
            return web.Response(body=body, content_type="application/json")
        finally:
            self.engine.leave(flight)
            self._count(flight, "abort" if flight.aborted else reason)

    async def _stream(
        self, http: web.BaseRequest, flight: Flight, answer: Answer, reason: str
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(http)
        sent, data, over = 0, answer.opening(), False
        while not over:
            await flight.news.wait()
            await self.goes_on.wait()
            flight.news.clear()
            tokens, over = flight.tokens, flight.over
            if self.fault.kind == "garbage":
                await response.write(data + GARBAGE)
                break
            ended = "abort" if flight.aborted else reason
            data += answer.piece(sent, tokens, flight.output_tokens, ended if over else None)
            if over:
                data += answer.closing(tokens, self._times(flight))
            await response.write(data)
            sent, data = tokens, b""
        await response.write_eof()
        return response

    def _times(self, flight: Flight) -> dict[str, Any] | None:
        wanted = "--enable-per-request-metrics" in self.config.extra_args
        return times(flight) if wanted else None

    # Metrics; prometheus-client's own histograms take one value at a time

    def _count(self, flight: Flight, reason: str) -> None:
        """Count a request that is over; one that was aborted early has no times but the last."""
        self._ended[reason] += 1
        self._tokens["generation_tokens"] += flight.tokens
        self._tokens["num_preemptions"] += flight.evictions
        entered_s, ended_s = flight.entered_s, flight.last_token_s
        took_s = {"e2e_request_latency_seconds": ended_s - entered_s}
        if flight.admitted_s is not None and flight.first_token_s is not None:
            self._tokens["prompt_tokens"] += flight.prompt_tokens
            took_s["time_to_first_token_seconds"] = flight.first_token_s - entered_s
            took_s["request_queue_time_seconds"] = flight.admitted_s - entered_s
            took_s["request_inference_time_seconds"] = ended_s - flight.admitted_s
            if more := flight.tokens - 1:
                took_s["inter_token_latency_seconds"] = (ended_s - flight.first_token_s) / more
        for name, each_s in took_s.items():
            count = flight.tokens - 1 if name.startswith("inter") else 1
            self._sums[name] += count * each_s
            self._counts[name][next(i for i, most in enumerate(_BUCKETS) if each_s <= most)] += (
                count
            )

    def collect(self) -> Iterator[Metric]:
        """Yield what there is to see now, as a collector of prometheus-client."""
        from prometheus_client import core

        labels = {"model_name": self.config.name, "engine": "0"}

        def family(kind: Any, name: str, values: dict[str, float], label: str = "") -> Metric:
            out: Metric = kind(f"vllm:{name}", name, labels=[*labels, *filter(None, [label])])
            for each, value in values.items():
                out.add_metric([*labels.values(), *filter(None, [each])], value)  # type: ignore
            return out

        gauge, counter = core.GaugeMetricFamily, core.CounterMetricFamily
        running, waiting, kv_frac = self.engine.load(self.index)
        yield family(gauge, "num_requests_running", {"": running})
        yield family(gauge, "num_requests_waiting", {"": waiting})
        yield family(gauge, "kv_cache_usage_perc", {"": kv_frac})
        states = {state: float(self._level == level) for level, state in enumerate(_SLEEPS)}
        yield family(gauge, "engine_sleep_state", states, "sleep_state")
        evictions = self._tokens["num_preemptions"] + self.engine.evictions(self.index)
        for name, total in (self._tokens | {"num_preemptions": evictions}).items():
            yield family(counter, name, {"": total})
        yield family(counter, "request_success", dict(self._ended), "finished_reason")
        for name, counts in self._counts.items():
            histogram = core.HistogramMetricFamily(f"vllm:{name}", name, labels=list(labels))
            bounds = [*map(str, _BUCKETS[:-1]), "+Inf"]
            sums = [float(sum(counts[: i + 1])) for i in range(len(counts))]
            pairs = list(zip(bounds, sums, strict=True))
            histogram.add_metric(list(labels.values()), pairs, self._sums[name])
            histogram.add_sample(f"vllm:{name}_created", labels, self._born_s)
            yield histogram

    async def _metrics(self, _: web.BaseRequest) -> web.Response:
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return web.Response(body=generate_latest(registry), headers={"Content-Type": "text/plain"})

    # The rest

    async def _models(self, _: web.BaseRequest) -> web.Response:
        model = {
            "id": self.config.name,
            "object": "model",
            "created": int(self._born_s),
            "owned_by": SIMULATED,
            "root": self.config.path or self.config.name,
            "max_model_len": self.config.server.max_model_len,
        }
        return _json({"object": "list", "data": [model]})

    async def _empty(self, _: web.BaseRequest) -> web.Response:
        return web.Response()

    async def _is_sleeping(self, _: web.BaseRequest) -> web.Response:
        return _json({"is_sleeping": bool(self._level)})

    async def _sleep(self, request: web.BaseRequest) -> web.Response:
        level, mode = request.query.get("level", "1"), request.query.get("mode", "abort")
        if level not in ("0", "1", "2") or mode not in ("abort", "wait"):
            raise RefusedError(400, "level is 0, 1 or 2; mode is abort or wait")
        self.engine.sleep(self.index)
        if mode == "abort":
            self.engine.abort(self.index)
        while any(self.engine.load(self.index)[:2]):  # the step under way, or what it waits for
            await asyncio.sleep(_DRAIN_S)
        self._level = int(level)
        self.log.info("sleeps at level %s", level)
        return _json({"status": "sleeping", "level": int(level)})

    async def _wake_up(self, _: web.BaseRequest) -> web.Response:
        self._level = 0
        self.engine.wake(self.index)
        self.log.info("is awake")
        return _json({"status": "awake"})

    async def _set_fault(self, request: web.BaseRequest) -> web.Response:
        query = dict(request.query)
        try:
            alias, fault = query.get("model", self.config.alias), read_fault(query)
        except ConfigError as error:
            return _json({"error": str(error)}, 400)
        if alias not in self._peers:
            return _json({"error": f"no model {alias!r}: {', '.join(self._peers)}"}, 404)
        with contextlib.suppress(ConnectionError):
            if self._peers[alias] is self and fault.kind == "kill":  # after the answer
                asyncio.get_running_loop().call_later(
                    0.05, lambda: asyncio.ensure_future(self.set_fault(fault))
                )
            else:
                await self._peers[alias].set_fault(fault)
        return _json({"model": alias, "kind": fault.kind, "for_s": fault.for_s})


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=dump(body), content_type="application/json")
