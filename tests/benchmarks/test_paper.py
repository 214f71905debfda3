"""Figures of plays, verdicts, and the page of the paper's claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks import paper
from benchmarks.paper import Job, collect, finish, jobs, of_calls, of_queries, read_record
from benchmarks.paper_page import CANNOT, TEXTS, VERDICTS, Check, Page, refresh_page, verdict_of
from inframind_gym.simulator import SIMULATOR_VERSION
from inframind_gym.simulator.workflow.state import CALL

ROOT = Path(__file__).resolve().parents[2]


def test_the_committed_page_is_up_to_date_with_the_record() -> None:
    assert not refresh_page(read_record(), ROOT / "docs", check=True), "python -m benchmarks paper"


def test_every_claim_has_a_row_and_every_text_a_claim() -> None:
    texts = yaml.safe_load(TEXTS.read_text("utf-8"))["claims"]
    assert texts.keys() == Page(read_record()).claims().keys()
    assert {of["verdict"] for of in texts.values()} <= {"", CANNOT, *VERDICTS}


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([[1.0, 1.1, 0.9]], "holds"),
        ([[1.0, 1.1, 0.9], [-1.0, 1.0, 0.1]], "holds in part"),
        ([[-1.0, 1.0, 0.1]], "does not hold here"),  # the interval includes 0
        ([[-1.0, -1.1, -0.9]], "does not hold here"),
        ([], CANNOT),
    ],
)
def test_a_verdict_is_no_stronger_than_its_intervals(differences: Any, verdict: str) -> None:
    assert verdict_of([Check("", "", np.array(d)) for d in differences]) == verdict


def test_waiting_is_avoidable_while_a_server_is_empty() -> None:
    calls = np.zeros(3, CALL)
    calls["model"] = 0, 0, 1
    calls["submit_s"] = 0.0, 0.0, 4.0
    calls["admitted_s"] = 0.0, 6.0, 4.0
    calls["finish_s"] = 6.0, 20.0, 8.0
    found = of_calls(calls, np.array([1, 1]), until_s=10.0)
    # One call waits for 6 of 10 s; the other server is empty in the first 4 of them.
    assert found == {"waiting": 0.6, "avoidable": 0.4, "busy": 0.7, "empty": 0.3}


def test_tokens_of_late_workflows_are_wasted() -> None:
    columns = {
        "latency_s": np.array([5.0, 20.0]), "budget_s": np.array([10.0, 10.0]),
        "prompt_tokens": np.array([10, 10]), "output_tokens": np.array([20, 50]),
        "solved": np.array([1, 1]), "cost": np.array([0.5, 2.0]), "num_agents": np.array([1, 2]),
        "model": np.array([[0, -1], [0, 4]]), "strategy": np.array([[2, -1], [2, 0]]),
    }  # fmt: skip
    found = of_queries(columns)
    assert (found["accuracy"], found["goodput"], found["slo_own"]) == (1.0, 0.5, 0.5)
    assert found["wasted"] == pytest.approx(60 / 90, rel=1e-4)
    assert found["joint"][0] == [0.0, 0.0, 0.6667] and found["joint"][4] == [0.3333, 0.0, 0.0]


def test_a_job_is_done_once_and_collected(tmp_path: Path, monkeypatch: Any) -> None:
    assert len({job.key for job in jobs()}) == len(list(jobs()))
    job = next(job for job in jobs() if job.policy == "static_mix" and "#" in job.workload)
    assert finish(job, tmp_path) and not finish(job, tmp_path)
    figures = collect(tmp_path, tmp_path / "record.json.gz")
    assert figures == read_record(tmp_path / "record.json.gz")
    assert [cell["rate"] for cell in figures[job.key]["cells"]] == [10.0] * 3 + [100.0] * 3
    old = {"simulator": SIMULATOR_VERSION - 1}
    (tmp_path / job.key / "figures.json").write_text(json.dumps(old))
    assert Job("training", "inframind", "math").key == "trainings/inframind/math/seed0"
    (tmp_path / "record.json.gz").unlink()
    assert collect(tmp_path, tmp_path / "record.json.gz") == {}
    monkeypatch.setattr(paper, "play", lambda job, runs: {"cells": []})
    assert finish(job, tmp_path) and not finish(job, tmp_path)  # of an earlier simulator: again
