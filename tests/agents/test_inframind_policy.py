"""The policy of a checkpoint: acts as in its training, without torch."""

import gymnasium as gym
import numpy as np
import pytest
import torch

import inframind_gym  # noqa: F401
from agents.inframind import EPISODES, InfraMindConfig, Learner, Streams
from agents.runs import seed_of, weights_of
from inframind_gym.errors import ConfigError
from inframind_gym.policies import multiplier_of
from inframind_gym.policies import resolve_policy as make
from inframind_gym.policies.checkpoint import load, save
from inframind_gym.policies.networks import InfraMindPolicy, Player
from tests.envs.streams import sweep

CONFIG = InfraMindConfig.model_validate(
    {"env": {"workload": "mixed", "num_queries": 12}, "planner": {"init": None}}
)
RATES = [30.0, 60.0, 100.0, 200.0]


@pytest.fixture(scope="module")
def learner():
    made = Learner(CONFIG, 0, Streams(CONFIG, "train", 1).spec)
    with torch.no_grad():
        made.agent.executor.policy.weight *= 100.0  # opinions: with the first weights all are even
    return made


@pytest.fixture(scope="module")
def folder(learner, tmp_path_factory):
    out = tmp_path_factory.mktemp("policy") / "best"
    config = learner.facts() | {"training": {}}
    del config["multiplier"]
    save(out, weights_of(learner.agent), config)
    return out


def make_env(rows, policy, **changes):
    arguments = CONFIG.env.arguments("train") | {"observation": "index"} | policy.requires
    return gym.make_vec("InfraMind-Stream-v0", num_envs=rows, **(arguments | changes)).unwrapped


def play(policy, rows=4, seeds=range(4), **changes):
    """One episode a row; (rows, queries) COMPLETED."""
    env = make_env(rows, policy, **changes)
    return np.stack(sweep(env, policy, list(seeds)[:rows], arrival_rate_per_min=RATES[:rows]))


def test_it_decides_as_in_training(learner, folder):
    streams = Streams(CONFIG, "train", 4)
    streams.begin(np.array(RATES), 0, 0)
    while streams.running.any():
        streams.step(learner.player(), 0.0)
    expected = streams.records.ravel()
    seeds = [seed_of(0, 0, EPISODES, row) for row in range(4)]
    done = play(InfraMindPolicy(str(folder)), seeds=seeds).ravel()
    for records in (expected, done):
        records.sort(order=["task", "arrival_s"])
    assert np.array_equal(expected, done)
    assert len(np.unique(expected["model"][:, 0])) > 1


def test_sampling_draws(folder):
    likely = play(InfraMindPolicy(str(folder)))
    drawn = play(InfraMindPolicy(str(folder), "sample"))
    assert len(np.unique(drawn["topology"])) > len(np.unique(likely["topology"]))
    assert set(np.unique(drawn["num_agents"])) == {3}  # without a policy gradient, the first one


def test_a_checkpoint_with_a_temperature_draws_routes_alone(folder, tmp_path):
    tensors, config = load(folder)
    save(tmp_path / "warm", tensors, config | {"temperature": 0.5})
    likely, warm = (play(InfraMindPolicy(str(f))) for f in (folder, tmp_path / "warm"))
    assert np.array_equal(likely["topology"], warm["topology"])
    assert not np.array_equal(likely["model"], warm["model"])
    again = play(InfraMindPolicy(str(tmp_path / "warm"), "likeliest"))
    assert np.array_equal(likely["model"], again["model"])


def test_predicted_latency_grows_with_the_queue_and_the_length(learner):
    spec = make_env(1, InfraMindPolicy()).policy_spec()
    player = Player(weights_of(learner.agent), spec, predicted_latency=True)
    observations = np.zeros((2, spec.layout.size), np.float32)
    observations[1, spec.layout.system("queue")] = 2.0  # 32 calls on 16 slots
    idle, full = player.resource(observations)[:, 1:].reshape(2, 5, 3)
    assert (np.exp(idle[:, 1] * np.log(300)) - 1) == pytest.approx(
        0.87 * spec.expected_call_s, rel=1e-3
    )
    assert (full > idle).all() and (idle[:, 2] > idle[:, 0]).all()


@pytest.mark.parametrize(
    ("changes", "config", "says"),
    [
        ({"executor.merge.weight": np.zeros((128, 191), np.float32)}, {}, r"\(128, 191\), wanted"),
        ({"executor.merge.weight": None}, {}, "no tensor 'executor.merge.weight'"),
        ({"planner.collab_mode.texts": None}, {}, "planner is not whole: 'texts'"),
        ({}, {"system_features": None}, "system_features: input should be a valid"),
        ({}, {"models": ["a", "b", "c", "d", "gpt-oss-20b"]}, "for the models a, .*gpt-oss-20b"),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(folder, tmp_path, changes, config, says):
    tensors, own = load(folder)
    tensors = {k: v for k, v in (tensors | changes).items() if v is not None}
    save(tmp_path / "wrong", tensors, own | config)
    with pytest.raises(ConfigError, match=says):
        policy = InfraMindPolicy(str(tmp_path / "wrong"))
        policy.reset(make_env(1, policy).policy_spec(), [0])


def test_mode_and_level_are_checked(folder):
    policy = InfraMindPolicy(str(folder), "sample")
    assert policy.name == f"inframind:{folder}:sample"
    assert make("inframind::sample").name == "inframind::sample"  # the shipped checkpoint
    assert multiplier_of(policy) is None  # this checkpoint has none
    with pytest.raises(ConfigError, match="level='joint'"):
        policy.reset(make_env(1, policy, level="executor").policy_spec(), [0])
    with pytest.raises(ConfigError, match="mode is 'draw'"):
        InfraMindPolicy(str(folder), "draw")
