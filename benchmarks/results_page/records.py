"""Records: what runs have scored, without the episodes; all that the page is made of.

``docs/results/records/<protocol>/<entry>[/<workload>].json.gz`` are part of the repository. So the
page can be written, and an agent of one's own be compared sweep by sweep, without the hours that
training and running everything takes: `make results` trains and runs only what has no record of
this plan, this simulator and this code (`rests_on.py`). Numbers are kept to six figures.
"""

from __future__ import annotations

import gzip
import json
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.results_page.load_awareness import Sides, sides_of
from benchmarks.results_page.plan import EntryRun
from benchmarks.results_page.rests_on import SIMULATOR, rests_on, same_simulator
from benchmarks.results_page.trained import Note, notes_of
from inframind_gym.benchmark.cells import grid
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.families import ROUTING, family
from inframind_gym.benchmark.progress import say
from inframind_gym.benchmark.provenance import weights_hash
from inframind_gym.benchmark.store import read_blocks, read_header
from inframind_gym.errors import InfraMindError
from inframind_gym.files import replace_bytes

Place = tuple[str, float]  # workload and rate
Lines = dict[Place, list[list[dict[str, Any]]]]
COLUMNS: Final = (  # of the lines of cells.jsonl
    "budget_s",
    "episodes",
    "accuracy",
    "goodput",
    "slo_own",
    "slo_100s",
    "latency_mean_s",
    "latency_p95_s",
    "cost_ratio",
    "calls_per_query",
)
_SHARES: Final = ("model_share", "strategy_share")
_FIGURES: Final = 6


@dataclass(frozen=True)
class Record:
    """What a run has scored.

    Attributes:
        rests_on: What the scores depend on, but for weights and chance; see `rests_on`.
        weights: Digest of every policy's weights, or of what else tells it from others of its code.
        origin: Machine, git revision and digest of the simulator.
        cells: For each workload and rate: metrics ``[training seed][sweep]``; sweeps with other
            budgets are further ones.
        sides: Decisions by the cost ratio of their queries.
        notes: What the trainings tell.
    """

    rests_on: dict[str, Any]
    weights: dict[str, str]
    origin: dict[str, Any]
    cells: Lines
    sides: Sides
    notes: tuple[Note, ...]


def find(run: EntryRun, folder: Path | None) -> Record | None:
    """The record of a run in a folder of records; None if there is none that is still valid.

    Raises:
        BenchmarkError: It is damaged.
        InfraMindError: The run's workload or policy cannot be read.
    """
    path = None if folder is None else path_of(run, folder)
    if path is None or not path.is_file():
        return None
    record = read(path)
    if record.rests_on != rests_on(run):
        return None
    for name, now in _weights(run).items():  # what is not here is taken for the same
        if record.weights.get(name) != now:
            say(f"{run.title}: the record is of other weights than {name}, which is here")
            return None
    return record


def read(path: Path) -> Record:
    """Read a record, valid or not.

    Raises:
        BenchmarkError: It is damaged.
    """
    try:
        return _decoded(json.loads(gzip.decompress(path.read_bytes())))
    except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError) as error:
        raise BenchmarkError(
            f"{path} is no record of results ({error}): delete it, and it is made anew."
        ) from None


def path_of(run: EntryRun, folder: Path) -> Path:
    """Where the record of a run stands below a folder of records."""
    parts = [run.protocol, run.entry.name, *([run.workload] if run.workload else [])]
    return folder.joinpath(*parts[:-1], f"{parts[-1]}.json.gz")


def save(record: Record, path: Path) -> None:
    """Write a record; the same record gives the same bytes.

    Raises:
        InfraMindError: The file cannot be written.
    """
    text = json.dumps(_encoded(record), separators=(",", ":"), allow_nan=False)
    replace_bytes(path, gzip.compress(text.encode(), mtime=0))


def record_of(run: EntryRun) -> Record | int:
    """What has been run, as a record; where it is not complete, how many cells are lacking.

    Raises:
        BenchmarkError: The results folder is damaged.
    """
    lines = {block.cell: block.line for block in read_blocks(run.folder)}
    wanted = grid(run.suite)
    lacking = sum(cell not in lines for cell in wanted)
    if lacking:
        return lacking
    seeds = list(run.seed_of.values())
    cells: Lines = {}
    for cell in wanted:
        rows = cells.setdefault((cell.workload, cell.rate_per_min), [[] for _ in seeds])
        rows[seeds.index(run.seed_of[cell.policy])].append(lines[cell])
    header, depends = read_header(run.folder), rests_on(run)
    origin = {
        "machine": header["machine"],
        "git": header.get("git"),
        SIMULATOR: depends[SIMULATOR] if same_simulator(run, header) else "another",
    }
    notes = notes_of(run.entry, run.suite.names("workloads"))
    whole = Record(depends, _weights(run), origin, cells, sides_of(run), notes)
    return _decoded(_encoded(whole))


def _weights(run: EntryRun) -> dict[str, str]:
    """Digests of the policies that are here."""
    found = {}
    for name in run.suite.policies:
        with suppress(InfraMindError, OSError):
            found[name] = weights_hash(family(ROUTING).resolve_policy(name))
    return found


def _encoded(record: Record) -> dict[str, Any]:
    """A record as JSON, with the metrics in columns."""
    (first, *_), *_ = next(iter(record.cells.values()))
    shares = {kind: list(first[kind]) for kind in _SHARES}

    def row(line: dict[str, Any]) -> list[Any]:
        used = [line[kind][name] for kind, names in shares.items() for name in names]
        return [_short(value) for value in (*(line[name] for name in COLUMNS), *used)]

    places = [
        {"workload": w, "rate_per_min": rate, "values": [[row(one) for one in own] for own in rows]}
        for (w, rate), rows in record.cells.items()
    ]
    return {
        "rests_on": record.rests_on,
        "weights": record.weights,
        "origin": record.origin,
        "columns": list(COLUMNS),
        "shares": shares,
        "places": places,
        "sides": asdict(record.sides),
        "notes": [asdict(note) for note in record.notes],
    }


def _decoded(content: dict[str, Any]) -> Record:
    """The inverse of `_encoded`.

    Raises:
        ValueError, LookupError, TypeError: It is not what that writes.
    """
    columns, shares = content["columns"], dict(content["shares"])
    width = len(columns) + sum(map(len, shares.values()))

    def line(values: list[Any]) -> dict[str, Any]:
        if len(values) != width:
            raise ValueError(f"a row of {len(values)} numbers in place of {width}")
        numbers = iter(values)
        found: dict[str, Any] = dict(zip(columns, numbers, strict=False))
        for kind, names in shares.items():
            found[kind] = dict(zip(names, numbers, strict=False))
        return found

    cells = {
        (place["workload"], float(place["rate_per_min"])): [
            [line(values) for values in row] for row in place["values"]
        ]
        for place in content["places"]
    }
    return Record(
        content["rests_on"],
        content["weights"],
        content["origin"],
        cells,
        Sides(**content["sides"]),
        tuple(Note(**note) for note in content["notes"]),
    )


def _short(value: Any) -> Any:
    """A number to so many figures; what is no number, as it is."""
    return float(f"{value:.{_FIGURES}g}") if isinstance(value, float) else value
