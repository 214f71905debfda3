"""A screen for prompt injection: in queries, earlier turns, and passages that retrieval returns.

Text is brought to a plain form (look-alike letters, invisible characters, spaced letters, base64),
then searched for the patterns of `screen.yaml`, each with a weight; a sum of `THRESHOLD` is an
attack. Patterns find what they were written for. Passages are marked off as material in prompts
besides.
"""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from bisect import bisect
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from string import Template
from typing import Final, Literal

from inframind_gym.configs import Fraction, StrictModel, load_yaml_model

Where = Literal["query", "document"]
THRESHOLD: Final = 1.0
MOST_CHARS: Final = 200_000  # of a text that is searched
_QUOTED_WEIGHT: Final = 0.3  # of what is quoted in a text about injections
_DEEPEST: Final = 2  # base64 in base64
_ABOUT: Final = re.compile(r"\b(?:injections?|jailbreaks?|what does|means?|phrases?)\b")
_INVISIBLE: Final = re.compile(
    "[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\U000e0000-\U000e007f]"
)
_SPACED: Final = re.compile(r"(?:\b\w\s){5,}\w\b")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]{24,}={0,2}")
# Cyrillic and Greek letters, and a typographic apostrophe, as the Latin ones that they look like.
_LOOK_ALIKE: Final = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u0261\u03b1\u03bf\u03b5"
    "\u03c1\u03bd\u03b9\u03ba\u03c4\u2019",
    "aeopcyxijsdgaoepvikt'",
)
_DIGITS: Final = str.maketrans("013457@$", "oieastas")
# What stands between a pair of quotation marks; an apostrophe within a word is none.
_QUOTED: Final = re.compile(
    r"(?<!\w)\"(?=\S)[^\"]{1,120}(?<=\S)\"(?!\w)|`[^`]{1,120}`"
    r"|(?<!\w)['\u2018](?=\S)[^']{1,120}(?<=\S)'(?!\w)"
    "|\u201c[^\u201c\u201d]{1,120}\u201d|\u00ab[^\u00ab\u00bb]{1,120}\u00bb"
)


class _Pattern(StrictModel):
    rule: str
    query: Fraction
    document: Fraction
    pattern: str


class _Patterns(StrictModel):
    parts: dict[str, str]
    patterns: tuple[_Pattern, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One pattern that a text matches.

    Attributes:
        rule: Name of the pattern.
        weight: Its part of the score.
        excerpt: Text that matched, 80 characters at most.
    """

    rule: str
    weight: float
    excerpt: str


@dataclass(frozen=True, slots=True)
class Screening:
    """Result of a screen."""

    findings: tuple[Finding, ...]

    @property
    def is_attack(self) -> bool:
        """True if the weights of the findings sum to `THRESHOLD`."""
        return sum(finding.weight for finding in self.findings) >= THRESHOLD - 1e-9

    @property
    def reason(self) -> str:
        """Names of the patterns and the strongest match, for people; "" without findings."""
        if not self.findings:
            return ""
        names = ", ".join(dict.fromkeys(finding.rule for finding in self.findings))
        return f"{names}: {max(self.findings, key=lambda f: f.weight).excerpt!r}"


def screen(text: str, where: Where = "query") -> Screening:
    """Return what a text has of an injection.

    Args:
        text: Query or passage; of a longer one the first `MOST_CHARS` characters count.
        where: Which weights of the patterns count.
    """
    return _screened(text[:MOST_CHARS], where)


@lru_cache(maxsize=1024)  # the turns of a conversation come again with each query
def _screened(text: str, where: Where) -> Screening:
    return Screening(tuple(_findings(text, where, 0)))


@cache
def _patterns() -> tuple[tuple[_Pattern, re.Pattern[str]], ...]:
    found = load_yaml_model(Path(__file__).with_name("screen.yaml"), _Patterns)
    return tuple(
        (each, re.compile(Template(each.pattern).substitute(found.parts)))
        for each in found.patterns
    )


def _findings(text: str, where: Where, depth: int) -> list[Finding]:
    found: dict[str, Finding] = {}
    for form in _forms(text):
        quotes = None
        if _ABOUT.search(form) is not None:
            quotes = [match.span() for match in _QUOTED.finditer(form)]
        for each, pattern in _patterns():
            weight = each.query if where == "query" else each.document
            match = pattern.search(form) if weight else None
            if match is None:
                continue
            if quotes and (bare := _unquoted(pattern, form, quotes)) is not None:
                match = bare
            elif quotes:
                weight *= _QUOTED_WEIGHT
            if each.pattern not in found or weight > found[each.pattern].weight:
                found[each.pattern] = Finding(each.rule, weight, match.group()[:80].strip())
    inner = _decoded(text) if depth < _DEEPEST else []
    return [*found.values(), *(each for t in inner for each in _findings(t, where, depth + 1))]


def _forms(text: str) -> list[str]:
    """Return the plain forms of a text: as it is meant, with letters for digits, unspaced."""
    visible = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).casefold()
    visible = visible.translate(_LOOK_ALIKE)
    plain = re.sub(r"\s+", " ", visible)
    lines = re.sub(r"[^\S\n]+", " ", visible)  # some patterns begin at one
    forms = [plain, lines, re.sub(r"\blgnor", "ignor", plain)]
    if re.search(r"[a-z][013457@$][a-z]", plain):
        forms.append(plain.translate(_DIGITS))
    if _SPACED.search(visible):  # two spaces, or a line, between words; one between letters
        letters = re.sub(r"(?<=\b\w)[^\S\n](?=\w\b)", "", visible)
        forms.append(re.sub(r"\s+", " ", letters))
    return list(dict.fromkeys(forms))


def _unquoted(
    pattern: re.Pattern[str], text: str, quotes: list[tuple[int, int]]
) -> re.Match[str] | None:
    """Return the first match that no pair of quotation marks encloses, if there is one.

    Args:
        pattern: What is searched for.
        text: Plain form of a text.
        quotes: Beginnings and ends of what is quoted in it, in order.
    """
    for match in pattern.finditer(text):
        place = bisect(quotes, (match.start(), 0)) - 1
        if place < 0 or match.end() >= quotes[place][1]:
            return match
    return None


def _decoded(text: str) -> list[str]:
    """Return readable text that stands in base64."""
    found = []
    for blob in _BASE64.findall(text)[:20]:
        try:
            inner = base64.b64decode(blob + "=" * (-len(blob) % 4), validate=True).decode("utf-8")
        except (binascii.Error, ValueError):
            continue
        if inner.isprintable() and " " in inner:
            found.append(inner)
    return found
