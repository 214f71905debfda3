"""Report of a run: summary, learned policy, its shifts, the demonstration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from inframind_gym.teams.assignment.coordinator import QLearningCoordinator
from inframind_gym.teams.assignment.model import TaskAssignment
from inframind_gym.teams.assignment.training import Run
from inframind_gym.teams.terminal import plain_table


def summary_table(summary: Mapping[str, Any]) -> Table:
    """Return the figures of a training."""
    simulated = " (virtual)" if summary["simulated"] else ""
    shares = ", ".join(f"{agent} {count}" for agent, count in summary["assignments"].items())
    rows = {
        "mean adjusted reward": f"{summary['mean_adjusted_reward']:.3f}",
        "mean load penalty": f"{summary['mean_load_penalty']:.3f}",
        "final ε": f"{summary['final_epsilon']:.3f}",
        "final imbalance": f"{summary['final_imbalance']:.3f}",
        "LLM calls": str(summary["calls"]),
        "total cost": f"{summary['cost_usd']:.4f} USD{simulated and ' (simulated)'}",
        "elapsed": f"{summary['elapsed_s']:.1f} s{simulated}",
        "assignments": shares,
        "corrections": f"another row chose otherwise {summary['row_shifts']}x, penalties "
        f"{summary['penalised']}x, cooled down {summary['cool_downs']}x",
    }
    if summary["judge_unreadable"]:
        rows["judge"] = f"{summary['judge_unreadable']} answers unreadable: scored 0.5"
    if summary["judge_failed"]:
        rows["judge failed"] = f"{summary['judge_failed']}x: scored 0.5 ({summary['judge_error']})"
    if summary["unpriced_models"]:
        names = ", ".join(summary["unpriced_models"])
        rows["no price for"] = f"{names}: counted as 0 USD; give --prices FILE"
    table = plain_table()
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table


def policy_table(coordinator: QLearningCoordinator[TaskAssignment]) -> Table:
    """Return the greedy action of each task type while load is balanced."""
    table = plain_table("task type", "agent", "provider", ">Q", ">tried")
    for task_type, best in coordinator.policy().items():
        if best is None:
            table.add_row(task_type, "–", "–", "", "0")
            continue
        index = coordinator.actions.index(best)
        row = task_type, "balanced"
        table.add_row(
            task_type,
            best.agent_id,
            str(best.provider),
            f"{coordinator.q_table[row][index]:.3f}",
            str(coordinator.visits[row][index]),
        )
    return table


def policy_shifts(coordinator: QLearningCoordinator[TaskAssignment]) -> list[str]:
    """Return a line for each task type that goes elsewhere while an agent is hot."""
    usual = coordinator.policy()
    lines = []
    for load_state in coordinator.load_states:
        for task_type, best in coordinator.policy(load_state).items():
            before = usual[task_type]
            if best is not None and before is not None and best != before:
                lines.append(f"{load_state}: {task_type} goes to {best.key()}, not {before.key()}")
    return lines


def visited_states(coordinator: QLearningCoordinator[TaskAssignment]) -> list[str]:
    """Return "balanced" and every hot state in which something was learned."""
    return [
        state
        for state in coordinator.load_states
        if state == "balanced"
        or any(np.any(coordinator.visits[t, state]) for t in coordinator.task_types)
    ]


def cost_table(by_model: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return calls, tokens and USD by model."""
    table = plain_table("model", ">calls", ">input tokens", ">output tokens", ">USD")
    for model, spent in by_model.items():
        tokens = (f"{spent[key]:,}" for key in ("input_tokens", "output_tokens"))
        table.add_row(model, str(spent["calls"]), *tokens, f"{spent['cost_usd']:.4f}")
    return table


def print_report(
    console: Console,
    run: Run,
    summary: Mapping[str, Any],
    demo: list[dict[str, Any]],
    health: Mapping[str, Any],
) -> None:
    """Print everything of a run."""
    console.print(summary_table(summary))
    console.print("\n[bold]Costs[/bold]")
    console.print(cost_table(summary["cost_by_model"]))
    learns = isinstance(run.router, QLearningCoordinator)
    if isinstance(run.router, QLearningCoordinator):
        console.print("\n[bold]Routing policy[/bold] (balanced load)")
        console.print(policy_table(run.router))
        console.print("\n[bold]Shifts[/bold] while an agent is hot")
        for line in policy_shifts(run.router) or ["none was learned"]:
            console.print(Text(line))
    if demo:
        how = "greedy, by the table and the load" if learns else f"by {run.options.router}"
        console.print(f"\n[bold]Live demo[/bold]: requests routed {how}")
        for request in demo:
            console.print(Text(_told(request)))
        console.print(
            f"health: {health['status']}, {health['current_load_state']}, imbalance "
            f"{health['imbalance_score']:.3f}, {health['llm_calls']} calls so far",
            highlight=False,
        )


def _told(request: Mapping[str, Any]) -> str:
    if "error" in request:
        return f"error: {request['error']}"
    return (
        f"{request['task_type']:<10} {request['load_state']:<15} -> "
        f"{request['agent'] + ':' + request['provider']:<20} reward {request['reward']:.3f} "
        f"(penalty {request['load_penalty']:.3f})"
    )
