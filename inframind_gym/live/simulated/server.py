"""Simulated servers of a pool: vLLM's HTTP over the kernel, metrics, and faults on demand.

    python -m inframind_gym.live.simulated.server

listens on the port of every model of the pool in $INFRAMIND_SIMULATED (`SimulatedPool`).
`POST /fault?kind=hang&for_s=5` breaks the server of a port.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from aiohttp import web
from numpy.typing import NDArray
from pydantic import Field

from inframind_gym.configs import Positive, StrictModel, validate
from inframind_gym.errors import ConfigError
from inframind_gym.live.config import SIMULATED_ENV, SimulatedPool, Simulation
from inframind_gym.live.guard import RequestError, check_head, is_secret
from inframind_gym.live.simulated.answers import Answer, AnswerLengths, dump, read_request
from inframind_gym.live.watcher import SIMULATED, TIMES
from inframind_gym.simulator.server.open_loop import OpenLoop
from inframind_gym.simulator.server.pool import ModelConfig, PoolConfig
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workload import load_workload

MOST_REQUESTS: Final = 16_384  # that run and wait on all servers
TOGETHER_S: Final = 0.01  # tokens that come within this time are sent together
GARBAGE: Final = b"data: {<html>\n\n"
_MOST_BYTES: Final = 1 << 26  # of a request
_DRAIN_S: Final = 0.02  # between two looks whether a server has nothing left to do
_PATHS: Final = ("/v1/chat/completions", "/v1/models", "/health", "/metrics", "/fault")
_log = logging.getLogger(__name__)


# The kernel at the pace of the wall clock


@dataclass(slots=True, eq=False)
class Flight:
    """A request on a server. Times are the wall clock's, in s since the engine's start."""

    server: int
    prompt_tokens: int
    output_tokens: int
    priority: float = 0.0
    streams: bool = False  # wants its tokens as they come
    entered_s: float = 0.0
    request: int = -1  # of the kernel
    tokens: int = 0  # that have come
    over: bool = False
    aborted: bool = False  # by the server
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float = 0.0  # or when it was aborted
    news: asyncio.Event = field(default_factory=asyncio.Event)  # tokens, or the end


class Engine:
    """The kernel of a pool's servers. To be used on one loop.

    Between two calls nothing is computed: the kernel catches up with the clock when a request comes
    or goes, and when an event is due. Its own times are therefore exact; only the answers to
    clients are as late as the event loop.
    """

    def __init__(self, card: NDArray[Any], speed: float) -> None:
        self.speed = speed  # virtual seconds a second
        self._kernel = OpenLoop(card, MOST_REQUESTS)
        self._began_s = time.monotonic()
        self._flights: dict[int, Flight] = {}  # by request of the kernel
        self._streams: set[Flight] = set()
        self._due: asyncio.TimerHandle | None = None

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began_s

    def load(self, server: int) -> tuple[int, int, float]:
        """Return requests that run and wait, and the share of the KV cache that they hold."""
        self._catch_up()
        return self._kernel.load(server)

    def enter(self, flight: Flight) -> bool:
        """Put a request into its server's queue; False: there are too many."""
        if len(self._flights) >= MOST_REQUESTS:
            return False
        self._catch_up()
        flight.request = self._kernel.submit(
            flight.server, flight.priority, flight.prompt_tokens, flight.output_tokens
        )
        self._flights[flight.request] = flight
        if flight.streams:
            self._streams.add(flight)
        self._soon()
        return True

    def leave(self, flight: Flight) -> None:
        """Take a request out: its client has gone. Nothing happens to one that is over."""
        if not flight.over:
            self._catch_up()
        if flight.over:
            return
        self._kernel.look()
        flight.tokens = int(self._kernel.tokens[flight.request])
        self._kernel.abort(flight.request)
        del self._flights[flight.request]
        self._soon()
        flight.aborted, flight.last_token_s = True, self.now_s
        self._over(flight)

    def abort(self, server: int) -> None:
        """End all requests of a server."""
        for flight in [each for each in self._flights.values() if each.server == server]:
            self.leave(flight)

    def close(self) -> None:
        """Cancel what is due."""
        if self._due is not None:
            self._due.cancel()

    def _soon(self) -> None:
        """Call `_hand_on` once the loop has handled all that comes at this instant."""
        self.close()
        self._due = asyncio.get_running_loop().call_later(0.0, self._hand_on)

    def _catch_up(self) -> None:
        """Let virtual time run to now."""
        now_s = self.now_s * self.speed
        while len(ended := self._kernel.advance(now_s)):
            for record in ended:
                flight = self._flights.pop(int(record["request"]))
                flight.admitted_s = float(record["admitted_s"]) / self.speed
                flight.first_token_s = float(record["first_token_s"]) / self.speed
                flight.last_token_s = self._kernel.now_s / self.speed
                flight.tokens = flight.output_tokens
                self._over(flight)

    def _hand_on(self) -> None:
        """Hand on the tokens that have come, and schedule the next call of this method."""
        self._catch_up()
        event_s, token_s = self._kernel.look()
        if self._streams:
            tokens = self._kernel.tokens
            for flight in self._streams:
                if (count := int(tokens[flight.request])) > flight.tokens:
                    flight.tokens = count
                    flight.news.set()
            event_s = min(event_s, max(token_s, self.speed * (self.now_s + TOGETHER_S)))
        self._due = None
        if event_s < float("inf"):
            delay_s = event_s / self.speed - self.now_s
            self._due = asyncio.get_running_loop().call_later(max(delay_s, 0.0), self._hand_on)

    def _over(self, flight: Flight) -> None:
        flight.over = True
        self._streams.discard(flight)
        flight.news.set()


# One server


class Fault(StrictModel):
    """A fault, and for how long."""

    kind: Literal[
        "none",
        "kill",  # its port is closed, all connections are reset; it comes back empty
        "hang",  # takes connections and says nothing; goes on when it is over
        "error",  # requests are answered with 503
        "garbage",  # requests are answered with nonsense, status 200; streams end with it
    ]
    for_s: Annotated[Positive, Field(lt=1e9)]


_NONE: Final = Fault(kind="none", for_s=1.0)


class ModelServer:
    """The server of one model of the engine's pool, on the loop that runs.

    Clients have to send a password; None: none, and requests have to name this machine.
    """

    def __init__(
        self,
        engine: Engine,
        index: int,
        config: ModelConfig,
        lengths: AnswerLengths,
        password: str | None = None,
    ) -> None:
        self.config = config
        self.fault = _NONE
        self.engine, self.index, self.lengths = engine, index, lengths
        self._password = password
        self._runner: web.ServerRunner | None = None
        self._address = ("127.0.0.1", config.port or 0)
        self._cure: asyncio.TimerHandle | None = None
        self.goes_on, self.awake = asyncio.Event(), asyncio.Event()  # it does not hang, takes calls
        self.goes_on.set()
        self.completions = 0
        self._forget()

    def _forget(self) -> None:
        """Reset the counters, as a new process; awake."""
        self._born_s = time.time()
        self.asleep = False
        self.awake.set()
        self._seconds = {name: [0.0, 0] for name in TIMES}  # sum and count

    @property
    def port(self) -> int:
        """Where it listens, or did."""
        return self._address[1]

    @property
    def connections(self) -> int:
        """Number of open connections."""
        server = None if self._runner is None else self._runner.server
        return 0 if server is None else len(server.connections)

    async def listen(self, host: str = "127.0.0.1") -> None:
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

    async def die(self) -> None:
        """Act as a process that is killed: reset all connections, and accept none."""
        runner, self._runner = self._runner, None
        if runner is None or runner.server is None:
            return
        for site in list(runner.sites):
            await site.stop()
        for connection in list(runner.server.connections):
            reset(connection.transport)
        self.engine.abort(self.index)

    async def set_fault(self, fault: Fault) -> None:
        """Begin a fault, in place of the present one."""
        if self._cure is not None:
            self._cure.cancel()
            self._cure = None
        self.fault = fault
        _log.warning("%s: fault: %s", self.config.alias, fault)
        if fault.kind == "hang":
            self.goes_on.clear()
        else:
            self.goes_on.set()
        if fault.kind == "kill":
            await self.die()
        elif self._runner is None:
            self._forget()
            await self.listen(self._address[0])
        if fault.kind != "none":
            loop = asyncio.get_running_loop()
            self._cure = loop.call_later(
                fault.for_s, lambda: loop.create_task(self.set_fault(_NONE))
            )

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        path, fault = request.path, self.fault
        if path != "/fault":
            if fault.kind == "hang":
                await self.goes_on.wait()
            elif fault.kind == "error":
                return _json({"error": {"message": "the server has a fault"}}, 503)
            elif fault.kind == "garbage":
                return web.Response(body=GARBAGE, content_type="application/json")
        alone, pairs = self._password is None, request.headers.items()
        try:
            headers = check_head(pairs, loopback_only=alone, most_bytes=_MOST_BYTES)
            if self._password is not None and path.startswith(("/v1", "/fault")):
                key = headers.get("authorization", "").removeprefix("Bearer ")
                if not is_secret(key, self._password):
                    raise RequestError(401, "invalid_api_key", "Unauthorized")
            sleeps = self.config.sleep_mode  # vLLM's developer mode
            match request.method, path:
                case "POST", "/v1/chat/completions":
                    return await self._complete(request)
                case "GET", "/v1/models":
                    model: dict[str, Any] = {"id": self.config.name, "object": "model"}
                    model |= {"owned_by": SIMULATED, "created": int(self._born_s)}
                    model |= {"max_model_len": self.config.server.max_model_len}
                    return _json({"object": "list", "data": [model]})
                case "GET", "/health":
                    return web.Response()
                case "GET", "/metrics":
                    return web.Response(text=self.metrics())
                case "POST", "/fault":
                    return await self._set_fault(request)
                case "POST", "/sleep" if sleeps:
                    return await self._sleep(request)
                case "POST", "/wake_up" if sleeps:
                    self.asleep = False
                    self.awake.set()
                    return web.Response()
            raise RequestError(405 if path in _PATHS else 404, "not_found", "not for this path")
        except RequestError as error:
            return web.Response(
                status=error.status, body=error.content(), content_type="application/json"
            )

    # Completions

    async def _complete(self, http: web.BaseRequest) -> web.StreamResponse:
        """Answer a request for a completion; its client can go away at any time."""
        name = self.config.name
        request, most = read_request(await http.read(), name, self.config.server.max_model_len)
        entered_s = self.engine.now_s
        await self.awake.wait()  # requests that come to a sleeper wait until it is woken up
        drawn = f"seed {request.seed}" if request.seed is not None else str(self.completions)
        key, tokens = f"0/{self.config.alias}/{drawn}", most
        if not request.ignore_eos:
            tokens = min(self.lengths.draw(self.index, key, request.strategy), most)
        reason = "length" if tokens >= most else "stop"
        flight = Flight(
            server=self.index,
            prompt_tokens=request.prompt_tokens,
            output_tokens=tokens,
            priority=float(request.priority),
            streams=bool(request.stream),
            entered_s=entered_s,
        )
        if not self.engine.enter(flight):
            raise RequestError(503, "overloaded", "too many requests")
        self.completions += 1
        answer = Answer(request, name, key, http.headers.get("X-Request-Id"))
        try:
            if request.stream:
                return await self._stream(http, flight, answer, reason)
            while not flight.over:
                await flight.news.wait()
                flight.news.clear()
            await self.goes_on.wait()
            ended = "abort" if flight.aborted else reason
            body = answer.whole(flight.tokens, ended, self._times(flight))
            return web.Response(body=body, content_type="application/json")
        finally:
            self.engine.leave(flight)
            self._count(flight)

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
            data += answer.piece(sent, tokens, ended if over else None)
            if over:
                data += answer.closing(tokens, self._times(flight))
            await response.write(data)
            sent, data = tokens, b""
        await response.write_eof()
        return response

    def _times(self, flight: Flight) -> dict[str, Any] | None:
        """Return what `--enable-per-request-metrics` adds; None where there is no token."""
        wanted = "--enable-per-request-metrics" in self.config.extra_args
        if not wanted or flight.admitted_s is None or flight.first_token_s is None:
            return None
        return {
            "time_to_first_token_ms": 1e3 * (flight.first_token_s - flight.admitted_s),
            "generation_time_ms": 1e3 * (flight.last_token_s - flight.first_token_s),
            "queue_time_ms": 1e3 * (flight.admitted_s - flight.entered_s),
        }

    # Metrics

    def _count(self, flight: Flight) -> None:
        """Count a request that is over; one that was aborted early has no times but the last."""
        entered_s, ended_s = flight.entered_s, flight.last_token_s
        took_s = {"e2e_s": ended_s - entered_s}
        if flight.admitted_s is not None and flight.first_token_s is not None:
            took_s |= {"ttft_s": flight.first_token_s - entered_s}
            took_s |= {"queue_s": flight.admitted_s - entered_s}
            took_s |= {"inference_s": ended_s - flight.admitted_s}
            took_s |= {"itl_s": ended_s - flight.first_token_s}
        for name, total_s in took_s.items():
            self._seconds[name][0] += total_s
            self._seconds[name][1] += flight.tokens - 1 if name == "itl_s" else 1

    def metrics(self) -> str:
        """Return what our watcher reads of vLLM's metrics, in the Prometheus text format."""
        running, waiting, kv_frac = self.engine.load(self.index)
        values: dict[str, float] = {"vllm:num_requests_running": running}
        values |= {"vllm:num_requests_waiting": waiting, "vllm:kv_cache_usage_perc": kv_frac}
        for name, (total_s, count) in self._seconds.items():
            values |= {f"{TIMES[name]}_sum": total_s, f"{TIMES[name]}_count": count}
            values[f"{TIMES[name]}_created"] = self._born_s
        model = f'engine="0",model_name={json.dumps(self.config.name)}'
        lines = [f"{name}{{{model}}} {float(value)}" for name, value in values.items()]
        card = self.config.server
        cache = f'block_size="{card.block_size}",num_gpu_blocks="{card.num_kv_blocks}"'
        cache += f',enable_prefix_caching="{card.prefix_caching}"'
        lines.append(f"vllm:cache_config_info{{{cache}}} 1.0")
        awake = float(not self.asleep)
        lines.append(f'vllm:engine_sleep_state{{{model},sleep_state="awake"}} {awake}')
        return "\n".join(lines) + "\n"

    # The rest

    async def _sleep(self, request: web.BaseRequest) -> web.StreamResponse:
        self.awake.clear()
        if request.query.get("mode", "abort") == "abort":
            self.engine.abort(self.index)
        while any(self.engine.load(self.index)[:2]):  # the step under way, or what it waits for
            await asyncio.sleep(_DRAIN_S)
        self.asleep = True
        return web.Response()

    async def _set_fault(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            fault = validate(dict(request.query), Fault, source="fault")
        except ConfigError as error:
            raise RequestError(400, "invalid_request", str(error)) from None
        if fault.kind == "kill":  # after the answer
            loop = asyncio.get_running_loop()
            loop.call_later(0.05, lambda: loop.create_task(self.set_fault(fault)))
        else:
            await self.set_fault(fault)
        return _json(fault.model_dump())


def reset(transport: asyncio.Transport | None) -> None:
    """Close a connection with RST, as the kernel does for a process that is killed."""
    if transport is not None:
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        transport.abort()


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=dump(body), content_type="application/json")


# The process of a pool


def make_servers(pool: PoolConfig, simulation: Simulation) -> tuple[Engine, list[ModelServer]]:
    """Return the servers of a pool, which do not listen yet; to be called on their loop."""
    OpenLoop(cards(pool), 2).use_all()  # clients do not wait for compilation
    lengths = AnswerLengths(load_workload(simulation.workload), pool.aliases)
    engine, password = Engine(cards(pool), simulation.speed), os.environ.get("VLLM_API_KEY")
    servers = [
        ModelServer(engine, index, model, lengths, password)
        for index, model in enumerate(pool.models)
        if model.port is not None
    ]
    return engine, servers


async def _run(process: SimulatedPool) -> None:
    """Serve until SIGTERM or SIGINT."""
    engine, servers = make_servers(process.pool, process)
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    for server in servers:
        await server.listen(process.host)
        where = f"{process.host} port {server.port}, speed {process.speed:g}"
        _log.info("%s: simulated on %s: no model runs here", server.config.alias, where)
    await over.wait()
    for server in servers:
        await server.die()
    engine.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s %(message)s")
    asyncio.run(_run(SimulatedPool.model_validate_json(os.environ[SIMULATED_ENV])))
