"""Searches of the retrieval agent: screened passages, and answers that quote them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from inframind_gym.teams.coordination.contracts import Document, Retrieved, Strategy
from inframind_gym.teams.coordination.retrieval.retriever import RRF
from inframind_gym.teams.coordination.retrieval.text import terms
from inframind_gym.teams.coordination.screen import screen
from inframind_gym.teams.llm.service import EventLog

_EXTRACT_CHARS: Final = 300  # of a passage in an answer that no model wrote


class Searcher(Protocol):
    """A way to documents."""

    def retrieve(
        self, query: str | Sequence[str], strategy: str = "hybrid", top_k: int = 10
    ) -> list[Document]:
        """Return the best documents, best first."""
        ...


def in_order(question: str, queries: list[str], said: list[str]) -> list[str]:
    """Return forms of a question, the best first.

    Args:
        question: As it was asked.
        queries: Its forms by rules, the best first.
        said: Forms by a model. They come last if the first lacks more than half of the question's
            words: small models answer, or repeat what they were told.
    """
    asked = set(terms(question))
    keeps = 2 * len(asked & set(terms(said[0]))) >= len(asked) if said else False
    return [*said, *queries] if keeps else [*queries, *said]


async def search(
    searcher: Searcher,
    question: str,
    queries: Sequence[str],
    strategy: Strategy,
    top_k: int,
    log: EventLog,
) -> Retrieved:
    """Search in a thread of its own; passages that look like an injection are withheld.

    Args:
        searcher: Way to documents.
        question: Sub-task that is asked.
        queries: Its forms, the best first.
        strategy: Of the search.
        top_k: Documents at most.
        log: Where passages that are withheld are written.
    """
    documents = await asyncio.to_thread(searcher.retrieve, queries, strategy, top_k)
    kept, withheld = [], []
    for document in documents:
        found = screen(document.text, "document")
        if found.is_attack:
            withheld.append((document.doc_id, found.reason))
            log.append("passage_withheld", {"doc_id": document.doc_id, "reason": found.reason})
        else:
            kept.append(document)
    return Retrieved(
        sub_task=question,
        strategy=strategy,
        queries=tuple(queries),
        documents=tuple(kept),
        mean_score=_mean_score(kept, strategy),
        withheld=tuple(withheld),
    )


def _mean_score(documents: Sequence[Document], strategy: Strategy) -> float:
    """Return the mean score of documents over the best that a strategy can give.

    All but the vector search fuse two rankings by reciprocal ranks: who leads both has 1/61 twice.
    """
    if not documents:
        return 0.0
    best = 1.0 if strategy == "vector" else 2.0 / (RRF + 1.0)
    mean = sum(document.score for document in documents) / len(documents)
    return min(max(mean / best, 0.0), 1.0)


def extract(documents: Sequence[Document]) -> str:
    """Return an answer that quotes the passages, where no model can write one."""
    if not documents:
        return "The texts say nothing about this."
    parts = []
    for number, document in enumerate(documents, 1):
        text = document.text
        if len(text) > _EXTRACT_CHARS:
            text = text[:_EXTRACT_CHARS].rsplit(" ", 1)[0] + " …"
        parts.append(f"{text} [{number}]")
    return "\n".join(parts)
