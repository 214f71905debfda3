"""Configuration of the gateway: `gateway.yaml`, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from inframind_gym.configs import (
    Name,
    Positive,
    PositiveInt,
    StrictModel,
    load_yaml_model,
    validate,
    within,
)
from inframind_gym.live.guard import LEAST_TOKEN_CHARS, LOOPBACK

USUAL_DOMAIN: Final = "Commonsense"  # of requests that name none
BudgetS = Annotated[float, within(0.01, 1e6)]


def _secret(key: object) -> object:
    if not isinstance(key, str | SecretStr):  # pydantic's own error would quote it
        raise ValueError("is no text: write it in quotes")
    if len(key) < LEAST_TOKEN_CHARS:
        raise ValueError(f"is shorter than {LEAST_TOKEN_CHARS} characters")
    return key


class Limits(StrictModel):
    """Limits of one request, and of all together."""

    max_body_bytes: PositiveInt = 4 << 20
    max_in_flight: PositiveInt = 2048  # requests that are being answered
    max_connections_per_address: PositiveInt = 1024  # raise it behind a proxy: it has one
    max_teams: PositiveInt = 8  # workflows at once
    idle_s: Positive = 75.0  # between two requests: longer than clients keep connections
    stall_s: Positive = 60.0  # between two pieces of a stream, on either side
    answer_s: Positive = 600.0  # for a whole answer, from the request's arrival
    drain_s: Positive = 60.0  # for requests in flight, when the gateway ends
    policy_s: BudgetS = 5.0  # for a decision; then the soonest server is taken
    attempts: PositiveInt = 3  # at one request, over all servers


class GatewayConfig(StrictModel):
    """Keys of `gateway.yaml`; options of `inframind serve` override them."""

    pool: str = "b200-2gpu"  # name or path
    # Name or "package.module:Class"; routes `inframind/auto`, plans and routes `inframind/team`.
    policy: str = "adaptive"
    workload: str = "mixed"  # has the abilities and lengths that the policy assumes
    host: str = "127.0.0.1"  # addresses other than loopback need keys
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    budget_s: BudgetS = 120.0  # of requests that name none
    admission: Literal["refuse", "best_effort"] = "refuse"  # where no server can make the budget
    log: str | None = None  # file of the access log
    # Of simulated servers: budgets, clocks and predictions are in the servers' seconds.
    speed: Annotated[float, within(0.01, 1000.0)] = 1.0
    # "prompt" adds the chosen strategy's instruction to the messages of `inframind/auto`.
    strategies: Literal["prompt", "off"] = "prompt"
    # By name of a tenant; empty: everybody on this machine may ask.
    keys: dict[Name, Annotated[SecretStr, BeforeValidator(_secret)]] = Field({})
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _closed(self) -> GatewayConfig:
        if not self.keys and self.host not in LOOPBACK:
            raise ValueError(f"host {self.host!r} is open to others: set keys, or use 127.0.0.1")
        if len({key.get_secret_value() for key in self.keys.values()}) < len(self.keys):
            raise ValueError("keys: two tenants have the same key")
        return self


def gateway_config(path: Path | None, options: dict[str, Any]) -> GatewayConfig:
    """Return the configuration of a file, overridden by options.

    Raises:
        ConfigError: a key or an option is wrong; never quotes a secret.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if path is not None:
        # The file has to be valid by itself: it may be served without the options, too.
        options = load_yaml_model(path, GatewayConfig).model_dump() | options
    return validate(options, GatewayConfig, source="inframind serve")
