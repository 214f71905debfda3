import base64
import dataclasses
import errno
import json
import os
import random
import shutil
import signal
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inframind_gym.benchmark import lines
from inframind_gym.benchmark import store as store_module
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.leaderboard import leaderboard
from inframind_gym.benchmark.lines import seal
from inframind_gym.benchmark.results import load_results
from inframind_gym.benchmark.routing.suite import RoutingCell
from inframind_gym.benchmark.store import (
    CELLS,
    HEADER,
    TIMING,
    ResultStore,
    read_cells,
    read_header,
    read_timings,
)
from inframind_gym.benchmark.tables import leaderboard_sheets
from inframind_gym.errors import InfraMindError
from tests.benchmark.synthetic_results import drawn, header, plan_of, result, write_folder

CELL_LIST = [RoutingCell(p, "w", 10.0, 30.0, seed) for p in ("good", "bad") for seed in range(3)]
PLANNED = plan_of(CELL_LIST)


def make(cell: RoutingCell) -> np.ndarray:
    return drawn(cell, 0.7, 1.0)


def finished(folder: Path) -> list[RoutingCell]:
    return [found.cell for found in read_cells(folder) if found is not None]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "r"
    timed = [
        dataclasses.replace(result(cell, make(cell)), timing={"ms": 1.5}) for cell in CELL_LIST
    ]
    with ResultStore(folder, header(planned=PLANNED)) as store:
        store.commit(timed[:4])
        store.commit(timed[4:])
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "r")


def test_what_is_written_can_be_read(folder: Path) -> None:
    assert finished(folder) == CELL_LIST
    for found in read_cells(folder):
        columns, records = found.columns(), make(found.cell)[::-1]
        for name in ("query", "latency_s", "solved", "calls", "topology"):
            assert columns[name].dtype == records[name].dtype
            assert (columns[name] == records[name]).all()
        assert columns["model"].tolist() == [[0, 0]] * 50
        assert columns["strategy"].tolist() == [[0, 2]] * 50
        assert set(columns["task"]) == {"t/0"}
    assert read_timings(folder) == {
        name: {"ms": 1.5} for cells in PLANNED.values() for name in cells
    }


def cut(rng: random.Random, whole: bytes) -> bytes:
    return whole[: rng.randrange(len(whole))]


def flipped(rng: random.Random, whole: bytes) -> bytes:
    damaged = bytearray(whole)
    damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


@pytest.mark.parametrize("number", range(60))
@pytest.mark.parametrize("damage", [cut, flipped])
def test_damage_anywhere_is_seen_and_mended_by_the_next_run(
    folder: Path, damage: Callable[[random.Random, bytes], bytes], number: int
) -> None:
    path = folder / (CELLS, TIMING, HEADER)[number % 3]
    whole = path.read_bytes()
    path.write_bytes(damage(random.Random(number), whole))
    if path.name == HEADER:
        for read in (load_results, lambda where: ResultStore(where, header())):
            with pytest.raises(BenchmarkError, match=r"run\.json is damaged|in format"):
                read(folder)
        return
    there = finished(folder)
    if not there:
        with pytest.raises(BenchmarkError, match="no finished cell yet"):
            load_results(folder)
    else:
        results = load_results(folder)
        board = leaderboard(results, num_resamples=10)
        lost = [cell for cell in CELL_LIST if cell not in there]
        assert (len(lost) > 0) == (path.name == CELLS)
        assert board["missing"] == {
            policy: [cell.where for cell in lost if cell.policy == policy]
            for policy in ("good", "bad")
            if any(cell.policy == policy for cell in lost)
        }
        note = f"{len(there)} of {len(CELL_LIST)} cells; missing"
        assert any(note in said for said in board["notes"]) == bool(lost)
        timed = len(results.timings) == len(there) or not results.timings
        assert any("times are those of" in said for said in board["notes"]) != timed
        for cell, episode in results.episodes.items():
            assert episode.values.tolist() == make(cell)["latency_s"][::-1].tolist()
    with ResultStore(folder, header(planned=PLANNED)) as store:
        lost = [c for c in CELL_LIST if not store.finished & set(plan_of([c])[c.policy])]
        store.commit([result(cell, make(cell)) for cell in lost])
        store.sort()
    if path.name == CELLS:
        assert sorted(path.read_bytes().splitlines()) == sorted(whole.splitlines())


def test_lines_of_another_file_are_not_taken_for_results(folder: Path) -> None:
    """A number is changed by hand, with the line as long as before."""
    text = (folder / CELLS).read_text()
    (folder / CELLS).write_text(text.replace('"goodput": 0.', '"goodput": 1.', 1))
    assert finished(folder) == CELL_LIST[1:]


def test_what_was_just_computed_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [result(cell, make(cell)) for cell in CELL_LIST]
    with ResultStore(tmp_path, header(planned=PLANNED)) as store:
        store.commit(results[:2])  # an earlier run
        store.commit(results[:1:-1])
        store.sort()
    whole = leaderboard(load_results(tmp_path), num_resamples=10)
    read, real = [], lines._unpack
    monkeypatch.setattr(lines, "_unpack", lambda text: read.append(1) or real(text))
    computed = {one.cell_id: dataclasses.replace(one, line=b"") for one in results[2:]}
    some = load_results(tmp_path, computed)
    assert len(read) == 2
    assert leaderboard(some, num_resamples=10) == whole


def test_a_sorted_store_goes_on(tmp_path: Path) -> None:
    """The places of lines are known after they have moved."""
    results = [result(cell, make(cell)) for cell in CELL_LIST]
    with ResultStore(tmp_path, header(planned=PLANNED)) as store:
        store.commit(results[3:])
        store.commit(results[:2])
        store.sort()
        store.commit(results[2:3])
        store.sort()
        ordered = sorted(CELL_LIST, key=lambda cell: cell.sort_key)
        assert finished(tmp_path) == ordered


def test_sorting_makes_the_file_independent_of_the_order_of_work(
    folder: Path, tmp_path: Path
) -> None:
    write_folder(tmp_path / "backwards", CELL_LIST[::-1], make)
    for path in (folder, tmp_path / "backwards"):
        with ResultStore(path, header()) as store:
            store.sort()
            assert len(store.finished) == len(CELL_LIST)
    assert (folder / CELLS).read_bytes() == (tmp_path / "backwards" / CELLS).read_bytes()


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_kill_while_a_file_is_replaced_loses_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with ResultStore(folder, header()) as store:

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(store_module.os, step, killed)
        with pytest.raises(KeyboardInterrupt):
            store.sort()
    monkeypatch.undo()
    assert finished(folder) == CELL_LIST
    with ResultStore(folder, header()) as store:
        store.sort()
    assert finished(folder) == sorted(CELL_LIST, key=lambda cell: cell.sort_key)
    assert sorted(p.name for p in folder.iterdir()) == [".lock", CELLS, HEADER, TIMING]


@pytest.mark.parametrize("number", range(20))
def test_a_kill_at_a_random_moment_loses_no_committed_cell(tmp_path: Path, number: int) -> None:
    """The process commits, sorts and opens the folder again until it is killed."""
    results = [result(cell, make(cell)) for cell in CELL_LIST]
    told, tells = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            while True:
                for one in results:
                    with ResultStore(tmp_path, header(planned=PLANNED)) as store:
                        store.commit([] if one.cell_id in store.finished else [one])
                        os.write(tells, one.cell_id.encode())
                        store.sort()
        finally:
            os._exit(1)
    os.close(tells)
    os.read(told, 16)
    time.sleep(random.Random(number).random() * 0.03)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(told, "rb") as pipe:
        rest = pipe.read()
    committed = {results[0].cell_id} | {rest[i : i + 16].decode() for i in range(0, len(rest), 16)}
    with ResultStore(tmp_path, header(planned=PLANNED)) as store:
        assert committed <= store.finished
    assert load_results(tmp_path).planned == len(CELL_LIST)


def test_a_full_disk_is_a_clear_error_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "full"
    real = os.write

    def write(descriptor: int, content: bytes) -> int:
        if len(content) < 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, content[: len(content) // 2])

    with ResultStore(folder, header()) as store:
        store.commit([result(CELL_LIST[0], make(CELL_LIST[0]))])
        monkeypatch.setattr(store_module.os, "write", write)
        with pytest.raises(BenchmarkError, match=r"cells.jsonl.*No space left.*same command"):
            store.commit([result(CELL_LIST[1], make(CELL_LIST[1]))])
        monkeypatch.undo()
        assert finished(folder) == CELL_LIST[:1]
        store.commit([result(CELL_LIST[1], make(CELL_LIST[1]))])
    assert finished(folder) == CELL_LIST[:2]


def test_a_board_marks_what_is_unfinished(tmp_path: Path) -> None:
    write_folder(tmp_path, CELL_LIST[:4], make, planned=PLANNED)
    board = leaderboard(load_results(tmp_path), num_resamples=50)
    assert (board["cells"], board["planned"]) == (4, 6)
    assert {row["policy"]: row["missing"] for row in board["ranking"]} == {"good": 0, "bad": 2}
    sheet, *_ = leaderboard_sheets(board)
    assert "4 of 6 episodes (unfinished)" in sheet.title
    assert sorted(row[1] for row in sheet.rows) == ["bad *", "good"]
    assert "* Unfinished" in sheet.caption
    assert board["notes"][0].startswith(
        "unfinished, 4 of 6 cells; missing: 2 of bad (w, 10/min, 30 s, seed 1; w, 10/min, 30 s, "
        "seed 2)"
    )


def test_other_settings_are_refused(folder: Path) -> None:
    before = (folder / CELLS).read_bytes()
    with pytest.raises(BenchmarkError, match=r"num_queries \(there: 50, now: 60\)"):
        ResultStore(folder, header(settings={"num_queries": 60}))
    with pytest.raises(BenchmarkError, match=r"policy good: version \(there: 1, now: 2\)"):
        ResultStore(folder, header(policies={"good": {"version": 2}}))
    with pytest.raises(BenchmarkError, match="the content of workload w"):
        ResultStore(folder, header(workloads={"w": "2"}))
    assert (folder / CELLS).read_bytes() == before


def test_a_folder_without_cells_takes_other_settings(tmp_path: Path) -> None:
    for changes in ({"num_queries": 7}, {}):
        with ResultStore(tmp_path, header(settings=changes)):
            pass
    assert read_header(tmp_path)["settings"] == {}


def test_a_folder_of_another_format_is_refused(folder: Path) -> None:
    """Formats 1 and 2 had no checksums."""
    old = header(settings={"num_queries": 50, "format": 2})
    (folder / HEADER).write_text(json.dumps(old))
    for read in (load_results, lambda where: ResultStore(where, header())):
        with pytest.raises(BenchmarkError, match="was written in format 2 of the benchmark"):
            read(folder)


def test_a_wider_run_adds_to_the_plan(folder: Path) -> None:
    more = dataclasses.replace(CELL_LIST[0], seed=7)
    with ResultStore(folder, header(planned=plan_of([more]))):
        pass
    assert load_results(folder).missing == {"good": [more.where]}
    assert sum(map(len, read_header(folder)["planned"].values())) == len(CELL_LIST) + 1


def test_further_policies_join_a_folder(folder: Path) -> None:
    with ResultStore(folder, header(policies={"new": {}}, runs=[{"started": "now"}])) as store:
        assert set(store.header["policies"]) == {"good", "bad", "new"}
        assert len(store.header["runs"]) == 2
        assert len(store.finished) == len(CELL_LIST)


def test_two_runs_cannot_share_a_folder(folder: Path) -> None:
    with ResultStore(folder, header()), pytest.raises(BenchmarkError, match="in use"):
        ResultStore(folder, header())
    ResultStore(folder, header()).__exit__(None, None, None)


def test_results_without_a_header_are_not_touched(folder: Path) -> None:
    (folder / HEADER).unlink()
    before = (folder / CELLS).read_bytes()
    with pytest.raises(BenchmarkError, match=r"no run.json"):
        ResultStore(folder, header())
    assert (folder / CELLS).read_bytes() == before


DEEP = b"[" * 100_000
BOMB = base64.b64encode(zlib.compress(b"[]\n" + bytes(2**20))).decode()


def sealed_cell(**changes: Any) -> bytes:
    return seal({**json.loads(result(CELL_LIST[0], make(CELL_LIST[0])).line), **changes})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (HEADER, DEEP, "run.json is damaged or was edited .*nested deeper"),
        (HEADER, None, "run.json: cannot be read .it is a folder"),
        (CELLS, None, "cells.jsonl: cannot be read .it is a folder"),
        (TIMING, None, "timing.jsonl: cannot be read .it is a folder"),
        (CELLS, DEEP, "no finished cell yet .1 damaged or torn"),
        (CELLS, seal({"cell": []}), "no finished cell yet .1 damaged or torn"),
        *(
            (CELLS, sealed_cell(columns=columns), "cells.jsonl: the records of cell .* cannot be")
            for columns in (None, 3, "", "AAAA", "é", BOMB[:-8], BOMB)
        ),
        *(
            (HEADER, seal(header(**{key: value}), indent=2), f"run.json: {key}")
            for key, value in (
                *(("planned", [1]), ("planned", {"good": 3}), ("policies", []), ("names", None)),
                *(("suite", []), ("runs", {}), ("bounds", 3), ("left_out", ["good"])),
                *(("workloads", [1]), ("env_specs", 1)),
            )
        ),
        (HEADER, seal(header(suite={"kind": []}), indent=2), "run.json was written by another"),
        (HEADER, seal(header(suite={}), indent=2), "run.json was written by another"),
    ],
)
def test_what_no_run_has_written_is_an_error(
    folder: Path, name: str, content: bytes | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MOST_BYTES", 2**20)
    path = folder / name
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(InfraMindError, match=said):
        load_results(folder)


def test_cells_that_were_not_planned_are_left_out(folder: Path) -> None:
    other = dataclasses.replace(CELL_LIST[0], seed=9)
    with (folder / CELLS).open("ab") as file:
        file.write(result(other, make(other)).line)
    loaded = load_results(folder)
    assert other not in loaded.episodes
    assert loaded.notes()[0] == f"left out: 1 cells that no run of {folder} planned"


def test_nothing_in_a_line_is_nan(folder: Path) -> None:
    cell = dataclasses.replace(CELL_LIST[0], seed=99)
    records = drawn(cell, 0.7, 1.0)
    records["latency_s"][3] = float("nan")
    with pytest.raises(ValueError, match="latency_s has values that are not finite"):
        result(cell, records)
