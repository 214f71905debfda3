"""The picture of an assignment environment: load of the agents, the last tasks, the next one."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs import rendering as paint
from inframind_gym.envs.assignment.simulation import EMPTY, AssignmentSimulation
from inframind_gym.envs.rendering import Box, Canvas
from inframind_gym.teams.assignment import rules

_AGENTS: Final[Box] = (paint.MARGIN, 66, 600, paint.SIZE[1] - paint.MARGIN)
_TASKS: Final[Box] = (612, 66, paint.SIZE[0] - paint.MARGIN, paint.SIZE[1] - paint.MARGIN)
_SHADES: Final[tuple[paint.Colour, ...]] = (
    paint.RUNNING,
    (32, 150, 136),
    (140, 94, 190),
    (196, 112, 64),
)
_ROW: Final = 76  # pixels of an agent
_CELL: Final = 58  # pixels of a place of the window
_SHOWN: Final = 7  # tasks that ended


def draw_frame(simulation: AssignmentSimulation, reward: float, cost: float) -> NDArray[np.uint8]:
    """Paint a single environment; the simulation does not change.

    Args:
        simulation: a batch of one.
        reward: of the episode so far.
        cost: of the episode so far, US dollars.

    Returns:
        (540, 960, 3) uint8, RGB.
    """
    canvas, config = Canvas(), simulation.config
    form = "queues of servers" if config.queues else "window of assignments"
    ordinal = f"task {int(simulation.ordinal[0])} of {config.num_tasks}"
    clock = ordinal if simulation.servers is None else f"{simulation.servers.now_s[0]:.1f} s"
    state = rules.LOAD_STATES[int(simulation.load_state[0])].replace("_", " ")
    setting = paint.SEPARATOR.join(
        (simulation.team.settings.name, f"{config.arrivals} arrivals", form)
    )
    canvas.header("InfraMind Assignment", setting, clock, state)
    _draw_agents(canvas, simulation)
    _draw_tasks(canvas, simulation)
    sums = f"reward {reward:.2f}, cost {cost:.4f} USD"
    mean = f"{reward / max(int(simulation.steps[0]), 1):.3f} a task"
    canvas.footer(_TASKS, sums, mean if simulation.servers is None else ordinal)
    return canvas.pixels


def text(simulation: AssignmentSimulation) -> str:
    """Return the state of a batch of one in lines of text."""
    window = simulation.window[0]
    letters = " ".join("." if agent == EMPTY else rules.AGENTS[agent] for agent in window)
    utilization = rules.utilization(simulation.counts[0])
    task = simulation.team.settings.tasks[int(simulation.task[0])]
    lines = [
        f"task {int(simulation.ordinal[0])}: {task.task_type} ({task.id})",
        f"load {rules.LOAD_STATES[int(simulation.load_state[0])]}, "
        f"imbalance {float(simulation.imbalance[0]):.3f}",
        f"window {letters}",
    ]
    for agent, share in zip(rules.AGENTS, utilization.tolist(), strict=True):
        lines.append(f"  {agent:<11}{share:6.1%}")
    for i, action in enumerate(simulation.completed.action.tolist()):
        lines.append(
            f"ended: {_name(int(action))}, reward {float(simulation.completed.reward[i]):.3f}, "
            f"load penalty {float(simulation.completed.load_penalty[i]):.3f}"
        )
    return "\n".join(lines)


def _name(action: int) -> str:
    return f"{rules.AGENTS[rules.agent_of(action)]} on {rules.PROVIDERS[rules.provider_of(action)]}"


def _draw_agents(canvas: Canvas, simulation: AssignmentSimulation) -> None:
    """One row an agent, and the window below."""
    left, top, right, bottom = _AGENTS
    canvas.card(_AGENTS, "Agents")
    canvas.text((right - 14, top + 20), "share of the last tasks", 12, paint.GREY, align="right")
    shares = rules.utilization(simulation.counts[0]).tolist()
    hot = int(simulation.load_state[0]) - 1
    for agent, share in enumerate(shares):
        y = top + 62 + agent * _ROW
        canvas.text((left + 14, y), rules.AGENTS[agent], 15, paint.INK, bold=True)
        bar = (left + 116, y - 9, right - 64, y + 9)
        colour = paint.BAD if agent == hot else _SHADES[agent]
        canvas.bar(bar, share, colour)
        for mark in (1.0, rules.HOT_THRESHOLD):  # fair share and the limit above which it is hot
            x = round(bar[0] + mark / len(shares) * (bar[2] - bar[0]))
            canvas.draw.line((x, y - 13, x, y + 13), fill=paint.GREY if mark == 1.0 else paint.BAD)
        canvas.text((right - 14, y), f"{share:.1%}", 13, paint.INK, align="right")
        words = "hot" if agent == hot else ""
        canvas.text((left + 14, y + 21), words, 12, paint.BAD)
        if simulation.servers is not None:
            _draw_servers(canvas, simulation, agent, y + 26)
    y = bottom - 62
    canvas.text((left + 14, y - 38), "Last assignments, oldest first", 13, paint.GREY)
    for place, agent in enumerate(simulation.window[0].tolist()):
        x = left + 14 + place * (_CELL + 8)
        colour = paint.TRACK if agent == EMPTY else _SHADES[agent]
        canvas.draw.rounded_rectangle(
            (x, y - 20, x + _CELL, y + 20), 5, fill=colour, outline=paint.LINE
        )
        name = "" if agent == EMPTY else rules.AGENTS[agent]
        canvas.text((x + _CELL // 2, y), name, 11, (255, 255, 255), align="middle")


def _draw_servers(canvas: Canvas, simulation: AssignmentSimulation, agent: int, y: int) -> None:
    """Two bars, one a provider: calls that run, and calls that wait."""
    assert simulation.servers is not None
    flying = simulation.servers.in_flight(np.zeros(1, np.int64))[0]
    queued = simulation.servers.waiting(np.zeros(1, np.int64))[0]
    width = (_AGENTS[2] - 64 - _AGENTS[0] - 116 - 16) // 2
    for provider, name in enumerate(rules.PROVIDERS):
        server = rules.action_index(agent, provider)
        x = _AGENTS[0] + 116 + provider * (width + 16)
        slots = int(simulation.servers.slots[server])
        waiting, running = int(queued[server]), int(flying[server] - queued[server])
        canvas.text((x, y), name, 11, paint.GREY)
        canvas.bar((x + 56, y - 5, x + width // 2 + 36, y + 5), running / slots, paint.GOOD)
        begin = x + width // 2 + 42
        canvas.bar((begin, y - 5, x + width - 22, y + 5), waiting / 8, paint.WAITING)
        canvas.text((x + width, y), f"{running}+{waiting}", 11, paint.GREY, align="right")


def _draw_tasks(canvas: Canvas, simulation: AssignmentSimulation) -> None:
    """The task that waits, and those that ended in the last step."""
    left, top, right, _ = _TASKS
    task = simulation.team.settings.tasks[int(simulation.task[0])]
    canvas.card(_TASKS, "Task that waits")
    canvas.text((right - 14, top + 20), task.id, 12, paint.GREY, align="right")
    canvas.text((left + 14, top + 48), task.task_type, 15, paint.INK, bold=True)
    details = f"complexity {task.complexity:g}, priority {task.priority:g}"
    canvas.text((right - 14, top + 48), details, 12, paint.GREY, align="right")
    canvas.text((left + 14, top + 72), task.description, 12, paint.GREY, width=right - left - 28)
    canvas.draw.line((left + 14, top + 92, right - 14, top + 92), fill=paint.LINE)
    canvas.text((left + 14, top + 112), "Ended in the last step", 14, paint.INK, bold=True)
    done = simulation.completed
    for i in range(min(len(done.row), _SHOWN)):
        y = top + 140 + 36 * i
        agent = int(rules.agent_of(int(done.action[i])))
        canvas.draw.rounded_rectangle((left + 14, y - 12, left + 18, y + 16), 2, _SHADES[agent])
        canvas.text((left + 26, y - 4), _name(int(done.action[i])), 13)
        canvas.text((right - 14, y - 4), f"{float(done.reward[i]):.3f}", 13, align="right")
        parts = f"{rules.TASK_TYPES[int(done.task_type[i])]}, {float(done.latency_s[i]):.1f} s"
        canvas.text((left + 26, y + 12), parts, 11, paint.GREY)
        lost = float(done.load_penalty[i])
        words = f"load penalty {lost:.3f}"
        canvas.text(
            (right - 14, y + 12),
            words,
            11,
            paint.BAD if lost >= 0.0005 else paint.GREY,
            align="right",
        )
