"""Names that command lines and settings take; light to import."""

from __future__ import annotations

from typing import Final, Literal, get_args

Arrivals = Literal["uniform", "skewed", "bursty", "drifting"]
Variant = Literal["source", "bootstrap", "bandit"]
Ties = Literal["first", "random"]
VARIANTS: Final[tuple[str, ...]] = get_args(Variant)
TIES: Final[tuple[str, ...]] = get_args(Ties)
ROUTERS: Final = ("q_learning", "random", "round_robin", "least_busy")
ARRIVALS: Final[tuple[Arrivals, ...]] = get_args(Arrivals)
