"""The render modes of every environment: "ansi" text and the "rgb_array" picture.

    env = gym.make("InfraMind-Stream-v0", render_mode="rgb_array")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    image = env.render()  # (540, 960, 3) uint8

A simulation describes itself as a `Frame`: a headline, tables whose cells are words or bars, and
the last decisions. Both modes show the same frame. Only Pillow's built-in font is used, so that a
state gives the same pixels wherever the same Pillow is installed. The font has ASCII letters and
few other signs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
MOST_ROWS: Final = 32  # of a table


class Bar(NamedTuple):
    """A horizontal bar with words on its right."""

    share: float  # part of its length that is filled, 0..1
    words: str = ""
    colour: Colour = RUNNING


Cell = str | Bar


class Table(NamedTuple):
    """A table; the first cell of a row is its name."""

    title: str
    columns: tuple[str, ...]  # heads of the columns after the first
    rows: Sequence[tuple[Cell, ...]]
    note: str = ""  # below the rows


class Headline(NamedTuple):
    """The decision that waits, with a bar of the budget that is left for it."""

    title: str
    facts: str
    bar: Bar | None = None


class Frame(NamedTuple):
    """Everything that is shown of an environment."""

    title: str
    setting: tuple[str, ...]
    clock: str
    status: str
    tables: tuple[Table, ...]  # one or two, side by side
    headline: Headline | None = None
    decisions: tuple[tuple[str, str], ...] = ()  # latest first: action, and what it decided
    results: str = ""  # of the episode so far
    sums: str = ""  # reward and cost so far


def text(frame: Frame) -> str:
    """Return a frame in lines of text."""
    lines = [f"{frame.title}: {', '.join(frame.setting)}", f"{frame.clock}, {frame.status}"]
    if frame.headline is not None:
        bar = frame.headline.bar
        lines.append(f"{frame.headline.title}  {frame.headline.facts}")
        lines += [] if bar is None else [bar.words]
    for table in frame.tables:
        heads = (table.title, *table.columns)
        cells = [heads, *([_words(cell) for cell in row] for row in table.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
        lines.append("")
        for first, *others in cells:
            padded = [w.rjust(width) for w, width in zip(others, widths[1:], strict=True)]
            lines.append("  ".join((first.ljust(widths[0]), *padded)).rstrip())
        lines += [table.note] if table.note else []
    lines += [""] * bool(frame.decisions)
    lines += [f"{choice}  {detail}".rstrip() for choice, detail in frame.decisions]
    return "\n".join([*lines, "", *filter(None, (frame.results, frame.sums))])


def picture(frame: Frame) -> NDArray[np.uint8]:
    """Return the picture of a frame, (540, 960, 3) uint8, RGB."""
    canvas, (width, height) = Canvas(), SIZE
    right = width - MARGIN
    canvas.text((MARGIN + 2, 21), frame.title, 22, bold=True, width=600)
    canvas.text((MARGIN + 2, 45), SEPARATOR.join(frame.setting), 13, GREY, width=600)
    canvas.text((right - 2, 21), frame.clock, 22, align="right", bold=True)
    canvas.text((right - 2, 45), frame.status, 13, GREY, align="right")
    top = 66
    if frame.headline is not None:
        canvas.headline((MARGIN, top, right, top + 86), frame.headline)
        top += 98
    middle = 652 if len(frame.tables) == 1 else 520
    canvas.table((MARGIN, top, middle, height - MARGIN), frame.tables[0])
    box = (middle + 12, top, right, height - MARGIN)
    above_sums = (*box[:3], height - MARGIN - 70)
    canvas.card(box)
    if len(frame.tables) > 1:
        canvas.table(above_sums, frame.tables[1], card=False)
    else:
        canvas.decisions(above_sums, frame.decisions)
    left, end, width = box[0] + 14, right - 14, right - box[0] - 28
    canvas.draw.line((left, box[3] - 64, end, box[3] - 64), fill=LINE)
    canvas.text((left, box[3] - 45), frame.results, 14, width=width)
    canvas.text((left, box[3] - 22), frame.sums, 13, GREY, width=width)
    return np.array(canvas.image, dtype=np.uint8)


def _words(cell: Cell) -> str:
    return (cell.words or f"{cell.share:.0%}") if isinstance(cell, Bar) else cell


@cache
def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size=size)


class Canvas:
    """A picture with methods that draw the parts of a frame."""

    def __init__(self) -> None:
        from PIL import Image, ImageDraw

        self.image = Image.new("RGB", SIZE, PAPER)
        self.draw = ImageDraw.Draw(self.image)

    def card(self, box: Box, title: str = "") -> None:
        """Draw a white card with its title."""
        self.draw.rounded_rectangle(box, radius=8, fill=CARD, outline=LINE)
        self.text((box[0] + 14, box[1] + 20), title, 16, bold=True)

    def headline(self, box: Box, headline: Headline) -> None:
        """Draw the headline: title, facts and bar."""
        left, top, right, bottom = box
        self.card(box)
        x = left + 14
        x += self.text((x, top + 24), headline.title, 18, bold=True, width=(right - left) // 2)
        if headline.bar is None:
            self.text((left + 14, bottom - 24), headline.facts, 14, GREY, width=right - left - 28)
            return
        self.text((x + 12, top + 25), headline.facts, 15, width=right - x - 26)
        y, bar = bottom - 24, headline.bar
        words = max(self.text((right - 14, y), bar.words, 15, align="right", width=400), 160)
        self.bar((left + 14, y - 8, right - words - 30, y + 8), bar.share, bar.colour)

    def table(self, box: Box, table: Table, card: bool = True) -> None:
        """Draw a table; columns share its width (bars count twice), rows its height."""
        left, top, right, bottom = box
        if card:
            self.card(box)
        shown = table.rows[:MOST_ROWS]
        longest = max((_font(14).getlength(_words(row[0])) for row in shown), default=0.0)
        name = int(np.clip(longest + 8, 0.24 * (right - left), 0.42 * (right - left)))
        self.text((left + 14, top + 20), table.title, 16, bold=True, width=name)
        parts = [
            1 + any(isinstance(row[i + 1], Bar) for row in shown) for i in range(len(table.columns))
        ]
        part = (right - left - name - 28) / max(sum(parts), 1)
        widths = [round(part * count) for count in parts]
        starts = [left + 14 + name + sum(widths[:i]) for i in range(len(widths))]
        for x, head, wide in zip(starts, table.columns, widths, strict=True):
            self.text((x, top + 20), head, 12, GREY, width=wide - 6)
        first, last = top + 38, bottom - (28 if table.note else 12)
        height = min((last - first) / max(len(shown), 1), 48.0)
        for i, (title, *cells) in enumerate(shown):
            y = round(first + (i + 0.5) * height)
            if i and height > 16:
                rule = round(first + i * height)
                self.draw.line((left + 14, rule, right - 14, rule), fill=LINE)
            self.text((left + 14, y), _words(title), 14 if height > 20 else 11, width=name - 6)
            half = max(min(round(height) // 2 - 3, 8), 1)
            for x, cell, wide in zip(starts, cells, widths, strict=True):
                if not isinstance(cell, Bar):
                    self.text((x, y), cell, 12, width=wide - 6)
                    continue
                end = x + wide - 58
                self.bar((x, y - half, end, y + half), cell.share, cell.colour)
                self.text((end + 6, y), cell.words, 12, width=50)
        hidden = len(table.rows) - len(shown)
        note = f"{hidden} more" if hidden else table.note
        self.text((left + 14, bottom - 14), note, 12, GREY, width=right - left - 28)

    def decisions(self, box: Box, decisions: tuple[tuple[str, str], ...]) -> None:
        """Draw the last decisions, two lines each."""
        left, top, right, bottom = box
        self.text((left + 14, top + 20), "Last decisions", 16, bold=True)
        y = top + 52
        for choice, detail in decisions:
            if y > bottom - 20:
                break
            self.text((left + 14, y), choice, 14, width=right - left - 28)
            self.text((left + 14, y + 16), detail, 12, GREY, width=right - left - 28)
            y += 38
        if not decisions:
            self.text((left + 14, y), "none yet", 13, GREY)

    def text(
        self,
        at: tuple[int, int],
        words: str,
        size: int = 14,
        colour: Colour = INK,
        align: Literal["left", "right"] = "left",
        bold: bool = False,
        width: int | None = None,
    ) -> int:
        """Write one line, vertically centred on at[1]; cut to `width`. Returns its width."""
        font = _font(size)
        if width is not None and font.getlength(words) > width:
            while words and font.getlength(words + "…") > width:
                words = words[:-1]
            words = words.rstrip() + "…"
        self.draw.text(
            at,
            words,
            font=font,
            fill=colour,
            anchor="lm" if align == "left" else "rm",
            stroke_width=0.3 if bold else 0,
            stroke_fill=colour,
        )
        width_px: int = round(font.getlength(words))
        return width_px

    def bar(self, box: Box, share: float, colour: Colour) -> None:
        """Draw a bar, `share` (0..1) of it full; a share above 0 always shows."""
        left, top, right, bottom = box
        radius = min(4, (bottom - top) // 2)
        self.draw.rounded_rectangle(box, radius=radius, fill=TRACK)
        if share > 0:
            end = left + max(round(min(share, 1.0) * (right - left)), 3)
            self.draw.rounded_rectangle((left, top, end, bottom), radius=radius, fill=colour)
