"""`inframind pool up --simulate`: one process, which the other commands look after."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("aiohttp")
pytest.importorskip("psutil")

from inframind_gym.cli import app
from inframind_gym.configs import find_config
from inframind_gym.live.client import ask
from inframind_gym.live.config import addresses
from inframind_gym.live.watcher import is_simulated
from inframind_gym.simulator.server.pool import load_pool
from tests.live.launch.play import CLI, ENV, command, needs_linux, session, write_pool
from tests.live.simulated.play import served, tiny_pool

pytestmark = needs_linux


@pytest.fixture
def where(tmp_path: Path) -> Iterator[tuple[Any, ...]]:
    options = ("--pool", write_pool(tmp_path, "", ""), "--state", tmp_path / "state")
    yield options
    command("down", *options)


def rows(where: tuple[Any, ...]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(command("status", *where, "--json").stdout)
    return found


def test_the_commands(
    where: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()  # a workload as `workload fit` writes it: parts beside the mix
    shutil.copy(find_config("workloads", "math"), tmp_path / "mine" / "part.yaml")
    (tmp_path / "mine/own.yaml").write_text('{"name": "own", "mix": {"./part.yaml": 1}}')
    own = ("--simulate", "--workload", "mine/own.yaml", "--speed")
    words = [*CLI, "pool", "up", *map(str, where), *own, "20"]
    up = subprocess.run(words, env=ENV, capture_output=True, text=True)  # its server outlives it
    assert up.returncode == 0, up.stderr
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
    assert "were up already" in command("up", *where, *own, "20").stdout
    other = command("up", *where, *own, "10")
    assert other.exit_code == 2 and "with other settings" in other.stderr
    (log,) = where[3].rglob("*.log")
    assert log.read_text().count("no model runs here") == 2
    down = command("down", *where)
    ended = f"stopped (process {pid}, 1 in all)"
    assert down.stdout == f"m0: {ended}\nm1: {ended}\n"
    assert session(pid) == set()
    assert [row["state"] for row in rows(where)] == ["stopped", "stopped"]
    assert not any(is_simulated(one.url) for one in addresses(pool))


def test_a_pool_is_made_of_servers_that_run(tmp_path: Path) -> None:
    out = tmp_path / "found.yaml"

    def new(*options: str) -> Any:
        fixed = ["pool", "new", "--gpu", "A100-80GB:3", "--out", str(out), *options]
        return CliRunner().invoke(app, fixed)

    pool = load_pool("single-gpu")
    with served(pool) as urls:
        done = new("--url", f"{urls[0]}/v1,{urls[1]},{urls[2]}/")
        assert done.exit_code == 0, done.output
        found = load_pool(out)
        assert found.aliases == ("qwen2.5-coder-14b", "llama-3.1-8b", "llama-3.2-3b")
        for theirs, ours, url in zip(pool.models, found.models, urls, strict=True):
            assert (ours.url, ours.name, ours.port) == (url, theirs.name, None)
            for name in ("num_kv_blocks", "block_size", "max_model_len", "prefix_caching"):
                assert getattr(ours.server, name) == getattr(theirs.server, name)
            assert ours.server.estimate
        few = new("--url", urls[0], "--models", "a=phi-4,b=phi-4", "--force")
        assert (few.exit_code, "1 addresses for 2" in few.output) == (2, True)
        again = urls[0].replace("127.0.0.1", "localhost")
        twice = new("--url", f"{again},{urls[0]}", "--force")
        assert (twice.exit_code, "is there twice" in twice.output) == (2, True)
        other = new("--url", urls[0], "--models", "a=phi-4", "--force")
        assert other.exit_code == 2 and "serves Qwen/" in other.output
    with served(tiny_pool(), [0]) as (url,):
        unknown = new("--url", url, "--force")
        assert (unknown.exit_code, "Give --models" in unknown.output) == (2, True)
        named = new("--url", url, "--force", "--models", "qwen-14b=qwen2.5-0.5b")
        assert named.exit_code == 0, named.output
        assert load_pool(out).models[0].name == "tiny-4x256"
    gone = new("--url", url, "--force")
    assert gone.exit_code == 2 and "Connection refused" in gone.output
