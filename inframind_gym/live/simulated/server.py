"""One simulated server: vLLM's HTTP front end over a model of the engine."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import socket
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from inframind_gym.errors import ConfigError
from inframind_gym.live.probe import SIMULATED
from inframind_gym.live.simulated.asking import (
    RefusedError,
    count_tokens,
    invalid,
    read_json,
    split_tokens,
    text_of,
)
from inframind_gym.live.simulated.completions import complete
from inframind_gym.live.simulated.engine import Engine
from inframind_gym.live.simulated.faults import GARBAGE, Fault, read_fault
from inframind_gym.live.simulated.lengths import AnswerLengths
from inframind_gym.live.simulated.metrics import Load, ServerMetrics
from inframind_gym.simulator.server.pool import ModelConfig

VERSION: Final = "0.32.0+inframind.simulated"
_MOST_BYTES: Final = 1 << 26  # of a request
_DRAIN_S: Final = 0.02  # between two looks whether a server has nothing left to do

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class ModelServer:
    """The server of one model, on the loop that runs.

    Args:
        engine: the kernel of the pool.
        index: of the model in the pool.
        config: of the model.
        lengths: draws the tokens of answers.
        seed: of what is drawn.
        peers: all servers of the pool, by alias: faults are told to any of them.
        password: that clients have to send; None: none.

    Attributes:
        fault: that it has.
        goes_on: set while it does not hang.
        asked: completions so far.
        metrics: since it was born.
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
        self.goes_on = asyncio.Event()  # it does not hang
        self.goes_on.set()
        self._level = 0  # at which it sleeps
        self._step_s = engine.card[index].copy()
        self.asked = self._reported = 0
        self._born()
        self._routes: dict[str, dict[str, Handler]] = {
            "/v1/chat/completions": {"POST": self._complete},
            "/v1/completions": {"POST": self._complete},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/health": {"GET": self._empty},
            "/ping": {"GET": self._empty, "POST": self._empty},
            "/metrics": {"GET": self._show_metrics},
            "/version": {"GET": self._version},
            "/load": {"GET": self._show_load},
            "/fault": {"POST": self._set_fault},
        }
        if config.sleep_mode:  # vLLM has these in its developer mode alone
            self._routes |= {
                "/sleep": {"POST": self._sleep},
                "/wake_up": {"POST": self._wake_up},
                "/is_sleeping": {"GET": self._is_sleeping},
            }

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

    def report(self) -> None:
        """Write the load into the log, unless nothing has come since the last report."""
        load, asked = self._present_load(), self.asked
        if load.running + load.waiting or asked > self._reported:
            self._reported = asked
            self.log.info(
                "running %d, waiting %d, KV cache %.1f %%, %d requests so far",
                load.running,
                load.waiting,
                100.0 * load.kv_frac,
                asked,
            )

    def _born(self) -> None:
        """Count from 0, awake."""
        card = self.config.server
        cache = {"block_size": str(card.block_size), "num_gpu_blocks": str(card.num_kv_blocks)}
        self.metrics = ServerMetrics(
            self.config.name, card.max_model_len, cache, self._present_load
        )
        self._born_s = int(time.time())
        self._level = 0
        self.engine.wake(self.index)

    def _present_load(self) -> Load:
        running, waiting, kv_frac = self.engine.load(self.index)
        evictions = self.engine.evictions(self.index)
        return Load(running, waiting, kv_frac, evictions, self._level)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        path, fault = request.path, self.fault
        if path != "/fault" and fault.kind != "none" and path.startswith(fault.on):
            if fault.kind == "hang":
                await self.goes_on.wait()
            elif fault.kind == "error":
                words = RefusedError(fault.status, "the server has a fault", kind="Fault")
                return _json(words.body, fault.status)
            elif fault.kind == "garbage":
                return web.Response(body=GARBAGE, content_type="application/json")
        if path.startswith(("/v1", "/fault")) and not self._may(request):
            return _json({"error": "Unauthorized"}, 401)
        methods = self._routes.get(path)
        if methods is None:
            return _json({"detail": "Not Found"}, 404)
        handler = methods.get(request.method)
        if handler is None:
            return _json({"detail": "Method Not Allowed"}, 405)
        try:
            return await handler(request)
        except RefusedError as error:
            return _json(error.body, error.status)

    def _may(self, request: web.BaseRequest) -> bool:
        """Return whether a client has the password, if there is one."""
        given = request.headers.get("Authorization", "").encode()
        wanted = f"Bearer {self._password}".encode()
        return self._password is None or hmac.compare_digest(given, wanted)

    async def _complete(self, request: web.BaseRequest) -> web.StreamResponse:
        return await complete(self, request)

    # What else vLLM answers

    async def _models(self, _: web.BaseRequest) -> web.Response:
        rights = ("create_engine", "sampling", "logprobs", "search_indices", "view", "fine_tuning")
        permission = {
            "id": f"modelperm-{self._born_s:x}",
            "object": "model_permission",
            "created": self._born_s,
            **{f"allow_{name}": name in ("sampling", "logprobs", "view") for name in rights},
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        model = {
            "id": self.config.name,
            "object": "model",
            "created": self._born_s,
            "owned_by": SIMULATED,
            "root": self.config.path or self.config.name,
            "parent": None,
            "max_model_len": self.config.server.max_model_len,
            "permission": [permission],
        }
        return _json({"object": "list", "data": [model]})

    async def _tokenize(self, request: web.BaseRequest) -> web.Response:
        body = read_json(await request.read())
        if "messages" in body:
            count = count_tokens(body, "messages")
            text = "".join(text_of(each) for each in body["messages"])
        else:
            count = count_tokens(body, "prompt")
            text = str(body["prompt"])
        strings = [text[i : i + split_tokens(text).step] for i in split_tokens(text)]
        strings = ["<template>"] * (count - len(strings)) + strings
        return _json(
            {
                "count": count,
                "max_model_len": self.config.server.max_model_len,
                "tokens": [zlib.crc32(each.encode()) % 128_000 for each in strings],
                "token_strs": strings if body.get("return_token_strs") else None,
            }
        )

    async def _empty(self, _: web.BaseRequest) -> web.Response:
        return web.Response()

    async def _show_metrics(self, _: web.BaseRequest) -> web.Response:
        return web.Response(body=self.metrics.text(), headers={"Content-Type": "text/plain"})

    async def _version(self, _: web.BaseRequest) -> web.Response:
        return _json({"version": VERSION})

    async def _show_load(self, _: web.BaseRequest) -> web.Response:
        return _json({"server_load": len(self.engine.on_server(self.index))})

    async def _is_sleeping(self, _: web.BaseRequest) -> web.Response:
        return _json({"is_sleeping": bool(self._level)})

    async def _sleep(self, request: web.BaseRequest) -> web.Response:
        level, mode = request.query.get("level", "1"), request.query.get("mode", "abort")
        if level not in ("0", "1", "2"):
            words = "Input should be less than or equal to 2"
            raise invalid("query.level", "less_than_equal", words, level, {"le": 2})
        if mode not in ("abort", "wait", "keep"):
            modes = "'abort', 'wait' or 'keep'"
            words = f"Input should be {modes}"
            raise invalid("query.mode", "literal_error", words, mode, {"expected": modes})
        self.engine.sleep(self.index)
        if mode == "keep":
            self.engine.keep(self.index)
        elif mode == "abort":
            self.engine.abort(self.index)
        while any(self.engine.load(self.index)[:2]):  # the step under way, or what it waits for
            await asyncio.sleep(_DRAIN_S)
        self._level = int(level)
        self.log.info("sleeps at level %s", level)
        return _json({"status": "sleeping", "level": int(level)})

    async def _wake_up(self, request: web.BaseRequest) -> web.Response:
        self._level = 0
        self.engine.wake(self.index)
        self.log.info("is awake")
        return _json({"status": "awake", "tags": request.query.getall("tags", []) or None})

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
    data = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    return web.Response(status=status, body=data, content_type="application/json")
