"""The executor: published sizes, torch = NumPy, and its ablations."""

import math

import numpy as np
import pytest
import torch

from agents.executor_network import ExecutorNet
from agents.runs import weights_of
from inframind_gym.policies.inframind import Executor, ExecutorShape, draw, log_softmax

ROLES = np.random.default_rng(1).standard_normal((25, 384)).astype(np.float32) / 20
VARIANTS = [
    ExecutorShape(),
    ExecutorShape(num_models=3, num_features=4),
    ExecutorShape(joint_head=False),
    ExecutorShape(dual_pathway=False),
    ExecutorShape(joint_head=False, dual_pathway=False, num_features=3, cost_critic=True),
]


def make_net(shape, seed=0):
    torch.manual_seed(seed)
    return ExecutorNet(shape)


def inputs(shape, n=7, queries=3, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((queries, 384)).astype(np.float32) / 20,
        rng.integers(0, queries, n),
        rng.integers(0, 25, n),
        rng.random((n, shape.resource_size)).astype(np.float32),
    )


def run_torch(net, queries, of, role, resource):
    return net(*(torch.from_numpy(array) for array in (queries[of], ROLES[role], resource)))


def test_layers_are_the_published_ones():
    shapes = ExecutorShape().shapes()
    weights = {name: shape for name, shape in shapes.items() if len(shape) == 2}
    assert weights == {
        "semantic.weight": (128, 768),
        "budget.weight": (16, 1),
        "system.weight": (16, 10),
        "resource.weight": (64, 32),
        "merge.weight": (128, 192),
        "policy.weight": (15, 128),
        "value.weight": (1, 128),
    }
    dual, single = (
        sum(math.prod(size) for size in ExecutorShape(dual_pathway=apart).shapes().values())
        for apart in (True, False)
    )
    assert single == pytest.approx(dual, rel=0.01)


@pytest.mark.parametrize("shape", VARIANTS, ids=str)
def test_numpy_says_what_torch_says(shape):
    net = make_net(shape, seed=3)
    assert {name: tuple(p.shape) for name, p in net.named_parameters()} == shape.shapes()
    with torch.no_grad():  # larger heads: differences would show
        net.policy.weight.mul_(100.0)
    queries, of, role, resource = inputs(shape)
    expected = run_torch(net, queries, of, role, resource).log_probs.detach().numpy()
    executor = Executor(weights_of(net), shape, ROLES)
    logits = executor(executor.project(queries)[of], role, resource)
    assert log_softmax(logits) == pytest.approx(expected, abs=1e-5)


def test_the_forward_pass_written_out():
    """The published network line by line, without the branches of the ablations."""
    shape = ExecutorShape()
    net = make_net(shape, seed=5)
    queries, of, role, resource = inputs(shape)
    resource_t = torch.from_numpy(resource)
    semantic = torch.from_numpy(np.concatenate([queries[of], ROLES[role]], axis=1))
    first = net.semantic_norm(torch.relu(net.semantic(semantic)))
    budget = torch.relu(net.budget(resource_t[:, :1]))
    system = torch.relu(net.system(resource_t[:, 1:]))
    second = net.resource_norm(torch.relu(net.resource(torch.cat([budget, system], 1))))
    h = torch.relu(net.merge(torch.cat([first, second], 1)))
    out = run_torch(net, queries, of, role, resource)
    assert torch.allclose(out.log_probs, torch.log_softmax(net.policy(h), 1), atol=1e-6)
    assert torch.allclose(out.value, net.value(h)[:, 0], atol=1e-6)


def test_first_weights_are_orthogonal_with_the_gains_of_their_layers():
    first = weights_of(make_net(ExecutorShape(cost_critic=True)))
    gains = {"policy": 1e-4, "value": 1.0, "cost_value": 1.0}  # squared; √2 elsewhere
    for name, weight in first.items():
        layer, kind = name.split(".")
        if weight.ndim == 2:
            short = weight if len(weight) <= weight.shape[1] else weight.T
            expected = np.eye(len(short)) * gains.get(layer, 2.0)
            assert short @ short.T == pytest.approx(expected, abs=1e-5), name
        else:
            assert (weight == (layer.endswith("norm") and kind == "weight")).all(), name


def test_draws_follow_the_probabilities():
    log_probs = np.log(np.array([[0.5, 0.25, 0.25]]))
    picked = [draw(log_probs, np.array([u]))[0] for u in (0.0, 0.49, 0.51, 0.76, 0.999999)]
    assert picked == [0, 0, 1, 2, 2]
    never = log_softmax(np.array([[-np.inf, 0.0, -np.inf]]))
    assert [draw(never, np.array([u]))[0] for u in (0.0, 0.5, 0.999999)] == [1, 1, 1]
