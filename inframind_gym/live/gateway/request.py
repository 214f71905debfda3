"""A request, checked as far as the gateway reads it, where it is sent, and its line of the log.

The log has one JSON object a line, one line a request, however it ended. The fields are those of
the live environments' request log (`live/request_log.py`), which `inframind calibrate` reads, and
these:

    asked            model that was asked for
    tenant           name of the key
    http             status of the answer
    budget_s, latency_s, predicted_s
    path, stream, domain

No text of a question, of an answer or of a key is written. `status` is "whole" of an answer that
was not streamed: its first token has no time. Calibrations of a pool count it by its end, those of
one model leave it out. Requests that were refused before they were read have no line.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, StrictBool, StrictStr, ValidationError
from starlette.types import Receive

from inframind_gym.configs import StrictModel
from inframind_gym.errors import ConfigError
from inframind_gym.files import parse_json
from inframind_gym.live.client import ChatResult
from inframind_gym.live.gateway.config import BudgetS, Domain, GatewayConfig, KeyConfig
from inframind_gym.live.guard import RequestError
from inframind_gym.live.request_log import measured
from inframind_gym.simulator.workflow.topology import STRATEGIES

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
_BUDGET: Final = "x-inframind-budget-s"
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MOST_CHOICES: Final = 128
_Tokens = Annotated[int, Field(strict=True, ge=1, le=1 << 24)] | None
_Object = dict[str, Any]


class _Extra(StrictModel):
    """The key "inframind" of a body, which `extra_body` of an SDK sets; servers do not get it."""

    budget_s: BudgetS | None = None
    domain: Domain | None = None


class _Body(BaseModel):
    """Fields of a body that the gateway reads."""

    model: StrictStr
    messages: Annotated[list[_Object], Field(min_length=1)] | None = None
    prompt: StrictStr | list[Any] | None = None
    stream: StrictBool | None = None
    stream_options: _Object | None = None
    max_tokens: _Tokens = None
    max_completion_tokens: _Tokens = None
    inframind: _Extra | None = None


@dataclass(slots=True)
class Query:
    """One request.

    Attributes:
        path: CHAT or COMPLETIONS.
        body: as sent, without "inframind" and "priority".
        model: as asked for.
        stream: answer as server-sent events.
        shows_usage: the client wants the usage at the end of a stream.
        max_tokens: of an answer; None: the model's.
        budget_s: seconds from its arrival.
        domain: one of DOMAINS.
        arrived_s: on the monotonic clock.
        prompt_bytes: length of its text, roughly.
    """

    path: str
    body: dict[str, Any]
    model: str
    stream: bool
    shows_usage: bool
    max_tokens: int | None
    budget_s: float
    domain: str
    tenant: KeyConfig
    request_id: str
    arrived_s: float
    prompt_bytes: int

    @property
    def choices(self) -> int:
        """Number of answers that were asked for."""
        count = self.body.get("n")
        return count if isinstance(count, int) and 1 <= count <= _MOST_CHOICES else 1


async def read_query(
    path: str,
    headers: Mapping[str, str],
    receive: Receive,
    tenant: KeyConfig,
    arrived_s: float,
    config: GatewayConfig,
) -> Query:
    """Read a request.

    Args:
        path: of the request.
        headers: of the request.
        receive: gives its body, which `Guard` limits.
        tenant: who asks.
        arrived_s: when.
        config: its budget and domain hold where neither request nor key names one.

    Raises:
        RequestError: the body is no request, does not come, or is no JSON by its type: a web page
            may send other types to this machine without asking.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(415, "unsupported_media_type", "send Content-Type: application/json")
    raw, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError(400, "incomplete", "the body did not end")
        raw += message.get("body", b"")
        more = message.get("more_body", False)
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
    needed = "messages" if path == CHAT else "prompt"
    if getattr(fields, needed) is None:
        raise RequestError(400, "invalid_request", f"{needed} is missing", param=needed)
    extra = fields.inframind or _Extra()
    budget_s = extra.budget_s or tenant.budget_s or config.budget_s
    if (header := headers.get(_BUDGET)) is not None:
        try:
            budget_s = _Extra.model_validate({"budget_s": float(header)}).budget_s or budget_s
        except ValueError:
            words = "X-InfraMind-Budget-S must be seconds, from 0.01 to 1e6"
            raise RequestError(400, "invalid_budget", words) from None
    for name in ("inframind", "priority"):  # the gateway's to say
        body.pop(name, None)
    return Query(
        path=path,
        body=body,
        model=fields.model,
        stream=bool(fields.stream),
        shows_usage=bool((fields.stream_options or {}).get("include_usage")),
        max_tokens=fields.max_completion_tokens or fields.max_tokens,
        budget_s=budget_s,
        domain=extra.domain or config.domain,
        tenant=tenant,
        request_id=request_id(headers),
        arrived_s=arrived_s,
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
    priority: int | None  # as sent
    predicted_s: float
    queue_req: int  # at the server, as polled last


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
    now_s, choice = time.monotonic(), None if attempt is None else attempt.choice
    result = ChatResult(query.arrived_s) if attempt is None else attempt.result
    strategy = None if choice is None else choice.strategy
    return {
        "request_id": query.request_id,
        "model": None if choice is None else choice.alias,
        **ended,
        **measured(result, epoch_s),
        "submit_ts": round(query.arrived_s, 6),
        "end_ts": round(now_s, 6),
        "latency_s": round(now_s - query.arrived_s, 6),
        "predicted_s": None if choice is None else round(choice.predicted_s, 3),
        "priority": None if choice is None else choice.priority,
        "strategy": None if strategy is None else STRATEGIES[strategy],
        "tenant": query.tenant.name,
        "asked": query.model[:100],
        "budget_s": query.budget_s,
        "path": query.path,
        "stream": query.stream,
        "domain": query.domain,
        "max_tokens": query.max_tokens,
    }
