"""The benchmark on the real environments: same bits always, nothing finished is ever lost."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.evaluation import store
from inframind_gym.evaluation.board import leaderboard, load_results
from inframind_gym.evaluation.cells import Cell
from inframind_gym.evaluation.play import PolicyFailedError
from inframind_gym.evaluation.queries import columns_of
from inframind_gym.evaluation.routing import RoutingSuite
from inframind_gym.evaluation.runner import run
from inframind_gym.evaluation.store import digest_of, finished_ids, read_cells, read_header
from inframind_gym.evaluation.suite import load_suite
from inframind_gym.policies import resolve_policy
from inframind_gym.policies.simple import LeastLoadedPolicy, SpillPolicy
from tests.conftest import until

ROOT = Path(__file__).resolve().parents[2]
MINE = "tests.evaluation.policies_under_test"
CLI = "from inframind_gym.cli import app; app()"


def suite(**changes: Any) -> RoutingSuite:
    small = {"name": "small", "division": "orchestrate", "policies": ["random", "least_loaded"]}
    small |= {"rates_per_min": [20, 200], "budgets_s": [30, "tiers"], "seeds": 2, "num_queries": 12}
    return load_suite("starter", {**small, **changes}).resolve()


def digests(folder: Path) -> dict[str, str]:
    """The records of a folder's cells, by the cells' ids."""
    return {one.cell_id: one.digest for one in read_cells(folder) if one is not None}


def alone(config: RoutingSuite, cell: Cell) -> str:
    """The cell on the single environment, with `policy.act`, as a user would write the loop."""
    policy = resolve_policy(cell.policy)
    env = gym.make(config.env_id, **config.env_kwargs(cell.place, policy))
    options = {"arrival_rate_per_min": cell.place[1]}
    if cell.place[2] != "tiers":
        options["budget_s"] = cell.place[2]
    observation, _ = env.reset(seed=cell.episode_seed, options=options)
    policy.reset(env.unwrapped.policy_spec(), [cell.policy_seed])
    observe, over, pieces = getattr(policy, "observe", None), False, []
    while not over:
        observation, _, over, _, _ = env.step(policy.act(observation, env.unwrapped.context()))
        pieces.append(env.unwrapped.completed())
        if observe is not None and len(pieces[-1]):
            observe(pieces[-1], 0)
    simulation = env.unwrapped.simulation
    return digest_of(columns_of(simulation, np.concatenate(pieces), simulation.calls(0)))


@pytest.mark.parametrize(
    "policy",
    [
        "random",
        "static_mix",
        "least_loaded",
        "moa",
        "q_learning_load_tracker",
        "fixed_recipe_by_rate",
        "masrouter",
        "bid_price",
        f"{MINE}:Cheapest",
        f"{MINE}:Learner",
        f"{MINE}:FullObservation",
    ],
)
def test_a_batch_gives_the_bits_of_each_cell_alone(policy: str) -> None:
    config = suite(policies=[policy], seeds=[3])
    results = config.player().run(config.cells())
    assert {cell for cell, _ in results} == set(config.cells())
    for cell, columns in results:
        assert digest_of(columns) == alone(config, cell)


def test_workers_batches_and_interruptions_do_not_change_a_byte(tmp_path: Path) -> None:
    config = suite(policies=["random", f"{MINE}:Learner"])
    summary = run(config, tmp_path / "one", workers=1)
    assert (summary.cells, summary.computed, summary.kept) == (16, 16, 0)
    run(config, tmp_path / "four", workers=4, max_rows=3)
    assert digests(tmp_path / "one") == digests(tmp_path / "four")
    again = run(config, tmp_path / "four", workers=4)
    assert (again.computed, again.kept) == (0, 16)
    assert digests(tmp_path / "one") == digests(tmp_path / "four")


def command(*arguments: object) -> list[str]:
    small = ["--set", "rates=20,200", "--set", "budgets=30,tiers", "--set", "queries=60"]
    return [sys.executable, "-c", CLI, "bench", "run", *small, "--seeds", "2", *map(str, arguments)]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_process_is_continued_by_the_same_command(
    tmp_path: Path, how: signal.Signals, workers: int
) -> None:
    line = command("--policies", f"masrouter,least_loaded,{MINE}:Learner")
    env = {name: value for name, value in os.environ.items() if "_NUM_THREADS" not in name}
    whole = [*line, "--out", str(tmp_path / "whole"), "--workers", "1"]
    subprocess.run(whole, cwd=ROOT, env=env, check=True, capture_output=True)
    cut = tmp_path / "cut"
    line += ["--out", str(cut), "--workers", str(workers)]
    process = subprocess.Popen(line, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)
    until(lambda: finished_ids(cut), 120.0)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    if how == signal.SIGINT and process.returncode:
        assert process.returncode == 130
        assert "Continue with: " in err
    kept = len(finished_ids(cut))
    done = subprocess.run([*line, "--json"], cwd=ROOT, env=env, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["kept"] >= kept > 0
    assert digests(cut) == digests(tmp_path / "whole")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_policy_that_cannot_play_is_left_out_and_the_others_run(
    tmp_path: Path, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """One fails when it is asked, one amid its episodes."""
    wrong = [f"{MINE}:Refuses", f"{MINE}:RaisesLater"]
    summary = run(suite(policies=[*wrong, "random"], seeds=1), tmp_path, workers=workers)
    assert (summary.cells, summary.computed, summary.stopped) == (12, 4, False)
    why = "is made for 7 models, the pool has 5", "failed with KeyError: 'my own mistake'"
    out, reasons = capsys.readouterr().err, dict(zip(wrong, why, strict=True))
    assert f"policy {wrong[0]}: {why[0]}\nThe run goes on" in out
    assert out.count("Traceback") == 1  # of the second, once
    assert f"RaisesLater: {why[1]}" in out
    board = leaderboard(load_results(tmp_path), num_resamples=50)
    assert [row["policy"] for row in board["ranking"]] == ["random"]
    assert (board["planned"], board["missing"]) == (4, {})
    assert board["left_out"] == reasons == read_header(tmp_path)["left_out"]
    assert board["notes"][0] == f"{wrong[0]} was left out: {reasons[wrong[0]]}"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_policy_that_hangs_is_left_out_after_its_limit(tmp_path: Path, workers: int) -> None:
    hangs = f"{MINE}:Hangs"
    config = suite(policies=["random", hangs], seeds=1, policy_limit_s=2.0)
    summary = run(config, tmp_path, workers=workers)
    assert (summary.cells, summary.computed) == (8, 4)
    (left,) = read_header(tmp_path)["left_out"].items()
    assert left[0] == hangs
    reason = rf"did not answer in 2 s \(policy_limit_s\): {hangs} .*, the first of a batch of \d"
    assert re.fullmatch(reason, left[1])


@pytest.mark.parametrize("action", ["nan", "None", "15", "-1", "[1, 2]", "2.7", "True"])
def test_a_wrong_action_is_the_policys_failure(
    monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setenv("WRONG_ACTION", action)
    policy = f"{MINE}:Wrong"
    config = suite(policies=[policy], seeds=1)
    with pytest.raises(PolicyFailedError, match=rf"^policy {policy}: action"):
        config.player().run(config.cells()[:1])


def test_a_workload_counts_by_its_content_and_can_be_moved(tmp_path: Path) -> None:
    text = (ROOT / "envs_configs" / "workloads" / "math.yaml").read_text()
    found = []
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.yaml").write_text(text)
        mine = suite(policies=["random"], workloads=[str(tmp_path / folder / "mine.yaml")], seeds=1)
        assert run(mine, tmp_path / "r", workers=1).cells == 4
        run(mine, tmp_path / folder, workers=1)
        found.append(digests(tmp_path / folder))
    assert found[0] == found[1] == digests(tmp_path / "r")
    with pytest.raises(ConfigError, match=r"num_queries \(there: 12, now: 5\)"):
        run(mine.model_copy(update={"num_queries": 5}), tmp_path / "r")
    (tmp_path / "there" / "mine.yaml").write_text(text.replace("queries: 500", "queries: 400"))
    with pytest.raises(ConfigError, match="the content of workload"):
        run(mine, tmp_path / "r")


def test_other_versions_and_weights_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "a_users_policy.py"
    text = f"from {MINE} import Cheapest\nclass Mine(Cheapest):\n    name = 'mine'\n"
    module.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = suite(policies=["least_loaded", "a_users_policy:Mine"], seeds=1, num_queries=4)
    run(config, tmp_path / "r")
    assert run(config, tmp_path / "r").computed == 0
    of, name = LeastLoadedPolicy, "policy least_loaded:"
    for target, attribute, value, message in [
        (store, "SIMULATOR_VERSION", -1, r"other settings: simulator \(there: .*, now: -1\)"),
        (of, "version", 7, rf"{name} version \(there: 1, now: 7\)"),
        (of, "fingerprint", "other weights", rf"{name} weights \(there: "),
    ]:
        with monkeypatch.context() as patch, pytest.raises(ConfigError, match=message):
            patch.setattr(target, attribute, value, raising=False)
            run(config, tmp_path / "r")
    module.write_text(f"{text}# edited\n")
    with pytest.raises(ConfigError, match=r"policy a_users_policy:Mine: module \(there: "):
        run(config, tmp_path / "r")


def test_a_planned_router_has_the_version_of_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    before = store.policy_fingerprint(resolve_policy("planned:IO:1:own:spill"))
    monkeypatch.setattr(SpillPolicy, "version", 7)
    after = store.policy_fingerprint(resolve_policy("planned:IO:1:own:spill"))
    assert after == before | {"version": 7}
