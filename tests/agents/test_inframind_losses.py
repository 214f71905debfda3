"""Rewards, advantages and losses against numbers worked out by hand."""

import numpy as np
import pytest
import torch

from agents.inframind.advantages import costs, gae, last_only, paper_rewards, quality, step_costs
from agents.inframind.learner import (
    approx_kl,
    mean_entropy,
    normalise,
    ppo_loss,
    squared_error,
)
from agents.inframind.rollouts import Episodes
from inframind_gym.simulator.workflow.topology import MAX_NODES


def episodes(**changes):
    """Two queries: one of two decisions, solved late; one of a single decision, solved in time."""

    def padded(*rows):
        out = np.zeros((len(rows), MAX_NODES), np.float32)
        for i, row in enumerate(rows):
            out[i, : len(row)] = row
        return out

    fields = {
        "step": np.array([3, 5]),
        "task": np.array([0, 1]),
        "domain": np.array([0, 2]),
        "topology": np.array([2, 0]),
        "num_agents": np.array([2, 1]),
        "plan_roles": np.zeros((2, 6), np.int64),
        "solved": np.ones(2, np.float32),
        "latency_s": np.array([20.0, 15.0]),
        "budget_s": np.array([10.0, 30.0]),
        "cost": np.array([2.0, 0.5]),
        "length": np.array([2, 1]),
        "role": np.zeros((2, MAX_NODES), np.int64),
        "action": np.zeros((2, MAX_NODES), np.int64),
        "log_prob": padded([0, 0], [0]),
        "resource": np.zeros((2, MAX_NODES, 11), np.float32),
        "node_latency_s": padded([4.0, 12.0], [9.0]),
        "elapsed_s": padded([4.0, 16.0], [15.0]),
    }
    return Episodes(**(fields | changes))


def test_quality_is_solved_or_solved_in_time():
    assert quality(episodes(), "solved").tolist() == [1.0, 1.0]
    assert quality(episodes(), "goodput").tolist() == [0.0, 1.0]


def test_costs_may_be_capped():
    assert costs(episodes()).tolist() == [2.0, 0.5]
    assert costs(episodes(), 1.5).tolist() == [1.5, 0.5]


def test_paper_reward_charges_each_step_its_own_latency():
    rewards = paper_rewards(episodes(), np.array([1.0, 0.0]), 0.2)
    # 1 - 0.2·4/10, 1 - 0.2·12/10; 0 - 0.2·9/30
    assert rewards[0, :2] == pytest.approx([0.92, 0.76])
    assert rewards[1, 0] == pytest.approx(-0.06)


def test_step_costs_add_up_to_the_query():
    spread = step_costs(episodes(), np.array([2.0, 0.5]))
    assert spread[0, :2] == pytest.approx([0.4, 1.6])  # 4 and 16 of 20 s
    assert spread.sum(axis=1) == pytest.approx([2.0, 0.5])
    handed_on = episodes(elapsed_s=np.zeros((2, MAX_NODES), np.float32))
    assert step_costs(handed_on, np.array([2.0, 0.5]))[0, :2].tolist() == [0.0, 2.0]


def test_only_the_last_decision_is_rewarded():
    assert last_only(episodes(), np.array([1.0, 0.5]))[:, :2].tolist() == [[0.0, 1.0], [0.5, 0.0]]


def test_gae_by_hand():
    rewards = np.array([[0.0, 0.0, 1.0], [1.0, 9.0, 9.0]])
    values = np.array([[0.5, 0.25, 0.75], [0.5, 9.0, 9.0]])
    found = gae(rewards, values, np.array([3, 1]), gamma=0.5, gae_lambda=0.5)
    # δ2 = 1 - 0.75; δ1 = 0.5·0.75 - 0.25; δ0 = 0.5·0.25 - 0.5
    # A2 = 0.25; A1 = 0.125 + 0.25·0.25; A0 = -0.375 + 0.25·0.1875
    assert found[0] == pytest.approx([-0.328125, 0.1875, 0.25])
    assert found[1].tolist() == [0.5, 0.0, 0.0]  # what lies beyond a query's end is no part of it


def test_gae_with_lambda_one_is_the_return_less_the_value():
    rng = np.random.default_rng(0)
    rewards, values = rng.random((4, 5)), rng.random((4, 5))
    found = gae(rewards, values, np.full(4, 5), gamma=1.0, gae_lambda=1.0)
    returns = rewards[:, ::-1].cumsum(axis=1)[:, ::-1]
    assert found == pytest.approx(returns - values, abs=1e-6)


def test_ppo_loss_by_hand():
    ratio = np.array([1.5, 1.5, 0.5, 0.5, 1.1])
    advantage = np.array([1.0, -1.0, 1.0, -1.0, 2.0])
    # min(1.5, 1.2), min(-1.5, -1.2), min(0.5, 0.8), min(-0.5, -0.8), min(2.2, 2.2)
    terms = [1.2, -1.5, 0.5, -0.8, 2.2]
    loss, gradient = ppo_loss(np.log(ratio), advantage, 0.2)
    assert loss == pytest.approx(-sum(terms) / 5)
    # d(ρ·A)/d log ρ = ρ·A, and nothing where the ratio is clipped
    assert gradient == pytest.approx(np.array([0.0, -1.5, 0.5, 0.0, 2.2]) / -5)


def test_gradients_of_the_losses_are_those_of_torch():
    rng = np.random.default_rng(0)
    log_ratio, advantage, targets = rng.standard_normal((3, 50))
    logits = rng.standard_normal((50, 6))
    x, y = (torch.tensor(array, requires_grad=True) for array in (log_ratio, logits))
    ratio = x.exp()
    clipped = ratio.clamp(0.8, 1.2) * torch.tensor(advantage)
    loss = -torch.minimum(ratio * torch.tensor(advantage), clipped).mean()
    loss.backward()
    assert ppo_loss(log_ratio, advantage, 0.2)[0] == pytest.approx(loss.item())
    assert ppo_loss(log_ratio, advantage, 0.2)[1] == pytest.approx(x.grad.numpy())

    entropy = torch.distributions.Categorical(logits=y).entropy().mean()
    entropy.backward()
    log_probs = torch.log_softmax(y, dim=1).detach().numpy()
    found, gradient = mean_entropy(log_probs, np.exp(log_probs))
    assert found == pytest.approx(entropy.item())
    assert gradient == pytest.approx(y.grad.numpy())

    x.grad = None
    loss = torch.nn.functional.mse_loss(x, torch.tensor(targets))
    loss.backward()
    assert squared_error(log_ratio, targets)[0] == pytest.approx(loss.item())
    assert squared_error(log_ratio, targets)[1] == pytest.approx(x.grad.numpy())


def test_advantages_are_normalised():
    found = normalise(np.array([1.0, 2.0, 3.0]))
    assert found.tolist() == pytest.approx([-1.2247449, 0.0, 1.2247449])
    assert normalise(np.ones(3)).tolist() == [0.0, 0.0, 0.0]


def test_approx_kl_is_zero_only_without_a_change():
    assert approx_kl(np.zeros(4)) == 0.0
    # ρ = 2: 2 - 1 - ln 2
    assert approx_kl(np.log([2.0])) == pytest.approx(1.0 - np.log(2.0))
