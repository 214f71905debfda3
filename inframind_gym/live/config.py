"""Keyword arguments of the live environments, for routing and for placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, model_validator

from inframind_gym.configs import NonNegative, StrictModel, within
from inframind_gym.configs import validate as validate_model
from inframind_gym.envs.placement import ForeignMemory, PlacementConfig
from inframind_gym.envs.routing_config import EnvConfig
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.live.settings import LiveSettings
from inframind_gym.simulator.placement.config import ClusterConfig, ModelCard
from inframind_gym.simulator.server.pool import GpuConfig, ModelConfig, PoolConfig

DEFAULT_POOL: Final = "cpu-tiny"  # of placement
Seconds = Annotated[float, within(0.001, 86_400.0)]
WaitSeconds = Annotated[float, within(0.0, 86_400.0)]
Count = Annotated[int, within(0, 1000)]
Misses = Annotated[int, within(1, 1000)]


class LiveConfig(EnvConfig):
    """Keyword arguments of the live routing environments: those of `EnvConfig`, and six more.

    Attributes:
        live: how servers are called and watched (`LiveSettings`).
        log: file to which a line is appended for every call, in the format that
            `inframind calibrate` reads.
        retries: how often a call that failed is sent again, to another server if its own is down.
        reach_s: time for the servers to answer at the first reset; then those that do are enough.
        patience_s: time to wait later for a server while all are down.
        scripted_s: for tests: no server is called, every call takes this long, in virtual time, and
            every answer is right.
    """

    live: LiveSettings = LiveSettings()
    log: str | None = None
    retries: Count = 2
    reach_s: Seconds = 10.0
    patience_s: Seconds = 600.0
    scripted_s: Seconds | None = None

    @model_validator(mode="after")
    def _no_faults(self) -> LiveConfig:
        if self.faults:
            raise ValueError("faults belong to simulated servers; live ones have their own")
        return self


class LiveLimits(StrictModel):
    """Limits of live placement: how long servers are waited for, how often a call is sent."""

    start_s: Seconds = 1800.0  # for a process to come up; large models are fetched first
    sleep_s: Seconds = 120.0  # for /sleep, until it is reported; then the server is stopped
    wake_s: Seconds = 120.0  # for /wake_up, until it is reported; then it has failed
    drain_s: Seconds = 120.0  # for calls of a server that is to leave; then they go elsewhere
    stop_s: WaitSeconds = 20.0  # from SIGTERM to SIGKILL
    call_s: Seconds = 600.0  # for one call; then it has failed
    retries: Count = 3  # of a call; where its server was stopped or slept does not count
    backoff_s: WaitSeconds = 60.0  # for which a model that failed on a block is not tried there
    health_s: Seconds = 1.0  # between two checks of a server
    answer_s: Seconds = 5.0  # to wait for the answer to a check
    misses: Misses = 4  # checks in a row without an answer until a server counts as dead


class PlacementLiveConfig(PlacementConfig):
    """Keyword arguments of `InfraMind-PlacementLive-v0`: those of `PlacementConfig`, and these.

    `timing_spread`, `timing_noise` and `foreign_memory` are those of the machine.

    Attributes:
        pool: name or path of a pool (`envs_configs/pools`): how each model is served.
        cluster: as in `PlacementConfig`; without it, the one with the pool's name.
        state: folder of what was started; None: as of `inframind pool`.
        python: interpreter that has vLLM; None: as of `inframind pool`.
        sampling: of every call, as vLLM takes it beside temperature.
        live: limits.
    """

    pool: str = DEFAULT_POOL
    cluster: str = DEFAULT_POOL
    demand: str = "trickle"
    timing_spread: NonNegative = 0.0
    timing_noise: NonNegative = 0.0
    foreign_memory: ForeignMemory = ForeignMemory(max_MB=0.0)
    state: str | None = None
    python: str | None = None
    sampling: dict[str, Any] = Field(default_factory=lambda: {"ignore_eos": True})
    live: LiveLimits = Field(default_factory=LiveLimits)

    @model_validator(mode="before")
    @classmethod
    def _cluster_of_the_pool(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        optional = ("cluster", "foreign_memory", "sampling", "live")
        given = {k: v for k, v in given.items() if v is not None or k not in optional}
        if "pool" in given and "cluster" not in given:
            given["cluster"] = Path(str(given["pool"])).stem
        return given

    @model_validator(mode="after")
    def _nothing_is_drawn(self) -> PlacementLiveConfig:
        for name, value in (
            ("timing_spread", self.timing_spread),
            ("timing_noise", self.timing_noise),
            ("foreign_memory.max_MB", self.foreign_memory.max_MB),
        ):
            if value:
                raise ValueError(f"{name} must be 0: on live servers it is what it is")
        return self


def live_config(arguments: Mapping[str, Any]) -> LiveConfig:
    """Check the arguments of a live routing environment; servers are reached by its reset.

    Raises:
        ConfigError: an argument that is unknown or has an impossible value; says what is possible.
    """
    return validate_model(dict(arguments), LiveConfig, source="environment")


def live_placement_config(arguments: Mapping[str, Any]) -> PlacementLiveConfig:
    """Check the arguments of a live placement environment.

    Raises:
        ConfigError: an argument that is unknown or has an impossible value; says what is possible.
    """
    return validate_model(dict(arguments), PlacementLiveConfig, source="environment")


def served_models(
    pool: PoolConfig, cluster: ClusterConfig, cards: Sequence[ModelCard]
) -> tuple[ModelConfig, ...]:
    """Return the pool's entry of each model of a cluster.

    Raises:
        ConfigError: the pool lacks the models or the GPUs, or disagrees with the cards.
    """
    devices = [gpu for gpu in pool.gpus if not gpu.is_cpu]
    if devices and len(devices) < cluster.num_gpus:
        raise ConfigError(
            f"pool {pool.name!r}: gpus: has {len(devices)}, cluster {cluster.name!r} has "
            f"{cluster.num_gpus}. Name as many in the pool, or lower `count` in the cluster."
        )
    served = []
    for card in cards:
        if card.alias not in pool.aliases:
            raise ConfigError(
                f"cluster {cluster.name!r}: models: {unknown('model', card.alias, pool.aliases)} "
                f"Those are the models of pool {pool.name!r}: add it there, or remove it here."
            )
        model = pool.models[pool.index(card.alias)]
        wrong = ""
        if model.url is not None:
            wrong = "url: servers of a placement are started and stopped. Give it a port."
        elif any(group.alpha > 0.0 for group in cluster.gpus) and not model.sleep_mode:
            wrong = (
                f"sleep_mode is off, but cluster {cluster.name!r} lets models sleep. Set "
                "sleep_mode: true, or alpha: 0 in the cluster."
            )
        elif card.slots != model.server.slots:
            wrong = (
                f"server.max_num_seqs is {model.server.slots} (of all engines), the card of "
                f"cluster {cluster.name!r} has slots: {card.slots}. Make them equal."
            )
        if wrong:
            raise ConfigError(f"pool {pool.name!r}: models: {card.alias}: {wrong}")
        served.append(model)
    return tuple(served)


def instance_pool(
    pool: PoolConfig, cluster: ClusterConfig, model: ModelConfig, card: ModelCard, leader: int
) -> PoolConfig:
    """Return the pool of one instance: a model on the block of GPUs that begins at `leader`."""
    if all(gpu.is_cpu for gpu in pool.gpus):  # slots that exist in the books alone
        gpus = tuple(GpuConfig(name=f"slot{g}", device="CPU") for g in range(cluster.num_gpus))
    else:
        gpus = tuple(gpu for gpu in pool.gpus if not gpu.is_cpu)
    block = slice(leader, leader + card.tp_min)
    names = tuple(gpu.name for gpu in gpus[block])
    vram = [group.vram_total_MB for group in cluster.gpus for _ in range(group.count)]
    served = model.model_copy(
        update={
            "gpu": names[0],
            "gpus": names if len(names) > 1 else (),
            "tensor_parallel": card.tp_min,
            "gpu_memory_frac": card.active_mem_MB / min(vram[block]),
            "port": None,
        }
    )
    name = f"{pool.name}+{card.alias}+{leader}"  # of no pool file: they have no plus signs
    return pool.model_copy(update={"name": name, "gpus": gpus, "models": (served,)})
