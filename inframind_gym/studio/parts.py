"""Parts of the pages: HTML whose values are escaped, and line charts (ECharts)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from markupsafe import Markup
from nicegui import ui

COLOURS: Final = (
    *("#2a6fb0", "#c8553d", "#2f8f5b", "#8a5fb5"),
    *("#b8860b", "#3a9ca6", "#b0477f", "#6b7280"),
)
_MOST_POINTS: Final = 600  # of a line
_GREY: Final = "#7a838d"  # readable on light and on dark


class _Gap:
    def __format__(self, _: str) -> str:
        return ""


class Row(dict[str, Any]):
    """Values by name for a template; what is missing or None is empty in any format."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__({key: x for key, x in values.items() if x is not None})

    def __missing__(self, _: str) -> _Gap:
        return _Gap()


def html(template: str, *values: Any, **named: Any) -> Markup:
    """Return a template with values, which are escaped unless they are `Markup`."""
    return Markup(template).format(*values, **named)


def each(template: str, rows: Iterable[Sequence[Any]]) -> Markup:
    """Return a template once for every row of values."""
    return Markup().join(html(template, *row) for row in rows)


def put(content: str, classes: str = "w-full") -> ui.html:
    """Add HTML of this module to the page."""
    return ui.html(content, sanitize=False).classes(classes)


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{share:.1%}" if 0.0 < share < 0.1 else f"{share:.0%}"


def chip(status: str) -> Markup:
    """Return a status as a coloured word."""
    return html('<span class="chip {0}">{0}</span>', status)


def folded(text: str) -> Markup:
    """Return the beginning of a text, which opens to all of it."""
    return html("<details><summary>{}</summary><pre>{}</pre></details>", text[:60], text)


def table(label: str, columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> Markup:
    """Return a table under a label for screen readers.

    Columns are heads with the templates of their cells, which `rows` fill; heads of numbers begin
    with ">", of long texts with "<".
    """
    kinds = [{">": "number", "<": "wide"}.get(head[:1], "") for head in columns]
    cells = "".join(
        f'<td class="{kind}">{x}</td>' for kind, x in zip(kinds, columns.values(), strict=True)
    )
    body = [Markup(f"<tr>{cells}</tr>").format_map(Row(row)) for row in rows]
    heads = zip(kinds, (head.lstrip("<>") for head in columns), strict=True)
    return html(
        '<div class="scroll" tabindex="0" role="region" aria-label="{}"><table><thead><tr>{}</tr>'
        "</thead><tbody>{}</tbody></table></div>{}",
        *(label, each('<th scope="col" class="{}">{}</th>', heads), Markup().join(body)),
        "" if body else Markup('<p class="hint">Nothing yet.</p>'),
    )


def stats(**figures: Any) -> Markup:
    """Return figures with their names; "_" in a name stands for a space."""
    pairs = ((name.replace("_", " "), x) for name, x in figures.items())
    return html('<dl class="stats">{}</dl>', each("<div><dt>{}</dt><dd>{}</dd></div>", pairs))


def bar(share: float, text: str, colour: int = 0, name: str = "") -> Markup:
    """Return a bar with its number, and its name in front."""
    return html(
        '<div class="bar">{}<span class="track"><i style="width: {:.1f}%; background: {}"></i>'
        "</span><span>{}</span></div>",
        html('<span class="name">{}</span>', name) if name else "",
        *(100.0 * min(max(share, 0.0), 1.0), COLOURS[colour], text),
    )


def section(title: str, *content: Markup | str) -> Markup:
    """Return content below its title."""
    return html("<section><h2>{}</h2>{}</section>", title, Markup().join(content))


def panels(*sections: Markup) -> Markup:
    """Return sections side by side, where there is room."""
    return html('<div class="panels">{}</div>', Markup().join(sections))


def errors(texts: Iterable[str]) -> Markup:
    """Return errors, a paragraph each."""
    return each('<p class="error">{}</p>', ([text] for text in texts))


class Lines(NamedTuple):
    """A line chart."""

    title: str
    x_label: str
    x: Sequence[float]
    lines: Mapping[str, Sequence[float | None]]  # by name; None: no point
    marks: Iterable[tuple[float, str]] = ()  # vertical lines with their words
    dashed: str = ""  # name of the dashed line
    step: bool = False  # values hold until the next one

    def options(self) -> dict[str, Any]:
        """Return the chart in ECharts' words."""
        every = -(-len(self.x) // _MOST_POINTS) or 1
        shown = sorted({*range(0, len(self.x), every), len(self.x) - 1})
        points = {
            name: [[self.x[i], values[i]] for i in shown if values[i] is not None]
            for name, values in self.lines.items()
        }
        text = {"color": _GREY}
        series: list[dict[str, Any]] = [
            {
                **{"name": name, "type": "line", "data": line},
                "showSymbol": len(line) < 40 and not self.step,
                "step": "end" if self.step else False,
                "lineStyle": {"type": "dashed" if name == self.dashed else "solid"},
            }
            for name, line in points.items()
        ]
        marks = [{"xAxis": at, "label": {"formatter": word, **text}} for at, word in self.marks]
        series[0]["markLine"] = {"symbol": "none", "data": marks, "lineStyle": text}
        axis = {"type": "value", "axisLabel": {**text, "hideOverlap": True, "showMaxLabel": False}}
        axis |= {"splitLine": {"lineStyle": {"opacity": 0.25}}, "nameTextStyle": text}
        x_axis = {**axis, "name": self.x_label, "nameLocation": "middle", "nameGap": 24}
        last = ", ".join(f"{name} {line[-1][1]:,.4g}" for name, line in points.items() if line)
        return {
            "animation": False,
            "color": list(COLOURS),
            "aria": {"enabled": True, "label": {"description": f"{self.title}. Last: {last}."}},
            "grid": {"left": 44, "right": 16, "top": 48, "bottom": 40},
            "legend": {"top": 0, "left": 0, "itemGap": 8, "itemWidth": 14, "textStyle": text},
            "tooltip": {"trigger": "axis", "confine": True},
            "xAxis": {**x_axis, "min": "dataMin", "max": "dataMax", "minInterval": 1},
            "yAxis": {**axis, "min": 0.0},
            "series": series,
        }


class Live:
    """HTML and charts that are drawn again and again: in place as long as their kinds stay."""

    def __init__(self) -> None:
        self._parts: list[Any] = []  # ui.html or ui.echart
        self._kinds: list[type] = []
        self._place = ui.element("div").classes("w-full")

    def show(self, parts: Iterable[Markup | Lines]) -> None:
        """Draw the parts; charts that follow one another share a row."""
        new = list(parts)
        kinds: list[type] = [type(part) for part in new]
        if kinds != self._kinds:
            self._kinds, self._parts = kinds, []
            self._place.clear()
            with self._place:
                for i, kind in enumerate(kinds):
                    if kind is Markup:
                        self._parts.append(put(""))
                        continue
                    if i == 0 or kinds[i - 1] is Markup:
                        row = ui.element("div").classes("panels")
                    with row, ui.element("div"):
                        put(html("<h3>{}</h3>", new[i][0]))
                        self._parts.append(ui.echart({}).classes("chart"))
        for part, element in zip(new, self._parts, strict=True):
            if isinstance(part, Lines):
                element.options.update(part.options())
                element.update()
            else:
                element.content = part
