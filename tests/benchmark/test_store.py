import dataclasses
import errno
import json
import os
from pathlib import Path

import pytest

from inframind_gym.benchmark import store as store_module
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.results import load_results
from inframind_gym.benchmark.routing.suite import RoutingCell
from inframind_gym.benchmark.store import (
    CELLS,
    HEADER,
    RECORDS,
    ResultStore,
    read_blocks,
    read_records,
)
from tests.benchmark.synthetic_results import drawn, header, result, write_folder

CELL_LIST = [RoutingCell(p, "w", 10.0, 30.0, seed) for p in ("good", "bad") for seed in range(3)]


def make(cell: RoutingCell) -> object:
    return drawn(cell, 0.7, 1.0)


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (RECORDS, CELLS)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "r", CELL_LIST, make)
    return tmp_path / "r"


def test_what_is_written_can_be_read(folder: Path) -> None:
    blocks = read_blocks(folder)
    assert [block.cell for block in blocks] == CELL_LIST
    for block, records in read_records(folder, blocks):
        assert [record["query"] for record in records] == list(range(50))
        cells = {RoutingCell.from_json({**r, "budget_s": r["cell_budget_s"]}) for r in records}
        assert cells == {block.cell}
    record = json.loads((folder / RECORDS).read_bytes().splitlines()[0])
    assert record["models"] == {"big": 2}
    assert record["strategies"] == {"Flash": 1, "DeepThink": 1}
    assert record["actions"] == [0, 2]


def test_a_kill_at_any_byte_loses_no_finished_cell(folder: Path, tmp_path: Path) -> None:
    """Records are written before cells: cut each file at many places, continue, compare."""
    whole = contents(folder)
    ends = [block.end for block in read_blocks(folder)]
    lines = whole[CELLS].splitlines(keepends=True)
    for finished in range(len(CELL_LIST)):
        start = ends[finished - 1] if finished else 0
        for fraction in (0.0, 0.3, 0.999, 1.0):
            for torn in (b"", lines[finished][:40], b"\0" * 40, b"\0" * 40 + b"\n"):
                cut = tmp_path / "cut"
                cut.mkdir(exist_ok=True)
                (cut / HEADER).write_bytes((folder / HEADER).read_bytes())
                end = start + int(fraction * (ends[finished] - start))
                (cut / RECORDS).write_bytes(whole[RECORDS][:end])
                (cut / CELLS).write_bytes(b"".join(lines[:finished]) + torn)
                assert [block.cell for block in read_blocks(cut)] == CELL_LIST[:finished]
                with ResultStore(cut, header()) as store:
                    assert len(store.finished) == finished
                    store.commit([result(cell, make(cell)) for cell in CELL_LIST[finished:]])
                assert contents(cut) == whole


def test_cells_whose_records_are_cut_off_are_computed_again(folder: Path) -> None:
    whole = contents(folder)
    with (folder / RECORDS).open("r+b") as file:
        file.truncate(len(whole[RECORDS]) - 10)
    with ResultStore(folder, header()) as store:
        assert len(store.finished) == len(CELL_LIST) - 1
        store.commit([result(CELL_LIST[-1], make(CELL_LIST[-1]))])
    assert contents(folder) == whole


def test_damage_before_the_end_is_an_error_that_names_the_line(folder: Path) -> None:
    lines = (folder / CELLS).read_bytes().splitlines(keepends=True)
    (folder / CELLS).write_bytes(b"".join([lines[0], lines[1][:50] + b"\n", *lines[2:]]))
    with pytest.raises(BenchmarkError, match=r"cells.jsonl, line 2, is damaged"):
        read_blocks(folder)


def test_damaged_records_are_an_error(folder: Path) -> None:
    blocks = read_blocks(folder)
    with (folder / RECORDS).open("r+b") as file:
        file.seek(blocks[1].start + 5)
        file.write(b"#####")
    with pytest.raises(BenchmarkError, match="damaged between bytes"):
        list(read_records(folder, blocks))


def test_sorting_makes_the_files_independent_of_the_order_of_work(
    folder: Path, tmp_path: Path
) -> None:
    write_folder(tmp_path / "backwards", CELL_LIST[::-1], make)
    for path in (folder, tmp_path / "backwards"):
        with ResultStore(path, header()) as store:
            store.sort()
            assert len(store.finished) == len(CELL_LIST)
    assert contents(folder) == contents(tmp_path / "backwards")


@pytest.mark.parametrize("renames", [0, 1])
def test_a_kill_during_sorting_loses_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    with ResultStore(folder, header()) as store:
        calls = []

        def replace(source: Path, target: Path) -> None:
            if len(calls) == renames:
                raise KeyboardInterrupt
            calls.append(os.rename(source, target))

        monkeypatch.setattr(store_module.os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            store.sort()
    monkeypatch.undo()
    assert len(list(read_records(folder, read_blocks(folder)))) == len(CELL_LIST)
    with ResultStore(folder, header()) as store:
        assert len(store.finished) == len(CELL_LIST)
        store.sort()
    blocks = read_blocks(folder)
    assert [b.cell for b in blocks] == sorted(CELL_LIST, key=lambda cell: cell.sort_key)
    assert len(list(read_records(folder, blocks))) == len(CELL_LIST)
    assert sorted(p.name for p in folder.iterdir()) == [".lock", CELLS, RECORDS, HEADER]


def test_a_kill_while_a_half_sort_is_undone_loses_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (RECORDS, CELLS):
        (folder / f"{name}.sorted").write_bytes(b"half")

    def unlink(path: Path, missing_ok: bool = False) -> None:
        os.unlink(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(KeyboardInterrupt):
        ResultStore(folder, header())
    monkeypatch.undo()
    assert [block.cell for block in read_blocks(folder)] == CELL_LIST
    with ResultStore(folder, header()) as store:
        assert len(store.finished) == len(CELL_LIST)


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
        with pytest.raises(BenchmarkError, match=r"records.jsonl.*No space left.*same command"):
            store.commit([result(CELL_LIST[1], make(CELL_LIST[1]))])
        monkeypatch.undo()
        assert [block.cell for block in read_blocks(folder)] == CELL_LIST[:1]
        assert (folder / RECORDS).stat().st_size == read_blocks(folder)[0].end
        store.commit([result(CELL_LIST[1], make(CELL_LIST[1]))])
    assert len(list(read_records(folder, read_blocks(folder)))) == 2


def test_other_settings_are_refused(folder: Path) -> None:
    before = contents(folder)
    with pytest.raises(BenchmarkError, match=r"num_queries \(there: 50, now: 60\)"):
        ResultStore(folder, header(settings={"num_queries": 60}))
    with pytest.raises(BenchmarkError, match=r"policy good: version \(there: 1, now: 2\)"):
        ResultStore(folder, header(policies={"good": {"version": 2}}))
    with pytest.raises(BenchmarkError, match="the content of workload w"):
        ResultStore(folder, header(workloads={"w": "2"}))
    assert contents(folder) == before


def test_a_folder_of_another_format_is_refused(folder: Path) -> None:
    old = header(settings={"num_queries": 50, "format": 1})
    (folder / HEADER).write_text(json.dumps(old))
    for read in (read_blocks, load_results, lambda where: ResultStore(where, header())):
        with pytest.raises(BenchmarkError, match="was written in format 1 of the benchmark"):
            read(folder)


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
    before = contents(folder)
    with pytest.raises(BenchmarkError, match=r"no run.json"):
        ResultStore(folder, header())
    assert contents(folder) == before


def test_nothing_in_a_line_is_nan(folder: Path) -> None:
    cell = dataclasses.replace(CELL_LIST[0], seed=99)
    records = drawn(cell, 0.7, 1.0)
    records["latency_s"][3] = float("nan")
    with pytest.raises(ValueError, match="JSON"):
        result(cell, records)
