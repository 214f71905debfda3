"""A results folder that a kill cannot spoil, and in which no damage passes for a result.

    run.json      settings, versions, machine, suite, planned cells, environment specs
    cells.jsonl   one line per finished cell: coordinates, metrics, and all records as columns
    timing.jsonl  time that the policy took in a cell, where that is measured

Every line, and `run.json` as a whole, carries the SHA-256 of its text. A cell is finished if its
line is there and holds its checksum; whatever was cut, flipped or torn is a cell that is missing,
and the next run of the same command computes it again. A line is synced when it is added, and
files are replaced as a whole, so that a kill at any moment costs the line that is being written.

When a run is complete its lines are put into the order of the cells' coordinates: the same suite
gives the same bytes, whatever the number of workers and however often it was interrupted. Only
`timing.jsonl` differs from run to run; nothing but the table of times is made from it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import BaseModel

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.families import Family, family_of
from inframind_gym.benchmark.lines import BROKEN, CellResult, FinishedCell, Timing, seal, unseal
from inframind_gym.configs import validate
from inframind_gym.files import MOST_BYTES, parse_json, read_bytes, read_raw_lines

FORMAT = 3  # of the folder
HEADER, CELLS, TIMING = "run.json", "cells.jsonl", "timing.jsonl"
PACKED = CELLS + ".gz"  # in place of CELLS in a submission, which no run adds to
REQUESTS = "requests.jsonl"  # of live servers: every call, as `inframind calibrate` reads them
_LOCK = ".lock"  # held by the run that uses the folder
_NEW = ".new"  # suffix of a file that is about to replace another
_ID_BEFORE = b'{"cell": "'  # opens every line of a cell


class _Header(BaseModel):
    """Part of ``run.json`` that is read; the file holds more."""

    settings: dict[str, Any]
    policies: dict[str, Any]
    suite: dict[str, Any]
    env_specs: dict[str, Any]
    runs: list[dict[str, Any]]
    names: dict[str, tuple[str, ...]] = {}
    workloads: dict[str, str] = {}
    clusters: dict[str, str] = {}
    demands: dict[str, str] = {}
    tracks: dict[str, str] = {}
    planned: dict[str, dict[str, str]] = {}
    left_out: dict[str, str] = {}
    bounds: tuple[str, ...] = ()


def read_header(folder: Path) -> dict[str, Any]:
    """Read ``run.json``.

    Raises:
        InfraMindError: The folder is not one of results, is damaged, or of another format.
    """
    path = folder / HEADER
    if not path.exists():
        what = "holds no results" if folder.is_dir() else "does not exist"
        raise BenchmarkError(
            f"{folder} {what} (no {HEADER}). "
            f"Make some: inframind bench run --suite starter --out {folder}"
        )
    text = read_bytes(path)
    try:
        written = parse_json(text.decode(), "the text", MOST_BYTES)["settings"].get(
            "format", FORMAT
        )
        header = unseal(text) if written == FORMAT else {}  # formats 1 and 2 had no checksum
    except BROKEN as error:
        raise BenchmarkError(
            f"{path} is damaged or was edited ({error}): nothing says any more what ran. Restore "
            "it from a copy, or run the command again in another folder."
        ) from None
    if written != FORMAT:
        raise BenchmarkError(
            f"{folder} was written in format {written} of the benchmark, this is format {FORMAT}. "
            "Choose another folder, or delete this one to start over."
        )
    validate(header, _Header, source=str(path))
    return header


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


def read_cells(
    folder: Path, besides: Collection[str] = frozenset()
) -> Iterator[FinishedCell | None]:
    """Yield the finished cells of a folder; None for each line that does not hold its checksum.

    Args:
        folder: A results folder.
        besides: Ids of cells whose lines are passed over.

    Raises:
        BenchmarkError: `run.json` cannot be used.
    """
    family = family_of(read_header(folder)["suite"])
    path = folder / (PACKED if (folder / PACKED).exists() else CELLS)
    yield from (cell for _, cell in _scan(path, family, besides))


def _scan(
    path: Path, family: Family, besides: Collection[str] = frozenset()
) -> Iterator[tuple[int, FinishedCell | None]]:
    """Yield the length of every line, and the cell; not of lines that open with an id `besides`."""
    if not path.exists():
        return
    for raw in read_raw_lines(path):
        if (
            besides
            and raw[len(_ID_BEFORE) :].partition(b'"')[0].decode(errors="replace") in besides
        ):
            continue
        try:
            line = unseal(raw)
            hash(line["cell"])
            yield len(raw), FinishedCell(family.suite.cell.from_json(line), line)
        except BROKEN:
            yield len(raw), None


def read_timings(folder: Path) -> dict[str, Timing]:
    """Read timings by the ids of cells; of several lines of a cell the last one counts.

    Lines that do not hold their checksum are left out.
    """
    path = folder / TIMING
    timings: dict[str, Timing] = {}
    for raw in read_raw_lines(path) if path.exists() else ():
        try:
            line = unseal(raw)
            cell = line.pop("cell")
            timings[cell] = {name: float(ms) for name, ms in line.items()}
        except BROKEN:
            continue
    return timings


class _Place(NamedTuple):
    """Position of a line in ``cells.jsonl``."""

    sort_key: tuple[Any, ...]
    start: int
    end: int


class ResultStore:
    """A results folder open for one run; a context manager.

    Args:
        folder: Created if needed.
        header: Content of ``run.json``. Its "settings" must equal those of an existing folder;
            entries of "policies" and of the suite's `files` (name to fingerprint), of "planned"
            (policy to ids to coordinates), "bounds" (policies that cannot be beaten) and
            "env_specs" are merged with the existing ones.

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
            if (folder / PACKED).exists():
                raise BenchmarkError(f"{folder} is a submission. Choose another folder.")
            merged = self._merge(header)
            self._find_cells()
            timing = folder / TIMING
            if timing.exists() and not read_bytes(timing).endswith(b"\n"):
                self._append(TIMING, b"\n")  # end the line that a kill has torn
            self._write_header(merged)
        except BaseException:
            self._lock.close()
            raise

    def _find_cells(self) -> None:
        """Find the finished cells, and drop lines that do not hold their checksum."""
        self._places: dict[str, _Place] = {}
        self._end, damaged = 0, False
        for length, found in _scan(self.folder / CELLS, self._family):
            if found is None:
                damaged = True
            else:
                place = _Place(found.cell.sort_key, self._end, self._end + length)
                self._places[found.line["cell"]] = place
            self._end += length
        if damaged:
            self._rewrite(self._places)

    @property
    def finished(self) -> set[str]:
        """Ids of the cells that need not be run again."""
        return set(self._places)

    def commit(self, results: Sequence[CellResult]) -> None:
        """Add finished cells; when this returns they survive a kill or a loss of power.

        Raises:
            BenchmarkError: The disk is full or fails; what was finished before stays readable.
        """
        timed = [seal({"cell": r.cell_id, **r.timing}) for r in results if r.timing is not None]
        if timed:
            self._append(TIMING, b"".join(timed))
        self._append(CELLS, b"".join(result.line for result in results))
        for result in results:
            end = self._end + len(result.line)
            self._places[result.cell_id] = _Place(result.cell.sort_key, self._end, end)
            self._end = end

    def leave_out(self, policy: str, reason: str) -> None:
        """Note in ``run.json`` that the run goes on without a policy."""
        left_out = {**self.header.get("left_out", {}), policy: reason}
        self._write_header({**self.header, "left_out": left_out})

    def _write_header(self, header: Mapping[str, Any]) -> None:
        self._replace(HEADER, [seal(header, indent=2)])
        self.header = dict(header)

    def sort(self) -> None:
        """Put the lines into the order of the cells' coordinates.

        Raises:
            BenchmarkError: The disk is full or fails; the file stays as it is.
        """
        ordered = sorted(self._places, key=lambda name: self._places[name].sort_key)
        if ordered != list(self._places):
            self._rewrite(ordered)

    def _rewrite(self, ids: Iterable[str]) -> None:
        """Replace ``cells.jsonl`` by the lines of these cells, in this order."""
        places = {name: self._places[name] for name in ids}
        with (self.folder / CELLS).open("rb") as source:

            def lines() -> Iterator[bytes]:
                for place in places.values():
                    source.seek(place.start)
                    yield source.read(place.end - place.start)

            self._replace(CELLS, lines())
        self._places, self._end = {}, 0
        for name, place in places.items():
            end = self._end + place.end - place.start
            self._places[name] = _Place(place.sort_key, self._end, end)
            self._end = end

    def _has_cells(self) -> bool:
        cells = self.folder / CELLS
        return cells.exists() and cells.stat().st_size > 0

    def _merge(self, header: Mapping[str, Any]) -> dict[str, Any]:
        if not (self.folder / HEADER).exists():
            if self._has_cells():
                raise BenchmarkError(
                    f"{self.folder} has results, but no {HEADER}. Choose another folder."
                )
            return dict(header)
        old, files = read_header(self.folder), self._family.suite.files()
        differing = differences(old, header)
        if differing:
            if not self._has_cells():
                return dict(header)
            raise BenchmarkError(
                f"{self.folder} holds results of other settings: {'; '.join(differing)}. "
                "Choose another folder, or delete this one to start over."
            )
        merged = {
            key: {**old.get(key, {}), **header[key]} for key in ("policies", *files, "env_specs")
        }
        planned = dict(old.get("planned", {}))
        for policy, cells in header.get("planned", {}).items():
            planned[policy] = {**planned.get(policy, {}), **cells}
        return {
            **header,
            **merged,
            "planned": planned,
            "left_out": {  # those of this run are asked again
                policy: reason
                for policy, reason in old.get("left_out", {}).items()
                if policy not in header["policies"]
            },
            **{
                key: header[key]
                | {k: v for k, v in old.get(key, {}).items() if k not in header[key]}
                for key in ("estimates", "places")
                if key in header
            },
            "bounds": sorted({*old.get("bounds", ()), *header.get("bounds", ())}),
            "runs": [*old["runs"], *header["runs"]],
        }

    def _append(self, name: str, content: bytes) -> None:
        path = self.folder / name
        before = path.stat().st_size if path.exists() else 0
        try:
            _write(path, [content], os.O_CREAT | os.O_APPEND)
        except OSError as error:
            os.truncate(path, before)
            raise self._failure(name, error) from None

    def _replace(self, name: str, parts: Iterable[bytes]) -> None:
        """Replace a whole file: a kill leaves the old one or the new one."""
        new = self.folder / (name + _NEW)
        try:
            _write(new, parts, os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise self._failure(name, error) from None
        os.replace(new, self.folder / name)

    def _failure(self, name: str, error: OSError) -> BenchmarkError:
        return BenchmarkError(
            f"{self.folder / name} cannot be written: {error.strerror}. Finished cells are kept: "
            "make room and run the same command again."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()


def _write(path: Path, parts: Iterable[bytes], flags: int) -> None:
    """Write and sync without a buffer, which would be flushed again after an error."""
    descriptor = os.open(path, os.O_WRONLY | flags, 0o644)
    try:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
