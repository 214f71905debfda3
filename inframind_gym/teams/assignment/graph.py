"""Training as a graph of five nodes, once around for each task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Final, TypedDict, cast

import numpy as np

from inframind_gym.teams.assignment import rules, simulate
from inframind_gym.teams.assignment.coordinator import QLearningCoordinator, Router
from inframind_gym.teams.assignment.draws import STREAM_NEXT_TYPE, Draws
from inframind_gym.teams.assignment.judge import LLMJudge
from inframind_gym.teams.assignment.model import (
    AGENT_SYSTEM,
    AgentState,
    QualityScores,
    TaskAssignment,
)
from inframind_gym.teams.assignment.names import Arrivals
from inframind_gym.teams.assignment.states import StateMachine
from inframind_gym.teams.assignment.tracker import LoadTracker
from inframind_gym.teams.llm.service import EventLog, LLMService
from inframind_gym.teams.llm.types import LLMResponse

ITERATIONS: Final = 50
MAX_TOKENS: Final = 768
NODES: Final = ("pick_task", "assign_agent", "agent_execute", "judge_output", "rl_update")


class WorkflowState(TypedDict):
    """State of the graph. Lists are never changed: each node returns new ones."""

    iteration: int
    max_iterations: int
    task: dict[str, Any] | None
    assignment: dict[str, Any] | None
    action_idx: int
    load_state: str
    agent_output: str
    llm_response_meta: dict[str, Any] | None
    scores: dict[str, Any] | None
    reward: float  # raw
    adjusted_reward: float
    load_penalty: float
    rewards_log: list[float]  # adjusted
    scores_log: list[dict[str, Any]]
    assignments_log: list[dict[str, Any]]
    load_log: list[dict[str, Any]]


def initial_state(max_iterations: int = ITERATIONS) -> WorkflowState:
    """Return the state before the first task."""
    return WorkflowState(
        iteration=0,
        max_iterations=max_iterations,
        task=None,
        assignment=None,
        action_idx=0,
        load_state="balanced",
        agent_output="",
        llm_response_meta=None,
        scores=None,
        reward=0.0,
        adjusted_reward=0.0,
        load_penalty=0.0,
        rewards_log=[],
        scores_log=[],
        assignments_log=[],
        load_log=[],
    )


def composite_reward(scores: QualityScores, cost_usd: float, latency_s: float) -> float:
    """Return the raw reward of an answer, see `rules.raw_reward`."""
    return float(rules.raw_reward(scores.row(), cost_usd, latency_s))


@dataclass
class Workflow:
    """The parts of the team and the five nodes over them.

    Attributes:
        llm_service: The gateway.
        judge: Scores answers.
        coordinator: Decides.
        load_tracker: Window of assignments.
        agents: Statistics of the agents.
        team: Constants; of a real run only the bank of tasks.
        arrivals: Order in which tasks arrive.
        seed: Seed of tasks and of bootstrap types.
        log: Where events go.
        max_tokens: Most tokens of an agent's answer.
        machine: State machine of the training.
    """

    llm_service: LLMService
    judge: LLMJudge
    coordinator: Router
    load_tracker: LoadTracker
    agents: dict[str, AgentState]
    team: simulate.Team
    arrivals: Arrivals
    seed: int
    log: EventLog
    max_tokens: int
    machine: StateMachine

    def __post_init__(self) -> None:
        self._key = simulate.key_of(self.seed)
        self._draws = Draws(self.seed)
        self._place = simulate.NO_TASK  # of the task in the bank

    def pick_task(self, state: WorkflowState) -> dict[str, Any]:
        """Take the next task of the bank."""
        self.machine.enter("PickingTask", iteration=state["iteration"])
        ordinals, before = np.array([state["iteration"]]), np.array([self._place])
        place = simulate.next_task(self.team, self.arrivals, self._key, ordinals, before)[0]
        self._place = int(place)
        return {"task": self.team.settings.tasks[self._place].model_dump()}

    def assign_agent(self, state: WorkflowState) -> dict[str, Any]:
        """Ask the tracker for the load state and the coordinator for an action."""
        task = _present(state["task"])
        self.machine.enter("QueryingLoad")
        load_state = self.load_tracker.get_load_state()
        self.machine.enter("AssigningAgent", load_state=load_state)
        index, assignment = self.coordinator.select_action(task["task_type"], load_state)
        return {
            "assignment": assignment_dict(assignment),
            "action_idx": index,
            "load_state": load_state,
        }

    def agent_execute(self, state: WorkflowState) -> dict[str, Any]:
        """Let the agent answer: the first of two calls."""
        task, assignment = _present(state["task"]), _present(state["assignment"])
        self.machine.enter("ExecutingLLM", action=assignment["key"])
        try:
            response = self.llm_service.call(
                AGENT_SYSTEM[assignment["role"]],
                user_message(task["description"], task["task_type"]),
                assignment["provider"],
                self.max_tokens,
                agent=assignment["agent_id"],
                context=self._context("agent", state),
            )
        finally:
            self.coordinator.ended(state["action_idx"])
        return {"agent_output": response.content, "llm_response_meta": response_meta(response)}

    def judge_output(self, state: WorkflowState) -> dict[str, Any]:
        """Let the judge score the answer: the second of two calls."""
        task, meta = _present(state["task"]), _present(state["llm_response_meta"])
        role = _present(state["assignment"])["role"]
        self.machine.enter("JudgingOutput")
        scores = self.judge.evaluate(
            task["description"],
            task["task_type"],
            role,
            state["agent_output"],
            self._context("judge", state),
        )
        reward = composite_reward(scores, meta["cost_usd"], meta["latency_s"])
        return {"scores": scores.model_dump(), "reward": reward}

    def rl_update(self, state: WorkflowState) -> dict[str, Any]:
        """Penalise, record, learn, explore less, count: in this order."""
        task, assignment = _present(state["task"]), _present(state["assignment"])
        iteration, agent_id = state["iteration"], assignment["agent_id"]
        was, task_type = state["load_state"], task["task_type"]
        shifted = row_shift(self.coordinator, task_type, was)

        self.machine.enter("ComputingPenalty")
        penalty = self.load_tracker.get_load_penalty(agent_id)
        adjusted = float(rules.adjusted_reward(state["reward"], penalty))
        self.machine.enter("RecordingLoad", agent=agent_id)
        self.load_tracker.record(agent_id)
        now = self.load_tracker.get_load_state()
        self.machine.enter("UpdatingRL")
        place = self._draws.one_of(len(rules.TASK_TYPES), STREAM_NEXT_TYPE, iteration)
        self.coordinator.update(
            task_type, was, state["action_idx"], adjusted, rules.TASK_TYPES[place], now
        )
        self.coordinator.decay_epsilon()
        self.agents[agent_id].credit(adjusted)

        snapshot = {
            "load_state": was,
            "next_load_state": now,
            "utilization": self.load_tracker.get_utilization(),
            "imbalance": self.load_tracker.get_imbalance_score(),
            "raw_reward": state["reward"],
            "load_penalty": penalty,
            "epsilon": self.coordinator.epsilon,
            "q": learned_q(self.coordinator, task_type, was, state["action_idx"]),
            "row_shift": shifted,
            "cooled_down": was != "balanced" and now != was,
        }
        told = {
            **assignment,
            "action_idx": state["action_idx"],
            "task_id": task["id"],
            "task_type": task_type,
            **_present(state["llm_response_meta"]),
        }
        scores = {"scores": state["scores"], "adjusted_reward": adjusted}
        self.log.append("iteration", {"iteration": iteration, **told, **scores, **snapshot})
        self.machine.enter("CheckingDone")
        return {
            "adjusted_reward": adjusted,
            "load_penalty": penalty,
            "rewards_log": [*state["rewards_log"], adjusted],
            "scores_log": [*state["scores_log"], _present(state["scores"])],
            "assignments_log": [*state["assignments_log"], told],
            "load_log": [*state["load_log"], snapshot],
            "iteration": iteration + 1,
        }

    def _context(self, call: str, state: WorkflowState) -> dict[str, Any]:
        """Return what a simulated provider draws by."""
        place = {"task": self._place, "action": state["action_idx"]}
        return {"call": call, "ordinal": state["iteration"], **place}


def should_continue(state: WorkflowState) -> bool:
    """Return True while there are iterations left."""
    return state["iteration"] < state["max_iterations"]


def has_langgraph() -> bool:
    """Return True where LangGraph is installed."""
    return find_spec("langgraph") is not None


def compile_graph(workflow: Workflow) -> Callable[[WorkflowState], WorkflowState]:
    """Return the function that plays the graph from a state to the end.

    With LangGraph (extra `teams`) that is its compiled StateGraph; without it the same nodes in a
    plain loop, so that simulated runs need nothing.
    """
    nodes = [getattr(workflow, name) for name in NODES]
    return _langgraph(nodes) if has_langgraph() else _plain_loop(nodes)


def _langgraph(nodes: list[Any]) -> Callable[[WorkflowState], WorkflowState]:
    from langgraph.graph import END, START, StateGraph

    graph = StateGraph(WorkflowState)
    for name, node in zip(NODES, nodes, strict=True):
        graph.add_node(name, node)
    graph.add_edge(START, NODES[0])
    for name, after in pairwise(NODES):
        graph.add_edge(name, after)
    graph.add_conditional_edges(NODES[-1], should_continue, {True: NODES[0], False: END})
    app = graph.compile()

    def play(state: WorkflowState) -> WorkflowState:
        steps = len(NODES) * state["max_iterations"] + 10
        return cast("WorkflowState", app.invoke(state, {"recursion_limit": steps}))

    return play


def _plain_loop(nodes: list[Any]) -> Callable[[WorkflowState], WorkflowState]:
    def play(state: WorkflowState) -> WorkflowState:
        while should_continue(state):
            for node in nodes:
                state = cast("WorkflowState", {**state, **node(state)})
        return state

    return play


def row_shift(coordinator: Router, task_type: str, load_state: str) -> str | None:
    """Return the greedy action of the balanced row where that of the hot row is another one."""
    if load_state == "balanced" or not isinstance(coordinator, QLearningCoordinator):
        return None
    usual, here = (coordinator.policy(s)[task_type] for s in ("balanced", load_state))
    return usual.key() if usual is not None and here is not None and usual != here else None


def learned_q(coordinator: Router, task_type: str, load_state: str, action: int) -> float | None:
    """Return the value of an action in the table; None of a router without one."""
    if not isinstance(coordinator, QLearningCoordinator):
        return None
    return float(coordinator.q_table[task_type, load_state][action])


def user_message(description: str, task_type: str) -> str:
    """Return the message that an agent gets."""
    return f"Task ({task_type}): {description}"


def assignment_dict(assignment: TaskAssignment) -> dict[str, Any]:
    """Return an assignment as plain data."""
    return {**{k: str(v) for k, v in asdict(assignment).items()}, "key": assignment.key()}


def response_meta(response: LLMResponse) -> dict[str, Any]:
    """Return what the graph keeps of a response."""
    return {key: value for key, value in asdict(response).items() if key != "content"}


def _present(value: dict[str, Any] | None) -> dict[str, Any]:
    assert value is not None, "a node ran before those that it builds on"
    return value
