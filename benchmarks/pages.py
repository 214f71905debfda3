"""Tables, figures and regions of the pages under ``docs/``.

The pages are written by hand. Tables are regions between two comments, which commands refresh:

<!-- table: goodput -->
…
<!-- end -->

Figures are SVG with text as text, the same bytes for the same evidence.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inframind_gym.errors import ConfigError, require, unknown
from inframind_gym.evaluation.tables import Table, to_markdown
from inframind_gym.files import replace_bytes, replace_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NONE: Final = "–"
INK: Final = "#24292f"
QUIET: Final = "#6e7781"
RULE: Final = "#d0d7de"
_STYLE: Final[dict[Any, Any]] = {
    "svg.hashsalt": "inframind_gym",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica"],
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}
_REGION: Final = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Return a markdown table whose first `left` columns are text, the others numbers."""
    return to_markdown(Table("", headings, list(rows), left=left), title=False)


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return records of the same keys as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def refresh(
    page: Path,
    blocks: Mapping[str, str],
    figures: Mapping[Path, Callable[[], Figure]] | None = None,
    *,
    check: bool = False,
) -> list[Path]:
    """Refresh the regions of a page, by name, and draw its figures, or only check the regions.

    Returns:
        The page, if it was out of date.

    Raises:
        ConfigError: The page cannot be read, or has a region without a block.
        InfraMindError: It or a figure cannot be written, or matplotlib is missing.
    """

    def region(match: re.Match[str]) -> str:
        if match[2] not in blocks:
            raise ConfigError(unknown("table", match[2], blocks))
        return f"{match[1]}\n{blocks[match[2]]}\n\n{match[3]}"

    try:
        old = page.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{page}: {error.strerror}.") from None
    new = _REGION.sub(region, old)
    if not check:
        if new != old:
            replace_text(page, new)
        if figures:
            require("matplotlib", "drawing figures", "plot")
            from matplotlib import rc_context

            with rc_context(_STYLE):
                for path, draw in figures.items():
                    drawn = io.BytesIO()
                    draw().savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
                    replace_bytes(path, drawn.getvalue())
    return [] if new == old else [page]
