"""Calls of simulated agents: how long they take, what they read, whether they fail.

All draws are functions of the question's key and of their place in it: the agent and the number of
its call.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from inframind_gym.simulator.rng import uniform_array
from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.question import Question
from inframind_gym.teams.coordination.rules import RETRIEVAL, SYNTHESIS, Bools, Floats, Ints
from inframind_gym.teams.coordination.settings import AGENTS

STREAM_CALL: Final = 61  # of random numbers, apart from those of `simulator.rng`
WRITER: Final = len(AGENTS)  # the synthesis agent when it writes; a row of calls of its own
CALLS: Final = 64  # places of draws of an agent
DRAWS: Final = np.arange(9, dtype=np.int64)  # of a call: failure, slow, length, 6 outcomes
_TIMEOUT, _GARBAGE = 1, 2  # places in FAILURES


class Calls(NamedTuple):
    """Calls of agents: (k,) each."""

    prompt: Ints
    seconds: Floats
    completion: Ints
    failure: Ints
    luck: Floats  # (k, 6) draws of their outcomes


class CallingQuestion(Question):
    """n questions whose agents can be called; arguments and attributes are those of `Question`."""

    def _draw(self, rows: Ints, agents: Ints, number: Ints, lengths: Ints, prompt: Ints) -> Calls:
        """Draw calls of agents (k,), WRITER included, by their numbers."""
        failures, limit = self.settings.failures, self.settings.limits.call_timeout_s
        place = agents * CALLS + number
        u = uniform_array(self.keys[rows, None], STREAM_CALL, place[:, None], DRAWS)
        factor = self._factors[(u[:, 2:3] > self._weights).sum(axis=1)]
        completion = np.maximum(np.rint(lengths * factor), 1.0).astype(np.int64)
        seconds = rules.call_s(prompt, completion, self.settings.server)
        failure = np.zeros(len(rows), np.int64)
        if self.noise:
            seconds = np.where(u[:, 1] < failures.slow, failures.slow_factor * seconds, seconds)
            failure[u[:, 0] < failures.timeout + failures.garbage] = _GARBAGE
            failure[u[:, 0] < failures.timeout] = _TIMEOUT
        who = np.where(agents == WRITER, SYNTHESIS, agents)
        failure[(seconds > limit) | (who == self.timing_out[rows])] = _TIMEOUT
        late = failure == _TIMEOUT
        seconds, completion = np.where(late, limit, seconds), np.where(late, 0, completion)
        return Calls(prompt, seconds, completion, failure, u[:, 3:])

    def _call(self, rows: Ints, agent: int, lengths: Any, prompt: Any) -> Calls:
        """Draw the next call of one agent in each row; every prompt begins with what is kept."""
        number = self.calls[rows, agent]
        self.calls[rows, agent] += 1
        agents, lengths = np.full(len(rows), agent), np.broadcast_to(lengths, len(rows))
        return self._draw(rows, agents, number, lengths, prompt + self.stale[rows])

    def _wave(
        self, rows: Ints, used: Bools, max_num_seqs: int
    ) -> tuple[Floats, Ints, Ints, Floats]:
        """Draw up to three calls of the retrieval agent at once, which read a stale prefix once.

        Returns:
            (k,) seconds and tokens of the waves, (k, 3) failures, (k, 3, 6) draws.
        """
        tokens, shape = self.settings.tokens, used.shape
        row, slot = np.nonzero(used)
        number = self.calls[rows, RETRIEVAL][row] + slot
        self.calls[rows, RETRIEVAL] += used.sum(axis=1)
        stale = self.stale[rows]
        prompt, length = tokens.query + stale[row], np.full(len(row), tokens.retrieval)
        calls = self._draw(rows[row], np.full(len(row), RETRIEVAL), number, length, prompt)
        completion, failure = np.zeros((2, *shape), np.int64)
        alone, luck = np.zeros(shape), np.zeros((*shape, 6))
        completion[row, slot], failure[row, slot] = calls.completion, calls.failure
        alone[row, slot], luck[row, slot] = calls.seconds, calls.luck
        prompts = np.where(used, tokens.query, 0)
        prompts[:, 0] += stale
        self.stale[rows[failure[:, 0] == 0]] = 0
        together = rules.wave_s(prompts, completion, used, self.settings.server, max_num_seqs)
        seconds = np.maximum(together, alone.max(axis=1))
        return seconds, completion.sum(axis=1), failure, luck
