"""PPO-Lagrangian: batches, one forward pass for torch and NumPy, PPO's step, multipliers."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from agents.ppo_lagrangian import Batch, Learner, PpoLagrangianConfig, World
from inframind_gym.policies import resolve_policy
from inframind_gym.policies.networks import log_softmax
from inframind_gym.policies.ppo_lagrangian import (
    MOST_LAMBDA,
    NUMPY,
    PpoLagrangianPolicy,
    Seen,
    scores_of,
    shapes,
)
from inframind_gym.simulator.workflow.state import COMPLETED
from inframind_gym.train import read_config
from tests.envs.streams import make_batch, sweep

HIDDEN = 8


def settings(*changes: str) -> PpoLagrangianConfig:
    small = ["worlds=[{workload: math, capacity_per_min: 180}]", "rows=4", "queries=300", "steps=2"]
    small += ["together=1", "minibatch=128", "loads=[0.35,1.1]", f"hidden={HIDDEN}"]
    small += ["validation_loads=[0.2]", "validation_rows=1", "validation_queries=10"]
    _, config = read_config("ppo_lagrangian", [*small, *changes])
    assert isinstance(config, PpoLagrangianConfig)
    return config


def begun(config: PpoLagrangianConfig, queries: int = 400) -> tuple[World, Learner]:
    [place] = config.env.among(config.worlds)
    world = World(config, place, "train", queries)
    learner = Learner(config, 0, [world])
    with torch.no_grad():  # a network that says something
        learner.net.w["out"].normal_(0.0, 0.1, generator=torch.Generator().manual_seed(1))
    world.begin(learner.weights(), (0, 0))
    learner.prepare()
    return world, learner


@pytest.fixture(scope="module")
def played() -> tuple[World, Learner, list[Batch]]:
    world, learner = begun(settings())
    return world, learner, [world.play(300) for _ in range(3)]


def test_every_query_is_learned_from_once_as_it_ended(
    played: tuple[World, Learner, list[Batch]],
) -> None:
    world, learner = begun(settings("restarts=false"))
    decisions = []
    pick = world.policy.pick

    def note(seen: Seen, scores: Any, contexts: Any, rows: Any) -> Any:
        decisions.append(contexts[["query", "budget_s"]].copy())
        return pick(seen, scores, contexts, rows)

    world.policy.pick = note  # type: ignore[method-assign]
    batches = [world.play(300) for _ in range(3)]
    state = world.simulation.state
    ended = np.concatenate([state.completed[e, :n] for e, n in enumerate(state.stream["finished"])])
    assert ended.dtype == COMPLETED
    late = ended["latency_s"] > ended["budget_s"]
    learned = sum(len(batch.action) for batch in batches)
    assert len(ended) <= learned <= sum(map(len, decisions))
    assert sum(int(batch.good.sum()) for batch in batches) == int((ended["solved"] & ~late).sum())
    # Those without an answer are late, at their deadlines.
    assert sum(int(batch.late.sum()) for batch in batches) == learned - len(ended) + late.sum()
    assert not any((batch.good & batch.late).any() for batch in batches)
    assert learner.updates == 0


def test_torch_and_numpy_agree(played: tuple[World, Learner, list[Batch]]) -> None:
    world, learner, batches = played
    batch = batches[-1]
    with torch.no_grad():
        log_probs, _ = learner.net(0, Seen(*map(torch.from_numpy, batch.seen)))
    policy = world.policy
    text = policy._texts[batch.seen.task]
    scores = scores_of(policy.weights, batch.seen, text, policy.fixed, NUMPY)
    ours = log_softmax(policy.sharpness * scores)
    np.testing.assert_allclose(ours[batch.seen.is_open], log_probs[batch.seen.is_open], atol=2e-3)
    each = np.arange(len(batch.action))
    np.testing.assert_allclose(ours[each, batch.action], batch.log_prob, atol=1e-4)
    expected = (np.exp(ours) * batch.seen.recipe[..., 4]).sum(axis=1)
    np.testing.assert_allclose(batch.use_expected, expected, atol=1e-4)


@pytest.mark.parametrize("critics", [True, False])
def test_a_step_is_that_of_ppo(
    played: tuple[World, Learner, list[Batch]], *, critics: bool
) -> None:
    """Losses and gradients against the clipped objective, one decision after the other."""
    world, _, batches = played
    changes = ("max_grad_norm=1e9", "entropy_weight=0.01", f"cost_critic={critics}")
    learner, batch = Learner(settings(*changes), 1, [world]), batches[-1]
    learner.prepare()
    rng = np.random.default_rng(0)
    batch = batch._replace(
        log_prob=batch.log_prob + rng.normal(0.0, 0.3, len(batch.action)).astype(np.float32),
        multiplier=rng.uniform(0.0, 0.5, len(batch.action)).astype(np.float32),
    )
    terms: list[tuple[torch.Tensor, ...]] = []
    for i in range(len(batch.action)):
        seen = Seen(*(torch.from_numpy(part[i : i + 1]) for part in batch.seen))
        log_probs, value = learner.net(0, seen)
        good, late, use = float(batch.good[i]), float(batch.late[i]), float(batch.use[i])
        lagrange = float(batch.multiplier[i])
        if critics:
            errors = torch.stack([good - value[0, 0], late - value[0, 1]])
            gain = errors[0] - lagrange * errors[1] - (use - float(batch.use_expected[i]))
        else:
            errors = (good - lagrange * late - use - value[0, :1]).reshape(1)
            gain = errors[0]
        log_prob = log_probs[0, int(batch.action[i])]
        entropy = -(log_probs.exp() * log_probs).sum()
        terms.append((gain, (log_prob - float(batch.log_prob[i])).exp(), entropy, errors))
    gain, ratio, entropy = (torch.stack([term[k] for term in terms]) for k in range(3))
    gain = gain.detach()
    advantage = (gain - gain.mean()) / (gain.std() + 1e-8)
    policy_loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    value_loss = torch.cat([term[3] for term in terms]).square().mean()
    loss = policy_loss + 0.5 * value_loss - 0.01 * entropy.mean()
    parameters = list(learner.net.parameters())
    expected = torch.autograd.grad(loss, parameters)

    losses = learner._step(0, batch, np.arange(len(batch.action)))
    for found, wanted in zip(losses, (policy_loss, value_loss, entropy.mean()), strict=False):
        assert found == pytest.approx(wanted.item(), rel=1e-3, abs=1e-5)
    for parameter, gradient in zip(parameters, expected, strict=True):
        assert parameter.grad is not None
        near = 2e-3 * float(gradient.abs().max()) + 1e-7
        np.testing.assert_allclose(parameter.grad.numpy(), gradient.numpy(), rtol=0.0, atol=near)


def test_ablations_leave_out_what_they_say() -> None:
    plain = begun(settings("prices=false", "lateness=false"))[0].play(300)
    assert (plain.use == 0.0).all()
    assert (plain.multiplier == 0.0).all()
    assert plain.late.any()


@pytest.mark.parametrize("lateness", ["lateness=true", "lateness=false"])
def test_rows_that_are_overrun_begin_anew(lateness: str) -> None:
    world, _ = begun(settings("loads=[4.0]", "prices=false", lateness, "rows=2"), queries=4000)
    for _ in range(15):
        world.play(300)
    assert (world._begun > 1).any()
    assert (world.policy.late <= 0.6).all()


def fresh(rows: int) -> PpoLagrangianPolicy:
    policy = copy.copy(resolve_policy("ppo_lagrangian"))
    assert isinstance(policy, PpoLagrangianPolicy)
    policy.use({n: np.zeros(size, np.float32) for n, size in shapes(HIDDEN).items()}, 0.9)
    env: Any = gym.make_vec(
        "InfraMind-Stream-v0", num_envs=rows, observation="index", **policy.requires
    ).unwrapped
    policy.reset(env.policy_spec(), list(range(rows)))
    policy.assigned = np.zeros((rows, 400), np.int64)
    policy.in_flight = np.zeros((rows, 400, 5))
    policy._predicted = np.zeros((rows, 400))
    return policy


def test_a_promise_that_is_broken_raises_the_multiplier_of_its_row() -> None:
    policy = fresh(3)
    records = np.zeros(300, COMPLETED)
    records["query"], records["budget_s"], records["num_nodes"] = np.arange(300), 10.0, 1
    records["model"] = -1
    records["latency_s"] = np.where(np.arange(300) % 2, 20.0, 5.0)
    policy.learn(records, np.ones(300, np.int64))
    assert policy.lagrange[1] > 0.3
    assert policy.lagrange[[0, 2]].tolist() == [0.0, 0.0]
    for _ in range(20):
        policy.learn(records, np.ones(300, np.int64))
    assert policy.lagrange[1] == MOST_LAMBDA
    records["latency_s"] = 1.0
    for _ in range(20):
        policy.learn(records, np.ones(300, np.int64))
    assert policy.lagrange[1] == 0.0


def test_untrained_it_plays_as_adaptive_does_without_toll() -> None:
    policy = fresh(2)
    policy.use(policy.weights, 0.0)
    plain = resolve_policy("adaptive")
    plain.toll = 0.0
    ours, theirs = (
        sweep(make_batch(2, num_queries=25, workload="math", **plain.requires), one, [3, 4])
        for one in (policy, plain)
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert np.array_equal(mine, other)
