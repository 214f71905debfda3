"""A batch of simulated questions, behind the single and the vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from inframind_gym.envs.checks import check_options
from inframind_gym.envs.coordination.config import CoordinationConfig, coordination_config
from inframind_gym.envs.coordination.context import CoordinationContext, CoordinationSpec, contexts
from inframind_gym.envs.coordination.observation import HIGH, LOW, observe
from inframind_gym.envs.observations import ObservationForm
from inframind_gym.envs.teams import TeamSimulation, term_infos
from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.rules import FALLBACK, TERMS, Ints
from inframind_gym.teams.coordination.scenarios import Scenario, find_scenario
from inframind_gym.teams.coordination.simulate import SimulatedQuestion
from inframind_gym.teams.coordination.state import (
    ANSWERED,
    FELL_BACK,
    OUT_OF_TIME,
    OVERFLOWED,
    CoordinationState,
)


class CoordinationSimulation(TeamSimulation):
    """E questions with the same settings.

    Args:
        config: the environment's arguments.
        num_envs: E.

    Attributes:
        settings: constants of the team.
        scenario: facts of the questions that are given; None: questions are drawn.
        question: what the agents do, and the truth.
        state: what is done, and what is open.
        terms: (E, 5) terms of the last step's reward, in the order of `rules.TERMS`.
        action: (E,) what was carried out in the last step; FALLBACK where it was forced.

    Raises:
        ConfigError: there is no such team.
    """

    config_of = staticmethod(coordination_config)

    def __init__(self, config: CoordinationConfig, num_envs: int) -> None:
        form = ObservationForm(spaces.Box(LOW, HIGH), None)
        super().__init__(num_envs, form, spaces.Discrete(rules.NUM_ACTIONS))
        self.config = config
        self.scenario: Scenario | None = None
        self.settings = config.settings()
        self.question = SimulatedQuestion(
            self.settings,
            num_envs,
            conversation=float(config.conversation),
            noise=config.noise,
            newest_only=config.trim == "newest",
        )
        seqs = self.settings.server.max_num_seqs
        self.state = CoordinationState(self.settings, num_envs, seqs)
        self.terms = np.zeros((num_envs, len(TERMS)))
        self.action = np.zeros(num_envs, np.int64)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Actions that are open, (E, 15)."""
        return self.state.mask

    def set_options(self, options: dict[str, Any] | None) -> None:
        """Take the options of a reset, for the episodes until the next one.

        Raises:
            ConfigError: an option is unknown, or there is no such scenario.
        """
        name = check_options(options, ("scenario",)).get("scenario")
        self.scenario = None if name is None else find_scenario(str(name))

    def start(
        self,
        rows: Ints,
        generators: Sequence[np.random.Generator],
        observations: NDArray[np.float32],
    ) -> None:
        """See `TeamSimulation`."""
        # `random_raw` is `integers(2**64, dtype=np.uint64)`, ten times as fast.
        keys = np.array([rng.bit_generator.random_raw() for rng in generators], np.uint64)
        question, scenario = self.question, self.scenario
        model = self.config.supervisor == "model"
        question.start(rows, keys, None if scenario is None else scenario.pinned)
        self.state.begin(
            rows,
            question.hint[rows],
            question.refers_to[rows] >= 0,
            question.history[rows].sum(axis=1),
            model=model or (scenario is not None and scenario.model),
        )
        self.terms[rows], self.action[rows] = 0.0, 0
        observations[rows] = observe(self.state, rows)

    def step_rows(
        self, rows: Ints, actions: NDArray[Any], observations: NDArray[np.float32]
    ) -> None:
        """See `TeamSimulation`; the actions are (E,) 0-14."""
        state, question = self.state, self.question
        began, tokens = state.elapsed_ms[rows], state.total_tokens[rows]
        carried = state.decide(rows, actions[rows])
        state.take(rows, carried, question.act(rows, carried, state))
        self.action[rows] = carried
        forced = state.forced(rows)
        if len(forced):
            if self.config.fallback:
                fall_back = np.full(len(forced), FALLBACK)
                state.take(forced, fall_back, question.act(forced, fall_back, state))
                self.action[forced] = FALLBACK
            else:
                state.over[forced] = True
        self.terms = np.zeros_like(self.terms)
        self.terms[rows] = self._rewards(rows, began, tokens)
        observations[rows] = observe(state, rows)

    def _rewards(self, rows: Ints, began: Ints, tokens: Ints) -> NDArray[np.float64]:
        state = self.state
        answer, attribution = self._scores(rows)
        unvalidated = (state.reason[rows] == ANSWERED) & ~state.judged[rows]
        return rules.reward_terms(
            state.elapsed_ms[rows] - began,
            state.total_tokens[rows] - tokens,
            answer,
            attribution,
            unvalidated,
            self.settings.reward,
        )

    def _scores(self, rows: Ints) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return score and attribution of the answers that were given, (k,); else zeros."""
        reason = self.state.reason[rows]
        score, attribution = self.question.scores(rows)
        answered, fell_back = reason == ANSWERED, (reason >= FELL_BACK) & (reason < OVERFLOWED)
        given = answered | (fell_back & (self.config.fallback | (reason == FELL_BACK)))
        return np.where(given, score, 0.0), np.where(answered, attribution, 0.0)

    # Results

    def over(self) -> NDArray[np.bool_]:
        """Return (E,) whether each episode has ended."""
        return self.state.over.copy()

    def rewards(self) -> NDArray[np.float64]:
        """Return (E,) rewards of the last step."""
        return np.asarray(self.terms.sum(axis=1))

    def infos(self) -> dict[str, Any]:
        """Return terms of the rewards, actions and reasons of the last step."""
        return {
            "rewards": term_infos(TERMS, self.terms),
            "action": self.action.copy(),
            "reason": self.state.reason.copy(),
        }

    def costs(self) -> NDArray[np.float64]:
        """Return (E,) how far past its deadline each episode ended, over it; 0 while it runs."""
        deadline = rules.deadline_ms(self.question.complexity, self.settings)
        late = rules.lateness(self.state.elapsed_ms, deadline)
        return np.where(self.state.over, late, 0.0)

    def summaries(self, rows: Ints) -> dict[str, NDArray[Any]]:
        """Return what episodes have come to, (k,) each.

        `success` is an answer without the fallback; `evidence` the share of the evidence that is
        at hand, `plain_evidence` what it would be without a rewriting; `lied` and `caught` count
        drafts with a hallucination, and those where a validation found it;
        `context_kept` is 0 where the exchange that the question refers to was trimmed,
        `exchange_used` 1 where the answer uses what it says; `trimmed_to_tokens` is the length of
        the conversation right after a trim, 0 without one.
        """
        state, question = self.state, self.question
        score, attribution = self._scores(rows)
        reason, decisions = state.reason[rows], np.maximum(state.iteration[rows], 1)
        deadline = rules.deadline_ms(question.complexity[rows], self.settings)
        exchange, facets = question.refers_to[rows], question.facets[rows]
        kept = question.kept[rows, np.maximum(exchange, 0)] | (exchange < 0)
        used = kept & (exchange >= 0) & question.covered[rows, 0] & (reason == ANSWERED)
        return {
            "answer_score": score,
            "attribution": attribution,
            "success": (reason == ANSWERED).astype(np.int64),
            "validated": (state.judged[rows] & (reason == ANSWERED)).astype(np.int64),
            "latency_s": state.elapsed_ms[rows] / 1000.0,
            "lateness": rules.lateness(state.elapsed_ms[rows], deadline),
            "forced": ((reason >= OUT_OF_TIME) & (reason < OVERFLOWED)).astype(np.int64),
            "tokens": state.total_tokens[rows],
            "supervisor_tokens": state.supervisor_tokens[rows],
            "decisions": state.iteration[rows],
            "overhead_ms": state.overhead_ms[rows] / decisions,
            "model_ms": state.model_ms[rows] / decisions,
            "evidence": question.evidence(rows).sum(axis=1) / facets,
            "plain_evidence": question.plain[rows].sum(axis=1) / facets,
            "lied": question.lied[rows],
            "caught": question.caught[rows],
            "context_kept": kept.astype(np.int64),
            "exchange_used": used.astype(np.int64),
            "over_context_tokens": np.maximum(state.over_threshold[rows], 0),
            "context_tokens": state.context[rows],
            "failures": state.failures[rows].sum(axis=1),
            "subtasks": state.subtasks[rows],
            "widest": state.widest[rows],
            "searches": state.searches[rows],
            "merged": state.merged[rows].astype(np.int64),
            "rewritten": state.rewritten[rows].astype(np.int64),
            "trimmed": state.trimmed[rows].astype(np.int64),
            "trimmed_to_tokens": state.trimmed_to[rows],
        }

    def contexts(self, rows: Ints, *, truth: bool = False) -> CoordinationContext:
        """Return the input of a policy; `truth` adds the questions, for bounds alone."""
        return contexts(self.state, rows, self.question if truth else None)

    def spec(self) -> CoordinationSpec:
        """Return the facts of the run that a policy is reset with."""
        exact = not self.config.noise and not self.question.history.any()
        exact = exact and not self.state.model.any()
        return CoordinationSpec(self.settings, self.state.max_num_seqs, exact)
