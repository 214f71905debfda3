"""A request, checked as far as the gateway reads it, where it is sent, and its line of the log.

The log has one line a request, however it ended: that of the live environments (`request_log.py`),
and the fields of `log_line`. No text of a question, of an answer or of a key is written. `status`
is "whole" of an answer that was not streamed: its first token has no time. Calibrations of a pool
count it by its end, those of one model leave it out. Requests that were refused before they were
read have no line.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, StrictBool, StrictStr, ValidationError
from starlette.requests import ClientDisconnect, Request

from inframind_gym.configs import StrictModel
from inframind_gym.errors import ConfigError
from inframind_gym.files import parse_json
from inframind_gym.live.client import ChatResult
from inframind_gym.live.gateway.config import USUAL_DOMAIN, BudgetS, GatewayConfig
from inframind_gym.live.guard import RequestError
from inframind_gym.live.request_log import log_record
from inframind_gym.simulator.workflow.topology import STRATEGIES

CHAT: Final = "/v1/chat/completions"
_BUDGET: Final = "x-inframind-budget-s"
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_Tokens = Annotated[int, Field(strict=True, ge=1, le=1 << 24)] | None
_Object = dict[str, Any]


class _Extra(StrictModel):
    """The key "inframind" of a body, which `extra_body` of an SDK sets; servers do not get it."""

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
    inframind: _Extra = _Extra()


@dataclass(slots=True)
class Query:
    """One request.

    Attributes:
        body: as sent, without "inframind" and "priority".
        model: as asked for.
        stream: answer as server-sent events.
        shows_usage: the client wants the usage at the end of a stream.
        choices: number of answers that were asked for.
        max_tokens: of an answer; None: the model's.
        budget_s: seconds from its arrival.
        domain: one of DOMAINS.
        tenant: name of the key.
        arrived_s: on the monotonic clock.
        prompt_bytes: length of its text, roughly.
    """

    body: dict[str, Any]
    model: str
    stream: bool
    shows_usage: bool
    choices: int
    max_tokens: int | None
    budget_s: float
    domain: str
    tenant: str
    request_id: str
    arrived_s: float
    prompt_bytes: int


async def read_query(request: Request, config: GatewayConfig) -> Query:
    """Read a request, whose body `Guard` limits.

    Raises:
        RequestError: the body is no request, does not come, or is no JSON by its type: a web page
            may send other types to this machine without asking.
    """
    headers = request.headers
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
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
    budget_s = fields.inframind.budget_s or config.budget_s
    if (header := headers.get(_BUDGET)) is not None:
        try:
            budget_s = _Extra(budget_s=float(header)).budget_s or budget_s
        except ValueError:
            words = "X-InfraMind-Budget-S must be seconds, from 0.01 to 1e6"
            raise RequestError(400, "invalid_budget", words) from None
    for name in ("inframind", "priority"):  # the gateway's to say
        body.pop(name, None)
    return Query(
        body=body,
        model=fields.model,
        stream=bool(fields.stream),
        shows_usage=bool((fields.stream_options or {}).get("include_usage")),
        choices=fields.n or 1,
        max_tokens=fields.max_completion_tokens or fields.max_tokens,
        budget_s=budget_s,
        domain=fields.inframind.domain,
        tenant=request.state.tenant,
        request_id=request_id(headers),
        arrived_s=request.state.arrived_s,
        prompt_bytes=len(raw),
    )


def request_id(headers: Mapping[str, str]) -> str:
    """Return the client's X-Request-Id, if it is fit for headers and logs; else a new one."""
    sent = headers.get("x-request-id", "")
    return sent if _ID.fullmatch(sent) else secrets.token_hex(12)


@dataclass(frozen=True, slots=True)
class Choice:
    """Server that a request is sent to, and why."""

    server: int
    alias: str
    body: dict[str, Any] = field(repr=False)  # as sent
    strategy: int | None  # index into STRATEGIES; None: the client named the model
    predicted_s: float


@dataclass(slots=True, eq=False)
class Attempt:
    """A request at a server."""

    choice: Choice
    timer: asyncio.Timeout
    over_s: float  # on the loop's clock: the limit of the whole answer
    result: ChatResult = field(default_factory=lambda: ChatResult(time.monotonic()))
    ended: bool = False  # its server went down
    started: bool = False  # the client has got part of the answer

    def end(self) -> None:
        """End it as failed; on its loop."""
        if not self.timer.expired():
            self.ended = True
            self.timer.reschedule(0.0)


def log_line(query: Query, attempt: Attempt | None, epoch_s: float, **ended: Any) -> dict[str, Any]:
    """Return the line of a request that is over.

    Args:
        query: the request.
        attempt: the last one; None: none was made.
        epoch_s: time of day when the monotonic clock stood at 0.
        ended: how: status (as of the request log, or "whole"), http, attempts, error.
    """
    choice = None if attempt is None else attempt.choice
    result = ChatResult(query.arrived_s) if attempt is None else attempt.result
    strategy = None if choice is None else choice.strategy
    line = log_record(
        query.request_id,
        None if choice is None else choice.alias,
        result,
        epoch_s,
        priority=None if choice is None else choice.body.get("priority"),
        strategy=None if strategy is None else STRATEGIES[strategy],
        max_tokens=query.max_tokens,
        asked=query.model[:100],
        tenant=query.tenant,
        domain=query.domain,
        stream=query.stream,
        budget_s=query.budget_s,
        predicted_s=None if choice is None else round(choice.predicted_s, 3),
    )
    return {**line, **ended, "submit_ts": round(query.arrived_s, 6)}
