"""The command line of the trainings, and the shipped configurations."""

import json
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from agents.runs import Tracker, read_metrics
from agents.train import CONFIGS, _algorithm, app, read_config
from inframind_gym.errors import ConfigError

TINY = [
    "env.num_queries=4",
    "rates_per_min=[100]",
    "rows_per_rate=2",
    "batch_episodes=4",
    "epochs=1",
    "validation.rows=1",
]


def call(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_configuration_is_valid(path):
    train, config = read_config(path.stem, [])
    assert callable(train) and config.algorithm


def test_it_trains_and_logs_and_resumes(tmp_path):
    out = tmp_path / "run"
    sets = [part for change in TINY for part in ("--set", change)]
    first = call("--config", "inframind", "--out", out, "--tensorboard", *sets)
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout.splitlines()[-1])["epoch"] == 1
    assert list(out.glob("events.out.tfevents*")) and (out / "best").is_dir()
    again = call("--config", "inframind", "--out", out, *sets)
    assert again.exit_code == 2 and "--resume" in again.output
    assert call("--config", "inframind", "--out", out, "--resume", *sets).exit_code == 0
    workers = call("--config", "inframind", "--out", out, "--workers", 2, *sets)
    assert workers.exit_code == 2 and "inframind trains without it" in workers.output


@pytest.mark.parametrize(("option", "what"), [("--pool", "pool"), ("--workload", "workload")])
def test_the_pool_and_the_workload_are_options(tmp_path, option, what):
    done = call("--config", "bid_price", "--out", tmp_path, option, "missing.yaml")
    assert done.exit_code == 2 and f"no such {what} file" in done.output


def test_keys_can_be_changed_and_are_checked():
    _, config = read_config("inframind", ["executor.lr=1e-4", "env.workload=math"])
    assert config.executor.lr == 1e-4 and config.env.workload == "math"
    with pytest.raises(ConfigError, match="Did you mean 'clip'"):
        read_config("inframind", ["executor.clap=1"])
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        read_config("inframind", ["epochs"])
    with pytest.raises(ConfigError, match="epochs is a value"):
        read_config("inframind", ["epochs=3", "epochs.more=1"])


def test_unknown_names_are_errors(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'inframind'"):
        read_config("inframnd", [])
    (tmp_path / "mine.yaml").write_text("algorithm: nothing\n")
    with pytest.raises(ConfigError, match=r"no agents/nothing\.py"):
        read_config(str(tmp_path / "mine.yaml"), [])
    (tmp_path / "mine.yaml").write_text("algorithm: lagrangian\n")
    with pytest.raises(ConfigError, match=r"agents/lagrangian\.py trains nothing"):
        read_config(str(tmp_path / "mine.yaml"), [])


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch):
    missing = Mock(side_effect=ModuleNotFoundError(name="torch"))
    monkeypatch.setattr("agents.train.importlib.import_module", missing)
    with pytest.raises(
        ConfigError, match=r"training inframind needs torch, .* `pip install .*\[agen"
    ):
        _algorithm("inframind", CONFIGS / "inframind.yaml")


def test_a_resumed_training_goes_on_with_its_run_of_wandb(tmp_path, monkeypatch):
    asked = []
    module = SimpleNamespace(init=lambda **options: asked.append(options) or Mock())
    monkeypatch.setitem(sys.modules, "wandb", module)
    for _ in range(2):
        Tracker(tmp_path, {}, wandb=True).close()
    Tracker(tmp_path / "other", {}, wandb=True).close()
    assert asked[0]["id"] == asked[1]["id"] != asked[2]["id"]
    assert {options["resume"] for options in asked} == {"allow"}
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"wandb, which is not installed.*\[track\]"):
        Tracker(tmp_path, {}, wandb=True)


def test_a_resumed_training_rewinds_its_metrics(tmp_path):
    """TensorBoard forgets what is written again; a line that was cut off is left out."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with Tracker(tmp_path, {}, tensorboard=True) as tracker:
        for step in (1, 2, 3):
            tracker.log(step, {"charts/SPS": float(step)})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"global_step": 4, "charts')
    with Tracker(tmp_path, {}, tensorboard=True) as tracker:
        tracker.rewind(1)
        tracker.log(2, {"charts/SPS": 20.0})
    kept = [(line["global_step"], line["charts/SPS"]) for line in read_metrics(tracker.path)]
    found = events.EventAccumulator(str(tmp_path)).Reload().Scalars("charts/SPS")
    assert kept == [(e.step, e.value) for e in found] == [(1, 1.0), (2, 20.0)]
