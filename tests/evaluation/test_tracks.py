"""Tracks: what is scored of a stream, that it is the same however it is run, and scores by hand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inframind_gym.configs import list_configs
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation import scenarios
from inframind_gym.evaluation import track_board as score
from inframind_gym.evaluation.board import leaderboard, leaderboard_tables, load_results
from inframind_gym.evaluation.cells import Cell
from inframind_gym.evaluation.queries import Window, sum_of_earlier, time_with_an_empty_server
from inframind_gym.evaluation.runner import run
from inframind_gym.evaluation.stats import Estimate
from inframind_gym.evaluation.store import read_cells
from inframind_gym.evaluation.suite import load_suite
from inframind_gym.evaluation.track_board import SCORE
from inframind_gym.evaluation.tracks import TrackSuite
from inframind_gym.policies import resolve_policy
from inframind_gym.simulator.workflow.state import CALL
from inframind_gym.simulator.workflow.topology import TOPOLOGIES

TRACK: dict[str, Any] = {
    "name": "mine",
    "loads": [0.5, 1.5],
    "scenarios": {
        "plain": {"workload": "mbpp", "budgets_s": [5, 10, 20]},
        "shared": {
            "workload": "mixed",
            "tenants": {
                "chat": {"budget_s": 10, "share": 0.25, "weight": 3},
                "batch": {"budget_s": 20, "share": 0.75},
            },
        },
    },
}
LIMITS: dict[str, Any] = {
    "constants": "0",
    "capacity_per_min": 200,
    "work_s": 1.0,
    "informed": {0.5: 0.8, 1.5: 0.6},
}


def write(folder: Path, **changes: Any) -> str:
    """Write a track and its limits; returns its path."""
    track = {**TRACK, **changes}
    (folder / "limits").mkdir(exist_ok=True)
    path = folder / f"{track['name']}.yaml"
    path.write_text(json.dumps(track))
    groups = {"plain": [0.7, 0.8, 0.9], "shared": [0.8, 0.9], "copies": [0.8, 0.9]}
    limits = {name: {**LIMITS, "reach": groups.get(name, [1.0])} for name in track["scenarios"]}
    (folder / "limits" / path.name).write_text(json.dumps({"scenarios": limits}))
    return str(path)


def suite(folder: Path, **changes: Any) -> TrackSuite:
    content = {
        "name": "small",
        "tracks": changes.get("tracks") or [write(folder)],
        "policies": ["random", "least_loaded"],
        "seeds": 2,
        "num_queries": 40,
    }
    return TrackSuite.model_validate({**content, **changes}).resolve()


def columns_by_cell(folder: Path) -> dict[Cell, dict[str, Any]]:
    found = (cell for cell in read_cells(folder) if cell is not None)
    return {cell.cell: cell.columns for cell in found}


# The window.


def test_the_window_begins_after_the_longest_budget_and_ends_one_after_the_last_arrival() -> None:
    arrival_s = np.array([[1.0, 4.0, 6.0, 7.0, 9.0, 30.0], [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]])
    window = Window.steady(arrival_s, 2, 5.0)
    assert window.first.tolist() == [2, 0]
    assert window.until_s.tolist() == [12.0, 12.0]
    done = np.zeros((2, 2), [("query", "i4"), ("x", "i4")])
    records = np.array([(1, 1), (3, 2), (4, 3), (1, 4)], done.dtype)
    assert window.keep(done, np.array([0, 0, 0, 1]), records) == 2
    assert done["x"].tolist() == [[0, 2], [0, 4]] and window.left.tolist() == [1, 1]
    assert window.over(np.array([11.9, 12.0])).tolist() == [False, True]
    window.keep(done, np.array([0]), np.array([(2, 5)], done.dtype))
    assert window.over(np.zeros(2)).tolist() == [True, False]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small track, played by two policies."""
    folder = tmp_path_factory.mktemp("tracks")
    run(suite(folder), folder / "results")
    return folder


def test_scored_queries_are_those_of_steady_load(played: Path) -> None:
    config = suite(played)
    for cell, columns in columns_by_cell(played / "results").items():
        longest_s = config.at(*cell.place).longest_s
        assert len(columns["query"]) == 40
        assert (np.diff(columns["query"]) == 1).all() and columns["query"][0] > 0
        assert columns["arrival_s"][0] >= longest_s
        none = columns["calls"] == 0  # unanswered: unsolved, and as late as can be
        assert (columns["latency_s"] <= longest_s).all()
        assert (columns["latency_s"][none] == longest_s).all()
        assert not columns["solved"][none].any() and (columns["model"][none] == -1).all()


def test_a_policy_that_cannot_play_a_scenario_answers_nothing_there(
    played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copies = {"workload": "copies", "pool": "copies-5gpu", "budgets_s": [5, 10]}
    track = write(tmp_path, scenarios={"copies": copies, "plain": TRACK["scenarios"]["plain"]})
    policies = ["fixed_recipe:IO:1:llama-3b:Flash", "least_loaded"]
    changes: dict[str, Any] = {"tracks": [track], "loads": [0.5], "num_queries": 20}
    changes |= {"policies": policies}
    run(suite(tmp_path, **changes), tmp_path / "results", workers=2)
    assert "Its queries of mine/copies stay unanswered." in capsys.readouterr().err
    found = columns_by_cell(tmp_path / "results")
    answered = {
        (cell.policy.split(":")[0], cell.place[1]): bool((columns["calls"] > 0).any())
        for cell, columns in found.items()
    }
    assert answered == {
        ("fixed_recipe", "copies"): False,
        ("fixed_recipe", "plain"): True,
        ("least_loaded", "copies"): True,
        ("least_loaded", "plain"): True,
    }
    alone = suite(tmp_path, **changes | {"scenarios": ["copies"], "policies": policies[:1]})
    with pytest.raises(ConfigError, match="no policy can play"):
        run(alone, tmp_path / "none")


@pytest.mark.parametrize("kind", ["tracks", "routing"])
def test_in_the_division_route_every_query_has_one_agent(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = ["moa", "least_loaded", "adaptive", "fixed_recipe", "masrouter"]
    small = {"policies": policies, "seeds": 1, "num_queries": 10, "division": "route"}
    if kind == "tracks":
        config: Any = suite(tmp_path, loads=[0.5], **small)
    else:
        config = load_suite("starter", {**small, "rates_per_min": [50]}).resolve()
    run(config, tmp_path / "results")
    found = columns_by_cell(tmp_path / "results")
    assert {cell.policy for cell in found} == {"moa", "least_loaded", "adaptive"}
    for cell, columns in found.items():
        answered = columns["calls"] > 0
        assert answered.any() or cell.policy == "moa"  # all of it on the largest model
        assert (columns["num_nodes"][answered] == 1).all()
        assert (columns["topology"][answered] == TOPOLOGIES.index("IO")).all()
    notes = capsys.readouterr().err  # of those that plan and cannot be held to one agent
    assert notes.count("policy fixed_recipe:") == notes.count("policy masrouter:") == 1
    assert "stay unanswered" not in notes
    board = leaderboard(load_results(tmp_path / "results"), num_resamples=50)
    assert board["left_out"].keys() == {"fixed_recipe", "masrouter"}
    assert "division route" in leaderboard_tables(board)[0].title
    assert json.loads((tmp_path / "results" / "run.json").read_text())["division"] == "route"
    mixed = config.model_copy(update={"division": "orchestrate"})
    with pytest.raises(ConfigError, match="other settings: division"):
        run(mixed, tmp_path / "results")


# What a cell scores.


def sums_of(**columns: Any) -> dict[str, float]:
    n = len(columns["solved"])
    names = "cost prompt_tokens output_tokens truncated_calls cap_s worst_counts ended_calls wait_s"
    plain = dict.fromkeys(f"{names} generated_tokens avoidable_s busy_s offered_s".split(), 0)
    content = {
        **{name: np.full(n, value, float) for name, value in plain.items()},
        "calls": np.ones(n),
        "value": np.ones(n),
        "reach": np.ones(n),
        "group": np.zeros(n, np.int8),
        "work_s": np.ones(n),
        "latency_s": np.ones(n),
        "budget_s": np.full(n, 2.0),
        "model": np.zeros((n, 1), np.int8),
        "strategy": np.zeros((n, 1), np.int8),
        "topology": np.zeros(n, np.int8),
        **{name: np.asarray(value) for name, value in columns.items()},
    }
    layout = TrackSuite.layout({"names": {"models": "m", "strategies": "s", "topologies": "t"}})
    found = layout.evaluate(layout.table(content).sum(axis=0))
    return {name: float(value) for name, value in found.items()}


WORST = {"solved": [1, 0, 1, 1], "group": [0, 0, 1, 1], "reach": [0.5, 0.5, 0.8, 0.8]}
WORK = {"solved": [1, 1, 1, 0], "work_s": [2.0, 4.0, 1.0, 1.0]}


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (  # tenants count by weight
            {"solved": [1, 1, 0, 0], "value": [3.0, 1.0, 1.0, 1.0], "group": [0, 1, 1, 1]},
            {"goodput": 0.5, SCORE: 4 / 6, "weighted_goodput": 4 / 6, "worst_goodput": 1 / 3},
        ),
        # the worst budget counts over what is possible within it
        ({**WORST, "worst_counts": [1] * 4}, {SCORE: 0.5 / 0.5, "worst_goodput": 0.5}),
        (  # waits are weighed by calls, slots by time; tokens of late queries are wasted
            {
                "solved": [1, 1, 0], "latency_s": [1.0, 3.0, 2.0], "calls": [1, 1, 0],
                "ended_calls": [1, 2, 1], "wait_s": [0.0, 6.0, 2.0],
                "generated_tokens": [50, 30, 20], "avoidable_s": [0.0, 6.0, 0.0],
                "busy_s": [1.0, 2.0, 0.0], "offered_s": [3.0, 8.0, 1.0],
            },
            {"wait_s": 2.0, "wasted_share": 0.5, "avoidable_s": 1.5, "idle_share": 0.75},
        ),
        # what is above the cap pays for a part of the queries
        ({**WORK, "cap_s": [1.0] * 4}, {SCORE: 0.75 * 1.0 / 2.0, "work_s_per_query": 2.0}),
        ({**WORK, "cap_s": [3.0] * 4}, {SCORE: 0.75}),
        (WORK, {SCORE: 0.75}),
    ],
)  # fmt: skip
def test_sums_by_hand(columns: dict[str, Any], expected: dict[str, float]) -> None:
    found = sums_of(**columns)
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_waiting_beside_an_empty_server_was_avoidable() -> None:
    """Server 0 runs one call in 0..4 s while a second waits; server 1 has a call in 1..2 s."""
    calls = np.zeros(3, CALL)
    calls["submit_s"] = [0.0, 0.0, 1.0]
    calls["admitted_s"] = [0.0, 4.0, 1.0]
    calls["finish_s"] = [4.0, 6.0, 2.0]
    calls["model"] = [0, 0, 1]
    at_s, empty_s = time_with_an_empty_server(calls, 2)
    assert np.interp([0.0, 1.0, 2.0, 4.0], at_s, empty_s).tolist() == [0.0, 1.0, 1.0, 3.0]
    assert sum_of_earlier(calls["finish_s"], np.array([0.0, 3.0, 9.0])).tolist() == [0, 8, 12]


# Scores of tracks.


def test_the_interquartile_mean_by_hand() -> None:
    assert score.iqm(np.array([9.0, 1.0, 2.0, 3.0])) == pytest.approx(2.5)
    assert score.iqm(np.array([5.0])) == 5.0
    # of six, the second and the fifth count by half
    values = np.array([[6.0, 5, 4, 3, 2, 1], [0, 0, 0, 0, 0, 60]])
    np.testing.assert_allclose(score.iqm(values), [(1.0 + 3 + 4 + 2.5) / 3, 0.0])
    assert {name: of(values).tolist() for name, of in score.AGGREGATES.items()} == {
        SCORE: score.iqm(values).tolist(), "mean": [3.5, 10.0], "worst": [1.0, 0.0]
    }  # fmt: skip


def test_a_policy_is_ahead_if_it_is_above_in_three_of_four_tracks_and_below_in_none() -> None:
    values = {
        "a": [0.6] * 8,
        "b": [0.5] * 6 + [0.6] * 2,
        "c": [0.5] * 5 + [0.6] * 3,
        "d": [0.5] * 7 + [0.7],
        "bound": [0.8] * 8,
    }  # of tracks of one cell each, with the same noise for all policies
    noise = np.random.default_rng(0).normal(0.0, 0.01, (200, 1))

    def of(value: float) -> Estimate:
        return Estimate((SCORE,), np.array([value]), value + noise, np.array([[value]]), (5,))

    at = {"scenario": "s", "load": 0.9, "informed": 0.8, "cap_s": None, "stale": False}
    places = {f"t{i}": {"track": f"t{i}", **at} for i in range(8)}
    estimates = {
        policy: {(track, "s", 0.9): of(one) for track, one in zip(places, own, strict=True)}
        for policy, own in values.items()
    }
    board = score.track_scores({"places": places, "fits": {}, "bounds": ["bound"]}, estimates)
    pairs = {(row["policy"], row["other"]): row for row in board["pairs"]}
    assert pairs["a", "b"]["ahead"] and not pairs["b", "a"]["ahead"]
    assert len(pairs["a", "c"]["above"]) == 5 and not pairs["a", "c"]["ahead"]
    assert pairs["a", "d"]["below"] == ["t7"] and not pairs["a", "d"]["ahead"]
    assert {row["policy"] for row in board["tracks"]} == {"a", "b", "c", "d"}
    first = board["tracks"][0]
    assert first[SCORE] == pytest.approx(0.6 / 0.8)
    low, high = first[f"{SCORE}_ci95"]
    assert low < first[SCORE] < high


# Refits.


def test_fits_play_under_the_name_of_their_policy(played: Path, tmp_path: Path) -> None:
    """One fit has three trainings, which share episodes and a row."""
    path, static = tmp_path / "refits.yaml", "static:llama-3b:Flash"
    trainings = (static, "static:llama-8b:Flash", "random")
    fits = {
        "mine/plain": scenarios.Fit(policy=trainings, queries=900),
        "mine/shared/1.5": scenarios.Fit(policy=static, queries=800),
    }
    scenarios.add_fits(path, 1000, {"random": fits})
    config = suite(played, refits=str(path))
    plays = {place[1:]: config.fitted.of("random", *place) for place in config.places()}
    assert plays == {
        ("plain", 0.5): trainings, ("plain", 1.5): trainings, ("shared", 0.5): ("random",),
        ("shared", 1.5): (static,),
    }  # fmt: skip
    assert run(config, tmp_path / "r").cells == 2 * (2 * 3 + 2) + 2 * 4  # seeds, the other policy
    found, only = columns_by_cell(tmp_path / "r"), config.models.index("llama-3b")
    for cell, columns in found.items():
        first = found[dataclasses.replace(cell, training=0)]
        assert np.array_equal(columns["arrival_s"], first["arrival_s"])
        if cell.policy == "random" and plays[cell.place[1:]][cell.training] == static:
            assert set(columns["model"].ravel().tolist()) - {-1} == {only}
    results, at = load_results(tmp_path / "r"), ("mine", "plain", 0.5)
    assert [len(own) for own in results.strata("random")[at].values()] == [3, 3]
    scenarios.add_fits(path, 1000, {"radnom": fits})
    with pytest.raises(ConfigError, match=r"refits.yaml: unknown policy 'radnom'. Did you mean"):
        suite(played, refits=str(path))
    board = leaderboard(results, num_resamples=50)
    (row,) = [r for r in board["tracks"] if r["policy"] == "random"]
    assert len(row["by_training"]) == 3
    shares = {
        f"{r['scenario']} ρ {r['load']:g}": r[SCORE] / LIMITS["informed"][r["load"]]
        for r in board["rows"]
        if r["policy"] == "random"
    }
    assert row["mean"] == pytest.approx(np.mean(list(shares.values())))
    assert row["worst"] == pytest.approx(min(shares.values())) == shares[row["worst_cell"]]
    wanted = "random", *at[1:]
    (row,) = [r for r in board["rows"] if (r["policy"], r["scenario"], r["load"]) == wanted]
    own = [c for cell, c in found.items() if (cell.policy, cell.place) == ("random", at)]
    mean = np.mean([c["solved"] * (c["latency_s"] <= c["budget_s"]) for c in own])
    assert (row["trainings"], row["goodput"]) == (3, pytest.approx(mean))
    assert board["fits"] == {"budget_queries": 1000, "queries": {"random": 900}}
    later = {"fits": {"budget_queries": 0, "queries": {"jsq": 5}}}
    TrackSuite.join(later, board)
    assert later["fits"] == {"budget_queries": 1000, "queries": {"random": 900, "jsq": 5}}


def test_a_row_says_who_planned(played: Path, tmp_path: Path) -> None:
    path = tmp_path / "refits.yaml"
    fit = scenarios.Fit(policy="planned:Debate:2:own:jsq", queries=900)
    constant = scenarios.Fit(policy="backpressure:30", queries=900)  # which is no plan
    for name, one in {"jsq": fit, "backpressure": constant}.items():
        scenarios.add_fits(path, 1000, {name: {"mine/plain": one}})
    names = ("adaptive", "jsq", "random", "moa", "backpressure")
    plans = suite(played, refits=str(path), policies=names)
    expected = ["own", "Debate x 2 (fitted)", "IO x 1", "IO x 5", "IO x 1"]
    assert [plans.plan_of(name) for name in names] == expected
    routed = plans.model_copy(update={"division": "route"})
    assert {routed.plan_of(name) for name in names} == {"IO x 1"}
    board = leaderboard(load_results(played / "results"), num_resamples=50)
    assert set(board["plans"]) == {row["policy"] for row in board["tracks"]}
    assert "plan" in score.scores_table(board).headings


# Files.


@pytest.mark.parametrize("name", list_configs("tracks"))
def test_shipped_tracks_have_limits_of_the_present_constants(name: str) -> None:
    track, limits = scenarios.load_track(name), scenarios.load_limits(name)
    for scenario, content in track.scenarios.items():
        found = limits[scenario]
        assert found.constants == content.constants(), f"inframind bench limits {name}"
        assert set(track.loads) <= set(found.informed)
        assert len(found.reach) == len(content.groups_s)
        informed = [found.informed[load] for load in sorted(track.loads)]
        assert informed == sorted(informed, reverse=True)


def test_a_tracks_version_and_limits_are_part_of_the_results(tmp_path: Path) -> None:
    before = suite(tmp_path).fingerprint("tracks", "mine")
    again = write(tmp_path, description="other words")
    assert suite(tmp_path, tracks=[again]).fingerprint("tracks", "mine") == before
    config = TrackSuite(name="s", policies=("random",), tracks=(write(tmp_path, version=2),))
    assert config.fingerprint("tracks", "mine") != before


@pytest.mark.parametrize("name", ["standard", "standard_quick"])
def test_servers_and_plans_are_the_suites_unless_a_policy_requires_its_own(name: str) -> None:
    """Late calls come last, and a router has one agent."""
    suite, place = load_suite(name).resolve(), ("steady", "math", 0.9)
    for policy in ("linucb", "q_learning_load_tracker", "random", "jsq", "spill"):
        arguments = suite.env_kwargs(place, resolve_policy(policy))
        assert arguments["planner"] == {"topology": "IO", "num_agents": 1}
        assert arguments["scheduler"] == "edf_late_last"
    assert suite.env_kwargs(place, resolve_policy("moa"))["planner"]["num_agents"] == 5
    spill: Any = resolve_policy("spill")
    spill.requires = {**spill.requires, "scheduler": "fcfs"}
    assert suite.env_kwargs(place, spill)["scheduler"] == "fcfs"
