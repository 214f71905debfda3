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

    def admit(self, scope: dict[str, Any], headers: dict[str, str]) -> None:
        """Note `tenant` and `arrived_s` in the state of a request, as `Guard` wants it.

        The header `Authorization: Bearer KEY` says who asks. To look that up takes the same time
        whichever key it is, and for one that is wrong.

        Raises:
            RequestError: 401.
        """
        scope["state"] = {**scope.get("state", {}), "arrived_s": time.monotonic()}
        tenant = self.everybody
        if tenant is None and scope["path"] not in PROBES:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            digest = hashlib.sha256(key.strip().encode("latin-1", "replace")).digest()
            for known, holder in self._keys:
                if hmac.compare_digest(digest, known):
                    tenant = holder
            if tenant is None or scheme.lower() != "bearer":
                raise RequestError(
                    401,
                    "invalid_api_key",
                    "no valid key: send the header Authorization: Bearer KEY",
                    headers={"www-authenticate": "Bearer"},
                )
        scope["state"]["tenant"] = tenant
