"""Everything of a submission but its numbers: files, versions, suite, cells, what plays."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

from inframind_gym.benchmark.cells import BaseCell, content_hash
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.families import Family, family_of
from inframind_gym.benchmark.lines import BROKEN, FinishedCell
from inframind_gym.benchmark.provenance import settings
from inframind_gym.benchmark.runner import header_of, plan
from inframind_gym.benchmark.store import HEADER, differences, read_cells, read_header
from inframind_gym.benchmark.submit.apart import APART, inside, playing
from inframind_gym.benchmark.submit.manifest import (
    CODE,
    LOG,
    POOL,
    REFITS,
    REQUIREMENTS,
    Submission,
    pinned,
    read_manifest,
)
from inframind_gym.benchmark.submit.unseen import require_unseen
from inframind_gym.benchmark.suite import load_suite
from inframind_gym.benchmark.tracks.refits import Refits
from inframind_gym.configs import list_configs, validate
from inframind_gym.errors import ConfigError, shortened, unknown
from inframind_gym.files import read_raw_lines
from inframind_gym.policies import registered_policies

OwnCode = Literal["run", "refuse", "ignore"]
_PACKAGES: Final = ("numpy", "numba")  # of the run; the numbers say whether another one matters
_ORIGIN: Final = ("python", "packages", "machine", "git")


class _Start(BaseModel):
    """One start of a run, as pages show it."""

    started: str = ""


class _Origin(BaseModel):
    """Part of ``run.json`` that nothing recomputes, and that pages show."""

    python: str = ""
    packages: dict[str, str] = {}
    machine: dict[str, str | int | float | None] = {}
    estimates: dict[str, Any] = {}
    runs: Annotated[list[_Start], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Expected:
    """The run that a submission must be, as this version of the package plans it.

    Attributes:
        kind: Family of the suite.
        suite: The shipped suite, with the one policy.
        plays: Policy under which it is played again.
        header: Content of ``run.json``.
        ids: All cells of the suite, with their ids.
    """

    kind: Family
    suite: Any
    plays: str
    header: dict[str, Any]
    ids: dict[BaseCell, str]


@dataclass(frozen=True, slots=True)
class Checked:
    """A submission that is complete and of this version.

    Attributes:
        folder: Where it is.
        submission: Its manifest.
        expected: The run that it is.
        cells: Its cells.
    """

    folder: Path
    submission: Submission
    expected: Expected
    cells: dict[BaseCell, FinishedCell]


def check(folder: Path, own_code: OwnCode = "refuse") -> Checked:
    """Check a submission without playing it.

    Args:
        folder: Of the submission.
        own_code: Whether a policy that is not of this package is run, in a process of its own,
            and asked what it is; "ignore" believes what the submission says of it.

    Raises:
        InfraMindError: It cannot be accepted; says why.
    """
    folder = folder.resolve()
    submission = read_manifest(folder)
    stated = read_header(folder)
    validate(stated, _Origin, source=str(folder / HEADER))
    if (folder / REQUIREMENTS).is_file():
        pinned(folder / REQUIREMENTS)
    if submission.code != "files" and (extra := next(folder.rglob(f"*{CODE}"), None)):
        raise BenchmarkError(f"{extra}: {submission.policy} is not of the submission's own code.")
    with inside(folder):
        expected = expect(submission, stated, own_code)
    require_unseen(folder)
    cells = _cells(folder, expected)
    if submission.live:
        _check_log(folder, cells)
    return Checked(folder, submission, expected, cells)


def expect(submission: Submission, stated: Mapping[str, Any], own_code: OwnCode) -> Expected:
    """Plan the run of a submission, whose folder is the working directory.

    Args:
        submission: Its manifest.
        stated: Content of the ``run.json`` that it comes with.
        own_code: See `check`.

    Raises:
        InfraMindError: The suite is not shipped, the policy may not play, or `stated` is of other
            settings.
    """
    kind, suite = _suite(submission, stated)
    policy, there, here = submission.policy, stated["settings"], settings(suite)
    if there.get("simulator") != here["simulator"]:
        raise BenchmarkError(
            f"{submission.name} was made with simulator version {there.get('simulator')}, this is "
            f"version {here['simulator']}. Run the suite again."
        )
    made, fingerprint = _policy(kind, submission, suite, own_code)
    command = ["bench", "run", "--suite", submission.suite, "--policies", policy]
    # A header of a live suite asks the pool's addresses who is there: never those of a submission.
    header = header_of(kind, _simulated(suite), command, {policy: made})
    if submission.live:
        header |= {"suite": suite.model_dump(mode="json")}
        header |= {"estimates": dict(stated.get("estimates", {}))}
    if header["bounds"]:
        raise BenchmarkError(f"{policy} is a bound: it knows what no policy may, and has no rank.")
    if submission.code != "built-in":
        header["policies"][policy] = fingerprint or stated["policies"].get(policy, {})
    header["settings"] = here | {name: there.get(name) for name in _PACKAGES}
    if differing := differences(stated, header):
        raise BenchmarkError(
            f"{submission.name} is not a run of the suite {submission.suite} as it is shipped here:"
            f" {shortened('; '.join(differing), 600)}."
        )
    header["settings_hash"] = content_hash(header["settings"])
    ids = plan(suite, header)
    plays = policy if submission.code == "built-in" else APART
    return Expected(kind, suite, plays, _published(header, stated, command), ids)


def _published(
    header: dict[str, Any], stated: Mapping[str, Any], command: list[str]
) -> dict[str, Any]:
    """Return a header with the origin of the run, and no paths of a machine."""
    header |= {key: stated[key] for key in _ORIGIN if key in stated}
    runs = [{key: run[key] for key in ("started", "git") if key in run} for run in stated["runs"]]
    header["runs"] = [{**run, "command": command} for run in runs]
    text = json.dumps(header, ensure_ascii=False).replace(f"{os.getcwd()}/", "")
    return dict(json.loads(text))


def _suite(submission: Submission, stated: Mapping[str, Any]) -> tuple[Family, Any]:
    """Return the shipped suite with the submission's policy."""
    shipped = list_configs("suites")
    if submission.suite not in shipped:
        raise BenchmarkError(
            f"{unknown('suite', submission.suite, shipped)} A submission is a run of one of these."
        )
    given: dict[str, Any] = {"policies": (submission.policy,)}
    if Path(REFITS).is_file():
        given["refits"] = REFITS
    if submission.live:
        given |= {"backend": "vllm", "live": stated["suite"].get("live")}
    if submission.live and Path(POOL).is_file():
        given["pool"] = POOL
    suite = load_suite(submission.suite, given).resolve()
    return family_of(suite.model_dump(mode="json")), suite


def _simulated(suite: Any) -> Any:
    """Return a suite on simulated servers."""
    on_servers = getattr(suite, "backend", "") == "vllm"
    return suite.model_copy(update={"backend": "surrogate"}) if on_servers else suite


def is_built_in(kind: Family, policy: str) -> bool:
    """Return whether a policy, with or without arguments, is one of this package."""
    if kind.kind in ("routing", "tracks"):
        entries = registered_policies()
    else:
        entries = import_module(f"inframind_gym.policies.{kind.kind}.registry").POLICIES.entries()
    return policy.strip().split(":")[0] in {entry.name for entry in entries}


def _policy(
    kind: Family, submission: Submission, suite: Any, own_code: OwnCode
) -> tuple[Any, dict[str, Any] | None]:
    """Make the policy, and return its fingerprint if its code is its own and was run."""
    policy = submission.policy
    own = getattr(suite, "fitted", Refits()).fits.get(policy, {})
    for play in [policy, *(play for fit in own.values() for play in fit.plays)]:
        if (submission.code == "built-in") != is_built_in(kind, play):
            raise BenchmarkError(f"{play}: its code is not {submission.code}.")
        if any(part.startswith("/") or ".." in Path(part).parts for part in play.split(":")):
            raise BenchmarkError(f"{play}: names a path outside of the submission.")
    if submission.code == "built-in":
        for play in {
            play.split(":")[0]: play for fit in own.values() for play in fit.plays
        }.values():
            if getattr(kind.resolve_policy(play), "bound", False):
                raise BenchmarkError(
                    f"{REFITS}: {play} is a bound: it knows what no policy may, and plays for none."
                )
        return kind.resolve_policy(policy), None
    if own:
        raise BenchmarkError(
            f"{policy} has fits in {REFITS}, which own code cannot be played with apart from the "
            "environment. Run it without --refits; the policy may choose by what it is shown."
        )
    module = Path(*policy.partition(":")[0].split(".")).with_suffix(".py")
    needed = module if submission.code == "files" else Path(REQUIREMENTS)
    if not needed.is_file():
        raise BenchmarkError(f"{policy}: {needed} is not in the submission.")
    if own_code == "ignore":
        return SimpleNamespace(name=policy, requires={}), None
    if own_code == "refuse":
        raise BenchmarkError(
            f"{policy} is the submission's own code. --trust runs it, in a process of its own but "
            "with your rights: read it first, or use a container."
        )
    with playing(kind.kind, policy):
        made = kind.resolve_policy(APART)
    if hidden := made.facts["hidden"]:
        raise BenchmarkError(
            f"{policy} has {', '.join(hidden)}: bounds alone are shown the simulation, a policy "
            "may not read it."
        )
    return made, made.facts["fingerprint"]


def _cells(folder: Path, expected: Expected) -> dict[BaseCell, FinishedCell]:
    """Return the cells of a submission: all of the suite, each once, and no others."""
    of = {name: cell for cell, name in expected.ids.items()}
    layout = expected.kind.layout(expected.header)
    found: dict[BaseCell, FinishedCell] = {}
    for one in read_cells(folder):
        if one is None:
            raise BenchmarkError(f"{folder}: a line of its cells is damaged or was edited.")
        cell = of.get(one.line["cell"])
        if cell != one.cell or cell in found:
            what = "twice" if cell in found else "which its suite does not plan"
            raise BenchmarkError(f"{folder} has the cell {one.cell}, {what}.")
        _check_metrics(folder, one, layout)
        found[one.cell] = one
    missing = [cell for cell in of.values() if cell not in found]
    if missing:
        raise BenchmarkError(
            f"{folder} has {len(found)} of the {len(of)} cells of {expected.suite.name}. A "
            "submission has every seed and cell of its suite; missing: "
            f"{'; '.join(cell.where for cell in missing[:3])}{'; …' if missing[3:] else ''}."
        )
    return found


def _check_metrics(folder: Path, one: FinishedCell, layout: Any) -> None:
    """Check that the metrics of a line are those of its records or of their sums."""
    try:
        metrics = layout.evaluate(one.episode(layout).sums.sum(axis=0))
        wrong = [
            name
            for name, value in metrics.items()
            if not math.isclose(float(value), one.line[name], rel_tol=1e-6, abs_tol=1e-9)
        ]
    except BROKEN as error:
        raise BenchmarkError(f"{folder}: {one.cell} cannot be read ({error!r:.100}).") from None
    if wrong:
        raise BenchmarkError(f"{folder}: {wrong[0]} of {one.cell} is not that of its records.")


def _check_log(folder: Path, cells: Mapping[BaseCell, FinishedCell]) -> None:
    """Check that the log of a live run has the calls of its cells."""
    path = folder / LOG
    if not path.is_file():
        raise ConfigError(f"{folder}: a live run comes with the log of its calls, {LOG}.")
    logged = sum(1 for _ in read_raw_lines(path))
    calls = sum(int(one.columns()["calls"].sum()) for one in cells.values())
    if logged < calls:
        raise BenchmarkError(f"{path}: has {logged:,} calls; the cells have {calls:,}.")
