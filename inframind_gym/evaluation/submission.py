"""A submission: results of one policy on one suite that anybody can check.

    submission.json   who submits, what plays, and the SHA-256 of every other file
    run.json          settings, versions and planned cells of the run, without paths
    cells.jsonl.gz    one line a cell: coordinates, sums, and the SHA-256 of its records
    …/config.json     checkpoints, with model.safetensors

A submission is a folder ``<suite>/<name>/`` that is laid out as the working directory of its run:
checkpoints lie where the policy's name expects them. Policies of this package alone are submitted:
nothing that comes with a submission is imported.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import random
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import BaseModel, Field, field_validator

from inframind_gym.configs import Name, NonNegativeInt, StrictModel, list_configs, validate
from inframind_gym.errors import ConfigError, InfraMindError, shortened, unknown
from inframind_gym.evaluation import store
from inframind_gym.evaluation.board import Results
from inframind_gym.evaluation.cells import Cell
from inframind_gym.evaluation.play import PolicyFailedError
from inframind_gym.evaluation.runner import play as play_cells
from inframind_gym.evaluation.stats import Episode
from inframind_gym.evaluation.suite import Suite, load_suite
from inframind_gym.files import read_json, read_objects, replace_text
from inframind_gym.policies import POLICIES, checkpoint
from inframind_gym.progress import ProgressReport, say

MANIFEST, CELLS = "submission.json", "cells.jsonl.gz"
MOST_SUBMITTED_BYTES: Final = 50_000_000
SHARE: Final = 3  # one cell in this many is played again
_MAKE_ONE: Final = "Make one: inframind submit prepare RUN --name NAME --authors NAMES"
_PARTS: Final = (MANIFEST, store.HEADER, CELLS)
_SUFFIXES: Final = (".json", ".safetensors")  # of checkpoints
_PACKAGES: Final = ("numpy", "numba")  # may differ from the run's: equal records are the test


class Submission(StrictModel):
    """Content of ``submission.json``."""

    format: Literal[4] = 4  # of the submission
    name: Name  # name on the board; that of the folder
    suite: Name  # a shipped suite; name of the folder above
    # The policy, with arguments, as in the command of the run
    policy: Annotated[str, Field(min_length=1, max_length=300)]
    authors: Annotated[str, Field(min_length=1, max_length=300)]  # who submits
    # Simulated queries of its training or fit; null: not stated
    training_queries: NonNegativeInt | None = None
    files: dict[str, str] = Field(default_factory=dict)  # SHA-256 of every other file, by its path

    @field_validator("policy")
    @classmethod
    def _has_inner_paths(cls, policy: str) -> str:
        if any(p.startswith("/") or ".." in Path(p).parts for p in policy.split(":")[1:]):
            raise ValueError(
                f"{policy} names a path outside of the submission. Run again with a path below the "
                "working directory"
            )
        return policy


class _Line(BaseModel):
    """A line of ``cells.jsonl.gz``; its coordinates are for readers, and follow from the id."""

    id: str
    records: Annotated[int, Field(gt=0)]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    sums: list[list[float]]


@dataclass(frozen=True, slots=True)
class Checked:
    """A submission that is complete and of this version, not yet played again."""

    submission: Submission  # its manifest
    suite: Suite  # the shipped suite, with the one policy
    ids: dict[Cell, str]  # all cells of the suite, with their ids
    digests: dict[Cell, str]  # SHA-256 of the records of each cell
    results: Results  # sums of each cell, without values for the tail


# The check of everything but the records


def check(folder: Path) -> Checked:
    """Check a submission without playing it; nothing that comes with it is imported.

    Raises:
        InfraMindError: It cannot be accepted; says why.
    """
    folder = folder.resolve()
    path = folder / MANIFEST
    if not path.is_file():
        raise ConfigError(f"{folder} is no submission (no {MANIFEST}). {_MAKE_ONE}")
    submission = validate(read_json(path), Submission, source=str(path))
    there = digests(folder)
    for name in sorted({*there, *submission.files}):
        if there.get(name) != submission.files.get(name):
            what = "is missing" if name not in there else "is not what was submitted"
            raise ConfigError(f"{folder / name} {what}: its checksum is not that of {MANIFEST}.")
    if (folder.parent.name, folder.name) != (submission.suite, submission.name):
        raise ConfigError(
            f"{folder}: the submission belongs into a folder {submission.suite}/{submission.name}."
        )
    with chdir(folder):
        suite, header, ids = _planned(submission, store.read_header(folder))
    results = Results(folder, header, type(suite), suite.layout(header), {}, {}, has_tails=False)
    checked = Checked(submission, suite, ids, {}, results)
    missing, no_tail = {name: cell for cell, name in ids.items()}, (np.zeros(0), np.zeros(0, int))
    for _, content in read_objects(folder / CELLS):
        line = validate(content, _Line, source=str(folder / CELLS))
        cell = missing.pop(line.id, None)
        if cell is None:
            raise ConfigError(
                f"{folder} has the cell {line.id} twice, or its suite does not plan it."
            )
        try:
            sums = np.array(line.sums)
            results.layout.evaluate(sums.sum(axis=0))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ConfigError(f"{folder}: {cell} cannot be read ({error!r:.100}).") from None
        checked.digests[cell] = line.digest
        results.episodes[cell] = Episode(line.records, sums, *no_tail)
    if missing:
        where = [cell.where for cell in missing.values()]
        raise ConfigError(
            f"{folder} has {len(ids) - len(where)} of the {len(ids)} cells of {submission.suite}. "
            "A submission has every seed and cell of its suite; missing: "
            f"{'; '.join(where[:3])}{'; …' if where[3:] else ''}."
        )
    return checked


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a submission but its manifest, by path.

    Raises:
        ConfigError: A file has no place in a submission, is a link, or all are too large.
    """
    by_path, size = {}, 0
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise ConfigError(f"{path}: a submission holds plain files and no links.")
        if path.is_dir():
            continue
        if name not in _PARTS and path.suffix not in _SUFFIXES:
            raise ConfigError(
                f"{path}: has no place in a submission, which holds {', '.join(_PARTS)} and files "
                f"that end with {', '.join(_SUFFIXES)}."
            )
        size += path.stat().st_size
        if size > MOST_SUBMITTED_BYTES:
            raise ConfigError(f"{folder}: has more than {MOST_SUBMITTED_BYTES:,} bytes.")
        if name != MANIFEST:
            by_path[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return by_path


def _planned(
    submission: Submission, stated: Mapping[str, Any]
) -> tuple[Suite, dict[str, Any], dict[Cell, str]]:
    """Plan the run of a submission, whose folder is the working directory.

    Returns:
        Suite, header without paths of a machine, and ids of the cells.

    Raises:
        InfraMindError: The suite is not shipped, the policy may not play, or the header that the
            submission states is of other settings.
    """
    shipped, policy = list_configs("suites"), submission.policy
    if submission.suite not in shipped:
        raise ConfigError(
            f"{unknown('suite', submission.suite, shipped)} A submission is a run of one of these."
        )
    suite = load_suite(submission.suite, {"policies": (policy,)}).resolve()
    if policy.strip().split(":")[0] not in POLICIES[suite.players]:
        raise ConfigError(
            f"{policy}: is no policy of this package. Those of your own are added to it "
            "(docs/submissions.md)."
        )
    command = ["bench", "run", "--suite", submission.suite, "--policies", policy]
    # Settings of calls to live servers do not matter to a simulated result.
    copied = {n: stated["settings"][n] for n in (*_PACKAGES, "live") if n in stated["settings"]}
    header, ids = store.plan(suite, command, copied)
    if header["bounds"]:
        raise ConfigError(f"{policy} is a bound: it knows what no policy may, and has no rank.")
    if differing := store.differences(stated, header):
        raise ConfigError(
            f"{submission.name} is not a run of the suite {submission.suite} as it is shipped here:"
            f" {shortened('; '.join(differing), 600)}. Run the suite again."
        )
    origin = ("python", "packages", "machine", "git")
    header |= {key: stated[key] for key in origin if key in stated}
    runs = [{key: run[key] for key in ("started", "git") if key in run} for run in stated["runs"]]
    header["runs"] = [{**run, "command": command} for run in runs]
    text = json.dumps(header, ensure_ascii=False).replace(f"{os.getcwd()}/", "")
    return suite, dict(json.loads(text)), ids


# From a run


def prepare(
    run: Path,
    out: Path,
    *,
    name: str,
    authors: str,
    policy: str | None = None,
    training_queries: int | None = None,
) -> Path:
    """Write the submission of one policy of a run, made in the working directory.

    Arguments are as of `Submission`; without a policy it is the only one of the run.

    Returns:
        The folder, SUITE/NAME in `out`; one of that name is replaced.

    Raises:
        InfraMindError: The run is no complete run of a shipped suite of this version, or something
            that plays is missing or cannot be published.
    """
    stated = store.read_header(run)
    policies = list(stated["policies"])
    if policy is None and len(policies) != 1:
        raise ConfigError(f"{run} has {', '.join(policies)}. Choose one with --policy.")
    policy = policy or policies[0]
    if policy not in policies:
        raise ConfigError(unknown("policy", policy, policies))
    if why := stated.get("left_out", {}).get(policy):
        raise ConfigError(f"{policy} was left out of {run}: {why}")
    if stated["suite"].get("backend") == "vllm":
        raise ConfigError(f"{run} ran on live servers: nobody can play it again.")
    about = {"name": name, "authors": authors, "training_queries": training_queries}
    content = {**about, "suite": stated["suite"]["name"], "policy": policy}
    submission = validate(content, Submission, source="submission")
    with tempfile.TemporaryDirectory() as staging:
        folder = Path(staging).resolve() / submission.suite / submission.name
        folder.mkdir(parents=True)
        for path in map(Path, submission.policy.split(":")[1:]):
            places = checkpoint.folders(path) if path.is_dir() else ()
            names = (checkpoint.MODEL_FILE, checkpoint.CONFIG_FILE)
            for file in [place / one for place in places for one in names] or [path]:
                if file.is_file():
                    (folder / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, folder / file)
        with chdir(folder):
            suite, header, ids = _planned(submission, stated)
        (folder / store.HEADER).write_text(json.dumps(header, indent=2) + "\n")
        layout, lines = suite.layout(header), []
        for one in store.read_cells(run):
            if one is not None and one.cell_id in ids.values():
                episode = Episode.of(layout, one.columns)
                line = {"id": one.cell_id, **one.cell.to_json(), "records": episode.records}
                lines.append({**line, "digest": one.digest, "sums": episode.sums.tolist()})
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        (folder / CELLS).write_bytes(gzip.compress(text.encode(), mtime=0))
        complete = submission.model_copy(update={"files": digests(folder)})
        replace_text(folder / MANIFEST, complete.model_dump_json(indent=2) + "\n")
        check(folder)
        target = out / submission.suite / submission.name
        new = target.with_name(f".{target.name}.new")
        try:
            shutil.rmtree(new, ignore_errors=True)
            shutil.copytree(folder, new)
            shutil.rmtree(target, ignore_errors=True)
            new.rename(target)
        except OSError as error:  # a full disk: what was there still is
            shutil.rmtree(new, ignore_errors=True)
            raise ConfigError(f"{target}: cannot be written ({error}).") from None
    return target


# The replay of a sample


def verify(
    folder: Path, *, full: bool = False, seed: int | None = None, workers: int | None = 1
) -> str:
    """Check a submission, play a random third of its cells again, or all; return a summary.

    `seed` of the choice; None: a secret one. `workers` None: one for each core.

    Raises:
        InfraMindError: It cannot be accepted; says why.
    """
    checked = check(folder)
    submission, suite, results = checked.submission, checked.suite, checked.results
    seed = secrets.randbits(32) if seed is None else seed
    count = len(checked.ids) if full else math.ceil(len(checked.ids) / SHARE)
    ids = dict(random.Random(seed).sample(list(checked.ids.items()), count))

    def fail(error: PolicyFailedError) -> None:
        raise ConfigError(f"{submission.policy} cannot play: {error.reason}")

    wrong = set(ids)
    report = ProgressReport(sum(map(suite.length, ids)), 0, "replay", suite.unit)
    with chdir(results.folder), report:
        played = play_cells(suite, ids, workers=workers, progress=report.advance, failed=fail)
        for batch in played:
            for one in batch:
                sums = Episode.of(results.layout, one.columns).sums
                same = np.array_equal(sums, results.episodes[one.cell].sums)
                if same and one.digest == checked.digests[one.cell]:
                    wrong.discard(one.cell)
    if wrong:
        versions = ", ".join(f"{name} {results.header['settings'][name]}" for name in _PACKAGES)
        named = sorted(cell.where for cell in wrong)
        raise ConfigError(
            f"{len(wrong)} of {count} cells have other records when they are played again: "
            f"{'; '.join(named[:3])}. Made with {versions}; choice {seed}."
        )
    return (
        f"{submission.suite}/{submission.name}: {len(checked.ids)} cells, complete; {count} played "
        f"again, all equal (choice {seed})"
    )


# The board of submissions


def joined(folder: Path) -> Results:
    """Return the results of all submissions of a suite, FOLDER/NAME, as one run, by their names.

    Nothing is played. There are no tail metrics: they do not follow from sums. A submission that is
    damaged, incomplete or of another version is left out, with a warning that says why.

    Raises:
        ConfigError: There is no submission that can be shown.
    """
    entries: list[Checked] = []
    for path in sorted(folder.glob(f"[!.]*/{MANIFEST}")):  # not one that was being written
        try:
            entries.append(check(path.parent))
        except InfraMindError as error:
            say(f"{path.parent} is left out: {error}")
    if not entries:
        raise ConfigError(f"{folder} has no submission that can be shown. {_MAKE_ONE}")
    first = entries[0].results
    header: dict[str, Any] = {**first.header, "runs": []}
    header |= {key: {} for key in ("policies", "planned", "plans")}
    fits: dict[str, int] = {}
    episodes: dict[Cell, Episode] = {}
    for one in entries:
        name, policy = one.submission.name, one.submission.policy
        for key in ("policies", "planned", "plans"):
            header[key][name] = one.results.header.get(key, {}).get(policy, "")
        if one.submission.training_queries is not None:
            fits[name] = one.submission.training_queries
        for cell, episode in one.results.episodes.items():
            episodes[replace(cell, policy=name)] = episode
    if "fits" in header:
        header["fits"] = {"budget_queries": max(fits.values(), default=0), "queries": fits}
    return replace(first, folder=folder, header=header, episodes=episodes)
