"""The learned agent: credit, prices of calls, one forward pass for torch and NumPy, resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from agents.ppo_lagrangian import Learner, to_go, train
from agents.runs import Run
from agents.streams import (
    Batch,
    CallPrices,
    PpoLagrangianConfig,
    World,
    by_network,
    by_teacher,
    imitated,
    places_of,
    play_worlds,
    teacher_of,
    training_worlds,
)
from inframind_gym.errors import ConfigError
from inframind_gym.policies import models_up, resolve_policy
from inframind_gym.policies.bid_price import BidPricePolicy
from inframind_gym.policies.ppo_lagrangian import CALL, SERVER, SYSTEM_FEATURES, Player, Seen
from inframind_gym.simulator.workflow.state import COMPLETED
from inframind_gym.train import read_config

MATH = "worlds=[{workload: math, capacity_per_min: 180}]"


def settings(*changes: str) -> PpoLagrangianConfig:
    small = [MATH, "rows=4", "decisions=360", "together=2", "steps=2", "minibatch=128"]
    small += ["loads=[0.35,1.1]", "validation_loads=[0.2]", "validation_rows=1", "cloning=0"]
    _, config = read_config("ppo_lagrangian", [*small, "validation_queries=10", *changes])
    assert isinstance(config, PpoLagrangianConfig)
    return config


def worlds(*changes: str) -> list[World]:
    config = settings(*changes)
    return training_worlds(config)


@pytest.fixture(scope="module")
def world() -> World:
    return worlds("together=6")[0]


@pytest.fixture(scope="module")
def learner(world: World) -> Learner:
    made = Learner(settings(), 0, [world])
    with torch.no_grad():  # far from even odds
        for name in ("route_out", "plan_out"):
            made.net.w[name] *= 400.0
    return made


@pytest.fixture(scope="module")
def batches(world: World) -> list[Batch]:
    choose = by_teacher(teacher_of(world, None), world)
    world.begin((0, 0), moved=True)
    return [world.play(choose, (0, 1, update), 90) for update in range(6)]


@pytest.fixture(scope="module")
def batch(batches: list[Batch]) -> Batch:
    return batches[-1]


def test_batches_hold_every_decision_of_the_queries_that_are_answered(
    world: World, batches: list[Batch]
) -> None:
    row, query, node = (
        np.concatenate([getattr(b, name) for b in batches]) for name in ("row", "query", "node")
    )
    assert len(np.unique(np.column_stack([row, query, node]), axis=0)) == len(row)
    answered, state = world.answers["known"], world.env.simulation.state
    records = np.zeros((world.rows, world.queries), COMPLETED)
    for e, count in enumerate(state.stream["finished"]):
        done = state.completed[e, :count]
        records[e, done["query"]] = done
    assert answered.sum() == (node < 0).sum() > 80
    assert (answered == (records["num_nodes"] > 0)).all()
    assert answered[row, query].all()
    assert (node >= 0).sum() == records["num_nodes"].sum()
    assert (world.answers["solved"] == records["solved"]).all()
    assert (world.answers["late"] == (records["latency_s"] > records["budget_s"])).all()
    for batch in batches:
        assert (batch.answer == world.answers[batch.row, batch.query]).all()
        routes, plans = batch.node >= 0, batch.node < 0
        of = records[batch.row, batch.query]
        made = of["model"] * 3 + of["strategy"]
        assert (batch.action[routes] == made[routes, batch.node[routes]]).all()
        assert (batch.action[plans] // (6 * 3) == of["topology"][plans]).all()
    assert (batches[1].query[:10] < 60).any()  # streams go on: some were planned before


def test_torch_and_numpy_agree(batch: Batch, learner: Learner) -> None:
    is_plan = batch.node < 0
    order = np.argsort(is_plan, kind="stable")
    seen = Seen(*(torch.from_numpy(part[order]) for part in batch.seen))
    with torch.no_grad():
        found = learner.net(seen, torch.from_numpy(batch.up[order]), int((~is_plan).sum()))[:2]
    player = Player(learner.weights(), learner.worlds[0].spec, np.float32)
    played = player.log_probs(batch.seen, batch.up, is_plan)
    for ours, theirs in zip(played, found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-3)
        assert np.ptp(ours) > 1.2


def test_what_a_query_has_left_to_pay(batch: Batch) -> None:
    values = np.random.default_rng(0).normal(size=len(batch.row))
    found = to_go(values, batch)
    for i in range(0, len(values), 37):
        same = (batch.row == batch.row[i]) & (batch.query == batch.query[i])
        assert found[i] == pytest.approx(values[i:][same[i:]].sum(), abs=1e-5)


def test_rows_in_which_the_teacher_is_overrun_are_not_imitated(batch: Batch) -> None:
    answer = batch.answer.copy()
    answer["late"] = batch.row == 1
    lost = batch._replace(answer=answer)
    assert (imitated(lost) == np.flatnonzero(batch.row != 1)).all()
    label = batch.label.copy()
    label[np.flatnonzero(batch.row == 1)[3]] += 1  # the network's row: the teacher helps it out
    assert len(imitated(lost._replace(label=label))) == len(label)
    assert len(imitated(lost._replace(label=np.full(len(label), -1)))) == 0


def test_the_teacher_labels_what_the_network_plays(world: World, learner: Learner) -> None:
    teacher, network = teacher_of(world, None), by_network(learner.weights(), world, sample=True)
    world.begin((0, 2), moved=True)
    batch = world.play(by_teacher(teacher, world, network), (0, 3), 300)
    own = batch.row // 2 == 1  # two loads
    assert (batch.action == batch.label)[~own].all()
    plans, routes = own & (batch.node < 0), own & (batch.node >= 0)
    assert (batch.label[plans] >= 0).all()
    assert (batch.action[plans] != batch.label[plans]).any()
    follows = world.follows[batch.row, batch.query]
    assert ((batch.label >= 0) == follows)[routes].all()
    assert not follows[routes].all()


def test_a_call_costs_its_seconds_at_the_price_of_the_load(world: World) -> None:
    model, spec = BidPricePolicy(), world.spec
    model.reset(spec, [0])
    found, known = model.model, model.model.known
    prices = CallPrices(found, spec)
    alone = np.flatnonzero((found.recipes.models >= 0).sum(axis=1) == 1)
    r, d = int(alone[0]), 0
    m, s = int(found.recipes.models[r, 0]), int(found.recipes.strategy[r])
    same = [q for q in range(len(found.recipes)) if found.recipes.strategy[q] == s]
    calls = [(found.recipes.models[q] == m).sum() for q in same]
    each = [known.work_s[d, q, m] / n for q, n in zip(same, calls, strict=True) if n]
    assert prices.seconds[d, m, s] == pytest.approx(np.mean(each))
    rates, sent = found.rates_per_min[[0, 0, -1, -1]], np.zeros((4, spec.num_models))
    sent[1::2, m] = 1.5
    of = prices.of(rates * [0.5, 0.5, 2.0, 2.0], sent, np.full(4, d), np.full(4, 3 * m + s))
    ends, count = [0, 0, -1, -1], len(found.rates_per_min)
    base = found.prices.base.reshape(count, -1)[ends, m]
    load = np.broadcast_to(found.prices.load.reshape(count, -1), (count, 5))[ends, m]
    wanted = np.exp(base + load * np.minimum(sent[:, m], 1.0)) * np.mean(each)
    np.testing.assert_allclose(of, wanted.clip(max=1.0))


def test_plans_cost_nothing_and_calls_are_never_paid_for(batch: Batch) -> None:
    assert (batch.price[batch.node < 0] == 0.0).all()
    assert (batch.price[batch.node >= 0] > 0.0).all()
    assert (batch.price <= 1.0).all()


def test_worlds_are_chosen_by_pool_and_workload() -> None:
    _, shipped = read_config("ppo_lagrangian", [])
    assert isinstance(shipped, PpoLagrangianConfig)
    assert len(places_of(shipped)) == len(shipped.worlds) > 5
    _, math = read_config("ppo_lagrangian", ["env.workload=math"])
    assert isinstance(math, PpoLagrangianConfig)
    assert {w.workload for w in places_of(math)} == {"math"}
    with pytest.raises(ConfigError, match="cpu-tiny has 3"):
        worlds(
            "worlds=[{capacity_per_min: 9}, {pool: cpu-tiny, capacity_per_min: 9}]",
        )


def test_rows_and_tasks_of_worlds_are_numbered_through() -> None:
    config = settings(
        "worlds=[{workload: math, capacity_per_min: 180}, {workload: mbpp, capacity_per_min: 350}]"
    )
    two = training_worlds(config)
    for world in two:
        world.begin((0, 0), moved=True)
    choosers = [by_teacher(teacher_of(world, None), world) for world in two]
    batch = play_worlds(two, choosers, (0, 1), 90)
    tasks = len(two[0].spec.task_embeddings)
    assert ((batch.row >= 4) == (batch.seen.task >= tasks)).all()
    assert set(batch.row // 4) == {0, 1}


def test_an_update_is_that_of_ppo(world: World, batch: Batch) -> None:
    """Losses and gradients against the clipped objective, one decision after the other."""
    one_step = ("minibatch=100000", "max_grad_norm=1e9", "entropy_weight=0.01")
    learner = Learner(settings(*one_step), 1, [world])
    with torch.no_grad():
        learner.net.w["route_out"] *= 100.0
    shift = np.random.default_rng(0).normal(0.0, 0.3, len(batch.row))
    old = np.zeros(len(shift), np.float32)
    said: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    entropies: list[torch.Tensor] = []
    for i in range(len(shift)):
        seen = Seen(*(torch.from_numpy(part[i : i + 1]) for part in batch.seen))
        routes = int(batch.node[i] >= 0)
        route, plan, value = learner.net(seen, torch.from_numpy(batch.up[i : i + 1]), routes)
        odds = (route if routes else plan)[0]
        said.append(odds[int(batch.action[i])])
        old[i] = said[-1].item() + shift[i]
        entropies.append(-(odds.exp() * odds).sum())
        values.append(value[0])
    answer = batch.answer
    good = (answer["solved"] & ~answer["late"]).astype(float)
    goal = torch.from_numpy(good - 0.5 * to_go(batch.price, batch)).float()
    error, ratio = goal - torch.stack(values), (torch.stack(said) - torch.from_numpy(old)).exp()
    advantage = (error - error.mean()).detach() / error.std().item()
    gains = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    policy_loss, value_loss = -gains.mean(), error.square().mean()
    entropy = torch.stack(entropies).mean()
    loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
    parameters = list(learner.net.parameters())
    expected = torch.autograd.grad(loss, parameters)

    found = learner.update(batch._replace(log_prob=old))
    for name, one in (("policy", policy_loss), ("value", value_loss)):
        assert found[f"losses/{name}_loss"] == pytest.approx(one.item(), rel=1e-4, abs=1e-6)
    assert found["losses/entropy"] == pytest.approx(entropy.item(), rel=1e-4)
    for parameter, gradient in zip(parameters, expected, strict=True):
        assert parameter.grad is not None
        near = 1e-3 * float(gradient.abs().max())
        np.testing.assert_allclose(parameter.grad.numpy(), gradient.numpy(), rtol=0.0, atol=near)


def test_the_first_updates_imitate() -> None:
    config = settings("cloning=12", "together=12", "decisions=800", "epochs=3")
    [world] = training_worlds(config)
    learner, teacher = Learner(config, 0, [world]), by_teacher(teacher_of(world, None), world)
    world.begin((0, 0), moved=True)
    surprise = []
    for update in range(12):
        batch = world.play(teacher, (0, 1, update), 200)
        surprise.append(learner.update(batch)["losses/policy_loss"])
    assert surprise[-1] < 1.0 < 1.5 < surprise[0]
    player, is_plan = Player(learner.weights(), world.spec, np.float32), batch.node < 0
    routes, _ = player.log_probs(batch.seen, batch.up, is_plan)
    assert (routes.argmax(1) == batch.action[~is_plan]).mean() > 0.6


def test_the_likeliest_actions_become_likelier(world: World, batch: Batch) -> None:
    learner, is_plan = Learner(settings("sharpen=3"), 1, [world]), batch.node < 0
    found = []
    for _ in range(2):
        player = Player(learner.weights(averaged=True), world.spec, np.float64)
        found.append(player.log_probs(batch.seen, batch.up, is_plan))
        learner.sharpen()
    for before, after in zip(*found, strict=True):
        assert (before.argmax(1) == after.argmax(1)).all()
        apart = [np.diff(np.sort(odds, axis=1)) for odds in (before, after)]
        np.testing.assert_allclose(apart[1], 3.0 * apart[0], rtol=1e-5, atol=1e-7)


def test_a_teacher_must_know_the_pool() -> None:
    [world] = worlds("worlds=[{pool: single-gpu, capacity_per_min: 20}]")
    with pytest.raises(ConfigError, match="It is imitated, and calls pay its prices"):
        teacher_of(world, None)
    with pytest.raises(ConfigError, match="nowhere"):
        teacher_of(world, "nowhere")


def play(policy: Any, rows: int, seed: int, **arguments: Any) -> Any:
    env: Any = gym.make_vec(
        "InfraMind-Stream-v0", num_envs=rows, num_queries=25, **arguments, **policy.requires
    ).unwrapped
    observations, _ = env.reset(seed=[seed + row for row in range(rows)])
    policy.reset(env.policy_spec(), [seed + row for row in range(rows)])
    taken = []
    for _ in range(40):
        actions = policy.act_batch(observations, env.contexts(), np.arange(rows))
        taken.append(actions)
        observations, *_ = env.step(actions)
    return np.array(taken)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    train(settings("steps=1", "lr=0.01"), Run(out))
    return out / "best"


@pytest.mark.parametrize("mode", ["", ":sample"])
def test_a_row_alone_is_played_as_among_others(folder: Path, mode: str) -> None:
    name = f"ppo_lagrangian:{folder}{mode}"
    among = play(resolve_policy(name), 3, 5, workload="math")
    alone = play(resolve_policy(name), 1, 5, workload="math")
    assert (among[:, :1] == alone).all()


@pytest.mark.parametrize("pool", ["single-gpu", "cpu-tiny", "b200-2gpu"])
def test_the_shipped_policy_plays_every_pool(pool: str) -> None:
    actions = play(resolve_policy("ppo_lagrangian"), 2, 0, pool=pool)
    assert len(np.unique(actions[..., -1])) > 1
    with pytest.raises(ConfigError, match="there is no such folder"):
        resolve_policy("ppo_lagrangian:nowhere")


def test_models_that_are_down_are_never_chosen(world: World, learner: Learner) -> None:
    env: Any = gym.make_vec(
        "InfraMind-Stream-v0",
        num_envs=4,
        level="joint",
        observation="index",
        system_features=SYSTEM_FEATURES,
        down_models=["deepseek-32b", "llama-3b"],
    ).unwrapped
    env.reset(seed=0)
    up = models_up(env.contexts(), 5)
    seen = Seen(
        np.zeros(4, np.int64),
        np.zeros(4, np.int64),
        np.zeros((4, CALL), np.float32),
        np.zeros((4, 5, SERVER), np.float32),
    )
    player = Player(learner.weights(), world.spec, np.float64)
    routes, _ = player.log_probs(seen, up, np.zeros(4, np.bool_))
    odds = np.exp(routes).reshape(4, 5, 3).sum(axis=2)
    assert (odds[:, [0, 4]] == 0.0).all()
    np.testing.assert_allclose(odds.sum(axis=1), 1.0)
