"""Rewards and advantages against numbers worked out by hand."""

import numpy as np
import pytest

from agents.inframind import gae
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


def test_costs_of_a_query_that_took_no_time_are_its_last_decisions():
    at_once = batch(elapsed_s=((0, 0), (0, 0))).spread(np.array([2.0, 0.5]))
    assert at_once[0, :2].tolist() == [0.0, 2.0]


def test_gae_by_hand():
    rewards = np.array([[0.0, 0.0, 1.0], [1.0, 9.0, 9.0]])
    values = np.array([[0.5, 0.25, 0.75], [0.5, 9.0, 9.0]])
    found = gae(rewards, values, np.array([3, 1]), gamma=0.5, gae_lambda=0.5)
    # δ2 = 1 - 0.75; δ1 = 0.5·0.75 - 0.25; δ0 = 0.5·0.25 - 0.5
    # A2 = 0.25; A1 = 0.125 + 0.25·0.25; A0 = -0.375 + 0.25·0.1875
    assert found[0] == pytest.approx([-0.328125, 0.1875, 0.25])
    assert found[1].tolist() == [0.5, 0.0, 0.0]  # what lies beyond a query's end is no part of it
