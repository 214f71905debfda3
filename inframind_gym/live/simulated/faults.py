"""Faults of a simulated server, for tests and soaks.

`POST /fault?kind=hang&for_s=5`, at the port of any model of the pool (`model=ALIAS`: of another
one, for one that is killed hears nothing).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from inframind_gym.errors import ConfigError, unknown

Kind = Literal[
    "none",
    "kill",  # its port is closed, all connections are reset; it comes back empty
    "hang",  # takes connections and says nothing; goes on when it is over
    "error",  # requests are answered with `status`
    "garbage",  # requests are answered with nonsense, status 200; streams under way end with it
    "slow",  # every step takes `factor` times as long
]
GARBAGE: Final = b"data: {<html>\n\n"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and for how long."""

    kind: Kind = "none"
    for_s: float | None = None  # None: until the next one
    status: int = 503
    factor: float = 10.0
    on: str = "/"  # beginning of the paths that hang, or are answered so


def read_fault(query: dict[str, str]) -> Fault:
    """Read the fault in the query of a request.

    Raises:
        ConfigError: there is no such fault, or a number is wrong.
    """
    known: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    kind = query.get("kind", "")
    if kind not in known:
        raise ConfigError(unknown("fault", kind, known))
    try:
        for_s = float(query["for_s"]) if "for_s" in query else None
        status, factor = int(query.get("status", 503)), float(query.get("factor", 10.0))
    except ValueError as error:
        raise ConfigError(f"for_s, status and factor are numbers: {error}") from None
    if not (400 <= status < 600 and 0.0 < factor < 1e6 and (for_s is None or 0.0 < for_s < 1e9)):
        raise ConfigError("for_s and factor must be positive, status from 400 to 599")
    return Fault(known[kind], for_s, status, factor, query.get("on", "/"))
