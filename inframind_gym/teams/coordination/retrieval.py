"""Retrieval: passages of a folder of texts, three strategies to find them, rewriting of queries.

`Corpus.load(folder)` cuts texts into passages, `Retriever(corpus).retrieve(query, strategy)` finds
them: ``vector`` by the cosine of embeddings, ``hybrid`` fuses that with BM25, ``graphrag`` fuses
both with a walk on a graph of passages and the entities that they name. `rewrite(query, corpus)`
asks the same in the words of the corpus; no model is needed.
"""

from __future__ import annotations

import difflib
import importlib.util
import itertools
import math
import os
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError, TaskError, require, unknown
from inframind_gym.files import read_text, read_yaml
from inframind_gym.tasks.embedding import embed_texts, encode, find_model
from inframind_gym.teams.coordination.settings import STRATEGIES, Document

SHIPPED: Final = Path(__file__).with_name("texts")
SUFFIXES: Final = (".md", ".markdown", ".txt")
MOST_FILE_BYTES: Final = 4 * 2**20
PASSAGE_WORDS: Final = 200
TOP_K: Final = 10
DEPTH: Final = 50  # passages of each ranking that are fused
RRF: Final = 60.0  # Cormack, Clarke and Büttcher, SIGIR 2009
SEEDS: Final = 5  # passages where a walk on the graph starts
SAME: Final = 0.8  # Jaccard similarity of the words of passages that count as one
VARIANT_SHARE: Final = 5  # of this many passages, one may be found by variants alone
Ranking = list[tuple[int, float]]  # passages by number, with their scores, best first

WORD: Final = re.compile(r"[A-Za-z0-9]+(?:[._/+-][A-Za-z0-9]+)*")
_STOP: Final = """
a about all also am an and any are as at be been being but by can could did do does
doing for from get gets give given go had has have having he her here his how i if in into is it
its just like make makes many may me more most much must my need no not of on one only or other our
out over own per please same she should so some such tell than that the their them then there
these they thing this those through to too under up us use used uses using very want was way we
were what when where which while who whose why will with without would you your arent cant couldnt
didnt doesnt dont havent ill im isnt ive lets pls plz thats theres theyre u ur wasnt werent whats
wont wouldnt youre well even"""
STOP_WORDS: Final = frozenset(_STOP.split())


def words(text: str) -> list[str]:
    """Return the words of a text in lower case; a compound, then its parts."""
    found = []
    for match in WORD.finditer(text):
        found.append(match[0].lower())
        parts = re.split(r"[^a-z0-9]+", found[-1])
        found += [part for part in parts if len(part) > 1] if len(parts) > 1 else []
    return found


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Return the stem of an English word, by Snowball."""
    # A stemmer of its own, which takes 4 us: PyStemmer's are for one thread.
    return str(require("Stemmer", "retrieval", "teams").Stemmer("english", 0).stemWord(word))


def terms(text: str) -> list[str]:
    """Return the stems of a text's words, without stop words."""
    return [stem(word) for word in words(text) if word not in STOP_WORDS]


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that is retrieved as a whole."""

    doc_id: str  # file and heading, such as "batching.md#chunked-prefill"
    title: str  # its heading; empty in a plain text
    text: str  # without the heading
    source: str  # file and heading for readers

    @property
    def indexed(self) -> str:
        """Text that is searched."""
        return f"{self.title}. {self.text}" if self.title else self.text


@dataclass(frozen=True, eq=False)
class Corpus:
    """Passages in the order of files and lines, under the name of their folder."""

    name: str
    passages: tuple[Passage, ...]

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None) -> Corpus:
        """Read a folder with its subfolders, or one file; None: the passages of the package.

        Files end in .md, .markdown or .txt and are UTF-8. Others, and hidden ones, are left out.

        Raises:
            ConfigError: There is no text, or a file is none; names the file.
        """
        root = SHIPPED if path is None else Path(path)
        if not root.exists():
            raise ConfigError(f"{root}: no such folder of texts.")
        passages: list[Passage] = []
        for file in [root] if root.is_file() else sorted(root.rglob("*")):  # it follows no links
            name = file.name if file == root else file.relative_to(root).as_posix()
            is_text = file.suffix.lower() in SUFFIXES and not file.is_symlink()
            if not is_text or any(part.startswith(".") for part in Path(name).parts):
                continue
            passages += _passages(name, read_text(file, MOST_FILE_BYTES))
        if not passages:
            raise ConfigError(f"{root}: has no text in its files ({', '.join(SUFFIXES)}).")
        return cls("built-in" if path is None else root.resolve().name, tuple(passages))

    @cached_property
    def word_counts(self) -> Counter[str]:
        """Number of times that each word occurs, in lower case."""
        return Counter(word for passage in self.passages for word in words(passage.indexed))


def _passages(name: str, text: str) -> Iterator[Passage]:
    """Cut a text at its headings, and long sections into parts."""
    sections: list[tuple[str, list[str]]] = [("", [])]  # headings, and the lines below each
    fence = ""
    for line in text.splitlines():
        opened = re.match(r"^ {0,3}(```|~~~)", line)
        if opened and fence in ("", opened[1]):
            fence = "" if fence else opened[1]
        heading = re.match(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$", line)
        if heading and not fence and not name.lower().endswith(".txt"):
            sections.append((heading[1], []))
        else:
            sections[-1][1].append(line)
    taken: set[str] = set()
    for title, lines in sections:
        for part in _parts("\n".join(lines).strip()):
            slug = re.sub(r"[^\w]+", "-", title.lower()).strip("-")
            base = f"{name}#{slug}" if slug else name
            others = (f"{base}-{number}" for number in itertools.count(2))
            doc_id = next(each for each in itertools.chain([base], others) if each not in taken)
            taken.add(doc_id)
            yield Passage(doc_id, title, part, f"{name}: {title}" if title else name)


def _parts(body: str) -> list[str]:
    """Cut a section between paragraphs, then sentences, into about `PASSAGE_WORDS` words each."""
    if len(body.split()) <= 1.5 * PASSAGE_WORDS:
        return [" ".join(body.split())] if body else []
    parts: list[list[str]] = [[]]
    for paragraph in re.split(r"\n\s*\n", body):
        long = len(paragraph.split()) > PASSAGE_WORDS
        for piece in re.split(r"(?<=[.!?])\s+", paragraph) if long else [paragraph]:
            split = piece.split()
            for start in range(0, len(split), PASSAGE_WORDS):  # a sentence may be endless
                some = split[start : start + PASSAGE_WORDS]
                if parts[-1] and len(parts[-1]) + len(some) > PASSAGE_WORDS:
                    parts.append([])
                parts[-1] += some
    return [" ".join(part) for part in parts if part]


class MiniLM:
    """all-MiniLM-L6-v2; embeddings of passages are cached on disk, those of queries in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # its tokenizer is for one thread
        self._queries = lru_cache(maxsize=4096)(lambda text: np.asarray(encode([text])[0]))

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the embeddings of texts, ``(n, 384)``, of length 1."""
        with self._lock:
            return embed_texts(texts)

    def query(self, text: str) -> NDArray[np.float32]:
        """Return the embedding of a query, ``(384,)``, of length 1."""
        with self._lock:
            return self._queries(text)


def available() -> MiniLM | None:
    """Return all-MiniLM-L6-v2 if it is installed with its weights."""
    with suppress(TaskError):
        if importlib.util.find_spec("sentence_transformers") and find_model():
            return MiniLM()
    return None


# The graph of entities

_MOST_SHARE: Final = 0.15  # of the passages that an entity may be in, and still tell something
_MOST_AN_ENTITY: Final = 400  # passages
_NAME: Final = re.compile(r"[A-Za-z]+[A-Z0-9]|[0-9]+[A-Za-z]|[A-Za-z0-9][._/-][A-Za-z0-9]")


class EntityGraph:
    """Passages and entities, an edge where a passage names an entity.

    Entities are read off the texts: names with capitals inside, digits or joined words (`vLLM`,
    `p95`, `max_num_seqs`), and words of headings. Weights of edges are the rarity of the entity.
    """

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._networkx: Any = require("networkx", "the graph of entities", "teams")
        named = []
        for passage in passages:
            tokens = WORD.findall(passage.text)
            own = {each.lower() for each in tokens if _NAME.match(each) and not each[0].isdigit()}
            own |= set(words(passage.title)) - STOP_WORDS
            named.append({stem(word) for word in own if len(word) > 1 and not word.isdigit()})
        most = min(_MOST_AN_ENTITY, max(2.0, _MOST_SHARE * len(passages)))
        self._rarity = {
            entity: math.log(1 + len(passages) / count)
            for entity, count in Counter(entity for own in named for entity in own).items()
            if 2 <= count <= most
        }
        self._size = len(passages)
        self.graph: Any = self._networkx.Graph()
        self.graph.add_nodes_from(range(self._size))
        for i, own in enumerate(named):
            for entity in sorted(own & self._rarity.keys()):
                self.graph.add_edge(i, entity, weight=self._rarity[entity])

    def walk(self, query: str, passages: Mapping[int, float]) -> NDArray[np.float64]:
        """Return the share of the time that a walk with restarts spends at each passage.

        It starts at passages by their weights. Half of the restarts are at the entities that the
        query names, if it names any and there are passages. The chance of a restart is 0.4 a step.
        """
        own = set(map(stem, words(query)))
        entities = {entity: self._rarity[entity] for entity in sorted(own & self._rarity.keys())}
        start: dict[Any, float] = {}
        share = 0.5 if entities and passages else float(bool(entities))
        for weights, part in ((entities, share), (passages, 1.0 - share)):
            total = sum(weights.values())
            start |= {node: part * weight / total for node, weight in weights.items()}
        shares = self._networkx.pagerank(self.graph, 0.6, start, tol=1e-7)
        return np.array([shares[i] for i in range(self._size)])


class Retriever:
    """Finds passages of a corpus.

    `vectors` None is all-MiniLM-L6-v2 if it is installed. Without an encoder the strategy `vector`
    is BM25.
    """

    def __init__(self, corpus: Corpus, vectors: Any = None) -> None:
        self.corpus = corpus
        self.vectors: Any = vectors or available()

    def retrieve(
        self, query: str | Sequence[str], strategy: str = "hybrid", top_k: int = TOP_K
    ) -> list[Document]:
        """Return the best passages, the best first, none twice.

        The query may be a question and variants of it (`rewrite`). Up to a fifth of the passages
        are then the best of the variants that the question itself does not find; they come last.

        Raises:
            ConfigError: The strategy is not known, or there is no query.
        """
        queries = [one for one in ([query] if isinstance(query, str) else query) if one.strip()]
        if strategy not in STRATEGIES:
            raise ConfigError(unknown("strategy", strategy, STRATEGIES))
        if not queries:
            raise ConfigError("the query is empty.")

        def documents(ranking: Ranking) -> list[Document]:
            best = [(self.corpus.passages[i], score) for i, score in ranking[: 2 * top_k]]
            return deduplicate(
                Document(doc_id=own.doc_id, text=own.text, source=own.source, score=score)
                for own, score in best
            )[:top_k]

        first, *others = (self._rank(one, strategy) for one in queries)
        found, more = documents(first), documents(fuse(others))
        room = top_k // VARIANT_SHARE
        kept = {document.doc_id for document in found[: top_k - room]}
        new = [document for document in more if document.doc_id not in kept][:room]
        return deduplicate([*found[: top_k - len(new)], *new]) if new else found

    def nearness(self, query: str) -> float | None:
        """Return the cosine of a query and the nearest passage; None without the encoder."""
        if not isinstance(self.vectors, MiniLM):
            return None
        return float((self._embedded @ self.vectors.query(query)).max())

    def _rank(self, query: str, strategy: str) -> Ranking:
        near = _best(self._embedded @ self.vectors.query(query)) if self.vectors else []
        if strategy == "vector" and near:
            return near
        asked = terms(query)  # passages without a word of the query have no rank by BM25
        by_words = _best(self._bm25.get_scores(asked), above=0.0) if asked else []
        if strategy == "vector":
            return [(i, score / by_words[0][1]) for i, score in by_words]
        both = fuse([near, by_words])
        if strategy == "hybrid":
            return both
        seeds = {i: 1.0 / (1 + rank) for rank, (i, _) in enumerate(both[:SEEDS])}
        return fuse([both, _best(self.graph.walk(query, seeds), above=0.0)])

    @cached_property
    def graph(self) -> EntityGraph:
        """Passages and their entities."""
        return EntityGraph(self.corpus.passages)

    @cached_property
    def _bm25(self) -> Any:
        index = require("bm25s", "BM25", "teams").BM25(k1=1.2, b=0.75)
        tokens = [terms(passage.indexed) for passage in self.corpus.passages]
        index.index(tokens, show_progress=False)
        return index

    @cached_property
    def _embedded(self) -> NDArray[np.float32]:
        texts = [passage.indexed for passage in self.corpus.passages]
        return np.asarray(self.vectors.passages(texts), np.float32)


def fuse(rankings: Iterable[Ranking]) -> Ranking:
    """Fuse rankings by reciprocal ranks (RRF); ties go to the lower number."""
    scores: defaultdict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, (i, _) in enumerate(ranking[:DEPTH]):
            scores[i] += 1.0 / (RRF + rank + 1)
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))


def deduplicate(documents: Iterable[Document]) -> list[Document]:
    """Drop documents whose words are those of an earlier one (Jaccard similarity from SAME on)."""
    kept: list[tuple[Document, frozenset[str]]] = []
    for document in documents:
        own = frozenset(terms(document.text))
        if all(
            document.doc_id != other.doc_id and len(own & said) < SAME * max(1, len(own | said))
            for other, said in kept
        ):
            kept.append((document, own))
    return [document for document, _ in kept]


def _best(scores: NDArray[Any], above: float = -np.inf) -> Ranking:
    """Return the numbers of the highest scores, the highest first."""
    order = np.argsort(-scores, kind="stable")[:DEPTH]
    return [(int(i), float(scores[i])) for i in order if scores[i] > above]


# Rewriting

MOST_VARIANTS: Final = 2
SPELT_ALIKE: Final = 0.86  # similarity of a word and a typo of it
_MOST_BEFORE_CHARS: Final = 300  # of a question before, in one that refers to it
_JOINT: Final = re.compile(r"\s+(?:and|versus|vs\.?|compared (?:to|with)|or|while|but)\s+|[;?]\s+")
_OPENING: Final = re.compile(r"^(?:please |compare |(?:what is )?the difference between )+", re.I)
_BACK: Final = re.compile(
    r"\b(?:it|its|they|them|their|those|that one|this|these|earlier|above|before|previous(?:ly)?|"
    r"you said|again|same|each|both)\b",
    re.I,
)


def refers_back(text: str) -> bool:
    """Return True if a text names something that was said before."""
    return _BACK.search(text) is not None


def in_context(question: str, history: Sequence[Mapping[str, Any]]) -> str:
    """Return a question after the one before, where it refers to what was said."""
    before = [m["content"] for m in history if m["role"] == "user"]
    if not before or not refers_back(question):
        return question
    return f"{before[-1][:_MOST_BEFORE_CHARS]} {question}"


@cache
def _glossary() -> dict[str, dict[str, str]]:
    """Return what abbreviations and synonyms stand for."""
    return dict(read_yaml(SHIPPED / "glossary.yaml")[0])


def rewrite(query: str, corpus: Corpus) -> list[str]:
    """Return queries that ask for the same in the words of the corpus and of the glossary.

    The corrected query with its abbreviations expanded, and at most two variants: the query with
    synonyms, its parts. The query alone if there is nothing to rewrite.
    """
    abbreviations, synonyms = _glossary()["abbreviations"], _glossary()["synonyms"]

    def corrected(match: re.Match[str]) -> str:
        word, lower = match[0], match[0].lower()
        known = any(lower in each for each in (STOP_WORDS, counts, abbreviations, synonyms))
        if known or not lower.isalpha() or len(lower) < 4:
            return word
        near = [other for other in counts if other[0] == lower[0] and other.isalpha()]
        return (difflib.get_close_matches(lower, near, n=1, cutoff=SPELT_ALIKE) or [word])[0]

    counts = corpus.word_counts
    expanded = _extended(WORD.sub(corrected, query), abbreviations, corpus)
    pieces = [_OPENING.sub("", piece).strip() for piece in _JOINT.split(expanded)]
    pieces = [p for p in pieces if sum(word not in STOP_WORDS for word in words(p)) >= 2]
    parts = pieces[:MOST_VARIANTS] if len(pieces) > 1 else []
    forms = (expanded, _extended(expanded, synonyms, corpus), *parts)
    return list(dict.fromkeys(forms))[: 1 + MOST_VARIANTS]


def _extended(query: str, table: Mapping[str, str], corpus: Corpus) -> str:
    """Return the query, followed by those meanings of its words whose words the corpus has."""
    asked, added = words(query), []
    for word in asked:
        meaning = table.get(word, "")
        missing = [p for p in words(meaning) if p not in asked and p not in STOP_WORDS]
        if missing and all(part in corpus.word_counts for part in missing):
            added.append(meaning)
    return " ".join([query, *dict.fromkeys(added)])
