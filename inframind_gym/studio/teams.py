"""Players of teams: an order in, a function that plays it into a log out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from inframind_gym.studio.orders import AssignmentOrder, CoordinationOrder
from inframind_gym.teams.llm.providers import SIMULATED, open_provider
from inframind_gym.teams.token_budget.order import Order
from inframind_gym.teams.token_budget.settings import load_settings

if TYPE_CHECKING:
    from inframind_gym.studio.launch import PacedLog, Ways
    from inframind_gym.teams.coordination.retrieval import Corpus, Retriever
    from inframind_gym.teams.llm.types import Provider

Play = Callable[["PacedLog"], None]


def _open(ways: Ways) -> Provider | None:
    return None if ways.provider == SIMULATED else open_provider(ways.provider, ways.model)


def token_budget(order: Order, ways: Ways) -> Play:
    """Return the player of the token-budget team.

    Raises:
        ConfigError: the strategy's arguments are wrong.
    """
    from inframind_gym.teams.token_budget.orchestrator import Orchestrator, play

    order.policy()

    def run(log: PacedLog) -> None:
        orchestrator = Orchestrator(order, log, log.run_id, _open(ways))
        asyncio.run(play(orchestrator, log))

    return run


def assignment(order: AssignmentOrder, ways: Ways) -> Play:
    """Return the player of the assignment team: its training."""
    from inframind_gym.teams.assignment.command import open_providers
    from inframind_gym.teams.assignment.training import Options, make_run

    options = Options(**order.model_dump())

    def run(log: PacedLog) -> None:
        models = [] if ways.model is None else [ways.model]
        made = make_run(options, open_providers([ways.provider], models, None), log=log)
        with made.service:
            made.train()
            log.finish("complete", made.summary())

    return run


@cache
def _texts() -> tuple[Corpus, Retriever]:
    """Return the shipped passages and their index, which takes seconds to build."""
    from inframind_gym.teams.coordination.retrieval import Corpus, Retriever

    corpus = Corpus.load()
    return corpus, Retriever(corpus)


def coordination(order: CoordinationOrder, ways: Ways) -> Play:
    """Return the player of the coordination team: one question."""
    from inframind_gym.teams.coordination.options import MODEL
    from inframind_gym.teams.coordination.system import MultiAgentCoordinator

    given: dict[str, Any] = {"policy": order.policy}
    if order.deadline_s is not None:
        given["deadline_s"] = order.deadline_s

    def run(log: PacedLog) -> None:
        corpus, index = _texts()
        way = _open(ways)
        with MultiAgentCoordinator(
            ways.model or MODEL,
            backend=SIMULATED if way is None else "vllm",
            provider=way,
            corpus=corpus,
            searcher=index,
            log=log,
            fault=order.fault,
        ) as team:
            team.warm_up()
            response = team.process_query(order.question, settings=given)
        told = response.metadata
        kinds = (str, int, float, bool)
        figures = {key: value for key, value in told.items() if isinstance(value, kinds)}
        failed = told["ended_by"] in ("failed", "context")
        log.finish("failed" if failed else "complete", {"content": response.content, **figures})

    return run


_PLAYERS: Final[dict[str, Callable[[Any, Ways], Play]]] = {
    "token-budget": token_budget,
    "assignment": assignment,
    "coordination": coordination,
}


def player(team: str, order: Any, ways: Ways) -> tuple[Play, dict[str, Any]]:
    """Return what plays an order, and what its run tells besides the order."""
    told: dict[str, Any] = {"provider": ways.provider}
    if ways.model is not None:
        told["model"] = ways.model
    if team == "token-budget":
        told["roi_threshold"] = load_settings().roi_threshold
    return _PLAYERS[team](order, ways), told
