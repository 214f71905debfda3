"""The exact optimum of simulated questions: value iteration over the rules.

Questions whose calls have one length and never fail, without a conversation and a model that
decides, are determined but for the draws of drafts and validations. Their states are a finite tree
by the number of decisions. All questions are expanded together, a layer a decision, by the rules
and the simulation themselves; drafts and verdicts are enumerated with their chances, and values go
back from the last layer. The optimum knows the question, what every search would find, and how
good a draft is; it knows no draw of a draft or a validation before it is made. So nothing scores
more on average, and a policy that plays it scores as much.
"""

from __future__ import annotations

from copy import copy
from math import comb
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.rules import Bools, CoordinationState, Floats, Ints
from inframind_gym.teams.coordination.settings import AGENTS, STRATEGIES, CoordinationSettings
from inframind_gym.teams.coordination.simulate import (
    CALLS,
    FACETS,
    SUBTASK,
    WRITER,
    SimulatedQuestion,
)

_BITS: Final = 1 << np.arange(36, dtype=np.int64)
# Drafts: pieces that are new in them, whether they hallucinate, whether they leave sources out.
_DRAFTS: Final = np.array([(n, h, u) for n in range(FACETS + 1) for h in (0, 1) for u in (0, 1)])
_CHANCES: Final = np.array([[comb(r, n) for n in range(FACETS + 1)] for r in range(FACETS + 1)])
_FIELDS: Final = (
    *("elapsed_ms", "iteration", "rewritten", "merged", "planned", "pending", "docs"),
    *("duplicates", "drafted", "judged", "valid", "regenerations", "retries"),
)
RowsT = TypeVar("RowsT")


class _Given(SimulatedQuestion):
    """Questions whose drafts and verdicts are given; the fallback's draft uses all that it has."""

    draft: Floats  # (n, 6) draws of the next draft
    verdict: Floats  # (n,) draw of the next validation

    def draw_luck(self, rows: Ints, places: Ints) -> Floats:
        """Return the given draws, (k, 9)."""
        found = np.zeros((len(rows), 9))
        judges, writes = places // CALLS == rules.VALIDATION, places // CALLS == WRITER
        found[judges, 3:] = self.verdict[rows[judges], None]
        found[writes, 3:] = self.draft[rows[writes]]
        return found


class _Layer(NamedTuple):
    """Decisions of some states: (k,) each, but for `children`."""

    parent: Ints  # state that decides
    action: Ints
    chance: Floats  # of what came of it
    reward: Floats
    child: Ints  # place of the state that follows; -1 for an end
    states: int  # number of parents


class Optimum:
    """Values and best actions of questions, solved as far as they are asked for."""

    def __init__(self, settings: CoordinationSettings, max_num_seqs: int) -> None:
        self.settings, self._max_num_seqs = settings, max_num_seqs
        self._known: dict[bytes, tuple[float, int]] = {}

    def solve(
        self, question: SimulatedQuestion, rows: Ints, state: CoordinationState
    ) -> tuple[Floats, Ints]:
        """Return the rewards to come under the best actions, and the best next ones, (k,) each."""
        given = _Given(self.settings, 0, noise=False)
        vars(given).update(vars(_rows(question, rows)))
        keys = _keys(given, state)
        names = [key.tobytes() for key in keys]
        new = np.array([name not in self._known for name in names])
        if new.any():
            _, first = np.unique(keys[new], axis=0, return_index=True)
            at = np.flatnonzero(new)[first]
            self._iterate(_rows(given, at), _rows(state, at))
        values, actions = zip(*(self._known[name] for name in names), strict=True)
        return np.array(values), np.array(actions)

    def _iterate(self, question: _Given, state: CoordinationState) -> None:
        """Expand states layer by layer, then take the values back."""
        layers, keys = [], [_keys(question, state)]
        while len(keys[-1]):
            layer, question, state = self._expanded(question, state)
            layers.append(layer)
            keys.append(_keys(question, state))
        values = np.zeros(0)
        for layer, names in zip(reversed(layers), reversed(keys[:-1]), strict=True):
            worth = np.full((layer.states, rules.NUM_ACTIONS), -np.inf)
            worth[layer.parent, layer.action] = 0.0
            to_come = np.append(values, 0.0)[layer.child]
            np.add.at(worth, (layer.parent, layer.action), layer.chance * (layer.reward + to_come))
            values, best = worth.max(axis=1), worth.argmax(axis=1)
            solved = zip(values.tolist(), best.tolist(), strict=True)
            self._known.update(zip((name.tobytes() for name in names), solved, strict=True))

    def _expanded(
        self, question: _Given, state: CoordinationState
    ) -> tuple[_Layer, _Given, CoordinationState]:
        """Try every action; returns the decisions, and the states that follow, each once."""
        tried = self.worth_trying(question, state)
        parent, action = np.nonzero(tried)
        writes = np.isin(action, (rules.VALIDATE, rules.ANSWER)) & ~state.drafted[parent]
        writes |= action == rules.REGENERATE
        # Drafts in the order of _DRAFTS, verdicts: valid, flawed.
        number = np.where(writes, len(_DRAFTS), 1) * np.where(action == rules.VALIDATE, 2, 1)
        pair = np.repeat(np.arange(len(parent)), number)
        place = np.arange(len(pair)) - np.repeat(np.cumsum(number) - number, number)
        parent, action, writes = parent[pair], action[pair], writes[pair]
        draft, is_valid = _DRAFTS[place % len(_DRAFTS)], place < number[pair] // 2
        after, q = _rows(state, parent), _rows(question, parent)
        rows, again = np.arange(len(parent)), action == rules.REGENERATE
        warned = q.is_warned(rows, again, after)
        has, kept, uses = q.to_write(rows, warned, after)
        lies, bare = q.draft_chances(rows, has, warned)
        rest = has & ~kept
        left, new = rest.sum(axis=1), draft[:, 0]
        chance = _CHANCES[left, new] * uses[:, 1] ** new
        chance *= (1.0 - uses[:, 1]) ** np.maximum(left - new, 0)
        chance *= np.where(draft[:, 1], lies, 1.0 - lies) * np.where(draft[:, 2], bare, 1.0 - bare)
        chance = np.where(writes, chance, 1.0)
        q.draft = np.ones((len(rows), 6))
        q.draft[:, :FACETS] = ~(rest & (np.cumsum(rest, axis=1) <= new[:, None]))
        q.draft[:, FACETS : FACETS + 2] = 1 - draft[:, 1:]
        q.verdict = is_valid.astype(np.float64)
        began, tokens = after.elapsed_ms.copy(), after.total_tokens.copy()
        done = after.decide(rows, action)
        after.take(rows, done, q.act(rows, done, after))
        judged = action == rules.VALIDATE
        sound = (1.0 - q.issue_chances(rows)[1]).prod(axis=1)
        chance *= np.where(judged, np.where(is_valid, sound, 1.0 - sound), 1.0)
        forced = after.forced(rows)
        fall_back = np.full(len(forced), rules.FALLBACK)
        after.take(forced, fall_back, q.act(forced, fall_back, after))
        reward = self._rewards(q, after, began, tokens)
        going = np.flatnonzero(~after.over & (chance > 0.0))
        _, first, inverse = np.unique(
            _keys(q, after)[going], axis=0, return_index=True, return_inverse=True
        )
        child = np.full(len(rows), -1)
        child[going] = inverse.ravel()
        layer = _Layer(parent, action, chance, reward, child, len(tried))
        return layer, _rows(q, going[first]), _rows(after, going[first])

    def _rewards(
        self, question: _Given, state: CoordinationState, began: Ints, tokens: Ints
    ) -> Floats:
        """Return expected rewards of decisions, (k,); only the fallback's draft is not known."""
        rows, draft = np.arange(len(began)), self.settings.draft
        answered = state.reason == rules.ANSWERED
        score, attribution = question.scores(rows)
        lies, _ = question.draft_chances(rows, question.covered, False)
        by_fallback = question.covered.sum(axis=1) * draft.uses[0] / question.facets
        by_fallback *= 1.0 - lies * (1.0 - draft.hallucination_keeps)
        terms = rules.reward_terms(
            state.elapsed_ms - began,
            state.total_tokens - tokens,
            np.where(answered, score, np.where(state.over, by_fallback, 0.0)),
            np.where(answered, attribution, 0.0),
            answered & ~state.judged,
            self.settings.reward,
        )
        return np.asarray(terms.sum(axis=1))

    def worth_trying(self, question: SimulatedQuestion, state: CoordinationState) -> Bools:
        """Return the open actions without those that another one is never worse than, (k, 15).

        These are ROUTE, which tells nothing new; searches, plans and rewritings that cannot bring
        new evidence, once there is a passage; and a strategy that finds no more and is no slower.
        """
        tried = state.mask.copy()
        tried[:, rules.ROUTE] = tried[:, rules.TRIM] = False
        rows, waits = np.arange(len(tried)), state.planned & (state.pending > 0)
        new = _hits(question) & ~question.found[:, None, None, None]
        now = new[rows, state.rewritten.astype(np.int64)]  # (k, 2, 3, 3)
        helps = now[:, 1].any(axis=(1, 2)) | (~state.rewritten & new[:, 1, 1].any(axis=(1, 2)))
        tried[:, rules.PLAN] &= helps
        tried[:, rules.REWRITE] &= (new[:, 0] != new[:, 1]).any(axis=(1, 2, 3))
        hits = np.where(waits[:, None, None], now[:, 1], now[:, 0])
        closed = ~waits[:, None] & state.searched
        seconds = [self.settings.search_s[name] for name in STRATEGIES]
        for one in range(len(STRATEGIES)):
            best = hits[:, one].any(axis=1) | (waits | (state.docs == 0))
            for other in range(len(STRATEGIES)):
                if (seconds[other], other) < (seconds[one], one):
                    less = ~(hits[:, one] & ~hits[:, other]).any(axis=1)
                    best &= ~(less & ~closed[:, other])
            tried[:, rules.RETRIEVE + one] &= best
            tried[:, rules.PARALLEL + one] &= best
        return tried


def _rows(whole: RowsT, rows: Ints) -> RowsT:
    """Return some rows of questions or states, as copies."""
    made = copy(whole)
    for name, part in vars(whole).items():
        if isinstance(part, np.ndarray) and not name.startswith("_"):
            setattr(made, name, part[rows])
    return made


def _hits(question: SimulatedQuestion) -> Bools:
    """Return the evidence that searches find: plain or rewritten, whole or sub-task, strategy."""
    level = np.stack([question.complexity, np.full_like(question.complexity, SUBTASK)], axis=1)
    chance = question.chances[:, level, question.kind[:, None]]  # (2, k, 2, 3)
    found = question.luck[:, None, None, None] < np.moveaxis(chance, 0, 1)[..., None]
    return np.asarray(found & (np.arange(FACETS) < question.facets[:, None, None, None, None]))


def _keys(question: SimulatedQuestion, state: CoordinationState) -> NDArray[np.int64]:
    """Return what tells states apart, a row each; questions of the same facts are the same."""
    hits = _hits(question).reshape(len(question.keys), len(_BITS)) @ _BITS
    draft = question.covered.sum(axis=1) * 4 + question.hallucinated * 2 + question.unsourced
    columns: list[Any] = [hits, question.complexity, question.gap, question.unread]
    columns += [question.found @ _BITS[:FACETS], state.searched @ _BITS[: len(STRATEGIES)]]
    columns += [np.minimum(state.searches, 2), np.where(state.drafted, draft, -1)]
    columns += [state.failed @ _BITS[: len(AGENTS)], *(getattr(state, name) for name in _FIELDS)]
    return np.stack(columns, axis=1).astype(np.int64)
