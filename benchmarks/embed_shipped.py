"""Embed the shipped texts again: ``python -m benchmarks.embed_shipped [--check]``.

Encodes the built-in tasks and the 25 roles, and the texts of ``agents/data/planner_texts.yaml``,
with all-MiniLM-L6-v2 (extra ``embed``); writes a manifest of hashes of the former beside their
embeddings in ``inframind_gym/tasks/data``. The file of tasks is itself the source. ``--check``
writes nothing: it fails if tasks, roles and manifest differ.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
import yaml

from inframind_gym.commands import CommandGroup
from inframind_gym.errors import TaskError
from inframind_gym.files import replace_bytes
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.tasks import loaders, taskset
from inframind_gym.tasks.embedding import MODEL_HASHES, encode

MANIFEST_FILE = "manifest.json"
PLANNER = Path(__file__).resolve().parents[1] / "agents" / "data" / "planner_texts.yaml"


def role_texts() -> list[str]:
    """Return the text that is embedded for each role: "Name: description"."""
    return [f"{role.name}: {role.description}" for role in ROLES]


def manifest() -> dict[str, Any]:
    """Return counts and hashes of the shipped tasks, the present roles and the encoder."""
    packed = gzip.decompress((taskset.DATA / loaders.TASKS_FILE).read_bytes())
    found: dict[str, Any] = {}
    for name, lines in (
        ("tasks", packed.decode().rstrip("\n").split("\n")),
        ("roles", role_texts()),
    ):
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        found |= {name: len(lines), f"{name}_sha256": digest}
    return found | {"model": dict(MODEL_HASHES)}


def check() -> None:
    """Raise a TaskError unless tasks, roles and embeddings are those of the manifest."""
    expected = manifest()
    found = json.loads((taskset.DATA / MANIFEST_FILE).read_text(encoding="utf-8"))
    wrong = [key for key in sorted(expected | found) if expected.get(key) != found.get(key)]
    for name, rows in ((loaders.EMBEDDINGS_FILE, "tasks"), (loaders.ROLES_FILE, "roles")):
        if np.load(taskset.DATA / name, allow_pickle=False).shape[0] != expected[rows]:
            wrong.append(name)
    if wrong:
        raise TaskError(
            f"the shipped embeddings are not of these texts: {', '.join(wrong)} differ. Make them "
            "again with `python -m benchmarks.embed_shipped`."
        )


app = typer.Typer(cls=CommandGroup, add_completion=False)


@app.callback(invoke_without_command=True)
def main(
    only_check: Annotated[bool, typer.Option("--check", help="Write nothing, compare.")] = False,
) -> None:
    """Embed the shipped texts, or check that it has been done for tasks and roles."""
    if not only_check:
        tasks, _ = loaders.read_builtin()
        texts = {
            taskset.DATA / loaders.EMBEDDINGS_FILE: tasks.texts,
            taskset.DATA / loaders.ROLES_FILE: role_texts(),
            PLANNER.with_suffix(".npy"): list(yaml.safe_load(PLANNER.read_text("utf-8")).values()),
        }
        for path, lines in texts.items():
            buffer = io.BytesIO()
            np.save(buffer, encode(lines).astype(np.float16), allow_pickle=False)
            replace_bytes(path, buffer.getvalue())
        content = json.dumps(manifest(), indent=2) + "\n"
        replace_bytes(taskset.DATA / MANIFEST_FILE, content.encode())
    check()


if __name__ == "__main__":
    app()
