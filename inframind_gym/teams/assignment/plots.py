"""Pictures of a run: dashboard of six panels, load states, Q-tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from inframind_gym.errors import ConfigError, require
from inframind_gym.teams.assignment.coordinator import QLearningCoordinator
from inframind_gym.teams.assignment.graph import WorkflowState
from inframind_gym.teams.assignment.model import TaskAssignment
from inframind_gym.teams.assignment.report import visited_states
from inframind_gym.teams.assignment.rules import (
    AGENTS,
    CRITERIA,
    HOT_THRESHOLD,
    LOAD_STATES,
    MAX_PENALTY,
    TASK_TYPES,
    WINDOW,
)
from inframind_gym.teams.assignment.training import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Final = {  # of agents: distinct for colour-blind readers (Okabe and Ito)
    "analyst": "#0072B2",
    "coder": "#D55E00",
    "researcher": "#009E73",
    "validator": "#CC79A7",
}
_GREY: Final = "#555555"
_MANY: Final = 120  # tasks from which on load is shown as running means, too
_DPI: Final = 110


def check_plots(folder: Path) -> None:
    """Refuse a folder or an installation that cannot hold pictures, before a run is made.

    Raises:
        ConfigError: matplotlib is missing, or the folder cannot be made.
    """
    require("matplotlib", "--plots", "plot")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error.strerror}). Name another.") from None


def write_plots(run: Run, folder: Path) -> list[Path]:
    """Write the pictures of a run as PNG files and return their paths."""
    assert run.final is not None, "train first"
    mark = " (simulated)" if run.service.is_simulated else ""
    figures = {"dashboard": dashboard(run.final, mark), "load_states": load_states(run.final, mark)}
    if isinstance(run.router, QLearningCoordinator):
        figures["q_tables"] = q_tables(run.router, mark)
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=_DPI)
    return paths


def dashboard(final: WorkflowState, mark: str) -> Figure:
    """Return the six panels."""
    figure = _figure((15.0, 8.5), "Assignment team" + mark)
    axes = figure.subplots(2, 3)
    panels = (_rewards, _scores, _shares, _by_type, _utilization, _penalty)
    for axis, panel in zip(axes.flat, panels, strict=True):
        panel(axis, final)
    return figure


def load_states(final: WorkflowState, mark: str) -> Figure:
    """Return the bars of load states at decisions."""
    figure = _figure((7.5, 4.0), "Load states at decisions" + mark)
    axis = figure.subplots()
    counts = Counter(entry["load_state"] for entry in final["load_log"])
    colours = [_GREY, *(_COLOURS[agent] for agent in AGENTS)]
    bars = axis.bar(
        [state.replace("_", "\n") for state in LOAD_STATES],
        [counts[state] for state in LOAD_STATES],
        color=colours,
        width=0.7,
    )
    axis.bar_label(bars)
    _dress(axis, "", "tasks", x="")
    axis.margins(y=0.12)
    return figure


def q_tables(coordinator: QLearningCoordinator[TaskAssignment], mark: str) -> Figure:
    """Return a heatmap of the Q-table for balanced load and each hot state that was visited."""
    states = visited_states(coordinator)
    shown = {
        state: np.ma.masked_array(
            [coordinator.q_table[t, state] for t in coordinator.task_types],
            mask=[coordinator.visits[t, state] == 0 for t in coordinator.task_types],
        )
        for state in states
    }
    lowest = min((float(q.min()) for q in shown.values() if q.count()), default=0.0)
    highest = max((float(q.max()) for q in shown.values() if q.count()), default=1.0)
    columns = min(2, len(states))
    rows = -(-len(states) // columns)
    title = f"Q-table by load state{mark}\ngrey: never tried; frame: greedy action"
    figure = _figure((7.4 * columns, 2.7 * rows + 1.0), title)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(states) :]:
        axis.set_visible(False)
    image = None
    for axis, state in zip(axes.flat, states, strict=False):
        image = _heatmap(axis, coordinator, state, shown[state], (lowest, highest))
    if image is not None:
        figure.colorbar(image, ax=axes, label="Q", shrink=0.8)
    return figure


def _heatmap(
    axis: Axes,
    coordinator: QLearningCoordinator[TaskAssignment],
    state: str,
    values: Any,
    limits: tuple[float, float],
) -> Any:
    axis.set_facecolor("#DDDDDD")
    image = axis.imshow(values, cmap="viridis", vmin=limits[0], vmax=limits[1], aspect="auto")
    middle = sum(limits) / 2.0
    for (row, column), value in np.ndenumerate(values):
        if not np.ma.getmaskarray(values)[row, column]:
            colour = "white" if value < middle else "black"
            axis.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, size=8)
    for row, best in enumerate(coordinator.policy(state).values()):
        if best is not None:
            from matplotlib.patches import Rectangle

            corner = (coordinator.actions.index(best) - 0.47, row - 0.46)
            axis.add_patch(Rectangle(corner, 0.94, 0.92, fill=False, edgecolor="red", lw=1.8))
    names = [f"{a.agent_id}\n{a.provider}" for a in coordinator.actions]
    axis.set_xticks(range(len(names)), names, fontsize=7)
    axis.set_yticks(range(len(coordinator.task_types)), coordinator.task_types, fontsize=8)
    axis.set_title(state, fontsize=10)
    return image


def _rewards(axis: Axes, final: WorkflowState) -> None:
    raw = [entry["raw_reward"] for entry in final["load_log"]]
    tasks = np.arange(1, len(raw) + 1)
    for values, colour, name in (
        (raw, _GREY, "raw"),
        (final["rewards_log"], "#0072B2", "adjusted"),
    ):
        axis.plot(tasks, values, ".", color=colour, alpha=0.45, markersize=5)
        axis.plot(tasks, _smooth(values), color=colour, label=f"{name}, mean of {_span(values)}")
    _dress(axis, "Raw and adjusted reward", "reward", top=1.0)
    axis.legend(loc="lower right", fontsize=8)


def _scores(axis: Axes, final: WorkflowState) -> None:
    for criterion, style in zip(CRITERIA, ("-", "--", "-.", ":"), strict=True):
        values = [scores[criterion] for scores in final["scores_log"]]
        tasks = np.arange(1, len(values) + 1)
        axis.plot(tasks, _smooth(values), style, label=criterion.replace("_", " "), lw=1.6)
    span = _span(final["scores_log"])
    _dress(axis, f"Scores of the judge, mean of {span}", "score", top=1.0)
    axis.legend(loc="lower right", fontsize=8, ncols=2)


def _shares(axis: Axes, final: WorkflowState) -> None:
    counts = Counter(entry["agent_id"] for entry in final["assignments_log"])
    total = max(1, sum(counts.values()))
    shares = [100.0 * counts[agent] / total for agent in AGENTS]
    bars = axis.bar(AGENTS, shares, color=[_COLOURS[a] for a in AGENTS], width=0.7)
    axis.bar_label(bars, fmt="%.0f %%", fontsize=8)
    axis.axhline(100.0 / len(AGENTS), color="black", ls="--", lw=1, label="fair share")
    _dress(axis, "Tasks by agent", "% of tasks", x="")
    axis.margins(y=0.12)
    axis.legend(fontsize=8)


def _by_type(axis: Axes, final: WorkflowState) -> None:
    groups: dict[str, list[float]] = {name: [] for name in TASK_TYPES}
    pairs = zip(final["assignments_log"], final["rewards_log"], strict=True)
    for assignment, reward in pairs:
        groups[assignment["task_type"]].append(reward)
    seen = {name: values for name, values in groups.items() if values}
    axis.boxplot(list(seen.values()), widths=0.55, showmeans=True, medianprops={"color": "black"})
    names = [f"{name}\nn = {len(values)}" for name, values in seen.items()]
    axis.set_xticks(range(1, len(names) + 1), names)
    _dress(axis, "Adjusted reward by type of task (triangle: mean)", "reward", x="", top=1.0)


def _utilization(axis: Axes, final: WorkflowState) -> None:
    for agent in AGENTS:
        values = [100.0 * entry["utilization"][agent] for entry in final["load_log"]]
        tasks = np.arange(1, len(values) + 1)
        if len(values) > _MANY:
            axis.plot(tasks, _smooth(values), color=_COLOURS[agent], label=agent)
        else:
            axis.plot(tasks, values, color=_COLOURS[agent], label=agent, drawstyle="steps-post")
    hot_share = 100.0 * HOT_THRESHOLD / len(AGENTS)
    axis.axhline(hot_share, color="black", ls="--", lw=1, label="hot above")
    many = f", mean of {_span(final['load_log'])}" if len(final["load_log"]) > _MANY else ""
    _dress(axis, f"Share of the last {WINDOW} tasks{many}", "%", top=130.0)
    axis.set_yticks(range(0, 101, 20))
    axis.legend(fontsize=8, ncols=3, loc="upper center")


def _penalty(axis: Axes, final: WorkflowState) -> None:
    load = final["load_log"]
    tasks = np.arange(1, len(load) + 1)
    penalty = [entry["load_penalty"] for entry in load]
    imbalance = [entry["imbalance"] for entry in load]
    many = ""
    if len(load) > _MANY:
        penalty, imbalance = _smooth(penalty), _smooth(imbalance)
        many = f", mean of {_span(load)}"
    penalties = axis.bar(tasks, penalty, color="#EEAA80", width=1.0)
    _dress(axis, f"Load penalty and imbalance{many}", "penalty", top=1.4 * MAX_PENALTY)
    right = axis.twinx()
    (line,) = right.plot(tasks, imbalance, color="#0072B2")
    right.set_ylabel("imbalance (coefficient of variation)")
    right.set_ylim(0.0, 2.4)
    right.spines["top"].set_visible(False)
    names = ["penalty (left)", "imbalance (right)"]
    axis.legend([penalties, line], names, fontsize=8, ncols=2, loc="upper center")


def _figure(size: tuple[float, float], title: str) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=12)
    return figure


def _dress(axis: Axes, title: str, y: str, *, x: str = "task", top: float | None = None) -> None:
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    if top is not None:
        axis.set_ylim(0.0, top)
    axis.grid(axis="y", alpha=0.25)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _smooth(values: list[float]) -> list[float]:
    """Return the mean of each value and those shortly before it."""
    span = _span(values)
    return [float(np.mean(values[max(0, i + 1 - span) : i + 1])) for i in range(len(values))]


def _span(values: Sequence[object]) -> int:
    """Return the tasks that a running mean is taken over."""
    return max(5, len(values) // 20)
