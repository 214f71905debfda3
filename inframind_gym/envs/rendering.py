"""The "rgb_array" render mode: what the pictures of all environments are drawn with.

    env = gym.make("InfraMind-Stream-v0", render_mode="rgb_array")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    image = env.render()  # (540, 960, 3) uint8

Only Pillow's built-in font is used, so that a state gives the same pixels everywhere that the same
Pillow is installed. It holds ASCII letters and few signs more.
"""

from __future__ import annotations

from functools import cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

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
SEPARATOR: Final = "  ·  "


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size)


class Canvas:
    """A picture and the few things that are drawn on it."""

    def __init__(self) -> None:
        self.image = Image.new("RGB", SIZE, PAPER)
        self.draw = ImageDraw.Draw(self.image)

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """(540, 960, 3) uint8, RGB."""
        return np.array(self.image, dtype=np.uint8)

    def header(self, title: str, setting: str, clock: str, traffic: str) -> None:
        """Write the two lines above the cards, left and right."""
        left, right = MARGIN + 2, SIZE[0] - MARGIN - 2
        self.text((left, 21), title, 22, bold=True)
        self.text((left, 45), setting, 13, GREY, width=600)
        self.text((right, 21), clock, 22, align="right", bold=True)
        self.text((right, 45), traffic, 13, GREY, align="right")

    def card(self, box: Box, title: str = "") -> None:
        """A white sheet to write on, with its title."""
        self.draw.rounded_rectangle(box, radius=8, fill=CARD, outline=LINE)
        self.text((box[0] + 14, box[1] + 20), title, 16, bold=True)

    def footer(self, box: Box, sums: str, details: str) -> None:
        """Write two lines below a rule at the end of a card."""
        left, _, right, bottom = box
        self.draw.line((left + 14, bottom - 64, right - 14, bottom - 64), fill=LINE)
        self.text((left + 14, bottom - 45), sums, 14)
        self.text((left + 14, bottom - 22), details, 13, GREY)

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
