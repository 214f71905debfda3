"""Keys: who asks, how often, and how much at once."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Sequence
from typing import Final

from inframind_gym.live.gateway.answers import Headers, RequestError
from inframind_gym.live.gateway.config import KeyConfig

NOBODY: Final = KeyConfig.model_construct(name="-")  # who asks where no keys are set


class Tenant:
    """One key at work.

    Args:
        config: what it may do.
        clock: seconds.

    Attributes:
        parallel: its requests under way.
    """

    def __init__(self, config: KeyConfig, clock: Callable[[], float]) -> None:
        self.config, self.parallel = config, 0
        self._clock, self._per_min = clock, config.requests_per_min
        self._left = float(self._per_min or 0)
        self._refilled_s = clock()

    def enter(self) -> None:
        """Count a request; `leave` follows.

        Raises:
            RequestError: 429; it is one too many.
        """
        most = self.config.max_parallel
        if most is not None and self.parallel >= most:
            raise RequestError(
                *(429, "too_many_parallel_requests"),
                f"this key may have {most} requests at once",
                retry_after_s=1.0,
            )
        if self._per_min is not None:
            now_s = self._clock()
            gained = (now_s - self._refilled_s) * self._per_min / 60.0
            self._left, self._refilled_s = min(self._left + gained, self._per_min), now_s
            if self._left < 1.0:
                raise RequestError(
                    *(429, "rate_limit_exceeded"),
                    f"this key may send {self._per_min} requests a minute",
                    retry_after_s=(1.0 - self._left) * 60.0 / self._per_min,
                    headers=self.headers(),
                )
            self._left -= 1.0
        self.parallel += 1

    def leave(self) -> None:
        """A request is over."""
        self.parallel -= 1

    def headers(self) -> Headers:
        """Return the headers of its rate, named as OpenAI's."""
        if self._per_min is None:
            return []
        return [
            (b"x-ratelimit-limit-requests", str(self._per_min).encode()),
            (b"x-ratelimit-remaining-requests", str(int(self._left)).encode()),
        ]

    def may_ask(self, model: str) -> bool:
        """Return whether it may ask for a model."""
        return self.config.models is None or model in self.config.models

    def check_model(self, model: str) -> None:
        """Check that it may ask for a model.

        Raises:
            RequestError: 403.
        """
        if not self.may_ask(model):
            raise RequestError(403, "model_not_allowed", "this key may not ask for that model")


class Keyring:
    """All keys.

    Args:
        keys: none: everybody may ask.
        clock: seconds.
    """

    def __init__(
        self, keys: Sequence[KeyConfig], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._everybody = None if keys else Tenant(NOBODY, clock)
        self._tenants = [(key.digest, Tenant(key, clock)) for key in keys]

    @property
    def is_open(self) -> bool:
        """True where everybody may ask."""
        return self._everybody is not None

    def tenant(self, authorization: bytes | None) -> Tenant:
        """Return who sends the header `Authorization: Bearer KEY`.

        Takes the same time whichever key it is, and for one that is wrong.

        Raises:
            RequestError: 401.
        """
        if self._everybody is not None:
            return self._everybody
        scheme, _, key = (authorization or b"").partition(b" ")
        given = hashlib.sha256(key.strip()).digest()
        found: Tenant | None = None
        for digest, tenant in self._tenants:
            if hmac.compare_digest(digest, given):
                found = tenant
        if found is None or scheme.lower() != b"bearer":
            raise RequestError(
                *(401, "invalid_api_key"),
                "no valid key: send `Authorization: Bearer KEY`",
                headers=[(b"www-authenticate", b"Bearer")],
            )
        return found
