"""MasRouter as a policy: the same alone and in a batch, text alone, no torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agents.masrouter import MasRouterNet
from agents.runs import weights_of
from inframind_gym.envs.routing import StreamVectorEnv
from inframind_gym.policies import checkpoint
from inframind_gym.policies.networks import MasRouterPolicy
from inframind_gym.simulator.workflow.state import PLAN
from inframind_gym.simulator.workflow.topology import TOPOLOGIES
from tests.envs.streams import make_batch, sweep
from tests.policies.synthetic import make_spec

QUERIES = 15


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """An untrained router, in which every choice is about as likely."""
    torch.manual_seed(0)
    models = make_spec().models
    path = tmp_path_factory.mktemp("masrouter") / "seed0"
    net = MasRouterNet(models)
    checkpoint.save(path, weights_of(net), {"algorithm": "masrouter", "models": list(models)})
    return str(path)


def play(policy, rows=1, rate=100.0, **arguments):
    """Completed queries of an episode, row by row."""
    env = make_batch(rows, level="joint", num_queries=QUERIES, **arguments)
    return np.concatenate(sweep(env, policy, range(100, 100 + rows), arrival_rate_per_min=rate))


def test_choices_do_not_depend_on_load_or_budget(folder):
    calm = play(MasRouterPolicy(folder), rate=1.0, budget_s=1000.0)
    busy = play(MasRouterPolicy(folder), rate=600.0, budget_s=10.0)
    for field in ("task", "topology", "num_agents", "role", "model", "strategy"):
        np.testing.assert_array_equal(calm[field], busy[field], err_msg=field)


def test_an_agent_keeps_its_model_and_queries_differ(folder):
    done = play(MasRouterPolicy(folder), 3)
    assert len({int(record["topology"]) for record in done}) > 3
    assert len({int(m) for r in done for m in r["model"][: r["num_nodes"]]}) == 5
    assert len({int(s) for r in done for s in r["strategy"][: r["num_nodes"]]}) == 3
    debates = [r for r in done if r["topology"] == TOPOLOGIES.index("Debate")]
    assert debates
    for record in debates:
        k = int(record["num_agents"])
        np.testing.assert_array_equal(record["model"][:k], record["model"][k : 2 * k])


def test_the_pool_may_order_its_models_otherwise(folder):
    """A model's probabilities follow its name."""
    policy = MasRouterPolicy(folder)
    contexts = np.zeros(1, StreamVectorEnv(1, level="joint").contexts().dtype)
    contexts["kind"], contexts["models_up"] = PLAN, 31
    embeddings = np.random.default_rng(0).normal(size=(1, 384)).astype(np.float32)
    spec = make_spec(level="joint", task_embeddings=embeddings)
    turned = make_spec(spec.models[::-1], level="joint", task_embeddings=embeddings)
    found = []
    for each in (spec, turned):
        policy.reset(each, [1])
        policy.act_batch(np.zeros((1, 14), np.float32), contexts, np.zeros(1, np.int64))
        found.append(policy._probabilities[0, 0])
    np.testing.assert_array_equal(found[0], found[1][::-1])
    assert found[0].sum() == pytest.approx(1.0) and len(set(found[0].tolist())) == 5
