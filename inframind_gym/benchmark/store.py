"""A results folder that a kill cannot spoil.

    run.json        settings, versions, machine, suite, environment specs (replaced as a whole)
    records.jsonl   one line per query (of placement: per decision), in blocks of one cell
    cells.jsonl     one line per finished cell; this is the commit log
    timing.jsonl    time that the policy took in a cell, where that is measured

A cell is finished when its line is in ``cells.jsonl``. Its block of records is written and synced
before, so a kill at any moment leaves at most an unfinished tail in either file: readers ignore it,
the next run cuts it off. Blocks have the order of the cells' lines, and each line has its block's
length, so nothing has to be searched. When a run is complete, both files are put into the order of
the cells' coordinates: the same suite gives the same bytes, whatever the number of workers and
however often it was interrupted. Only ``timing.jsonl`` differs from run to run; nothing but the
table of times is made from it.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from inframind_gym.benchmark.cells import BaseCell
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.families import Family, family_of
from inframind_gym.benchmark.metrics import TAIL, Layout

FORMAT = 2  # of the folder
HEADER, RECORDS, CELLS, TIMING = "run.json", "records.jsonl", "cells.jsonl", "timing.jsonl"
REQUESTS = "requests.jsonl"  # of live servers: every call, as `inframind calibrate` reads them
_LOCK = ".lock"  # held by the run that uses the folder
_SORTED = ".sorted"  # suffix of the files that replace the logs when a run is complete
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

Timing = dict[str, float]  # name of a measurement -> milliseconds


@dataclass(frozen=True, slots=True)
class CellResult:
    """A finished cell.

    Attributes:
        line: Its line of ``cells.jsonl``, with "cell", the coordinates and "records_bytes".
        records: Its block of ``records.jsonl``.
        timing: Measurements of the time that it took; not part of the result.
    """

    line: dict[str, Any]
    records: bytes
    timing: Timing | None = field(default=None, compare=False)


def encode_cell(
    layout: Layout,
    cell: BaseCell,
    cell_id: str,
    records: Sequence[dict[str, Any]],
    timing: Timing | None = None,
) -> CellResult:
    """Encode a finished cell: a line for each record, its metrics in the line of the cell.

    Args:
        layout: Of the sums.
        cell: The cell's coordinates; in a record they are renamed where it has such a key itself.
        cell_id: Its id.
        records: Its queries or decisions, in their order.
        timing: Measurements of the time that it took.
    """
    coordinates = {
        f"cell_{key}" if key in records[0] else key: value for key, value in cell.to_json().items()
    }
    block = "".join(
        _ENCODER.encode({"cell": cell_id, **coordinates, **record}) + "\n" for record in records
    ).encode()
    sums = layout.sums(records)
    values = [value for record in records for value in layout.values(record)]
    line = {
        "cell": cell_id,
        **cell.to_json(),
        "records": len(records),
        "records_bytes": len(block),
        **{name: float(value) for name, value in layout.evaluate(sums).items()},
        layout.tail: float(np.quantile(values, TAIL)) if values else 0.0,
        **layout.shares(sums),
    }
    return CellResult(line, block, timing)


@dataclass(frozen=True, slots=True)
class Block:
    """Position of a finished cell's records.

    Attributes:
        cell: The cell's coordinates.
        line: Its line of ``cells.jsonl``.
        raw: The same as bytes, with the line's end.
        start: First byte in ``records.jsonl``.
        end: First byte after the block.
    """

    cell: BaseCell
    line: dict[str, Any]
    raw: bytes
    start: int
    end: int

    @classmethod
    def parse(cls, family: Family, raw: bytes, start: int) -> Block:
        """Read a line of ``cells.jsonl``.

        Raises:
            ValueError, KeyError, TypeError: It is not one.
        """
        line = json.loads(raw)
        return cls(
            family.suite.cell.from_json(line), line, raw, start, start + int(line["records_bytes"])
        )


def read_header(folder: Path) -> dict[str, Any]:
    """Read ``run.json``.

    Raises:
        BenchmarkError: The folder is not one of results, or of another format.
    """
    path = folder / HEADER
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        what = "holds no results" if folder.is_dir() else "does not exist"
        raise BenchmarkError(
            f"{folder} {what} (no {HEADER}). "
            f"Make some: inframind bench run --suite quick --out {folder}"
        ) from None
    except ValueError as error:
        raise BenchmarkError(f"{path} is not valid JSON: {error}") from None
    written = header.get("settings", {}).get("format", FORMAT)
    if written != FORMAT:
        raise BenchmarkError(
            f"{folder} was written in format {written} of the benchmark, this is format {FORMAT}. "
            "Choose another folder, or delete this one to start over."
        )
    return dict(header)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """List what keeps the results of two runs out of one folder, in words.

    Args:
        old: Content of the folder's ``run.json``.
        new: What the new run would write there.
    """
    found = _changes("", old["settings"], new["settings"])
    for name, now in new["policies"].items():
        found += _changes(f"policy {name}: ", old["policies"].get(name, now), now)
    for key, what in family_of(new["suite"]).suite.files().items():
        found += [
            f"the content of {what} {name}"
            for name, fingerprint in new[key].items()
            if old.get(key, {}).get(name, fingerprint) != fingerprint
        ]
    return found


def _changes(of: str, there: Any, now: Any) -> list[str]:
    if not (isinstance(there, dict) and isinstance(now, dict)):
        return [] if there == now else [f"{of}(there: {there!r}, now: {now!r})"]
    return [
        f"{of}{key} (there: {there.get(key)!r}, now: {now.get(key)!r})"
        for key in {**there, **now}
        if there.get(key) != now.get(key)
    ]


def read_blocks(folder: Path) -> list[Block]:
    """Read the finished cells of a folder, without the unfinished tail that a kill leaves.

    Raises:
        BenchmarkError: A line before the last is damaged; names it.
    """
    path, available = _log_of_cells(folder), _size(folder / RECORDS)
    blocks: list[Block] = []
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if not lines:
        return blocks
    family = family_of(read_header(folder)["suite"])
    for number, raw in enumerate(lines, start=1):
        try:
            if not raw.endswith(b"\n"):
                break  # torn
            block = Block.parse(family, raw, blocks[-1].end if blocks else 0)
        except (ValueError, KeyError, TypeError):
            if number == len(lines):
                break  # a kernel that went down with the power may leave a last line of zeros
            raise BenchmarkError(
                f"{path}, line {number}, is damaged. Cut both {CELLS} and {RECORDS} before its "
                "cell and run the same command again, or start over in another folder."
            ) from None
        if block.end > available:
            break
        blocks.append(block)
    return blocks


def read_timings(folder: Path) -> dict[str, Timing]:
    """Read timings by the ids of cells; of several lines of a cell the last one counts."""
    path = folder / TIMING
    timings: dict[str, Timing] = {}
    for raw in path.read_bytes().splitlines() if path.exists() else ():
        try:
            line = json.loads(raw)
            timings[line.pop("cell")] = line
        except (ValueError, KeyError, AttributeError, TypeError):
            continue
    return timings


def _log_of_cells(folder: Path) -> Path:
    """Return the log that fits ``records.jsonl``, also after a kill amid the renames of `sort`."""
    records, cells = (folder / (name + _SORTED) for name in (RECORDS, CELLS))
    return cells if cells.exists() and not records.exists() else folder / CELLS


def read_records(
    folder: Path, blocks: Sequence[Block]
) -> Iterator[tuple[Block, list[dict[str, Any]]]]:
    """Yield the records of finished cells, one cell after the other.

    Raises:
        BenchmarkError: A block is not what its cell's line says.
    """
    if not blocks:
        return
    with (folder / RECORDS).open("rb") as file:
        for block in blocks:
            file.seek(block.start)
            try:
                content = file.read(block.end - block.start)
                records = json.loads(b"[" + b",".join(content.splitlines()) + b"]")
                sound = len(records) == block.line["records"] and all(
                    record["cell"] == block.line["cell"] for record in records
                )
            except (ValueError, KeyError, TypeError):
                sound = False
            if not sound:
                raise BenchmarkError(
                    f"{folder / RECORDS} is damaged between bytes {block.start} and {block.end} "
                    f"({block.cell}). Run the suite again in another folder."
                )
            yield block, records


class ResultStore:
    """A results folder open for one run; a context manager.

    Args:
        folder: Created if needed.
        header: Content of ``run.json``. Its "settings" must equal those of an existing folder;
            entries of "policies" and of the suite's `files` (name to fingerprint), of "bounds"
            (policies that cannot be beaten) and of "env_specs" are merged with the existing ones.

    Raises:
        BenchmarkError: The folder belongs to other settings, is in use, or cannot be written.
    """

    def __init__(self, folder: Path, header: Mapping[str, Any]) -> None:
        self.folder = folder
        self._family = family_of(header["suite"])
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / _LOCK).open("w")
        except OSError as error:
            raise BenchmarkError(f"{folder} cannot be written: {error.strerror}.") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise BenchmarkError(
                f"{folder} is in use by another run. Wait for it, or choose another folder."
            ) from None
        try:
            self._finish_sorting()
            merged = self._merge(header)
            self._blocks = {block.line["cell"]: block for block in read_blocks(folder)}
            self._end = {
                RECORDS: max((block.end for block in self._blocks.values()), default=0),
                CELLS: sum(len(block.raw) for block in self._blocks.values()),
            }
            for name, end in self._end.items():  # cut off what follows the last finished cell
                (folder / name).touch()
                os.truncate(folder / name, end)
            self._write_header(merged)
        except BaseException:
            self._lock.close()
            raise

    @property
    def finished(self) -> set[str]:
        """Ids of the cells that need not be run again."""
        return set(self._blocks)

    def commit(self, results: Sequence[CellResult]) -> None:
        """Add finished cells; when this returns they survive a kill or a loss of power.

        Raises:
            BenchmarkError: The disk is full or fails; what was finished before stays readable.
        """
        blocks: list[Block] = []
        for result in results:
            raw = json.dumps(result.line, allow_nan=False).encode() + b"\n"
            start = blocks[-1].end if blocks else self._end[RECORDS]
            blocks.append(Block.parse(self._family, raw, start))
        self._append(RECORDS, b"".join(result.records for result in results))
        self._append(CELLS, b"".join(block.raw for block in blocks))
        self._note_timings(results)
        self._blocks.update((block.line["cell"], block) for block in blocks)

    def _note_timings(self, results: Sequence[CellResult]) -> None:
        lines = [
            json.dumps({"cell": result.line["cell"], **result.timing}) + "\n"
            for result in results
            if result.timing is not None
        ]
        if lines:
            try:
                with (self.folder / TIMING).open("a", encoding="utf-8") as file:
                    file.write("".join(lines))
            except OSError as error:
                raise self._failure(TIMING, error) from None

    def _write_header(self, header: Mapping[str, Any]) -> None:
        content = json.dumps(header, indent=2, allow_nan=False) + "\n"
        self._write_whole(HEADER + ".new", [content.encode()])
        os.replace(self.folder / (HEADER + ".new"), self.folder / HEADER)
        self.header = dict(header)

    def sort(self) -> None:
        """Put both files into the order of the cells' coordinates.

        Raises:
            BenchmarkError: The disk is full or fails; the files stay as they are.
        """
        blocks = sorted(self._blocks.values(), key=lambda block: block.cell.sort_key)
        if all(one.start <= other.start for one, other in itertools.pairwise(blocks)):
            return
        with (self.folder / RECORDS).open("rb") as source:

            def in_order() -> Iterator[bytes]:
                for block in blocks:
                    source.seek(block.start)
                    yield source.read(block.end - block.start)

            self._write_whole(RECORDS + _SORTED, in_order())
        self._write_whole(CELLS + _SORTED, (block.raw for block in blocks))
        os.replace(self.folder / (RECORDS + _SORTED), self.folder / RECORDS)
        os.replace(self.folder / (CELLS + _SORTED), self.folder / CELLS)
        self._blocks = {block.line["cell"]: block for block in read_blocks(self.folder)}

    def _finish_sorting(self) -> None:
        """Complete or undo a `sort` that a kill has interrupted (critical are its two renames)."""
        records, cells = self.folder / (RECORDS + _SORTED), self.folder / (CELLS + _SORTED)
        if _log_of_cells(self.folder) == cells:
            os.replace(cells, self.folder / CELLS)
        for leftover in (cells, records):  # in this order: the cells' alone mean half a `sort`
            leftover.unlink(missing_ok=True)

    def _merge(self, header: Mapping[str, Any]) -> dict[str, Any]:
        if not (self.folder / HEADER).exists():
            if _size(self.folder / CELLS):
                raise BenchmarkError(
                    f"{self.folder} has results, but no {HEADER}. Choose another folder."
                )
            return dict(header)
        old, files = read_header(self.folder), self._family.suite.files()
        differing = differences(old, header)
        if differing:
            raise BenchmarkError(
                f"{self.folder} holds results of other settings: {'; '.join(differing)}. "
                "Choose another folder, or delete this one to start over."
            )
        merged = {key: {**old[key], **header[key]} for key in ("policies", *files, "env_specs")}
        bounds = sorted({*old.get("bounds", ()), *header.get("bounds", ())})
        runs = [*old["runs"], *header["runs"]]
        return {**header, **merged, "bounds": bounds, "runs": runs}

    def _append(self, name: str, content: bytes) -> None:
        try:
            self._write(name, [content], os.O_APPEND)
        except OSError as error:
            os.truncate(self.folder / name, self._end[name])
            raise self._failure(name, error) from None
        self._end[name] += len(content)

    def _write_whole(self, name: str, parts: Iterable[bytes]) -> None:
        try:
            self._write(name, parts, os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            (self.folder / name).unlink(missing_ok=True)
            raise self._failure(name, error) from None

    def _write(self, name: str, parts: Iterable[bytes], flags: int) -> None:
        """Write and sync without a buffer, which would be flushed again after an error."""
        descriptor = os.open(self.folder / name, os.O_WRONLY | flags, 0o644)
        try:
            for part in parts:
                view = memoryview(part)
                while view:
                    view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _failure(self, name: str, error: OSError) -> BenchmarkError:
        return BenchmarkError(
            f"{self.folder / name} cannot be written: {error.strerror}. Finished cells are kept: "
            "make room and run the same command again."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
