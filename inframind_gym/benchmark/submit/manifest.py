"""``submission.json``: who submits, what plays, and the checksum of every file beside it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.lines import BROKEN, seal, unseal
from inframind_gym.benchmark.store import HEADER, PACKED
from inframind_gym.configs import Name, NonNegativeInt, StrictModel, validate
from inframind_gym.files import read_bytes, read_text, replace_bytes

MANIFEST: Final = "submission.json"
REFITS, REQUIREMENTS, POOL = "refits.yaml", "requirements.txt", "pool.yaml"
LOG: Final = "requests.jsonl.gz"  # of live servers
MOST_BYTES: Final = 50_000_000  # of a submission
_PARTS: Final = (MANIFEST, HEADER, PACKED, REFITS, REQUIREMENTS, POOL, LOG)
CODE: Final = ".py"
_SUFFIXES: Final = (CODE, ".json", ".safetensors")  # of modules and checkpoints
_PINNED: Final = re.compile(r"[\w.-]+(\[[\w,.-]+\])?==[\w.+!-]+(\s+--hash=sha256:[0-9a-f]{64})+")

Text = Annotated[str, Field(max_length=2000)]


class Training(StrictModel):
    """Budget of a policy's training or fit.

    Attributes:
        queries: Simulated queries of one training; null: it is not stated.
        about: How it was trained, in words.
    """

    queries: NonNegativeInt | None = None
    about: Text = ""


class Submission(StrictModel):
    """Content of ``submission.json``.

    Attributes:
        format: Of this file.
        name: Name on the board; that of the folder.
        suite: A shipped suite; name of the folder above.
        policy: What plays, as the run was given it.
        code: Whose it is: of this package, files of the submission, or a package that
            ``requirements.txt`` pins by its hash.
        authors: Who submits.
        about: One or two sentences.
        url: Page of the policy.
        training: Its budget.
        live: Whether live servers played; such a run cannot be played again.
        files: SHA-256 of every other file, by its path.
    """

    format: Literal[1] = 1
    name: Name
    suite: Name
    policy: Annotated[str, Field(min_length=1, max_length=300)]
    code: Literal["built-in", "files", "package"] = "built-in"
    authors: Annotated[str, Field(min_length=1, max_length=300)]
    about: Text = ""
    url: Annotated[str, Field(pattern=r"^(https?://[^\s\"<>]+)?$", max_length=300)] = ""
    training: Training = Training()
    live: bool = False
    files: dict[str, str] = Field(default_factory=dict)


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a submission but its manifest, by path.

    Raises:
        BenchmarkError: A file has no place in a submission, is a link, or all are too large.
    """
    found, size = {}, 0
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        if path.is_symlink() or not path.is_file():
            raise BenchmarkError(f"{path}: a submission holds plain files and no links.")
        if name not in _PARTS and path.suffix not in _SUFFIXES:
            raise BenchmarkError(
                f"{path}: has no place in a submission, which holds {', '.join(_PARTS)} and files "
                f"that end with {', '.join(_SUFFIXES)}."
            )
        size += path.stat().st_size
        if size > MOST_BYTES:
            raise BenchmarkError(f"{folder}: has more than {MOST_BYTES:,} bytes.")
        if name != MANIFEST:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def write_manifest(folder: Path, submission: Submission) -> None:
    """Write ``submission.json`` with the checksums of the files that are there."""
    whole = submission.model_copy(update={"files": digests(folder)})
    replace_bytes(folder / MANIFEST, seal(whole.model_dump(mode="json"), indent=2))


def read_manifest(folder: Path) -> Submission:
    """Read ``submission.json``, and compare every file with its checksum.

    Raises:
        InfraMindError: It is missing, was edited, or a file is not the one that was submitted.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise BenchmarkError(
            f"{folder} is no submission (no {MANIFEST}). Make one: inframind submit prepare RUN "
            "--name NAME"
        )
    try:
        content = unseal(read_bytes(path))
    except BROKEN:
        raise BenchmarkError(
            f"{path} is damaged or was edited. Make it again: inframind submit prepare."
        ) from None
    submission = validate(content, Submission, source=str(path))
    there = digests(folder)
    for name in sorted({*there, *submission.files}):
        if there.get(name) != submission.files.get(name):
            what = "is missing" if name not in there else "is not what was submitted"
            raise BenchmarkError(f"{folder / name} {what}: its checksum is not that of {MANIFEST}.")
    if (folder.parent.name, folder.name) != (submission.suite, submission.name):
        raise BenchmarkError(
            f"{folder}: the submission belongs into a folder {submission.suite}/{submission.name}."
        )
    return submission


def pinned(path: Path) -> str:
    """Return pip's requirements, each pinned by its hash.

    Raises:
        BenchmarkError: One is not.
    """
    text = read_text(path)
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    for line in lines:
        if line and not line.startswith("#") and not _PINNED.fullmatch(line):
            raise BenchmarkError(
                f"{path}: {line[:80]!r} is not pinned. Write NAME==VERSION --hash=sha256:HASH; "
                "`pip hash FILE.whl` prints the hash."
            )
    return text
