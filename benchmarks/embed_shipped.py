"""Embed the shipped tasks and roles again: ``python -m benchmarks.embed_shipped [--check]``.

Encodes the texts of the built-in tasks and of the 25 roles with all-MiniLM-L6-v2 (extra ``embed``)
and writes their embeddings and a manifest of hashes to ``inframind_gym/tasks/data``. The file of
tasks is itself the source. ``--check`` writes nothing: it fails if tasks, roles and manifest
differ.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import typer

from inframind_gym.errors import TaskError, friendly
from inframind_gym.files import replace_bytes
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.tasks import loaders
from inframind_gym.tasks.embedding import MODEL_HASHES, MiniLMEmbedder

MANIFEST_FILE = "manifest.json"


def role_texts() -> list[str]:
    """Return the text that is embedded for each role: "Name: description"."""
    return [f"{role.name}: {role.description}" for role in ROLES]


def manifest() -> dict[str, Any]:
    """Return counts and hashes of the shipped tasks, the present roles and the encoder."""
    packed = gzip.decompress((loaders.DATA / loaders.TASKS_FILE).read_bytes())
    tasks, roles = packed.decode().rstrip("\n").split("\n"), role_texts()
    return {
        "tasks": len(tasks),
        "tasks_sha256": _sha256_of_lines(tasks),
        "roles": len(roles),
        "roles_sha256": _sha256_of_lines(roles),
        "model": dict(MODEL_HASHES),
    }


def check() -> None:
    """Raise a TaskError unless tasks, roles and embeddings are those of the manifest."""
    expected = manifest()
    found = json.loads((loaders.DATA / MANIFEST_FILE).read_text(encoding="utf-8"))
    wrong = [key for key in sorted(expected | found) if expected.get(key) != found.get(key)]
    for name, rows in ((loaders.EMBEDDINGS_FILE, "tasks"), (loaders.ROLES_FILE, "roles")):
        if np.load(loaders.DATA / name, allow_pickle=False).shape[0] != expected[rows]:
            wrong.append(name)
    if wrong:
        raise TaskError(
            f"the shipped embeddings are not of these texts: {', '.join(wrong)} differ. Make them "
            "again with `python -m benchmarks.embed_shipped`."
        )


def build() -> None:
    """Write embeddings and manifest."""
    embedder = MiniLMEmbedder()
    tasks, _ = loaders.read_builtin()
    for name, texts in ((loaders.EMBEDDINGS_FILE, tasks.texts), (loaders.ROLES_FILE, role_texts())):
        replace_bytes(loaders.DATA / name, _array_bytes(embedder(texts)))
    content = json.dumps(manifest(), indent=2) + "\n"
    replace_bytes(loaders.DATA / MANIFEST_FILE, content.encode())


def _sha256_of_lines(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _array_bytes(embeddings: Any) -> bytes:
    """Return embeddings as the content of an .npy file of float16."""
    buffer = io.BytesIO()
    np.save(buffer, embeddings.astype(np.float16), allow_pickle=False)
    return buffer.getvalue()


def main(
    only_check: Annotated[bool, typer.Option("--check", help="Write nothing, compare.")] = False,
) -> None:
    """Embed the shipped tasks and roles, or check that it has been done."""
    with friendly():
        if not only_check:
            build()
        check()


if __name__ == "__main__":
    typer.run(main)
