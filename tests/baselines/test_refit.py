"""Fits of recipes to scenarios of tracks: in their budget, on what they may see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baselines import refit
from inframind_gym.configs import load_yaml_model
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.scenarios import Refits
from inframind_gym.evaluation.tracks import TrackSuite
from inframind_gym.policies import resolve_policy

SCENARIOS: dict[str, Any] = {
    "plain": {"workload": "mbpp", "budgets_s": [5, 10]},
    "other": {"workload": "math", "budgets_s": [5, 10]},
    "unfitted": {"workload": "mbpp", "budgets_s": [5, 10], "fit_on": ["math"]},
    "alone": {"workload": "mbpp", "budgets_s": [5, 10], "fit_on": ["humaneval"]},
}


@pytest.fixture
def config(tmp_path: Path) -> TrackSuite:
    (tmp_path / "limits").mkdir()
    track = {"name": "mine", "loads": [0.2, 2.0], "scenarios": SCENARIOS}
    limits = {
        "constants": "0",
        "capacity_per_min": 100,
        "work_s": 1.0,
        "reach": [0.8, 0.9],
        "informed": {0.2: 0.8, 2.0: 0.6},
    }
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(track))
    own = json.dumps({"scenarios": dict.fromkeys(SCENARIOS, limits)})
    (tmp_path / "limits" / path.name).write_text(own)
    return TrackSuite(
        name="refit", policies=("fixed_recipe",), tracks=(str(path),), num_queries=20, split="val"
    )


ROUNDS = (refit.Round(0, 5.0, 10, 1, 3), refit.Round(1, float("inf"), 20, 2, 1))


def test_a_fit_takes_the_best_recipe_within_its_budget(
    config: TrackSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [0, 7, 30, 60, 90, 120]
    every = refit.candidates(15)
    monkeypatch.setattr(refit, "candidates", lambda routes: every[chosen])
    budget = 20_000
    fitting = refit.Fitting(config, "mine", "plain", budget)
    found = fitting.recipes(ROUNDS)
    assert set(found) == set(refit.POLICIES)
    assert list(found["fixed_recipe"]) == ["mine/plain"]
    assert list(found["fixed_recipe_by_rate"]) == ["mine/plain/0.2", "mine/plain/2"]
    one = found["fixed_recipe"]["mine/plain"]
    streams = fitting.suite.in_round(ROUNDS[0])
    first = [streams.at("mine", "plain", load).arrivals for load in (0.2, 2.0)]
    assert len(chosen) * sum(first) < one.queries <= budget
    assert resolve_policy(one.policy).name == one.policy
    by_rate = [fit.score for fit in found["fixed_recipe_by_rate"].values()]
    assert one.score is not None and one.score <= np.mean(np.array(by_rate, float)) + 1e-3


def test_every_recipe_plays_as_if_alone(config: TrackSuite) -> None:
    place, of = ("mine", "plain", 0.2), refit.Round(0, 10.0, 20, 2, 1)
    actions = refit.candidates(15)[[0, 30, 120]]
    fitting = refit.Fitting(config, "mine", "plain")
    together = fitting.play(place, actions, of)
    alone = [fitting.play(place, one[None], of)[0] for one in actions]
    assert together.tolist() == alone
    assert len(set(alone)) > 1


def test_a_budget_that_allows_less_tries_fewer_recipes(config: TrackSuite, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="queries in round 1 of 2, and 50 of 100"):
        refit.Fitting(config, "mine", "plain", 100).recipes(ROUNDS)
    out, track = tmp_path / "refits.yaml", config.tracks[0]
    refit.refit_places([(track, "plain")], 6_000, out, ROUNDS)
    fits = load_yaml_model(out, Refits)
    assert 0 < max(fits.queries().values()) <= 6_000
    (recipe,) = fits.of("fixed_recipe", "mine", "plain", 0.2)
    assert recipe.startswith("fixed_recipe:")
    before = out.read_bytes()
    refit.refit_places([(track, "plain")], 6_000, out, ROUNDS)
    assert out.read_bytes() == before


def test_a_router_gets_the_plan_with_which_it_does_best(config: TrackSuite, tmp_path: Path) -> None:
    out, track = tmp_path / "refits.yaml", config.tracks[0]
    refit.refit_places([(track, "plain")], 100_000, out, routers=["jsq", "linucb"])
    fits = load_yaml_model(out, Refits)
    for router in ("jsq", "linucb"):
        (plan,) = fits.of(router, "mine", "plain", 0.2)
        assert plan.startswith("planned:") and plan.endswith(router)
        assert 0 < fits.queries()[router] <= 100_000
    assert ":own:" in fits.of("linucb", "mine", "plain", 2.0)[0]  # it learns strategies itself
    with pytest.raises(ConfigError, match="jsq needs more than 100"):
        refit.Fitting(config, "mine", "plain", 100).router("jsq")
    with pytest.raises(ConfigError, match="plans queries itself"):
        refit.Fitting(config, "mine", "plain", 100_000).router("bid_price")


def test_a_learner_is_trained_for_a_scenario_and_the_training_is_kept(
    config: TrackSuite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refit, "DECISIONS", 400)
    monkeypatch.setattr(refit, "CHOICE", ROUNDS[1])
    name, runs = "sb3_a2c", tmp_path / "runs"
    fit = refit.Fitting(config, "mine", "plain").learner(name, runs)
    (trained,) = runs.glob("sb3_a2c-*/best/config.json")
    facts = json.loads(trained.read_text())["training"]
    assert facts["config"]["env"]["budget_s"] == [5, 10]
    assert facts["config"]["turns"] == {"workload": ["mbpp"]}
    assert fit.policy in (name, f"{name}:{trained.parent}") and fit.queries > 400
    written = trained.stat().st_mtime_ns
    assert refit.Fitting(config, "mine", "plain").learner(name, runs) == fit
    assert trained.stat().st_mtime_ns == written  # it had finished
    monkeypatch.setattr(refit.Fitting, "share", lambda _, policy, of: float(policy == name))
    again = refit.Fitting(config, "mine", "plain").learner(name, runs)
    assert again.policy == name  # the shipped one


def test_a_rule_gets_the_argument_that_does_best(
    config: TrackSuite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refit.Fitting, "share", lambda _, policy, of: policy == "backpressure:100")
    out = tmp_path / "refits.yaml"
    refit.refit_places([("steady", "math")], 1000, out, routers=["backpressure"])
    assert load_yaml_model(out, Refits).of("backpressure", "steady", "math", 0.9) == (
        "backpressure:100",
    )


def test_fits_of_one_file_have_one_budget(tmp_path: Path) -> None:
    path = tmp_path / "refits.yaml"
    refit.enter_fit(path, "static=static:llama-3b:Flash:900", ["steady/math"], 1000)
    refit.enter_fit(path, "random=random,static:llama-3b:Flash:0", ["steady/mbpp"], 1000)
    found = load_yaml_model(path, Refits)
    assert found.of("static", "steady", "math", 0.9) == ("static:llama-3b:Flash",)
    assert found.of("random", "steady", "mbpp", 0.9) == ("random", "static:llama-3b:Flash")
    assert found.queries() == {"static": 900, "random": 0}
    for text, queries in (("random=random:0", 2000), ("random=random:1001", 1000)):
        with pytest.raises(ConfigError):
            refit.enter_fit(path, text, ["steady/gsm_hard"], queries)
    with pytest.raises(ConfigError, match="Did you mean 'spill'"):
        refit.enter_fit(path, "spil=spill:10", ["steady/mbpp"], 1000)
    with pytest.raises(ConfigError, match="has 2 and 3 trainings"):
        refit.enter_fit(path, "random=random,random,random:0", ["steady/gsm_hard"], 1000)
