"""A client's request, checked as far as the gateway reads it, and an attempt at a server."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, StrictBool, StrictStr, ValidationError
from starlette.requests import ClientDisconnect, Request

from inframind_gym.configs import StrictModel
from inframind_gym.errors import ConfigError
from inframind_gym.files import parse_json
from inframind_gym.live.gateway.config import USUAL_DOMAIN, BudgetS, GatewayConfig
from inframind_gym.live.guard import RequestError

_BUDGET: Final = "x-inframind-budget-s"
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_Tokens = Annotated[int, Field(strict=True, ge=1, le=1 << 24)] | None
_Object = dict[str, Any]


class _Extra(StrictModel):
    """The key "inframind" of a body, set with `extra_body` of an SDK; not sent to servers."""

    budget_s: BudgetS | None = None
    domain: Literal["Math", "Code", "Commonsense"] = USUAL_DOMAIN


class _Body(BaseModel):
    """Fields of a body that the gateway reads."""

    model: StrictStr
    messages: Annotated[list[_Object], Field(min_length=1)]
    n: Annotated[int, Field(strict=True, ge=1, le=128)] | None = None
    stream: StrictBool | None = None
    stream_options: _Object | None = None
    max_tokens: _Tokens = None
    max_completion_tokens: _Tokens = None
    inframind: _Extra | None = None


@dataclass(slots=True)
class Query:
    """One request."""

    body: dict[str, Any]  # as sent, without "inframind" and "priority"
    model: str  # as asked for
    stream: bool  # answer as server-sent events
    shows_usage: bool  # the client wants the usage at the end of a stream
    choices: int  # number of answers, `n`
    max_tokens: int | None  # of an answer; None: the model's
    budget_s: float  # latency budget, from its arrival
    domain: str  # one of DOMAINS
    tenant: str  # name of the key
    request_id: str
    arrived_s: float  # on the monotonic clock
    prompt_bytes: int  # length of its text, roughly


async def read_query(request: Request, config: GatewayConfig) -> Query:
    """Read a request, whose body `Guard` limits.

    Raises:
        RequestError: the body is no request, or does not come.
    """
    headers = request.headers
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # browsers send other types across origins without preflight
        raise RequestError(415, "unsupported_media_type", "send Content-Type: application/json")
    try:
        raw = await request.body()
    except ClientDisconnect:
        raise RequestError(400, "incomplete", "the body did not end") from None
    try:
        body = parse_json(raw.decode(), "the body")
        json.dumps(body, allow_nan=False)
    except (ValueError, RecursionError) as error:
        words = str(error) if isinstance(error, ConfigError) else "the body is not JSON"
        raise RequestError(400, "invalid_json", words[:300]) from None
    if not isinstance(body, dict):
        raise RequestError(400, "invalid_json", "the body is no JSON object")
    try:
        fields = _Body.model_validate(body)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        param, place = str(wrong["loc"][0]), ".".join(map(str, wrong["loc"]))
        code = "missing_model" if param == "model" else "invalid_request"
        raise RequestError(400, code, f"{place}: {wrong['msg']}"[:300], param=param) from None
    extra = fields.inframind or _Extra()
    budget_s = extra.budget_s or config.budget_s
    if (header := headers.get(_BUDGET)) is not None:
        try:
            budget_s = _Extra(budget_s=float(header)).budget_s or budget_s
        except ValueError:
            words = "X-InfraMind-Budget-S must be seconds, from 0.01 to 1e6"
            raise RequestError(400, "invalid_budget", words) from None
    for name in ("inframind", "priority"):  # not for servers; and set by the gateway alone
        body.pop(name, None)
    return Query(
        body=body,
        model=fields.model,
        stream=bool(fields.stream),
        shows_usage=bool((fields.stream_options or {}).get("include_usage")),
        choices=fields.n or 1,
        max_tokens=fields.max_completion_tokens or fields.max_tokens,
        budget_s=budget_s,
        domain=extra.domain,
        tenant=request.state.tenant,
        request_id=request_id(headers),
        arrived_s=request.state.arrived_s,
        prompt_bytes=len(raw),
    )


def request_id(headers: Mapping[str, str]) -> str:
    """Return the client's X-Request-Id if it is safe in headers and logs, else a new one."""
    sent = headers.get("x-request-id", "")
    return sent if _ID.fullmatch(sent) else secrets.token_hex(12)


@dataclass(slots=True)
class Attempt:
    """An attempt at a server: what is sent, and the decision behind it."""

    server: int  # index
    alias: str
    body: dict[str, Any] = field(repr=False)  # as sent
    strategy: int | None  # index into STRATEGIES; None: the client named the model
    predicted_s: float
