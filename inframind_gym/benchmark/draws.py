"""Orders of policies under draws of quality, each of which plays the same episodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np


class DrawOrder:
    """Scores of policies under every draw, for one table of a leaderboard or one comparison."""

    def __init__(self) -> None:
        self._scores: dict[str, dict[int, list[float]]] = {}

    def __bool__(self) -> bool:
        """Return True if there are draws."""
        return bool(self._scores)

    def add(self, policy: str, draw: int, score: float) -> None:
        """Add a policy's score in a cell of a draw; more is better."""
        self._scores.setdefault(policy, {}).setdefault(draw, []).append(score)

    def ahead(self, policy: str, other: str) -> dict[str, int]:
        """Return the draws in which a policy has the better mean, and the draws that both have."""
        one, two = self._scores[policy], self._scores[other]
        both = one.keys() & two.keys()
        better = sum(np.mean(one[draw]) > np.mean(two[draw]) for draw in both)
        return {"draws_ahead": int(better), "draws": len(both)}

    def mark(self, ranked: Sequence[dict[str, Any]]) -> None:
        """Write into every row of a ranking, but the last, how it stands to the next one."""
        for row, behind in pairwise(ranked):
            row["ahead_of_next"] = self.ahead(row["policy"], behind["policy"])
