"""Claims of an answer against the passages that it was written from, by words alone.

An answer is cut into sentences, a sentence into clauses. Each sentence is compared with the passage
that covers most of its words, weighted by their rarity; then four things are looked for:

- sentences that no passage covers (hallucination; missing_source if that is all of the answer);
- names that the passages do not have (hallucination), or only others than the one that covers the
  sentence (inaccuracy);
- numbers that this passage does not have, or has with another unit (inaccuracy);
- clauses that deny what the passage affirms, or the reverse, or say its opposite (inaccuracy);

and citations such as ``[engine.md#sleep-mode]`` of passages that were not retrieved
(missing_source). That the sources do not answer the question needs no source, see `abstention`. No
model is asked: what is said in quite other words is not recognised.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from inframind_gym.teams.coordination.abstention import abstains, is_idle
from inframind_gym.teams.coordination.contracts import Document, Issue, IssueType
from inframind_gym.teams.coordination.retrieval.text import STOP_WORDS, stem, terms

COVERED: Final = 0.40  # share of a sentence's words, by rarity, that one passage must have
ALIGNED: Final = 0.50  # share of a clause's words that make a source's clause its counterpart
SWAPPED: Final = 0.60  # the same, to compare the names of both
_NEGATIONS: Final = """no not never nothing none cannot neither nor nobody hardly cant wont doesnt
dont"""
NEGATIONS: Final = frozenset(_NEGATIONS.split())
_PAIRS: Final = """above/below after/before below/exceeds fails/holds always/never approximate/exact
best/worst bigger/smaller cheap/dear cold/warm decrease/increase fall/rise fast/slow faster/slower
few/many fewer/more first/last full/empty greater/less high/low higher/lower highest/lowest
large/small larger/smaller largest/smallest less/more long/short longer/shorter lost/kept
maximum/minimum none/most open/closed oldest/newest same/different static/dynamic strong/weak
unsafe/safe worse/better early/late helps/harms hardly/far"""
_OPPOSITES: Final = [tuple(pair.split("/")) for pair in _PAIRS.split()]
_WRITTEN: Final = """two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen twenty"""
_NUMBER_WORDS: Final = {word: number for number, word in enumerate(_WRITTEN.split(), start=2)}
_CITATION: Final = re.compile(r"\[([^\[\]\s]+)\](?!\()")  # no link of Markdown
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+")
_CLAUSE: Final = re.compile(r"[;:]\s+|,\s+(?:but|and|while|whereas|because|since|so|or|which)\s+")
_TOKEN: Final = re.compile(r"[A-Za-z0-9]+(?:[._,/+'-][A-Za-z0-9]+)*%?|%")
_NUMBER: Final = re.compile(r"^(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(%?)$")
_CONTRAST: Final = re.compile(r",\s+not\b[^,;.]*")  # "how, not what" denies nothing
_COUNTED: Final = re.compile(r"\b(?:two|three) (\w+)", re.I)  # maybe the writer counted
_PER: Final = re.compile(r"(\d)(?:/(?=[a-z])|-(?=\d))")  # "10/s" and "20-30" are numbers
_NAME: Final = re.compile(r"[A-Za-z]+[._/-]?[A-Z0-9]|[A-Za-z0-9]+[_/][A-Za-z0-9]")


def find_issues(query: str, response: str, sources: Sequence[Document]) -> list[Issue]:
    """Return what is wrong with an answer as far as words show it; each issue is of high severity.

    Args:
        query: The question; its names and numbers need no source.
        response: The answer.
        sources: Passages that it was written from.
    """
    issues = []
    known = {source.doc_id for source in sources}
    for cited in dict.fromkeys(_CITATION.findall(response)):
        if cited not in known and not (cited.isdigit() and 1 <= int(cited) <= len(sources)):
            text = f"cites {cited}, which was not retrieved"
            issues.append(Issue(type="missing_source", severity="high", description=text))
    evidence = _Evidence(query, sources)
    sentences = _claims(query, response)
    uncovered = [s for s in sentences if evidence.cover(s)[1] < COVERED]
    if uncovered and len(uncovered) == len(sentences):
        text = f"no source covers the answer: {uncovered[0]}"
        return [*issues, Issue(type="missing_source", severity="high", description=text)]
    for sentence in sentences:
        if sentence in uncovered:
            text = f"no source says: {sentence}"
            issues.append(Issue(type="hallucination", severity="high", description=text))
        else:
            issues += evidence.compare(sentence)
    return issues


def is_abstention(query: str, response: str) -> bool:
    """Return True if an answer says that the sources do not answer the question, and no more."""
    return bool(terms(response)) and not _claims(query, response)


def _claims(query: str, response: str) -> list[str]:
    """Return the sentences of an answer without citations and clauses that abstain."""
    found = []
    for sentence in _SENTENCE.split(_CITATION.sub("", response).strip()):
        clauses = _clauses(sentence)
        left = [clause for clause in clauses if not abstains(query, clause)]
        if len(left) == len(clauses):
            found.append(sentence)
        else:
            found.append(" ".join(clause for clause in left if not is_idle(clause)))
    return [sentence for sentence in found if terms(sentence)]


class _Evidence:
    """Sources of one answer, ready to be compared with its sentences."""

    def __init__(self, query: str, sources: Sequence[Document]) -> None:
        self._sources = [(source.source, source.text) for source in sources]
        texts = [f"{title}. {text}" for title, text in self._sources]
        self._terms = [frozenset(terms(text)) for text in texts]
        counts = Counter(term for own in self._terms for term in own)
        self._rarity = {t: math.log(1 + len(sources) / n) for t, n in counts.items()}
        self._unknown = math.log(1 + 2 * len(sources))
        self._query = query
        self._all = _lower(" ".join([query, *texts]))

    def cover(self, sentence: str) -> tuple[int, float]:
        """Return the passage that has most of a text's words, and the share of them."""
        shares = [self._share(terms(sentence), own) for own in self._terms]
        best = max(range(len(shares)), key=shares.__getitem__, default=-1)
        return best, shares[best] if shares else 0.0

    def compare(self, sentence: str) -> list[Issue]:
        """Return what a sentence says otherwise than the passage that covers it."""
        title, text = self._sources[self.cover(sentence)[0]]
        found: list[tuple[IssueType, str]] = []
        own = _lower(f"{title} {text} {self._query}")
        for name in _names(sentence):
            if name.lower() not in self._all:
                found.append(("hallucination", f"no source names {name}"))
            elif name.lower() not in own:
                found.append(("inaccuracy", f"the source does not name {name}"))
        found += [("inaccuracy", why) for why in _numbers_differ(sentence, text, self._query)]
        for clause in _clauses(sentence):
            why = self._contradiction(clause, title, text)
            if why:
                found.append(("inaccuracy", why))
        return [
            Issue(type=kind, severity="high", description=f"{why}: {sentence}")
            for kind, why in found
        ]

    def _share(self, asked: Iterable[str], own: frozenset[str]) -> float:
        weights = {term: self._rarity.get(term, self._unknown) for term in asked}
        total = sum(weights.values())
        return sum(w for term, w in weights.items() if term in own) / total if total else 1.0

    def _contradiction(self, clause: str, title: str, text: str) -> str:
        """Say how a clause contradicts its counterpart in a passage; empty if it does not."""
        rivals = [c for sentence in _SENTENCE.split(text) for c in _clauses(sentence)]
        asked = terms(clause)
        if len(asked) < 2 or not rivals:
            return ""
        scored = [(self._share(asked, frozenset(terms(rival))), rival) for rival in rivals]
        share, best = max(scored)
        if share < ALIGNED:
            return ""
        here, there = _denied(clause), _denied(best)
        shared = (here & set(terms(best))) - there | (there & set(asked)) - here
        if shared and _denials(clause) != _denials(best):
            return f"the source has the reverse of {min(shared)}"
        names, others = _new_names(clause, f"{best} {title}"), _new_names(best, clause)
        names = [name for name in names if name.lower() in _lower(text)]  # others are reported
        if share >= SWAPPED and names and others:
            return f"the source has {others[0]} there, not {names[0]}"
        return _opposite(clause, best)


def _opposite(clause: str, source: str) -> str:
    """Say which word of a clause is the opposite of one in a source; empty if none is."""
    one, two = _lower(clause), _lower(source)
    for a, b in _OPPOSITES:
        for said, meant in ((a, b), (b, a)):
            if said in one and meant in two and said not in two and meant not in one:
                return f"the source has {meant}, not {said}"
    return ""


def _lower(text: str) -> frozenset[str]:
    words = [token.lower() for token in _TOKEN.findall(text)]
    parts = [part for word in words for part in re.split(r"[._/+'-]", word)]
    return frozenset([*words, *parts])


def _clauses(sentence: str) -> list[str]:
    return [clause for clause in _CLAUSE.split(sentence) if clause.strip()]


def _denials(clause: str) -> int:
    """Whether the negations of a clause cancel out (0) or not (1)."""
    tokens = _TOKEN.findall(_CONTRAST.sub("", clause))
    return sum(token.lower() in NEGATIONS for token in tokens) % 2


def _denied(clause: str) -> set[str]:
    """Stems of the words that a negation in a clause is about: one before it, three after."""
    tokens = [token.lower() for token in _TOKEN.findall(_CONTRAST.sub("", clause))]
    content = [(i, stem(t)) for i, t in enumerate(tokens) if t not in STOP_WORDS | NEGATIONS]
    found: set[str] = set()
    for place, token in enumerate(tokens):
        if token in NEGATIONS:
            found.update([word for i, word in content if i < place][-1:])
            found.update([word for i, word in content if i > place][:3])
    return found


def _names(sentence: str) -> list[str]:
    """Names in a sentence: capitals inside, digits in words, or a capital that opens nothing."""
    found = []
    for i, match in enumerate(_TOKEN.finditer(sentence)):
        token = match[0].removesuffix("'s")
        capital = i > 0 and token[0].isupper() and token.lower() not in STOP_WORDS
        if (capital or _NAME.match(token)) and not _NUMBER.match(token):
            found.append(token)
    return list(dict.fromkeys(found))


def _new_names(clause: str, other: str) -> list[str]:
    """Names in a clause of which another has no part."""
    known = _lower(other)
    return [name for name in _names(f"_ {clause}") if not _lower(name) & known]


def _numbers(text: str) -> list[tuple[float, str]]:
    """Numbers with the stem of the word that follows, in words or digits."""
    tokens = _TOKEN.findall(_PER.sub(r"\1 ", text))
    found = []
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        match = _NUMBER.match(token)
        if match:
            value = float(match[1].replace(",", "") + (match[2] or ""))
            found.append((value, "%" if match[3] else stem(following.lower())))
        elif token.lower() in _NUMBER_WORDS:
            found.append((float(_NUMBER_WORDS[token.lower()]), stem(following.lower())))
    return found


def _is_unit(word: str) -> bool:
    return word.isalpha() and word not in STOP_WORDS


def _numbers_differ(sentence: str, text: str, query: str) -> list[str]:
    """Say which numbers of a sentence its source does not have."""
    there = _numbers(text)
    values = {value for value, _ in [*there, *_numbers(query)]}
    found = []
    known = {unit for _, unit in there}
    sentence = _COUNTED.sub(lambda m: m[0] if stem(m[1].lower()) in known else m[1], sentence)
    for value, unit in _numbers(sentence):
        units = {its for other, its in there if other == value}
        if value not in values:
            found.append(f"the source does not have the number {value:g}")
        elif value in values and (
            _is_unit(unit)
            and unit in known
            and units
            and unit not in units
            and all(map(_is_unit, units))
        ):
            found.append(f"the source has {unit} with another number than {value:g}")
    return found
