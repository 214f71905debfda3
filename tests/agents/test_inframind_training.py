"""Short trainings: they run, learn from every query once, resume; losses of plain references."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from agents.inframind import (
    Agent,
    InfraMindConfig,
    LagrangeConfig,
    Learner,
    Streams,
    approx_kl,
    train,
)
from agents.planner_network import plan_of
from agents.runs import Run, weights_of
from inframind_gym.evaluation.tracker import read_metrics
from inframind_gym.policies import multiplier_of
from inframind_gym.policies.checkpoint import load
from inframind_gym.policies.networks import InfraMindPolicy

TINY = {
    "env": {"workload": "mixed", "num_queries": 10},
    "rates_per_min": [30, 100, 200],
    "rows_per_rate": 2,
    "batch_episodes": 16,
    "steps": 17,  # updates: three epochs of 6
    "validation": {"rows": 1},
}


def config(**changes):
    return InfraMindConfig.model_validate(TINY | changes)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    out = tmp_path_factory.mktemp("training") / "reference"
    train(config(), Run(out, seed=1))
    return out


def test_an_epoch_is_a_sweep_at_each_rate_learned_from_to_the_last_query(reference):
    numbers, lines = load(reference / "state")[1], read_metrics(reference / "metrics.jsonl")
    assert numbers["progress"]["epoch"] == 3
    assert numbers["updates"] == 3 * 3 * 2  # 3 rates; 2 rows of 10 queries are a batch and 4 more
    assert lines[-1]["step"] == numbers["progress"]["decisions"]
    updates = [line for line in lines if "charts/queries" in line]
    assert [line["charts/queries"] for line in updates] == [16, 4] * 9
    rates = [line["charts/rate_per_min"] for line in updates][::2]
    assert all(sorted(rates[i : i + 3]) == [30, 100, 200] for i in (0, 3, 6))
    assert rates[:3] != rates[3:6] or rates[:3] != rates[6:]  # shuffled
    assert {line["charts/num_agents"] for line in updates} == {3.0}
    policy = InfraMindPolicy(str(reference / "best"))
    assert multiplier_of(policy) > 0
    assert multiplier_of(policy) == load(reference / "best")[1]["multiplier"]


def test_learning_changes_every_tensor_that_has_a_gradient(reference):
    arrays, _ = load(reference / "state")
    spec = Streams(config(), "train", 1).spec
    before, other = (weights_of(Agent(config(), spec, seed)) for seed in (1, 2))
    assert not all(np.array_equal(before[k], other[k]) for k in before)
    unchanged = {k for k in before if np.array_equal(before[k], arrays[k])}
    # Texts are no parameters; a softmax over keys does not see what is added to all of them; the
    # agent count has no policy gradient.
    still = ("texts", "key.bias", "difficulty.weight", "difficulty.bias")
    assert {k for k in unchanged if not k.endswith(still)} == set()


def test_it_stops_early_and_the_learning_rates_fall_on_a_plateau(tmp_path):
    hopeless = {"rows": 1, "metric": "goodput", "budget_s": 0.5}  # nothing is answered so soon
    limits = {**hopeless, "early_stopping": 4, "lr_patience": 1}
    done = train(config(steps=900, validation=limits), Run(tmp_path))
    assert (done["best_epoch"], done["epoch"]) == (1, 5)
    assert load(tmp_path / "state")[1]["lr"] == [0.25 * 3e-4] * 2


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": "goodput", "temperature": 0.5, "sweeps": "side_by_side"},
        {"planner": {"init": None, "agents": None, "draw_count": True}, "partial_batch": False},
        {"lagrange": {"start": 0, "lr": 0}, "executor": {"system_state": False}},
        {"executor": {"dual_pathway": False, "predicted_latency": True}, "lagrange": {"warmup": 1}},
        {"executor": {"joint_head": False}, "budgets": "log_uniform"},
    ],
    ids=str,
)
def test_the_variants_and_ablations_train(changes, tmp_path):
    train(config(**changes, steps=1), Run(tmp_path))
    numbers = load(tmp_path / "state")[1]
    found = numbers["multiplier"]
    assert (found == 0.0) == (changes.get("lagrange") == {"start": 0, "lr": 0})
    assert (found == 0.2) == (changes.get("lagrange") == {"warmup": 1})
    whole = 60 // 16 + 1 if "sweeps" in changes else 3 * (1 + changes.get("partial_batch", True))
    assert numbers["updates"] == whole
    policy = InfraMindPolicy(str(tmp_path / "best"))
    policy.reset(Streams(config(), "val", 1).spec, [0])
    assert policy.temperature == changes.get("temperature", 0.0)


def played(learner, **changes):
    """All queries of one epoch, with the weights of a learner, and the decisions made."""
    streams = Streams(learner.config, "train", 3, **changes)
    streams.begin(np.array([30.0, 100.0, 200.0]), 0)
    pairs, decisions, player = [], 0, learner.player()
    while streams.running.any():
        decisions += int(streams.running.sum())
        pairs.append(streams.step(player))
    return streams.batch(np.concatenate(pairs)), decisions


def learner_of(**changes):
    c = config(**changes)
    return Learner(c, 0, Streams(c, "train", 1).spec)


def executor_says(learner, done):
    spec, task, role = learner.spec, done.column("task"), done.column("role")
    texts = spec.task_embeddings[task], spec.role_embeddings[role]
    log_probs, values = learner.agent.executor(*map(torch.from_numpy, (*texts, done.resource)))
    route = 3 * done.column("model").astype(int) + done.column("strategy")
    return log_probs, log_probs[torch.arange(len(route)), torch.from_numpy(route)], values


def test_a_batch_holds_what_was_decided_and_how_likely_it_was():
    """log π of the noted action, from the noted observation; plans that the planner can draw."""
    learner = learner_of()
    done, decisions = played(learner)
    assert len(done.records) == 30
    assert decisions == 30 + len(done.query) == 30 + done.records["num_nodes"].sum()
    assert (done.resource[:, 0] <= np.log(1000) / np.log(300) + 1e-6).all()
    _, said, _ = executor_says(learner, done)
    assert done.log_prob == pytest.approx(said.detach().numpy(), abs=1e-5)
    plan = plan_of(done.records)
    assert ((plan.num_agents >= 1) & (plan.num_agents <= 6)).all()
    assert (plan.roles >= 0).all() and (plan.roles[:, 1:][plan.num_agents == 1] == 0).all()


def gradients(net):
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def test_the_executors_update_is_the_published_one():
    """Losses and gradients of the first step, written out decision by decision in NumPy."""
    learner = learner_of(executor={"mini_epochs": 1, "max_grad_norm": 1e9})
    done, _ = played(learner)
    rng = np.random.default_rng(0)
    old = done.log_prob + rng.normal(0.0, 0.3, done.log_prob.shape).astype(np.float32)
    done = done._replace(log_prob=old)  # some are clipped
    q = done.records["solved"].astype(np.float32)
    log_probs, said, values = executor_says(learner, done)
    p, v = log_probs.detach().numpy().astype(float), values.detach().numpy().astype(float)
    targets, advantages = [], []
    for i, (k, node) in enumerate(zip(done.query, done.node, strict=True)):
        query = done.records[k]
        targets.append(q[k] - 0.2 * query["node_latency_s"][node] / query["budget_s"])
        advantages.append(targets[-1] - v[i])
    a = (np.array(advantages) - np.mean(advantages)) / np.std(advantages)
    log_ratio = said.detach().numpy() - old
    ratio = np.exp(log_ratio)
    policy = -np.mean(np.minimum(ratio * a, np.clip(ratio, 0.8, 1.2) * a))
    assert 0.0 < (np.abs(ratio - 1.0) > 0.2).mean() < 1.0
    errors = v - np.array(targets)
    entropy = -np.mean((np.exp(p) * p).sum(axis=1))
    # The gradient of the loss in the network's outputs, by hand.
    n = len(a)
    clipped = ((ratio > 1.2) & (a > 0)) | ((ratio < 0.8) & (a < 0))
    by_said = torch.from_numpy(np.where(clipped, 0.0, -ratio * a) / n).float()
    by_log_probs = torch.from_numpy(0.10 * np.exp(p) * (p + 1.0) / n).float()
    by_values = torch.from_numpy(0.5 * 2.0 * errors / n).float()
    learner.agent.zero_grad()
    torch.autograd.backward([said, log_probs, values], [by_said, by_log_probs, by_values])
    expected = gradients(learner.agent.executor)

    found = learner.update_executor(done, q, 0.2)
    assert found["losses/policy_loss"] == pytest.approx(policy, abs=1e-5)
    assert found["losses/value_loss"] == pytest.approx((errors**2).mean(), rel=1e-4)
    assert found["losses/entropy"] == pytest.approx(entropy, rel=1e-4)
    assert found["losses/lag_kl"] == pytest.approx(approx_kl(torch.tensor(log_ratio)), rel=1e-3)
    for name, gradient in gradients(learner.agent.executor).items():
        near = 1e-3 * float(expected[name].abs().max())
        assert gradient.numpy() == pytest.approx(expected[name].numpy(), abs=near), name


def test_the_planners_update_is_the_published_one():
    """REINFORCE with the task loss of weight 1 and the encoders' loss of weight 0.001."""
    learner = learner_of(planner={"max_grad_norm": 1e9, "vae_weight": 0.0})
    records = played(learner)[0].records
    q, cost = records["solved"].astype(np.float32), records["cost"]
    planner = learner.agent.planner
    domain = torch.from_numpy(records["domain"].astype(np.int64))
    query = torch.from_numpy(learner.spec.task_embeddings[records["task"]])
    out = planner(query, domain, torch.Generator())
    utility = q - 0.2 * cost
    advantage = torch.tensor((utility - utility.mean()) / utility.std()).float()
    log_prob = planner.log_prob(out, plan_of(records), of_count=False)
    policy = -(log_prob * advantage).mean()
    task = F.cross_entropy(out.task_logits, domain)
    learner.agent.zero_grad()
    (policy + task).backward()
    expected = gradients(planner)

    found = learner.update_planner(records, q, 0.2)
    assert found["losses/planner_loss"] == pytest.approx(policy.item(), abs=1e-4)
    assert found["losses/task_loss"] == pytest.approx(task.item(), rel=1e-4)
    assert found["losses/vae_loss"] > 0.0
    for name, gradient in gradients(planner).items():
        if name in expected:  # what reads latents back has no part in these two losses
            near = 1e-3 * max(float(expected[name].abs().max()), 1e-2)
            assert gradient.numpy() == pytest.approx(expected[name].numpy(), abs=near), name


def test_without_system_state_nothing_of_the_servers_is_seen():
    done, _ = played(learner_of(executor={"system_state": False}))
    assert (done.resource[:, 1:] == 0.0).all()
    assert (done.resource[:, 0] > 0.0).any()


@pytest.mark.parametrize(
    ("start", "changes", "costs", "expected"),
    [
        (0.2, {}, [3.0, 0.5], [0.202, 0.2015]),  # 0.2 + 0.001·(3 - 1); + 0.001·(0.5 - 1)
        (0.999, {}, [4.0, 0.0], [1.0, 0.999]),
        (0.0005, {}, [0.0, 2.0], [0.0, 0.001]),
        (0.5, {"lr": 0.1, "limit": 0.5}, [0.5, 0.7], [0.5, 0.52]),
    ],
)
def test_dual_ascent_steps_by_eta_times_the_excess(start, changes, costs, expected):
    for cost, value in zip(costs, expected, strict=True):
        start = LagrangeConfig(**changes).step(start, cost)
        assert start == pytest.approx(value)
