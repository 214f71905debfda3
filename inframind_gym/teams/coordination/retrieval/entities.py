"""Graph of passages and the entities that they name, and walks on it.

Entities are read off the corpus: names with capitals inside, digits or joined words (`vLLM`, `p95`,
`max_num_seqs`), headings, and pairs of words that occur together more often than chance has it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import require
from inframind_gym.teams.coordination.retrieval.corpus import Passage
from inframind_gym.teams.coordination.retrieval.text import STOP_WORDS, stem, words

MOST_SHARE: Final = 0.15  # of the passages that an entity may be in, and still tell something
MOST_AN_ENTITY: Final = 400  # passages
_NAME: Final = re.compile(r"[A-Za-z]+[A-Z0-9]|[0-9]+[A-Za-z]|[A-Za-z0-9][._/-][A-Za-z0-9]")
_TOKEN: Final = re.compile(r"[A-Za-z0-9]+(?:[._/+-][A-Za-z0-9]+)*|[.,;:!?()]")


class EntityGraph:
    """Passages and entities, an edge where a passage names an entity.

    Attributes:
        graph: networkx graph; nodes are numbers of passages and names of entities, weights are the
            rarity of the entity.
    """

    def __init__(self, passages: Sequence[Passage]) -> None:
        networkx = require("networkx", "the graph of entities", "teams")
        found = [_entities(passage) for passage in passages]
        pairs = _frequent_pairs(passages)
        for own, passage in zip(found, passages, strict=True):
            own |= pairs & set(_pairs(passage.indexed))
        counts = Counter(entity for own in found for entity in own)
        most = min(MOST_AN_ENTITY, max(2.0, MOST_SHARE * len(passages)))
        self._rarity = {
            entity: math.log(1 + len(passages) / count)
            for entity, count in counts.items()
            if 2 <= count <= most
        }
        self._size = len(passages)
        self.graph: Any = networkx.Graph()
        self.graph.add_nodes_from(range(self._size))
        for i, own in enumerate(found):
            for entity in sorted(own & self._rarity.keys()):
                self.graph.add_edge(i, entity, weight=self._rarity[entity])
        order = [*range(self._size), *sorted(self._rarity)]
        self._place = {entity: i for i, entity in enumerate(order)}
        matrix = networkx.to_scipy_sparse_array(self.graph, order, weight="weight", format="csr")
        leaving = np.asarray(matrix.sum(axis=1)).ravel()
        scale = np.divide(1.0, leaving, out=np.zeros_like(leaving), where=leaving > 0)
        self._step = (matrix.T * scale).tocsr()  # column j: from node j to its neighbours

    def entities_of(self, query: str) -> dict[str, float]:
        """Return the entities that a query names, with their rarity."""
        own = {*map(stem, words(query)), *_pairs(query)}
        return {entity: self._rarity[entity] for entity in sorted(own & self._rarity.keys())}

    def walk(
        self,
        entities: Mapping[str, float],
        passages: Mapping[int, float],
        *,
        entity_share: float = 0.5,
        restart: float = 0.4,
        steps: int = 12,
    ) -> NDArray[np.float64]:
        """Return the share of the time that a walk with restarts spends at each passage.

        Args:
            entities: Weights of the entities where it starts.
            passages: Weights of the passages where it starts, by number.
            entity_share: Probability that it starts at an entity, if there are both.
            restart: Probability that it starts again after a step.
            steps: Steps that are computed; what is left is below ``(1 - restart) ** steps``.

        Returns:
            Shares, ``(num_passages,)``: personalised PageRank.
        """
        start = np.zeros(len(self._place))
        share = entity_share if entities and passages else float(bool(entities))
        for weights, part in ((entities, share), (passages, 1.0 - share)):
            total = sum(weights.values())
            for node, weight in weights.items():
                start[self._place[node]] += part * weight / total
        at = start.copy()
        for _ in range(steps):
            at = restart * start + (1.0 - restart) * (self._step @ at)
        return np.asarray(at[: self._size])


def _entities(passage: Passage) -> set[str]:
    """Names in a text, and the words of its heading, as stems."""
    named = {
        t.lower() for t in _TOKEN.findall(passage.text) if _NAME.match(t) and not t[0].isdigit()
    }
    heading = {word for word in words(passage.title) if word not in STOP_WORDS}
    return {stem(word) for word in named | heading if len(word) > 1 and not word.isdigit()}


def _pairs(text: str) -> list[str]:
    """Stems of two words that follow one another in a sentence."""
    tokens = [token.lower() for token in _TOKEN.findall(text)]
    return [
        f"{stem(one)} {stem(two)}" for one, two in pairwise(tokens) if _counts(one) and _counts(two)
    ]


def _counts(token: str) -> bool:
    return len(token) > 1 and token not in STOP_WORDS and not token.isdigit()


def _frequent_pairs(passages: Iterable[Passage]) -> set[str]:
    """Pairs of at least three passages whose words occur together ten times as often as chance."""
    pairs: Counter[str] = Counter()
    single: Counter[str] = Counter()
    for passage in passages:
        found = _pairs(passage.indexed)
        pairs.update(set(found))
        single.update(stem(word) for word in words(passage.indexed))
    total = max(1, sum(single.values()))
    return {
        pair
        for pair, count in pairs.items()
        if count >= 3 and count * total > 10 * single[pair.split()[0]] * single[pair.split()[1]]
    }
