"""A request as it was asked, checked as far as the gateway reads it."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from inframind_gym.configs import StrictModel, validate
from inframind_gym.errors import ConfigError
from inframind_gym.live.gateway.answers import RequestError, bad_request
from inframind_gym.live.gateway.config import BudgetS, Domain
from inframind_gym.live.gateway.keys import Tenant

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
AUTO: Final = "inframind/auto"
TEAM: Final = "inframind/team"
BUDGET_HEADER: Final = b"x-inframind-budget-s"
_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_MOST_TOKENS: Final = 1 << 24
_MOST_CHOICES: Final = 128


class Extra(StrictModel):
    """The key "inframind" of a body, which `extra_body` of an SDK sets; servers do not get it."""

    budget_s: BudgetS | None = None
    domain: Domain | None = None


@dataclass(slots=True)
class Asked:
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


def read_request(
    path: str,
    headers: Mapping[bytes, bytes],
    raw: bytes,
    tenant: Tenant,
    arrived_s: float,
    *,
    budget_s: float,
    domain: str,
) -> Asked:
    """Read a request.

    Args:
        path: of the request.
        headers: of the request.
        raw: its body.
        tenant: who asks.
        arrived_s: when.
        budget_s: where neither request nor key names one.
        domain: where the request names none.

    Raises:
        RequestError: 400; the body is no request.
    """
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise bad_request("the body is not JSON", "invalid_json") from None
    if not isinstance(body, dict):
        raise bad_request("the body is no JSON object", "invalid_json")
    model = body.get("model")
    if not isinstance(model, str):
        raise bad_request("model must be a text", "missing_model", "model")
    if path == CHAT and not _are_messages(body.get("messages")):
        raise bad_request("messages must be a list of objects, and not empty", param="messages")
    if path == COMPLETIONS and not isinstance(body.get("prompt"), str | list):
        raise bad_request("prompt must be a text or a list", param="prompt")
    stream = body.get("stream") or False
    options = body.get("stream_options") or {}
    if not isinstance(stream, bool) or not isinstance(options, dict):
        raise bad_request("stream must be true or false, stream_options an object")
    extra = _extra(body.pop("inframind", None))
    body.pop("priority", None)  # the gateway's to say
    return Asked(
        path=path,
        body=body,
        model=model,
        stream=stream,
        shows_usage=bool(options.get("include_usage")),
        max_tokens=_max_tokens(body),
        budget_s=_budget(headers.get(BUDGET_HEADER))
        or extra.budget_s
        or tenant.config.budget_s
        or budget_s,
        domain=extra.domain or domain,
        tenant=tenant,
        request_id=request_id(headers),
        arrived_s=arrived_s,
        prompt_bytes=len(raw),
    )


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """Return the client's X-Request-Id, if it is fit for headers and logs; else a new one."""
    given = headers.get(b"x-request-id", b"")
    return given.decode() if _ID.fullmatch(given) else secrets.token_hex(12)


def _are_messages(messages: Any) -> bool:
    return (
        isinstance(messages, list) and bool(messages) and all(isinstance(m, dict) for m in messages)
    )


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if value is not None:
            if type(value) is not int or not 1 <= value <= _MOST_TOKENS:
                raise bad_request(f"{name} must be a whole number of at least 1", param=name)
            return value
    return None


def _extra(given: Any) -> Extra:
    try:
        return validate(given or {}, Extra, source="inframind")
    except ConfigError as error:
        raise bad_request(str(error)) from None


def _budget(header: bytes | None) -> float | None:
    if header is None:
        return None
    try:
        return Extra.model_validate({"budget_s": float(header)}).budget_s
    except ValueError:
        raise RequestError(
            400, "invalid_budget", "X-InfraMind-Budget-S must be seconds, from 0.01 to 1e6"
        ) from None
