"""The picture of a token-budget environment: the ledger, and quality over tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs import rendering as paint
from inframind_gym.envs.rendering import Box, Canvas
from inframind_gym.envs.token_budget.simulation import TokenBudgetSimulation
from inframind_gym.teams.token_budget.rules import describe
from inframind_gym.teams.token_budget.settings import AGENTS, COMPLEXITIES

_LEDGER: Final[Box] = (paint.MARGIN, 66, 476, paint.SIZE[1] - paint.MARGIN)
_CURVE: Final[Box] = (488, 66, paint.SIZE[0] - paint.MARGIN, paint.SIZE[1] - paint.MARGIN)
_COLOURS: Final[tuple[paint.Colour, ...]] = (paint.RUNNING, paint.WAITING, paint.CACHE)


def draw_frame(
    simulation: TokenBudgetSimulation,
    trace: Sequence[tuple[int, float]],
    reward: float,
    cost: float,
) -> NDArray[np.uint8]:
    """Paint a single environment; the simulation does not change.

    Args:
        simulation: a batch of one.
        trace: tokens and quality by the proxies after each decision.
        reward: of the episode so far.
        cost: of the episode so far.

    Returns:
        (540, 960, 3) uint8, RGB.
    """
    canvas, state = Canvas(), simulation.state
    budget, spent = int(state.ledger.budget[0]), int(state.ledger.spent[0])
    setting = (
        f"{COMPLEXITIES[int(state.seen[0])]} task",
        simulation.config.strategy,
        f"price {simulation.config.price:g} points a token",
    )
    canvas.header(
        "InfraMind Token budget",
        paint.SEPARATOR.join(setting),
        f"{spent:,} / {budget:,}",
        f"tokens, {budget - spent:,} left",
    )
    _ledger(canvas, simulation)
    _curve(canvas, trace, budget, float(state.progress.score[0]))
    last = describe(int(simulation.action[0])) if state.steps[0] else "nothing yet"
    decided = f"decision {state.steps[0]} of {simulation.config.max_steps}: {last}"
    canvas.footer(_LEDGER, decided, f"reward {reward:.2f}, cost {cost:.2f}")
    return canvas.pixels


def _ledger(canvas: Canvas, simulation: TokenBudgetSimulation) -> None:
    """A row an agent: tokens used and left of its allocation; then overhead and returned tokens."""
    left, top, right, _ = _LEDGER
    ledger, progress = simulation.state.ledger, simulation.state.progress
    budget = max(int(ledger.budget[0]), 1)
    canvas.card(_LEDGER, "Ledger")
    for i, agent in enumerate(AGENTS):
        y = top + 64 + 88 * i
        used, rest = int(ledger.used[0, i]), int(ledger.left[0, i])
        is_cut = bool(ledger.cut[0, i])
        canvas.text((left + 14, y), agent, 16, paint.BAD if is_cut else paint.INK, bold=True)
        words = f"{progress.calls[0, i]} calls"
        words += "  cut" if is_cut else f"  ROI {progress.last_roi[0, i]:.4f}"
        canvas.text((right - 14, y), words, 13, paint.BAD if is_cut else paint.GREY, align="right")
        canvas.bar((left + 14, y + 14, right - 14, y + 26), used / budget, _COLOURS[i])
        canvas.bar((left + 14, y + 30, right - 14, y + 38), rest / budget, paint.GREY)
        canvas.text(
            (left + 14, y + 52), f"{used:,} used, {rest:,} of the allocation left", 12, paint.GREY
        )
    y = top + 64 + 88 * len(AGENTS)
    words = f"overhead {int(ledger.overhead[0]):,}, returned by agents that were cut"
    canvas.text((left + 14, y), f"{words} {int(ledger.free[0]):,}", 13)
    flags = f"flags: {progress.flags_open[0]} open, {progress.flags_resolved[0]} resolved"
    canvas.text((left + 14, y + 24), flags, 13)


def _curve(canvas: Canvas, trace: Sequence[tuple[int, float]], budget: int, score: float) -> None:
    """Quality by the proxies over tokens, a point a decision."""
    left, top, right, bottom = _CURVE
    canvas.card(_CURVE, "Quality by the proxies")
    canvas.text((right - 14, top + 20), f"{score:.0f}", 18, paint.GOOD, align="right", bold=True)
    x0, x1, y0, y1 = left + 44, right - 20, bottom - 40, top + 50
    for points in (0, 25, 50, 75, 100):
        y = round(y0 + (y1 - y0) * points / 100)
        canvas.draw.line((x0, y, x1, y), fill=paint.LINE)
        canvas.text((x0 - 8, y), str(points), 12, paint.GREY, align="right")
    for share in (0.0, 0.5, 1.0):
        x = round(x0 + (x1 - x0) * share) - (10 if share == 1.0 else 0)
        canvas.text((x, y0 + 18), f"{share * budget:,.0f}", 12, paint.GREY, align="middle")
    canvas.draw.line((x1, y0, x1, y1), fill=paint.BAD, width=2)  # the ceiling
    at = [
        (round(x0 + (x1 - x0) * min(t / budget, 1.0)), round(y0 + (y1 - y0) * q / 100.0))
        for t, q in trace
    ]
    if len(at) > 1:
        canvas.draw.line(at, fill=paint.GOOD, width=3)
    for x, y in at:
        canvas.draw.ellipse((x - 4, y - 4, x + 4, y + 4), fill=paint.GOOD)
