"""Lines of a results folder: finished cells as JSON that carries the checksum of its text."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inframind_gym.benchmark.cells import BaseCell
from inframind_gym.benchmark.episodes import NUM_PARTS, Episode
from inframind_gym.benchmark.metrics import TAIL, Columns, Layout
from inframind_gym.files import MOST_BYTES, parse_json

_UNSEALED = b"0" * 64  # in place of the checksum while it is computed

BROKEN = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, zlib.error)

Timing = dict[str, float]  # name of a measurement -> milliseconds


def seal(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """Encode a JSON object with the checksum of its text as its last key."""
    unsealed = {**content, "sha256": _UNSEALED.decode()}
    text = json.dumps(unsealed, indent=indent, allow_nan=False).encode() + b"\n"
    head, _, tail = text.rpartition(_UNSEALED)
    return head + hashlib.sha256(text).hexdigest().encode() + tail


def unseal(text: bytes) -> dict[str, Any]:
    """Invert `seal`.

    Raises:
        One of BROKEN: The text is not as it was written.
    """
    content: dict[str, Any] = parse_json(text.decode(), "the text", MOST_BYTES)
    digest = content.pop("sha256").encode()
    head, _, tail = text.rpartition(digest)
    if hashlib.sha256(head + _UNSEALED + tail).hexdigest().encode() != digest:
        raise ValueError("the checksum differs")
    return content


def _pack(columns: Columns) -> str:
    """Encode arrays: their names, types and shapes as a line of JSON, then their bytes."""
    for name, column in columns.items():
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            raise ValueError(f"{name} has values that are not finite")
    kinds = [[name, column.dtype.str, column.shape] for name, column in columns.items()]
    parts = [json.dumps(kinds).encode(), b"\n", *(column.tobytes() for column in columns.values())]
    return base64.b64encode(zlib.compress(b"".join(parts), level=1)).decode()


def _unpacked(text: str) -> bytes:
    """Return the bytes that `_pack` has compressed, which depend on no version of zlib."""
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(base64.b64decode(text), MOST_BYTES)
    if not unpacker.eof:
        raise ValueError(f"cut, or of more than {MOST_BYTES:,} bytes")
    return content


def _unpack(text: str) -> dict[str, Any]:
    content = _unpacked(text)
    start = content.index(b"\n") + 1
    columns = {}
    for name, kind, shape in parse_json(content[:start].decode(), "its head"):
        dtype, size = np.dtype(kind), math.prod(shape)
        columns[name] = np.frombuffer(content, dtype, size, start).reshape(shape)
        start += size * dtype.itemsize
    return columns


@dataclass(frozen=True, slots=True)
class CellResult:
    """A finished cell.

    Attributes:
        cell: Its coordinates.
        cell_id: Its id.
        line: Its line of ``cells.jsonl``.
        episode: Its sums, as they follow from the line.
        timing: Measurements of the time that it took; not part of the result.
    """

    cell: BaseCell
    cell_id: str
    line: bytes
    episode: Episode = field(compare=False)
    timing: Timing | None = field(default=None, compare=False)


def encode_cell(
    layout: Layout,
    cell: BaseCell,
    cell_id: str,
    columns: Columns,
    timing: Timing | None = None,
) -> CellResult:
    """Encode a finished cell: its coordinates, metrics and records.

    Args:
        layout: Of the sums.
        cell: The cell's coordinates.
        cell_id: Its id.
        columns: Its queries or decisions, in their order.
        timing: Measurements of the time that it took.
    """
    table, (values, record) = layout.table(columns), layout.values(columns)
    sums = table.sum(axis=0)
    content = {
        "cell": cell_id,
        **cell.to_json(),
        "records": len(table),
        **{name: float(value) for name, value in layout.evaluate(sums).items()},
        layout.tail: float(np.quantile(values, TAIL)) if values.size else 0.0,
        **layout.shares(sums),
        "columns": _pack(columns),
    }
    episode = Episode.of_table(table, values, record)
    return CellResult(cell, cell_id, seal(content), episode, timing)


@dataclass(frozen=True, slots=True)
class FinishedCell:
    """A cell as it is read.

    Attributes:
        cell: The cell's coordinates.
        line: Its line of ``cells.jsonl``.
    """

    cell: BaseCell
    line: dict[str, Any]

    def columns(self) -> dict[str, Any]:
        """Decode the records: an array for each field, see `docs/results_folder.md`."""
        return _unpack(self.line["columns"])

    def is_met_by(self, line: Mapping[str, Any], layout: Layout) -> bool:
        """Return whether an episode that was played again has the same records, bit by bit."""
        if "episode" not in self.line:
            return line == self.line
        again = unseal(condense(FinishedCell(self.cell, dict(line)), layout))
        kept, other = self.line["episode"], again.pop("episode")
        same = {**again, "episode": kept} == self.line
        return same and _unpacked(kept) == _unpacked(other)

    def episode(self, layout: Layout) -> Episode:
        """Sum up the records, or return the sums of a condensed line."""
        if "episode" not in self.line:
            return Episode.of(layout, self.columns())
        kept = _unpack(self.line["episode"])
        values, part = kept["values"].astype(np.float64), kept["part"].astype(np.int64)
        if not (kept["sums"].shape[0] == NUM_PARTS and np.isin(part, np.arange(NUM_PARTS)).all()):
            raise ValueError(f"sums of other than {NUM_PARTS} parts")
        return Episode(int(self.line["records"]), kept["sums"], values, part)


def condense(found: FinishedCell, layout: Layout) -> bytes:
    """Encode a cell with the sums of its records in their place, and the checksum of these.

    Boards and comparisons need no more, and it takes a tenth of the room. The numbers behind the
    tail are kept in single precision.
    """
    one = Episode.of(layout, found.columns())
    values, part = one.values.astype(np.float32), one.part.astype(np.int8)
    kept = {key: value for key, value in found.line.items() if key != "columns"}
    sums = _pack({"sums": one.sums, "values": values, "part": part})
    digest = hashlib.sha256(_unpacked(found.line["columns"])).hexdigest()
    return seal({**kept, "records_sha256": digest, "episode": sums})
