"""Events of a run, as WebSocket clients get them and as the environment puts them into `info`."""

from __future__ import annotations

from typing import Any, Final, Literal

from inframind_gym.configs import StrictModel
from inframind_gym.teams.token_budget.settings import AGENTS

PREVIEW_CHARS: Final = 200
AGENT_STEP: Final = "agent_step"
RUNNING, CUT_OFF, COMPLETE = "running", "cutoff", "complete"
Status = Literal["running", "cutoff", "complete"]


class AgentStepData(StrictModel):
    """One step of an agent.

    Attributes:
        run_id: of the run.
        agent: who.
        iteration: number of the agent's call, from 1.
        tokens_used: of this step.
        tokens_remaining: of the budget.
        quality_score: 0-100, by the proxies.
        quality_delta: points of the step.
        roi: points per token.
        cumulative_tokens: of the run.
        status: "cutoff" when the agent is cut off, "complete" at the end of the run.
        output_preview: first 200 characters of the answer.
    """

    run_id: str
    agent: Literal["planner", "executor", "critic"]
    iteration: int
    tokens_used: int
    tokens_remaining: int
    quality_score: float
    quality_delta: float
    roi: float
    cumulative_tokens: int
    status: Status
    output_preview: str


class AgentStep(StrictModel):
    """An event with its name."""

    event: Literal["agent_step"]
    data: AgentStepData


def agent_step(
    run_id: str,
    agent: int,
    *,
    iteration: int,
    tokens_used: int,
    tokens_remaining: int,
    quality_score: float,
    quality_delta: float,
    roi: float,
    cumulative_tokens: int,
    status: str,
    output: str,
) -> dict[str, Any]:
    """Return the event of a step as JSON values; arguments are those of `AgentStepData`."""
    return {
        "event": AGENT_STEP,
        "data": {
            "run_id": run_id,
            "agent": AGENTS[agent],
            "iteration": iteration,
            "tokens_used": tokens_used,
            "tokens_remaining": tokens_remaining,
            "quality_score": round(quality_score, 4),
            "quality_delta": round(quality_delta, 4),
            "roi": round(roi, 6),
            "cumulative_tokens": cumulative_tokens,
            "status": status,
            "output_preview": output[:PREVIEW_CHARS],
        },
    }
