"""The application: pre-flight, allocation, agent calls, scores, and decisions on what they return.

The loop is the environment's, with a model in place of the draws. Three proxies score a step: a
rating of the product by a model (0-100), the critic's flags that the rating says are resolved, and
a checklist of the parts that are there. Where no rating comes the last one stays in place.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import numpy as np
from pydantic import AfterValidator, Field

from inframind_gym.configs import NonNegativeInt, StrictModel, within
from inframind_gym.envs.token_budget import (
    LEAST_BUDGET,
    MOST_BUDGET,
    TokenBudgetSpec,
    observe,
)
from inframind_gym.errors import unknown
from inframind_gym.policies import POLICIES, Policy, policy_names, resolve_policy
from inframind_gym.teams.llm import (
    BudgetError,
    EventLog,
    Grant,
    LLMError,
    LLMRequest,
    LLMResponse,
    LLMService,
    Prompt,
    Provider,
    Simulated,
    Spent,
    estimate_tokens,
    json_object,
)
from inframind_gym.teams.token_budget import agents, rules
from inframind_gym.teams.token_budget.agents import PREFLIGHT, SELF_EVAL, Flag, Product
from inframind_gym.teams.token_budget.rules import AGENT_STEP, REASONS, Evidence, TeamState
from inframind_gym.teams.token_budget.settings import (
    AGENTS,
    COMPLEXITIES,
    SIZES,
    STRATEGIES,
    load_settings,
)

TEAM: Final = "token-budget"
MODEL: Final = "simulated-team"
# The three modes and the policies that play them; other strategies are policies by their names.
MODES: Final = {
    "frontload": "frontload",
    "critique_heavy": "critique_heavy",
    "adaptive": "adaptive_roi",
}
MOST_TASK_CHARS: Final = 100_000
MAX_STEPS: Final = 20
RATING_TOKENS: Final = 60  # of a rating's answer at most
PREFLIGHT_TOKENS: Final = 30  # of the pre-flight's
_LEAST_OVERHEAD: Final = 8  # tokens of an answer to pre-flight or rating
_ROW: Final = np.zeros(1, np.int64)
_WAY: Final = "team"  # name of the provider in the service


def _known(strategy: str) -> str:
    # Orders come from the network: no module is imported and no folder read at their word.
    name, *arguments = strategy.split(":")
    names = policy_names("token_budget")
    if strategy not in MODES and name not in names:
        raise ValueError(unknown("strategy", strategy, dict.fromkeys((*MODES, *names))))
    if arguments and "folder" in POLICIES["token_budget"][name].args:
        raise ValueError(f"{name} takes no folder in an order; write {name}, the shipped network")
    return strategy


class Order(StrictModel):
    """A task with its budget and strategy, a mode or a policy; also the body of ``POST /run``."""

    task: Annotated[str, Field(min_length=1, max_length=MOST_TASK_CHARS)]
    budget: Annotated[int, within(LEAST_BUDGET, MOST_BUDGET)] = 20_000  # hard ceiling, in tokens
    strategy: Annotated[str, AfterValidator(_known)] = "adaptive"
    seed: NonNegativeInt = 0  # of the simulated provider, and of the policy

    def policy(self) -> Policy[TokenBudgetSpec, TeamState]:
        """Make the policy of the strategy; a `ConfigError` if its arguments are wrong."""
        return resolve_policy(MODES.get(self.strategy, self.strategy), family="token_budget")


def by_agent(numbers: Any) -> dict[str, Any]:
    """Return three numbers of one team by the agents' names."""
    return dict(zip(AGENTS, numbers.tolist(), strict=True))


class BudgetController:
    """Ledger of one run behind the guard of its `LLMService`: a hard ceiling for every call.

    A call may take what is left of the budget after the estimate of its prompt; an agent's call
    leaves room for the rating that follows. So the ceiling is exceeded by errors in estimates of
    prompts alone, unless a model ignores its limit; that is charged as well, and nothing is sent
    any more. An attempt whose outcome is unknown counts as spent in full.
    """

    def __init__(self, state: TeamState) -> None:
        self._state = state
        self.lost = 0  # tokens of attempts whose outcome is unknown

    def reserve(self, request: LLMRequest, agent: str) -> Grant:
        """Return what a call may spend; a `BudgetError` if it does not fit or its agent was cut."""
        state, least = self._state, _LEAST_OVERHEAD
        prompt = int(request.context.get("prompt_tokens", request.prompt_tokens_estimate))
        room = int(state.remaining[0])
        if agent in AGENTS:
            least = state.settings.min_completion_tokens
            room -= state.self_eval
            if state.cut[0, AGENTS.index(agent)]:
                raise BudgetError(f"{agent}: was cut off and is not called again.")
        elif agent == SELF_EVAL and room >= 0:
            room = max(room, state.self_eval)  # its room was left, however long the prompts were
        answer = min(request.max_tokens, room - prompt)
        if answer < min(least, request.max_tokens):
            raise BudgetError(
                f"{agent}: the call needs {prompt} tokens for its prompt and at least {least} "
                f"for its answer; {max(room, 0)} of {int(state.budget[0])} are left to it."
            )
        return Grant(prompt + answer, answer)

    def settle(
        self, grant: Grant, agent: str, response: LLMResponse | None, spent: Spent = "nothing"
    ) -> None:
        """Charge what an attempt has spent."""
        if response is not None:
            tokens = response.total_tokens
        else:
            tokens = grant.tokens if spent == "unknown" else 0
            self.lost += tokens
        if agent not in AGENTS:
            self._state.overhead[0] += tokens
            return
        rules.spend(self._state, _ROW, np.array([AGENTS.index(agent)]), np.array([tokens]))


class Orchestrator:
    """One run of the team, written to `log` as it happens, with `run_id` in its events.

    `provider` is the way to the model; None: the simulated one. A wrong strategy is a
    `ConfigError`.
    """

    def __init__(
        self, order: Order, log: EventLog, run_id: str, provider: Provider | None = None
    ) -> None:
        self.order, self._log, self._run_id = order, log, run_id
        self.settings = settings = load_settings()
        self._task = None
        if provider is None:
            drawn = agents.DrawnAnswers(settings, order.seed)
            provider, self._task = Simulated(MODEL, drawn), drawn.task
        self.state = TeamState(settings, 1, settings.overhead.self_eval, MAX_STEPS)
        self.budget = BudgetController(self.state)
        self.service = LLMService({_WAY: provider}, log=log, guard=self.budget)
        self.product = Product(order.task)
        self._policy = order.policy()
        self._rating = float("nan")  # the last one
        self._warning: str | None = None

    async def run(self) -> dict[str, Any]:
        """Play the run and return its summary; an `LLMError` if an agent's call fails."""
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
        answer = await self._ask(PREFLIGHT, agents.preflight(order.task), PREFLIGHT_TOKENS)
        complexity = (json_object(answer or "") or {}).get("complexity")
        if answer is not None and complexity not in COMPLEXITIES:
            self._log.append("malformed", {"agent": PREFLIGHT, "answer": answer[:500]})
        seen = COMPLEXITIES.index(complexity if complexity in COMPLEXITIES else "moderate")
        state.seen[0] = seen
        minimum = int(state.minimum_budget(_ROW)[0])
        result: dict[str, Any] = {"complexity": COMPLEXITIES[seen], "minimum_budget": minimum}
        if order.budget < minimum:
            self._warning = rules.suggestion(order.budget, minimum, seen)
            result |= {"warning": self._warning, "suggested_minimum": minimum}
        self._log.append("preflight", result)
        self._log.append("allocation", {"strategy": strategy, **by_agent(state.left[0])})
        threshold, rating = self.settings.roi_threshold, state.self_eval
        spec = TokenBudgetSpec(self.settings, threshold, order.budget, MAX_STEPS, rating)
        self._policy.reset(spec, [order.seed])
        self._look()

    def _look(self) -> None:
        """Find out what is open, from estimates of the next prompts."""
        if self._task is not None:
            estimates = self._task.prompt_estimates(_ROW)
        else:
            longest = self.state.max_tokens[:, -1].tolist()
            pairs = zip(agents.PROMPTS, longest, strict=True)
            prompts = [prompt(self.product, most) for prompt, most in pairs]
            tokens = [estimate_tokens(p.system) + estimate_tokens(p.user) for p in prompts]
            estimates = np.array([tokens])
        self.state.look(_ROW, estimates, np.array([bool(self.product.draft)]))

    async def _step(self) -> None:
        """Take one decision, carry it out, and write its result."""
        state = self.state
        action = self._policy.act_batch(observe(state, _ROW), state.rows(_ROW), _ROW)
        calling, called, sizes, limits = state.decide(_ROW, np.asarray(action, np.int64))
        chosen = int(action[0])
        output = rules.describe(chosen)
        if len(calling):
            output = await self._call(int(called[0]), int(sizes[0]), int(limits[0]))
        elif rules.REALLOCATE <= chosen < rules.STOP:
            left = by_agent(state.left[0])
            self._log.append("reallocation", {"to": AGENTS[chosen - rules.REALLOCATE], **left})
        self._look()
        self._log.append("trace", {**state.facts(0, chosen), "output": output})
        if event := state.event(0, chosen, self._run_id, output):
            self._log.append(AGENT_STEP, event["data"])

    async def _call(self, agent: int, size: int, limit: int) -> str:
        """Call an agent and score its step; returns its answer."""
        state, name, flags = self.state, AGENTS[agent], list[Flag]()
        prompt, before = agents.PROMPTS[agent](self.product, limit), int(state.used[0, agent])
        tokens = int(state.estimates[0, agent])
        context = {"agent": name, "size": SIZES[size], "prompt_tokens": tokens}
        response = await self.service.acall(
            *prompt[:2], _WAY, limit, prompt.schema, agent=name, context=context
        )
        text = response.content
        if agent == rules.PLANNER:
            fits = agents.take_plan(self.product, text)
        elif agent == rules.EXECUTOR:
            fits = bool(text.strip())
            self.product.draft = text if fits else self.product.draft
        else:
            taken = agents.take_flags(self.product, text)
            fits, flags = taken is not None, taken or []
        if not fits:
            self._log.append("malformed", {"agent": name, "answer": text[:500]})
        open_flags = [number for number, _ in self.product.open_flags]
        rating_prompt, resolved = agents.self_eval(self.product), set[int]()
        answer = await self._ask(SELF_EVAL, rating_prompt, RATING_TOKENS, open_flags=open_flags)
        rating = None if answer is None else agents.read_rating(answer)
        if rating is not None:
            self._rating, numbers = rating
            if agent != rules.CRITIC:  # a review resolves no flags
                resolved = set(numbers) & set(open_flags)
            for number in resolved:
                self.product.flags[number - 1].is_resolved = True
        elif answer is not None:
            self._log.append("malformed", {"agent": SELF_EVAL, "answer": answer[:500]})
        evidence = Evidence(
            np.array([self._rating]),
            np.array([self.product.checklist]),
            np.array([len(flags)]),
            np.array([len(resolved)]),
            np.array([sum(flag.points for flag in flags)], np.float64),
        )
        spent = np.array([int(state.used[0, agent]) - before])
        state.take(_ROW, np.array([agent]), spent, evidence)
        return text

    async def _ask(
        self, caller: str, prompt: Prompt, most_tokens: int, **context: Any
    ) -> str | None:
        """Return the answer to pre-flight or rating; None, and an event, where none comes."""
        context["agent"] = caller
        if self._task is not None:  # what a simulated prompt takes
            tokens = getattr(self.settings.overhead, caller) - agents.OVERHEAD_ANSWER
            context["prompt_tokens"] = tokens
        try:
            response = await self.service.acall(
                *prompt[:2], _WAY, most_tokens, prompt.schema, agent=caller, context=context
            )
        except (BudgetError, LLMError) as error:
            missing = "preflight_missing" if caller == PREFLIGHT else "rating_missing"
            self._log.append(missing, {"reason": str(error)})
            return None
        return response.content

    def summary(self) -> dict[str, Any]:
        """Return output, cost report and the facts of the run, as JSON values."""
        state, budget = self.state, self.order.budget
        spent = int(state.spent[0])
        cost = self.service.get_cost_summary()
        return {
            "output": self.product.draft or self.product.plan,
            "quality": float(state.score[0]),
            "cost_report": {
                "budget": budget,
                "tokens": spent,
                "unspent": max(budget - spent, 0),
                "overshoot": max(spent - budget, 0),
                "overhead_tokens": int(state.overhead[0]),
                "lost_tokens": self.budget.lost,
                "by_agent": by_agent(state.used[0]),
                "last_roi": by_agent(state.last_roi[0]),
                "cut": [name for name, is_cut in by_agent(state.cut[0]).items() if is_cut],
            },
            "ended_by": REASONS[int(self.state.reason[0])],
            **{key: cost[key] for key in ("calls", "cost_usd", "unpriced_models")},
            "simulated": self.service.is_simulated,
            **({"warning": self._warning} if self._warning else {}),
            **({"true_quality": float(self._task.truth(_ROW)[0])} if self._task else {}),
        }


async def play(orchestrator: Orchestrator, log: Any) -> dict[str, Any]:
    """Run to the end and finish the run in its log; returns the summary.

    A call that fails for good ends the run as "failed", with all that there is until then.
    """
    try:
        summary, status = await orchestrator.run(), "complete"
    except LLMError as error:
        summary, status = orchestrator.summary(), "failed"
        summary |= {"ended_by": "error", "error": str(error)}
        log.append("failed", {"error": str(error)})
    log.finish(status, summary)
    return summary
