"""Three strategies over one corpus, and several queries at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError, require, unknown
from inframind_gym.teams.coordination.contracts import Document, Strategy
from inframind_gym.teams.coordination.retrieval.corpus import Corpus
from inframind_gym.teams.coordination.retrieval.entities import EntityGraph
from inframind_gym.teams.coordination.retrieval.text import terms
from inframind_gym.teams.coordination.retrieval.vectors import Vectors, available

STRATEGIES: Final[tuple[str, ...]] = get_args(Strategy)
TOP_K: Final = 10
DEPTH: Final = 50  # passages of each ranking that are fused
RRF: Final = 60.0  # Cormack, Clarke and Büttcher, SIGIR 2009
SEEDS: Final = 5  # passages where a walk on the graph starts
SAME: Final = 0.8  # Jaccard similarity of the words of passages that count as one
VARIANT_SHARE: Final = 5  # one of so many passages is a variant's
MOST_QUERY_CHARS: Final = 4_096

Ranking = list[tuple[int, float]]


class Retriever:
    """Finds passages of a corpus.

    ``vector`` ranks by the cosine of embeddings, ``hybrid`` fuses that with BM25, ``graphrag``
    fuses both with a walk on the graph of entities, from those of the query and the best passages.

    Args:
        corpus: Passages.
        vectors: Embeddings; None: all-MiniLM-L6-v2, or hashed words if it is not installed.
    """

    def __init__(self, corpus: Corpus, vectors: Vectors | None = None) -> None:
        self.corpus = corpus
        self.vectors = vectors if vectors is not None else available()

    def retrieve(
        self, query: str | Sequence[str], strategy: str = "hybrid", top_k: int = TOP_K
    ) -> list[Document]:
        """Return the best passages, the best first, none twice.

        Args:
            query: A question, or a question and variants of it, as `rewrite` returns them. Up to
                a fifth of the passages are then the best of the variants that the question itself
                does not find; they come last.
            strategy: "vector", "hybrid" or "graphrag".
            top_k: Passages at most.

        Raises:
            ConfigError: The strategy is not known, or there is no query, or a longer one than 4,096
                characters.
        """
        if strategy not in STRATEGIES:
            raise ConfigError(unknown("strategy", strategy, STRATEGIES))
        queries = [query] if isinstance(query, str) else list(query)
        if not any(one.strip() for one in queries):
            raise ConfigError("the query is empty.")
        if max(map(len, queries)) > MOST_QUERY_CHARS:
            raise ConfigError(f"the query has more than {MOST_QUERY_CHARS:,} characters.")
        rankings = [self._rank(one, strategy) for one in queries if one.strip()]
        found = [self._found(ranking, top_k) for ranking in rankings[:1]]
        if len(rankings) > 1:
            found.append(self._found(fuse(rankings[1:]), top_k))
        return _filled(found, top_k)

    def _rank(self, query: str, strategy: str) -> Ranking:
        near = self._near(query)
        if strategy == "vector":
            return near
        both = fuse([near, self._alike(query)])
        return both if strategy == "hybrid" else fuse([both, self._walked(query, both)])

    def _near(self, query: str) -> Ranking:
        """Ranking by embeddings."""
        return _best(self._embedded @ self.vectors.query(query))

    def _alike(self, query: str) -> Ranking:
        """Ranking by BM25; passages without a word of the query are not in it."""
        asked = terms(query)
        return _best(self._bm25.get_scores(asked), above=0.0) if asked else []

    def _walked(self, query: str, seeds: Ranking) -> Ranking:
        """Ranking by a walk from the query's entities and the best passages."""
        weights = {i: 1.0 / (1 + rank) for rank, (i, _) in enumerate(seeds[:SEEDS])}
        entities = self.graph.entities_of(query)
        return _best(self.graph.walk(entities, weights), above=0.0)

    def _found(self, ranking: Ranking, top_k: int) -> list[Document]:
        """The best passages of a ranking, none twice."""
        made = []
        for i, score in ranking[: 2 * top_k]:
            own = self.corpus.passages[i]
            made.append(Document(doc_id=own.doc_id, text=own.text, source=own.source, score=score))
        return deduplicate(made)[:top_k]

    @cached_property
    def graph(self) -> EntityGraph:
        """Passages and their entities."""
        return EntityGraph(self.corpus.passages)

    @cached_property
    def _bm25(self) -> Any:
        bm25s = require("bm25s", "BM25", "teams")
        index = bm25s.BM25(k1=1.2, b=0.75)
        tokens = [terms(passage.indexed) for passage in self.corpus.passages]
        index.index(tokens, show_progress=False)
        return index

    @cached_property
    def _embedded(self) -> NDArray[np.float32]:
        return self.vectors.passages([passage.indexed for passage in self.corpus.passages])


def fuse(rankings: Iterable[Ranking]) -> Ranking:
    """Fuse rankings by the sum of the reciprocals of ranks; equal sums by number."""
    scores: defaultdict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, (i, _) in enumerate(ranking[:DEPTH]):
            scores[i] += 1.0 / (RRF + rank + 1)
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))


def _filled(found: list[list[Document]], top_k: int) -> list[Document]:
    """Documents of a question, the last of them replaced by the best new ones of its variants."""
    first = found[0]
    if len(found) == 1:
        return first
    room = top_k // VARIANT_SHARE
    kept = {document.doc_id for document in first[: top_k - room]}
    new = [document for document in found[1] if document.doc_id not in kept][:room]
    return deduplicate([*first[: top_k - len(new)], *new])


def deduplicate(documents: Iterable[Document]) -> list[Document]:
    """Drop documents whose words are, up to a fifth, those of an earlier one."""
    kept: list[tuple[Document, frozenset[str]]] = []
    seen: set[str] = set()
    for document in documents:
        own = frozenset(terms(document.text))
        if document.doc_id not in seen and all(_overlap(own, other) < SAME for _, other in kept):
            kept.append((document, own))
            seen.add(document.doc_id)
    return [document for document, _ in kept]


def _overlap(one: frozenset[str], two: frozenset[str]) -> float:
    return len(one & two) / max(1, len(one | two))


def _best(scores: NDArray[Any], above: float = -np.inf) -> Ranking:
    """The numbers of the highest scores, the highest first."""
    order = np.argsort(-scores, kind="stable")[:DEPTH]
    return [(int(i), float(scores[i])) for i in order if scores[i] > above]
