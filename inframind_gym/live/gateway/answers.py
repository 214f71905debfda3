"""Errors in the form of OpenAI's API, which its SDKs turn into exceptions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

from inframind_gym.errors import InfraMindError

Headers = list[tuple[bytes, bytes]]
JSON: Final = (b"content-type", b"application/json")
_TYPES: Final = {
    HTTPStatus.BAD_REQUEST: "invalid_request_error",
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}


class RequestError(InfraMindError):
    """A request that is answered with an error.

    Args:
        status: HTTP status.
        code: for programs, e.g. "budget_unreachable".
        message: for people.
        param: field of the request that is wrong.
        retry_after_s: when another attempt makes sense; None: it is not said.
        headers: further headers.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
        self.headers: Headers = [JSON, *headers]
        if retry_after_s is not None:
            seconds = max(1, math.ceil(min(retry_after_s, 86_400.0)))
            self.headers.append((b"retry-after", str(seconds).encode()))

    def body(self) -> bytes:
        """Return the answer's body."""
        return json.dumps(self.content()).encode()

    def content(self) -> dict[str, Any]:
        """Return the answer's body, as a dict."""
        usual = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = _TYPES.get(HTTPStatus(self.status), usual)
        told = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": told}


def bad_request(
    message: str, code: str = "invalid_request", param: str | None = None
) -> RequestError:
    """Return the error for a request that can never be answered."""
    return RequestError(400, code, message, param=param)
