"""Checks of texts by words alone, without a model: prompt injection, grounding, abstention.

`screen` searches queries, earlier turns and passages for prompt injection. `find_issues` compares
an answer with the passages that it was written from. `is_about` says whether there is a passage
about the question at all, `is_abstention` whether an answer says that there is none.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import chain
from string import Template
from typing import Final, Literal

from inframind_gym.files import read_yaml
from inframind_gym.teams.coordination.retrieval import SHIPPED, STOP_WORDS, stem, terms
from inframind_gym.teams.coordination.settings import Document, Issue, IssueType

# Prompt injection: a plain form of the text (look-alike letters, invisible characters) is searched
# for the patterns of `screen.yaml`, each with a weight; a sum of 1 is an attack.

Where = Literal["query", "document"]
MOST_CHARS: Final = 200_000  # of a text that is searched
_QUOTED_WEIGHT: Final = 0.3  # of what is quoted in a text about injections
_ABOUT: Final = re.compile(r"\b(?:injections?|jailbreaks?|what does|means?|phrases?)\b")
_INVISIBLE: Final = re.compile(
    "[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\U000e0000-\U000e007f]"
)
# Cyrillic and Greek letters, and a typographic apostrophe, as the Latin ones that they look like.
_LOOK_ALIKE: Final = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u0261\u03b1\u03bf\u03b5"
    "\u03c1\u03bd\u03b9\u03ba\u03c4\u2019",
    "aeopcyxijsdgaoepvikt'",
)
# What stands between a pair of quotation marks; an apostrophe within a word is none.
_QUOTED: Final = re.compile(
    r"(?<!\w)\"(?=\S)[^\"]{1,120}(?<=\S)\"(?!\w)|`[^`]{1,120}`"
    r"|(?<!\w)['\u2018](?=\S)[^']{1,120}(?<=\S)'(?!\w)"
    "|\u201c[^\u201c\u201d]{1,120}\u201d|\u00ab[^\u00ab\u00bb]{1,120}\u00bb"
)


@cache
def _patterns() -> list[tuple[str, dict[str, float], re.Pattern[str]]]:
    """Return the name of each rule, its weights in a query and in a document, its pattern."""
    content, _ = read_yaml(SHIPPED / "screen.yaml")
    return [
        (each["rule"], each, re.compile(Template(each["pattern"]).substitute(content["parts"])))
        for each in content["patterns"]
    ]


@lru_cache(maxsize=1024)  # the turns of a conversation come again with each query
def screen(text: str, where: Where = "query") -> str:
    """Return why a query or passage is a prompt injection: rules and strongest match; "" if not."""
    visible = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text[:MOST_CHARS])).casefold()
    lines = re.sub(r"[^\S\n]+", " ", visible.translate(_LOOK_ALIKE))  # some patterns begin at one
    forms = (lines, re.sub(r"\s+", " ", lines))
    quoting = [form for form in forms if _ABOUT.search(form)]
    texts = [(_QUOTED.sub(" ", form) if form in quoting else form, 1.0) for form in forms]
    texts += [(form, _QUOTED_WEIGHT) for form in quoting]
    found: list[tuple[str, float, str]] = []  # rule, weight and first match of a pattern
    for rule, weights, pattern in _patterns():
        for form, factor in texts if weights[where] else ():
            if match := pattern.search(form):
                found.append((rule, weights[where] * factor, match.group()[:80].strip()))
                break
    if sum(weight for _, weight, _ in found) < 1.0 - 1e-9:
        return ""
    names = ", ".join(dict.fromkeys(rule for rule, *_ in found))
    return f"{names}: {max(found, key=lambda one: one[1])[2]!r}"


# Abstention: a sentence that says that the sources do not answer. Whatever else it says beyond the
# words of the question (a fact in a clause of its own, a number, a name) is a claim.

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
_IDLE: Final = """unfortunately i'm sorry however provided given question answer information details
about topic anything enough directly whether"""


def is_abstention(query: str, response: str) -> bool:
    """Return True if an answer says that the sources do not answer the question, and no more."""
    return bool(terms(response)) and not _claims(query, response)


def _abstains(query: str, clause: str) -> bool:
    plain = " ".join(clause.replace("\u2019", "'").split())
    match = _ABSTAINS.search(plain)
    if match is None:
        return False
    after = set(_JOINS.findall(plain[match.end() :].lower()))
    rest = terms(f"{plain[: match.start()]} {plain[match.end() :]}")
    asked = {*terms(query), *terms(_IDLE)}
    return after <= set(_JOINS.findall(query.lower())) and asked.issuperset(rest)


def _claims(query: str, response: str) -> list[str]:
    """Return the sentences of an answer without citations and clauses that abstain."""
    claims = []
    for sentence in _SENTENCE.split(_CITATION.sub("", response).strip()):
        clauses = [clause for clause in _CLAUSE.split(sentence) if clause.strip()]
        left = [clause for clause in clauses if not _abstains(query, clause)]
        if len(left) < len(clauses):  # an apology beside it claims nothing either
            idle = frozenset(terms(_IDLE))
            sentence = " ".join(clause for clause in left if not idle.issuperset(terms(clause)))
        claims.append(sentence)
    return [sentence for sentence in claims if terms(sentence)]


# Grounding: each sentence of an answer is compared with the passage that covers most of its words,
# weighted by their rarity. Paraphrases in other words are not recognised.

COVERED: Final = 0.40  # share of a sentence's words, by rarity, that one passage must have
ABOUT: Final = 0.16  # share of a question's words that a passage about it has, at least
ABOUT_IF_NEAR: Final = 0.05  # the same, where the encoder finds a passage near
HALF: Final = 0.50  # share that is enough, however few words it is
NEAR: Final = 0.27  # cosine of a question and the nearest passage, by all-MiniLM-L6-v2
_WRITTEN: Final = """two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen twenty"""
_NUMBER_WORDS: Final = {word: number for number, word in enumerate(_WRITTEN.split(), start=2)}
_CITATION: Final = re.compile(r"\[(\d+(?:\s*,\s*\d+)*|[^\[\]\s]+)\](?!\()")  # no link of Markdown
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+")
_CLAUSE: Final = re.compile(r"[;:]\s+|,\s+(?:but|and|while|whereas|because|since|so|or|which)\s+")
_TOKEN: Final = re.compile(r"[A-Za-z0-9]+(?:[._,/+'-][A-Za-z0-9]+)*%?|%")
_NUMBER: Final = re.compile(r"^(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(%?)$")
_COUNTED: Final = re.compile(r"\b(?:two|three) (\w+)", re.I)  # maybe the writer counted
_PER: Final = re.compile(r"(\d)(?:/(?=[a-z])|-(?=\d))")  # "10/s" and "20-30" are numbers
_NAME: Final = re.compile(r"[A-Za-z]+[._/-]?[A-Z0-9]|[A-Za-z0-9]+[_/][A-Za-z0-9]")


def is_about(query: str, sources: Sequence[Document], nearness: float | None = None) -> bool:
    """Return True if one of the sources is about the question, whatever it says.

    Its words (`retrieval.rewrite`) count, by rarity among the sources: two of them or half a
    question, or fewer where the encoder finds a passage near (`nearness`, a cosine; None without
    an encoder). Quoted text of a source does not count. Thresholds were set on one half of the
    shipped questions.
    """
    asked = set(terms(query))
    if not asked or (nearness is not None and nearness < NEAR):
        return not asked
    bare = [source.model_copy(update={"text": _QUOTED.sub(" ", source.text)}) for source in sources]
    evidence, enough = _Evidence("", bare), min(2, len(asked) - 1)
    for own in evidence.terms:
        share = evidence.share(asked, own)
        by_words = nearness is None and share > ABOUT and len(asked & own) >= enough
        if by_words or share >= HALF or (nearness is not None and share > ABOUT_IF_NEAR):
            return True
    return False


def find_issues(query: str, response: str, sources: Sequence[Document]) -> list[Issue]:
    """Return what is wrong with an answer as far as words show it; each issue is of high severity.

    Four things are looked for: sentences that no passage covers (hallucination; missing_source if
    that is all of the answer); names that the passages do not have (hallucination), or only others
    than the one that covers the sentence (inaccuracy); numbers that this passage does not have, or
    has with another unit (inaccuracy); citations such as ``[engine.md#sleep-mode]`` of passages
    that were not retrieved (missing_source). Contradictions of a source are not found.
    """
    known = {source.doc_id for source in sources} | {str(i + 1) for i in range(len(sources))}
    cites = (re.split(r"(?<=\d)\s*,\s*(?=\d)", name) for name in _CITATION.findall(response))
    issues: list[tuple[IssueType, str]] = [
        ("missing_source", f"cites {name}, which was not retrieved")
        for name in dict.fromkeys(chain.from_iterable(cites))
        if name not in known
    ]
    evidence, sentences = _Evidence(query, sources), _claims(query, response)
    uncovered = [s for s in sentences if evidence.cover(s)[1] < COVERED]
    if uncovered and len(uncovered) == len(sentences):
        issues.append(("missing_source", f"no source covers the answer: {uncovered[0]}"))
    else:
        for sentence in sentences:
            if sentence in uncovered:
                issues.append(("hallucination", f"no source says: {sentence}"))
            else:
                issues += [(kind, f"{why}: {sentence}") for kind, why in evidence.compare(sentence)]
    return [Issue(type=kind, severity="high", description=text) for kind, text in issues]


class _Evidence:
    """Sources of one answer, ready to be compared with its sentences."""

    def __init__(self, query: str, sources: Sequence[Document]) -> None:
        self._sources = [(source.source, source.text) for source in sources]
        texts = [f"{title}. {text}" for title, text in self._sources]
        self.terms = [frozenset(terms(text)) for text in texts]
        counts = Counter(term for own in self.terms for term in own)
        self._rarity = {t: math.log(1 + len(sources) / n) for t, n in counts.items()}
        self._unknown = math.log(1 + 2 * len(sources))
        self._query = query
        self._all = _lower(" ".join([query, *texts]))

    def cover(self, sentence: str) -> tuple[int, float]:
        """Return the passage that has most of a text's words, and the share of them."""
        shares = [self.share(terms(sentence), own) for own in self.terms]
        best = max(range(len(shares)), key=shares.__getitem__, default=-1)
        return best, shares[best] if shares else 0.0

    def share(self, asked: Iterable[str], own: frozenset[str]) -> float:
        """Return the share of some stems that are among others, by their rarity."""
        weights = {term: self._rarity.get(term, self._unknown) for term in asked}
        total = sum(weights.values())
        return sum(w for term, w in weights.items() if term in own) / total if total else 1.0

    def compare(self, sentence: str) -> list[tuple[IssueType, str]]:
        """Return what a sentence says otherwise than the passage that covers it."""
        title, text = self._sources[self.cover(sentence)[0]]
        issues: list[tuple[IssueType, str]] = []
        own = _lower(f"{title} {text} {self._query}")
        for name in _names(sentence):
            if name.lower() not in self._all:
                issues.append(("hallucination", f"no source names {name}"))
            elif name.lower() not in own:
                issues.append(("inaccuracy", f"the source does not name {name}"))
        there = _numbers(text)
        values = {value for value, _ in [*there, *_numbers(self._query)]}
        known = {unit for _, unit in there}
        stated = _COUNTED.sub(lambda m: m[0] if stem(m[1].lower()) in known else m[1], sentence)
        for value, unit in _numbers(stated):
            units = {its for other, its in there if other == value}
            named = all(word.isalpha() and word not in STOP_WORDS for word in (unit, *units))
            why = ""
            if value not in values:
                why = f"the source does not have the number {value:g}"
            elif unit in known and units and unit not in units and named:
                why = f"the source has {unit} with another number than {value:g}"
            issues += [("inaccuracy", why)] if why else []
        return issues


def _lower(text: str) -> frozenset[str]:
    words = [token.lower() for token in _TOKEN.findall(text)]
    return frozenset([*words, *(part for word in words for part in re.split(r"[._/+'-]", word))])


def _names(sentence: str) -> list[str]:
    """Return names: capitals inside, digits in words, or a capital that opens no sentence."""
    names = []
    for i, match in enumerate(_TOKEN.finditer(sentence)):
        token = match[0].removesuffix("'s")
        capital = i > 0 and token[0].isupper() and token.lower() not in STOP_WORDS
        if (capital or _NAME.match(token)) and not _NUMBER.match(token):
            names.append(token)
    return list(dict.fromkeys(names))


def _numbers(text: str) -> list[tuple[float, str]]:
    """Return numbers, in words or digits, with the stem of the word that follows."""
    tokens = _TOKEN.findall(_PER.sub(r"\1 ", text))
    numbers = []
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        unit = stem(following.lower())
        if match := _NUMBER.match(token):
            value = float(match[1].replace(",", "") + (match[2] or ""))
            numbers.append((value, "%" if match[3] else unit))
        elif token.lower() in _NUMBER_WORDS:
            numbers.append((float(_NUMBER_WORDS[token.lower()]), unit))
    return numbers
