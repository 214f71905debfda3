"""A submission from a results folder."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.families import family_of
from inframind_gym.benchmark.lines import condense, seal
from inframind_gym.benchmark.store import HEADER, PACKED, REQUESTS, read_cells, read_header
from inframind_gym.benchmark.submit.apart import inside
from inframind_gym.benchmark.submit.check import Expected, check, expect, is_built_in
from inframind_gym.benchmark.submit.manifest import (
    LOG,
    POOL,
    REFITS,
    REQUIREMENTS,
    Submission,
    Training,
    pinned,
    write_manifest,
)
from inframind_gym.benchmark.tracks.refits import Refits, load_refits
from inframind_gym.configs import validate
from inframind_gym.errors import unknown
from inframind_gym.policies import checkpoint

SUBMISSIONS: Final = Path("benchmarks/submissions")


def prepare(
    run: Path,
    name: str,
    authors: str,
    *,
    policy: str | None = None,
    out: Path = SUBMISSIONS,
    code: Sequence[Path] = (),
    requirements: Path | None = None,
    about: str = "",
    url: str = "",
    training: Training | None = None,
) -> Path:
    """Write the submission of one policy of a run, made in the working directory.

    Args:
        run: Folder of its results.
        name: Name on the board.
        authors: Who submits.
        policy: As the run was given it; None: the only one.
        out: Folder of all submissions.
        code: Further files that a policy of one's own needs, beside its module.
        requirements: pip's file with the package of the policy, pinned by hash.
        about: One or two sentences.
        url: Page of the policy.
        training: Its budget; None: what the fits of the run say.

    Returns:
        The folder, SUITE/NAME in `out`; one of that name is replaced.

    Raises:
        InfraMindError: The run is no complete run of a shipped suite of this version, or something
            that plays is missing or cannot be published.
    """
    stated = read_header(run)
    policy = _one_policy(run, stated, policy)
    kind, suite = family_of(stated["suite"]), stated["suite"]
    own = not is_built_in(kind, policy)
    content = {
        "name": name,
        "suite": suite["name"],
        "policy": policy,
        "code": "built-in" if not own else "files" if requirements is None else "package",
        "authors": authors,
        "about": about,
        "url": url,
        "training": (training or Training()).model_dump(),
        "live": suite.get("backend") == "vllm",
    }
    submission = validate(content, Submission, source="submission")
    with tempfile.TemporaryDirectory() as staging:
        folder = Path(staging).resolve() / submission.suite / submission.name
        folder.mkdir(parents=True)
        submission = _copy_parts(folder, run, submission, suite, code, requirements)
        with inside(folder):
            expected = expect(submission, stated, "run")
        (folder / HEADER).write_bytes(seal(expected.header, indent=2))
        _write_cells(folder, run, expected, submission)
        write_manifest(folder, submission)
        check(folder, "run")
        target = out / submission.suite / submission.name
        try:
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(folder, target)
        except OSError as error:
            raise BenchmarkError(f"{target}: cannot be written ({error}).") from None
    return target


def _one_policy(run: Path, stated: dict[str, Any], policy: str | None) -> str:
    """Return the policy to submit."""
    known = list(stated["policies"])
    if policy is None and len(known) != 1:
        raise BenchmarkError(f"{run} has {', '.join(known)}. Choose one with --policy.")
    policy = policy or known[0]
    if policy not in known:
        raise BenchmarkError(unknown("policy", policy, known))
    if why := stated.get("left_out", {}).get(policy):
        raise BenchmarkError(f"{policy} was left out of {run}: {why}")
    return policy


def _copy_parts(
    folder: Path,
    run: Path,
    submission: Submission,
    suite: dict[str, Any],
    code: Sequence[Path],
    requirements: Path | None,
) -> Submission:
    """Copy what plays to where its name expects it; returns the manifest with the fits' budget."""
    plays = [submission.policy]
    if suite.get("refits"):
        fits = load_refits(Path(suite["refits"]))
        own = fits.fits.get(submission.policy)
        if own:
            only = Refits(budget_queries=fits.budget_queries, fits={submission.policy: own})
            plain = only.model_dump(mode="json", exclude_none=True)
            (folder / REFITS).write_text(yaml.safe_dump(plain, sort_keys=True, width=100))
            plays += [play for fit in own.values() for play in fit.plays]
            if submission.training.queries is None:
                budget = {"queries": only.queries()[submission.policy]}
                training = submission.training.model_copy(update=budget)
                submission = submission.model_copy(update={"training": training})
    for argument in dict.fromkeys(part for play in plays for part in play.split(":")[1:]):
        if Path(argument).is_dir():
            for place in checkpoint.folders(Path(argument)):
                _copy(place / checkpoint.MODEL_FILE, folder)
                _copy(place / checkpoint.CONFIG_FILE, folder)
        elif Path(argument).is_file():
            _copy(Path(argument), folder)
    if submission.code == "files":
        module = Path(*submission.policy.partition(":")[0].split(".")).with_suffix(".py")
        if not module.is_file():
            raise BenchmarkError(
                f"{submission.policy}: there is no {module} in the working directory. Run the "
                "command where the run was made, or pin the package: --requirements FILE."
            )
        for path in (module, *code):
            _copy(path, folder)
    if requirements is not None:
        (folder / REQUIREMENTS).write_text(pinned(requirements))
    if submission.live:
        pool = Path(suite["pool"])
        if pool.is_file():
            shutil.copyfile(pool, folder / POOL)
        (folder / LOG).write_bytes(gzip.compress((run / REQUESTS).read_bytes(), mtime=0))
    return submission


def _copy(path: Path, folder: Path) -> None:
    """Copy a file of the working directory to the same place in a folder."""
    if path.is_absolute() or ".." in path.parts:
        raise BenchmarkError(
            f"{path}: a submission has what plays at the same place as the run. Run it again with "
            "a path below the working directory."
        )
    if not path.is_file():
        raise BenchmarkError(f"{path}: there is no such file in the working directory.")
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, folder / path)


def _write_cells(folder: Path, run: Path, expected: Expected, submission: Submission) -> None:
    """Write the cells of a run that its suite plans: sums, or all records of a live run."""
    layout, planned = expected.kind.layout(expected.header), set(expected.ids.values())
    lines = [
        seal(found.line) if submission.live else condense(found, layout)
        for found in read_cells(run)
        if found is not None and found.line["cell"] in planned
    ]
    (folder / PACKED).write_bytes(gzip.compress(b"".join(lines), mtime=0))
