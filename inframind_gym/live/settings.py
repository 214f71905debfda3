"""Settings of live servers: addresses, limits, retries, sampling."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field, model_validator

from inframind_gym.configs import NonNegative, NonNegativeInt, Positive, PositiveInt, StrictModel
from inframind_gym.errors import ConfigError, require
from inframind_gym.simulator.server.pool import ModelConfig, PoolConfig

if TYPE_CHECKING:
    import aiohttp

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_KEEP_ALIVE_S: Final = 4.0  # idle connections; vLLM's front end closes its own after 5


class ServerAddress(StrictModel):
    """Address of a model's server."""

    alias: str
    url: str  # without a path: "http://127.0.0.1:8001"
    model: str  # its name on the server


class LiveSettings(StrictModel):
    """Settings of a live pool; the defaults suit servers in the same room.

    A call may take as long as its query has budget left, and `grace_s`; but at least `floor_s`, for
    the calls of queries that are late already, and at most `cap_s`. The floor is long: a pool that
    drops what is late is relieved of the load that is measured, and the surrogate drops nothing.
    """

    # the client
    max_in_flight: PositiveInt = 1024  # requests, a socket each; calls beyond wait, EDF first
    max_in_flight_per_server: PositiveInt = 512  # calls that wait are not in its metrics
    connect_s: Positive = 5.0  # to get a connection
    retries: NonNegativeInt = 2  # of a request that got no token: refused, reset, 429, 503
    most_attempts: PositiveInt = 6  # of a call in all, those at other servers included
    retry_wait_s: Positive = 0.2  # before the first retry; doubles, and is drawn from 50..150 %
    retry_wait_most_s: Positive = 5.0
    grace_s: NonNegative = 60.0
    floor_s: Positive = 300.0
    cap_s: Positive = 1800.0
    # sampling
    temperature: NonNegative = 1.0
    seed: int | None = None  # each call's seed follows from it
    sampling: dict[str, Any] = Field(default_factory=dict)  # e.g. top_p, ignore_eos, min_tokens
    # the watcher; how often metrics are read is the pool's `metrics_poll_s`
    health_s: Positive = 1.0  # between two checks of a server
    answer_s: Positive = 2.0  # to wait for an answer
    misses: PositiveInt = 3  # answers that fail to come in a row until a server is down
    # grading
    judges: PositiveInt | None = None  # threads; None: one a processor
    judge_s: Positive = 60.0  # an answer that takes longer to grade stays ungraded
    packages: tuple[str, ...] = ("numpy",)  # that code may import beside the standard library

    @model_validator(mode="after")
    def _check(self) -> LiveSettings:
        if self.floor_s > self.cap_s:
            raise ValueError(f"floor_s ({self.floor_s:g}) must not exceed cap_s ({self.cap_s:g})")
        reserved = _RESERVED & set(self.sampling)
        if reserved:
            raise ValueError(f"sampling: {min(reserved)!r} is set by the client")
        return self

    def limit_s(self, remaining_s: float) -> float:
        """Return the limit of a call whose query has `remaining_s` of its budget left."""
        return min(self.cap_s, max(self.floor_s, remaining_s + self.grace_s))


_RESERVED = {
    *("model", "messages", "max_tokens", "max_completion_tokens"),
    *("stream", "stream_options", "priority", "seed", "n"),
}


def server_url(model: ModelConfig) -> str:
    """Return the address of a model's server: its `url`, or its `port` on this machine.

    Raises:
        ConfigError: it has neither.
    """
    if model.url is not None:
        return model.url.rstrip("/").removesuffix("/v1")
    if model.port is None:
        raise ConfigError(f"model {model.alias!r} has no port and no url: where is it served?")
    return f"http://127.0.0.1:{model.port}"


def addresses(pool: PoolConfig) -> tuple[ServerAddress, ...]:
    """Return the addresses of a pool's models, in the order of the actions.

    Raises:
        ConfigError: a model has neither a port nor a url.
    """
    return tuple(
        ServerAddress(alias=model.alias, url=server_url(model), model=model.name)
        for model in pool.models
    )


def host_name(header: str) -> str:
    """Return the host in a header `Host`, without its port.

    A web page whose name was bound to 127.0.0.1 after it was loaded names its own host.
    """
    return re.sub(r":\d*$", "", header).strip("[]").lower()


def open_session(limit_s: float | None, connect_s: float | None = None) -> aiohttp.ClientSession:
    """Open a session on the loop that runs; it sends $VLLM_API_KEY, where that is set.

    Args:
        limit_s: for each request as a whole; None: they have limits of their own.
        connect_s: to get a connection.
    """
    import aiohttp

    headers = {"Accept-Encoding": "identity"}  # nothing that grows when it is unpacked
    if key := os.environ.get("VLLM_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    return aiohttp.ClientSession(
        # Requests are bounded by those who send them: the connector would serve in any order.
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=limit_s, sock_connect=connect_s),
        headers=headers,
        auto_decompress=False,
    )


def require_live() -> None:
    """Check that the extra `live` is installed.

    Raises:
        InfraMindError: it is not; the message says how to install it.
    """
    for module in ("aiohttp", "prometheus_client", "psutil"):
        require(module, "a pool of live servers", "live")
