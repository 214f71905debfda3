"""Every algorithm of Stable-Baselines3: a short training, its export, and how it is played."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import torch

import baselines
from baselines.hyperparameters import DEFAULT_FILE, Hyperparameters, load_hyperparameters
from baselines.lagrangian import LagrangianVecEnv
from baselines.sb3 import ALGORITHMS, export_network, make_algorithm, make_training_env, train
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint
from inframind_gym.policies.checkpoint import SHIPPED
from tests.policies.synthetic import make_contexts, make_spec

ROOT = Path(__file__).parents[2]
ROWS = 6
SHORT: dict[str, dict[str, Any]] = {
    "ppo": {"n_steps": 8, "batch_size": 16, "n_epochs": 1},
    "maskable_ppo": {"n_steps": 8, "batch_size": 16, "n_epochs": 1},
    "a2c": {"n_steps": 4},
    "dqn": {"learning_starts": 24, "buffer_size": 600, "batch_size": 16},
}


def short_hyperparameters() -> Hyperparameters:
    """The shipped ones with one row a rate and updates after a few steps."""
    shipped = load_hyperparameters()
    changes: dict[str, Any] = {
        name: getattr(shipped, name).model_copy(update=block) for name, block in SHORT.items()
    }
    changes["sb3_environment"] = shipped.sb3_environment.model_copy(update={"rows_per_rate": 1})
    changes["lagrangian"] = shipped.lagrangian.model_copy(update={"every_episodes": 4})
    return shipped.model_copy(update=changes)


@pytest.fixture(scope="module", params=ALGORITHMS)
def trained(request, tmp_path_factory):
    """(algorithm, folder of a short training, its configuration)."""
    out = tmp_path_factory.mktemp("runs") / request.param
    config = train(request.param, 1, out, short_hyperparameters(), 96, num_queries=10)
    return request.param, out, config


def observations_of(count: int, seed: int = 0, **arguments: Any) -> tuple[np.ndarray, Any]:
    """Real observations of the training environment, and its specification."""
    envs = make_training_env(short_hyperparameters().sb3_environment, num_queries=10, **arguments)
    envs.seed(seed)
    seen = [envs.reset()]
    rng = np.random.default_rng(seed)
    while len(seen) * ROWS < count:
        seen.append(envs.step(rng.integers(0, 15, ROWS))[0])
    return np.concatenate(seen)[:count], envs.batch.policy_spec()


def test_a_short_training_leaves_a_log_and_a_checkpoint(trained) -> None:
    algorithm, out, config = trained
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint", "progress.json"]
    tensors, loaded = checkpoint.load(out / "checkpoint")
    assert loaded == json.loads(json.dumps(config))
    assert loaded["algorithm"] == algorithm
    assert loaded["layers"] == [779, 64, 64, 15]
    assert loaded["training"]["timesteps"] >= 96
    assert loaded["training"]["episodes"] > 0
    assert tensors["layer0.weight"].shape == (64, 779)
    assert sum(array.nbytes for array in tensors.values()) < 2**20


def test_a_training_is_a_function_of_its_seed_and_is_not_overwritten(trained, tmp_path) -> None:
    algorithm, out, config = trained
    short, model = short_hyperparameters(), Path("checkpoint") / checkpoint.MODEL_FILE
    weights = (out / model).read_bytes()
    train(algorithm, 1, tmp_path, short, 96, num_queries=10)
    again = checkpoint.load(tmp_path / "checkpoint")[0]
    first = checkpoint.load(out / "checkpoint")[0]
    assert all(np.array_equal(first[name], again[name]) for name in first)
    with pytest.raises(ConfigError, match="holds another finished training"):
        train(algorithm, 2, out, short, 96, num_queries=10)
    assert train(algorithm, 1, out, short, 96, num_queries=10)["training"] == config["training"]
    assert (out / model).read_bytes() == weights


def test_other_seeds_and_models_that_are_down_change_a_training(tmp_path: Path) -> None:
    found, short = [], short_hyperparameters()
    for seed, down in ((0, []), (1, []), (0, ["deepseek-32b"])):
        out = tmp_path / f"{seed}{len(down)}"
        config = train("maskable_ppo", seed, out, short, 96, num_queries=10, down_models=down)
        assert config["training"]["environment"]["down_models"] == down
        found.append((out / "checkpoint" / checkpoint.MODEL_FILE).read_bytes())
    assert len(set(found)) == 3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("form", ["full", "index"])
def test_numpy_chooses_as_stable_baselines3_does(algorithm: str, form: str, tmp_path) -> None:
    hyperparameters = short_hyperparameters()
    base = make_training_env(hyperparameters.sb3_environment, num_queries=10)
    envs = LagrangianVecEnv(base, hyperparameters.lagrangian)
    model = make_algorithm(algorithm, envs, hyperparameters, seed=0)
    with torch.no_grad():  # weights with which different observations get different actions
        for parameter in model.policy.parameters():
            parameter.normal_(0.0, 0.5)
    tensors, network = export_network(model)
    _, config = checkpoint.load(SHIPPED / f"sb3_{algorithm}")
    checkpoint.save(tmp_path / "saved", tensors, config | network)
    policy = baselines.make(f"sb3_{algorithm}:{tmp_path / 'saved'}")

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
    shipped = load_hyperparameters(DEFAULT_FILE)
    observations, spec = observations_of(120, observation="index", seed=5)
    resource = observations[:, spec.layout.resource]
    loaded = np.random.default_rng(0).uniform(0.0, 6.0, resource.shape)
    observations[60:, spec.layout.resource] = loaded[60:]
    for algorithm in ALGORITHMS:
        policy = baselines.make(f"sb3_{algorithm}")
        assert policy.name == f"sb3_{algorithm}"
        training = policy.config.training
        assert training["timesteps"] >= 100_000
        assert training["hyperparameters"] == getattr(shipped, algorithm).model_dump(mode="json")
        assert training["lagrangian"] == shipped.lagrangian.model_dump(mode="json")
        assert training["environment"] == shipped.sb3_environment.model_dump(mode="json")
        assert sum(path.stat().st_size for path in policy.folder.iterdir()) < 2 * 10**6
        policy.reset(spec, [0] * 120)
        actions = policy.act_batch(observations, make_contexts(120), np.arange(120))
        assert len(set(actions.tolist())) > 1, "they see load, budget or query"


def test_playing_needs_neither_torch_nor_sb3() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'stable_baselines3', 'sb3_contrib'): sys.modules[name] = None\n"
        "import gymnasium as gym, numpy as np, baselines, inframind_gym\n"
        "policy = baselines.make('sb3_ppo')\n"
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
        ({"kind": "inframind"}, r"\(inframind\), not by 'ppo'"),
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
        baselines.make(f"sb3_ppo:{tmp_path / 'copy'}")


def test_other_pools_and_observations_are_refused() -> None:
    policy = baselines.make("sb3_ppo")
    with pytest.raises(ConfigError, match=r"trained with models .*train one for it"):
        policy.reset(make_spec(("a", "b", "c", "d", "e")), [0])
    with pytest.raises(ConfigError, match="trained with system_features"):
        policy.reset(make_spec(system_features=("queue",)), [0])
    with pytest.raises(ConfigError, match="needs the embeddings of the tasks"):
        policy.reset(make_spec(), [0])


def test_the_command_names_what_is_wrong(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "baselines.sb3", "--algorithm", "poo", "--out", str(tmp_path / "x")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "unknown algorithm 'poo'. Did you mean 'ppo'" in done.stderr
    assert not (tmp_path / "x").exists()
