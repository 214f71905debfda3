"""The application: pre-flight, allocation, agent calls, scores, and decisions on what they return.

The loop is the environment's, with a model in place of the draws. Planner, executor and critic are
one call each, with a template and the product so far; no tools, no memory. Three proxies score a
step: a rating of the product by a model (0-100), the critic's flags that the rating says are
resolved, and a checklist of the parts that are there. An answer that is not of the asked form costs
its tokens and changes as little as possible; where no rating comes the last one stays in place.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import numpy as np
from pydantic import Field, field_validator

from inframind_gym.configs import NonNegativeInt, StrictModel, within
from inframind_gym.envs.token_budget import LEAST_BUDGET, MOST_BUDGET, TokenBudgetSpec, observe
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.policies import POLICIES, Policy, policy_names, resolve_policy
from inframind_gym.teams import llm
from inframind_gym.teams.llm import json_object, list_schema, object_schema
from inframind_gym.teams.runs import RunLog, Status
from inframind_gym.teams.state import key_of
from inframind_gym.teams.token_budget import rules
from inframind_gym.teams.token_budget.settings import (
    AGENTS,
    COMPLEXITIES,
    SIZES,
    STRATEGIES,
    TeamSettings,
    load_settings,
)
from inframind_gym.teams.token_budget.simulate import Calls, SimulatedTask

TEAM: Final = "token-budget"
ADAPTIVE: Final = "adaptive_roi"  # plays the mode "adaptive"; others are policies by their names
MOST_TASK_CHARS: Final = 100_000
MAX_STEPS: Final = 20
RATING_TOKENS: Final = 60  # of a rating's answer at most
PREFLIGHT_TOKENS: Final = 30  # of the pre-flight's
_LEAST_OVERHEAD: Final = 8  # tokens of an answer to pre-flight or rating
_PROVIDER: Final = "team"  # its name in the service
SELF_EVAL: Final = "self_eval"  # callers that are no agent
PREFLIGHT: Final = "preflight"
DEFAULT_SECTIONS: Final = ("Summary", "Approach", "Details", "Next steps")
PLAN_PARTS: Final = ("goal", "steps", "sections", "risks")  # checklist of a plan
CRITERIA: Final = ("completeness", "clarity", "actionability")
MOST_FLAGS: Final = 5  # of one review
MARK: Final = "[simulated]"
OVERHEAD_ANSWER: Final = 30  # tokens of a drawn rating or pre-flight; the rest is its prompt
_WORDS_PER_TOKEN: Final = 0.6  # of English text 0.75; what is left keeps answers from being cut
_ROW: Final = np.zeros(1, np.int64)


@dataclass(slots=True)
class Flag:
    """A defect that the critic has found, and the points of quality it says it costs."""

    issue: str
    points: float
    is_resolved: bool = False


@dataclass(slots=True)
class Product:
    """Work of the team so far; agents see it, and nothing else."""

    task: str
    plan: str = ""
    plan_share: float = 0.0  # of PLAN_PARTS that the plan has
    sections: tuple[str, ...] = DEFAULT_SECTIONS  # headings that a draft is to have
    draft: str = ""
    flags: list[Flag] = field(default_factory=list)  # of the critic, in order

    @property
    def open_flags(self) -> list[int]:
        """Numbers, from 1, of the flags that are not resolved."""
        return [number for number, flag in enumerate(self.flags, 1) if not flag.is_resolved]

    @property
    def checklist(self) -> float:
        """Share of the structure that is there: parts of the plan, or sections of the draft."""
        if not self.draft:
            return self.plan_share if self.plan else float("nan")
        lines = [line.strip("#*: ").lower() for line in self.draft.splitlines()]
        return sum(title.lower() in lines for title in self.sections) / len(self.sections)


_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "number"}


def prompt_of(caller: str, product: Product, max_tokens: int) -> llm.Prompt:
    """Return the prompt of an agent, of the pre-flight or of a rating, for so long an answer."""
    length = f" Use at most {int(_WORDS_PER_TOKEN * max_tokens)} words."
    open_flags = (f"{number}. {product.flags[number - 1].issue}" for number in product.open_flags)
    defects = "Defects", "\n".join(open_flags)

    def user_text(*parts: tuple[str, str]) -> str:
        """Return the task, and the titled parts of the product that are not empty."""
        listed = "".join(f"\n\n{title}:\n{text}" for title, text in parts if text)
        return f"Task: {product.task}{listed}"

    match caller:
        case "planner":
            return llm.Prompt(
                "You plan how a task is answered; you do not answer it. Return one JSON object: "
                "goal (text), steps (list), sections (list of four headings of the answer), risks "
                "(list)." + length,
                user_text(("Earlier plan, to be improved", product.plan)),
                object_schema(goal=_TEXT, **dict.fromkeys(PLAN_PARTS[1:], list_schema(_TEXT))),
            )
        case "executor":
            system = (
                "You write the answer to a task in Markdown, with exactly these headings (##): "
                f"{', '.join(product.sections)}."
            )
            if product.draft:
                system += " Return the whole answer, improved; mend every defect that is listed."
            parts = ("Plan", product.plan), ("Draft", product.draft), defects
            return llm.Prompt(system + length, user_text(*parts), None)
        case "critic":
            return llm.Prompt(
                f"You review an answer. Return one JSON object: flags, a list of at most "
                f"{MOST_FLAGS} defects, each with issue (text) and points (0-20, what mending it "
                "would add to a quality of 0-100). Return an empty list where there is no defect."
                + length,
                user_text(("Answer", product.draft)),
                object_schema(flags=list_schema(object_schema(issue=_TEXT, points=_NUMBER))),
            )
        case "self_eval":
            return llm.Prompt(
                "Rate this output 0-100 on completeness, clarity, actionability. Return one JSON "
                "object with these three numbers, and resolved: the numbers of the listed defects "
                "that the output no longer has.",
                user_text(("Output", product.draft or product.plan), defects),
                object_schema(
                    **dict.fromkeys(CRITERIA, _NUMBER),
                    resolved=list_schema({"type": "integer"}),
                ),
            )
    return llm.Prompt(
        "Classify the task as simple, moderate or complex by the work that a good answer takes. "
        "Return one JSON object with the key complexity.",
        product.task,
        object_schema(complexity={"enum": list(COMPLEXITIES)}),
    )


# Reading answers


def take(product: Product, agent: int, text: str) -> list[Flag] | None:
    """Put an answer into the product; returns its flags, None if it is not of the asked form."""
    answer = json_object(text)
    if agent == rules.EXECUTOR:
        product.draft = text if text.strip() else product.draft
        return [] if text.strip() else None
    if agent == rules.PLANNER:
        product.plan = text
        product.plan_share = sum(bool(answer.get(part)) for part in PLAN_PARTS) / len(PLAN_PARTS)
        titles = answer.get("sections")
        if isinstance(titles, list) and titles and all(isinstance(t, str) for t in titles):
            product.sections = tuple(title.strip("#*: ") for title in titles[:8])
        return [] if answer else None
    items = answer.get("flags")
    if not isinstance(items, list):
        return None
    flags = [
        Flag(str(item["issue"]), _between(item.get("points"), 0.0, 20.0) or 0.0)
        for item in items[:MOST_FLAGS]
        if isinstance(item, dict) and item.get("issue")
    ]
    product.flags += flags
    return flags


def read_rating(text: str) -> tuple[float, list[int]] | None:
    """Return a rating (0-100) and the numbers of resolved flags; None if it was malformed."""
    rating = json_object(text)
    scores = [s for name in CRITERIA if (s := _between(rating.get(name), 0.0, 100.0)) is not None]
    if len(scores) < len(CRITERIA):
        return None
    items = rating.get("resolved")
    numbers = [n for n in items if type(n) is int] if isinstance(items, list) else []
    return sum(scores) / len(CRITERIA), numbers


def _between(value: object, low: float, high: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if low <= value <= high else None


# The simulated provider


class DrawnAnswers(llm.Provider):
    """Answers of one run, drawn as the environment of the same seed draws them."""

    model = "simulated-team"
    is_simulated = True

    def __init__(self, settings: TeamSettings, seed: int) -> None:
        self._settings = settings
        self.task = SimulatedTask(settings, 1)
        self.task.start(_ROW, key_of(seed))
        self._last: Calls | None = None

    async def complete(self, request: llm.LLMRequest) -> llm.LLMResponse:
        """See `Provider`."""
        agent, overhead = request.context["agent"], self._settings.overhead
        if agent == PREFLIGHT:
            seen = COMPLEXITIES[int(self.task.seen[0])]
            return self._overhead({"complexity": seen}, overhead.preflight)
        if agent == SELF_EVAL:
            assert self._last is not None, "a rating follows a call"
            evidence = self._last.evidence
            score, count = float(evidence.self_eval[0]), int(evidence.resolved[0])
            oldest = request.context["open_flags"][:count]
            rating = {**dict.fromkeys(CRITERIA, score), "resolved": oldest}
            return self._overhead(rating, overhead.self_eval)
        which, size = AGENTS.index(agent), SIZES.index(request.context["size"])
        limit = np.array([request.max_tokens])
        self._last = calls = self.task.call(_ROW, np.array([which]), np.array([size]), limit)
        reason = "length" if calls.cut_off[0] else "stop"
        text = self._text(which, calls)
        return self._completion(text, int(calls.prompt[0]), int(calls.completion[0]), reason)

    def _overhead(self, answer: dict[str, Any], tokens: int) -> llm.LLMResponse:
        output = min(OVERHEAD_ANSWER, tokens)
        return self._completion(json.dumps(answer), tokens - output, output)

    def _completion(
        self, text: str, prompt: int, output: int, reason: str = "stop"
    ) -> llm.LLMResponse:
        seconds = self._settings.simulation.seconds
        latency_s = seconds.first_token + seconds.per_token * output
        return llm.LLMResponse(text, prompt, output, reason, latency_s)

    def _text(self, agent: int, calls: Calls) -> str:
        """Return the text of an answer, of the form that its checklist and flags were drawn for."""
        evidence, number = calls.evidence, int(self.task.calls[0, agent])
        share = float(np.nan_to_num(evidence.checklist[0]))
        if agent == rules.EXECUTOR:
            titles = DEFAULT_SECTIONS[: round(share * len(DEFAULT_SECTIONS))]
            body = f"{MARK} version {number}"
            return "\n\n".join(f"## {title}\n{body}" for title in titles) or body
        if agent == rules.CRITIC:
            count = int(evidence.new_flags[0])
            points = float(evidence.claimed[0]) / max(count, 1)
            issues = [f"{MARK} defect {i + 1} of review {number}" for i in range(count)]
            return json.dumps({"flags": [{"issue": issue, "points": points} for issue in issues]})
        full = bool(self.task.has_draft(_ROW)[0]) or share > 0.5
        return json.dumps(
            {
                "goal": f"{MARK} answer the task" if full else "",
                "steps": [f"{MARK} step {i}" for i in (1, 2, 3)],
                "sections": DEFAULT_SECTIONS,
                "risks": [f"{MARK} a risk"] if full else [],
            }
        )


# A run


class Order(StrictModel):
    """A task with its budget and strategy, a mode or a policy; also the body of ``POST /run``."""

    task: Annotated[str, Field(min_length=1, max_length=MOST_TASK_CHARS)]
    budget: Annotated[int, within(LEAST_BUDGET, MOST_BUDGET)] = 20_000  # hard ceiling, in tokens
    strategy: str = "adaptive"
    seed: NonNegativeInt = 0  # of the simulated provider, and of the policy

    @field_validator("strategy")
    @classmethod
    def _can_play(cls, strategy: str) -> str:
        policy_of(strategy)
        return strategy


def policy_of(strategy: str) -> Policy[TokenBudgetSpec, rules.TeamState]:
    """Make the policy of a strategy; a `ConfigError` if there is none, or its arguments are wrong.

    Orders come from the network: no module is imported and no folder is read at their word.
    """
    name, *arguments = strategy.split(":")
    names = policy_names("token_budget")
    if strategy not in STRATEGIES and name not in names:
        raise ConfigError(unknown("strategy", strategy, dict.fromkeys((*STRATEGIES, *names))))
    if arguments and "folder" in POLICIES["token_budget"][name].args:
        raise ConfigError(f"{name} takes no folder in an order; write {name}, the shipped network")
    return resolve_policy(ADAPTIVE if strategy == "adaptive" else strategy, family="token_budget")


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

    def __init__(self, state: rules.TeamState) -> None:
        self.state = state
        self.lost = 0  # tokens of attempts whose outcome is unknown

    def reserve(self, request: llm.LLMRequest, agent: str) -> int:
        """Return the tokens of an answer that fits; a `BudgetError` if none does, or it was cut."""
        state, least = self.state, _LEAST_OVERHEAD
        prompt, room = request.prompt_tokens_estimate, int(state.remaining[0])
        if agent in AGENTS:
            least = state.settings.min_completion_tokens
            room -= state.self_eval
            if state.cut[0, AGENTS.index(agent)]:
                raise llm.BudgetError(f"{agent}: was cut off and is not called again.")
        elif agent == SELF_EVAL and room >= 0:
            room = max(room, state.self_eval)  # its room was left, however long the prompts were
        answer = min(request.max_tokens, room - prompt)
        if answer < min(least, request.max_tokens):
            raise llm.BudgetError(
                f"{agent}: the call needs {prompt} tokens for its prompt and at least {least} "
                f"for its answer; {max(room, 0)} of {int(state.budget[0])} are left to it."
            )
        return answer

    def settle(self, agent: str, tokens: int, *, is_lost: bool) -> None:
        """Charge what an attempt has spent."""
        self.lost += tokens * is_lost
        if agent not in AGENTS:
            self.state.overhead[0] += tokens
            return
        rules.spend(self.state, _ROW, np.array([AGENTS.index(agent)]), np.array([tokens]))


class Orchestrator:
    """One run of the team, written to `log` as it happens.

    `provider` is that of the model; None: the simulated one.
    """

    def __init__(self, order: Order, log: RunLog, provider: llm.Provider | None = None) -> None:
        self.order, self._log = order, log
        self.settings = settings = load_settings()
        self._task = None
        if provider is None:
            provider = drawn = DrawnAnswers(settings, order.seed)
            self._task = drawn.task
        self.state = rules.TeamState(settings, 1, settings.overhead.self_eval, MAX_STEPS)
        self.budget = BudgetController(self.state)
        self.service = llm.LLMService({_PROVIDER: provider}, log=log, guard=self.budget)
        self.product = Product(order.task)
        self._policy = policy_of(order.strategy)
        self._rating = float("nan")  # the last one
        self._warning: str | None = None

    async def run(self) -> dict[str, Any]:
        """Play the run, finish it in its log, and return its summary.

        A call that fails for good ends the run as "failed", with all that there is until then;
        Ctrl-C, or who stops it in the studio, as "interrupted".
        """
        status: Status = "complete"
        failure: dict[str, Any] = {}
        try:
            await self._prepare()
            while not self.state.over[0]:
                await self._step()
        except llm.LLMError as error:
            status, failure = "failed", {"ended_by": "error", "error": str(error)}
            self._log.append("failed", {"error": str(error)})
        except (KeyboardInterrupt, asyncio.CancelledError) as stop:
            self._log.finish("interrupted", {**self.summary(), "error": str(stop) or "Ctrl-C"})
            raise
        finally:
            await self.service.aclose()
        summary = self.summary() | failure
        self._log.finish(status, summary)
        return summary

    async def _prepare(self) -> None:
        """Run the pre-flight, narrow the task or warn, and allocate."""
        state, order = self.state, self.order
        strategy = getattr(self._policy, "strategy", "adaptive")
        state.begin(_ROW, order.budget, STRATEGIES.index(strategy), np.array([0]), 0)
        answer = await self._ask(PREFLIGHT, PREFLIGHT_TOKENS)
        complexity = json_object(answer or "").get("complexity")
        self._check(PREFLIGHT, answer, complexity in COMPLEXITIES)
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
        """Find the open actions, from estimates of the next prompts."""
        if self._task is not None:
            estimates = self._task.prompt_estimates(_ROW)
        else:
            longest = by_agent(self.state.max_tokens[:, -1])
            prompts = [prompt_of(agent, self.product, most) for agent, most in longest.items()]
            tokens = [llm.estimate_tokens(p.system) + llm.estimate_tokens(p.user) for p in prompts]
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
        if event := state.event(0, chosen, self._log.run_id, output):
            self._log.append(rules.AGENT_STEP, event["data"])

    async def _call(self, agent: int, size: int, limit: int) -> str:
        """Call an agent and score its step; returns its answer."""
        state, product, name = self.state, self.product, AGENTS[agent]
        before, tokens = int(state.used[0, agent]), int(state.estimates[0, agent])
        text = await self._send(name, limit, size=SIZES[size], prompt_tokens=tokens)
        flags = take(product, agent, text)
        self._check(name, text, flags is not None)
        open_flags, resolved = product.open_flags, set[int]()
        answer = await self._ask(SELF_EVAL, RATING_TOKENS, open_flags=open_flags)
        rating = None if answer is None else read_rating(answer)
        self._check(SELF_EVAL, answer, rating is not None)
        if rating is not None:
            self._rating, numbers = rating
            if agent != rules.CRITIC:  # a review resolves no flags
                resolved = set(numbers) & set(open_flags)
            for number in resolved:
                product.flags[number - 1].is_resolved = True
        evidence = rules.Evidence(
            np.array([self._rating]),
            np.array([product.checklist]),
            np.array([len(flags or ())]),
            np.array([len(resolved)]),
            np.array([sum(flag.points for flag in flags or ())], np.float64),
        )
        spent = np.array([int(state.used[0, agent]) - before])
        state.take(_ROW, np.array([agent]), spent, evidence)
        return text

    async def _ask(self, caller: str, most_tokens: int, **context: Any) -> str | None:
        """Return the answer to pre-flight or rating; None, and an event, where none comes."""
        if self._task is not None:  # what a simulated prompt takes
            tokens = getattr(self.settings.overhead, caller) - OVERHEAD_ANSWER
            context["prompt_tokens"] = tokens
        try:
            return await self._send(caller, most_tokens, **context)
        except (llm.BudgetError, llm.LLMError) as error:
            missing = "preflight_missing" if caller == PREFLIGHT else "rating_missing"
            self._log.append(missing, {"reason": str(error)})
            return None

    async def _send(self, caller: str, most_tokens: int, **context: Any) -> str:
        """Call the model for an agent, a pre-flight or a rating; returns its answer."""
        prompt, context = prompt_of(caller, self.product, most_tokens), {"agent": caller, **context}
        response = await self.service.acall(
            *prompt[:2], _PROVIDER, most_tokens, prompt.schema, agent=caller, context=context
        )
        return response.content

    def _check(self, caller: str, answer: str | None, fits: bool) -> None:
        """Write an answer that is not of the asked form."""
        if answer is not None and not fits:
            self._log.append("malformed", {"agent": caller, "answer": answer[:500]})

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
            "ended_by": rules.REASONS[int(self.state.reason[0])],
            **{key: cost[key] for key in ("calls", "cost_usd", "unpriced_models")},
            "simulated": self.service.is_simulated,
            **({"warning": self._warning} if self._warning else {}),
            **({"true_quality": float(self._task.truth(_ROW)[0])} if self._task else {}),
        }
