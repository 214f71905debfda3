"""Stable-Baselines3: λ by hand, short trainings of every family, their export and their play."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("stable_baselines3")

import stable_baselines3
import torch

import baselines
from agents.runs import Run
from baselines.sb3 import (
    LEARNERS,
    LagrangianSettings,
    LagrangianVecEnv,
    export_network,
    make_envs,
    make_learner,
    train,
)
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint, policy_names, resolve_policy
from inframind_gym.policies.checkpoint import SHIPPED
from inframind_gym.policies.mlp import COORDINATION, MaskablePpoPlacement, forward
from inframind_gym.policies.rollout import play_assignment, play_coordination, play_token_budget
from inframind_gym.train import read_config
from tests.golden.trainers import BASELINES
from tests.policies.synthetic import make_contexts, make_spec

ROOT = Path(__file__).parents[2]
ROWS = 6
SETTINGS = LagrangianSettings(
    start=0.5,
    learning_rate=0.1,
    largest=0.7,
    cost_limit=1.0,
    every_episodes=2,
    largest_step_cost=3.0,
)


def short(name: str, *changes: str) -> Any:
    """A configuration with few updates."""
    return read_config(name, [*BASELINES[name], *changes])[1]


@pytest.fixture(scope="module", params=BASELINES)
def trained(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    """(name, folder of a short training, its result)."""
    out = tmp_path_factory.mktemp("runs") / request.param
    return request.param, out, train(short(request.param), Run(out, seed=1))


def test_a_short_training_is_played_and_not_repeated(trained: tuple[str, Path, Any]) -> None:
    name, out, result = trained
    assert result["timesteps"] >= 96 and result["episodes"] > 0 and result["last_mean_return"]
    assert (out / "metrics.jsonl").is_file()
    before = (out / "best" / checkpoint.MODEL_FILE).read_bytes()
    assert train(short(name), Run(out, seed=1, resume=True)) == result
    assert (out / "best" / checkpoint.MODEL_FILE).read_bytes() == before
    with pytest.raises(ConfigError, match="another seed"):
        train(short(name), Run(out, seed=2, resume=True))
    policy = f"sb3_maskable_ppo:{out}"
    if name == "assignment_ppo":
        ppo = resolve_policy(f"sb3_ppo:{out}", family="assignment")
        played = list(play_assignment(ppo, [0, 1], load="queue", num_tasks=10))
        assert sum(len(done.row) for done in played) == 20
        with pytest.raises(ConfigError, match="trained for load 'queue', not 'window'"):
            next(play_assignment(resolve_policy(f"sb3_ppo:{out}", family="assignment"), [0]))
    elif name == "placement_ppo":
        assert MaskablePpoPlacement(str(out)).config.hidden == 4
    elif name == "token_budget_ppo":
        assert (
            play_token_budget(resolve_policy(policy, family="token_budget"), range(20))["decisions"]
            > 0
        ).all()
    elif name == "coordination_ppo":
        assert (
            play_coordination(resolve_policy(policy, family="coordination"), range(20))["decisions"]
            > 0
        ).all()
    else:
        config = baselines.resolve_policy(f"{name}:{out}").config
        assert config.layers == (779, 64, 64, 15)
        assert config.training["config"]["env"]["split"] == "train"


def test_unknown_arguments_and_environments_without_costs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'learning_rate'"):
        train(short("sb3_ppo", "arguments.learning_rat=1"), Run(tmp_path))
    envs = LagrangianVecEnv(scripted([([0.0, 0.0], [0.1, None], [False, False])]), SETTINGS)
    envs.reset()
    with pytest.raises(ConfigError, match="cost"):
        envs.step(np.zeros(2, np.int64))


def scripted(script) -> Any:
    """Two rows that read rewards, costs and ends of episodes from a script."""
    space = spaces.Box(0.0, 1.0, (1,), np.float32)
    venv = Mock(num_envs=2, observation_space=space, action_space=spaces.Discrete(2))
    venv.get_attr.return_value = [None, None]  # render modes
    venv.step_wait.side_effect = [
        (
            np.zeros((2, 1), np.float32),
            np.array(rewards, np.float32),
            np.array(dones),
            [{} if cost is None else {"cost": cost} for cost in costs],
        )
        for rewards, costs, dones in script
    ]
    return venv


def play(script, settings: LagrangianSettings = SETTINGS):
    envs = LagrangianVecEnv(scripted(script), settings)
    envs.reset()
    steps = []
    for _ in script:
        _, rewards, _, infos = envs.step(np.zeros(2, np.int64))
        steps.append((rewards.tolist(), envs.multiplier.value, infos))
    return envs, steps


def test_the_dual_update_by_hand() -> None:
    envs, steps = play(
        [
            ([0.0, 0.0], [0.5, 0.25], [False, False]),
            ([1.0, 0.0], [1.5, 0.25], [True, False]),  # an episode of cost 2
            ([0.0, 1.0], [0.0, 0.5], [False, True]),  # one of cost 1: mean 1.5
            ([1.0, 1.0], [0.2, 0.4], [True, True]),  # 0.2 and 0.4: mean 0.3
            ([0.0, 0.0], [0.0, 0.0], [False, False]),
        ]
    )
    # Penalties use λ from before the step: 0.5 until the first update, 0.5 + 0.1 · 0.5 after it.
    assert steps[0][0] == pytest.approx([-0.25, -0.125])
    assert steps[1][0] == pytest.approx([1.0 - 0.75, -0.125])
    assert steps[1][1] == 0.5, "one episode is no batch of two"
    assert steps[2][1] == pytest.approx(0.55)
    assert steps[3][0] == pytest.approx([1.0 - 0.55 * 0.2, 1.0 - 0.55 * 0.4])
    assert steps[4][1] == pytest.approx(0.55 - 0.1 * 0.7)
    assert list(envs.cost_queue) == pytest.approx([2.0, 1.0, 0.2, 0.4])
    assert [info["reward"] for info in steps[3][2]] == [1.0, 1.0]


def test_budgets_are_drawn_costs_charged_and_every_row_keeps_its_arrival_rate() -> None:
    free = "lagrangian={start: 0.5, learning_rate: 0, largest: 1, cost_limit: 1, every_episodes: 2"
    config = short("sb3_ppo", f"{free}, largest_step_cost: 3}}", "rates_per_min=[10,200]")
    base, envs = make_envs(config)
    envs.seed(3)
    envs.reset()
    arrivals_s = base.batch.simulation.state.arrival_s[:, -1]
    assert arrivals_s[0::2].mean() > 5.0 * arrivals_s[1::2].mean()
    budgets_s = set()
    for _ in range(40):
        _, rewards, _, infos = envs.step(np.zeros(6, np.int64))
        paid = [info["reward"] - 0.5 * min(info["cost"], 3.0) for info in infos]
        assert rewards.tolist() == pytest.approx(paid, abs=1e-6)
        budgets_s |= {context["budget_s"] for context in envs.env_method("context")}
    assert len(budgets_s) > 3 and budgets_s <= {10, 30, 50, 100, 200, 300, 600, 1000}


def observations_of(count: int, seed: int = 0, **arguments: Any) -> tuple[np.ndarray, Any]:
    """Real observations of the training environment, and its specification."""
    envs, _ = make_envs(short("sb3_ppo"), **arguments)
    envs.seed(seed)
    seen = [envs.reset()]
    rng = np.random.default_rng(seed)
    while len(seen) * ROWS < count:
        seen.append(envs.step(rng.integers(0, 15, ROWS))[0])
    return np.concatenate(seen)[:count], envs.batch.policy_spec()


@pytest.mark.parametrize("algorithm", LEARNERS)
@pytest.mark.parametrize("form", ["full", "index"])
def test_numpy_chooses_as_stable_baselines3_does(algorithm: str, form: str, tmp_path) -> None:
    config = short(f"sb3_{algorithm}")
    model: Any = make_learner(config, make_envs(config)[1], seed=0)
    with torch.no_grad():  # weights with which different observations get different actions
        for parameter in model.policy.parameters():
            parameter.normal_(0.0, 0.5)
    tensors, network = export_network(model)
    _, shipped = checkpoint.load(SHIPPED / f"sb3_{algorithm}")
    checkpoint.save(tmp_path / "saved", tensors, shipped | network)
    policy = baselines.resolve_policy(f"sb3_{algorithm}:{tmp_path / 'saved'}")

    full, _ = observations_of(240)
    seen, spec = observations_of(240, observation=form)
    policy.reset(spec, [0] * len(seen))
    rows = np.arange(len(seen))
    contexts = make_contexts(len(seen))
    actions = policy.act_batch(seen, contexts, rows)
    expected, _ = model.predict(full, deterministic=True)
    margins = np.diff(np.sort(policy.values(seen), axis=1)[:, -2:])[:, 0]
    clear = margins > 1e-5  # float32 and float64 may part where two actions tie
    assert clear.mean() > 0.95 and len(set(expected.tolist())) > 3
    np.testing.assert_array_equal(actions[clear], expected[clear])
    for row in (0, 17, 239):
        policy.row = row
        assert policy.act(seen[row], contexts[row]) == actions[row]

    contexts["models_up"] = 0b10110  # models 0 and 3 are down
    masked = policy.act_batch(seen, contexts, rows)
    assert set((masked // 3).tolist()) <= {1, 2, 4}
    if algorithm == "maskable_ppo":
        mask = np.repeat([False, True, True, False, True], 3)
        expected, _ = model.predict(
            full, deterministic=True, action_masks=np.tile(mask, (len(full), 1))
        )
        assert (masked == expected).mean() > 0.99


def test_shipped_policies_play_and_have_the_shipped_hyperparameters() -> None:
    observations, spec = observations_of(120, observation="index", seed=5)
    resource = observations[:, spec.layout.resource]
    loaded = np.random.default_rng(0).uniform(0.0, 6.0, resource.shape)
    observations[60:, spec.layout.resource] = loaded[60:]
    for algorithm in LEARNERS:
        policy = baselines.resolve_policy(f"sb3_{algorithm}")
        assert policy.name == f"sb3_{algorithm}"
        training = policy.config.training
        assert training["timesteps"] >= 100_000
        asked = read_config(f"sb3_{algorithm}")[1]
        hyperparameters = {**training["hyperparameters"], **asked.arguments}
        assert hyperparameters.items() >= training["hyperparameters"].items()
        assert training["lagrangian"] == asked.lagrangian.model_dump()
        assert training["environment"].items() >= asked.env.items()
        assert sum(path.stat().st_size for path in policy.folder.iterdir()) < 2 * 10**6
        policy.reset(spec, [0] * 120)
        actions = policy.act_batch(observations, make_contexts(120), np.arange(120))
        assert len(set(actions.tolist())) > 1, "they see load, budget or query"


def test_playing_needs_neither_torch_nor_sb3() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'stable_baselines3', 'sb3_contrib'): sys.modules[name] = None\n"
        "import gymnasium as gym, numpy as np, baselines, inframind_gym\n"
        "policy = baselines.resolve_policy('sb3_ppo')\n"
        "env = gym.make('InfraMind-Executor-v0', num_queries=4)\n"
        "observation, _ = env.reset(seed=0)\n"
        "policy.reset(env.unwrapped.policy_spec(), [0])\n"
        "env.step(policy.act(observation, env.unwrapped.context()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "a2c"}, "trained by 'a2c'.*play it as sb3_a2c"),
        ({"kind": "inframind"}, "kind is 'inframind'"),
        ({"activation": "gelu"}, "activation: .gelu. is not valid.*tanh, relu"),
        ({"layers": [780, 64, 64, 15]}, r"must start with 779"),
        ({"layers": [779, 15]}, r"layer0\.weight has shape \(64, 779\), wanted \(15, 779\)"),
        ({"layer": []}, "unknown key"),
    ],
)
def test_checkpoints_that_do_not_fit(tmp_path: Path, changes, message: str) -> None:
    tensors, config = checkpoint.load(SHIPPED / "sb3_ppo")
    checkpoint.save(tmp_path / "copy", tensors, config | changes)
    with pytest.raises(ConfigError, match=message):
        baselines.resolve_policy(f"sb3_ppo:{tmp_path / 'copy'}")


def test_other_pools_and_observations_are_refused() -> None:
    policy = baselines.resolve_policy("sb3_ppo")
    with pytest.raises(ConfigError, match=r"trained with models .*train one for it"):
        policy.reset(make_spec(("a", "b", "c", "d", "e")), [0])
    with pytest.raises(ConfigError, match="trained with system_features"):
        policy.reset(make_spec(system_features=("queue",)), [0])
    with pytest.raises(ConfigError, match="needs the embeddings of the tasks"):
        policy.reset(make_spec(), [0])


@pytest.mark.parametrize(
    ("family", "name", "changes", "says"),
    [
        ("assignment", "sb3_ppo", {"hidden": 8, "load": "queue"}, "kind is 'other'"),
        ("coordination", "sb3_maskable_ppo", {"layers": [49, 15]}, "kind is 'other'"),
        (
            "coordination",
            "sb3_maskable_ppo",
            {"kind": COORDINATION, "layers": [4, 15]},
            "must start with 49",
        ),
    ],
)
def test_wrong_checkpoints_of_teams(
    tmp_path: Path, family: str, name: str, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match="no checkpoint"):
        resolve_policy(f"{name}:{tmp_path}/none", family=family)
    activation = {} if "load" in changes else {"activation": "tanh"}
    checkpoint.save(tmp_path, {}, {"kind": "other", "training": {}} | activation | changes)
    with pytest.raises(ConfigError, match=says):
        resolve_policy(f"{name}:{tmp_path}", family=family)


def test_shipped_networks_of_teams_beat_the_rules() -> None:
    for load in ("window", "queue"):
        means = [
            np.concatenate(
                [
                    d.reward
                    for d in play_assignment(
                        resolve_policy(n, family="assignment"), range(30), load=load
                    )
                ]
            ).mean()
            for n in ("sb3_ppo", "round_robin")
        ]
        assert means[0] > means[1] + 0.05
    names = policy_names("coordination")
    returns = {
        n: play_coordination(resolve_policy(n, family="coordination"), range(600))["return"]
        for n in names
    }
    best = returns.pop("sb3_maskable_ppo")
    for name, other in returns.items():
        gained = best - other
        assert gained.mean() > 2.0 * gained.std() / len(gained) ** 0.5, name


def test_the_players_of_teams_compute_what_was_trained() -> None:
    env = gym.make("InfraMind-Assignment-v0", observation="flat")
    sizes: dict[str, Any] = {"policy_kwargs": {"net_arch": [16, 16]}, "device": "cpu"}
    ppo: Any = stable_baselines3.PPO("MlpPolicy", env, **sizes)
    seen = np.random.default_rng(0).random((5, 48)).astype(np.float32)
    with torch.no_grad():
        expected = ppo.policy.get_distribution(torch.as_tensor(seen)).distribution.logits
    own = forward(export_network(ppo)[0], seen)
    own -= np.log(np.exp(own).sum(axis=1, keepdims=True))
    assert own == pytest.approx(expected.numpy(), abs=1e-5)
