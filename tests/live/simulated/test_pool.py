"""`inframind pool up --simulate`: one process, which the other commands look after."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("psutil")

from inframind_gym.configs import find_config
from inframind_gym.live.client import ask
from inframind_gym.live.config import addresses
from inframind_gym.live.watcher import is_simulated
from inframind_gym.simulator.server.pool import load_pool
from tests.live.launch.play import command, needs_linux, session, write_pool

pytestmark = needs_linux


@pytest.fixture
def where(tmp_path: Path) -> Iterator[tuple[Any, ...]]:
    options = ("--pool", write_pool(tmp_path, "", ""), "--state", tmp_path / "state")
    yield options
    command("down", *options)


def rows(where: tuple[Any, ...]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(command("status", *where, "--json").stdout)
    return found


def test_the_commands(where: tuple[Any, ...], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()  # a workload as `workload fit` writes it: parts beside the mix
    shutil.copy(find_config("workloads", "math"), tmp_path / "mine" / "part.yaml")
    own_mix = json.dumps({"name": "own", "mix": {"./part.yaml": 1}})
    (tmp_path / "mine" / "own.yaml").write_text(own_mix)
    own = ("--simulate", "--workload", "mine/own.yaml", "--speed")
    up = command("up", *where, *own, "20", cwd=tmp_path)
    assert up.returncode == 0, up.stdout + up.stderr
    assert "Simulated, at speed 20" in up.stdout
    found = rows(where)
    assert [(row["state"], row["simulated"]) for row in found] == [("up", True)] * 2
    (pid,) = {row["pid"] for row in found}
    assert session(pid) == {pid}
    for row, model in zip(found, ("model-0", "model-1"), strict=True):
        assert json.loads(ask(f"{row['url']}/v1/models"))["data"][0]["id"] == model
    pool = load_pool(str(where[1]))
    assert all(is_simulated(one.url) for one in addresses(pool))
    assert "Simulated: one process serves all" in command("status", *where).stdout
    assert "were up already" in command("up", *where, *own, "20", cwd=tmp_path).stdout
    other = command("up", *where, *own, "10", cwd=tmp_path)
    assert other.returncode == 2 and "with other settings" in other.stderr
    (log,) = where[3].rglob("*.log")
    assert log.read_text().count("no model runs here") == 2
    down = command("down", *where)
    assert (
        down.stdout
        == f"m0: stopped (process {pid}, 1 in all)\nm1: stopped (process {pid}, 1 in all)\n"
    )
    assert session(pid) == set()
    assert [row["state"] for row in rows(where)] == ["stopped", "stopped"]
    assert not any(is_simulated(one.url) for one in addresses(pool))
