"""Circumstances: what they change, what they refuse, and the page."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from benchmarks.robustness import produce as produce_module
from benchmarks.robustness.circumstances import (
    CIRCUMSTANCES,
    Circumstances,
    chosen,
    load_circumstances,
    suite_of,
)
from inframind_gym.benchmark.cells import grid
from inframind_gym.benchmark.cli import app
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.routing.rollout import Simulator
from inframind_gym.benchmark.routing.suite import RoutingCell
from inframind_gym.benchmark.suite import load_suite
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workload import load_workload
from tests.benchmark.synthetic_results import drawn, write_folder


@pytest.fixture(scope="module")
def shipped() -> Circumstances:
    return load_circumstances(CIRCUMSTANCES)


def test_every_shipped_circumstance_is_a_suite_that_runs(
    shipped: Circumstances, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp,input,output\n0.0,1,1\n1.0,1,1\n3.0,1,1\n", encoding="utf-8")
    names = chosen(shipped, None, traced=True)
    assert names == tuple(shipped.circumstances)
    suites = {name: suite_of(shipped, name, tmp_path, trace).resolve() for name in names}
    assert all(suite.policies == shipped.policies for suite in suites.values())
    assert len({suite.model_dump_json() for suite in suites.values()}) == len(names)
    assert suites["trace"].arrivals["path"] == str(trace)  # type: ignore[index]


def test_steps_take_longer(shipped: Circumstances, tmp_path: Path) -> None:
    usual = {model.alias: model.server.step for model in load_pool("b200-2gpu").models}
    slow = load_pool(suite_of(shipped, "one slower server", tmp_path).pool)
    for model in slow.models:
        factor = 2.0 if model.alias == "mistral-24b" else 1.0
        for name, value in usual[model.alias].model_dump().items():
            expected = value if name == "sparse_tokens" else factor * value
            assert getattr(model.server.step, name) == pytest.approx(expected), name


def test_models_answer_worse(shipped: Circumstances, tmp_path: Path) -> None:
    for path in suite_of(shipped, "weaker large models", tmp_path).workloads:
        usual, weaker = load_workload(Path(path).stem), load_workload(path)
        offsets = {
            alias: round(weaker.models[alias].ability - model.ability, 9)  # type: ignore[index]
            for alias, model in usual.models.items()  # type: ignore[union-attr]
        }
        assert offsets == {
            "deepseek-32b": -0.5,
            "mistral-24b": -0.5,
            "qwen-14b": -0.5,
            "llama-8b": 0.0,
            "llama-3b": 0.0,
        }
        assert weaker.quality == usual.quality


def test_a_changed_workload_meets_the_sweeps_of_the_original(
    shipped: Circumstances, tmp_path: Path
) -> None:
    """Wherever results lie; what is lost is lost by the circumstance, not by the draw."""
    usual = load_suite(
        shipped.suite, {"policies": shipped.policies, "seeds": shipped.seeds, "num_queries": 20}
    )
    for folder in (tmp_path / "here", tmp_path / "there"):
        weaker = suite_of(shipped, "weaker large models", folder).resolve()
        assert grid(weaker) == grid(usual)
        assert all(str(folder) in path for path in weaker.workloads)
    cells = [cell for cell in grid(usual) if cell.policy == "static"][:1]
    weaker = weaker.model_copy(update={"num_queries": 20})
    [[(_, one, _)]], [[(_, other, _)]] = (Simulator(s).run(cells) for s in (usual, weaker))
    drawn = ["query", "task", "arrival_s", "budget_s", "output_tokens"]
    assert (one[drawn] == other[drawn]).all()
    assert one["solved"].sum() > other["solved"].sum()


def test_gains_are_gone_and_nothing_else(shipped: Circumstances, tmp_path: Path) -> None:
    (first, *_) = suite_of(shipped, "no assumed gains", tmp_path).workloads
    usual, without = load_workload("math"), load_workload(first)
    assert without.models == usual.models
    assert set(without.quality.strategy_gain.values()) == {0.0}  # type: ignore[union-attr]
    assert without.quality.info_gain == 0.0  # type: ignore[union-attr]
    assert without.quality.difficulty_sd == usual.quality.difficulty_sd  # type: ignore[union-attr]


def test_what_is_refused(shipped: Circumstances, tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="--trace"):
        chosen(shipped, ["trace"], traced=False)
    with pytest.raises(BenchmarkError, match=r"circumstance 'burst'.*bursts"):
        chosen(shipped, ["burst"], traced=False)
    assert "trace" not in chosen(shipped, None, traced=False)
    content = yaml.safe_load(CIRCUMSTANCES.read_text(encoding="utf-8"))
    content["circumstances"]["one slower server"]["step_factors"] = {"mistral": 2.0}
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(BenchmarkError, match="mistral-24b"):
        suite_of(load_circumstances(file), "one slower server", tmp_path)
    with pytest.raises(BenchmarkError, match="ours"):
        load_circumstances(CIRCUMSTANCES, ["random"])
    with pytest.raises(BenchmarkError, match="add one that is not 'headway'"):
        load_circumstances(CIRCUMSTANCES, ["headway", "headway:some/checkpoint"])


def test_the_page(tmp_path: Path) -> None:
    content = yaml.safe_load(CIRCUMSTANCES.read_text(encoding="utf-8"))
    content |= {"ours": "budget_greedy", "policies": ["budget_greedy", "random"], "seeds": 2}
    small = {"workloads": ["math"], "rates_per_min": [100], "num_queries": 20}
    content["circumstances"] = {
        name: {**content["circumstances"][name], "suite": {**own, **small}}
        for name, own in (
            ("bursts", {"arrivals": "burst"}),
            ("strongest model down", {"down_models": ["deepseek-32b"]}),
        )
    }
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    where = ["--folder", str(tmp_path / "results"), "--out", str(tmp_path / "docs")]
    arguments = ["robustness", "--circumstances", str(file), *where, "--workers", "1"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    page = (tmp_path / "docs" / "robustness.md").read_text(encoding="utf-8")
    assert "{{" not in page
    assert page.count("| bursts |") >= 3
    assert "| 1 | " in page
    assert "`random`" in page
    again = CliRunner().invoke(app, arguments)  # finds what is there
    assert again.exit_code == 0
    assert "0 to go" in again.stderr
    assert (tmp_path / "docs" / "robustness.md").read_text(encoding="utf-8") == page


def test_results_of_other_code_are_named_before_anything_is_played(tmp_path: Path) -> None:
    content = yaml.safe_load(CIRCUMSTANCES.read_text(encoding="utf-8"))
    content |= {"ours": "budget_greedy", "policies": ["budget_greedy", "random"], "seeds": 2}
    small = {"workloads": ["math"], "rates_per_min": [100], "num_queries": 5}
    content["circumstances"] = {
        name: {"what": name, "suite": {**small, "num_queries": number}}
        for number, name in enumerate(("first one", "second one", "third one"), start=5)
    }
    file, results = tmp_path / "own.yaml", tmp_path / "results"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    where = ["--folder", str(results), "--out", str(tmp_path / "docs"), "--workers", "1"]
    arguments = ["robustness", "--circumstances", str(file), *where]
    assert CliRunner().invoke(app, [*arguments, "--only", "second one,third one"]).exit_code == 0
    header = results / "second-one" / "run.json"
    written = json.loads(header.read_text())
    written["settings"]["code of inframind_gym"] = "older"
    header.write_text(json.dumps(written))
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2
    assert "1 of 3 results folders are of other code" in refused.stderr
    assert f"{results / 'second-one'}: code of inframind_gym (there: 'older'" in refused.stderr
    assert "--redo" in refused.stderr and "--folder" in refused.stderr
    assert not (results / "first-one").exists()
    again = CliRunner().invoke(app, [*arguments, "--redo"])
    assert again.exit_code == 0, again.stderr
    assert "second-one was made by other code or settings: made anew" in again.stderr
    assert "third-one: 4 of 4 cells are there" in again.stderr
    assert json.loads(header.read_text())["settings"]["code of inframind_gym"] != "older"


def test_redo_leaves_alone_what_another_run_is_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("nothing is to be played")

    monkeypatch.setattr(produce_module, "run", never)
    content = yaml.safe_load(CIRCUMSTANCES.read_text(encoding="utf-8"))
    content |= {"ours": "budget_greedy", "policies": ["budget_greedy", "random"], "seeds": 2}
    content["circumstances"] = {"only one": {"what": "one", "suite": {"workloads": ["math"]}}}
    file, folder = tmp_path / "own.yaml", tmp_path / "results" / "only-one"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    cells = [RoutingCell("good", "math", 10.0, 30.0, seed) for seed in range(2)]
    write_folder(folder, cells, lambda cell: drawn(cell, 0.7, 1.0))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BenchmarkError, match="only-one is in use by another run"):
            produce_module.produce(
                load_circumstances(file),
                ["only one"],
                folder.parent,
                trace=None,
                workers=1,
                redo=True,
            )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
