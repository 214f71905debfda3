"""The picture of a placement environment: models on GPUs, and the calls that wait for each."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs import rendering as paint
from inframind_gym.envs.placement.simulation import PlacementSimulation
from inframind_gym.envs.rendering import Box, Canvas
from inframind_gym.simulator.placement.state import (
    ABSENT,
    ACTIVE,
    NONE,
    SLEPT,
    STATE_NAMES,
    is_coming,
)

_GPUS: Final[Box] = (paint.MARGIN, 66, 612, paint.SIZE[1] - paint.MARGIN)
_MODELS: Final[Box] = (624, 66, paint.SIZE[0] - paint.MARGIN, paint.SIZE[1] - paint.MARGIN)
_MOST_GPUS, _MOST_MODELS = 64, 20  # that there is room for
_FULL_BAR: Final = 20  # calls that wait, at least


def draw_frame(simulation: PlacementSimulation, reward: float, cost: float) -> NDArray[np.uint8]:
    """Paint a single environment; the simulation does not change.

    Args:
        simulation: a batch of one.
        reward: of the episode so far.
        cost: of the episode so far.

    Returns:
        (540, 960, 3) uint8, RGB.
    """
    canvas, config, episode = Canvas(), simulation.config, simulation.state.episode[0]
    names = (simulation.cluster_config.name, simulation.demand.name, f"load {config.load:g}")
    jobs = f"{episode['next_job']} jobs arrived, {episode['jobs_done']} done"
    clock = f"{simulation.now_s()[0]:.0f} s"
    canvas.header("InfraMind Placement", paint.SEPARATOR.join(names), clock, jobs)
    _gpus(canvas, simulation)
    _models(canvas, simulation)
    decided = f"decision {episode['decision']} of {config.num_decisions}"
    illegal = f"{episode['illegal']} illegal choices"
    canvas.footer(_MODELS, f"{decided}, {illegal}", f"reward {reward:.2f}, cost {cost:g}")
    return canvas.pixels


def _gpus(canvas: Canvas, simulation: PlacementSimulation) -> None:
    """One tile a GPU, column after column."""
    left, top, right, bottom = _GPUS
    count = min(simulation.num_gpus, _MOST_GPUS)
    canvas.card(
        _GPUS, "GPUs" if count == simulation.num_gpus else f"{count} of {simulation.num_gpus} GPUs"
    )
    x = right - 14
    for words, colour in (
        *(("memory", paint.CACHE), ("calls running", paint.RUNNING)),
        *(("leaves", paint.BAD), ("comes", paint.WAITING), ("awake", paint.GOOD)),
    ):
        x -= canvas.text((x, top + 20), words, 12, paint.GREY, align="right") + 14
        canvas.bar((x, top + 15, x + 10, top + 25), 1.0, colour)
        x -= 14
    columns = 1 if count <= 8 else 2 if count <= 16 else 4
    rows = -(-count // columns)
    width, height = (right - left - 16) // columns, min((bottom - top - 46) / rows, 54.0)
    states = simulation.state_on_gpus(np.zeros(1, np.int64))[0]
    held_frac = simulation.held_mb(np.zeros(1, np.int64))[0] / simulation.world.gpu["vram_mb"]
    for g in range(count):
        column, row = divmod(g, rows)
        x, y = left + 8 + column * width, round(top + 38 + row * height)
        tile = (x, y, x + width, round(y + height))
        _gpu(canvas, simulation, g, states[g], float(held_frac[g]), tile)


def _gpu(
    canvas: Canvas,
    simulation: PlacementSimulation,
    g: int,
    states: NDArray[np.int8],
    held_frac: float,
    tile: Box,
) -> None:
    """The model that holds a GPU or comes to it, its state, and the calls and memory in use."""
    left, top, right, bottom = tile
    middle, wide = (top + bottom) // 2, right - left > 150
    m = int(states.argmax())  # the order of the states puts first what comes, then what leaves
    kind = int(states[m])
    colour = paint.GOOD if kind == ACTIVE else paint.WAITING if is_coming(kind) else paint.BAD
    colour = paint.GREY if kind in (ABSENT, SLEPT) else colour
    name = "empty" if kind == ABSENT else simulation.cards[m].alias
    asleep = int((states == SLEPT).sum()) - (kind == SLEPT)
    end = left + (40 + (right - left) // 2 if wide else 104)  # of the words
    canvas.text((left + 26, middle), str(g), 12, paint.GREY, align="right")
    canvas.draw.rounded_rectangle((left + 32, top + 3, left + 35, bottom - 3), 1, fill=colour)
    if wide:
        detail = STATE_NAMES[kind] + (f", {asleep} asleep" if asleep else "")
        canvas.text((left + 44, middle - 8), name, 14, paint.INK, width=end - left - 50)
        canvas.text((left + 44, middle + 9), detail, 12, colour, width=end - left - 50)
    else:
        canvas.text((left + 40, middle), name, 12, paint.INK, width=end - left - 44)
    host = int(simulation.state.host[0, g])
    server: Any = None if host == NONE else simulation.state.server[0, host]
    slots = 1 if server is None else int(simulation.world.model["slots"][server["model"]])
    running = 0 if server is None else int(server["running"])
    half = min((bottom - top) // 2 - 3, 8)
    edge = right - (56 if wide else 6)
    canvas.bar((end, middle - half, edge, middle - 1), running / slots, paint.RUNNING)
    canvas.bar((end, middle + 1, edge, middle + half), held_frac, paint.CACHE)
    if wide and server is not None:
        canvas.text((right - 8, middle), f"{running}/{slots}", 12, paint.INK, align="right")


def _models(canvas: Canvas, simulation: PlacementSimulation) -> None:
    """The calls that wait for each model, and the instances that serve it."""
    left, top, right, bottom = _MODELS
    canvas.card(_MODELS, "Models")
    canvas.text((left + 150, top + 20), "awake", 12, paint.GREY, align="right")
    canvas.text((left + 164, top + 20), "calls waiting", 12, paint.GREY)
    shown = simulation.cards[:_MOST_MODELS]
    height = min((bottom - top - 112) / len(shown), 36.0)
    full = max(_FULL_BAR, int(simulation.state.waiting[0]["count"].max()))
    for m, card in enumerate(shown):
        row, y = simulation.state.waiting[0, m], round(top + 42 + (m + 0.5) * height)
        active, count = int(row["active"]), int(row["count"])
        canvas.text((left + 14, y), card.alias, 13, paint.INK if active else paint.GREY, width=112)
        canvas.text((left + 150, y), str(active or "-"), 12, paint.INK, align="right")
        half = min(int(height / 2) - 3, 7)
        canvas.bar((left + 164, y - half, right - 62, y + half), count / full, paint.WAITING)
        canvas.text((right - 14, y), str(count), 12, paint.INK, align="right")
