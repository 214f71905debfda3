"""Configuration of the gateway: `gateway.yaml`, checked."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from inframind_gym.configs import (
    Name,
    NonNegativeInt,
    Positive,
    PositiveInt,
    StrictModel,
    load_yaml_model,
    validate,
    within,
)
from inframind_gym.errors import ConfigError
from inframind_gym.live.guard import LEAST_TOKEN_CHARS, LOOPBACK
from inframind_gym.tasks import DOMAINS

BudgetS = Annotated[float, within(0.01, 1e6)]


def _known(name: str) -> str:
    if name not in DOMAINS:
        raise ValueError(f"is no domain: give one of {', '.join(DOMAINS)}")
    return name


Domain = Annotated[str, AfterValidator(_known)]


class KeyConfig(StrictModel):
    """One tenant: its key and what it may do.

    Attributes:
        name: in logs and metrics, where the key itself never is.
        key: as clients send it.
        sha256: of the key, in hexadecimal, in place of it.
        budget_s: of requests that name none; None: the gateway's.
        models: names that it may ask for, "inframind/auto" among them; None: all.
    """

    name: Name
    key: SecretStr | None = None
    sha256: SecretStr | None = None
    budget_s: BudgetS | None = None
    models: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _one_secret(self) -> KeyConfig:
        if (self.key is None) == (self.sha256 is None):
            raise ValueError("give either key or sha256")
        if self.key is not None and len(self.key) < LEAST_TOKEN_CHARS:  # its error quotes no key
            raise ValueError(f"key is shorter than {LEAST_TOKEN_CHARS} characters")
        if len(self.digest) != hashlib.sha256().digest_size:
            raise ValueError("sha256 must be 64 hexadecimal digits")
        return self

    def may_ask(self, model: str) -> bool:
        """Return whether it may ask for a model."""
        return self.models is None or model in self.models

    @property
    def digest(self) -> bytes:
        """SHA-256 of the key."""
        if self.key is not None:
            return hashlib.sha256(self.key.get_secret_value().encode()).digest()
        assert self.sha256 is not None
        try:
            return bytes.fromhex(self.sha256.get_secret_value())
        except ValueError:
            return b""


class Limits(StrictModel):
    """Limits of a request, and of all together."""

    max_body_bytes: PositiveInt = 4 << 20
    max_in_flight: PositiveInt = 2048  # requests that are being answered
    max_connections_per_address: PositiveInt = 1024  # raise it behind a proxy: it has one
    max_teams: PositiveInt = 8  # workflows at once
    idle_s: Positive = 75.0  # between two requests: longer than clients keep connections
    connect_s: Positive = 5.0  # for a connection to a server
    stall_s: Positive = 60.0  # between two pieces of a stream, on either side
    answer_s: Positive = 600.0  # for a whole answer, from the request's arrival
    drain_s: Positive = 60.0  # for requests in flight, when the gateway ends
    policy_s: BudgetS = 5.0  # for a decision; then the soonest server is taken
    attempts: PositiveInt = 3  # at one request, wherever they are made


class GatewayConfig(StrictModel):
    """Keys of `gateway.yaml`; options of `inframind serve` take their place.

    Attributes:
        pool: name or path of a pool.
        policy: name of a routing policy, or "package.module:Class"; routes `inframind/auto`, plans
            and routes `inframind/team`.
        workload: whose abilities and lengths the policy believes in.
        domain: of requests that name none.
        host: address to listen on; other than this machine's own only with keys.
        port: to listen on.
        budget_s: of requests for which neither the client nor the key names one.
        admission: "refuse" answers 429 where no server can make the budget; "best_effort" serves.
        strategies: "prompt" adds the instruction of the chosen strategy to the messages of
            `inframind/auto`; "off" leaves them as they are.
        metrics_poll_s: interval at which servers are asked for their metrics; None: the pool's.
        log: file of the access log; None: none is written.
        speed: of simulated servers (`inframind pool up --simulate --speed`): budgets, clocks and
            predictions are in the servers' seconds.
        keys: who may ask; none: everybody on this machine.
        limits: of requests.
    """

    pool: str = "b200-2gpu"
    policy: str = "adaptive"
    workload: str = "mixed"
    domain: Domain = "Commonsense"
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    budget_s: BudgetS = 120.0
    admission: Literal["refuse", "best_effort"] = "refuse"
    strategies: Literal["prompt", "off"] = "prompt"
    metrics_poll_s: Positive | None = None
    log: str | None = None
    speed: Annotated[float, within(0.01, 1000.0)] = 1.0
    seed: NonNegativeInt = 0  # of the policy
    keys: tuple[KeyConfig, ...] = ()
    limits: Limits = Limits()

    @field_validator("keys")
    @classmethod
    def _distinct(cls, keys: tuple[KeyConfig, ...]) -> tuple[KeyConfig, ...]:
        for what, values in (
            ("name", [key.name for key in keys]),
            ("key", [key.digest for key in keys]),
        ):
            if len(set(values)) != len(values):
                raise ValueError(f"two entries have the same {what}")
        return keys

    @model_validator(mode="after")
    def _closed(self) -> GatewayConfig:
        if not self.keys and self.host not in LOOPBACK:
            raise ValueError(
                f"host {self.host!r} can be reached from other machines: set keys, or listen on "
                "127.0.0.1"
            )
        return self


def gateway_config(path: Path | None, options: dict[str, Any]) -> GatewayConfig:
    """Return the configuration of a file, with options in place of its keys.

    Raises:
        ConfigError: a key or an option is wrong; never quotes a secret.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if path is not None:
        if not path.is_file():
            raise ConfigError(f"{path}: no such file")
        # The file has to be right by itself: without the options it may be served, too.
        options = load_yaml_model(path, GatewayConfig).model_dump() | options
    return validate(options, GatewayConfig, source="inframind serve")
