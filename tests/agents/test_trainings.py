"""`inframind train`: configurations, one folder a training, trackers, errors of a command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from typer.testing import CliRunner

from agents import inframind, runs
from agents.inframind import InfraMindConfig
from inframind_gym.cli import app
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.tracker import Tracker, read_metrics
from inframind_gym.train import configurations, read_config

TINY = (
    *("env.num_queries=4", "rates_per_min=[100]", "rows_per_rate=2", "batch_episodes=4"),
    "validation.rows=1",
)


def call(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


@pytest.mark.parametrize("name", configurations())
def test_every_shipped_configuration_is_valid_and_has_one_length(name: str) -> None:
    train, config = read_config(name)
    assert callable(train) and config.algorithm
    assert ("steps" in type(config).model_fields) == (config.algorithm != "bid_price")
    if "split" in str(config):
        assert "split='test'" not in str(config)


def test_it_trains_and_logs_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["inframind", "--out", tmp_path / "run", "--steps", 1]
    given += [part for change in TINY for part in ("--set", change)]
    first = call(*given, "--track", "tensorboard", "--resume")
    assert first.exit_code == 0, first.output
    assert "holds no state to go on from" in first.stderr
    assert json.loads(first.stdout.splitlines()[-1])["epoch"] == 1
    assert list((tmp_path / "run").glob("events.out.tfevents*"))
    assert (tmp_path / "run" / "best").is_dir()
    again = call(*given)
    assert again.exit_code == 2 and "--resume" in again.output
    assert call(*given, "--resume").exit_code == 0
    monkeypatch.setattr(inframind, "Learner", Mock(side_effect=KeyboardInterrupt))
    for out, says in ((tmp_path / "run", "--resume goes on from"), (tmp_path, "no state was")):
        stopped = call(*given, "--resume", "--out", out)
        assert stopped.exit_code == 130 and f"stopped; {says}" in stopped.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bid_price", "--pool", "missing.yaml"], "no such pool file"),
        (["bid_price", "--workload", "missing.yaml"], "no such workload file"),
        (["inframnd"], "Did you mean 'inframind'"),
        (["inframind", "--workers", 2], "one process"),
        (["inframind", "--track", "wandbb"], "Did you mean 'wandb'"),
        (["bid_price", "--steps", 3], "bid_price has none; the queries of `survey` are its length"),
        (["inframind", "--set", "executor.clap=1"], "Did you mean 'clip'"),
        (["sb3_ppo", "--set", "arguments.learning_rate=-1"], "Invalid learning rate: -1"),
        (["sb3_ppo", "--out", "/proc/x"], "error: /proc/x: cannot be written"),
        (["inframind", "--set", "steps"], "KEY=VALUE"),
        (["inframind", "--steps", 3, "--set", "steps.more=1"], "steps is a value"),
    ],
    ids=str,
)
def test_errors_name_what_is_wrong(tmp_path: Path, arguments: list[Any], says: str) -> None:
    done = call(arguments[0], "--out", tmp_path, *arguments[1:])
    assert done.exit_code == 2 and says in done.output


def test_a_file_of_ones_own_and_its_changes_are_checked_together(tmp_path: Path) -> None:
    path, shipped = tmp_path / "own.yaml", configurations()["gptswarm"].read_text("utf-8")
    (pool := tmp_path / "pool.yaml").touch()
    path.write_text(shipped.replace("steps: 80\n", "").replace("b200-2gpu", pool.name))
    config = read_config(str(path), ["steps=3"])[1]
    assert (config.steps, config.env.pool) == (3, str(pool))
    path.write_text("steps: 80")
    with pytest.raises(ConfigError, match=r"own.yaml:1: algorithm: this key is required"):
        read_config(str(path))


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for module in [name for name in sys.modules if name.startswith("agents.planner")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "agents.inframind")
    with pytest.raises(ConfigError, match=r"needs torch.*\[agents\]"):
        read_config("inframind")


def test_a_folder_that_holds_another_training_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, config = runs.Run(tmp_path, seed=1), InfraMindConfig()
    (metrics := tmp_path / "metrics.jsonl").touch()  # as of one that failed before its first step
    assert first.begin(config) is None
    metrics.write_text('{"step": 1}\n')
    with pytest.raises(ConfigError, match=r"stopped before.*--resume to begin it again"):
        first.begin(config)
    saved = {"a": np.ones(1)}, {"progress": 3}
    del first.facts["config"]["env"]["metrics_poll_s"]  # of a version that did not have the key
    first.save(*saved)
    assert runs.Run(tmp_path, seed=1, resume=True).begin(config) == saved
    other = InfraMindConfig.model_validate({"executor": {"lr": 0.5}})
    for seed, asked, resume, why in (
        (1, config, False, "--resume"),
        (2, config, True, r"another seed \(1, not 2\)"),
        (1, other, True, r"config\.executor\.lr \(0\.0003, not 0\.5\)"),
    ):
        with pytest.raises(ConfigError, match=why):
            runs.Run(tmp_path, seed, resume).begin(asked)
    monkeypatch.setattr(runs, "SIMULATOR_VERSION", 0)
    with pytest.raises(ConfigError, match="another simulator_version"):
        runs.Run(tmp_path, 1, resume=True).begin(config)


def test_a_resumed_training_rewinds_its_metrics(tmp_path: Path) -> None:
    """TensorBoard forgets what is written again; a line that was cut off is left out."""
    events = pytest.importorskip("tensorboard.backend.event_processing.plugin_event_accumulator")
    with Tracker(tmp_path, {}, ["tensorboard"]) as tracker:
        for step in (1, 2, 3):
            tracker.log(step, {"charts/SPS": float(step)})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "charts')
    with Tracker(tmp_path, {}, ["tensorboard"]) as tracker:
        tracker.rewind(1)
        tracker.log(2, {"charts/SPS": 20.0})
    kept = [(line["step"], line["charts/SPS"]) for line in read_metrics(tracker.path)]
    found = events.EventAccumulator(str(tmp_path)).Reload().Tensors("charts/SPS")
    assert kept == [(e.step, e.tensor_proto.float_val[0]) for e in found] == [(1, 1.0), (2, 20.0)]
