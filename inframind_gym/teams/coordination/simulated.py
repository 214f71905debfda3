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

from inframind_gym.teams.coordination import lexical, rules
from inframind_gym.teams.coordination.agents import NO_SOURCE, SENTENCES, IsAbout, Work
from inframind_gym.teams.coordination.prompts import earlier
from inframind_gym.teams.coordination.retrieval import terms
from inframind_gym.teams.coordination.settings import CoordinationSettings, Document, Validation
from inframind_gym.teams.llm import Completion, LLMRequest, estimate_tokens

_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"'(])")
_GOES_ON: Final = ("That ", "This ", "It ", "They ", "Such ", "So ")  # from the sentence before


class RuleAnswers:
    """A provider whose answers to one query are made by rules.

    Args:
        work: Product of the team; prompts hold nothing else.
        settings: Rates of the server.
        is_about: Whether one of some passages is about a question.
    """

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
                return lexical.route(work.query).model_dump_json()
            case "planner":
                return lexical.plan(work.query).model_dump_json(exclude={"original_query"})
            case "retrieval":
                return json.dumps({"refined": str(request.context["question"]), "variants": []})
            case "synthesis":
                asked, documents = set(terms(work.asked)), work.merged()[0]
                shared = [-len(asked & set(terms(document.text))) for document in documents]
                order = sorted(range(len(documents)), key=lambda i: (shared[i], i))
                empty = [i for i, result in enumerate(work.found, 1) if not result.documents]
                return json.dumps({"order": [i + 1 for i in order], "missing": empty})
            case "draft":
                questions = [lexical.in_context(task, work.history) for task in work.sub_tasks]
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
                """Return the words in common, less for long sentences and for later documents."""
                number, _, own = one
                return float(len(wanted & own) / (4 + len(own)) ** 0.5 - 0.02 * number)

            best = max((one for one in pool if one not in chosen), key=worth, default=None)
            if best is not None and best[2] & wanted:
                chosen.append(best)
        quoted = []
        for number, sentence, _ in chosen:
            ends = sentence[-1] in ".!?"
            text, end = (sentence[:-1], sentence[-1]) if ends else (sentence, ".")
            quoted.append(f"{text} [{number}]{end}")
        return " ".join(quoted) or NO_SOURCE


def _shared_chars(text: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    lengths = range(1, min(len(text), len(other)) + 1)
    return bisect_left(lengths, True, key=lambda length: not text.startswith(other[:length]))
