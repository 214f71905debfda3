"""GPTSwarm: what its training learns, the files it reads, and that it plays its graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import inframind_gym  # noqa: F401
from agents.runs import Run
from baselines.gptswarm import learn_edges, train
from inframind_gym.policies import resolve_policy
from inframind_gym.policies.simple import edges_of, load_swarm
from inframind_gym.train import read_config

SETTINGS = read_config("gptswarm")[1]
SMALL = SETTINGS.model_copy(
    update={"rows": 4, "queries_per_row": 5, "steps": 2, "graphs_per_step": 2}
)


def test_reinforce_finds_a_planted_edge_and_drops_a_harmful_one() -> None:
    rng = np.random.default_rng(0)

    def utility(edges, _seed) -> float:
        return 0.5 + 0.1 * ((0, 2) in edges) - 0.1 * ((1, 2) in edges) + 0.02 * rng.normal()

    log: list[dict[str, float]] = []
    settings = SETTINGS.model_copy(update={"steps": 60})
    probabilities = learn_edges(utility, 3, settings, 0, lambda _, metrics: log.append(metrics))
    by_edge = dict(zip(edges_of(3), probabilities, strict=True))
    assert by_edge[0, 2] > 0.9
    assert by_edge[1, 2] < 0.1
    assert 0.1 < by_edge[0, 1] < 0.9, "an edge that does nothing is not decided"
    assert len(log) == 60
    assert log[-1]["charts/utility"] > log[0]["charts/utility"]


def test_one_update_by_hand() -> None:
    """Graphs that are all worth the same move nothing; two that differ move as the formula says."""
    settings = SMALL.model_copy(update={"steps": 1, "learning_rate": 1.0})
    np.testing.assert_array_equal(learn_edges(lambda *_: 0.7, 3, settings, seed=1), 0.5)
    drawn = np.random.default_rng(1).random((2, 3)) < 0.5
    worth = {tuple(row): float(i) for i, row in enumerate(drawn.tolist())}
    assert len(worth) == 2

    def utility(edges, _seed) -> float:
        return worth[tuple(edge in edges for edge in edges_of(3))]

    # Utilities 0 and 1: baseline 0.5, spread 0.5, so the advantages are -1 and 1.
    logits = 0.5 * (-(drawn[0] - 0.5) + (drawn[1] - 0.5))
    found = learn_edges(utility, 3, settings, seed=1)
    np.testing.assert_allclose(found, 1.0 / (1.0 + np.exp(-logits)))


def test_a_training_makes_a_file_that_can_be_played(tmp_path: Path) -> None:
    assert train(SMALL, Run(tmp_path / "one")) == train(SMALL, Run(tmp_path / "two"))
    path = tmp_path / "one" / "graph.json"
    swarm = load_swarm(path)
    assert len(swarm.models) == 5
    assert len(swarm.probabilities) == 10
    kept = [edge for edge, p in zip(edges_of(5), swarm.probabilities, strict=True) if p > 0.5]
    assert list(swarm.edges) == kept
    assert 0 < len(kept) < 10
    policy = resolve_policy(f"gptswarm:{path}")
    assert policy.name == f"gptswarm:{path}"
    assert policy.requires["planner"]["edges"] == [list(edge) for edge in swarm.edges]
