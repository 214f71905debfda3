"""One run of the team: its parts made, the graph played, the summary."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inframind_gym.teams.assignment import rules, simulate
from inframind_gym.teams.assignment.answers import DrawnAnswers
from inframind_gym.teams.assignment.coordinator import FIXED_ROUTERS, QLearningCoordinator, Router
from inframind_gym.teams.assignment.graph import (
    ITERATIONS,
    MAX_TOKENS,
    Workflow,
    WorkflowState,
    compile_graph,
    initial_state,
)
from inframind_gym.teams.assignment.judge import LLMJudge
from inframind_gym.teams.assignment.model import AgentState, LLMProvider, all_actions, all_agents
from inframind_gym.teams.assignment.names import Arrivals, Ties, Variant
from inframind_gym.teams.assignment.settings import DEFAULT_TEAM
from inframind_gym.teams.assignment.states import StateMachine
from inframind_gym.teams.assignment.system import MAX_RPM, ProductionMultiAgentSystem
from inframind_gym.teams.assignment.tracker import LoadTracker
from inframind_gym.teams.llm.prices import Prices
from inframind_gym.teams.llm.service import EventLog, LLMService, NoLog
from inframind_gym.teams.llm.types import Provider


@dataclass(frozen=True)
class Options:
    """Settings of a run.

    Attributes:
        team: Name or path of the constants.
        iterations: Tasks of the training.
        seed: Seed of tasks, decisions and simulated answers.
        arrivals: Order in which tasks arrive.
        router: One of `names.ROUTERS`.
        variant: See `ProductionMultiAgentSystem`; "bandit" also trains with discount 0.
        ties: See `QLearningCoordinator`.
        epsilon: Probability of exploring at the start.
        epsilon_min: The least that it decays to.
        max_tokens: Most tokens of an agent's answer.
        max_rpm: Requests a minute in production.
    """

    team: str = DEFAULT_TEAM
    iterations: int = ITERATIONS
    seed: int = 0
    arrivals: Arrivals = "uniform"
    router: str = "q_learning"
    variant: Variant = "source"
    ties: Ties = "first"
    epsilon: float = rules.EPSILON
    epsilon_min: float = rules.EPSILON_MIN
    max_tokens: int = MAX_TOKENS
    max_rpm: int = MAX_RPM


@dataclass
class Run:
    """The parts of a run, and what came of its training.

    Attributes:
        options: Settings.
        service: The gateway.
        judge: Scores answers.
        router: Decides.
        tracker: Window of assignments.
        agents: Statistics of the agents.
        machine: State machine of the training.
        final: State of the graph at the end; None before it has been played.
        elapsed_s: Duration of the training: virtual where providers are simulated.
        costs: Calls, tokens and USD of the training, see `LLMService.get_cost_summary`.
    """

    options: Options
    service: LLMService
    judge: LLMJudge
    router: Router
    tracker: LoadTracker
    agents: dict[str, AgentState]
    machine: StateMachine
    log: EventLog
    final: WorkflowState | None = None
    elapsed_s: float = 0.0
    costs: dict[str, Any] = field(default_factory=dict)

    def train(self) -> WorkflowState:
        """Play the graph and return its last state."""
        workflow = Workflow(
            llm_service=self.service,
            judge=self.judge,
            coordinator=self.router,
            load_tracker=self.tracker,
            agents=self.agents,
            team=simulate.team(self.options.team),
            arrivals=self.options.arrivals,
            seed=self.options.seed,
            log=self.log,
            max_tokens=self.options.max_tokens,
            machine=self.machine,
        )
        play = compile_graph(workflow)
        self.machine.enter("GraphCompiled")
        started_s = time.monotonic()
        self.final = play(initial_state(self.options.iterations))
        self.elapsed_s = time.monotonic() - started_s
        if self.service.is_simulated:
            self.elapsed_s = self.virtual_s()
        self.costs = self.service.get_cost_summary()
        return self.final

    def virtual_s(self) -> float:
        """Return the sum of all latencies: the clock of a simulated run."""
        return float(sum(call["latency_s"] for call in self.service.call_log))

    def production(self, *, online_learning: bool = True) -> ProductionMultiAgentSystem:
        """Return the trained team as a system that serves requests."""
        options = self.options
        return ProductionMultiAgentSystem(
            self.router,
            self.service,
            self.judge,
            self.agents,
            self.tracker,
            online_learning,
            max_rpm=options.max_rpm,
            variant=options.variant,
            clock=self.virtual_s if self.service.is_simulated else time.monotonic,
            log=self.log,
            team=simulate.team(options.team),
            first_ordinal=options.iterations,
            seed=options.seed,
            max_tokens=options.max_tokens,
        )

    def summary(self) -> dict[str, Any]:
        """Return the figures of the training.

        Raises:
            AssertionError: It has not been played.
        """
        assert self.final is not None, "train first"
        rewards, load = self.final["rewards_log"], self.final["load_log"]
        judged = self.judge.log
        return {
            "simulated": self.service.is_simulated,
            "iterations": len(rewards),
            "mean_adjusted_reward": _mean(rewards),
            "mean_raw_reward": _mean([entry["raw_reward"] for entry in load]),
            "mean_load_penalty": _mean([entry["load_penalty"] for entry in load]),
            "final_epsilon": self.router.epsilon,
            "final_imbalance": load[-1]["imbalance"] if load else 0.0,
            "mean_imbalance": _mean([entry["imbalance"] for entry in load]),
            "assignments": dict(self.tracker.lifetime_counts),
            "calls": self.costs["calls"],
            "cost_usd": self.costs["cost_usd"],
            "cost_by_model": self.costs["by_model"],
            "elapsed_s": self.elapsed_s,
            "row_shifts": sum(entry["row_shift"] is not None for entry in load),
            "penalised": sum(entry["load_penalty"] > 0.0 for entry in load),
            "cool_downs": sum(entry["cooled_down"] for entry in load),
            "judge_unreadable": sum(entry["read"] == "default" for entry in judged),
            "judge_failed": sum(entry["read"] == "failed" for entry in judged),
            "judge_error": next((entry["error"] for entry in judged if "error" in entry), None),
            "unpriced_models": self.costs["unpriced_models"],
        }


def make_run(
    options: Options,
    providers: Mapping[str, Provider] | None = None,
    *,
    log: EventLog | None = None,
    prices: Prices | None = None,
    **service_arguments: Any,
) -> Run:
    """Make the parts of a run.

    Args:
        options: Settings.
        providers: Ways to models, "openai" and "anthropic"; None: simulated ones.
        log: Where events go; None: nowhere.
        prices: Table of prices; None: the shipped one.
        service_arguments: More arguments of `LLMService`.

    Raises:
        ConfigError: The constants are wrong.
    """
    team, log = simulate.team(options.team), log or NoLog()
    if providers is None:
        drawn = DrawnAnswers(team, options.seed, options.arrivals, options.iterations)
        providers = drawn.providers()
    machine = StateMachine("training", log)
    machine.enter("Setup")
    service = LLMService(providers, log=log, prices=prices, **service_arguments)
    judge = LLMJudge(service, LLMProvider(team.settings.judge.provider))
    run = Run(options, service, judge, _router(options), LoadTracker(), all_agents(), machine, log)
    machine.enter("Initialized")
    return run


def _router(options: Options) -> Router:
    if options.router != "q_learning":
        return FIXED_ROUTERS[options.router](options.seed)
    return QLearningCoordinator(
        rules.TASK_TYPES,
        rules.LOAD_STATES,
        all_actions(),
        gamma=0.0 if options.variant == "bandit" else rules.DISCOUNT,
        epsilon=options.epsilon,
        epsilon_min=options.epsilon_min,
        ties=options.ties,
        seed=options.seed,
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
