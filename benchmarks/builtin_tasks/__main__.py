"""Rebuild the data that the package ships: ``python -m benchmarks.builtin_tasks [--check]``.

Makes the built-in tasks from their seed, embeds them and the 25 roles with all-MiniLM-L6-v2 (extra
``embed``), and writes four files to ``inframind_gym/tasks/data``: the tasks, their embeddings, the
embeddings of the roles, and a manifest with the hashes of all that they were made from. ``--check``
writes nothing: it fails if the texts, answers, difficulties or roles are not those of the shipped
files.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.builtin_tasks.generate import SEED, TASKS_PER_DOMAIN, generate, to_json
from inframind_gym.errors import InfraMindError, TaskError
from inframind_gym.files import replace_bytes
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.tasks import shipped
from inframind_gym.tasks.embedding import MODEL_HASHES, MiniLMEmbedder

MANIFEST_FILE = "manifest.json"


def role_texts() -> list[str]:
    """Return what is embedded for each role: "Name: description"."""
    return [f"{role.name}: {role.description}" for role in ROLES]


def sha256_of_lines(lines: Sequence[str]) -> str:
    """Return the sha256 of the lines joined by line breaks."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def manifest(lines: Sequence[str]) -> dict[str, Any]:
    """Return the manifest of the data made from these lines of tasks and the present roles."""
    return {
        "seed": SEED,
        "tasks": len(lines),
        "tasks_per_domain": TASKS_PER_DOMAIN,
        "tasks_sha256": sha256_of_lines(lines),
        "roles": len(ROLES),
        "roles_sha256": sha256_of_lines(role_texts()),
        "model": dict(MODEL_HASHES),
    }


def _array_bytes(texts: Sequence[str], embedder: MiniLMEmbedder) -> bytes:
    """Return the float16 embeddings of texts as the content of an .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, embedder(texts).astype(np.float16), allow_pickle=False)
    return buffer.getvalue()


def check() -> None:
    """Raise a TaskError unless the shipped data are those of the present code and roles."""
    expected = manifest([to_json(record) for record in generate()])
    found = json.loads((shipped.DATA / MANIFEST_FILE).read_text(encoding="utf-8"))
    keys = sorted(expected.keys() | found.keys())
    wrong = [key for key in keys if expected.get(key) != found.get(key)]
    packed = gzip.decompress((shipped.DATA / shipped.TASKS_FILE).read_bytes())
    if sha256_of_lines(packed.decode().rstrip("\n").split("\n")) != expected["tasks_sha256"]:
        wrong.append(shipped.TASKS_FILE)
    for name, rows in ((shipped.EMBEDDINGS_FILE, "tasks"), (shipped.ROLES_FILE, "roles")):
        if np.load(shipped.DATA / name, allow_pickle=False).shape[0] != expected[rows]:
            wrong.append(name)
    if wrong:
        raise TaskError(
            f"the shipped data do not fit the code: {', '.join(wrong)} differ. Rebuild them with "
            "`python -m benchmarks.builtin_tasks`."
        )


def build() -> int:
    """Make all data files; return their size in bytes."""
    records = generate()
    lines = [to_json(record) for record in records]
    embedder = MiniLMEmbedder()
    files = {
        shipped.TASKS_FILE: gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0),
        shipped.EMBEDDINGS_FILE: _array_bytes([record.text for record in records], embedder),
        shipped.ROLES_FILE: _array_bytes(role_texts(), embedder),
        MANIFEST_FILE: (json.dumps(manifest(lines), indent=2) + "\n").encode(),
    }
    for name, content in files.items():
        replace_bytes(shipped.DATA / name, content)
    return sum(map(len, files.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.builtin_tasks",
        description="Rebuild the tasks and embeddings that the package ships.",
    )
    parser.add_argument("--check", action="store_true", help="write nothing, compare only")
    try:
        if parser.parse_args(arguments).check:
            check()
            print("the shipped data are those of the code")
        else:
            print(f"wrote {build() / 1e6:.2f} MB to {shipped.DATA}")
    except InfraMindError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
