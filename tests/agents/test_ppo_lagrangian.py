"""The learned agent: credit, prices of calls, one forward pass for torch and NumPy, resuming."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from agents.config import PpoLagrangianConfig
from agents.lagrangian import PIDMultiplier
from agents.ppo_lagrangian import Congestion, Learner, to_go, train
from agents.runs import use_one_thread, weights_of
from agents.streams import Batch, Met, World, by_teacher, overrun
from agents.train import read_config
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint, models_up, resolve_policy
from inframind_gym.policies.ppo_lagrangian import SYSTEM_FEATURES, Player, Seen
from inframind_gym.simulator.workflow.state import COMPLETED

RATES = np.array([60.0, 200.0, 60.0, 200.0])


def settings(*changes: str) -> PpoLagrangianConfig:
    small = ["env.workload=math", "rows=4", "steps=90", "together=2", "updates=2", "minibatch=128"]
    small += ["rates_per_min=[20,30]", "validation_rows=2", "validation_queries=10", "cloning=0"]
    _, config = read_config("ppo_lagrangian", [*small, *changes])
    assert isinstance(config, PpoLagrangianConfig)
    return config


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    use_one_thread()


@pytest.fixture(scope="module")
def world() -> World:
    return World(settings("settled_s=20", "horizon_s=30"), "train", 4, 400)


@pytest.fixture(scope="module")
def learner(world: World) -> Learner:
    made = Learner(settings(), 0, world.spec)
    with torch.no_grad():  # far from even odds
        for name in ("route_out", "plan_out"):
            made.net.w[name] *= 400.0
    return made


@pytest.fixture(scope="module")
def batches(world: World) -> list[Batch]:
    world.begin((0, 0), RATES)
    choose = by_teacher(world.spec, 4)
    return [world.play(choose, (0, 1, update)) for update in range(6)]


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
    answered = world.records["num_nodes"] > 0
    assert answered.sum() == (node < 0).sum() > 80
    assert answered[row, query].all()
    assert (node >= 0).sum() == world.records["num_nodes"].sum()
    for batch in batches:
        assert (batch.answer == world.records[batch.row, batch.query]).all()
        routes, plans = batch.node >= 0, batch.node < 0
        made = batch.answer["model"] * 3 + batch.answer["strategy"]
        assert (batch.action[routes] == made[routes, batch.node[routes]]).all()
        assert (batch.action[plans] // (6 * 3) == batch.answer["topology"][plans]).all()
    assert (batches[1].query[:10] < 60).any()  # streams go on: some were planned before


def test_torch_and_numpy_agree(batch: Batch, learner: Learner) -> None:
    seen = Seen(*(torch.from_numpy(part) for part in batch.seen))
    with torch.no_grad():
        found = learner.net(seen, torch.from_numpy(batch.up))[:2]
    for ours, theirs in zip(learner.player().log_probs(batch.seen, batch.up), found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-3)
        assert np.ptp(ours) > 1.5


def test_what_a_query_has_left_to_pay(batch: Batch) -> None:
    values = np.random.default_rng(0).normal(size=len(batch.row))
    found = to_go(values, batch)
    for i in range(0, len(values), 37):
        same = (batch.row == batch.row[i]) & (batch.query == batch.query[i])
        assert found[i] == pytest.approx(values[i:][same[i:]].sum(), abs=1e-5)


@pytest.mark.parametrize("multiplier", [0.0, 0.7])
def test_what_followed_a_load(world: World, batches: list[Batch], multiplier: float) -> None:
    assert len(batches) == 6
    world._met[:] = 0
    met = world.met(multiplier)
    records, arrival_s = world.records, world.arrival_s
    solved, late = records["solved"], records["latency_s"] > records["budget_s"]
    late |= records["num_nodes"] == 0
    reward = solved * ~late + world.config.bonus * solved - multiplier * late
    known = arrival_s < world.time_s[:, None] - 20
    task = world.env.simulation.state.task
    for group in (task, np.arange(4)[:, None] * np.ones_like(task)):
        sums, count = np.zeros(task.max() + 5), np.zeros(task.max() + 5)
        np.add.at(sums, group[known], reward[known])
        np.add.at(count, group[known], 1)
        reward = np.where(known, reward - (sums / count.clip(1))[group], 0.0)
    kept = [k for k in range(4) if late[k][known[k]].mean() <= 0.1]
    wanted = []
    for k in kept:
        for j in np.flatnonzero(arrival_s[k] < world.time_s[k] - 20 - 60):
            gap_s = arrival_s[k, j + 1 :] - arrival_s[k, j]
            wanted.append((np.exp(-gap_s / 30) * reward[k, j + 1 :]).sum())
    assert len(wanted) > 20
    np.testing.assert_allclose(met.later, wanted, atol=1e-9)
    assert set(met.row) == set(kept)
    assert len(world.met(multiplier).row) == 0  # each load once


def test_rows_that_are_overrun_are_left_out() -> None:
    records = np.zeros(40, COMPLETED)
    records["num_nodes"], records["budget_s"] = 1, 10.0
    records["latency_s"][[0, 1, 2, 20]] = 11.0
    row = np.repeat([0, 2], 20)
    assert (overrun(row, records) == (row == 0)).all()


def test_prices_are_found_and_rise_with_the_queue() -> None:
    rng = np.random.default_rng(0)
    sent, row = 3.0 * rng.random((8000, 2)), rng.integers(4, size=8000)
    lost = 0.2 * sent[:, 0] + 0.5 * np.maximum(sent[:, 0] - 1.0, 0.0) ** 2 / 2.0
    congestion = Congestion(2)
    assert (congestion.prices(sent) == 0.0).all()
    for _ in range(3):
        noise = rng.normal(size=8000)
        congestion.learn(Met(row, sent, row + 0.01 * noise - lost))
    loads = np.array([[0.5, 0.5], [1.5, 1.5], [11.0, 11.0]])
    wanted = [[0.2, 0.0], [0.45, 0.0], [5.2, 0.0]]
    np.testing.assert_allclose(congestion.prices(loads), wanted, atol=0.05, rtol=0.1)


def test_plans_cost_nothing_and_calls_are_never_paid_for(batch: Batch, learner: Learner) -> None:
    price = learner._prices(batch)
    assert (price[batch.node < 0] == 0.0).all()
    assert (price <= 0.0).all()
    assert (price >= -1.0).all()


def test_a_multiplier_does_not_wind_up() -> None:
    pid = PIDMultiplier(0.0, 1.0, 0.2, 1.0, 0.1, 0.5, most=2.0)
    for _ in range(200):
        pid.update(1.0)
    assert pid.value == 2.0
    steps = 0
    while pid.value > 0.0:
        pid.update(0.0)
        steps += 1
    assert steps < 120  # of 0.02 each; unbounded it would be 1,800


def test_the_first_updates_imitate() -> None:
    config = settings("cloning=12", "steps=200")
    world = World(config, "train", 4, 1300)
    learner, teacher = Learner(config, 0, world.spec), by_teacher(world.spec, 4)
    world.begin((0, 0), RATES)
    surprise = []
    for update in range(12):
        batch = world.play(teacher, (0, 1, update))
        surprise.append(learner.update(batch, world.met(0.0))["losses/policy_loss"])
    assert (batch.answer["num_agents"] == batch.answer["num_agents"][0]).all()  # its recipes
    assert surprise[-1] < 1.0 < 1.5 < surprise[0]
    routes, _ = learner.player().log_probs(batch.seen, batch.up)
    taken = batch.node >= 0
    assert (routes[taken].argmax(1) == batch.action[taken]).mean() > 0.6


def test_a_teacher_must_know_the_pool() -> None:
    world = World(settings("env.pool=single-gpu"), "train", 1, 10)
    with pytest.raises(ConfigError, match="Or imitate nothing: --set cloning=0"):
        by_teacher(world.spec, 1)
    with pytest.raises(ConfigError, match="nowhere"):
        by_teacher(world.spec, 1, "nowhere")


def test_a_training_that_is_resumed_ends_alike(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    found = train(settings("promise=0.9", "cloning=1", "together=1"), seed=3, out=whole)
    original = Learner.update

    def stop(self: Learner, batch: Batch, met: Met) -> dict[str, float]:
        if self.updates == 1:
            raise KeyboardInterrupt
        return original(self, batch, met)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "update", stop)
        with pytest.raises(KeyboardInterrupt):
            train(settings("promise=0.9", "cloning=1", "together=1"), seed=3, out=parts)
    with pytest.raises(ConfigError, match="--resume"):
        train(settings("promise=0.9", "cloning=1", "together=1"), seed=3, out=parts)
    with pytest.raises(ConfigError, match=r"another config\.promise"):
        train(settings("promise=0.5", "cloning=1", "together=1"), seed=3, out=parts, resume=True)
    again = train(
        settings("promise=0.9", "cloning=1", "together=1"), seed=3, out=parts, resume=True
    )
    assert again["validation"] == found["validation"]
    for name in ("best", "state"):
        (first, _), (second, _) = (checkpoint.load(f / name) for f in (whole, parts))
        assert all((first[name] == second[name]).all() for name in first)


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
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    own, any_pool = (tmp_path_factory.mktemp(name) for name in ("own", "any"))
    train(settings("updates=1", "lr=0.01"), seed=0, out=own)
    train(settings("updates=1", "identity=false"), seed=0, out=any_pool)
    return own, any_pool


@pytest.mark.parametrize("mode", ["", ":sample"])
def test_a_row_alone_is_played_as_among_others(folders: tuple[Path, Path], mode: str) -> None:
    name = f"ppo_lagrangian:{folders[0]}/best{mode}"
    among = play(resolve_policy(name), 3, 5, workload="math")
    alone = play(resolve_policy(name), 1, 5, workload="math")
    assert (among[:, :1] == alone).all()


def test_a_policy_of_one_pool_is_refused_on_others(folders: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match="was trained for the models deepseek-32b"):
        play(resolve_policy(f"ppo_lagrangian:{folders[0]}/best"), 1, 0, pool="single-gpu")
    actions = play(resolve_policy(f"ppo_lagrangian:{folders[1]}/best"), 1, 0, pool="single-gpu")
    assert (actions >= 0).all()


def test_a_folder_has_a_checkpoint_for_every_workload(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    shutil.copytree(folders[0] / "best", tmp_path / "math")
    shutil.copytree(folders[1] / "best", tmp_path / "mbpp")
    name = f"ppo_lagrangian:{tmp_path}"
    own = f"ppo_lagrangian:{folders[0]}/best"
    by_workload = play(resolve_policy(name), 2, 5, workload="math")
    assert (by_workload == play(resolve_policy(own), 2, 5, workload="math")).all()
    assert (by_workload != play(resolve_policy(name), 2, 5, workload="mbpp")).any()
    with pytest.raises(ConfigError, match=r"workload 'humaneval', but math, mbpp"):
        play(resolve_policy(name), 1, 0, workload="humaneval")


def test_the_shipped_checkpoints_play_their_workloads() -> None:
    actions = play(resolve_policy("ppo_lagrangian"), 2, 0, workload="math")
    assert len(np.unique(actions[..., -1])) > 1
    with pytest.raises(ConfigError, match="--config ppo_lagrangian --workload mixed"):
        play(resolve_policy("ppo_lagrangian"), 1, 0, workload="mixed")


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
        np.zeros((4, 18), np.float32),
        np.zeros((4, 5, 10), np.float32),
    )
    weights = checkpoint.part(weights_of(learner.net), "w.")
    routes, _ = Player(weights, world.spec, np.float64).log_probs(seen, up)
    odds = np.exp(routes).reshape(4, 5, 3).sum(axis=2)
    assert (odds[:, [0, 4]] == 0.0).all()
    np.testing.assert_allclose(odds.sum(axis=1), 1.0)
