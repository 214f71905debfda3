"""Results folders: what is written is read, damage is seen and mended, nothing finished is lost."""

import dataclasses
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.board import leaderboard, leaderboard_tables, load_results
from inframind_gym.evaluation.cells import Cell
from inframind_gym.evaluation.store import RECORDS, ResultStore, digest_of, read_cells
from tests.evaluation.synthetic_results import (
    drawn,
    header,
    id_of,
    plan_of,
    result,
    routing,
    write_folder,
)

CELL_LIST = [routing(p, "w", 10.0, 30.0, seed) for p in ("bad", "good") for seed in range(3)]
PLANNED = plan_of(CELL_LIST)


def make(cell: Cell) -> np.ndarray:
    return drawn(cell, 0.7, 1.0)


def finished(folder: Path) -> list[Cell]:
    return [found.cell for found in read_cells(folder) if found is not None]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "r"
    played = [result(cell, make(cell)) for cell in CELL_LIST]
    with ResultStore(folder, header(planned=PLANNED)) as store:
        store.commit(played[4:])
        store.commit(played[:4])
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "r")


def test_what_is_written_can_be_read(folder: Path) -> None:
    assert finished(folder) == CELL_LIST  # in the order of coordinates
    for found in read_cells(folder):
        assert found is not None
        columns = result(found.cell, make(found.cell)).columns
        assert list(found.columns) == list(columns)
        for name, values in columns.items():
            assert np.array_equal(found.columns[name], values), name
            assert values.dtype.kind == "U" or found.columns[name].dtype == values.dtype, name
        assert found.digest == digest_of(columns)


def test_pandas_opens_the_records(folder: Path) -> None:
    table = pytest.importorskip("pandas").read_parquet(folder / RECORDS)
    assert len(table) == 50 * len(CELL_LIST)
    means = table.groupby(["policy", "seed"])["latency_s"].mean()
    for cell in CELL_LIST:
        assert means[cell.policy, cell.seed] == pytest.approx(make(cell)["latency_s"].mean())
    assert set(table["budget"]) == {"30.0"} and set(table["rate_per_min"]) == {10.0}


def cut(rng: random.Random, whole: bytes) -> bytes:
    return whole[: rng.randrange(len(whole))]


def flipped(rng: random.Random, whole: bytes) -> bytes:
    damaged = bytearray(whole)
    damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("damage", [cut, flipped])
def test_damage_is_seen_and_mended_by_the_next_run(
    folder: Path, damage: Callable[[random.Random, bytes], bytes], number: int
) -> None:
    path = sorted((folder / RECORDS).iterdir())[number % 2]
    rng, whole = random.Random(number), path.read_bytes()
    pages = whole[: whole.rindex(b"PAR1") // 2] if damage is flipped else whole
    path.write_bytes(damage(rng, pages) + whole[len(pages) :])
    there = finished(folder)
    board = leaderboard(load_results(folder), num_resamples=10)
    if there != CELL_LIST:  # a flipped bit of a header that no page needs changes nothing
        assert board["damaged"] == 1
        assert any(f"{len(there)} of {len(CELL_LIST)} cells" in note for note in board["notes"])
    with ResultStore(folder, header(planned=PLANNED)) as store:
        lost = [cell for cell in CELL_LIST if id_of(cell) not in store.finished]
        assert [cell for cell in CELL_LIST if cell not in lost] == there
        if lost:
            store.commit([result(cell, make(cell)) for cell in lost])
    assert finished(folder) == CELL_LIST
    assert len(list((folder / RECORDS).glob(".*.damaged"))) == bool(lost)
    for one in read_cells(folder):
        assert one is not None and digest_of(result(one.cell, make(one.cell)).columns) == one.digest


def test_a_board_marks_what_is_unfinished(tmp_path: Path) -> None:
    write_folder(tmp_path, CELL_LIST[2:], make, planned=PLANNED)
    board = leaderboard(load_results(tmp_path), num_resamples=50)
    assert (board["cells"], board["planned"]) == (4, 6)
    assert {row["policy"]: row["missing"] for row in board["ranking"]} == {"good": 0, "bad": 2}
    table, *_ = leaderboard_tables(board)
    assert "4 of 6 episodes (unfinished)" in table.title
    assert sorted(row[1] for row in table.rows) == ["bad *", "good"]
    assert board["notes"][0].startswith(
        "unfinished, 4 of 6 cells; missing: 2 of bad (w, 10/min, 30 s, seed 0; w, 10/min, 30 s, "
        "seed 1)"
    )


def test_runs_of_other_policies_and_seeds_join_a_folder(folder: Path) -> None:
    more = dataclasses.replace(CELL_LIST[0], seed=7)
    changes: dict[str, Any] = {"policies": {"new": {}}, "runs": [{"started": "now"}]}
    with ResultStore(folder, header(planned=plan_of([more]), **changes)) as store:
        assert set(store.header["policies"]) == {"good", "bad", "new"}
        assert len(store.header["runs"]) == 2
        assert len(store.finished) == len(CELL_LIST)
    assert load_results(folder).missing == {"bad": [more.where]}


def test_a_run_of_another_family_leaves_results_alone(folder: Path) -> None:
    before = {path: path.read_bytes() for path in (folder / RECORDS).iterdir()}
    other = header(suite={"name": "s", "kind": "token_budget", "policies": []}, settings={"n": 1})
    with pytest.raises(ConfigError, match="other settings"):
        ResultStore(folder, other).__enter__()
    assert {path: path.read_bytes() for path in (folder / RECORDS).iterdir()} == before


def test_two_runs_cannot_share_a_folder(folder: Path) -> None:
    other = ResultStore(folder, header())
    with ResultStore(folder, header()), pytest.raises(ConfigError, match="in use"):
        other.__enter__()
    with ResultStore(folder, header()):
        pass
