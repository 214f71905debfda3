"""Rewards, advantages and losses against numbers worked out by hand."""

import numpy as np
import pytest
import torch

from agents.inframind import approx_kl, gae, normalise, ppo_loss
from agents.rollouts import Batch
from inframind_gym.simulator.workflow.state import COMPLETED
from inframind_gym.simulator.workflow.topology import MAX_NODES


def batch(elapsed_s=((4, 16), (15, 0))):
    """Two queries: one of two decisions, solved late; one of a single decision, solved in time."""
    records = np.zeros(2, COMPLETED)
    records["solved"] = 1
    records["latency_s"], records["budget_s"], records["cost"] = (20, 15), (10, 30), (2.0, 0.5)
    records["num_nodes"] = 2, 1
    records["node_latency_s"][:, :2] = (4, 12), (9, 0)
    padded = np.zeros((2, MAX_NODES), np.float32)
    padded[:, :2] = elapsed_s
    return Batch(records, np.zeros_like(padded), np.zeros((2, MAX_NODES, 11), np.float32), padded)


def test_quality_is_solved_or_solved_in_time():
    assert batch().quality("solved").tolist() == [1.0, 1.0]
    assert batch().quality("goodput").tolist() == [0.0, 1.0]


def test_reward_charges_each_decision_its_own_latency():
    rewards = batch().node_rewards(np.array([1.0, 0.0]), 0.2)
    # 1 - 0.2·4/10, 1 - 0.2·12/10; 0 - 0.2·9/30
    assert rewards[0, :2] == pytest.approx([0.92, 0.76])
    assert rewards[1, 0] == pytest.approx(-0.06)


def test_spread_costs_add_up_to_the_query():
    spread = batch().spread(np.array([2.0, 0.5]))
    assert spread[0, :2] == pytest.approx([0.4, 1.6])  # 4 and 16 of 20 s
    assert spread.sum(axis=1) == pytest.approx([2.0, 0.5])
    at_once = batch(elapsed_s=((0, 0), (0, 0))).spread(np.array([2.0, 0.5]))
    assert at_once[0, :2].tolist() == [0.0, 2.0]


def test_only_the_last_decision_is_rewarded():
    assert batch().at_the_end(np.array([1.0, 0.5]))[:, :2].tolist() == [[0.0, 1.0], [0.5, 0.0]]


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
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1])
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    log_ratio = ratio.log().requires_grad_()
    # min(1.5, 1.2), min(-1.5, -1.2), min(0.5, 0.8), min(-0.5, -0.8), min(2.2, 2.2)
    terms = [1.2, -1.5, 0.5, -0.8, 2.2]
    loss = ppo_loss(log_ratio, advantage, 0.2)
    assert loss.item() == pytest.approx(-sum(terms) / 5)
    loss.backward()
    # d(ρ·A)/d log ρ = ρ·A, and nothing where the ratio is clipped
    assert log_ratio.grad.tolist() == pytest.approx([0.0, 0.3, -0.1, 0.0, -0.44])


def test_advantages_are_normalised():
    assert normalise(np.array([1.0, 2.0, 3.0])).tolist() == pytest.approx(
        [-1.2247449, 0, 1.2247449]
    )
    assert normalise(np.ones(3)).tolist() == [0.0, 0.0, 0.0]


def test_approx_kl_is_zero_only_without_a_change():
    assert approx_kl(torch.zeros(4)) == 0.0
    # ρ = 2: 2 - 1 - ln 2
    assert approx_kl(torch.tensor([2.0]).log()) == pytest.approx(1.0 - np.log(2.0))
