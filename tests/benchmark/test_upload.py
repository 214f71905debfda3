"""A board on Weights & Biases and TensorBoard: its numbers, as they are read back."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from inframind_gym.benchmark.cli import app
from inframind_gym.benchmark.leaderboard import leaderboard
from inframind_gym.benchmark.report.upload import log_to_tensorboard, log_to_wandb, scores
from inframind_gym.benchmark.results import load_results
from inframind_gym.benchmark.runner import run
from inframind_gym.benchmark.suite import load_suite
from inframind_gym.benchmark.tables import leaderboard_sheets, to_markdown

RATES = (20.0, 200.0)
TINY = {"policies": ("random", "least_loaded"), "rates_per_min": RATES, "num_queries": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with two loads."""
    made = tmp_path_factory.mktemp("runs") / "routing"
    run(load_suite("starter", {"seeds": 2, **TINY}).resolve(), made)
    return made


def read(run: Path) -> Any:
    """Read the event files of a run of TensorBoard."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    return events.EventAccumulator(str(run)).Reload()


def test_scores_are_those_of_the_leaderboard(folder):
    results = load_results(folder)
    board = leaderboard(results)
    found = {(one.policy, one.metric, one.series, one.load): one for one in scores(results, board)}
    assert {series for _, _, series, _ in found} == {"mean", "by_rate", "mixed/100"}
    for row in board["rows"]:
        one = found[row["policy"], "goodput", "mixed/100", row["rate_per_min"]]
        assert (one.value, [one.low, one.high]) == (row["goodput"], row["goodput_ci95"])


def test_a_run_goes_to_wandb_with_its_report(folder, monkeypatch):
    calls: dict[str, Any] = {"logged": {}, "saved": []}
    one = SimpleNamespace(
        summary={},
        name="run",
        log=calls["logged"].update,
        save=lambda path, **_: calls["saved"].append(path),
        finish=lambda: None,
    )
    module = SimpleNamespace(
        init=lambda **given: calls.update(given) or one,
        Table=lambda columns, data: (columns, data),
        Html=lambda text, inject: text,
        plot=SimpleNamespace(line=lambda table, x, y, stroke, title: (table, x, y)),
    )
    monkeypatch.setitem(sys.modules, "wandb", module)
    results = load_results(folder)
    board = leaderboard(results)
    log_to_wandb(results, board)
    assert calls["mode"] == "offline"
    means = {row["policy"]: row["goodput"] for row in board["ranking"]}
    assert one.summary["random/goodput"] == means["random"]
    assert calls["logged"]["report"] == (folder / "report.html").read_text()
    assert calls["saved"] == [str(folder / "report.html")]
    assert len(calls["logged"]["scores"][1]) == len(list(scores(results, board)))
    (columns, data), x, y = calls["logged"]["goodput/by_rate"]
    assert columns == [x, y, "policy"] and {line[0] for line in data} == set(RATES)


def test_a_run_goes_to_tensorboard(folder):
    plugins = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    results = load_results(folder)
    board = leaderboard(results)
    for _ in range(2):  # the second takes the place of the first
        log_to_tensorboard(results, board)
    made = folder / "tensorboard"
    assert {one.name for one in made.iterdir() if one.is_dir()} == {"random", "least_loaded"}
    own = read(made / "random")
    rows = [row for row in board["rows"] if row["policy"] == "random"]
    for tag in ("goodput/by_rate", "goodput/mixed/100"):
        points = {event.step: event.tensor_proto.float_val[0] for event in own.Tensors(tag)}
        assert points == pytest.approx({row["rate_per_min"]: row["goodput"] for row in rows})
        assert len(own.Tensors(tag)) == len(RATES)
    (mean,) = own.Tensors("goodput/mean")
    assert mean.tensor_proto.float_val[0] == pytest.approx(
        next(row["goodput"] for row in board["ranking"] if row["policy"] == "random")
    )
    found = own.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    session = plugins.HParamsPluginData.FromString(found).session_start_info
    assert session.hparams["policy"].string_value == "random"
    tables = read(made)
    tags = [tag for tag in tables.Tags()["tensors"] if tag.startswith("board/")]
    texts = [tables.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in tags]
    assert texts == [to_markdown(sheet) for sheet in leaderboard_sheets(board)]
    found = tables.summary_metadata["_hparams_/experiment"].plugin_data.content
    experiment = plugins.HParamsPluginData.FromString(found).experiment
    assert experiment.metric_infos[0].name.tag == "goodput/mean"


@pytest.mark.parametrize(
    ("suite", "changes", "tag", "steps"),
    [
        (
            "standard_quick",
            {
                "policies": ("fixed_recipe",),
                "tracks": ("faults",),
                "scenarios": ("faults/deaths",),
                "loads": (0.6,),
                "num_queries": 8,
            },
            "goodput/by_load",
            [60],
        ),
        ("starter", {**TINY, "rates_per_min": (0.5, 12.0)}, "goodput/by_rate", [50, 1200]),
        ("token_budget_quick", {"policies": ("random",)}, "return/mean", [0]),
    ],
)
def test_loads_are_steps(tmp_path, suite, changes, tag, steps):
    run(load_suite(suite, {"seeds": 1, **changes}).resolve(), tmp_path / "run")
    results = load_results(tmp_path / "run")
    log_to_tensorboard(results, leaderboard(results))
    own = read(tmp_path / "run" / "tensorboard" / changes["policies"][0])
    assert [event.step for event in own.Tensors(tag)] == steps


def test_names_of_policies_are_names_of_folders(folder, tmp_path):
    pytest.importorskip("tensorboard")
    results = load_results(shutil.copytree(folder, tmp_path / "run"))
    shutil.rmtree(tmp_path / "run" / "tensorboard", ignore_errors=True)
    name = "mine:../../out"
    episodes = {
        type(cell)(name, *cell.place, cell.seed): one
        for cell, one in results.episodes.items()
        if cell.policy == "random"
    }
    results.episodes.clear()
    results.episodes.update(episodes)
    results.header["policies"] = [name]
    log_to_tensorboard(results, leaderboard(results))
    (made,) = (one for one in (tmp_path / "run" / "tensorboard").iterdir() if one.is_dir())
    assert made.name == "mine:..%2F..%2Fout"


@pytest.mark.parametrize("package", ["wandb", "tensorboard"])
def test_a_missing_package_is_named_before_the_run(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    out = tmp_path / "run"
    found = CliRunner().invoke(app, ["run", f"--{package}", "--out", str(out)])
    message = " ".join(found.stderr.split())
    assert found.exit_code == 2 and not out.exists()
    assert f"--{package} needs {package}, which is not installed" in message
    assert "[track]" in message
