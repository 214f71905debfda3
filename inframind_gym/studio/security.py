"""Who is admitted to the studio, and the headers of its answers.

Without a token the studio answers to names of this machine alone, so that no page elsewhere can
reach it by a name of its own (DNS rebinding). With one, a browser hands it in once and gets a
cookie that scripts cannot read and other sites cannot send; other clients send
``Authorization: Bearer TOKEN``. Pages of other origins are refused in either case.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from fastapi import HTTPException, Response
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inframind_gym.errors import ConfigError
from inframind_gym.teams.token_budget.server import LOCAL_NAMES, refusal

COOKIE: Final = "inframind_studio"
TOKEN_VARIABLE: Final = "INFRAMIND_STUDIO_TOKEN"
LEAST_TOKEN_CHARS: Final = 16
PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)
# Of a report, which has its scripts and styles in it; the page shows it in a frame of its own.
REPORT_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src {scripts}; "
    "frame-ancestors 'self'; base-uri 'none'; form-action 'none'; sandbox allow-scripts"
)
_HEADERS: Final = {
    "content-security-policy": PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def require_token(host: str, token: str | None) -> str | None:
    """Return the token, or None on this machine alone.

    Args:
        host: address that is served.
        token: value of the variable INFRAMIND_STUDIO_TOKEN, if it is set.

    Raises:
        ConfigError: other machines can reach the address and there is no token, or a short one.
    """
    token = (token or "").strip() or None
    if token is None and host not in LOCAL_NAMES:
        raise ConfigError(
            f"--host {host} is reached from other machines: set {TOKEN_VARIABLE} to a token that "
            "browsers must give, or serve 127.0.0.1."
        )
    if token is not None and len(token) < LEAST_TOKEN_CHARS:
        raise ConfigError(
            f"{TOKEN_VARIABLE} has {len(token)} characters, at least {LEAST_TOKEN_CHARS} are "
            "needed: `openssl rand -hex 16` makes one."
        )
    return token


def session_of(token: str) -> str:
    """Return the cookie of a browser that has given the token, which it does not show."""
    return hmac.new(token.encode(), b"inframind studio session", sha256).hexdigest()


def admitted(token: str | None) -> Callable[[HTTPConnection], None]:
    """Return a dependency that refuses requests which are not admitted."""

    def admit(connection: HTTPConnection) -> None:
        found = refused(connection, token)
        if found is not None:
            raise HTTPException(*found)

    return admit


def refused(connection: HTTPConnection, token: str | None) -> tuple[int, str] | None:
    """Return status and reason of a request that is not admitted; None if it is."""
    if connection.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return 403, "pages of other sites are not admitted"  # their images and links have no origin
    cookie = connection.cookies.get(COOKIE, "")
    has_session = token is not None and hmac.compare_digest(
        cookie.encode(), session_of(token).encode()
    )
    return refusal(connection, token, token if has_session and token else "")


def keep_session(response: Response, token: str, *, secure: bool) -> None:
    """Give a browser its cookie."""
    response.set_cookie(
        COOKIE, session_of(token), httponly=True, samesite="strict", secure=secure, path="/"
    )


class Headers:
    """Adds the security headers to every answer that does not have its own.

    Args:
        app: the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.encode(), value.encode())
                        for name, value in _HEADERS.items()
                        if name.encode() not in given
                    ),
                ]
            await send(message)

        await self._app(scope, receive, send_with_headers)
