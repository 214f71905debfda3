"""Distribution shifts: their suites, errors and tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from benchmarks.shifts import SHIFTS, Shifts, load_shifts, suite_of, tables, write_suites
from inframind_gym.benchmark.cells import Cell, grid
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.results import load_results
from inframind_gym.benchmark.routing.rollout import Simulator
from inframind_gym.benchmark.runner import resolve
from inframind_gym.benchmark.suite import load_suite
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workload import load_workload
from tests.benchmarks.synthetic_results import drawn, write_folder


@pytest.fixture(scope="module")
def shipped() -> Shifts:
    return load_shifts()


def test_every_shipped_shift_is_a_suite_that_runs(shipped: Shifts, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp,input,output\n0.0,1,1\n1.0,1,1\n3.0,1,1\n", encoding="utf-8")
    found = write_suites(shipped, tmp_path, trace)
    assert tuple(found) == tuple(shipped.shifts)
    suites = {name: load_suite(str(path)) for name, path in found.items()}
    assert all(suite.policies == shipped.policies for suite in suites.values())
    assert len({suite.model_dump_json(exclude={"name"}) for suite in suites.values()}) == len(found)
    assert suites["trace"].arrivals["path"] == str(trace)  # type: ignore[index]
    assert "trace" not in write_suites(shipped, tmp_path)


def test_steps_take_longer(shipped: Shifts, tmp_path: Path) -> None:
    usual = {model.alias: model.server.step for model in load_pool("b200-2gpu").models}
    slow = load_pool(suite_of(shipped, "one slower server", tmp_path).pool)
    for model in slow.models:
        factor = 2.0 if model.alias == "mistral-24b" else 1.0
        for name, value in usual[model.alias].model_dump().items():
            expected = value if name == "sparse_tokens" else factor * value
            assert getattr(model.server.step, name) == pytest.approx(expected), name


def test_models_answer_worse(shipped: Shifts, tmp_path: Path) -> None:
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


def test_a_changed_workload_meets_the_episodes_of_the_original(
    shipped: Shifts, tmp_path: Path
) -> None:
    """Wherever results lie; a loss is due to the shift, not to the draw."""
    usual = load_suite(
        shipped.suite, {"policies": shipped.policies, "seeds": shipped.seeds, "num_queries": 20}
    )
    for folder in (tmp_path / "here", tmp_path / "there"):
        weaker = resolve(suite_of(shipped, "weaker large models", folder))
        assert grid(weaker) == grid(usual)
        assert all(str(folder) in path for path in weaker.workloads)
    cells = [cell for cell in grid(usual) if cell.policy == "static"][:1]
    weaker = weaker.model_copy(update={"num_queries": 20})
    [[(_, one, _)]], [[(_, other, _)]] = (Simulator(s).run(cells) for s in (usual, weaker))
    drawn = ["query", "task", "arrival_s", "budget_s", "output_tokens"]
    assert (one[drawn] == other[drawn]).all()
    assert one["solved"].sum() > other["solved"].sum()


def test_gains_are_gone_and_nothing_else(shipped: Shifts, tmp_path: Path) -> None:
    (first, *_) = suite_of(shipped, "no assumed gains", tmp_path).workloads
    usual, without = load_workload("math"), load_workload(first)
    assert without.models == usual.models
    assert set(without.quality.strategy_gain.values()) == {0.0}  # type: ignore[union-attr]
    assert without.quality.info_gain == 0.0  # type: ignore[union-attr]
    assert without.quality.difficulty_sd == usual.quality.difficulty_sd  # type: ignore[union-attr]


def test_errors_name_what_is_wrong(shipped: Shifts, tmp_path: Path) -> None:
    file, content = tmp_path / "own.yaml", yaml.safe_load(SHIFTS.read_text(encoding="utf-8"))

    def written(**changes: object) -> Path:
        file.write_text(yaml.safe_dump(content | changes), encoding="utf-8")
        return file

    slow = {"what": "slow", "step_factors": {"mistral": 2.0}}
    with pytest.raises(BenchmarkError, match="mistral-24b"):
        suite_of(load_shifts(written(shifts={"slow": slow})), "slow", tmp_path)
    with pytest.raises(BenchmarkError, match=r"own\.yaml: ours: unknown policy"):
        load_shifts(written(ours="randon", policies=["random", "static"]))
    with pytest.raises(BenchmarkError, match="add one that is not 'static'"):
        load_shifts(written(ours="static", policies=["static", "static:some"]))


def test_tables(shipped: Shifts, tmp_path: Path) -> None:
    content = {"ours": "good", "policies": ("good", "bad", "bad:runs/other")}
    shifts = shipped.model_copy(update=content)
    solved = {"good": 0.5, "bad": 0.2, "bad:runs/other": 0.9}
    cells = [
        Cell(policy, "math", rate, "tiers", seed)
        for policy in solved
        for rate in (10.0, 100.0)
        for seed in range(3)
    ]
    suite = {"name": "bursts", "pool": "b200-2gpu", "tasks": "builtin", "arrivals": "burst"}
    more = {"policies": dict.fromkeys(solved, "1"), "suite": suite, "git": None}
    write_folder(tmp_path, cells, lambda cell: drawn(cell, solved[cell.policy], 0.1), **more)
    found = tables(shifts, {"bursts": load_results(tmp_path)})
    page = Path(__file__).resolve().parents[2] / "docs" / "robustness.md"
    assert set(re.findall(r"<!-- table: ([\w-]+)", page.read_text())) == set(found)
    assert "| `good` | `bad` | `bad_other` |" in found["goodput"]
    assert re.search(r"\| \*\*9\d\.\d±\d\.\d\*\* \|$", found["goodput"])  # the best is bold
    [_, _, lead] = found["leads"].splitlines()
    assert lead.startswith("| bursts | 2 | 0 | 0 | 2 | -")
    assert "`bad_other`" in lead
    assert found["losses"].count("| bursts | math at ") == 2
    assert found["origin"].startswith("18 episodes; a processor, 2 cores")
