"""Words of texts and queries, as retrieval compares them."""

from __future__ import annotations

import re
import threading
from functools import cache, lru_cache
from typing import Any, Final

from inframind_gym.errors import require

_ONE_AT_A_TIME: Final = threading.Lock()  # PyStemmer's stemmers are for one thread
_WORD: Final = re.compile(r"[A-Za-z0-9]+(?:[._/+-][A-Za-z0-9]+)*")
_PART: Final = re.compile(r"[^A-Za-z0-9]+")
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
    for match in _WORD.finditer(text):
        word = match[0].lower()
        found.append(word)
        parts = _PART.split(word)
        if len(parts) > 1:
            found += [part for part in parts if len(part) > 1]
    return found


@cache
def _stemmer() -> Any:
    return require("Stemmer", "retrieval", "teams").Stemmer("english")


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Return the stem of an English word, by Snowball."""
    with _ONE_AT_A_TIME:
        return str(_stemmer().stemWord(word))


def terms(text: str) -> list[str]:
    """Return the stems of a text's words, without stop words."""
    return [stem(word) for word in words(text) if word not in STOP_WORDS]
