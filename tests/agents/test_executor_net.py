"""The executor: published sizes, torch = NumPy, first weights."""

import numpy as np
import pytest
import torch

from agents.inframind import ExecutorNet
from agents.planner_network import PlannerNet
from agents.runs import weights_of
from inframind_gym.policies.networks import Player, draw, executor_shapes, log_softmax
from inframind_gym.simulator.workflow.state import CONTEXT
from tests.policies.synthetic import make_spec

QUERIES = np.random.default_rng(1).standard_normal((3, 384)).astype(np.float32) / 20
ROLES = np.random.default_rng(2).standard_normal((25, 384)).astype(np.float32) / 20
SPEC = make_spec(level="joint", task_embeddings=QUERIES, role_embeddings=ROLES)


def make_net(**changes):
    torch.manual_seed(0)
    net = ExecutorNet(SPEC, 10, **changes)
    with torch.no_grad():  # larger heads: differences would show
        net.policy.weight.mul_(100.0)
    return net


def decisions(n=7, seed=0):
    """Contexts (n,) of calls that are ready, and what is seen of budget and servers."""
    rng = np.random.default_rng(seed)
    contexts = np.zeros(n, CONTEXT)
    contexts["task"], contexts["role"] = rng.integers(0, 3, n), rng.integers(0, 25, n)
    contexts["models_up"] = 31
    return contexts, rng.random((n, 11)).astype(np.float32)


def test_layers_are_the_published_ones():
    assert {n: w.shape for n, w in weights_of(make_net()).items() if w.ndim == 2} == {
        "semantic.weight": (128, 768),
        "budget.weight": (16, 1),
        "system.weight": (16, 10),
        "resource.weight": (64, 32),
        "merge.weight": (128, 192),
        "policy.weight": (15, 128),
        "value.weight": (1, 128),
    }


@pytest.mark.parametrize("changes", [{}, {"dual_pathway": False}, {"joint_head": False}], ids=str)
def test_numpy_plays_the_network_and_its_ablations_as_torch_trains_them(changes):
    net = make_net(**changes)
    contexts, resource = decisions()
    seen = QUERIES[contexts["task"]], ROLES[contexts["role"]], resource
    expected = net(*map(torch.from_numpy, seen))[0].detach().numpy()
    weights = weights_of(net)
    played = {n: w.shape for n, w in weights.items() if "value" not in n}
    assert played == executor_shapes(5, 3, 10, **changes)
    planner = {f"planner.{name}": array for name, array in weights_of(PlannerNet()).items()}
    player = Player(planner | {f"executor.{name}": array for name, array in weights.items()}, SPEC)
    assert player.log_probs(resource, contexts) == pytest.approx(expected, abs=1e-5)
    contexts["models_up"] = 0b11101
    found = np.exp(player.log_probs(resource, contexts))
    assert (found[:, 3:6] == 0.0).all() and found.sum(axis=1) == pytest.approx(1.0)
    if "joint_head" in changes:  # the odds of two strategies are the same for every model
        odds = expected.reshape(-1, 5, 3)
        assert np.ptp(odds[..., 0] - odds[..., 2], axis=1) == pytest.approx(0.0, abs=1e-4)


def test_draws_follow_the_probabilities():
    log_probs = np.log(np.array([[0.5, 0.25, 0.25]]))
    picked = [draw(log_probs, np.array([u]))[0] for u in (0.0, 0.49, 0.51, 0.76, 0.999999)]
    assert picked == [0, 0, 1, 2, 2]
    sharp = [draw(log_probs, np.array([u]), 0.5)[0] for u in (0.66, 0.67)]  # 4 : 1 : 1
    assert sharp == [0, 1] and draw(log_probs, None) == [0]
    never = log_softmax(np.array([[-np.inf, 0.0, -np.inf]]))
    assert [draw(never, np.array([u]))[0] for u in (0.0, 0.5, 0.999999)] == [1, 1, 1]
