"""The team as an application: a graph that trains it, and a system that serves with it.

Training is LangGraph's StateGraph of five nodes, once around for each task; production answers
requests one by one. Both take the steps of `TaskSteps`, each an event `state` of the log.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, TypedDict, cast

import numpy as np

from inframind_gym.configs import NonNegativeInt, PositiveInt, StrictModel, within
from inframind_gym.errors import ConfigError, require, unknown
from inframind_gym.teams import llm
from inframind_gym.teams.assignment import rules, simulate
from inframind_gym.teams.assignment.agents import (
    AGENT_SYSTEM,
    AgentState,
    LLMJudge,
    LLMProvider,
    LoadTracker,
    QLearningCoordinator,
    RoundRobin,
    all_agents,
    uniform,
)
from inframind_gym.teams.assignment.rules import PROVIDERS, TASK_TYPES, Arrivals, Router
from inframind_gym.teams.state import key_of

NODES: Final = ("pick_task", "assign_agent", "agent_execute", "judge_output", "rl_update")
STREAM_NEXT_TYPE: Final = 221


class Options(StrictModel):
    """Settings of a run, on the command line, over HTTP and in the studio's form."""

    iterations: Annotated[int, within(1, 10_000)] = 200  # tasks of the training, two calls each
    seed: NonNegativeInt = 1  # of tasks, decisions and simulated answers
    arrivals: Arrivals = "uniform"  # order of tasks
    router: Router = "q_learning"
    max_tokens: PositiveInt = 768  # of an agent's answer


class WorkflowState(TypedDict):
    """State of the graph. Lists are never changed: each node returns new ones."""

    iteration: int
    max_iterations: int
    task: dict[str, Any]
    assignment: dict[str, Any]
    action_idx: int
    load_state: str
    agent_output: str
    llm_response_meta: dict[str, Any]
    scores: dict[str, Any]
    reward: float  # raw
    adjusted_reward: float
    load_penalty: float
    rewards_log: list[float]  # adjusted
    scores_log: list[dict[str, Any]]
    assignments_log: list[dict[str, Any]]
    load_log: list[dict[str, Any]]


class TaskSteps:
    """Steps of a task, in training and in production; with `online_learning` it learns."""

    names: ClassVar[Mapping[str, str]] = {}  # step -> its name in events; "": no event

    def __init__(
        self,
        coordinator: QLearningCoordinator,
        llm_service: llm.LLMService,
        judge: LLMJudge,
        agents: dict[str, AgentState],
        load_tracker: LoadTracker,
        online_learning: bool = True,
        *,
        options: Options | None = None,
        log: llm.EventLog | None = None,
    ) -> None:
        self.coordinator, self.llm_service, self.judge = coordinator, llm_service, judge
        self.agents, self.load_tracker, self.online_learning = agents, load_tracker, online_learning
        self.options, self.log, self.state = options or Options(), log or llm.NoLog(), "Start"
        self.team, self._key = simulate.team(), key_of(self.options.seed)
        self._task = simulate.NO_TASK  # place in the bank

    def enter(self, step: str) -> None:
        """Go to a step."""
        if state := self.names.get(step, step):
            self.state = state
            self.log.append("state", {"state": state})

    def clock(self) -> float:
        """Return the time in s: with simulated providers the sum of all latencies."""
        if self.llm_service.is_simulated:
            return float(sum(call["latency_s"] for call in self.llm_service.call_log))
        return time.monotonic()

    def assign_agent(self, state: WorkflowState) -> dict[str, Any]:
        """Ask the tracker for the load state and the coordinator for an action."""
        self.enter("QueryingLoad")
        load_state = self.load_tracker.get_load_state()
        self.enter("AssigningAgent")
        index, chosen = self.coordinator.select_action(state["task"]["task_type"], load_state)
        texts = {**{k: str(v) for k, v in asdict(chosen).items()}, "key": chosen.key()}
        return {"assignment": texts, "action_idx": index, "load_state": load_state}

    def agent_execute(self, state: WorkflowState) -> dict[str, Any]:
        """Let the agent answer: the first of two calls."""
        self.enter("ExecutingLLM")
        chosen, task = self.coordinator.actions[state["action_idx"]], state["task"]
        response = self.llm_service.call(
            AGENT_SYSTEM[chosen.role],
            f"Task ({task['task_type']}): {task['description']}",
            chosen.provider,
            self.options.max_tokens,
            agent=chosen.agent_id,
            context={"call": "agent", **self._place(state)},
        )
        meta = response.facts()
        return {"agent_output": meta.pop("content"), "llm_response_meta": meta}

    def judge_output(self, state: WorkflowState) -> dict[str, Any]:
        """Let the judge score the answer, the second of two calls; return the raw reward too."""
        self.enter("JudgingOutput")
        task, meta, role = state["task"], state["llm_response_meta"], state["assignment"]["role"]
        texts = task["description"], task["task_type"], role, state["agent_output"]
        judged = self.judge.evaluate(*texts, {"call": "judge", **self._place(state)})
        self.enter("Scoring")
        scores = judged.model_dump()
        values = [scores[criterion] for criterion in rules.CRITERIA]
        reward = float(rules.raw_reward(values, meta["cost_usd"], meta["latency_s"]))
        return {"scores": scores, "reward": reward}

    def _place(self, state: WorkflowState) -> dict[str, Any]:
        """Return what a simulated provider draws by."""
        return {"ordinal": state["iteration"], "task": self._task, "action": state["action_idx"]}

    def settle(self, state: WorkflowState, *, bootstraps: bool) -> tuple[float, float]:
        """Penalise, record, learn, count; returns the load penalty and the reward after it."""
        agent_id, task_type = state["assignment"]["agent_id"], state["task"]["task_type"]
        self.enter("ComputingPenalty")
        penalty = self.load_tracker.get_load_penalty(agent_id)
        adjusted = float(rules.adjusted_reward(state["reward"], penalty))
        self.enter("RecordingLoad")
        self.load_tracker.record(agent_id)
        self.enter("UpdatingRL")
        if self.online_learning:
            draw = uniform(self._key, STREAM_NEXT_TYPE, state["iteration"])
            next_type = TASK_TYPES[int(draw * len(TASK_TYPES))] if bootstraps else None
            cell = task_type, state["load_state"], state["action_idx"]
            now = self.load_tracker.get_load_state()
            self.coordinator.update(*cell, adjusted, next_type, now)
        agent = self.agents[agent_id]
        agent.completed_tasks += 1
        agent.total_reward += adjusted
        agent.avg_quality = agent.total_reward / agent.completed_tasks
        return penalty, adjusted


class Training(TaskSteps):
    """A training: the five nodes of its graph, and its results."""

    names: ClassVar = {"Scoring": ""}
    final: WorkflowState | None = None  # state of the graph at the end
    elapsed_s = 0.0  # virtual where providers are simulated
    costs: Mapping[str, Any]  # by `LLMService.get_cost_summary`

    def pick_task(self, state: WorkflowState) -> dict[str, Any]:
        """Take the next task of the bank."""
        self.enter("PickingTask")
        ordinals, before = np.array([state["iteration"]]), np.array([self._task])
        place = simulate.next_task(self.team, self.options.arrivals, self._key, ordinals, before)
        self._task = int(place[0])
        return {"task": self.team.settings.tasks[self._task].model_dump()}

    def rl_update(self, state: WorkflowState) -> dict[str, Any]:
        """Settle the answer, explore less, and log."""
        iteration, index, before = state["iteration"], state["action_idx"], state["load_state"]
        task_type, tracker, table = state["task"]["task_type"], self.load_tracker, self.coordinator
        # The greedy action of the balanced row, where the hot row has another.
        usual, here = (table.policy(s)[task_type] for s in ("balanced", before))
        shifted = usual.key() if usual and here and usual != here else None
        penalty, adjusted = self.settle(state, bootstraps=True)
        table.decay_epsilon()
        now, is_tried = tracker.get_load_state(), table.visits[task_type, before][index] > 0
        snapshot = {
            "load_state": before,
            "next_load_state": now,
            "utilization": tracker.get_utilization(),
            "imbalance": tracker.get_imbalance_score(),
            "raw_reward": state["reward"],
            "load_penalty": penalty,
            "epsilon": table.epsilon,
            "q": float(table.q_table[task_type, before][index]) if is_tried else None,
            "row_shift": shifted,
            "cooled_down": before != "balanced" and now != before,
        }
        task = {"action_idx": index, "task_id": state["task"]["id"], "task_type": task_type}
        done = {**state["assignment"], **task, **state["llm_response_meta"]}
        scores = {"scores": state["scores"], "adjusted_reward": adjusted}
        self.log.append("iteration", {"iteration": iteration, **done, **scores, **snapshot})
        self.enter("CheckingDone")
        return {
            "adjusted_reward": adjusted,
            "load_penalty": penalty,
            "rewards_log": [*state["rewards_log"], adjusted],
            "scores_log": [*state["scores_log"], state["scores"]],
            "assignments_log": [*state["assignments_log"], done],
            "load_log": [*state["load_log"], snapshot],
            "iteration": iteration + 1,
        }

    def train(self) -> WorkflowState:
        """Play the graph and return its last state."""
        require("langgraph", "the training of the assignment team", "teams")
        from langgraph.graph import END, START, StateGraph

        graph = StateGraph(WorkflowState)
        for name in NODES:
            graph.add_node(name, getattr(self, name))
        for before, after in pairwise((START, *NODES)):
            graph.add_edge(before, after)
        graph.add_conditional_edges(
            NODES[-1],
            lambda state: state["iteration"] < state["max_iterations"],
            {True: NODES[0], False: END},
        )
        compiled = graph.compile()
        self.enter("GraphCompiled")
        start: Any = {key: [] for key in WorkflowState.__annotations__ if key.endswith("_log")}
        start |= {"iteration": 0, "max_iterations": self.options.iterations}
        start |= {"load_state": "balanced", "reward": 0.0}
        steps: Any = {"recursion_limit": len(NODES) * self.options.iterations + 10}
        began_s = self.clock()
        self.final = final = cast("WorkflowState", compiled.invoke(start, steps))
        self.elapsed_s = self.clock() - began_s
        self.costs = self.llm_service.get_cost_summary()
        return final

    def summary(self) -> dict[str, Any]:
        """Return the figures of the training, which must have been played."""
        assert self.final is not None, "train first"
        load, judged, costs = self.final["load_log"], self.judge.log, self.costs

        def mean(key: str) -> float:
            return float(sum(entry[key] for entry in load) / len(load))

        return {
            "simulated": self.llm_service.is_simulated,
            "iterations": len(load),
            "mean_adjusted_reward": float(sum(self.final["rewards_log"]) / len(load)),
            "mean_raw_reward": mean("raw_reward"),
            "mean_load_penalty": mean("load_penalty"),
            "final_epsilon": self.coordinator.epsilon,
            "final_imbalance": load[-1]["imbalance"],
            "mean_imbalance": mean("imbalance"),
            "assignments": dict(self.load_tracker.lifetime_counts),
            "calls": costs["calls"],
            "cost_usd": costs["cost_usd"],
            "cost_by_model": costs["by_model"],
            "elapsed_s": self.elapsed_s,
            "row_shifts": sum(entry["row_shift"] is not None for entry in load),
            "penalised": sum(entry["load_penalty"] > 0.0 for entry in load),
            "cool_downs": sum(entry["cooled_down"] for entry in load),
            "judge_unreadable": sum(entry["read"] == "default" for entry in judged),
            "judge_failed": sum(entry["read"] == "failed" for entry in judged),
            "judge_error": next((entry["error"] for entry in judged if "error" in entry), None),
            "unpriced_models": costs["unpriced_models"],
        }

    def production(self) -> ProductionMultiAgentSystem:
        """Return the trained team as a system that serves requests."""
        parts = self.coordinator, self.llm_service, self.judge, self.agents, self.load_tracker
        return ProductionMultiAgentSystem(*parts, options=self.options, log=self.log)


def make_run(
    options: Options,
    providers: Mapping[str, llm.Provider] | None = None,
    *,
    log: llm.EventLog | None = None,
) -> Training:
    """Make the parts of a run; `providers` are those of `open_providers`."""
    team, seed = simulate.team(), options.seed
    if providers is None:
        models = {name: team.settings.providers[name].model for name in PROVIDERS}
        drawn = seed, options.arrivals, options.iterations
        providers = {k: simulate.DrawnAnswers(team, model, *drawn) for k, model in models.items()}
    router = QLearningCoordinator(seed=seed)
    if options.router == "round_robin":
        router = RoundRobin(epsilon=0.0, epsilon_min=0.0)
    service = llm.LLMService(providers, log=log)
    judge = LLMJudge(service, LLMProvider(team.settings.judge.provider))
    run = Training(router, service, judge, all_agents(), LoadTracker(), options=options, log=log)
    run.enter("Setup")
    run.enter("Initialized")
    return run


def open_providers(names: list[str], models: list[str]) -> dict[str, llm.Provider] | None:
    """Open the two providers of the team; None: both are simulated."""
    if len(names) > len(PROVIDERS) or len(models) > len(PROVIDERS):
        raise ConfigError("--provider and --model are given at most twice.")
    if llm.SIMULATED in names:
        if len(set(names)) > 1 or models:
            raise ConfigError("--provider simulated goes with no real one, and with no --model.")
        return None
    pair = (models[0], models[-1]) if models else (None, None)
    opened = map(llm.open_provider, (names[0], names[-1]), pair)
    return dict(zip(PROVIDERS, opened, strict=True))


class ProductionMultiAgentSystem(TaskSteps):
    """Routes requests greedily by the learned table and the current load.

    It learns on without a next state. A table that was trained with a discount holds values of
    the size reward / (1 - discount), so each update pulls the chosen cell down to the size of one
    reward, and the greedy choice rotates until the whole table is unlearned.

    Arguments are those of `TaskSteps`; it takes `max_rpm` requests in any 60 s.
    """

    names: ClassVar = {
        "QueryingLoad": "LoadAwareRouting",
        "AssigningAgent": "",
        "ExecutingLLM": "Executing",
        "JudgingOutput": "Judging",
        "ComputingPenalty": "LoadPenaltyCalc",
        "RecordingLoad": "",
        "UpdatingRL": "OnlineLearning",
    }

    def __init__(self, *parts: Any, max_rpm: int = 60, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.max_rpm = max_rpm
        self.request_times: deque[float] = deque()
        self.request_log: list[dict[str, Any]] = []
        self._rejected = self._failed = 0
        self._ordinal = self.options.iterations
        self.enter("Ready")

    def process(self, description: str, task_type: str) -> dict[str, Any]:
        """Answer a request of a type of `rules.TASK_TYPES`.

        Returns the answer, its agent and its rewards; or {"error": ...} beyond the rate limit, and
        where a call failed for good or did not fit the budget of the service. An answer that was
        paid for but not scored comes with the error.

        Raises:
            ConfigError: There is no such type of task.
        """
        if task_type not in TASK_TYPES:
            raise ConfigError(unknown("task type", task_type, TASK_TYPES))
        self.enter("RateLimitCheck")
        if not self._check_rate_limit():
            self._rejected += 1
            self.enter("Ready")
            return {"error": "Rate limit exceeded"}
        self.request_times.append(self.clock())
        result, answered = dict[str, Any](), len(self.request_log)
        try:
            self._answer(description, task_type, result)
        except (llm.LLMError, llm.BudgetError) as error:
            result["error"] = str(error)
            self.log.append("request_failed", result)
        finally:  # whatever happened, the next request is taken
            self._failed += len(self.request_log) == answered
            self.enter("Ready")
        return result

    def _answer(self, description: str, task_type: str, result: dict[str, Any]) -> None:
        """Take the steps of a request and write as far as it gets into `result`."""
        self.coordinator.epsilon, ordinal = 0.0, self._ordinal
        self._ordinal += 1
        # A simulated answer is drawn as one to a task of the bank: this one, or one of its type.
        same, tasks = self.team.of_type[TASK_TYPES.index(task_type)], self.team.settings.tasks
        places = (at for at, task in enumerate(tasks) if task.description == description)
        self._task = next(places, int(same[ordinal % len(same)]))
        task = {"description": description, "task_type": task_type}
        state: Any = {"iteration": ordinal, "task": task}
        state |= self.assign_agent(state)
        state |= self.agent_execute(state)
        meta = state["llm_response_meta"]
        result |= {
            "agent": state["assignment"]["agent_id"],
            "provider": state["assignment"]["provider"],
            "model": meta["model"],
            "response": state["agent_output"],
            "load_state": state["load_state"],
            "task_type": task_type,
            "tokens": meta["total_tokens"],
            "cost_usd": meta["cost_usd"],
            "latency_s": meta["latency_s"],
        }
        state |= self.judge_output(state)
        penalty, adjusted = self.settle(state, bootstraps=False)
        result |= {"reward": adjusted, "raw_reward": state["reward"], "load_penalty": penalty}
        result["scores"] = state["scores"]
        self.enter("Logging")
        place = {"ordinal": ordinal, "action_idx": state["action_idx"]}
        self.log.append("request", place | result)
        self.request_log.append(result)

    def health(self) -> dict[str, Any]:
        """Return the state of the system: requests, money, agents, load."""
        is_open = self._check_rate_limit()
        rewards = [request["reward"] for request in self.request_log]
        return {
            "status": "ok" if is_open else "rate limited",
            "requests": len(self.request_log),
            "rejected": self._rejected,
            "failed": self._failed,
            "requests_last_minute": len(self.request_times),
            "max_rpm": self.max_rpm,
            "online_learning": self.online_learning,
            "mean_reward": sum(rewards) / len(rewards) if rewards else None,
            "llm_calls": self.llm_service.call_count,
            "total_cost_usd": self.llm_service.total_cost,
            "agents": {
                name: {"completed_tasks": a.completed_tasks, "avg_quality": a.avg_quality}
                for name, a in self.agents.items()
            },
            "current_load_state": self.load_tracker.get_load_state(),
            "agent_utilization": self.load_tracker.get_utilization(),
            "imbalance_score": self.load_tracker.get_imbalance_score(),
        }

    def _check_rate_limit(self) -> bool:
        """Return True if a request is admitted now."""
        while self.request_times and self.request_times[0] <= self.clock() - 60.0:
            self.request_times.popleft()
        return len(self.request_times) < self.max_rpm
