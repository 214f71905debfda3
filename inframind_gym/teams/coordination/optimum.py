"""The exact optimum of a single question whose calls have one length and never fail.

With `noise=False` the simulation is finite: a search finds what it finds, and chance is left in
drafts and validations alone. The optimum knows the question, what every search would find, and how
good a draft is; it knows no draw of a draft or a validation before it is made. So nothing scores
more on average, and a policy that plays it scores as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import comb
from typing import Any, Final, NamedTuple

from inframind_gym.teams.coordination.question import Question
from inframind_gym.teams.coordination.rules import (
    ANSWER,
    FALLBACK,
    MOST_REGENERATIONS,
    PARALLEL,
    PLAN,
    REGENERATE,
    RETRIEVE,
    REWRITE,
    SYNTHESIZE,
    VALIDATE,
)
from inframind_gym.teams.coordination.settings import STRATEGIES, CoordinationSettings

_SUBTASK: Final = 3  # level of a search for a sub-task
UNJUDGED, VALID, FLAWED = range(3)


class Position(NamedTuple):
    """State of a question without noise.

    Attributes:
        elapsed: milliseconds.
        iteration: decisions so far.
        rewritten, merged: flags.
        waiting: sub-tasks that wait; -1 without a plan.
        searched: bits of the strategies by which the whole question was searched for.
        found: bits of the pieces of evidence.
        searches: that came back, 2 for more.
        docs, duplicates, unread: passages, those brought again, and tokens that nobody has read.
        draft: pieces that it covers, whether it hallucinates, whether it leaves sources out; None
            without one.
        judged: UNJUDGED, VALID or FLAWED.
        regenerations: so far.
    """

    elapsed: int = 0
    iteration: int = 0
    rewritten: bool = False
    merged: bool = False
    waiting: int = -1
    searched: int = 0
    found: int = 0
    searches: int = 0
    docs: int = 0
    duplicates: int = 0
    unread: int = 0
    draft: tuple[int, bool, bool] | None = None
    judged: int = UNJUDGED
    regenerations: int = 0


class Facts(NamedTuple):
    """A question.

    Attributes:
        complexity: of the question.
        hits: bits of the evidence that a search finds, by plain or rewritten, level (whole or
            sub-task) and strategy.
        gap: piece that a plan leaves out, -1 for none.
        has_fallback: pieces that the fallback finds.
    """

    complexity: int
    hits: tuple[tuple[tuple[int, ...], ...], ...]
    gap: int
    has_fallback: int


def facts_of(question: Question, row: int) -> Facts:
    """Return the facts of a simulated question."""
    complexity, kind = int(question.complexity[row]), int(question.kind[row])
    pieces, luck = int(question.facets[row]), question.luck[row].tolist()

    def bits(rewritten: int, level: int, strategy: int) -> int:
        chance = question.chances[rewritten, level, kind, strategy]
        return sum(int(luck[i] < chance) << i for i in range(pieces))

    hits = tuple(
        tuple(
            tuple(bits(rewritten, level, strategy) for strategy in range(len(STRATEGIES)))
            for level in (complexity, _SUBTASK)
        )
        for rewritten in range(2)
    )
    return Facts(complexity, hits, int(question.gap[row]), hits[0][0][0].bit_count())


class Solution:
    """Values and best actions of one question, solved as far as they are asked for.

    Args:
        settings: constants of the team.
        facts: of the question.
        max_num_seqs: calls that the server decodes together.
    """

    def __init__(self, settings: CoordinationSettings, facts: Facts, max_num_seqs: int) -> None:
        self.settings, self.facts, self._seqs = settings, facts, max_num_seqs
        self._known: dict[Position, tuple[float, int]] = {}
        self.pieces = settings.questions.facets[facts.complexity]
        self._subtasks = settings.planner.subtasks[facts.complexity]
        self._last_ms = _ms(settings.limits.hard_s) - _ms(settings.fallback_s)
        self._overhead = _ms(settings.limits.overhead_s)
        reward = settings.reward
        self._per_ms, self._per_token = reward.per_2_s / 2000.0, reward.per_4096_tokens / 4096.0
        draft, tokens = settings.draft, settings.tokens
        prompt = tokens.query + settings.passages.fallback * tokens.passage
        missing = 1.0 - facts.has_fallback / self.pieces
        worth = facts.has_fallback * draft.uses[0] / self.pieces
        worth *= self._trusted(draft.hallucinates + draft.per_missing * missing)
        worth -= self._per_token * (prompt + tokens.fallback)
        self._fallback = worth - self._per_ms * _ms(settings.fallback_s)

    def _trusted(self, hallucinates: float) -> float:
        return 1.0 - hallucinates * (1.0 - self.settings.draft.hallucination_keeps)

    def value(self, position: Position) -> float:
        """Return the expected reward to come under the best actions."""
        return self.solve(position)[0]

    def solve(self, position: Position) -> tuple[float, int]:
        """Return the expected reward to come, and the best action."""
        found = self._known.get(position)
        if found is None:
            found = max((self._worth(position, action), -action) for action in self.open(position))
            found = self._known[position] = found[0], -found[1]
        return found

    def open(self, at: Position) -> Iterator[int]:
        """Yield the actions that are open, without those that another one is never worse than.

        These are ROUTE, which tells nothing new; searches, plans and rewritings that cannot bring
        new evidence, once there is a passage; and a strategy that finds no more and is no faster.
        """
        yield FALLBACK
        plain, rewritten = (
            [[hits & ~at.found for hits in level] for level in now] for now in self.facts.hits
        )
        whole, subtask = rewritten if at.rewritten else plain
        if at.waiting < 0 and any(subtask + ([] if at.rewritten else rewritten[1])):
            yield PLAN
        for strategy in range(len(STRATEGIES)):
            if at.waiting > 0 and self._best(subtask, strategy):
                yield RETRIEVE + strategy
                if at.waiting > 1:
                    yield PARALLEL + strategy
            if at.waiting <= 0 and not at.searched >> strategy & 1:
                helps = whole[strategy] or not at.docs
                if helps and self._best(whole, strategy, at.searched):
                    yield RETRIEVE + strategy
        if not at.rewritten and plain != rewritten:
            yield REWRITE
        if at.searches > 1 and not at.merged:
            yield SYNTHESIZE
        if at.docs:
            yield ANSWER
            if at.judged == UNJUDGED:
                yield VALIDATE
        if at.draft is not None and at.regenerations < MOST_REGENERATIONS:
            yield REGENERATE

    def _best(self, hits: list[int], strategy: int, searched: int = 0) -> bool:
        """Return whether no open strategy finds as much in less time."""
        seconds = self.settings.search_s.values
        return not any(
            other != strategy
            and not searched >> other & 1
            and hits[strategy] & ~hits[other] == 0
            and (seconds[other], other) < (seconds[strategy], strategy)
            for other in range(len(STRATEGIES))
        )

    def _worth(self, at: Position, action: int) -> float:
        if action == FALLBACK:
            return self._fallback - self._per_ms * self._overhead
        took, tokens, outcomes = self._outcomes(at, action)
        spent = self._overhead + took
        left = self._last_ms - at.elapsed
        if spent >= left:  # lost, and the fallback is forced
            return self._fallback - self._per_ms * left - self._per_token * tokens
        total = -self._per_ms * spent - self._per_token * tokens
        elapsed, iteration = at.elapsed + spent, at.iteration + 1
        for chance, after in outcomes:
            if isinstance(after, float):
                total += chance * after
            elif iteration >= self.settings.limits.max_iterations:
                total += chance * self._fallback
            else:
                after = after._replace(elapsed=elapsed, iteration=iteration)
                total += chance * self.value(after)
        return total

    def _outcomes(
        self, at: Position, action: int
    ) -> tuple[int, int, list[tuple[float, Position | float]]]:
        """Return milliseconds and tokens of an action, and the chances of what follows.

        A number is the reward of an end.
        """
        tokens = self.settings.tokens
        if action == REWRITE:
            after = at._replace(rewritten=True, searched=0)
            return _ms(self.settings.search_s.rewrite), 0, [(1.0, after)]
        if action == PLAN:
            after = at._replace(waiting=self._subtasks)
            return *self._call(tokens.query, tokens.planner), [(1.0, after)]
        if action == SYNTHESIZE:
            prompt = tokens.query + max(at.unread - at.duplicates * tokens.passage, 0)
            docs = at.docs - at.duplicates
            after = at._replace(merged=True, unread=0, docs=docs, duplicates=0)
            return *self._call(prompt, tokens.synthesis), [(1.0, after)]
        if RETRIEVE <= action < REWRITE:
            return self._search(at, action)
        return self._answer(at, action)

    def _call(self, prompt: int, completion: int) -> tuple[int, int]:
        server = self.settings.server
        seconds = prompt / server.prefill_tokens_per_s + completion / server.decode_tokens_per_s
        return _ms(seconds), prompt + completion

    def _search(
        self, at: Position, action: int
    ) -> tuple[int, int, list[tuple[float, Position | float]]]:
        settings, tokens, passages = self.settings, self.settings.tokens, self.settings.passages
        strategy = (action - RETRIEVE) % len(STRATEGIES)
        tasks = at.waiting > 0
        width = min(at.waiting, settings.limits.parallel_calls) if action >= PARALLEL else 1
        hits = self.facts.hits[at.rewritten][int(tasks)][strategy]
        if tasks:
            first = self._subtasks - at.waiting
            asked = ((1 << width) - 1) << first
            if self.facts.gap >= 0:
                asked &= ~(1 << self.facts.gap)
            hits &= asked
        docs = width * (passages.subtask if tasks else passages.whole)
        again = docs // 2 if at.searches and not tasks else 0
        total = min(at.docs + docs, passages.most)
        server = settings.server
        waves = -(-width // self._seqs)
        alone = tokens.query / server.prefill_tokens_per_s
        alone += tokens.retrieval / server.decode_tokens_per_s
        together = width * tokens.query / server.prefill_tokens_per_s
        together += waves * tokens.retrieval / server.decode_tokens_per_s
        searching = settings.search_s.values[strategy] * (3 if at.rewritten else 1)
        after = at._replace(
            waiting=at.waiting - width if tasks else at.waiting,
            searched=at.searched if tasks else at.searched | 1 << strategy,
            found=at.found | hits,
            searches=min(at.searches + width, 2),
            docs=total,
            duplicates=min(at.duplicates + again, total - 1),
            unread=min(at.unread + docs * tokens.passage, passages.most * tokens.passage),
            merged=False,
            draft=None,
            judged=UNJUDGED,
        )
        used = width * (tokens.query + tokens.retrieval)
        return _ms(max(together, alone) + searching), used, [(1.0, after)]

    def _answer(
        self, at: Position, action: int
    ) -> tuple[int, int, list[tuple[float, Position | float]]]:
        """ANSWER, VALIDATE or REGENERATE."""
        tokens = self.settings.tokens
        took = used = 0
        drafts: list[tuple[float, Position]] = [(1.0, at)]
        if at.draft is None or action == REGENERATE:
            warned = action == REGENERATE and at.judged == FLAWED
            prompt = tokens.query + at.unread + tokens.issues * warned
            took, used = self._call(prompt, tokens.draft[self.facts.complexity])
            number = at.regenerations + (action == REGENERATE)
            after = at._replace(unread=0, judged=UNJUDGED, regenerations=number)
            drafts = [(p, after._replace(draft=d)) for p, d in self._drafts(at, warned)]
        if action == ANSWER:
            weights = self.settings.reward
            lacking = 0.0 if at.judged != UNJUDGED else weights.not_validated
            ends: list[tuple[float, Position | float]] = [
                (p, self._score(one.draft) - lacking) for p, one in drafts
            ]
            return took, used, ends
        if action == REGENERATE:
            return took, used, list(drafts)
        prompt = tokens.query + tokens.draft[self.facts.complexity]
        more, read = self._call(prompt, tokens.validation)
        judged: list[tuple[float, Position | float]] = []
        for chance, one in drafts:
            sound = self._passes(one.draft)
            judged.append((chance * sound, one._replace(judged=VALID)))
            judged.append((chance * (1.0 - sound), one._replace(judged=FLAWED)))
        return took + more, used + read, judged

    def _score(self, draft: Any) -> float:
        covered, hallucinates, unsourced = draft
        quality = self.settings.draft
        score = covered / self.pieces * (quality.hallucination_keeps if hallucinates else 1.0)
        attributed = quality.unsourced_keeps if unsourced else 1.0
        return float(score + self.settings.reward.attribution * attributed)

    def _passes(self, draft: Any) -> float:
        """Return the chance that a validation finds no issue."""
        covered, hallucinates, unsourced = draft
        validator, chance = self.settings.validator, 1.0
        there = (hallucinates, unsourced, covered < self.pieces)
        for finds, is_there in zip(validator.finds.values, there, strict=True):
            chance *= 1.0 - (finds if is_there else validator.false_alarm)
        return chance

    def _drafts(self, at: Position, warned: bool) -> list[tuple[float, tuple[int, bool, bool]]]:
        """Return the chances of drafts."""
        draft, has = self.settings.draft, at.found.bit_count()
        uses = draft.uses[1 if at.searches > 1 and not at.merged else 0]
        kept = at.draft[0] if warned and at.draft is not None else 0
        less = draft.after_issues if warned else 1.0
        lies = less * (draft.hallucinates + draft.per_missing * (1.0 - has / self.pieces))
        bare = less * draft.unsourced
        rest = has - kept
        return [
            (
                comb(rest, n) * uses**n * (1.0 - uses) ** (rest - n)
                * (lies if h else 1.0 - lies) * (bare if u else 1.0 - bare),
                (kept + n, h, u),
            )
            for n in range(rest + 1)
            for h in (False, True)
            for u in (False, True)
        ]  # fmt: skip


def _ms(seconds: float) -> int:
    return round(1000.0 * seconds)
