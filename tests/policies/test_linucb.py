"""LinUCB against a reference that inverts its matrices, and what it learns from."""

from __future__ import annotations

import numpy as np
import pytest

from inframind_gym.policies.learners import LinUCBPolicy
from inframind_gym.tasks import EMBED_DIM, load_tasks
from tests.policies.synthetic import (
    act_all,
    make_completed,
    make_contexts,
    make_spec,
    observe,
    random_run,
)

ARMS = 15


def embeddings(count: int = 40) -> np.ndarray:
    """Unit vectors that vary mostly along two axes."""
    rng = np.random.default_rng(5)
    points = rng.normal(size=(count, EMBED_DIM)) * 0.02 + 0.05
    points[:, 7] += rng.normal(size=count)
    points[:, 90] += 0.5 * rng.normal(size=count)
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def test_choices_of_a_stream_equal_the_reference() -> None:
    """Plays a stream; after every choice a dense LinUCB would have chosen the same."""
    policy = LinUCBPolicy(alpha=0.4, ridge=2.0, embedding_components=3, cost_weight=0.5)
    spec = make_spec(task_embeddings=embeddings(), role_embeddings=np.zeros((25, EMBED_DIM)))
    policy.reset(spec, [1])
    size = policy.ridge.target.shape[2]
    gram, target = np.tile(2.0 * np.eye(size), (ARMS, 1, 1)), np.zeros((ARMS, size))
    rng = np.random.default_rng(3)
    chosen_by_both = 0
    for step, (observations, contexts) in enumerate(random_run(spec, 1, 150, seed=2)):
        contexts["query"], contexts["models_up"] = step, 31
        contexts["arrival_s"] = contexts["time_s"]
        contexts["budget_s"] = 1e9
        observations[:, 0] = rng.integers(40)
        features = policy.features(observations, contexts)[0]
        inverse = np.linalg.inv(gram)
        mean = np.einsum("ad,ade,ae->a", features, inverse, target)
        spread = np.einsum("ad,ade,ae->a", features, inverse, features)
        bounds = mean + 0.4 * np.sqrt(spread)
        (arm,) = act_all(policy, observations, contexts)
        assert bounds[arm] == pytest.approx(bounds.max(), abs=1e-8)
        chosen_by_both += (bounds > bounds.max() - 1e-8).sum() == 1
        solved = int(rng.random() < 0.2 + 0.05 * arm)
        policy.observe(make_completed([step], solved=solved), 0)
        gram[arm] += np.outer(features[arm], features[arm])
        target[arm] += (solved - 0.5 * 0.5) * features[arm]  # at half of the budget
    assert chosen_by_both > 100


def test_a_deadline_that_has_passed_is_learned_from_once() -> None:
    policy = LinUCBPolicy(cost_weight=1.0, embedding_components=0)
    spec = make_spec()
    policy.reset(spec, [0])
    observation = observe(spec)

    def decide(query: int, time_s: float, arrival_s: float) -> int:
        fields = {"query": query, "time_s": time_s, "arrival_s": arrival_s, "budget_s": 10.0}
        return policy.act(observation[0], make_contexts(**fields)[0])

    arm = decide(0, time_s=0.0, arrival_s=0.0)
    decide(1, time_s=9.0, arrival_s=9.0)
    assert not policy.ridge.target[0].any()
    decide(2, time_s=11.0, arrival_s=11.0)  # query 0 is late
    assert policy.ridge.target[0][arm, 0] == -1.0
    before = policy.ridge.target[0].copy()
    policy.observe(make_completed([0], solved=1), 0)
    np.testing.assert_array_equal(policy.ridge.target[0], before)
    decide(0, time_s=0.0, arrival_s=0.0)  # a new episode: queries 1 and 2 are forgotten
    np.testing.assert_array_equal(policy.ridge.target[0], before)


def test_components_are_the_same_from_index_and_embedding() -> None:
    tasks = load_tasks("builtin", split="train").embeddings
    features = {}
    for form in ("index", "full"):
        spec = make_spec(embedding=form, task_embeddings=tasks)
        policy = LinUCBPolicy(embedding_components=2)
        policy.reset(spec, [0])
        observations = observe(spec, n=len(tasks), depth_req=np.arange(5))
        observations[:, spec.layout.query] = (
            np.arange(len(tasks))[:, None] if form == "index" else tasks
        )
        features[form] = policy.features(observations, make_contexts(len(tasks)))
    np.testing.assert_allclose(features["index"], features["full"], rtol=1e-6, atol=1e-6)
    components = features["index"][:, 0, 6:8]
    np.testing.assert_allclose(components.std(axis=0), 1.0, rtol=1e-6)
    assert abs(np.corrcoef(components.T)[0, 1]) < 1e-6
    queue = features["index"][0, :, 8].reshape(5, 3)
    np.testing.assert_allclose(queue, np.tile(np.arange(5.0) / 16.0, (3, 1)).T)
