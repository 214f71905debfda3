"""Numbers in the prose of the results page: from the scores, and from what trainings tell."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from agents.headway.config import HeadwayConfig
from agents.tracking import METRICS_FILE
from benchmarks.results_page import evidence as evidence_module
from benchmarks.results_page import trained
from benchmarks.results_page.evidence import gather
from benchmarks.results_page.page import blocks
from benchmarks.results_page.plan import PlanConfig, suites_of
from benchmarks.results_page.prose import prose
from inframind_gym.policies.checkpoint import CONFIG_FILE
from tests.benchmarks.synthetic_plan import fill_results, fluid, plan

HEADWAY = {
    "algorithm": "headway",
    "models": ["big", "small"],
    "config": {
        "survey": [{"queries": 1000}, {"queries": 500}],
        "load_sweeps": 2,
        "load_queries": 50,
        "rates_per_min": [10.0, 200.0],
        "search": {
            "most_models": 1,
            "rough_prices": [0.01],
            "rough_sweeps": 1,
            "rounds": [{"climbs": 1, "generations": 5, "sweeps": 2}],
            "candidates": 4,
            "queries": 30,
        },
    },
}


def small(folder: Path) -> PlanConfig:
    """A plan with an ablation for each question, and trainings in the folder."""
    chosen = plan(folder)
    cause = {"of": "replay", "protocols": ("sequential",), "what": "another goal"}
    cause |= {"name": "cause", "policy": "worse:{folder}"}
    entries = (*chosen.entries, chosen.entry("worse").model_copy(update=cause))
    moved = []
    for entry in entries:
        training = entry.training
        if training is not None:
            runs = f"{folder}/runs/{entry.name}/{{seed}}"
            training = training.model_copy(update={"folder": runs})
        moved.append(entry.model_copy(update={"training": training}))
    return chosen.model_copy(update={"entries": tuple(moved)})


def shown(chosen: PlanConfig, folder: Path, **leave: str) -> Any:
    fill_results(chosen, folder / "results", **leave)
    return gather(chosen, chosen.entries, suites_of(chosen, {}), folder / "results")


def test_what_trainings_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_module, "fluid_bounds", fluid)
    chosen = small(tmp_path)
    for seed, values in enumerate(([0.5, 0.24], [0.333])):
        folder = tmp_path / "runs" / "replay" / str(seed)
        folder.mkdir(parents=True)
        lines = [{"global_step": 0, "validation/violation_rate": value} for value in values]
        lines += [{"global_step": 1, "lagrange/lambda": 0.1 * seed}]
        lines += [{"global_step": 2, "lagrange/lambda": math.nan, "charts/loss": math.inf}]
        text = "\n".join(map(json.dumps, lines))
        (folder / METRICS_FILE).write_text(text + "\n")
    names = prose(shown(chosen, tmp_path))
    assert names["late"] == "24 to 33"
    assert names["multiplier"] == "0.00 to 0.10"
    assert names["queries.headway"] == "–"  # the plan has no such entry
    assert trained.notes_of(chosen.entry("mas"), ("math",)) == ()


def test_what_checkpoints_tell(tmp_path: Path) -> None:
    rough, generations = 3 * (1 + 1), 5 * 4 * (2 + 1)  # sweeps at a rate: steady, and a burst
    survey = 2 * 480 * 500  # two rounds, of a batch each
    total = survey + 2 * 2 * 50 + 2 * (rough + generations) * 30
    assert trained.queries(HEADWAY) == (total, survey / total)
    older = {**HEADWAY, "config": {"survey": [{"queries": 1}], "burst_rates_per_min": [43.0]}}
    assert trained.queries(older) is None
    assert trained.loads(HEADWAY) == "10 to 200/min"
    goal = "goodput + 0.15 solved − 5 × what is missing from 97.5% within 100 s"
    dumped = HeadwayConfig.model_validate(HEADWAY["config"]).model_dump(mode="json")
    assert trained.objective({"config": dumped}) == goal
    assert trained.loads({"config": dumped}) == "10 to 200/min, and bursts"
    inframind = {"training": {"episodes": 576_000, "config": {"rates_per_min": [10, 150]}}}
    assert trained.queries(inframind) == (576_000, 0.0)
    assert trained.loads(inframind) == "10 to 150/min"
    masrouter = {"algorithm": "masrouter", "training": {"updates": 1500, "batch_size": 16}}
    assert trained.queries(masrouter) == (24_000, 1.0)
    assert (trained.loads(masrouter), trained.objective(masrouter)) == (None, None)
    sb3 = {"training": {"episodes": 9, "environment": {"rates_per_min": [30, 60]}}}
    assert trained.loads(sb3) == "30 to 60/min"
    assert [trained.about(n) for n in (23_848_000, 69_062, 640)] == [
        "23.8 million",
        "69,000",
        "640",
    ]
    entry = small(tmp_path).entry("good")
    assert trained.notes_of(entry, ("math",)) == ()
    folder = Path(entry.folder(1, ""))
    folder.mkdir(parents=True)
    (folder / CONFIG_FILE).write_text(json.dumps(HEADWAY))
    assert trained.contents(trained.notes_of(entry, ("math",))) == [HEADWAY]


def test_what_scores_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_module, "fluid_bounds", fluid)
    evidence = shown(small(tmp_path), tmp_path)
    names = blocks(evidence)
    scores = evidence.scores["default"]
    goodput = {place: scores.draws("good", place, "goodput").value for place in scores.places}
    worst = min(goodput, key=lambda place: goodput[place])
    assert names["furthest"] == f"{worst[0].upper()} at {worst[1]:g}/min"
    assert (names["replayed_calls"], names["oblivious_calls"]) == ("3.0", "3.0")
    assert names["most_used"] == "MATH big, 100 %; MBPP big, 100 %"
    assert names["changed_effects"].startswith("`cause`: another goal.\n\n|")
    assert names["changed_effects"].count("\n") == names["effects"].count("\n") + 2
    assert names["best_rivals_published"].splitlines()[2].startswith("| MATH | `paper` **+")
    rows = names["causes"].splitlines()
    assert [row.split(" | ")[0].strip("| ") for row in rows[2:]] == [
        "`inframind`, measured elsewhere",
        "`masrouter`, measured elsewhere",
        "`mas`",
        "`replay`",
        "the same, another goal",
    ]
    assert rows[2].startswith("| `inframind`, measured elsewhere | 74.5 | 35.0 | 94.5 | – | 69.8 |")


def test_what_has_not_been_run_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_module, "fluid_bounds", fluid)
    names = prose(shown(small(tmp_path), tmp_path, leave_out="good"))
    assert names["furthest"] == "–"
    assert names["late"] == names["multiplier"] == "–"
