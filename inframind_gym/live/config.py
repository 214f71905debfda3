"""Settings of live servers, their addresses, and arguments of the live environments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, model_validator

from inframind_gym.configs import NonNegative, Positive, PositiveInt, StrictModel, within
from inframind_gym.envs.routing_config import EnvConfig
from inframind_gym.errors import ConfigError, require
from inframind_gym.simulator.placement.config import ForeignMemory, PlacementConfig
from inframind_gym.simulator.server.pool import ModelConfig, PoolConfig

DEFAULT_POOL: Final = "cpu-tiny"  # of placement
SIMULATED_ENV: Final = "INFRAMIND_SIMULATED"
Seconds = Annotated[float, within(0.001, 86_400.0)]
WaitSeconds = Annotated[float, within(0.0, 86_400.0)]
Count = Annotated[int, within(0, 1000)]
_RESERVED: Final = {
    *("model", "messages", "max_tokens", "max_completion_tokens"),
    *("stream", "stream_options", "priority", "n"),
}


class ServerAddress(StrictModel):
    """Address of a model's server."""

    alias: str
    url: str  # without a path: "http://127.0.0.1:8001"
    model: str  # its name on the server


class LiveSettings(StrictModel):
    """Settings of a live pool; the defaults suit servers in the same local network."""

    # the client
    max_in_flight: PositiveInt = 1024  # requests, a socket each; further calls wait
    retry_wait_s: Positive = 0.2  # after a call that failed, before it is sent again; doubles
    # For one call. Long, because dropping late calls would relieve the load that is measured.
    call_s: Positive = 600.0
    # sampling
    temperature: NonNegative = 1.0
    sampling: dict[str, Any] = Field(default_factory=dict)  # e.g. top_p, ignore_eos, min_tokens
    # the watcher; how often metrics are read is the pool's `metrics_poll_s`
    health_s: Positive = 1.0  # between two checks of a server
    answer_s: Positive = 2.0  # to wait for an answer
    misses: PositiveInt = 3  # missing answers in a row until a server counts as down
    # grading
    packages: tuple[str, ...] = ("numpy",)  # that code may import beside the standard library

    @model_validator(mode="after")
    def _check(self) -> LiveSettings:
        if reserved := _RESERVED & set(self.sampling):
            raise ValueError(f"sampling: {min(reserved)!r} is set by the client")
        return self


class Simulation(StrictModel):
    """Settings of servers that are simulated in place of vLLM's."""

    speed: Positive = 1.0  # virtual seconds a second
    workload: str = "mixed"  # from which the lengths of answers are drawn


class SimulatedPool(Simulation):
    """Servers that one process simulates; it reads this from the variable `SIMULATED_ENV`."""

    pool: PoolConfig
    host: str


class LiveConfig(EnvConfig):
    """Keyword arguments of the live routing environments: those of `EnvConfig`, and six more."""

    live: LiveSettings = LiveSettings()  # how servers are called and watched
    log: str | None = None  # file with a line for every call, as `inframind calibrate` reads it
    retries: Count = 5  # of a call that failed, at another server if its own is down
    reach_s: Seconds = 10.0  # for servers to answer at the first reset; one is enough to begin
    patience_s: Seconds = 600.0  # to wait later for a server while all are down
    # For tests: no server is called, calls take this long, in virtual time, and answers are right.
    scripted_s: Seconds | None = None

    @model_validator(mode="after")
    def _no_faults(self) -> LiveConfig:
        if self.faults:
            raise ValueError("faults belong to simulated servers; live ones have their own")
        return self


class LiveLimits(LiveSettings):
    """Settings of live placement: how long servers are waited for, how often a call is sent."""

    sampling: dict[str, Any] = Field(default_factory=lambda: {"ignore_eos": True})
    answer_s: Positive = 5.0
    misses: PositiveInt = 4
    start_s: Seconds = 1800.0  # for a process to come up; large models are fetched first
    sleep_s: Seconds = 120.0  # for /sleep; then the server is stopped
    wake_s: Seconds = 120.0  # for /wake_up; then the server is stopped
    stop_s: WaitSeconds = 20.0  # from SIGTERM to SIGKILL
    retries: Count = 3  # of a call; those because its server was stopped or slept do not count
    backoff_s: WaitSeconds = 60.0  # until a model that failed to come up on a block is tried again


class PlacementLiveConfig(PlacementConfig):
    """Keyword arguments of `InfraMind-PlacementLive-v0`: those of `PlacementConfig`, and these.

    `timing_spread`, `timing_noise` and `foreign_memory` are those of the machine.
    """

    pool: str = DEFAULT_POOL  # name or path: how each model is served
    cluster: str = DEFAULT_POOL  # without it, the one with the pool's name
    demand: str = "trickle"
    timing_spread: NonNegative = 0.0
    timing_noise: NonNegative = 0.0
    foreign_memory: ForeignMemory = ForeignMemory(max_MB=0.0)
    state: str | None = None  # folder of what was started; None: as of `inframind pool`
    python: str | None = None  # interpreter that has vLLM; None: as of `inframind pool`
    live: LiveLimits = LiveLimits()

    @model_validator(mode="before")
    @classmethod
    def _cluster_of_the_pool(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        optional = ("cluster", "foreign_memory", "live")
        given = {k: v for k, v in given.items() if v is not None or k not in optional}
        if "pool" in given and "cluster" not in given:
            given["cluster"] = Path(str(given["pool"])).stem
        return given

    @model_validator(mode="after")
    def _nothing_is_drawn(self) -> PlacementLiveConfig:
        if self.timing_spread or self.timing_noise or self.foreign_memory.max_MB:
            raise ValueError(
                "timing_spread, timing_noise and foreign_memory.max_MB must be 0: on live servers "
                "they are what they are"
            )
        return self


def server_url(model: ModelConfig) -> str:
    """Return the address of a model's server: `url`, or `port` here; ConfigError without both."""
    if model.url is not None:
        return model.url.rstrip("/").removesuffix("/v1")
    if model.port is None:
        raise ConfigError(
            f"model {model.alias!r} has no port and no url: give it a port to have it started, or "
            "the url of a server that runs already"
        )
    return f"http://127.0.0.1:{model.port}"


def addresses(pool: PoolConfig) -> tuple[ServerAddress, ...]:
    """Return the addresses of a pool's models, in the order of the actions; see `server_url`."""
    return tuple(
        ServerAddress(alias=model.alias, url=server_url(model), model=model.name)
        for model in pool.models
    )


def require_live() -> None:
    """Raise an InfraMindError that says how to install the extra `live`, unless it is there."""
    for module in ("aiohttp", "prometheus_client", "psutil"):
        require(module, "a pool of live servers", "live")
