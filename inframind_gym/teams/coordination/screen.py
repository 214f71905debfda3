"""A screen for prompt injection: in the user's query, and in passages that retrieval returns.

Text is brought to a plain form (look-alike letters, invisible characters, spaced letters, base64),
then searched for patterns, each with a weight; a sum of `THRESHOLD` is an attack. A screen of
patterns finds what it was written for. Passages are marked off as material in prompts besides.
"""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from dataclasses import dataclass
from typing import Final, Literal

Where = Literal["query", "document"]
THRESHOLD: Final = 1.0
MOST_CHARS: Final = 200_000  # of a text that is searched
_QUOTED_WEIGHT: Final = 0.3  # of what a question about injections quotes
_DEEPEST: Final = 2  # base64 in base64

_OF_BEFORE = (
    r"(?:previous|prior|above|earlier|preceding|existing|original|initial|hidden|system|your|my|"
    r"those|these|the|all|any|every|of|previously given)"
)
_ORDERS = (
    r"(?:instructions?|rules?|prompts?|guidelines?|directives?|constraints?|restrictions?|"
    r"programming|preamble|configuration)"
)
_DROP = (
    r"(?:ignore|disregard|forget|override|bypass|neglect|set aside|stop following|"
    r"(?:do not|don't|no longer) (?:follow|obey)|switch off|disable)"
)
_SHOW = (
    r"(?:reveal|show|print|repeat|output|dump|leak|display|quote|share|tell me|give me|recite|say)"
)
_PRIVATE = (
    r"(?:(?:your|the) )?(?:(?:hidden|initial|secret|original|confidential|system|configuration|"
    r"full) )+(?:prompts?|instructions?|messages?|preamble|variables?)"
)
_READER = (
    r"(?:ais?|ai assistants?|ai models?|assistants?|(?:large )?language models?|llms?|chatbots?|"
    r"automated agents?|attention models?|validators?)"
)

# name, weight in a query, weight in a document, pattern of plain text
_RULES: Final = tuple(
    (name, in_query, in_document, re.compile(pattern))
    for name, in_query, in_document, pattern in (
        ("override", 1.0, 1.0, rf"\b{_DROP} (?:\w+ ){{0,2}}?(?:{_OF_BEFORE} )+(?:\w+ )?{_ORDERS}\b"),
        ("override", 1.0, 1.0, rf"\b{_DROP} (?:the user'?s?|the question|everything)\b"),
        ("override", 1.0, 0.5, r"\b(?:ignore|disregard|forget) (?:them|this|that|it)\b.{0,30}\b"
         r"(?:write|say|print|reply|answer|output)\b"),
        ("override", 1.0, 1.0, r"\bsystem override\b|\byour instructions (?:have|were|are)\b"),
        ("override", 1.0, 1.0, r"\b(?:new|updated) (?:instructions?|task)(?: for [^:]{1,40})?:"),
        ("override", 1.0, 1.0, r"\b(?:ignoriere?|vergiss|missachte)\b.{0,40}\b(?:anweisung|regel)"),
        ("override", 1.0, 1.0, r"\b(?:oublie|ignore)[sz]?\b.{0,30}\binstructions\b.{0,20}\bpr[ée]c"),
        ("override", 1.0, 1.0, r"\b(?:ignora|olvida)\b.{0,30}\binstrucciones\b"),
        ("override", 1.0, 1.0, r"(?:忽略|无视|忘记).{0,12}(?:指令|提示|规则)"),
        ("new role", 1.0, 0.7, r"\byou are (?:now|no longer) (?:an? |the |in )?\w+"),
        ("new role", 1.0, 0.7, r"\b(?:act as if|pretend|imagine|suppose)\b.{0,40}\b(?:no|not|without"
         r"|unrestricted|unfiltered)\b"),
        ("new role", 1.0, 1.0, r"\bdo anything now\b|\bas dan\b|\b(?:model|assistant|ai) without "
         r"(?:any )?(?:restrictions|limits|rules)|\bno (?:restrictions|limits|guidelines)\b"),
        ("new role", 1.0, 0.7, r"\b(?:enter|enable|activate|you are in) (?:developer|debug|god|"
         r"jailbreak|maintenance) mode\b|\bmaintenance mode is (?:active|on)\b"),
        ("new role", 0.5, 0.7, r"\bfrom (?:now|here) on,? (?:you|answer|obey|only|reply|respond)\b"),
        ("extraction", 1.0, 1.0, rf"\b{_SHOW} (?:\w+ ){{0,3}}?{_PRIVATE}\b"),
        ("extraction", 1.0, 1.0, r"\brepeat (?:the |all )?(?:text|words|everything) (?:above|before)"),
        ("extraction", 1.0, 1.0, rf"\b(?:instructions|prompt|words|preamble)\b.{{0,30}}\byou (?:were "
         rf"(?:given|configured|told)|received)\b|\b{_ORDERS}\b.{{0,30}}\b(?:gave|told) you\b"),
        ("extraction", 1.0, 1.0, r"\bwhat (?:would|do|did|are|were|is|was) your (?:initial|system|"
         r"hidden|original|secret) (?:instructions?|prompt|message)"),
        ("secrets", 1.0, 1.0, rf"\b(?:{_SHOW}|steal|send|forward|upload|exfiltrate)\b.{{0,40}}"
         r"\b(?:api keys?|passwords?|credentials|secrets|chat history|conversation)\b"),
        ("exfiltration", 1.0, 1.0, r"\b(?:send|forward|email|post|upload)\b.{0,60}(?:https?://|\S+@)"),
        ("exfiltration", 1.0, 1.0, r"!\[[^\]]*\]\(https?://[^)]*\?[^)]*\)"),
        ("exfiltration", 1.0, 1.0, r"\b(?:curl|wget)\b.{0,60}\|\s*(?:ba|z)?sh\b"),
        ("false role", 1.0, 1.0, r"<\|(?:im_start|im_end|system|user|assistant|endoftext)\|>|\[/?inst\]"
         r"|<</?sys>>|</?(?:system|assistant|instructions?|context|sources?)\b[^>]*>"),
        ("false role", 1.0, 1.0, r"#{2,} ?(?:instruction|system|response)s?\b"),
        ("false role", 0.5, 1.0, r"(?:^|\n|[.!>] ?)(?:system|assistant|human|user):(?=\s)"),
        ("false role", 1.0, 1.0, r"\bend of (?:document|context|sources?|data)\b"),
        ("hidden text", 0.5, 0.7, r"<!--|display: ?none|visibility: ?hidden|font-size: ?0"),
        ("to the reader", 0.0, 1.0, rf"\b(?:note|message|memo|to|dear|reminder|attention)\b"
         rf"(?: (?:to|for|the|any|all)){{0,3}}[: ]+{_READER}\b.{{0,40}}[:,]"),
        ("to the reader", 0.0, 1.0, rf"\bif you are an? {_READER}\b"),
        ("to the reader", 0.0, 1.0, rf"\b{_READER}\b.{{0,40}}\b(?:reading|processing|answering)\b"
         r".{0,40}\b(?:must|should|has to|have to|shall)\b|"
         rf"\b(?:the|every|any) {_READER} (?:must|should|has to) (?:treat|rank|accept|recommend)\b"),
        ("to the reader", 0.0, 1.0, r"\bwhen (?:summari[sz]ing|answering|citing|quoting) (?:with )?"
         r"(?:this|the) \w+,? (?:always|never|do not|you must|state|say)\b"),
        ("to the reader", 0.0, 0.7, r"\b(?:reply|respond|answer) (?:only )?with ['\"“]"),
        ("to the reader", 0.0, 0.7, r"\b(?:do not|don't|never) (?:cite|report|mention) "
         r"(?:other|issues|any|the other)\b"),
        ("encoded", 0.5, 0.5, r"\b(?:decode|decoded)\b.{0,40}\b(?:do|follow|obey|execute|text)\b"),
    )
)  # fmt: skip
_ABOUT: Final = re.compile(r"\b(?:injections?|jailbreaks?|what does|means?|phrases?)\b")
_INVISIBLE: Final = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\U000e0000-\U000e007f]")
_SPACED: Final = re.compile(r"(?:\b\w ){5,}\w\b")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]{24,}={0,2}")
_LOOK_ALIKE: Final = str.maketrans(
    "аеорсухіјѕԁɡⅼαοερνικτ",
    "aeopcyxijsdglaoepvikt",
)
_DIGITS: Final = str.maketrans("013457@$", "oieastas")


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
    def score(self) -> float:
        """Sum of the weights; each pattern counts once."""
        return sum(finding.weight for finding in self.findings)

    @property
    def is_attack(self) -> bool:
        """True from `THRESHOLD` on."""
        return self.score >= THRESHOLD - 1e-9

    def told(self) -> str:
        """Return the names of the patterns and the strongest excerpt, for people."""
        names = ", ".join(dict.fromkeys(finding.rule for finding in self.findings))
        strongest = max(self.findings, key=lambda finding: finding.weight)
        return f"{names}: {strongest.excerpt!r}"


def screen(text: str, where: Where = "query") -> Screening:
    """Return what a text has of an injection.

    Args:
        text: Query or passage; of a longer one the first `MOST_CHARS` characters count.
        where: A query may ask for a form of its answer; a passage has nothing to ask for.
    """
    return Screening(tuple(_findings(text[:MOST_CHARS], where, 0)))


def _findings(text: str, where: Where, depth: int) -> list[Finding]:
    found: dict[str, Finding] = {}
    for form in dict.fromkeys(_forms(text)):
        about = bool(_ABOUT.search(form))
        for rule, in_query, in_document, pattern in _RULES:
            weight = in_query if where == "query" else in_document
            match = pattern.search(form) if weight else None
            if match is None:
                continue
            if about and (where == "document" or _is_quoted(form, match)):
                weight *= _QUOTED_WEIGHT
            key = f"{rule}/{pattern.pattern}"
            if key not in found or weight > found[key].weight:
                found[key] = Finding(rule, weight, match.group()[:80].strip())
    if depth < _DEEPEST:
        for inner in _decoded(text):
            for finding in _findings(inner, where, depth + 1):
                found[f"base64/{finding.rule}/{finding.excerpt}"] = finding
    return list(found.values())


def _forms(text: str) -> list[str]:
    """Return the plain forms of a text: as it is meant, without digits for letters, unspaced."""
    plain = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).casefold()
    plain = plain.translate(_LOOK_ALIKE).replace("’", "'")
    plain = re.sub(r"[^\S\n]+", " ", plain)
    forms = [plain]
    if re.search(r"[a-z][0134570@$][a-z]", plain):
        forms.append(plain.translate(_DIGITS))
    if re.search(r"\blgnor", plain):
        forms.append(plain.replace("lgnor", "ignor"))
    spaced = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).casefold()
    if _SPACED.search(spaced):  # two spaces between words, one between letters
        forms.append(re.sub(r" {2,}", " ", re.sub(r"(?<=\b\w) (?=\w\b)", "", spaced)))
    return forms


def _is_quoted(text: str, match: re.Match[str]) -> bool:
    """Return True if quotation marks stand around a match."""
    before, after = text[: match.start()], text[match.end() :]
    return any(mark in before and mark in after for mark in ('"', "'", "`", "“", "‘", "«"))


def _decoded(text: str) -> list[str]:
    """Return readable text that stands in base64."""
    found = []
    for blob in _BASE64.findall(text)[:20]:
        try:
            raw = base64.b64decode(blob + "=" * (-len(blob) % 4), validate=True)
            inner = raw.decode("utf-8")
        except (binascii.Error, ValueError):
            continue
        if inner.isprintable() and " " in inner:
            found.append(inner)
    return found
