"""A results folder: `run.json`, and a Parquet file for every finished batch of cells.

    run.json            settings, versions, machine, suite, planned cells, environment specs
    records/*.parquet   one row a record (a query, decision or task), with its cell's coordinates

``pandas.read_parquet(folder / "records")`` opens all records of a run. A file's metadata lists its
cells: id, coordinates, number of rows, and the SHA-256 of the records as they were played. A batch
is finished if its file is there: it is written beside and renamed, and its pages carry checksums. A
file that cannot be read counts as missing; the next run of the same command plays its cells again
and keeps it as a hidden file ``.….damaged``.

Results rest on declared versions: of the folder's format, of the simulator and of each policy. A
folder made under another version is refused; a change that no version declares is not seen.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import inspect
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from pydantic import BaseModel, create_model

import inframind_gym
from inframind_gym.configs import validate
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.cells import Cell, content_hash, file_hash
from inframind_gym.evaluation.metrics import TAIL, Columns, Layout
from inframind_gym.evaluation.suite import Suite, family_of
from inframind_gym.files import MOST_BYTES, parse_json, read_bytes, replace_text
from inframind_gym.simulator import SIMULATOR_VERSION

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = 6  # of the folder
HEADER, RECORDS = "run.json", "records"
REQUESTS: Final = "requests.jsonl"  # of live servers: every call, as `inframind calibrate` reads it
RAGGED: Final = {"job_latency_s": "jobs"}  # columns of several values a record -> their number
PACKAGE: Final = Path(inframind_gym.__file__).resolve().parent
_LOCK: Final = ".lock"  # held by the run that uses the folder
_UNREADABLE: Final = (OSError, ValueError, LookupError, TypeError, AttributeError)  # Arrow's, too


# The header: what a run is, and which cells it plans


def plan(
    suite: Suite, command: Sequence[str] = (), settings: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[Cell, str]]:
    """Return the content of ``run.json``, and the cells of a resolved suite with their ids.

    Its "settings" are what all cells share and what their results depend on: two runs may share a
    folder only if they are equal. `settings` replaces some of them.
    """
    policies = {name: suite.resolve_policy(name) for name in suite.policies}
    versions: dict[str, Any] = {name: version(name) for name in ("numpy", "numba")}
    versions |= {"format": FORMAT, "simulator": SIMULATOR_VERSION}
    settings, origin = {**versions, **suite.settings(), **(settings or {})}, provenance()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    header: dict[str, Any] = {
        "settings": settings,
        "settings_hash": content_hash(settings),
        "policies": {
            name: policy_fingerprint(policy) | suite.fitted_as(name)
            for name, policy in policies.items()
        },
        "bounds": [name for name, policy in policies.items() if getattr(policy, "bound", False)],
        **{
            setting: {name: suite.fingerprint(setting, name) for name in suite.names(setting)}
            for setting in suite.files()
        },
        "suite": suite.model_dump(mode="json"),
        **suite.header(),
        **origin,
        "runs": [{"started": started, "command": list(command), "git": origin["git"]}],
        "left_out": {},
    }
    ids: dict[Cell, str] = {}
    header["planned"] = planned = dict[str, dict[str, str]]()
    for cell in suite.cells():
        place = suite.describe(cell.place)
        contents = [header[setting][place[axis]] for setting, axis in suite.files().items()]
        shared = content_hash([header["settings_hash"], *contents])
        ids[cell] = cell.id(shared, header["policies"][cell.policy])
        planned.setdefault(cell.policy, {})[ids[cell]] = cell.where
    return header, ids


def policy_fingerprint(policy: Any) -> dict[str, Any]:
    """Return what a policy's results depend on: class, declared version, module and weights.

    For a policy from outside this package the source of its module counts too. What that imports
    does not: a policy that changes there declares a new `version`.

    Returns:
        JSON content: "class", "version", "module" (hash of its source; "" for one of this package)
        and "weights" (hash of its `fingerprint`).
    """
    kind, source = type(policy), None
    if kind.__module__.partition(".")[0] != PACKAGE.name:
        with contextlib.suppress(TypeError, OSError):  # built in, or of an interactive session
            source = inspect.getsourcefile(kind)
    return {
        "class": kind.__qualname__,
        "version": getattr(policy, "version", 1),
        "module": file_hash(source) if source else "",
        "weights": content_hash(str(getattr(policy, "fingerprint", ""))),
    }


def provenance() -> dict[str, Any]:
    """Return versions, machine and git revision (None outside of a checkout) of this process."""
    from joblib import cpu_count

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    root, git = PACKAGE.parent, None
    if (root / ".git").exists():  # an installed copy may lie in another repository
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            commit, changes = (
                subprocess.check_output(["git", "-C", root, *what], text=True, timeout=20).strip()
                for what in (["rev-parse", "HEAD"], ["status", "--porcelain"])
            )
            git = {"commit": commit, "dirty": bool(changes)}
    packages = {name: version(name) for name in ("gymnasium", "numba", "numpy")}
    return {
        "python": platform.python_version(),
        "packages": {"inframind-gym": inframind_gym.__version__, **packages},
        "machine": {
            "processor": next(iter(names), platform.processor() or "unknown"),
            "cores": cpu_count(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        },
        "git": git,
    }


class _Suite(BaseModel):
    """Fields that the suite in ``run.json`` has in every family."""

    name: str
    kind: str = "routing"


class _Header(BaseModel):
    """Checked part of ``run.json``, but for the hashes of files; the file holds more."""

    settings: dict[str, Any]
    policies: dict[str, dict[str, Any]]
    suite: _Suite
    runs: list[dict[str, Any]]
    names: dict[str, tuple[str, ...]] = {}
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
        raise ConfigError(
            f"{folder} {what} (no {HEADER}). "
            f"Make some: inframind bench run --suite starter --out {folder}"
        )
    try:
        header: Any = parse_json(read_bytes(path).decode(), "the text", MOST_BYTES)
        written = header["settings"].get("format", FORMAT)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} is damaged ({error}). Restore it from a copy, or run the command again in "
            "another folder."
        ) from None
    if written != FORMAT:
        raise ConfigError(
            f"{folder} was written in format {written} of the benchmark, this is format {FORMAT}. "
            "Choose another folder, or delete this one to start over."
        )
    validate(header, _Header, source=str(path))
    hashes: Any = {name: (dict[str, str], {}) for name in family_of(header["suite"]).files()}
    validate(header, create_model("_Hashes", **hashes), source=str(path))
    return dict(header)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """List the differences, in words, that keep a run with the header `new` out of a folder."""

    def changes(prefix: str, there: Any, now: Any) -> list[str]:
        return [
            f"{prefix}{key} (there: {there.get(key)!r}, now: {now.get(key)!r})"
            for key in {**there, **now}
            if there.get(key) != now.get(key)
        ]

    differing = changes("", old["settings"], new["settings"])
    for name, now in new["policies"].items():
        differing += changes(f"policy {name}: ", old["policies"].get(name, now), now)
    for key, what in family_of(new["suite"]).files().items():
        differing += [
            f"the content of {what} {name}"
            for name, fingerprint in new.get(key, {}).items()
            if old.get(key, {}).get(name, fingerprint) != fingerprint
        ]
    return differing


# Finished cells, and the files that hold them


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished cell."""

    cell: Cell  # its coordinates
    cell_id: str  # its id
    columns: Columns  # its records by field, ``(num_records,)`` or ``(num_records, k)`` each
    digest: str = ""  # SHA-256 of the records as they were played

    def __post_init__(self) -> None:
        """Take the digest of records that were just played."""
        if not self.digest:
            object.__setattr__(self, "digest", digest_of(self.columns))

    def metrics(self, layout: Layout) -> dict[str, float]:
        """Compute the metrics of the cell alone, the tail included."""
        values, _ = layout.values(self.columns)
        sums = layout.table(self.columns).sum(axis=0)
        tail = float(np.quantile(values, TAIL)) if values.size else 0.0
        return {**{k: float(v) for k, v in layout.evaluate(sums).items()}, layout.tail: tail}


def digest_of(columns: Columns) -> str:
    """Return the SHA-256 of records: names, types and shapes as a line of JSON, then all bytes."""
    kinds = [[name, column.dtype.str, column.shape] for name, column in columns.items()]
    state = hashlib.sha256(json.dumps(kinds).encode() + b"\n")
    for column in columns.values():
        state.update(column.tobytes())
    return state.hexdigest()


class _Stored(Mapping[str, Any]):
    """Columns of a cell in a table, decoded on access."""

    def __init__(self, table: pa.Table, fields: Sequence[str]) -> None:
        self._table, self._fields = table, fields

    def __getitem__(self, name: str) -> Any:
        if name not in self._fields:
            raise KeyError(name)
        column = self._table[name].combine_chunks()
        is_list = column.type.num_fields > 0
        values = (column.flatten() if is_list else column).to_numpy(zero_copy_only=False)
        if is_list and name not in RAGGED:
            return values.reshape(len(column), -1)
        return values.astype(str) if values.dtype.kind == "O" else values

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def _table(batch: Sequence[Finished]) -> pa.Table:
    """Return the records of cells as one table, each with the coordinates of its cell."""
    import pyarrow as pa

    parts: dict[str, list[Any]] = {}
    cells = []
    for one in batch:
        fields = list(one.columns)
        rows = len(one.columns[fields[0]])
        for name in fields:
            values = np.ascontiguousarray(one.columns[name])
            flat = pa.array(values.tolist() if values.dtype.kind == "U" else values.ravel())
            if (ragged := name in RAGGED) or values.ndim == 2:
                sizes = one.columns[RAGGED[name]] if ragged else np.full(rows, values.shape[1])
                offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
                flat = pa.ListArray.from_arrays(pa.array(offsets), flat)
            parts.setdefault(name, []).append(flat)
        coordinates: dict[str, Any] = {"cell": one.cell_id, "policy": one.cell.policy}
        for axis, value in zip(one.cell.axes, one.cell.place, strict=True):
            name = axis.label if axis.name in fields else axis.name
            coordinates[name] = value if axis.read is float else str(value)
        coordinates |= {"seed": one.cell.seed, "training": one.cell.training}
        for name, value in coordinates.items():
            parts.setdefault(name, []).append(pa.array([value] * rows))
        entry = {"id": one.cell_id, "rows": rows, "digest": one.digest}
        cells.append({**entry, "cell": one.cell.to_json()})
    table = pa.table({name: pa.chunked_array(chunks) for name, chunks in parts.items()})
    return table.replace_schema_metadata({"cells": json.dumps([fields, cells])})


def _listed(metadata: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the record fields and the cells that the metadata of a file lists."""
    fields, cells = parse_json(metadata[b"cells"].decode(), "the list of cells", MOST_BYTES)
    return fields, cells


def _read(path: Path) -> tuple[pa.Table, list[str], list[dict[str, Any]]]:
    """Return the table of a file, its fields and cells; raises one of _UNREADABLE."""
    import pyarrow.parquet as pq

    table = pq.ParquetFile(path, page_checksum_verification=True).read()
    fields, cells = _listed(table.schema.metadata)
    return table.select([*fields, "cell"]), fields, cells  # a KeyError where one is missing


def read_cells(folder: Path) -> Iterator[Finished | None]:
    """Yield the finished cells of a folder in the order of their coordinates.

    A file that is damaged is yielded first, as None.

    Raises:
        ConfigError: `run.json` cannot be used.
    """
    family = family_of(read_header(folder)["suite"])
    finished: list[Finished] = []
    for path in sorted((folder / RECORDS).glob("*.parquet")):
        try:
            table, fields, cells = _read(path)
            start, here = 0, []
            for one in cells:
                rows = _Stored(table.slice(start, one["rows"]), fields)
                here.append(Finished(family.read_cell(one["cell"]), one["id"], rows, one["digest"]))
                start += one["rows"]
            finished += here
        except _UNREADABLE:
            yield None
    yield from sorted(finished, key=lambda one: one.cell.sort_key)


def finished_ids(folder: Path) -> set[str]:
    """Return the ids of a folder's finished cells; a file that cannot be read has none."""
    import pyarrow.parquet as pq

    ids = set()
    for path in (folder / RECORDS).glob("*.parquet"):
        try:
            ids |= {one["id"] for one in _listed(pq.read_schema(path).metadata)[1]}
        except _UNREADABLE:
            continue
    return ids


# A run that writes


@dataclass
class ResultStore:
    """A results folder open for one run; a context manager.

    The header must have the settings of the results that are there; policies, files, planned
    cells, bounds and the family's part are merged with those of earlier runs.

    Raises:
        ConfigError: The folder belongs to other settings, is in use, or cannot be written.
    """

    folder: Path  # created if needed
    header: dict[str, Any]  # content of ``run.json``
    finished: set[str] = field(default_factory=set, init=False)  # ids of cells that are there

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            try:
                (self.folder / RECORDS).mkdir(parents=True, exist_ok=True)
                self._lock = stack.enter_context((self.folder / _LOCK).open("w"))
            except OSError as error:
                raise ConfigError(f"{self.folder} cannot be written: {error.strerror}.") from None
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"{self.folder} is in use by another run. Wait for it, or choose another "
                    "folder."
                ) from None
            self._open()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def _open(self) -> None:
        """Read what earlier runs have finished, and merge the header with theirs."""
        damaged, header, family = [], self.header, family_of(self.header["suite"])
        for path in (self.folder / RECORDS).glob("*.parquet"):
            try:  # cells of another family have other coordinates, and are no damage
                self.finished |= {one["id"] for one in _read(path)[2]}
            except _UNREADABLE:
                damaged.append(path)
        if (self.folder / HEADER).exists():
            old = read_header(self.folder)
            differing = differences(old, header)
            if differing and self.finished:
                raise ConfigError(
                    f"{self.folder} holds results of other settings: {'; '.join(differing)}. "
                    "Choose another folder, or delete this one to start over."
                )
            if not differing:
                for key in ("policies", *family.files()):
                    header[key] = {**old.get(key, {}), **header[key]}
                family.join(header, old)
                for policy, cells in old.get("planned", {}).items():
                    header["planned"][policy] = {**cells, **header["planned"].get(policy, {})}
                left_out, again = old.get("left_out", {}), header["suite"]["policies"]
                header["left_out"] = {p: why for p, why in left_out.items() if p not in again}
                header["bounds"] = sorted({*old.get("bounds", ()), *header["bounds"]})
                header["runs"] = [*old["runs"], *header["runs"]]
        elif self.finished:
            raise ConfigError(f"{self.folder} has results, but no {HEADER}. Choose another folder.")
        for path in damaged:  # not deleted: it may only be this process that cannot read it
            path.replace(path.with_name(f".{path.stem}.damaged"))
        self._write_header()

    def _write_header(self) -> None:
        text = json.dumps(self.header, indent=2, allow_nan=False) + "\n"
        replace_text(self.folder / HEADER, text)

    def commit(self, batch: Sequence[Finished]) -> None:
        """Add finished cells; when this returns they survive a kill or a loss of power.

        Raises:
            ConfigError: The disk is full or fails; what was finished before stays readable.
        """
        import pyarrow.parquet as pq

        ids = [one.cell_id for one in batch]
        name = hashlib.sha256(" ".join(ids).encode()).hexdigest()[:16]
        path = self.folder / RECORDS / f"{name}.parquet"
        new = path.with_name(f".{name}.new")
        try:
            with new.open("wb") as file:
                pq.write_table(_table(batch), file, compression="zstd", write_page_checksum=True)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise ConfigError(
                f"{path} cannot be written: {error.strerror or error}. Finished cells are kept: "
                "make room and run the same command again."
            ) from None
        self.finished.update(ids)

    def leave_out(self, policy: str, reason: str) -> None:
        """Note in ``run.json`` that the run goes on without a policy."""
        self.header["left_out"] = {**self.header["left_out"], policy: reason}
        self._write_header()
