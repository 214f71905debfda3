"""The eight acceptance scenarios: questions whose facts are given, and what has to hold.

The claims are those of the system's design, as far as an environment can break them; the
application has its own checks (`acceptance`), of texts, messages and a server's rates too. A claim
is checked on what episodes have come to (`CoordinationSimulation.summaries`), one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError, unknown
from inframind_gym.teams.coordination.question import Pinned
from inframind_gym.teams.coordination.rules import PLANNER
from inframind_gym.teams.coordination.settings import COMPLEXITIES, CoordinationSettings

SIMPLE, MEDIUM, COMPLEX = range(len(COMPLEXITIES))
Summaries = Mapping[str, Any]  # arrays (n,)
Holds = Callable[[Summaries, CoordinationSettings], Any]


class Scenario(NamedTuple):
    """A scenario.

    Attributes:
        title: one line.
        pinned: facts of its question.
        checks: claims, and functions of summaries and constants that say where they hold.
        model: whether a model decides.
    """

    title: str
    pinned: Pinned
    checks: dict[str, Holds]
    model: bool = False

    def check(
        self, summaries: Summaries, settings: CoordinationSettings
    ) -> dict[str, NDArray[np.bool_]]:
        """Return where each claim holds, (n,)."""
        size = len(summaries["latency_s"])
        return {
            claim: np.broadcast_to(np.asarray(holds(summaries, settings), np.bool_), size)
            for claim, holds in self.checks.items()
        }


SCENARIOS: Final[dict[str, Scenario]] = {
    "S1": Scenario(
        "a simple question",
        Pinned(complexity=SIMPLE),
        {
            "answered in 1.5 s": lambda s, c: s["latency_s"] <= c.limits.simple_s,
            "without plan and synthesis": lambda s, c: (s["subtasks"] == 0) & (s["merged"] == 0),
        },
    ),
    "S2": Scenario(
        "a comparison that needs a plan",
        Pinned(complexity=COMPLEX),
        {
            "planned as three sub-tasks": lambda s, c: s["subtasks"] == 3,
            "a search for each, merged": lambda s, c: (s["searches"] >= 3) & (s["merged"] == 1),
            "validated": lambda s, c: s["validated"] == 1,
        },
    ),
    "S3": Scenario(
        "an agent that times out",
        Pinned(complexity=COMPLEX, timing_out=PLANNER),
        {
            "answered by 3 s": lambda s, c: s["latency_s"] <= c.limits.hard_s,
            "fell back after the failure": lambda s, c: (s["failures"] > 0) & (s["success"] == 0),
        },
    ),
    "S4": Scenario(
        "a question about one of five exchanges",
        Pinned(complexity=SIMPLE, history=6_000, refers_to=3),
        {
            "the exchange is used": lambda s, c: s["exchange_used"] == 1,
            "within the context": lambda s, c: s["context_tokens"] <= c.context.max_tokens,
        },
    ),
    "S5": Scenario(
        "a question in other words",
        Pinned(complexity=MEDIUM, kind=1),
        {
            "rewritten in 100 ms": lambda s, c: (s["rewritten"] == 1) & (c.search_s.rewrite < 0.1),
            "20 % more evidence": lambda s, c: (
                (s["evidence"] > s["plain_evidence"]) & (s["evidence"] >= 1.2 * s["plain_evidence"])
            ),
        },
    ),
    "S6": Scenario(
        "rates of the server",
        Pinned(complexity=SIMPLE),
        {},  # of the application alone: here they are constants
    ),
    "S7": Scenario(
        "a conversation near the end of the context",
        Pinned(complexity=MEDIUM, history=126_000, refers_to=0),
        {
            "trimmed to 85 %": lambda s, c: (
                (s["trimmed"] == 1) & (s["trimmed_to_tokens"] <= c.context.trim_to_tokens)
            ),
            "the oldest exchange is kept": lambda s, c: s["context_kept"] == 1,
            "answered": lambda s, c: s["success"] == 1,
        },
    ),
    "S8": Scenario(
        "three searches at once, under a model",
        Pinned(complexity=COMPLEX),
        {
            "two or three at once": lambda s, c: (s["widest"] >= 2) & (s["widest"] <= 3),
            "decisions of 200 ms": lambda s, c: s["overhead_ms"] <= 1000.0 * c.limits.decision_s,
        },
        model=True,
    ),
}


def find_scenario(name: str) -> Scenario:
    """Return a scenario by its name.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in SCENARIOS:
        raise ConfigError(unknown("scenario", name, tuple(SCENARIOS)))
    return SCENARIOS[name]
