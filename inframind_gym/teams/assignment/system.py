"""The team in production: greedy, load-aware routing of requests, with online learning."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from inframind_gym.errors import ConfigError, unknown
from inframind_gym.teams.assignment import rules, simulate
from inframind_gym.teams.assignment.answers import bank_place
from inframind_gym.teams.assignment.coordinator import Router
from inframind_gym.teams.assignment.draws import STREAM_NEXT_TYPE, Draws
from inframind_gym.teams.assignment.graph import MAX_TOKENS, composite_reward, user_message
from inframind_gym.teams.assignment.judge import LLMJudge
from inframind_gym.teams.assignment.model import AGENT_SYSTEM, AgentState
from inframind_gym.teams.assignment.names import VARIANTS, Variant
from inframind_gym.teams.assignment.states import StateMachine
from inframind_gym.teams.assignment.tracker import LoadTracker
from inframind_gym.teams.llm.service import EventLog, LLMService, NoLog
from inframind_gym.teams.llm.types import BudgetError, LLMError

MAX_RPM: Final = 60
_MINUTE_S: Final = 60.0


class ProductionMultiAgentSystem:
    """Routes requests greedily by the learned table and the current load.

    A table that was trained with a discount holds values of the size reward / (1 - discount). The
    variants differ in how production goes on learning on it:

    * "source": without a next state. Each update pulls the chosen cell down to the size of one
      reward, so the greedy choice rotates until the whole table is unlearned.
    * "bootstrap": with the best value of a sampled task type in the next load state, as in
      training.
    * "bandit": the table was trained with discount 0, so there is nothing to unlearn.

    Args:
        coordinator: Decides.
        llm_service: The gateway.
        judge: Scores answers.
        agents: Statistics of the agents.
        load_tracker: Window of assignments.
        online_learning: Learn from every request.
        max_rpm: Requests that are taken in any 60 s.
        variant: See above.
        clock: Seconds, for the rate limit.
        log: Where events go; None: nowhere.
        team: Constants of simulated answers; None: the shipped ones.
        first_ordinal: Place of the first request in a simulated run.
        seed: Seed of the sampled task types.

    Attributes:
        request_times: Times of the requests of the last minute.
        request_log: One mapping for each request that was answered.
    """

    def __init__(
        self,
        coordinator: Router,
        llm_service: LLMService,
        judge: LLMJudge,
        agents: dict[str, AgentState],
        load_tracker: LoadTracker,
        online_learning: bool = True,
        *,
        max_rpm: int = MAX_RPM,
        variant: Variant = "source",
        clock: Callable[[], float] = time.monotonic,
        log: EventLog | None = None,
        team: simulate.Team | None = None,
        first_ordinal: int = 0,
        seed: int = 0,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        if max_rpm < 1:
            raise ConfigError(f"max_rpm is {max_rpm}; it must be at least 1.")
        if variant not in VARIANTS:
            raise ConfigError(unknown("variant", variant, VARIANTS))
        self.coordinator = coordinator
        self.llm_service = llm_service
        self.judge = judge
        self.agents = agents
        self.load_tracker = load_tracker
        self.online_learning = online_learning
        self.max_rpm = max_rpm
        self.variant: Variant = variant
        self.request_times: deque[float] = deque()
        self.request_log: list[dict[str, Any]] = []
        self._rejected = self._failed = 0
        self._clock = clock
        self._log: EventLog = log or NoLog()
        self._team = team or simulate.team()
        self._ordinal = first_ordinal
        self._draws = Draws(seed)
        self._max_tokens = max_tokens
        self.machine = StateMachine("production", self._log)
        self.machine.enter("Ready")

    def process(self, description: str, task_type: str) -> dict[str, Any]:
        """Answer a request.

        Args:
            description: What is to be done.
            task_type: One of `rules.TASK_TYPES`.

        Returns:
            The answer, its agent and its rewards; or {"error": ...} beyond the rate limit, and
            where a call failed for good or did not fit the budget of the service. An answer that
            was paid for but not scored comes with the error.

        Raises:
            ConfigError: There is no such type of task.
        """
        if task_type not in rules.TASK_TYPES:
            raise ConfigError(unknown("task type", task_type, rules.TASK_TYPES))
        self.machine.enter("RateLimitCheck")
        if not self._check_rate_limit():
            self._rejected += 1
            self.machine.enter("Ready", outcome="rejected")
            return {"error": "Rate limit exceeded"}
        result: dict[str, Any] = {}
        outcome = "failed"
        try:
            self._answer(description, task_type, result)
            outcome = "answered"
        except (LLMError, BudgetError) as error:
            result["error"] = str(error)
            self._log.append("request_failed", result)
        finally:  # whatever happened, the next request is taken
            self._failed += outcome == "failed"
            self.machine.enter("Ready", outcome=outcome)
        return result

    def _answer(self, description: str, task_type: str, result: dict[str, Any]) -> None:
        """Route a request, have it answered, score the answer and learn from it.

        Args:
            description: What is to be done.
            task_type: Its type.
            result: Written as far as the request gets.
        """
        self.machine.enter("LoadAwareRouting")
        self.coordinator.epsilon = 0.0
        load_state = self.load_tracker.get_load_state()
        index, assignment = self.coordinator.select_action(task_type, load_state)
        agent_id, ordinal = assignment.agent_id, self._ordinal
        place = bank_place(self._team, description, task_type, ordinal)
        drawn_by = {"ordinal": ordinal, "task": place, "action": index}
        self._ordinal += 1

        self.machine.enter("Executing", action=assignment.key(), load_state=load_state)
        try:
            response = self.llm_service.call(
                AGENT_SYSTEM[assignment.role],
                user_message(description, task_type),
                assignment.provider,
                self._max_tokens,
                agent=agent_id,
                context={"call": "agent", **drawn_by},
            )
        finally:
            self.coordinator.ended(index)
        result |= {
            "agent": agent_id,
            "provider": str(assignment.provider),
            "model": response.model,
            "response": response.content,
            "load_state": load_state,
            "task_type": task_type,
            "tokens": response.total_tokens,
            "cost_usd": response.cost_usd,
            "latency_s": response.latency_s,
        }
        self.machine.enter("Judging")
        scores = self.judge.evaluate(
            description,
            task_type,
            assignment.role,
            response.content,
            {"call": "judge", **drawn_by},
        )
        self.machine.enter("Scoring")
        raw = composite_reward(scores, response.cost_usd, response.latency_s)

        self.machine.enter("LoadPenaltyCalc")
        penalty = self.load_tracker.get_load_penalty(agent_id)
        adjusted = float(rules.adjusted_reward(raw, penalty))
        self.load_tracker.record(agent_id)
        self.machine.enter("OnlineLearning", learns=self.online_learning)
        if self.online_learning:
            self.coordinator.update(
                task_type,
                load_state,
                index,
                adjusted,
                self._next_task_type(ordinal),
                self.load_tracker.get_load_state(),
            )
        self.agents[agent_id].credit(adjusted)
        result |= {"reward": adjusted, "raw_reward": raw, "load_penalty": penalty}
        result["scores"] = scores.model_dump()
        self.machine.enter("Logging")
        self._log.append("request", {"ordinal": ordinal, "action_idx": index, **result})
        self.request_log.append(result)

    def health(self) -> dict[str, Any]:
        """Return the state of the system: requests, money, agents, load."""
        self._forget_old()
        rewards = [request["reward"] for request in self.request_log]
        return {
            "status": "ok" if len(self.request_times) < self.max_rpm else "rate limited",
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
        """Count a request; False if the last 60 s had `max_rpm` already."""
        self._forget_old()
        if len(self.request_times) >= self.max_rpm:
            return False
        self.request_times.append(self._clock())
        return True

    def _forget_old(self) -> None:
        now_s = self._clock()
        while self.request_times and self.request_times[0] <= now_s - _MINUTE_S:
            self.request_times.popleft()

    def _next_task_type(self, ordinal: int) -> str | None:
        if self.variant != "bootstrap":
            return None
        place = self._draws.one_of(len(rules.TASK_TYPES), STREAM_NEXT_TYPE, ordinal)
        return rules.TASK_TYPES[place]
