"""Pictures of a run: dashboard of six panels, load states, Q-tables."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from inframind_gym.teams.assignment import rules
from inframind_gym.teams.assignment.app import Run, WorkflowState
from inframind_gym.teams.assignment.coordinator import QLearningCoordinator
from inframind_gym.teams.assignment.rules import AGENTS, CRITERIA, LOAD_STATES, TASK_TYPES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Distinct for colour-blind readers (Okabe and Ito).
_COLOURS: Final = dict(zip(AGENTS, ("#0072B2", "#D55E00", "#009E73", "#CC79A7"), strict=True))


def write_plots(run: Run, folder: Path) -> list[Path]:
    """Write the pictures of a run as PNG files and return their paths; needs matplotlib."""
    assert run.final is not None, "train first"
    from matplotlib.figure import Figure

    figures = {"dashboard": _dashboard(run.final)}
    figures["load_states"] = Figure(figsize=(7.0, 4.0), layout="constrained")
    counts = Counter(entry["load_state"] for entry in run.final["load_log"])
    axis = figures["load_states"].subplots()
    colours = ["#555555", *_COLOURS.values()]
    axis.bar_label(axis.bar(LOAD_STATES, [counts[s] for s in LOAD_STATES], color=colours))
    axis.set(title="Load states in which tasks were assigned", ylabel="tasks")
    if isinstance(run.coordinator, QLearningCoordinator):
        figures["q_tables"] = _q_tables(run.coordinator)
    paths = []
    for name, figure in figures.items():
        if run.llm_service.is_simulated:
            figure.suptitle("Assignment team (simulated)", fontsize=12)
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=110)
    return paths


def _dashboard(final: WorkflowState) -> Figure:
    """Draw rewards, scores, shares, rewards by type, load over time, penalty and imbalance."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15.0, 8.5), layout="constrained")
    rewarded, scored, shared, typed, window, penalised = figure.subplots(2, 3).flat
    load, rewards, done = final["load_log"], final["rewards_log"], final["assignments_log"]
    tasks, span = np.arange(1, len(load) + 1), max(5, len(load) // 20)

    def smooth(axis: Any, values: list[float], label: str, colour: str | None = None) -> None:
        """Plot the mean of each value and those shortly before it."""
        means = [float(np.mean(values[max(0, i + 1 - span) : i + 1])) for i in range(len(values))]
        axis.plot(tasks, means, label=label, color=colour)

    raw = [entry["raw_reward"] for entry in load]
    for values, colour, name in ((raw, "#555555", "raw"), (rewards, "#0072B2", "adjusted")):
        rewarded.plot(tasks, values, ".", color=colour, alpha=0.45, markersize=5)
        smooth(rewarded, values, name, colour)
    rewarded.set(title=f"Rewards, and means of {span}", xlabel="task", ylim=(0.0, 1.0))
    for criterion in CRITERIA:
        values = [scores[criterion] for scores in final["scores_log"]]
        smooth(scored, values, criterion.replace("_", " "))
    scored.set(title=f"Scores of the judge, means of {span}", xlabel="task", ylim=(0.0, 1.0))

    counts = Counter(entry["agent_id"] for entry in done)
    shares = [100.0 * counts[agent] / len(load) for agent in AGENTS]
    shared.bar_label(shared.bar(AGENTS, shares, color=list(_COLOURS.values())), fmt="%.0f %%")
    shared.axhline(100.0 / len(AGENTS), color="black", ls="--", lw=1, label="fair share")
    shared.set(title="Tasks by agent", ylabel="% of tasks")
    pairs = list(zip(done, rewards, strict=True))
    typed.boxplot(
        [[r for d, r in pairs if d["task_type"] == t] for t in TASK_TYPES], showmeans=True
    )
    typed.set_xticks(range(1, len(TASK_TYPES) + 1), TASK_TYPES)
    typed.set(title="Adjusted reward by type of task", ylim=(0.0, 1.0))

    for agent, colour in _COLOURS.items():
        smooth(window, [100.0 * entry["utilization"][agent] for entry in load], agent, colour)
    hot_share = 100.0 * rules.HOT_THRESHOLD / len(AGENTS)
    window.axhline(hot_share, color="black", ls="--", lw=1, label="hot above")
    window.set(title=f"Share of the last {rules.WINDOW} tasks, %", xlabel="task", ylim=(0, 130))
    penalised.bar(tasks, [entry["load_penalty"] for entry in load], color="#EEAA80", width=1.0)
    penalised.set(title="Load penalty (bars) and imbalance", xlabel="task", ylabel="penalty")
    right = penalised.twinx()
    smooth(right, [entry["imbalance"] for entry in load], "imbalance", "#0072B2")
    right.set(ylabel="imbalance (coefficient of variation)", ylim=(0.0, 2.4))
    for axis in (rewarded, scored, shared, window):
        axis.legend(fontsize=8)
    return figure


def _q_tables(learner: QLearningCoordinator[Any]) -> Figure:
    """Return a heatmap of the Q-table for balanced load and each hot state that was visited."""
    from matplotlib.figure import Figure

    types, tables = learner.task_types, {}
    for state in learner.load_states:
        unseen = np.array([learner.visits[t, state] == 0 for t in types])
        if state == "balanced" or not unseen.all():
            tables[state] = np.ma.masked_array([learner.q_table[t, state] for t in types], unseen)
    highest = max(float(table.filled(0.0).max()) for table in tables.values())
    figure = Figure(figsize=(9.0, 2.7 * len(tables) + 1.0), layout="constrained")
    axes, image = figure.subplots(len(tables), squeeze=False)[:, 0], cast("Any", None)
    names = [action.key().replace(":", "\n") for action in learner.actions]
    for axis, (state, values) in zip(axes, tables.items(), strict=True):
        image = axis.imshow(values, vmin=0.0, vmax=highest, aspect="auto")
        for (row, column), value in np.ndenumerate(values.filled(np.nan)):
            if np.isfinite(value):
                best = "bold" if value == values[row].max() else "normal"
                colour = "white" if value < highest / 2 else "black"
                place: Any = {"ha": "center", "va": "center", "color": colour, "weight": best}
                axis.text(column, row, f"{value:.2f}", **place)
        axis.set_xticks(range(len(names)), names, fontsize=7)
        axis.set_yticks(range(len(types)), types, fontsize=8)
        axis.set_title(f"{state} (bold: greedy action; white: never tried)", fontsize=10)
    figure.colorbar(image, ax=list(axes), label="Q", shrink=0.8)
    return figure
