"""Figures of the pages: SVG with text as text, the same bytes for the same evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inframind_gym.benchmark.errors import BenchmarkError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK: Final = "#24292f"
QUIET: Final = "#6e7781"
RULE: Final = "#d0d7de"
_STYLE: Final = {
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


def save_all(figures: Mapping[str, Callable[[], Figure]], folder: Path) -> list[Path]:
    """Draw figures, by the names of their files without suffix, into a folder; return the files.

    Raises:
        BenchmarkError: matplotlib is missing, or a file cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with style():
            for name, draw in figures.items():
                path = folder / f"{name}.svg"
                draw().savefig(path, format="svg", metadata={"Date": None, "Creator": None})
                written.append(path)
    except OSError as error:
        raise BenchmarkError(f"{error.filename}: {error.strerror or error}.") from None
    return written


def check_matplotlib() -> None:
    """Check that figures can be drawn.

    Raises:
        BenchmarkError: matplotlib is missing; names the extra.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise BenchmarkError(
            "figures need matplotlib: install the extra `plot`, from the repository "
            '`pip install -c constraints.txt -e ".[plot]"`.'
        ) from None


@contextmanager
def style() -> Iterator[None]:
    """The look of all figures.

    Raises:
        BenchmarkError: matplotlib is missing.
    """
    check_matplotlib()
    from matplotlib import rc_context

    settings: Any = _STYLE
    with rc_context(settings):
        yield
