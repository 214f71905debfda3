"""How scores, differences and names are written in the tables of the results page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from benchmarks.results_page.bootstrap import Draws
from benchmarks.results_page.plan import EntryConfig
from benchmarks.results_page.records import Place
from benchmarks.results_page.scores import COLUMNS
from inframind_gym.benchmark.metrics import Metric

DATASETS: Final = {
    "math": "MATH",
    "mbpp": "MBPP",
    "gsm_hard": "GSM-Hard",
    "humaneval": "HumanEval",
    "mmlu_pro": "MMLU-Pro",
}
ELSEWHERE: Final = "measured elsewhere"
GOODPUT: Final = next(column for column in COLUMNS if column.name == "goodput")


def title(workload: str) -> str:
    """A workload's name as it is written."""
    return DATASETS.get(workload, workload)


def titles(places: Iterable[Place]) -> str:
    """The workloads of some places, in words."""
    return ", ".join(dict.fromkeys(title(workload) for workload, _ in places))


def margin(draws: Draws, column: Metric) -> str:
    """A score and half of the width of its interval."""
    low, high = draws.interval()
    half = (high - low) / 2 * column.scale
    return f"{text(draws.value, column)}±{half:,.{_decimals(half, column)}f}"


def difference(draws: Draws, column: Metric) -> str:
    """A difference with its interval; bold where the interval leaves 0 out."""
    low, high = draws.interval()
    shown = f"{signed(draws.value, column)} [{signed(low, column)}, {signed(high, column)}]"
    return f"**{shown}**" if low > 0 or high < 0 else shown


def named(entry: EntryConfig) -> str:
    """The name of a row; bounds are in italics."""
    return f"*`{entry.name}`*" if entry.kind == "bound" else f"`{entry.name}`"


def _decimals(shown: float, column: Metric) -> int:
    return 1 if column.scale != 1.0 or abs(shown) < 100 else 0


def text(value: float, column: Metric) -> str:
    """A score in the unit that it is shown in."""
    shown = value * column.scale
    return f"{shown:,.{_decimals(shown, column)}f}"


def signed(value: float, column: Metric) -> str:
    """The same with its sign; 0 has none."""
    shown = value * column.scale
    words = f"{shown:+,.{_decimals(shown, column)}f}"
    return words[1:] if float(words.replace(",", "")) == 0.0 else words
