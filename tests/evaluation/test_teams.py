"""Suites of the teams: judged as their environments judge, the same bits always, with regret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import inframind_gym  # noqa: F401
from inframind_gym.evaluation.board import leaderboard, leaderboard_tables, load_results
from inframind_gym.evaluation.metrics import Metric, by_name
from inframind_gym.evaluation.runner import run
from inframind_gym.evaluation.suite import family_of
from inframind_gym.evaluation.tables import to_markdown
from inframind_gym.evaluation.teams import (
    AssignmentSuite,
    CoordinationSuite,
    MeanLayout,
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


def one(suite: TeamSuite, policy: str, seed: int = 2) -> tuple[Any, dict[str, Any]]:
    """A cell and the columns of its records, played in a batch."""
    cells = [cell for cell in suite.cells() if cell.policy == policy][: suite.seeds]
    played = suite.player().run(cells)
    cell, columns = played[seed]
    return cell, dict(columns)


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
    cell, columns = one(suite, name)
    env: Any = gym.make(suite.env_id, **suite.scenarios["one"]).unwrapped
    policy = suite.resolve_policy(name)
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
    assert columns["reward" if learns else "return"].sum() == pytest.approx(total)
    for column, key in same.items():
        assert columns[column].mean() == pytest.approx(info[key]), column


def test_means_and_tails_by_hand() -> None:
    tail = Metric("tokens_p95", "p95", tail_of="tokens")
    layout = MeanLayout(by_name(Metric("reward", ""), Metric("tokens", ""), tail))
    columns = {"reward": np.array([0.5, 0.7]), "tokens": np.array([10, 30])}
    found = layout.evaluate(layout.table(columns).sum(axis=0))
    assert found == {"reward": 0.6, "tokens": 20.0}
    values, record = layout.values(columns)
    assert values.tolist() == [10.0, 30.0] and record.tolist() == [0, 1]
    detection = Metric("detection", "", part="caught", whole="lied")
    layout = MeanLayout(by_name(Metric("caught", ""), Metric("lied", ""), detection))
    columns = {"caught": np.array([1, 2, 0]), "lied": np.array([1, 3, 0])}
    found = layout.evaluate(layout.table(columns).sum(axis=0))
    assert found["detection"] == 0.75


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
