"""InfraMind-Coordination-v0: what a supervisor of five agents does next before a deadline."""

from __future__ import annotations

from itertools import compress
from typing import Annotated, Any, Final, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from inframind_gym.configs import Fraction, StrictModel, within
from inframind_gym.envs import core
from inframind_gym.envs.core import Env, Float32s, ObservationForm, Rngs, Simulation, VectorEnv
from inframind_gym.envs.render import BAD, RUNNING, Bar, Frame, Headline, Table
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination import settings as constants
from inframind_gym.teams.coordination.rules import ANSWERED, FALLBACK, REASONS, CoordinationState
from inframind_gym.teams.coordination.simulate import SCENARIOS, Pinned, SimulatedQuestion
from inframind_gym.teams.state import Bools, Columns, Ints, keys_of


class CoordinationConfig(StrictModel):
    """Arguments of `CoordinationEnv`, described there, with the values that they may have."""

    team: str = constants.DEFAULT
    conversation: bool | Fraction = False
    supervisor: Literal["rule", "model"] = "rule"
    max_num_seqs: Annotated[int, within(1, 64)] | None = None
    prefill_tokens_per_s: Annotated[float, within(1.0, 1e6)] | None = None
    noise: bool = True
    fallback: bool = True

    def settings(self) -> constants.CoordinationSettings:
        """Return the team's constants with the server of these arguments.

        Raises:
            ConfigError: there is no such team.
        """
        team, fields = constants.load_settings(self.team), constants.ServerSettings.model_fields
        changes = self.model_dump(include=set(fields), exclude_none=True)
        server = team.server.model_copy(update=changes)
        return team.model_copy(update={"server": server})


# Observations

_ONE_HOT: Final = np.vstack([np.eye(3), np.zeros(3)])  # the last row is that of -1


def _deadline_ms(state: CoordinationState) -> Ints:
    """Return the deadline in ms by each question's complexity as far as it is known, (n,)."""
    complexity = state.known_complexity(np.arange(state.num_rows))
    return rules.deadline_ms(complexity, state.settings)


# Functions of a state of k rows, in the order of the class's table; see `Columns`.
_COLUMNS: Final = Columns(
    {
        "hint": (3, 0, 1, lambda state: _ONE_HOT[state.hint]),
        "refers": (1, 0, 1, lambda state: state.refers),
        "routed": (1, 0, 1, lambda state: state.routed),
        "strategy": (3, 0, 1, lambda state: _ONE_HOT[state.strategy]),
        "complexity": (3, 0, 1, lambda state: _ONE_HOT[state.complexity]),
        "needs_planning": (1, 0, 1, lambda state: state.needs_planning),
        "confidence": (1, 0, 1, lambda state: state.confidence),
        "planned": (1, 0, 1, lambda state: state.planned),
        "pending": (1, 0, 1, lambda state: state.pending / 3.0),
        "done": (1, 0, 1, lambda state: state.planned * (state.subtasks - state.pending) / 3.0),
        "searched": (3, 0, 1, lambda state: state.searched),
        "searches": (1, 0, 4, lambda state: state.searches / 3.0),
        "docs": (1, 0, 4, lambda state: state.docs / state.settings.passages.most),
        "score": (1, 0, 4, lambda state: state.score),
        "duplicates": (1, 0, 4, lambda state: state.duplicates / np.maximum(state.docs, 1)),
        "rewritten": (1, 0, 1, lambda state: state.rewritten),
        "merged": (1, 0, 1, lambda state: state.merged),
        "drafted": (1, 0, 1, lambda state: state.drafted),
        "judged": (1, 0, 1, lambda state: state.judged),
        "valid": (1, 0, 1, lambda state: state.valid),
        "verdict": (1, 0, 1, lambda state: state.verdict),
        "issues": (3, 0, 1, lambda state: state.issues),
        "severity": (1, 0, 1, lambda state: state.severity / 3.0),
        "regenerations": (1, 0, 1, lambda state: state.regenerations / rules.MOST_REGENERATIONS),
        "retries": (1, 0, 1, lambda state: state.retries / max(state.limits.max_retries, 1)),
        "failed": (5, 0, 1, lambda state: state.failed),
        "context": (1, 0, 2, lambda state: state.context / state.settings.context.max_tokens),
        "long": (1, 0, 2, lambda state: state.context > state.settings.context.trim_above_tokens),
        "trimmed": (1, 0, 2, lambda state: state.trimmed),
        "of_deadline": (1, 0, 2, lambda state: state.elapsed_ms / _deadline_ms(state)),
        "of_hard_s": (1, 0, 2, lambda state: state.elapsed_ms / (1000.0 * state.limits.hard_s)),
        "setup": (1, 0, 5, lambda state: state.setup_ms / (1000.0 * state.limits.decision_s)),
        "agent_s": (1, 0, 5, lambda state: state.agent_ms / 1000.0),
        "iteration": (1, 0, 1, lambda state: state.iteration / state.limits.max_iterations),
        "tokens": (1, 0, 4, lambda state: state.total_tokens / 4096.0),
    }
)
OBSERVATION_SIZE: Final = len(_COLUMNS.box.low)


def observe(state: CoordinationState, rows: Ints) -> Float32s:
    """Return the observations of some questions, (k, 49)."""
    return _COLUMNS.of(state.view(rows))


# The batch of questions


class CoordinationSimulation(Simulation):
    """E questions with the same settings; NumPy computes all rows at once.

    Attributes:
        settings: constants of the team.
        scenario: fixed facts of the next questions; None: they are drawn.
        question: the simulated questions, which answer the agents' calls; latent.
        state: progress, times and masks, as the supervisor sees them.
        action: (E,) action carried out in the last step; FALLBACK where it was forced.

    Raises:
        ConfigError: there is no such team.
    """

    config: CoordinationConfig
    term_names = rules.TERMS

    def __init__(self, config: CoordinationConfig, num_envs: int, num_threads: int = 1) -> None:
        form = ObservationForm(_COLUMNS.box)
        super().__init__(num_envs, form, spaces.Discrete(rules.NUM_ACTIONS))
        self.config = config
        self.scenario: Pinned | None = None
        self.settings = config.settings()
        self.question = SimulatedQuestion(
            self.settings, num_envs, conversation=float(config.conversation), noise=config.noise
        )
        self.state = CoordinationState(self.settings, num_envs)
        self.action = np.zeros(num_envs, np.int64)

    @property
    def mask(self) -> Bools:
        """Actions that are open, (E, 15)."""
        return self.state.mask

    def set_options(self, options: dict[str, Any] | None) -> None:
        """Take the options of a reset, for the episodes until the next one.

        Raises:
            ConfigError: an option is unknown, or there is no such scenario.
        """
        name = core.check_options(options, ("scenario",)).get("scenario")
        if name is not None and str(name) not in SCENARIOS:
            raise ConfigError(unknown("scenario", str(name), SCENARIOS))
        self.scenario = None if name is None else SCENARIOS[str(name)]

    def reset(self, rows: Ints, rngs: Rngs, observations: Float32s, *, first: bool = True) -> None:
        """Begin new episodes; see `Simulation`."""
        question, scenario = self.question, self.scenario
        model = self.config.supervisor == "model"
        question.start(rows, keys_of(rngs), scenario)
        self.state.begin(
            rows,
            question.hint[rows],
            question.refers_to[rows] >= 0,
            question.history[rows].sum(axis=1),
            model=model or (scenario is not None and scenario.model),
        )
        self.terms[rows], self.action[rows], self.terminated[rows] = 0.0, 0, False
        observations[rows] = observe(self.state, rows)

    def step(self, rows: Ints, actions: NDArray[Any], observations: Float32s) -> None:
        """Carry out decisions of `rows`; the actions are (E,) 0-14."""
        state, question = self.state, self.question
        began, tokens = state.elapsed_ms[rows], state.total_tokens[rows]
        carried_out = state.decide(rows, actions[rows])
        state.take(rows, carried_out, question.act(rows, carried_out, state))
        self.action[rows] = carried_out
        forced = state.forced(rows)
        if len(forced):
            if self.config.fallback:
                fall_back = np.full(len(forced), FALLBACK)
                state.take(forced, fall_back, question.act(forced, fall_back, state))
                self.action[forced] = FALLBACK
            else:
                state.over[forced] = True
        self.terms = np.zeros_like(self.terms)
        answer, attribution = self._scores(rows)
        self.terms[rows] = rules.reward_terms(
            state.elapsed_ms[rows] - began,
            state.total_tokens[rows] - tokens,
            answer,
            attribution,
            (state.reason[rows] == ANSWERED) & ~state.judged[rows],
            self.settings.reward,
        )
        observations[rows] = observe(state, rows)
        self.rewards = np.asarray(self.terms.sum(axis=1))
        deadline = rules.deadline_ms(question.complexity, self.settings)
        self.costs = np.where(state.over, rules.lateness(state.elapsed_ms, deadline), 0.0)
        self.terminated = state.over.copy()

    def _scores(self, rows: Ints) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return score and attribution of the answers, (k,) each; 0 where there is none."""
        reason = self.state.reason[rows]
        score, attribution = self.question.scores(rows)
        answered = reason == ANSWERED
        fell_back = (reason >= rules.FELL_BACK) & (reason < rules.OVERFLOWED)
        has_score = answered | (fell_back & (self.config.fallback | (reason == rules.FELL_BACK)))
        return np.where(has_score, score, 0.0), np.where(answered, attribution, 0.0)

    # Results

    def infos(self) -> dict[str, Any]:
        """Return actions and reasons of the last step."""
        return {"action": self.action.copy(), "reason": self.state.reason.copy()}

    def info(self) -> dict[str, Any]:
        """Return what was carried out and why the episode ended."""
        done = int(self.action[0])
        return {
            "carried_out": "" if done == rules.NOTHING else rules.NAMES[done],
            "reason": REASONS[int(self.state.reason[0])],
        }

    def summaries(self, rows: Ints, *_: Any) -> dict[str, NDArray[Any]]:
        """Return the results of episodes, (k,) each.

        `success` is an answer without the fallback; `evidence` is the share of the evidence that
        is at hand, `plain_evidence` what it would be without a rewriting; `lied` counts drafts with
        a hallucination, `caught` those of them where a validation found it;
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
        forced = (reason >= rules.OUT_OF_TIME) & (reason < rules.OVERFLOWED)
        return {
            "answer_score": score,
            "attribution": attribution,
            "success": (reason == ANSWERED).astype(np.int64),
            "validated": (state.judged[rows] & (reason == ANSWERED)).astype(np.int64),
            "latency_s": state.elapsed_ms[rows] / 1000.0,
            "lateness": rules.lateness(state.elapsed_ms[rows], deadline),
            "forced": forced.astype(np.int64),
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

    def contexts(self, rows: Ints, *, truth: bool = False) -> CoordinationState:
        """Return the input of a policy; nothing of it is latent."""
        return self.state.rows(rows)

    def policy_spec(self) -> constants.CoordinationSettings:
        """Return the facts of the run that a policy is reset with: the team's constants."""
        return self.settings

    def describe(self, action: Any) -> tuple[str, str]:
        """Return an action in words, and its time."""
        return rules.NAMES[int(action)], f"at {int(self.state.elapsed_ms[0]):,} ms"

    def frame(self) -> Frame:
        """Return a table of what the supervisor knows, and the deadlines."""
        state, limits = self.state, self.settings.limits
        complexity = constants.COMPLEXITIES[int(state.complexity[0])]
        routed = f"{complexity}, {constants.STRATEGIES[int(state.strategy[0])]}"
        plan = f"{state.subtasks[0]} sub-tasks, {state.pending[0]} wait"
        words = constants.COMPLEXITIES[int(state.hint[0])] + ", refers back" * bool(state.refers[0])
        passages = f"{state.docs[0]} of {state.searches[0]} searches"
        answer = "not validated" if state.drafted[0] else "-"
        if state.judged[0]:
            issues = ", ".join(compress(constants.ISSUES, state.issues[0]))
            answer = "valid" if state.valid[0] else issues.replace("_", " ")
        facts = (
            ("words", words),
            ("router", routed if state.routed[0] else "-"),
            ("plan", plan if state.planned[0] else "-"),
            ("passages", passages + ", merged" * bool(state.merged[0])),
            ("answer", answer),
            ("failed", ", ".join(compress(constants.AGENTS, state.failed[0])) or "-"),
            ("retries", f"{state.retries[0]} of {limits.max_retries}"),
            ("context", f"{state.context[0]:,} tokens"),
            ("tokens", f"{state.total_tokens[0]:,}"),
        )
        deadline_ms = float(_deadline_ms(state)[0])
        elapsed_ms, hard_ms = int(state.elapsed_ms[0]), 1000.0 * limits.hard_s
        late = elapsed_ms > deadline_ms
        words = f"{elapsed_ms:,} of {deadline_ms:,.0f} ms, {hard_ms:,.0f} at most"
        bar = Bar(elapsed_ms / hard_ms, words, BAD if late else RUNNING)
        kind = "conversation" if self.config.conversation else "single question"
        supervisor = f"supervisor: a {self.config.supervisor}"
        return Frame(
            "InfraMind Coordination",
            (kind, supervisor, f"{self.settings.server.max_num_seqs} calls at once"),
            f"{elapsed_ms / 1000.0:.2f} s",
            REASONS[int(state.reason[0])] or "running",
            (Table("Known", ("",), facts),),
            Headline("Time", "past its deadline" if late else "", bar),
            results=f"decision {state.iteration[0]} of {limits.max_iterations}",
        )


class CoordinationEnv(Env):
    """Decide what router, planner, retrieval, synthesis and validation do before a deadline.

    ## Description

    A question is answered from passages, by five agents on one server. A router names a strategy of
    retrieval and guesses how complex the question is; a planner splits it into sub-tasks; searches
    bring passages, one by one or up to three at once; a synthesis merges what several searches
    brought; the answer is written and may be validated, and written again. All of it takes time on
    a server that reads 1,050 and writes 130 tokens a second, and the answer is wanted within 1.5 s
    where the question is simple, within 2 s else, within 3 s in any case. Calls fail or are slow
    now and then. The rules are in `inframind_gym.teams.coordination.rules`, the
    simulated question is in `.simulate`, the constants are in `envs_configs/teams`.

    ## Action Space

    `Discrete(15)`:

    | action | |
    |---|---|
    | 0 | route |
    | 1 | plan |
    | 2-4 | search for the next sub-task, or for the whole question: vector, hybrid, graphrag |
    | 5-7 | search for up to three sub-tasks at once: vector, hybrid, graphrag |
    | 8 | rewrite the question for the searches |
    | 9 | synthesize: merge the passages of several searches |
    | 10 | validate the answer, which is written first where there is none |
    | 11 | trim the conversation to 108,800 tokens |
    | 12 | answer: pass the answer on, or write it and pass it on |
    | 13 | write the answer again, told of the issues |
    | 14 | fall back: one search and a short answer |

    `info["action_mask"]` marks the actions that are open. An action that is not open does nothing
    and takes an iteration.

    ## Observation Space

    `Box(49,)`, what the application sees, too, never the evidence or the score:

    | numbers | | range |
    |---|---|---|
    | 3 | complexity by the question's words: simple, medium, complex | 0..1 |
    | 1 | 1 where the question refers to an exchange before | 0..1 |
    | 1 | 1 once it is routed | 0..1 |
    | 3 | strategy that the router named: vector, hybrid, graphrag | 0..1 |
    | 3 | complexity that it named | 0..1 |
    | 2 | 1 where it asks for a plan; its confidence | 0..1 |
    | 3 | 1 once there is a plan; sub-tasks that wait, that are done, over 3 | 0..1 |
    | 3 | 1 for each strategy by which the whole question was searched for | 0..1 |
    | 4 | searches over 3; passages over 10; their mean score; share of duplicates | 0..4 |
    | 3 | 1 once the question is rewritten, the passages are merged, there is a draft | 0..1 |
    | 3 | 1 once the draft is validated, where it is valid; confidence of the validation | 0..1 |
    | 4 | issues by type; the worst severity, over 3 | 0..1 |
    | 2 | drafts written again, over 2; retries over 3 | 0..1 |
    | 5 | 1 for an agent whose last call failed | 0..1 |
    | 3 | tokens of the conversation over 131,072; 1 above 120,000; 1 once trimmed | 0..2 |
    | 2 | time over the known complexity's deadline, and over the hard deadline | 0..2 |
    | 2 | overhead of the last decision over 200 ms; time of its agents in seconds | 0..5 |
    | 1 | decisions over 10 | 0..1 |
    | 1 | tokens of all calls over 4,096 | 0..4 |

    ## Rewards and costs

    The answer's score (0-1), 0.2 for the share of its claims with a source, -0.1 if it was not
    validated, all at the end; -0.1 for every 2 s and -0.05 for every 4,096 tokens.
    The fallback earns its score alone. `info["rewards"]` holds the terms. `info["cost"]` is paid at
    the end: the time past the deadline of the question's complexity, over the deadline.

    ## Starting State

    A random question; in a conversation after five exchanges of up to 131,000 tokens, to one of
    which it may refer.

    ## Episode End

    Terminated by an answer, by the fallback, or with nothing where the conversation exceeds 131,072
    tokens. The fallback is forced after ten decisions, and as soon as it must begin to be there by
    3 s; what an agent is doing then is lost.

    ## Info

    "carried_out" is what was done, "" for nothing; "reason" is "" or one of answer, fallback,
    deadline, iterations, context. The last step adds "episode_cost", "episode_reward" and the
    numbers of `CoordinationSimulation.summaries`.

    ## Options of `reset`

    * `scenario`: "S1" to "S8" (`inframind_gym.teams.coordination.simulate.SCENARIOS`).

    ## Arguments

    All are JSON types.

    * `team`: name or path of the constants (`envs_configs/teams`).
    * `conversation`: whether there are exchanges before the question, or for what share of them.
    * `supervisor`: "rule", whose decisions take a millisecond, or "model", which reads what is new
      and writes 20 tokens at each decision.
    * `max_num_seqs`: calls that the server decodes together; None: of the constants (3).
    * `prefill_tokens_per_s`: rate at which the server reads; None: of the constants (1,050).
    * `noise`: whether lengths vary and calls fail.
    * `fallback`: whether there is a fallback when time is up; without one the answer is worth 0.
    * `render_mode`: None, "ansi" (text) or "rgb_array".

    ## Version History

    * v0: first version.
    """

    metadata: dict[str, Any] = Env.metadata | {"render_fps": 2}
    arguments = CoordinationConfig
    simulate = CoordinationSimulation


class CoordinationVectorEnv(VectorEnv):
    """`InfraMind-Coordination-v0` in a batch (`VectorEnv`); arguments as of `CoordinationEnv`.

    A scenario of `reset` is that of all rows until the next `reset`. In place of texts the infos
    have arrays: "action" (what was carried out, -1 for nothing) and "reason" (a place in
    `teams.coordination.rules.REASONS`).
    """

    single = CoordinationEnv
