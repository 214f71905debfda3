"""The main loop: pre-flight, allocation, agent calls, scores, and decisions on what they return."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from inframind_gym.envs.token_budget.context import TokenBudgetSpec, contexts
from inframind_gym.envs.token_budget.observation import observe
from inframind_gym.teams.llm.service import EventLog, LLMService, Retries
from inframind_gym.teams.llm.types import BudgetError, LLMError, Provider, estimate_tokens
from inframind_gym.teams.token_budget import agents, rules
from inframind_gym.teams.token_budget.agents import Flag, Product
from inframind_gym.teams.token_budget.budget import BudgetController
from inframind_gym.teams.token_budget.evaluator import RoiEvaluator
from inframind_gym.teams.token_budget.order import Order
from inframind_gym.teams.token_budget.rules import CRITIC, EXECUTOR, PLANNER, Evidence
from inframind_gym.teams.token_budget.settings import (
    AGENTS,
    COMPLEXITIES,
    SIZES,
    STRATEGIES,
    TeamSettings,
    load_settings,
)
from inframind_gym.teams.token_budget.simulate import SimulatedTask, max_tokens
from inframind_gym.teams.token_budget.simulated import OVERHEAD_ANSWER, DrawnAnswers
from inframind_gym.teams.token_budget.state import AGENT_STEP, REASONS, TeamState, suggestion

MAX_STEPS: Final = 20
_ROW: Final = np.zeros(1, np.int64)
_WAY: Final = "team"  # name of the provider in the service


class Orchestrator:
    """One run of the team.

    Args:
        order: task, budget and strategy.
        log: where events go; they are written as they happen.
        run_id: name of the run, in events.
        provider: way to the model; None: the simulated one.
        settings: constants of the team; None: the shipped ones.
        retries: limits of a call's attempts.

    Raises:
        ConfigError: the strategy or the profile is wrong.
    """

    def __init__(
        self,
        order: Order,
        log: EventLog,
        run_id: str,
        provider: Provider | None = None,
        settings: TeamSettings | None = None,
        retries: Retries | None = None,
    ) -> None:
        self.order, self._log, self._run_id = order, log, run_id
        self.settings = settings or load_settings()
        drawn = DrawnAnswers(self.settings, order.profile, order.seed) if provider is None else None
        self._task = None if drawn is None else drawn.task
        has_overhead = self._task is None or self._task.has_overhead
        self.state = TeamState(
            self.settings,
            1,
            max_tokens(self.settings) if self._task is None else self._task.max_tokens,
            self.settings.proxy_weights if self._task is None else self._task.weights,
            self.settings.overhead.self_eval if has_overhead else 0,
            MAX_STEPS,
        )
        self.budget = BudgetController(self.state)
        way = provider if drawn is None else drawn.provider()
        assert way is not None
        self.service = LLMService({_WAY: way}, log=log, guard=self.budget, retries=retries)
        self.product = Product(order.task)
        self._evaluator = RoiEvaluator(self.service, _WAY, log)
        self._policy = order.policy()
        self._warning: str | None = None

    async def run(self) -> dict[str, Any]:
        """Play the run; returns its summary.

        Raises:
            LLMError: an agent's call failed for good; `summary` has what there is until then.
        """
        try:
            await self._prepare()
            while not self.state.over[0]:
                await self._step()
        finally:
            await self.service.aclose()
        return self.summary()

    async def _prepare(self) -> None:
        """Run the pre-flight, narrow the task or warn, and allocate."""
        state, order = self.state, self.order
        strategy = getattr(self._policy, "strategy", "adaptive")
        state.begin(_ROW, order.budget, STRATEGIES.index(strategy), np.array([0]), 0)
        context = self._sized(self.settings.overhead.preflight)
        state.seen[0] = await self._evaluator.classify(order.task, context)
        minimum, seen = int(state.minimum_budget(_ROW)[0]), int(state.seen[0])
        found: dict[str, Any] = {"complexity": COMPLEXITIES[seen], "minimum_budget": minimum}
        if order.budget < minimum:
            self._warning = suggestion(order.budget, minimum, seen)
            found |= {"warning": self._warning, "suggested_minimum": minimum}
            if order.scope_down:
                self._narrow()
                found["narrowed"] = True
        self._log.append("preflight", found)
        shares = dict(zip(AGENTS, state.ledger.left[0].tolist(), strict=True))
        self._log.append("allocation", {"strategy": strategy, **shares})
        facts = TokenBudgetSpec(
            self.settings, self.settings.roi_threshold, order.budget, MAX_STEPS, state.self_eval
        )
        self._policy.reset(facts, [order.seed])
        self._look()

    def _narrow(self) -> None:
        self.product.is_narrowed = True
        if self._task is None:
            self.state.seen[0] = max(int(self.state.seen[0]) - 1, 0)
            return
        self._task.scope_down(_ROW)
        self.state.seen[:] = self._task.seen

    def _look(self) -> None:
        drafted = np.array([bool(self.product.draft)])
        self.state.look(_ROW, self._estimates(), drafted)

    def _estimates(self) -> rules.Ints:
        """Return (1, 3) tokens of the agents' next prompts, as far as is known before the calls."""
        if self._task is not None:
            return self._task.prompt_estimates(_ROW)
        longest = self.state.max_tokens[:, -1].tolist()
        made = [
            prompt(self.product, most) for prompt, most in zip(agents.PROMPTS, longest, strict=True)
        ]
        return np.array([[estimate_tokens(p.system) + estimate_tokens(p.user) for p in made]])

    def _sized(self, tokens: int) -> dict[str, Any]:
        """Return the size of an overhead call's prompt where it is simulated."""
        if self._task is None:
            return {}
        return {"prompt_tokens": tokens - OVERHEAD_ANSWER if self._task.has_overhead else 0}

    async def _step(self) -> None:
        """Take one decision, carry it out, and write what came of it."""
        state = self.state
        seen = contexts(state, _ROW)
        action = self._policy.act_batch(observe(state, _ROW), seen, _ROW)
        calling, called, sizes, limits = state.decide(_ROW, np.asarray(action, np.int64))
        output, chosen = rules.describe(int(action[0])), int(action[0])
        if len(calling):
            output = await self._call(int(called[0]), int(sizes[0]), int(limits[0]))
        elif rules.REALLOCATE <= chosen < rules.STOP:
            left = dict(zip(AGENTS, state.ledger.left[0].tolist(), strict=True))
            self._log.append("reallocation", {"to": AGENTS[chosen - rules.REALLOCATE], **left})
        self._look()
        reason = REASONS[int(state.reason[0])]
        agent, was_called = int(state.agent[0]), state.called(0, chosen)
        trace = {
            "agent": AGENTS[agent],
            "action": rules.describe(chosen),
            "iteration": int(state.progress.calls[0, agent]),
            "tokens": int(state.progress.last_tokens[0, agent]) if was_called else 0,
            "quality": float(state.progress.score[0]),
            "quality_delta": float(state.progress.last_delta[0, agent]) if was_called else 0.0,
            "roi": float(state.progress.last_roi[0, agent]),
            "cutoff_reason": reason,
            "cumulative_tokens": int(state.ledger.spent[0]),
            "output": output,
        }
        self._log.append("trace", trace)
        event = state.event(0, chosen, self._run_id, output)
        if event:
            self._log.append(AGENT_STEP, event["data"])

    async def _call(self, agent: int, size: int, limit: int) -> str:
        """Call an agent and score its step; returns its answer."""
        prompt = agents.PROMPTS[agent](self.product, limit)
        before = int(self.state.ledger.used[0, agent])
        context = {
            "agent": AGENTS[agent],
            "size": SIZES[size],
            "prompt_tokens": int(self.state.estimates[0, agent]),
        }
        try:
            response = await self.service.acall(
                *prompt[:2], _WAY, limit, prompt.schema, agent=AGENTS[agent], context=context
            )
        except BudgetError:  # a lost attempt took the room of the next one
            self._give_up(agent, before)
            return "refused: the budget is spent"
        flags = self._take(agent, response.content)
        evidence = await self._evaluate(flags, agent == CRITIC)
        self.budget.release()
        tokens = np.array([int(self.state.ledger.used[0, agent]) - before])
        self.state.score(_ROW, np.array([agent]), tokens, evidence)
        return response.content

    def _give_up(self, agent: int, before: int) -> None:
        """Stop after a call without an answer; its lost tokens show in the log."""
        tokens = int(self.state.ledger.used[0, agent]) - before
        self._log.append("call_lost", {"agent": AGENTS[agent], "tokens": tokens})
        self.state.lose(_ROW, np.array([agent]), np.array([tokens]))

    def _take(self, agent: int, text: str) -> list[Flag]:
        """Put an answer into the product; returns new flags."""
        flags: list[Flag] | None = []
        if agent == PLANNER:
            fits = agents.take_plan(self.product, text)
        elif agent == EXECUTOR:
            fits = agents.take_draft(self.product, text)
        else:
            flags = agents.take_flags(self.product, text)
            fits = flags is not None
        if not fits:
            self._log.append("malformed", {"agent": AGENTS[agent], "answer": text[:500]})
        return flags or []

    async def _evaluate(self, flags: list[Flag], is_review: bool) -> Evidence:
        context = self._sized(self.settings.overhead.self_eval)
        return await self._evaluator.evaluate(
            self.product, flags, is_review=is_review, context=context
        )

    def summary(self) -> dict[str, Any]:
        """Return output, cost report and the facts of the run, as JSON values."""
        ledger, progress = self.state.ledger, self.state.progress
        spent = int(ledger.spent[0])
        report = {
            "budget": self.order.budget,
            "tokens": spent,
            "unspent": max(self.order.budget - spent, 0),
            "overshoot": max(spent - self.order.budget, 0),
            "overhead_tokens": int(ledger.overhead[0]),
            "lost_tokens": self.budget.lost,
            "by_agent": dict(zip(AGENTS, ledger.used[0].tolist(), strict=True)),
            "last_roi": dict(zip(AGENTS, progress.last_roi[0].tolist(), strict=True)),
            "cut": [a for a, is_cut in zip(AGENTS, ledger.cut[0], strict=True) if is_cut],
        }
        cost = self.service.get_cost_summary()
        truth = self._task.truth(_ROW)[0] if isinstance(self._task, SimulatedTask) else math.nan
        return {
            "output": self.product.draft or self.product.plan,
            "quality": float(progress.score[0]),
            "cost_report": report,
            "ended_by": REASONS[int(self.state.reason[0])],
            "calls": cost["calls"],
            "cost_usd": cost["cost_usd"],
            "unpriced_models": cost["unpriced_models"],
            "simulated": self.service.is_simulated,
            **({"warning": self._warning} if self._warning else {}),
            **({} if math.isnan(truth) else {"true_quality": float(truth)}),
        }


async def play(orchestrator: Orchestrator, log: Any) -> dict[str, Any]:
    """Run to the end and finish the run in its log; returns the summary.

    A call that fails for good ends the run as "failed", with all that there is until then.

    Args:
        orchestrator: of the run.
        log: its `RunLog`.
    """
    try:
        summary = await orchestrator.run()
    except LLMError as error:
        summary = {**orchestrator.summary(), "ended_by": "error", "error": str(error)}
        log.append("failed", {"error": str(error)})
        log.finish("failed", summary)
        return summary
    log.finish("complete", summary)
    return summary
