"""A bound: the exact optimum, which knows the question and how good its draft is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inframind_gym.envs.coordination.context import CoordinationContext, CoordinationSpec
from inframind_gym.errors import ConfigError
from inframind_gym.policies.coordination.protocol import BaseCoordinationPolicy
from inframind_gym.teams.coordination.optimum import (
    FLAWED,
    UNJUDGED,
    VALID,
    Facts,
    Position,
    Solution,
    facts_of,
)
from inframind_gym.teams.coordination.rules import Ints


class OptimalPolicy(BaseCoordinationPolicy):
    """The best action by dynamic programming (`inframind_gym.teams.coordination.optimum`).

    Raises:
        ConfigError: lengths vary, there is a conversation, or a model decides.
    """

    name = "optimum"
    bound = True
    sees_truth = True

    def reset(self, spec: CoordinationSpec, seeds: Sequence[int]) -> None:
        """Forget the solutions of other settings.

        Raises:
            ConfigError: there is no exact optimum.
        """
        super().reset(spec, seeds)
        if not spec.is_exact:
            raise ConfigError(
                "policy 'optimum' solves single questions whose calls have one length and never "
                "fail: noise=False, without a conversation or a model as supervisor. Leave it out"
            )
        self._solutions: dict[Facts, Solution] = {}

    def choose(self, context: CoordinationContext, rows: Ints) -> Ints:
        """Return the optimal actions, (n,)."""
        assert context.truth is not None
        question, at = context.truth
        action = np.zeros(len(rows), np.int64)
        for i, row in enumerate(at.tolist()):
            facts = facts_of(question, row)
            if facts not in self._solutions:
                spec = self.spec
                self._solutions[facts] = Solution(spec.settings, facts, spec.max_num_seqs)
            covered = int(question.covered[row].sum())
            draft = covered, bool(question.hallucinated[row]), bool(question.unsourced[row])
            judged = VALID if context.valid[i] else FLAWED
            position = Position(
                elapsed=int(context.elapsed_ms[i]),
                iteration=int(context.iteration[i]),
                rewritten=bool(context.rewritten[i]),
                merged=bool(context.merged[i]),
                waiting=int(context.pending[i]) if context.planned[i] else -1,
                searched=_bits(context.searched[i]),
                found=_bits(question.found[row]),
                searches=min(int(context.searches[i]), 2),
                docs=int(context.docs[i]),
                duplicates=int(context.duplicates[i]),
                unread=int(question.unread[row]),
                draft=draft if context.drafted[i] else None,
                judged=judged if context.judged[i] else UNJUDGED,
                regenerations=int(context.regenerations[i]),
            )
            action[i] = self._solutions[facts].solve(position)[1]
        return action


def _bits(flags: Ints) -> int:
    return sum(1 << i for i, flag in enumerate(flags.tolist()) if flag)
