"""Figures of speed, their tables, and the growth with size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.speed import measure as measuring
from inframind_gym.benchmark.speed import works
from inframind_gym.benchmark.speed.figures import FIGURES, Figure
from inframind_gym.benchmark.speed.measure import chosen_figures, ratios_of, speed_sheet
from inframind_gym.benchmark.speed.scaling import AXES, scaling_sheet, sizes
from inframind_gym.benchmark.speed.sides import Job

NOWHERE = {"python": "3", "packages": {}, "git": None, "machine": {"processor": "x"}}


def test_every_figure_and_size_names_work_with_its_arguments(tmp_path: Path) -> None:
    jobs = [figure.job for figure in chosen_figures(None, Path(__file__)).values()]
    points = list(sizes(tmp_path))
    assert {axis for axis, _, _ in points} == set(AXES)
    for job in [*jobs, *(point.job for point in points)]:
        made = works.WORKS[job.work]
        needed = made.__code__.co_varnames[: made.__code__.co_argcount]
        assert set(job.arguments) <= set(needed)
        assert set(needed) - set(job.arguments) <= {"cached"}
        assert json.loads(json.dumps(job.arguments)) == job.arguments


def test_the_compilation_is_measured_on_request_alone() -> None:
    assert "compile_s" not in chosen_figures(None, None)
    assert list(chosen_figures(["compile_s"], None)) == ["compile_s"]


def test_a_trace_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"needs --trace FILE: .*AzurePublicDataset"):
        chosen_figures(["trace_x_real_time"], None)
    with pytest.raises(BenchmarkError, match=r"there is no file .*none\.csv"):
        chosen_figures(None, tmp_path / "none.csv")
    assert not any(key.startswith("trace") for key in chosen_figures(None, None))


def test_seconds_and_rates() -> None:
    seconds = Figure("start", "s", Job("process", {}), 2.0)
    rate = Figure("steps", "steps/s", Job("single", {}), 100.0)
    assert (seconds.value(0.5), rate.value(0.5)) == (0.5, 2.0)
    assert seconds.verdict(1.9) == ["<= 2", "yes"]
    assert rate.verdict(99.0) == [">= 100", "NO"]
    assert rate.text(1234.0) == "1,234 steps/s"


def test_a_ratio_is_of_neighbours_in_time() -> None:
    # The machine gets twice as slow, and half as slow again; each pair meets one state of it.
    found = ratios_of([1.0, 2.0, 0.5], [1.5, 3.0, 1.0])
    assert found == {"median": 1.5, "least": 1.5, "most": 2.0}


def test_tables_show_targets_or_ratios() -> None:
    found = {"kernel_rps": 1e6, "targets": {"kernel_rps": 2e6}, "repeats": 3, **NOWHERE}
    assert speed_sheet(found).rows == [
        [FIGURES["kernel_rps"].what, "1,000,000 requests/s", ">= 2,000,000", "NO"]
    ]
    ratio = {"median": 2.0, "least": 1.5, "most": 2.25}
    other = {"ref": "v1", "commit": "c" * 40, "there": {"kernel_rps": 5e5}}
    sheet = speed_sheet(found | {"against": {**other, "ratios": {"kernel_rps": ratio}}})
    assert sheet.rows[0][2:] == ["500,000 requests/s", "2.00", "1.50 to 2.25"]
    assert "v1" in sheet.headings


def test_growth_is_counted_from_the_first_point_of_an_axis() -> None:
    points = [
        {"axis": "envs", "size": 64, "cost_us": 2.0},
        {"axis": "envs", "size": 256, "cost_us": 3.0},
        {"axis": "models", "size": 5, "cost_us": 1.0},
        {"axis": "models", "size": 64, "error": "too many"},
    ]
    rows = scaling_sheet({"points": points, "repeats": 3, **NOWHERE}).rows
    assert rows[1] == ["", "256", "3.00", "1.50", "2.0"]
    assert rows[2][:2] == [AXES["models"], "5"]
    assert rows[3][2] == "not possible"


def test_figures_that_another_revision_lacks_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> list[list[float]]:
        raise measuring.SideError("no such thing")

    monkeypatch.setattr(measuring, "checkout", lambda ref: ("c" * 40, Path("unused")))
    monkeypatch.setattr(measuring, "Side", lambda *_: _Closed())
    monkeypatch.setattr(measuring, "costs_s", refuse)
    found = measuring.measure(["import_s"], against="v1")
    assert found["against"]["ratios"] == {}
    assert "no such thing" in capsys.readouterr().err
    with pytest.raises(BenchmarkError, match="no such thing"):
        measuring.measure(["import_s"])


class _Closed:
    def __enter__(self) -> _Closed:
        return self

    def __exit__(self, *_: object) -> None:
        pass
