"""Names, scores and differences as the tables of the results pages show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.intervals import Draws
from benchmarks.pages import NONE
from benchmarks.plan import EntryConfig

AGENT: Final = "bid_price"  # the default agent
PAPER: Final = "inframind"  # the published agent
REPLAYED: Final = "inframind_sequential"  # the same, trained with the published execution
OBLIVIOUS: Final = "static_mix"  # the measured choices of the published MasRouter
BOUND: Final = "clairvoyant"
DATASETS: Final = {
    "math": "MATH",
    "mbpp": "MBPP",
    "gsm_hard": "GSM-Hard",
    "humaneval": "HumanEval",
    "mmlu_pro": "MMLU-Pro",
}
ELSEWHERE: Final = "measured elsewhere"


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table.

    Attributes:
        name: Metric in the records.
        label: Heading with the unit.
        scale: Factor from the recorded to the shown value.
        sign: 1.0 where higher is better, -1.0 where lower is.
    """

    name: str
    label: str
    scale: float = 100.0
    sign: float = 1.0


COLUMNS: Final = (  # of the full tables
    Column("accuracy", "solved %"),
    Column("latency_mean_s", "mean s", 1.0, -1.0),
    Column("slo_100s", "≤100 s %"),
    Column("slo_own", "in budget %"),
    Column("goodput", "goodput %"),
)
GOODPUT: Final = COLUMNS[-1]


def title(workload: str) -> str:
    """A workload's name as it is written."""
    return DATASETS.get(workload, workload)


def per_minute(rate: float) -> str:
    """An arrival rate."""
    return f"{rate:g}/min"


def named(entry: EntryConfig) -> str:
    """The name of a row; bounds are in italics."""
    return f"*`{entry.name}`*" if entry.kind == "bound" else f"`{entry.name}`"


def margin(draws: Draws, column: Column) -> str:
    """A score and half of the width of its interval."""
    low, high = draws.interval()
    half = (high - low) / 2 * column.scale
    return f"{text(draws.value, column)}±{half:,.{_decimals(half, column)}f}"


def difference(draws: Draws, column: Column) -> str:
    """A difference with its interval; bold where the interval leaves 0 out."""
    low, high = draws.interval()
    shown = f"{signed(draws.value, column)} [{signed(low, column)}, {signed(high, column)}]"
    return f"**{shown}**" if low > 0 or high < 0 else shown


def text(value: float, column: Column) -> str:
    """A score in the unit that it is shown in."""
    shown = value * column.scale
    return f"{shown:,.{_decimals(shown, column)}f}"


def text_or_dash(value: float | None, column: Column) -> str:
    """The same, with a dash for None."""
    return NONE if value is None else text(value, column)


def signed(value: float, column: Column) -> str:
    """The same with its sign; 0 has none."""
    shown = value * column.scale
    words = f"{shown:+,.{_decimals(shown, column)}f}"
    return words[1:] if float(words.replace(",", "")) == 0.0 else words


def _decimals(shown: float, column: Column) -> int:
    return 1 if column.scale != 1.0 or abs(shown) < 100 else 0
