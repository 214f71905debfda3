"""Rewriting of queries by the words of a corpus: typos, spellings, abbreviations, synonyms, parts.

A rewritten query goes first; up to two variants follow, whose results are to be fused with its own
(`Retriever.retrieve` does so). No model is asked; what a model proposes can be passed on.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from inframind_gym.configs import StrictModel, load_yaml_model
from inframind_gym.teams.coordination.retrieval.corpus import Corpus
from inframind_gym.teams.coordination.retrieval.retriever import MOST_QUERY_CHARS
from inframind_gym.teams.coordination.retrieval.text import STOP_WORDS, words
from inframind_gym.teams.coordination.retrieval.vectors import known_words

MOST_VARIANTS: Final = 2
SURE: Final = 0.9  # similarity of a typo and a word, by difflib's ratio
ALIKE: Final = 0.86  # if it is not two words written as one
_WORD: Final = re.compile(r"[A-Za-z0-9]+(?:[._/+-][A-Za-z0-9]+)*")
_SHORT: Final = re.compile(r"\(([A-Z][A-Za-z]{1,6})\)")
_JOINT: Final = re.compile(r"\s+(?:and|versus|vs\.?|compared (?:to|with)|or|while|but)\s+|[;?]\s+")
_OPENING: Final = re.compile(r"^(?:please |compare |(?:what is )?the difference between )+", re.I)
_SPELLINGS: Final = (
    *(("iz", "is"), ("yz", "ys"), ("is", "iz"), ("or", "our"), ("our", "or")),
    *(("er", "re"), ("ll", "l"), ("l", "ll")),
)


class _Glossary(StrictModel):
    abbreviations: dict[str, str]
    synonyms: dict[str, str]


@lru_cache(maxsize=1)
def _glossary() -> _Glossary:
    return load_yaml_model(Path(__file__).with_name("glossary.yaml"), _Glossary)


def rewrite(query: str, corpus: Corpus, proposals: Sequence[str] = ()) -> list[str]:
    """Return queries that ask for the same in the words of the corpus.

    Args:
        query: The user's question.
        corpus: Corpus that is searched.
        proposals: Variants by a language model; they come before the lexical ones.

    Returns:
        The corrected query with its abbreviations expanded, and at most two variants: proposals,
        the query with synonyms, its parts. The query alone if there is nothing to rewrite.
    """
    corrected = _WORD.sub(lambda match: _corrected(match[0], corpus), query)
    terms = _glossary()
    short = terms.abbreviations | _own_abbreviations(corpus)
    expanded = _extended(corrected, short, corpus)
    variants = [proposal.strip() for proposal in proposals if proposal.strip()]
    variants.append(_extended(expanded, terms.synonyms, corpus))
    variants += _pieces(expanded)
    found = [one[:MOST_QUERY_CHARS] for one in (expanded, *variants)]
    return list(dict.fromkeys(found))[: 1 + MOST_VARIANTS]


def _corrected(word: str, corpus: Corpus) -> str:
    """The word as the corpus writes it, if it is misspelt or spelt in another way."""
    lower = word.lower()
    counts = corpus.word_counts
    glossary = _glossary()
    if not lower.isalpha() or len(lower) < 4 or lower in STOP_WORDS:
        return word
    for old, new in _SPELLINGS:
        if old in lower and counts[other := lower.replace(old, new)] > counts[lower]:
            return other
    known = lower in counts or lower in glossary.abbreviations or lower in glossary.synonyms
    if known or not known_words().isdisjoint(_without_ending(lower)):
        return word
    near = [
        other
        for other in corpus.words_by_initial.get(lower[0], ())
        if abs(len(other) - len(lower)) <= 2
    ]
    for cutoff in (SURE, ALIKE):
        if found := difflib.get_close_matches(lower, near, n=1, cutoff=cutoff):
            return found[0]
        for i in range(2, len(lower) - 1):  # two words written as one
            if (lower[:i], lower[i:]) in corpus.neighbours:
                return f"{lower[:i]} {lower[i:]}"
    return word


def _without_ending(word: str) -> list[str]:
    """A word, and without each ending that it may have."""
    cut = [word.removesuffix(ending) for ending in ("s", "es", "ed", "ing", "er", "ly")]
    return [word, *cut, *(f"{stem}e" for stem in cut[2:])]


def _extended(query: str, table: dict[str, str], corpus: Corpus) -> str:
    """The query, followed by what a table says of its words and the corpus knows."""
    asked = words(query)
    added: list[str] = []
    for word in asked:
        meaning = table.get(word, "")
        parts = words(meaning)
        missing = [part for part in parts if part not in asked and part not in STOP_WORDS]
        if missing and all(part in corpus.word_counts for part in missing):
            added.append(meaning)
    return " ".join([query, *dict.fromkeys(added)])


def _pieces(query: str) -> Iterator[str]:
    """Parts of a question that asks for two things."""
    pieces = [_OPENING.sub("", piece).strip() for piece in _JOINT.split(query)]
    pieces = [piece for piece in pieces if _content(piece) >= 2]
    if len(pieces) > 1:
        yield from pieces[:MOST_VARIANTS]


def _content(piece: str) -> int:
    return sum(word not in STOP_WORDS for word in words(piece))


@lru_cache(maxsize=8)
def _own_abbreviations(corpus: Corpus) -> dict[str, str]:
    """Abbreviations that the corpus explains: "time to first token (TTFT)"."""
    found: dict[str, str] = {}
    for passage in corpus.passages:
        for match in _SHORT.finditer(passage.text):
            short = match[1].rstrip("s").lower()
            before = passage.text[: match.start()].replace("-", " ").split()[-len(short) :]
            initials = "".join(word[0].lower() for word in before if word[0].isalnum())
            if initials == short:
                found.setdefault(short, " ".join(before).lower())
    return found
