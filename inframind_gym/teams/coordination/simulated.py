"""Answers without a model: rules on the words, in virtual time at the rates of the team's server.

They let the team run anywhere, over real retrieval: the router and the planner go by the words of
the question, the writer quotes the sentences that share most words with it, the validator checks
by rules. Everything made of them is marked simulated.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.agents import NO_SOURCE, SENTENCES, IsAbout, Work
from inframind_gym.teams.coordination.prompts import MOST_SUB_TASKS, earlier
from inframind_gym.teams.coordination.retrieval import in_context, refers_back, terms
from inframind_gym.teams.coordination.settings import (
    COMPLEXITIES,
    CoordinationSettings,
    Document,
    Plan,
    Route,
    Strategy,
    Validation,
)
from inframind_gym.teams.llm import Completion, LLMRequest, estimate_tokens

_COMPARE: Final = re.compile(
    r"\b(?:compar\w+|contrast|versus|vs\.?|differ\w*|trade-?offs?|pros and cons)\b", re.I
)
_RELATION: Final = re.compile(
    r"\b(?:relat\w+|connect\w*|depend\w*|affects?|influence\w*|interact\w*|leads? to|between|"
    r"consequences?)\b",
    re.I,
)
_WHY: Final = re.compile(r"\b(?:why|how|explain|describe|reasons?|steps)\b", re.I)
_EXACT: Final = re.compile(r"\"[^\"]+\"|`[^`]+`|\b\w*[_\d]\w*\b|(?<!\w)--\w+")
# Where a question goes on with another one.
_CLAUSE: Final = re.compile(
    r"\?\s+|;\s*|,?\s+and\s+(?=(?:explain|describe|say|tell|how|why|what|when|which|who|where|give|"
    r"name|list|compare)\b)|,\s+(?:then|also)\s+",
    re.I,
)
_PAIR: Final = re.compile(
    r"^(?:please\s+)?(?:(?:compare|contrast)\s+|what (?:is|are) the differences? between\s+|"
    r"(?:what )?differences? between\s+|how do(?:es)?\s+)?(?P<head>.*?\b(?:of|for|in|between)\s+)?"
    r"(?P<one>[\w./-]+(?:\s[\w./-]+){0,3}?)\s+(?:vs\.?|versus|with|and|to|or|from)\s+"
    r"(?P<two>[\w./-]+(?:\s[\w./-]+){0,3}?)(?P<tail>\s[\w\s./-]*)?$",
    re.I,
)
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"'(])")
_GOES_ON: Final = ("That ", "This ", "It ", "They ", "Such ", "So ")  # from the sentence before


def complexity_of(query: str) -> int:
    """Return a place in COMPLEXITIES: comparisons and several questions are complex."""
    words = len(query.split())
    if _COMPARE.search(query) or len(_clauses(query)) > 1 or words > 35:
        return 2
    return 1 if _WHY.search(query) or _RELATION.search(query) or words > 14 else 0


def route(query: str) -> Route:
    """Return a route by the words of a query."""
    complexity = complexity_of(query)
    strategy: Strategy = "vector"
    if _RELATION.search(query) and complexity > 0:
        strategy = "graphrag"
    elif _EXACT.search(query) or complexity == 2:
        strategy = "hybrid"
    return Route(
        strategy=strategy,
        complexity=COMPLEXITIES[complexity],
        needs_planning=complexity == 2,
        confidence=0.8 if complexity != 1 else 0.6,
    )


def plan(query: str) -> Plan:
    """Return the parts of a query: one for each question, two for a comparison."""
    tasks: list[str] = []
    for clause in _clauses(query):
        pair = _PAIR.match(clause.rstrip("?. ")) if _COMPARE.search(clause) else None
        if pair is None:
            named = f"{clause.rstrip('?. ')}: {', '.join(tasks)}" if tasks else clause
            tasks.append(named if refers_back(clause) else clause)
            continue
        head, tail = (pair["head"] or "").strip(), (pair["tail"] or "").strip()
        for side in pair.group("one", "two"):
            ends = "" if side.lower().endswith(tail.lower()) else tail
            tasks.append(" ".join(filter(None, (head, side, ends))))
    return Plan(
        original_query=query,
        sub_tasks=tuple(task[:400] for task in dict.fromkeys(tasks))[:MOST_SUB_TASKS],
        execution_order="parallel",
        estimated_complexity=("low", "medium", "high")[complexity_of(query)],
    )


def _clauses(query: str) -> list[str]:
    return [part.strip() for part in _CLAUSE.split(query) if part.strip(" ?.")] or [query]


class RuleAnswers:
    """A provider whose answers to one query are made by rules, from the product of the team."""

    model = "simulated-team"
    is_simulated = True

    def __init__(self, work: Work, settings: CoordinationSettings, is_about: IsAbout) -> None:
        self._work, self._settings, self._is_about = work, settings, is_about
        # Prompts whose prefixes the server keeps; it has read the conversation before.
        self._read = [earlier(work.history)]

    async def complete(self, request: LLMRequest) -> Completion:
        """See `Provider`."""
        text = self._answer(request)
        cached = max(_shared_chars(request.user, each) for each in self._read)
        self._read.append(request.user)
        prompt, made = estimate_tokens(request.user[cached:]), estimate_tokens(text)
        seconds = float(rules.call_s(prompt, made, self._settings.server))
        return Completion(text, prompt, made, "stop", seconds)

    async def aclose(self) -> None:
        """See `Provider`."""

    def _answer(self, request: LLMRequest) -> str:
        """Return the answer of the agent that asks."""
        work = self._work
        match request.context["agent"]:
            case "router":
                return route(work.query).model_dump_json()
            case "planner":
                return plan(work.query).model_dump_json(exclude={"original_query"})
            case "retrieval":
                return json.dumps({"refined": str(request.context["question"]), "variants": []})
            case "synthesis":
                asked, documents = set(terms(work.asked)), work.merged()[0]
                shared = [-len(asked & set(terms(document.text))) for document in documents]
                order = sorted(range(len(documents)), key=lambda i: (shared[i], i))
                empty = [i for i, result in enumerate(work.found, 1) if not result.documents]
                return json.dumps({"order": [i + 1 for i in order], "missing": empty})
            case "draft":
                questions = [in_context(task, work.history) for task in work.sub_tasks]
                return self._quote(questions, work.merged()[0], work.sentences)
            case "fallback":
                documents = request.context["documents"]
                return self._quote([work.asked], documents, SENTENCES["simple"])
        issues = tuple(work.issues(self._is_about))[:20]
        return Validation(
            valid=not issues,
            confidence=0.9 - 0.1 * min(len(issues), 5),
            issues=issues,
            suggested_action="regenerate" if issues else "accept",
        ).model_dump_json()

    def _quote(self, questions: Sequence[str], documents: Sequence[Document], most: int) -> str:
        """Return the sentences that share most words with the questions, with numbers.

        Questions get a sentence in turn, so that none of several is left out. Documents that are
        not about the query are not quoted.
        """
        if not self._is_about(self._work.asked, documents):
            return NO_SOURCE
        pool = [
            (number, sentence, set(terms(sentence)))
            for number, document in enumerate(documents, 1)
            for sentence in _SENTENCE.split(document.text)
            if len(sentence.split()) > 3 and not sentence.startswith(_GOES_ON)
        ]
        asked, chosen = [set(terms(question)) for question in questions], []
        for turn in range(most):
            wanted = asked[turn % len(asked)]

            def worth(one: tuple[int, str, set[str]], wanted: set[str] = wanted) -> float:
                number, _, own = one  # less for long sentences and for later documents
                return float(len(wanted & own) / (4 + len(own)) ** 0.5 - 0.02 * number)

            best = max((one for one in pool if one not in chosen), key=worth, default=None)
            if best is not None and best[2] & wanted:
                chosen.append(best)
        quoted = []
        for number, sentence, _ in chosen:
            text, end = (sentence[:-1], sentence[-1]) if sentence[-1] in ".!?" else (sentence, ".")
            quoted.append(f"{text} [{number}]{end}")
        return " ".join(quoted) or NO_SOURCE


def _shared_chars(text: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    lengths = range(1, min(len(text), len(other)) + 1)
    return bisect_left(lengths, True, key=lambda length: not text.startswith(other[:length]))
