"""The picture of a coordination environment: decisions on a clock, and what the agents know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs import rendering as paint
from inframind_gym.envs.coordination.simulation import CoordinationSimulation
from inframind_gym.envs.rendering import Box, Canvas
from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.settings import AGENTS, COMPLEXITIES, ISSUES, STRATEGIES
from inframind_gym.teams.coordination.state import REASONS

_CLOCK: Final[Box] = (paint.MARGIN, 66, 600, paint.SIZE[1] - paint.MARGIN)
_TEXT_BOX: Final[Box] = (612, 66, paint.SIZE[0] - paint.MARGIN, paint.SIZE[1] - paint.MARGIN)
_ROW: Final = 30  # pixels of a decision

Trace = Sequence[tuple[str, int, int]]  # what was done, from when to when in ms


def facts(simulation: CoordinationSimulation) -> list[tuple[str, str]]:
    """Return what the supervisor of a batch of one knows, as names and words."""
    state, limits = simulation.state, simulation.settings.limits
    routed, complexity = bool(state.routed[0]), COMPLEXITIES[int(state.complexity[0])]
    strategy = STRATEGIES[int(state.strategy[0])]
    judged, draft = bool(state.judged[0]), bool(state.drafted[0])
    found = [name for name, n in zip(ISSUES, state.issues[0].tolist(), strict=True) if n]
    broken = [name for name, bad in zip(AGENTS, state.failed[0].tolist(), strict=True) if bad]
    verdict = "valid" if state.valid[0] else ", ".join(found).replace("_", " ")
    plan = f"{state.subtasks[0]} sub-tasks, {state.pending[0]} wait"
    merged = ", merged" if state.merged[0] else ""
    return [
        ("words", f"{COMPLEXITIES[int(state.hint[0])]}{', refers back' * bool(state.refers[0])}"),
        ("router", f"{complexity}, {strategy}" if routed else "-"),
        ("plan", plan if state.planned[0] else "-"),
        ("passages", f"{state.docs[0]} of {state.searches[0]} searches{merged}"),
        ("answer", (verdict if judged else "not validated") if draft else "-"),
        ("failed", ", ".join(broken) or "-"),
        ("retries", f"{state.retries[0]} of {limits.max_retries}"),
        ("context", f"{state.context[0]:,} tokens"),
        ("tokens", f"{state.total_tokens[0]:,}"),
    ]


def text(simulation: CoordinationSimulation, trace: Trace) -> str:
    """Return a batch of one in lines of text."""
    state = simulation.state
    ended = REASONS[int(state.reason[0])]
    lines = [f"{state.elapsed_ms[0]:,} ms, decision {state.iteration[0]} {ended}".rstrip()]
    lines += [f"{name:10}{words}" for name, words in facts(simulation)]
    lines += [f"{begin:5}-{end:5} ms  {name or 'nothing'}" for name, begin, end in trace]
    return "\n".join(lines)


def draw_frame(
    simulation: CoordinationSimulation, trace: Trace, reward: float, cost: float
) -> NDArray[np.uint8]:
    """Paint a single environment; the simulation does not change.

    Args:
        simulation: a batch of one.
        trace: what was done, from when to when.
        reward: of the episode so far.
        cost: of the episode so far.

    Returns:
        (540, 960, 3) uint8, RGB.
    """
    canvas, state, config = Canvas(), simulation.state, simulation.config
    setting = (
        "conversation" if config.conversation else "single question",
        f"supervisor: a {config.supervisor}",
        f"{state.max_num_seqs} calls at once",
    )
    clock = f"{int(state.elapsed_ms[0]) / 1000.0:.2f} s"
    ended = REASONS[int(state.reason[0])] or "running"
    canvas.header("InfraMind Coordination", paint.SEPARATOR.join(setting), clock, ended)
    _draw_clock(canvas, simulation, trace)
    left, top, right, _ = _TEXT_BOX
    canvas.card(_TEXT_BOX, "Known to the supervisor")
    for i, (name, words) in enumerate(facts(simulation)):
        y = top + 54 + 30 * i
        canvas.text((left + 14, y), name, 13, paint.GREY)
        canvas.text((left + 92, y), words, 14, width=right - left - 106)
    iterations = simulation.settings.limits.max_iterations
    decided = f"decision {state.iteration[0]} of {iterations}"
    canvas.footer(_TEXT_BOX, decided, f"reward {reward:.2f}, cost {cost:.2f}")
    return canvas.pixels


def _draw_clock(canvas: Canvas, simulation: CoordinationSimulation, trace: Trace) -> None:
    """A bar for each decision from its begin to its end, and the deadlines."""
    left, top, right, bottom = _CLOCK
    limits = simulation.settings.limits
    canvas.card(_CLOCK, "Decisions")
    x0, x1, y1 = left + 190, right - 24, bottom - 34
    hard = 1000.0 * limits.hard_s

    def place(ms: float) -> int:
        return round(x0 + (x1 - x0) * min(ms / hard, 1.0))

    known = simulation.state.known_complexity(np.zeros(1, np.int64))
    deadline = float(rules.deadline_ms(known, simulation.settings)[0])
    for ms, colour in ((0.0, paint.LINE), (deadline, paint.WAITING), (hard, paint.BAD)):
        canvas.draw.line((place(ms), top + 44, place(ms), y1), fill=colour, width=2)
        canvas.text((place(ms), y1 + 16), f"{ms / 1000.0:g} s", 12, paint.GREY, align="middle")
    for i, (name, begin, end) in enumerate(trace):
        y = top + 62 + _ROW * i
        late = end > deadline
        canvas.text((left + 14, y), name or "not open", 13, width=170)
        colour = paint.BAD if name == rules.NAMES[rules.FALLBACK] else paint.RUNNING
        colour = paint.WAITING if late and colour is paint.RUNNING else colour
        box = (place(begin), y - 8, max(place(end), place(begin) + 3), y + 8)
        canvas.draw.rounded_rectangle(box, 3, fill=colour)
