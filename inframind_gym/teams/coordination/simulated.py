"""Answers without a model: rules on the words, in virtual time at the rates of the team's server.

They let the team run anywhere, over real retrieval: the router and the planner go by the words of
the question, the writer quotes the sentences that share most words with it, the validator checks
by rules. Everything made of them is marked simulated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from inframind_gym.teams.coordination import lexical, rules
from inframind_gym.teams.coordination.agents import earlier
from inframind_gym.teams.coordination.contracts import Document, Issue, Validation
from inframind_gym.teams.coordination.reports import Report
from inframind_gym.teams.coordination.retrieval.text import terms
from inframind_gym.teams.coordination.settings import STRATEGIES, CoordinationSettings
from inframind_gym.teams.coordination.state import CoordinationState
from inframind_gym.teams.coordination.work import Work, merged
from inframind_gym.teams.coordination.workers import SENTENCES
from inframind_gym.teams.llm.providers import Simulated
from inframind_gym.teams.llm.types import Completion, LLMRequest, estimate_tokens

MODEL: Final = "simulated-team"
NO_SOURCE: Final = "The sources do not answer this."
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"'(])")
_GOES_ON: Final = ("That ", "This ", "It ", "They ", "Such ", "So ")  # from the sentence before


class RuleAnswers:
    """Answers of one query.

    Args:
        work: Product of the team; prompts hold nothing else.
        settings: Rates of the server.
        check: Issues of an answer against its sources.
        most_sub_tasks: Of a plan.
    """

    def __init__(
        self,
        work: Work,
        settings: CoordinationSettings,
        check: Callable[[str, str, Sequence[Document]], Sequence[Issue]],
        most_sub_tasks: int = 3,
    ) -> None:
        self._work, self._settings, self._check = work, settings, check
        self._most_sub_tasks = most_sub_tasks
        # Prompts whose prefixes the server keeps; it has read the conversation before.
        self._read = [earlier(work.history)]

    def provider(self) -> Simulated:
        """Return the provider that answers so."""
        return Simulated(MODEL, self)

    def __call__(self, request: LLMRequest) -> Completion:
        """Return the completion of a request."""
        agent = str(request.context["agent"])
        text = getattr(self, f"_{agent}")(request)
        cached = max(_shared_chars(request.user, each) for each in self._read)
        self._read.append(request.user)
        prompt, made = estimate_tokens(request.user[cached:]), estimate_tokens(text)
        seconds = float(rules.call_s(prompt, made, self._settings.server))
        return Completion(text, prompt, made, "stop", seconds)

    def _router(self, _: LLMRequest) -> str:
        return lexical.route(self._work.query).model_dump_json()

    def _planner(self, _: LLMRequest) -> str:
        plan = lexical.plan(self._work.query, self._most_sub_tasks)
        return plan.model_dump_json(exclude={"original_query"})

    def _retrieval(self, request: LLMRequest) -> str:
        question = str(request.context["question"])
        return json.dumps({"refined": question, "variants": []})

    def _synthesis(self, _: LLMRequest) -> str:
        documents = merged(self._work.found)[0]
        asked = set(terms(lexical.in_context(self._work.query, self._work.history)))
        shared = [-len(asked & set(terms(document.text))) for document in documents]
        order = sorted(range(len(documents)), key=lambda i: (shared[i], i))
        empty = [i for i, result in enumerate(self._work.found, 1) if not result.documents]
        return json.dumps({"order": [i + 1 for i in order], "missing": empty})

    def _draft(self, _: LLMRequest) -> str:
        work = self._work
        complexity = work.route.complexity if work.route is not None else "medium"
        asked = [lexical.in_context(task, work.history) for task in work.sub_tasks]
        return quote(asked, merged(work.found)[0], SENTENCES[complexity])

    def _fallback(self, request: LLMRequest) -> str:
        asked = lexical.in_context(self._work.query, self._work.history)
        return quote((asked,), request.context["documents"], SENTENCES["simple"])

    def _validation(self, _: LLMRequest) -> str:
        work = self._work
        issues = tuple(self._check(work.query, work.draft, work.documents))[:20]
        is_valid = not any(issue.severity == "high" for issue in issues)
        return Validation(
            valid=is_valid,
            confidence=0.9 - 0.1 * min(len(issues), 5),
            issues=issues,
            suggested_action="accept" if is_valid else "regenerate",
        ).model_dump_json()


class VirtualClock:
    """Time by the rules of the team: what the calls of an action take on its server.

    Args:
        settings: Rates of the server.
    """

    def __init__(self, settings: CoordinationSettings) -> None:
        self._settings = settings

    def now_ms(self, state: CoordinationState) -> int:
        """See `clock.Clock`."""
        return int(state.elapsed_ms[0])

    def begin(self, action: int, state: CoordinationState) -> None:
        """See `clock.Clock`."""

    def action_ms(self, action: int, reports: Sequence[Report], state: CoordinationState) -> int:
        """See `clock.Clock`."""
        settings = self._settings
        if action == rules.FALLBACK:
            return int(rules.milliseconds(settings.fallback_s))
        seconds = sum(report.latency_s for report in reports)
        if rules.is_retrieval(action) and reports:
            read = np.array([[report.input_tokens for report in reports]])
            wrote = np.array([[report.output_tokens for report in reports]])
            width, used = state.max_num_seqs, np.ones_like(read, np.bool_)
            waves = rules.wave_s(read, wrote, used, settings.server, width)
            seconds = float(waves[0]) + settings.search_s.values[_strategy(action)]
        if action == rules.REWRITE:
            seconds = settings.search_s.rewrite
        if action == rules.TRIM:
            seconds = settings.trim_s
        late = any(report.failure == "timeout" for report in reports)
        return int(rules.milliseconds(settings.limits.call_timeout_s if late else seconds))

    async def wait(self, seconds: float) -> None:
        """See `clock.Clock`: the state counts the wait."""


def _strategy(action: int) -> int:
    place = int(rules.strategy_of(action))
    assert 0 <= place < len(STRATEGIES)
    return place


def _shared_chars(text: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(other[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


def quote(questions: Sequence[str], documents: Sequence[Document], most: int) -> str:
    """Return the sentences of documents that share most words with the questions, with numbers.

    Questions get a sentence in turn, so that none of several is left out.
    """
    pool = [
        (number, sentence, set(terms(sentence)))
        for number, document in enumerate(documents, 1)
        for sentence in _SENTENCE.split(document.text)
        if len(sentence.split()) > 3 and not sentence.startswith(_GOES_ON)
    ]
    chosen: list[tuple[int, str]] = []
    asked = [set(terms(question)) for question in questions]
    for turn in range(most):
        wanted = asked[turn % len(asked)]
        left = [one for one in pool if (one[0], one[1]) not in chosen]
        if not left:
            break
        number, sentence, own = max(left, key=lambda one: _worth(wanted, one[2], one[0]))
        if not own & wanted:
            continue
        chosen.append((number, sentence))
    return " ".join(_with_mark(sentence, number) for number, sentence in chosen) or NO_SOURCE


def _worth(wanted: set[str], own: set[str], number: int) -> float:
    """Words in common, less for long sentences and for later documents."""
    return float(len(wanted & own) / (4 + len(own)) ** 0.5 - 0.02 * number)


def _with_mark(sentence: str, number: int) -> str:
    text, end = (sentence[:-1], sentence[-1]) if sentence[-1] in ".!?" else (sentence, ".")
    return f"{text} [{number}]{end}"
