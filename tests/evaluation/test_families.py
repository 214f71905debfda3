"""Suites of placements and teams: judged as their environments judge, with regret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from inframind_gym.evaluation.board import leaderboard, leaderboard_tables, load_results
from inframind_gym.evaluation.cells import Cell
from inframind_gym.evaluation.metrics import Layout, Metric, by_name
from inframind_gym.evaluation.placement import FIELDS, PlacementSuite
from inframind_gym.evaluation.runner import run
from inframind_gym.evaluation.suite import Suite, family_of, load_suite
from inframind_gym.evaluation.tables import to_markdown
from inframind_gym.evaluation.teams import (
    AssignmentSuite,
    CoordinationSuite,
    TeamSuite,
    TokenBudgetSuite,
)


def small(kind: type[TeamSuite], policies: list[str], scenarios: dict[str, Any]) -> TeamSuite:
    content = {"name": "small", "policies": policies, "scenarios": scenarios, "seeds": 6}
    return kind.model_validate(content).resolve()


TEAMS = [
    small(
        AssignmentSuite,
        ["round_robin", "q_seed", "myopic", "optimum"],
        {name: {"arrivals": name, "num_tasks": 20} for name in ("skewed", "bursty")},
    ),
    small(
        TokenBudgetSuite,
        ["single_shot", "fixed_k", "optimum"],
        {"small": {"budget": 5000}, "dear": {"budget": 8000, "price": 0.005}},
    ),
]


def in_the_environment(suite: Suite, cell: Cell) -> tuple[float, dict[str, Any]]:
    """Play a cell as a user would; returns the sum of its rewards and the last info."""
    policy = suite.resolve_policy(cell.policy)
    env: Any = gym.make(suite.env_id, **suite.env_kwargs(cell.place, policy)).unwrapped
    observation, _ = env.reset(seed=cell.episode_seed)
    policy.reset(env.policy_spec(), [cell.policy_seed])
    total, over, learns = 0.0, False, hasattr(policy, "observe") and suite.kind == "assignment"
    while not over:
        seen = observation if isinstance(observation, dict) else observation[None]
        action = policy.act_batch(seen, env.context(), np.zeros(1, np.int64))[0]
        observation, reward, terminated, truncated, info = env.step(action)
        total, over = total + reward, terminated or truncated
        if learns:
            done = env.completed()
            policy.observe(done, done.row)
    return total, info


def runs(load: str) -> TeamSuite:
    one = {"arrivals": "bursty", "load": load, "num_tasks": 20}
    return small(AssignmentSuite, ["thompson"], {"one": one})


RUN = {"imbalance": "mean_imbalance", "hot": "hot_share", "quality": "mean_quality"}
JUDGED: list[tuple[TeamSuite, str, dict[str, str]]] = [
    (runs("window"), "thompson", RUN),
    (runs("queue"), "thompson", RUN),
    (
        small(TokenBudgetSuite, ["fixed_k"], {"one": {"budget": 9000}}),
        "fixed_k",
        {name: name for name in ("quality", "tokens", "calls", "overshoot")},
    ),
    (
        small(CoordinationSuite, ["seed_supervisor"], {"one": {"conversation": True}}),
        "seed_supervisor",
        {"lateness": "episode_cost"}
        | {name: name for name in ("answer_score", "latency_s", "tokens", "overhead_ms")},
    ),
]


@pytest.mark.parametrize(
    ("suite", "name", "same"), JUDGED, ids=lambda one: getattr(one, "kind", "")
)
def test_an_episode_is_judged_as_the_environment_judges_it(
    suite: TeamSuite, name: str, same: dict[str, str]
) -> None:
    cells = [cell for cell in suite.cells() if cell.policy == name]
    cell, columns = suite.player().run(cells)[2]  # in a batch
    total, info = in_the_environment(suite, cell)
    rewards = "reward" if suite.kind == "assignment" else "return"
    assert columns[rewards].sum() == pytest.approx(total)
    for column, key in same.items():
        assert columns[column].mean() == pytest.approx(info[key]), column


def test_a_placement_is_judged_as_the_environment_judges_it() -> None:
    small = {"policies": ["greedy"], "clusters": ["h100-4gpu"], "demands": ["steady", "shifting"]}
    suite = load_suite("placement_quick", {**small, "num_decisions": 40, "seeds": [3]}).resolve()
    ((cell, columns),) = suite.player().run(suite.cells()[1:])
    _, info = in_the_environment(suite, cell)
    found = PlacementSuite.layout({}).evaluate(PlacementSuite.layout({}).table(columns).sum(axis=0))
    assert len(columns["decision"]) == 40
    assert found["call_latency_s"] == pytest.approx(info["mean_call_latency_s"])
    assert 1.0 - found["slo"] == pytest.approx(info["late_share"])
    assert 0.0 < info["late_share"] < 1.0
    assert found["job_latency_mean_s"] == pytest.approx(info["mean_latency_s"])
    assert columns["switches"].sum() == info["wakes"] + info["loads"] > 0
    assert len(columns["job_latency_s"]) == info["jobs"]


def test_metrics_of_decisions_by_hand() -> None:
    first = dict(zip(FIELDS, (30.0, 6, 4, 0, 1, 4, 2, 20.0, 3, 2), strict=True))
    second = dict(zip(FIELDS, (50.0, 2, 0, 1, 0, 4, 1, 20.0, 4, 1), strict=True))
    columns = {name: np.array([first[name], second[name]]) for name in first}
    columns |= {"job_latency_s": np.array([3.0, 5.0, 10.0])}
    layout = PlacementSuite.layout({})
    metrics = layout.evaluate(layout.table(columns).sum(axis=0))
    expected = {"call_latency_s": 80.0 / 8, "slo": 1 - 1 / 4, "job_latency_mean_s": 6.0}
    expected |= {"finished": 3 / 4, "switches_per_gpu_hour": 3 / (40.0 / 3600)}
    assert metrics == pytest.approx({**expected, "illegal_share": 1 / 8, "serving_share": 7 / 8})


def test_means_and_tails_by_hand() -> None:
    tail = Metric("tokens_p95", "p95", tail_of="tokens")
    layout = Layout(by_name(Metric("reward", ""), Metric("tokens", ""), tail))
    columns = {"reward": np.array([0.5, 0.7]), "tokens": np.array([10, 30])}
    assert layout.evaluate(layout.table(columns).sum(axis=0)) == {"reward": 0.6, "tokens": 20.0}
    values, record = layout.values(columns)
    assert values.tolist() == [10.0, 30.0] and record.tolist() == [0, 1]
    detection = Metric("detection", "", part="caught", whole="lied")
    layout = Layout(by_name(Metric("caught", ""), Metric("lied", ""), detection, tail))
    columns = {"caught": np.array([1, 2, 0]), "lied": np.array([1, 3, 0])}
    assert layout.evaluate(layout.table(columns).sum(axis=0))["detection"] == 0.75


@pytest.mark.parametrize("suite", TEAMS, ids=lambda suite: suite.kind)
def test_regret_is_the_difference_to_the_bound(suite: TeamSuite, tmp_path: Path) -> None:
    run(suite, tmp_path, workers=1)
    board = leaderboard(load_results(tmp_path), num_resamples=200)
    score = family_of(board).score
    rows = {row["policy"]: row for row in board["ranking"]}
    assert rows["optimum"]["bound"] and rows["optimum"]["regret"] == 0.0
    assert "myopic" not in rows or rows["myopic"]["bound"]
    for row in board["ranking"]:
        assert row["regret"] == pytest.approx(rows["optimum"][score] - row[score])
        low, high = row["regret_ci95"]
        assert low <= row["regret"] <= high
        assert "of_bound" not in row
    text = "\n".join(map(to_markdown, leaderboard_tables(board)))
    assert "| regret |" in text and "Not ranked, because" in text
    assert all(name in text for name in suite.scenarios)
