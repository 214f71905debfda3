"""A request, checked as far as the gateway reads it, and the line of the log that it ends as.

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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.datastructures import Headers
from starlette.types import Receive

from inframind_gym.configs import StrictModel, validate
from inframind_gym.errors import ConfigError
from inframind_gym.files import parse_json
from inframind_gym.live.gateway.config import BudgetS, Domain, GatewayConfig, Limits
from inframind_gym.live.gateway.guard import RequestError, Tenant, too_large
from inframind_gym.simulator.workflow.topology import STRATEGIES

if TYPE_CHECKING:
    from inframind_gym.live.gateway.proxy import Attempt

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
_BUDGET: Final = "x-inframind-budget-s"
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MOST_TOKENS: Final = 1 << 24
_MOST_CHOICES: Final = 128


class Extra(StrictModel):
    """The key "inframind" of a body, which `extra_body` of an SDK sets; servers do not get it."""

    budget_s: BudgetS | None = None
    domain: Domain | None = None


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
    tenant: Tenant
    request_id: str
    arrived_s: float
    prompt_bytes: int

    @property
    def lead_s(self) -> float:
        """Seconds before its deadline at which it is queued: all but 1 / weight of its budget."""
        return self.budget_s * (1.0 - 1.0 / self.tenant.config.weight)

    @property
    def choices(self) -> int:
        """Number of answers that were asked for."""
        count = self.body.get("n")
        return count if isinstance(count, int) and 1 <= count <= _MOST_CHOICES else 1


async def read_body(headers: Headers, receive: Receive, limits: Limits) -> bytes:
    """Read a body.

    Raises:
        RequestError: it is too large or too slow, or no JSON by its type: a web page may send other
            types to this machine without asking.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(415, "unsupported_media_type", "send Content-Type: application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RequestError(400, "incomplete", "the body did not end")
                body += message.get("body", b"")
                if len(body) > limits.max_body_bytes:
                    raise too_large(limits.max_body_bytes)
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        raise RequestError(408, "timeout", f"no whole body in {limits.body_s:g} s") from None


def read_query(
    path: str, headers: Headers, raw: bytes, tenant: Tenant, arrived_s: float, config: GatewayConfig
) -> Query:
    """Read a request.

    Args:
        path: of the request.
        headers: of the request.
        raw: its body.
        tenant: who asks.
        arrived_s: when.
        config: its budget and domain hold where neither request nor key names one.

    Raises:
        RequestError: 400; the body is no request.
    """
    try:
        body = parse_json(raw.decode(), "the body")
        json.dumps(body, allow_nan=False)
    except (ValueError, RecursionError) as error:
        words = str(error) if isinstance(error, ConfigError) else "the body is not JSON"
        raise RequestError(400, "invalid_json", words[:300]) from None
    if not isinstance(body, dict):
        raise RequestError(400, "invalid_json", "the body is no JSON object")
    model, messages = body.get("model"), body.get("messages")
    if not isinstance(model, str):
        raise RequestError(400, "missing_model", "model must be a text", param="model")
    stream, options = body.get("stream") or False, body.get("stream_options") or {}
    wrong: tuple[str, str] | None = None
    if path == CHAT and not (
        isinstance(messages, list) and messages and all(isinstance(m, dict) for m in messages)
    ):
        wrong = "messages", "must be a list of objects, and not empty"
    elif path == COMPLETIONS and not isinstance(body.get("prompt"), str | list):
        wrong = "prompt", "must be a text or a list"
    elif not isinstance(stream, bool):
        wrong = "stream", "must be true or false"
    elif not isinstance(options, dict):
        wrong = "stream_options", "must be an object"
    max_tokens = None
    for name in ("max_tokens", "max_completion_tokens"):
        value = body.get(name)
        if value is not None and (type(value) is not int or not 1 <= value <= _MOST_TOKENS):
            wrong = name, "must be a whole number of at least 1"
        max_tokens = max_tokens if value is None else value
    if wrong is not None:
        raise RequestError(400, "invalid_request", " ".join(wrong), param=wrong[0])
    try:
        extra = validate(body.pop("inframind", None) or {}, Extra, source="inframind")
    except ConfigError as error:
        raise RequestError(400, "invalid_request", str(error), param="inframind") from None
    body.pop("priority", None)  # the gateway's to say
    budget_s = extra.budget_s or tenant.config.budget_s or config.budget_s
    if (given := headers.get(_BUDGET)) is not None:
        try:
            budget_s = Extra.model_validate({"budget_s": float(given)}).budget_s or budget_s
        except ValueError:
            words = "X-InfraMind-Budget-S must be seconds, from 0.01 to 1e6"
            raise RequestError(400, "invalid_budget", words) from None
    return Query(
        path=path,
        body=body,
        model=model,
        stream=stream,
        shows_usage=bool(options.get("include_usage")),
        max_tokens=max_tokens,
        budget_s=budget_s,
        domain=extra.domain or config.domain,
        tenant=tenant,
        request_id=request_id(headers),
        arrived_s=arrived_s,
        prompt_bytes=len(raw),
    )


def request_id(headers: Mapping[str, str]) -> str:
    """Return the client's X-Request-Id, if it is fit for headers and logs; else a new one."""
    given = headers.get("x-request-id", "")
    return given if _ID.fullmatch(given) else secrets.token_hex(12)


def log_line(
    query: Query, attempt: Attempt | None, end_s: float, epoch_s: float, **ended: Any
) -> dict[str, Any]:
    """Return the line of a request.

    Args:
        query: the request.
        attempt: the last one; None: none was made.
        end_s: when it was over.
        epoch_s: time of day when the monotonic clock stood at 0.
        ended: how: status (as of the request log, or "whole"), http, attempts, error.
    """
    line: dict[str, Any] = {
        "request_id": query.request_id,
        "model": None,
        **ended,
        "input_toks": None,
        "output_toks": None,
        "submit_ts": round(query.arrived_s, 6),
        "end_ts": round(end_s, 6),
        "asked": query.model[:100],
        "tenant": query.tenant.config.name,
        "budget_s": query.budget_s,
        "latency_s": round(end_s - query.arrived_s, 6),
        "path": query.path,
        "stream": query.stream,
        "domain": query.domain,
        "max_tokens": query.max_tokens,
    }
    if attempt is None:
        return line
    choice, result = attempt.choice, attempt.result
    times_s = {
        "sent_ts": result.sent_s,
        "queued_ts": result.queued_s,
        "scheduled_ts": result.scheduled_s,
        "first_token_ts": result.first_token_s,
        "last_token_ts": result.last_token_s,
        "arrival_time": None if result.sent_s is None else result.sent_s + epoch_s,
    }
    return line | {
        **{name: None if s is None else round(s, 6) for name, s in times_s.items()},
        "model": choice.alias,
        "input_toks": result.prompt_tokens,
        "output_toks": result.output_tokens,
        "priority": choice.priority,
        "strategy": None if choice.strategy is None else STRATEGIES[choice.strategy],
        "predicted_s": round(choice.predicted_s, 3),
    }
