"""The learned agent: credit, prices of calls, one forward pass for torch and NumPy, resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from agents.config import PpoLagrangianConfig
from agents.lagrangian import PIDMultiplier
from agents.ppo_lagrangian import Batch, Congestion, Learner, World, credit, to_go, train
from agents.runs import weights_of
from agents.train import read_config
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint, models_up, resolve_policy
from inframind_gym.policies.ppo_lagrangian import SYSTEM_FEATURES, Player, Seen

RATES = np.array([60.0, 200.0, 60.0, 200.0])


def settings(*changes: str) -> PpoLagrangianConfig:
    small = ("env.workload=math", "rows=4", "queries=40", "updates=2", "minibatch=128")
    _, config = read_config("ppo_lagrangian", [*small, "validation_rows=6", *changes])
    assert isinstance(config, PpoLagrangianConfig)
    return config


@pytest.fixture(scope="module")
def world() -> World:
    return World(settings(), "train", 4)


@pytest.fixture(scope="module")
def learner(world: World) -> Learner:
    made = Learner(settings(), 0, world.spec)
    with torch.no_grad():  # far from even odds
        for name in ("route_out", "plan_out"):
            made.net.w[name] *= 400.0
    return made


@pytest.fixture(scope="module")
def batch(world: World, learner: Learner) -> Batch:
    return world.play(learner.player(), (0, 0), RATES, sample=True)


def test_a_batch_holds_every_decision_of_every_query(batch: Batch) -> None:
    assert (batch.records["query"] == np.arange(40)).all()
    plans = batch.node < 0
    assert plans.sum() == 4 * 40
    assert (~plans).sum() == batch.records["num_nodes"].sum()
    routes = batch.records["model"] * 3 + batch.records["strategy"]
    at = (batch.row[~plans], batch.query[~plans], batch.node[~plans])
    assert (batch.action[~plans] == routes[at]).all()
    topology = batch.records["topology"][batch.row[plans], batch.query[plans]]
    assert (batch.action[plans] // (6 * 3) == topology).all()


def test_torch_and_numpy_agree(batch: Batch, learner: Learner) -> None:
    seen = Seen(*(torch.from_numpy(part) for part in batch.seen))
    with torch.no_grad():
        routes, plans, _ = learner.net(seen, torch.from_numpy(batch.up))
    chosen = torch.where(
        torch.from_numpy(batch.node < 0),
        plans.gather(1, torch.from_numpy(batch.action)[:, None])[:, 0],
        routes.gather(1, torch.from_numpy(batch.action)[:, None].clamp(max=14))[:, 0],
    )
    np.testing.assert_allclose(chosen.numpy(), batch.log_prob, atol=1e-3)
    assert np.ptp(batch.log_prob[batch.node >= 0]) > 1.5


def test_what_a_query_has_left_to_pay(batch: Batch) -> None:
    values = np.random.default_rng(0).normal(size=len(batch.row))
    found = to_go(values, batch)
    for i in range(0, len(values), 37):
        same = (batch.row == batch.row[i]) & (batch.query == batch.query[i])
        assert found[i] == pytest.approx(values[i:][same[i:]].sum(), abs=1e-5)


@pytest.mark.parametrize("multiplier", [0.0, 0.7])
def test_what_queries_are_worth_and_what_follows(batch: Batch, multiplier: float) -> None:
    config = settings()
    earned = credit(batch, config, multiplier)
    solved, late = batch.records["solved"], batch.records["latency_s"] > batch.records["budget_s"]
    wanted = solved * (1 - late) + config.bonus * solved - multiplier * late
    np.testing.assert_allclose(earned.reward, wanted, atol=1e-6)
    arrival_s = batch.records["arrival_s"]
    for i in np.flatnonzero(earned.known)[::41]:
        row, now_s = batch.row[i], batch.time_s[i]
        later = arrival_s[row] > now_s
        weight = np.exp(-(arrival_s[row] - now_s) / config.horizon_s) * later
        mean = (weight * wanted[row]).sum() / weight.sum()
        assert earned.later[i] == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize("identity", [True, False])
def test_a_price_is_what_one_more_call_changes(identity: bool) -> None:
    torch.manual_seed(0)
    critic, slots = Congestion(5, identity=identity), torch.tensor([16.0, 8, 16, 32, 64])
    sent, facts, rate = 3 * torch.rand(7, 5), torch.randn(7, 5, 3), torch.randn(7)
    prices = critic.prices(sent, facts, rate, slots)
    for m in range(5):
        more = sent.clone()
        more[:, m] += 1.0 / slots[m]
        change = critic(more, facts, rate) - critic(sent, facts, rate)
        torch.testing.assert_close(prices[:, m], change, atol=1e-6, rtol=1e-3)


def test_plans_cost_nothing_and_calls_are_never_paid_for(batch: Batch, learner: Learner) -> None:
    price = learner._prices(batch)
    assert (price[batch.node < 0] == 0.0).all()
    assert (price <= 0.0).all()
    assert (price >= -0.5).all()


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


def test_a_training_that_is_resumed_ends_alike(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    found = train(settings("promise=0.9"), seed=3, out=whole)
    original = Learner.update

    def stop(self: Learner, batch: Batch) -> dict[str, float]:
        if self.updates == 1:
            raise KeyboardInterrupt
        return original(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "update", stop)
        with pytest.raises(KeyboardInterrupt):
            train(settings("promise=0.9"), seed=3, out=parts)
    with pytest.raises(ConfigError, match="--resume"):
        train(settings("promise=0.9"), seed=3, out=parts)
    with pytest.raises(ConfigError, match=r"another config\.promise"):
        train(settings("promise=0.5"), seed=3, out=parts, resume=True)
    again = train(settings("promise=0.9"), seed=3, out=parts, resume=True)
    assert again["validation"] == found["validation"]
    (first, _), (second, _) = (checkpoint.load(f / "best") for f in (whole, parts))
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


def test_it_says_how_to_train_one() -> None:
    with pytest.raises(ConfigError, match=r"agents\.train --config ppo_lagrangian"):
        resolve_policy("ppo_lagrangian")


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
