"""The eight acceptance scenarios: questions whose facts are given, and what has to hold."""

from __future__ import annotations

from typing import Final, NamedTuple

from inframind_gym.errors import ConfigError, unknown
from inframind_gym.teams.coordination.rules import PLANNER
from inframind_gym.teams.coordination.settings import COMPLEXITIES
from inframind_gym.teams.coordination.simulate import Pinned

SIMPLE, MEDIUM, COMPLEX = range(len(COMPLEXITIES))


class Scenario(NamedTuple):
    """A scenario.

    Attributes:
        title: one line.
        pinned: facts of its question.
        model: whether a model decides.
    """

    title: str
    pinned: Pinned
    model: bool = False


SCENARIOS: Final[dict[str, Scenario]] = {
    "S1": Scenario("a simple question", Pinned(complexity=SIMPLE)),
    "S2": Scenario("a comparison that needs a plan", Pinned(complexity=COMPLEX)),
    "S3": Scenario("an agent that times out", Pinned(complexity=COMPLEX, timing_out=PLANNER)),
    "S4": Scenario(
        "a question about one of five exchanges",
        Pinned(complexity=SIMPLE, history=6_000, refers_to=3),
    ),
    "S5": Scenario("a question in other words", Pinned(complexity=MEDIUM, kind=1)),
    "S6": Scenario("rates and memory of the server", Pinned(complexity=SIMPLE)),
    "S7": Scenario(
        "a conversation near the end of the context",
        Pinned(complexity=MEDIUM, history=126_000, refers_to=0),
    ),
    "S8": Scenario("three searches at once", Pinned(complexity=COMPLEX), model=True),
}


def find_scenario(name: str) -> Scenario:
    """Return a scenario by its name.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in SCENARIOS:
        raise ConfigError(unknown("scenario", name, tuple(SCENARIOS)))
    return SCENARIOS[name]
