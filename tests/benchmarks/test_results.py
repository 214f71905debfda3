"""The results pages: up to date with the records, and right where it is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import benchmarks.__main__  # noqa: F401  # adds the commands
from benchmarks.intervals import Draws, Units
from benchmarks.pages import fill
from benchmarks.plan import load_plan
from benchmarks.published import Published
from benchmarks.results import goodput_table, refresh_pages
from benchmarks.scores import (
    AGENT,
    BOUND,
    COLUMNS,
    GOODPUT,
    OBLIVIOUS,
    REPLAYED,
    Board,
    difference,
    margin,
    signed,
)
from inframind_gym.benchmark.cli import app
from inframind_gym.benchmark.errors import BenchmarkError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def board() -> Board:
    return Board(load_plan(), "parallel")


def test_committed_pages_are_up_to_date_with_the_records() -> None:
    stale = refresh_pages(load_plan(), ROOT / "docs", check=True)
    assert not stale, "run `python -m benchmarks results`"


def test_the_command_checks_and_refreshes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "results.md"
    monkeypatch.setattr("benchmarks.results.PAGES", ("results.md",))
    monkeypatch.setattr("benchmarks.results.all_tables", lambda *_: {"targets": "new"})
    monkeypatch.setattr("benchmarks.results.Board", lambda *_: None)
    monkeypatch.setattr("benchmarks.results.save_all", lambda *_: None)
    page.write_text("Prose.\n<!-- table: targets -->\nold\n<!-- end -->\nMore.\n")
    run = ["results", "--docs", str(tmp_path)]
    checked = CliRunner().invoke(app, [*run, "--check"])
    assert checked.exit_code == 1
    assert "results.md was out of date" in checked.output
    assert "old" in page.read_text()
    assert CliRunner().invoke(app, run).exit_code == 0
    expected = "Prose.\n<!-- table: targets -->\n\nnew\n\n<!-- end -->\nMore.\n"
    assert page.read_text() == expected
    assert CliRunner().invoke(app, [*run, "--check"]).exit_code == 0


def test_a_region_without_a_table_is_an_error() -> None:
    with pytest.raises(BenchmarkError, match="goodput"):
        fill("<!-- table: godput -->\n<!-- end -->", {"goodput": ""})


def test_scores_are_means_over_seeds_episodes_and_places(board: Board) -> None:
    place = ("math", 100.0)
    columns = board.scores[AGENT][place].columns
    assert columns["goodput"].shape == (5, 30)
    assert board.draws(AGENT, place, "goodput").value == pytest.approx(columns["goodput"].mean())
    every = [board.scores[AGENT][p].columns["goodput"].mean() for p in board.places(100.0)]
    assert board.mean(AGENT, "goodput", 100.0).value == pytest.approx(np.mean(every))
    agent, bound = (board.mean(name, "goodput", 100.0) for name in (AGENT, BOUND))
    assert board.difference(AGENT, BOUND, rate=100.0).value == agent.value - bound.value
    shares = [c for c in columns if c.startswith("model_share.")]
    assert sum(board.share(AGENT, c, 100.0) for c in shares) == pytest.approx(1.0, abs=1e-5)


def test_variants_of_the_agent_are_no_rivals(board: Board) -> None:
    rivals = board.rivals(AGENT)
    assert f"{AGENT}_all" not in rivals
    assert BOUND not in rivals
    assert not [name for name in rivals if name.startswith(f"{AGENT}-")]
    assert {"inframind_pid", "fixed_recipe"} <= set(rivals)
    place = ("math", 200.0)
    best = board.best(rivals, place)
    values = {name: board.scores[name][place].columns["goodput"].mean() for name in rivals}
    assert best == max(values, key=lambda name: values[name])


def test_the_best_entry_of_a_column_is_bold_and_bounds_are_not(board: Board) -> None:
    rows = goodput_table(board).splitlines()[2:]
    bold = [row for row in rows if "**" in row]
    assert [row.split(" | ")[0] for row in bold] == [f"| `{AGENT}`"]
    assert [row for row in rows if row.startswith(f"| *`{BOUND}`*")]


def test_published_measurements() -> None:
    published = Published()
    assert published.value("inframind", ("math", 10.0), "accuracy") == pytest.approx(0.708)
    assert published.value("inframind", ("math", 10.0), "latency_mean_s") == 27
    assert published.value("inframind", ("math", 50.0), "slo_100s") is None
    assert published.effect(("math", 10.0), "latency_mean_s") == -23
    assert published.effect(("math", 200.0), "accuracy") is None


def draws(value: float, spread: float) -> Draws:
    both = value + spread * np.linspace(-1.0, 1.0, 101)
    return Draws(value, np.stack([both, np.full(101, value), both]), Units(1, 0), Units(101, 100))


def test_numbers_in_tables() -> None:
    seconds = COLUMNS[1]
    assert signed(-0.0001, GOODPUT) == "0.0"
    assert signed(0.05, GOODPUT) == "+5.0"
    assert signed(-1234.5, seconds) == "-1,234"
    assert margin(draws(0.5, 0.0), GOODPUT) == "50.0±0.0"
    assert margin(draws(150.0, 0.0), seconds) == "150±0.0"
    assert difference(draws(0.1, 0.01), GOODPUT).startswith("**+10.0 [")
    assert not difference(draws(0.001, 0.1), GOODPUT).startswith("**")


def test_figures_in_the_prose_are_those_of_the_records(board: Board) -> None:
    replay = Board(load_plan(), "sequential")

    def calls(entry: str) -> str:
        means = [replay.draws(entry, place, "calls_per_query").value for place in replay.places()]
        return f"{min(means):.1f} to {max(means):.1f}"

    def most_used(workload: str) -> str:
        of_place = [replay.scores[REPLAYED][p].columns for p in replay.places(workload=workload)]
        models = [name for name in of_place[0] if name.startswith("model_share.")]
        shares = {name: np.mean([columns[name].mean() for columns in of_place]) for name in models}
        return f"{100 * max(shares.values()):.0f} %"

    informed = np.mean([bounds["informed"] for bounds in board.bounds.values()])
    agent, bound = (board.mean(name, "goodput").value for name in (AGENT, BOUND))
    place = ("gsm_hard", 200.0)
    by_training = board.scores[AGENT][place].columns["goodput"].mean(axis=1)
    ends = [f"{100 * goodput:.1f}" for goodput in by_training]
    page = " ".join((ROOT / "docs" / "results.md").read_text(encoding="utf-8").split())
    for words in (
        f"Over all cells it is {100 * informed / bound:.1f} % of `clairvoyant`",
        f"reaches {100 * agent / informed:.1f} % of it",
        f"`inframind_sequential` makes {calls(REPLAYED)} calls a query",
        f"MasRouter's mix makes {calls(OBLIVIOUS)}",
        f"MATH ({most_used('math')}) and GSM-Hard ({most_used('gsm_hard')})",
        f"MBPP ({most_used('mbpp')}) and HumanEval ({most_used('humaneval')})",
        f"mistral-24b on MMLU-Pro ({most_used('mmlu_pro')})",
        f"are at {', '.join(ends[:-1])} and {ends[-1]} %",
        f"`bid_price_all`, fitted once: {margin(board.mean(f'{AGENT}_all', 'goodput'), GOODPUT)} %",
    ):
        assert words in page
