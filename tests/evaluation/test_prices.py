"""Prices of a pool: checked when it is read, and shown as `$ / 1k queries` on its boards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from inframind_gym.configs import find_config
from inframind_gym.evaluation.board import leaderboard, leaderboard_tables, load_results
from inframind_gym.evaluation.compare import Side, compare
from inframind_gym.evaluation.play import with_prices
from inframind_gym.evaluation.routing import PRICE
from inframind_gym.simulator.server.pool import PoolConfig, load_pool
from inframind_gym.simulator.workflow.state import CALL
from tests.evaluation.synthetic_results import completed, routing, write_folder

TOKENS = {
    "price_per_million_prompt_tokens_usd": 2.0,
    "price_per_million_output_tokens_usd": 10.0,
}


def priced(folder: Path, hourly_usd: float | None, tokens: dict[str, float] | None = None) -> str:
    """Write `cpu-tiny` with a price for its GPU and for the tokens of its second model."""
    data: dict[str, Any] = yaml.safe_load(find_config("pools", "cpu-tiny").read_text("utf-8"))
    if hourly_usd is not None:
        data["gpus"][0]["price_per_gpu_hour_usd"] = hourly_usd
    data["models"][1] |= tokens or {}
    path = folder / "priced.yaml"
    path.write_text(yaml.safe_dump(data), "utf-8")
    return str(path)


def pool_of(folder: Path, *prices: Any) -> PoolConfig:
    return load_pool(priced(folder, *prices))


def test_gpus_are_paid_from_the_first_arrival_to_the_last_answer(tmp_path: Path) -> None:
    queries = completed(np.ones(4), np.array([5.0, 5.0, 5.0, 1.0]))  # arrivals 0, 2, 4, 6: 9 s
    priced_queries = with_prices(pool_of(tmp_path, 3600.0), queries, np.zeros(0, CALL))
    assert priced_queries["usd"] == pytest.approx([9.0 / 4] * 4)


def test_tokens_are_paid_by_the_query_whose_calls_they_are(tmp_path: Path) -> None:
    queries = completed(np.ones(2), np.ones(2))  # in reversed order: queries 1, 0
    calls = np.zeros(3, CALL)
    calls["query"], calls["model"] = (0, 0, 1), (1, 1, 0)  # the first model is free
    calls["prompt_tokens"], calls["output_tokens"] = 1000, 100
    priced_queries = with_prices(pool_of(tmp_path, None, TOKENS), queries, calls)
    assert priced_queries["usd"] == pytest.approx([0.0, 2 * (1000 * 2 + 100 * 10) / 1e6])


def test_the_board_shows_dollars_for_a_thousand_queries(tmp_path: Path) -> None:
    from tests.evaluation import synthetic_results as synthetic

    cells = [routing("good", "w", 10.0, 30.0, seed) for seed in range(2)]
    write_folder(tmp_path / "plain", cells, lambda _: completed(np.ones(4), np.ones(4)))
    header = synthetic.header(priced=True, estimates={"pool": ["cards are estimates"]})
    with synthetic.ResultStore(tmp_path / "priced", header) as store:
        for cell in cells:
            queries = with_prices(
                pool_of(tmp_path, 1.0), completed(np.ones(4), np.ones(4)), np.zeros(0, CALL)
            )
            queries["usd"] = np.array([1.0, 2.0, 3.0, 4.0]) / 1000.0
            store.commit([synthetic.result(cell, queries)])
    results = load_results(tmp_path / "priced")
    board = leaderboard(results, num_resamples=100)
    assert board["ranking"][0][PRICE] == pytest.approx(2.5)
    assert "cards are estimates" in board["notes"]
    assert "$ / 1k queries" in leaderboard_tables(board)[0].headings
    plain = load_results(tmp_path / "plain")
    without = leaderboard(plain, num_resamples=100)
    assert PRICE not in without["ranking"][0]
    assert "$ / 1k queries" not in leaderboard_tables(without)[0].headings
    both = compare(Side(results, "good"), Side(plain, "good"), num_resamples=100)
    assert PRICE not in both["overall"]
