"""Sentences that say that the sources do not answer the question, and nothing else.

They claim nothing that a source would have to cover. What such a sentence says beyond the words of
the question is a claim like any other: a fact in a clause of its own, a number, a name.
"""

from __future__ import annotations

import re
from typing import Final

from inframind_gym.teams.coordination.retrieval.text import terms

_TEXTS: Final = r"(?:sources?|passages?|texts?)"
_SOURCES: Final = rf"(?:(?:provided|given) (?:documents?|context|{_TEXTS})|{_TEXTS})"
_THEY: Final = rf"{_SOURCES}(?: (?:provided|given|above))?"
_TELL: Final = r"(?:answer|contain|say|mention|state|give|provide|specify|address|cover|tell)"
_TOLD: Final = r"(?:answered|contained|stated|mentioned|given|provided|specified|covered|found)"
_ABSTAINS: Final = re.compile(
    rf"\b{_THEY} (?:(?:do|does|did)(?: not|n't)|cannot|can't) (?:\w+ly )?{_TELL}\b"
    rf"|\b{_THEY} (?:contain|say|tell|have|provide|give)s? (?:nothing\b|no (?=information|answer))"
    rf"|\b(?:none of|no) (?:the |these )?{_THEY} {_TELL}s?\b"
    rf"|\b(?:no (?:information|answer)|(?:not|cannot|can't|isn't) (?:be )?{_TOLD}) "
    rf"(?:in|from|by|with) (?:the |these )?{_THEY}\b"
    rf"|\b(?:cannot|can't) answer (?:this|it|(?:this|the|that) question) (?:from|with) "
    rf"(?:the |these )?{_THEY}\b",
    re.I,
)
_JOINS: Final = re.compile(  # after them something else may be said
    r"[,:;(–—]|\b(?:and|but|so|yet|as|because|since|while|whereas|though|although|however)\b"
)
_IDLE: Final = frozenset(
    terms(
        "unfortunately i'm sorry however provided given question answer information details about "
        "topic anything enough directly whether"
    )
)


def abstains(query: str, text: str) -> bool:
    """Return True if a sentence, or a clause of one, only says that the sources do not answer.

    Args:
        query: The question; its words may be repeated.
        text: Without citations.
    """
    plain = " ".join(text.replace("\u2019", "'").split())
    found = _ABSTAINS.search(plain)
    if found is None:
        return False
    after = set(_JOINS.findall(plain[found.end() :].lower()))
    rest = f"{plain[: found.start()]} {plain[found.end() :]}"
    asked = {*terms(query), *_IDLE}
    return after <= set(_JOINS.findall(query.lower())) and asked.issuperset(terms(rest))


def is_idle(text: str) -> bool:
    """Return True for words around an abstention that say nothing, such as an apology."""
    return _IDLE.issuperset(terms(text))
