"""Admission of requests by their keys."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Sequence
from typing import Any, Final

from inframind_gym.live.gateway.config import KeyConfig
from inframind_gym.live.guard import RequestError

PROBES: Final = ("/health", "/ready")  # for those who watch processes: no key, no limits


class Keyring:
    """All keys; none: everybody on this machine may ask."""

    def __init__(self, keys: Sequence[KeyConfig]) -> None:
        self.everybody = None if keys else KeyConfig.model_construct(name="-")
        self._keys = [(key.digest, key) for key in keys]

    def tenant(self, authorization: str) -> KeyConfig:
        """Return who sends the header `Authorization: Bearer KEY`.

        Takes the same time whichever key it is, and for one that is wrong.

        Raises:
            RequestError: 401.
        """
        if self.everybody is not None:
            return self.everybody
        scheme, _, key = authorization.partition(" ")
        digest = hashlib.sha256(key.strip().encode("latin-1", "replace")).digest()
        match: KeyConfig | None = None
        for known, tenant in self._keys:
            if hmac.compare_digest(digest, known):
                match = tenant
        if match is None or scheme.lower() != "bearer":
            raise RequestError(
                401,
                "invalid_api_key",
                "no valid key: send the header Authorization: Bearer KEY",
                headers={"www-authenticate": "Bearer"},
            )
        return match

    def admit(self, scope: dict[str, Any], headers: dict[str, str]) -> None:
        """Note `tenant` and `arrived_s` in the state of a request, as `Guard` wants it."""
        scope["state"] = {**scope.get("state", {}), "arrived_s": time.monotonic()}
        if scope["path"] not in PROBES:
            scope["state"]["tenant"] = self.tenant(headers.get("authorization", ""))
