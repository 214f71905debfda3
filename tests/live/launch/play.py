"""A pool of stand-ins for vLLM, and what is needed to look after its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from inframind_gym.cli import app
from inframind_gym.live.processes import free_ports
from inframind_gym.simulator.server.pool import PoolConfig, load_pool

ROOT = Path(__file__).resolve().parents[3]
FAKE = Path(__file__).with_name("fake_vllm.py")
needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def interpreter(folder: Path) -> Path:
    """What `--python` is to be."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{FAKE}" "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def write_pool(folder: Path, *fakes: str, **changes: Any) -> Path:
    """A YAML file of a pool with a model for each of `fakes` ("" for one that works)."""
    data = load_pool("cpu-tiny").model_dump(mode="json", exclude_defaults=True)
    models = []
    for number, (fake, port) in enumerate(zip(fakes, free_ports(len(fakes)), strict=True)):
        model = {**data["models"][0], "alias": f"m{number}", "name": f"model-{number}"}
        model |= {"port": port, "gpu_memory_frac": 0.1, "path": f"org/model-{number}"}
        models.append({**model, "extra_args": [f"--fake={fake}"] if fake else []})
    path = folder / "pool.yaml"
    data |= {"name": f"fake-{folder.name}", "models": models, **changes}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def pool_of(folder: Path, *fakes: str, **changes: Any) -> PoolConfig:
    return load_pool(write_pool(folder, *fakes, **changes))


def session(leader: int) -> set[int]:
    """Processes of a session that have not ended."""
    found = subprocess.run(["ps", "-eo", "pid=,sess=,stat="], capture_output=True, text=True).stdout
    rows = [line.split() for line in found.splitlines()]
    return {int(pid) for pid, sess, stat in rows if int(sess) == leader and "Z" not in stat}


def command(*arguments: str | Path) -> Any:
    """Run `inframind pool ...` in this process."""
    return CliRunner(env=PLAIN).invoke(app, ["pool", *map(str, arguments)])


CLI = [sys.executable, "-c", "from inframind_gym.cli import app; app()"]
PLAIN = {"COLUMNS": "160", "NO_COLOR": "1"}
ENV = os.environ | PLAIN | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
