"""The "rgb_array" render mode: a view of the environment, painted with Pillow.

Only Pillow's built-in font is used, so that a view gives the same pixels everywhere that the same
Pillow is installed. It holds ASCII letters and few signs more.
"""

from __future__ import annotations

from functools import cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from inframind_gym.envs.rendering.view import ServerView, View

SIZE: Final = (960, 540)  # width, height in pixels
MARGIN: Final = 16

Colour = tuple[int, int, int]
Box = tuple[int, int, int, int]  # left, top, right, bottom
PAPER: Final[Colour] = (243, 245, 248)
CARD: Final[Colour] = (255, 255, 255)
LINE: Final[Colour] = (222, 227, 234)
TRACK: Final[Colour] = (232, 236, 241)
INK: Final[Colour] = (28, 36, 48)
GREY: Final[Colour] = (108, 119, 135)
RUNNING: Final[Colour] = (45, 105, 205)
WAITING: Final[Colour] = (232, 142, 28)
CACHE: Final[Colour] = (32, 150, 136)
GOOD: Final[Colour] = (46, 152, 88)
BAD: Final[Colour] = (204, 56, 56)

_QUERY: Box = (MARGIN, 66, SIZE[0] - MARGIN, 152)
_SERVERS: Box = (MARGIN, 164, 652, SIZE[1] - MARGIN)
_DECISIONS: Box = (664, 164, SIZE[0] - MARGIN, SIZE[1] - MARGIN)
_DEPTH_END = 548  # right end of a column, from the left of the servers' card
_SEPARATOR = "  ·  "


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size)


class _Canvas:
    """A picture and the few things that are drawn on it."""

    def __init__(self) -> None:
        self.image = Image.new("RGB", SIZE, PAPER)
        self.draw = ImageDraw.Draw(self.image)

    def card(self, box: Box) -> None:
        self.draw.rounded_rectangle(box, radius=8, fill=CARD, outline=LINE)

    def text(
        self,
        at: tuple[int, int],
        words: str,
        size: int = 14,
        colour: Colour = INK,
        align: Literal["left", "right", "middle"] = "left",
        bold: bool = False,
        width: int | None = None,
    ) -> int:
        """Write one line, vertically centred on at[1]; cut to `width`. Returns its width."""
        font = _font(size)
        if width is not None and font.getlength(words) > width:
            while words and font.getlength(words + "…") > width:
                words = words[:-1]
            words = words.rstrip() + "…"
        anchor = {"left": "lm", "right": "rm", "middle": "mm"}[align]
        self.draw.text(
            at,
            words,
            font=font,
            fill=colour,
            anchor=anchor,
            stroke_width=0.3 if bold else 0,
            stroke_fill=colour,
        )
        return round(font.getlength(words))

    def bar(self, box: Box, share: float, colour: Colour) -> None:
        """A horizontal bar, `share` (0..1) of it full; a share above 0 always shows."""
        left, top, right, bottom = box
        radius = min(4, (bottom - top) // 2)
        self.draw.rounded_rectangle(box, radius=radius, fill=TRACK)
        if share > 0:
            end = left + max(round(min(share, 1.0) * (right - left)), 3)
            self.draw.rounded_rectangle((left, top, end, bottom), radius=radius, fill=colour)


def draw_frame(view: View) -> NDArray[np.uint8]:
    """Paint a view.

    Returns:
        (540, 960, 3) uint8, RGB.
    """
    canvas = _Canvas()
    _header(canvas, view)
    _query(canvas, view)
    _servers(canvas, view)
    _decisions(canvas, view)
    return np.array(canvas.image, dtype=np.uint8)


def _header(canvas: _Canvas, view: View) -> None:
    left, right = MARGIN + 2, SIZE[0] - MARGIN - 2
    canvas.text((left, 21), view.title, 22, bold=True)
    canvas.text((left, 45), _SEPARATOR.join(view.setting), 13, GREY, width=600)
    canvas.text((right, 21), f"{view.time_s:.1f} s", 22, align="right", bold=True)
    canvas.text(
        (right, 45),
        f"{view.arrived} of {view.num_queries} queries arrived, {view.in_flight} in flight",
        13,
        GREY,
        align="right",
    )


def _query(canvas: _Canvas, view: View) -> None:
    left, top, right, bottom = _QUERY
    canvas.card(_QUERY)
    waiting = view.waiting
    if waiting is None:
        title = "Episode over" if view.steps else "No decision waits"
        canvas.text((left + 14, top + 24), title, 18, bold=True)
        canvas.text((left + 14, bottom - 24), view.last, 14, GREY, width=right - left - 28)
        return
    x = left + 14
    x += canvas.text((x, top + 24), f"Query {waiting.query}", 18, bold=True)
    facts = (waiting.domain, waiting.workflow, waiting.progress, waiting.role)
    canvas.text((x + 12, top + 25), _SEPARATOR.join(filter(None, facts)), 15, width=right - x - 26)
    share = waiting.remaining_s / waiting.budget_s
    colour = GOOD if share > 0.5 else WAITING if share > 0.2 else BAD
    left_s = waiting.remaining_s
    words = f"{left_s:.1f} s left" if left_s >= 0 else f"{-left_s:.1f} s late"
    y = bottom - 24
    canvas.text((left + 14, y), "budget", 13, GREY)
    canvas.bar((left + 70, y - 8, right - 190, y + 8), share, colour)
    canvas.text(
        (right - 14, y),
        f"{words} of {waiting.budget_s:g} s",
        15,
        INK if left_s >= 0 else BAD,
        align="right",
    )


def _servers(canvas: _Canvas, view: View) -> None:
    left, top, right, bottom = _SERVERS
    canvas.card(_SERVERS)
    canvas.text((left + 14, top + 20), "Servers", 16, bold=True)
    heads = (
        (166, "running"),
        (306, "waiting"),
        (402, "KV cache"),
    )
    for x, words in heads:
        canvas.text((left + x, top + 20), words, 12, GREY)
    canvas.text((left + _DEPTH_END, top + 20), "depth", 12, GREY, align="right")
    canvas.text((right - 14, top + 20), "e2e", 12, GREY, align="right")
    age = f"polled {view.telemetry_age_s:.1f} s ago" if view.polls else "not polled yet"
    canvas.text((right - 14, bottom - 14), f"depth and e2e {age}", 12, GREY, align="right")
    first, last = top + 38, bottom - 28
    height = min((last - first) / max(len(view.servers), 1), 62.0)
    for m, server in enumerate(view.servers):
        y = round(first + (m + 0.5) * height)
        if m:
            rule = round(first + m * height)
            canvas.draw.line((left + 14, rule, right - 14, rule), fill=LINE)
        _server(canvas, server, left, y, min(round(height), 44))


def _server(canvas: _Canvas, server: ServerView, left: int, y: int, height: int) -> None:
    """One row: bars are of the present, numbers at the right as last polled."""
    roomy = height >= 34
    name_y = y - 8 if roomy else y
    ink = INK if server.up else GREY
    canvas.text((left + 14, name_y), server.model, 15, ink, width=142)
    if roomy:
        below = server.gpu if server.up else f"{server.gpu}  ·  down"
        canvas.text((left + 14, y + 10), below, 12, GREY if server.up else BAD, width=142)
    half = min(height // 2 - 3, 9)
    canvas.bar((left + 166, y - half, left + 232, y + half), server.running / server.slots, RUNNING)
    canvas.text((left + 239, y), f"{server.running}/{server.slots}", 12, ink, width=65)
    # A queue twice as long as there are slots fills its bar.
    share = server.waiting / (2 * server.slots)
    canvas.bar((left + 306, y - half, left + 356, y + half), share, WAITING)
    canvas.text((left + 364, y), str(server.waiting), 12, ink, width=36)
    canvas.bar((left + 402, y - half, left + 452, y + half), server.kv_frac, CACHE)
    canvas.text((left + 460, y), f"{server.kv_frac:.0%}", 12, ink)
    depth = f"{server.polled_depth_req:.0f}"
    canvas.text((left + _DEPTH_END, y), depth, 13, ink, align="right")
    e2e = _seconds(server.polled_e2e_s) if server.polled_e2e_s else "-"
    canvas.text((_SERVERS[2] - 14, y), e2e, 13, ink, align="right")


def _seconds(seconds: float) -> str:
    return f"{seconds:.{0 if seconds >= 1000 else 1}f} s"


def _decisions(canvas: _Canvas, view: View) -> None:
    left, top, right, bottom = _DECISIONS
    canvas.card(_DECISIONS)
    canvas.text((left + 14, top + 20), "Last decisions", 16, bold=True)
    y = top + 52
    for decision in view.decisions:
        if y > bottom - 90:
            break
        used = canvas.text((left + 14, y), decision.choice, 14, width=176)
        canvas.text((left + 22 + used, y + 1), decision.detail, 12, GREY)
        who = f"query {decision.query}, {decision.role}"
        canvas.text((left + 14, y + 16), who, 12, GREY, width=186)
        canvas.text((right - 14, y + 16), _seconds(decision.time_s), 12, GREY, align="right")
        y += 38
    if not view.decisions:
        canvas.text((left + 14, y), "none yet", 13, GREY)
    canvas.draw.line((left + 14, bottom - 64, right - 14, bottom - 64), fill=LINE)
    canvas.text(
        (left + 14, bottom - 45),
        f"{view.completed} done, {view.solved} solved, {view.on_time} on time",
        14,
    )
    canvas.text(
        (left + 14, bottom - 22),
        f"step {view.steps}, reward {view.reward:g}, cost {view.cost:.2f}",
        13,
        GREY,
    )
