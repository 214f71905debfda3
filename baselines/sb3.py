"""Stable-Baselines3 on InfraMind-Executor-v0: PPO, A2C, DQN and sb3-contrib's MaskablePPO.

    python -m baselines.sb3 --algorithm ppo --seed 0 --out runs/sb3_ppo/seed0
    python -m benchmarks run --suite starter --policies sb3_ppo:runs/sb3_ppo/seed0 --out results/ppo

One algorithm is trained under the Lagrangian wrapper, and the network that acts is exported. The
folder gets `progress.json` (JSON Lines: SB3's metrics, λ, costs) while the training runs, and at
its end `checkpoint/` with the weights as safetensors and a JSON file, whole or not at all. A
training that was stopped is started again, one that has finished is left as it is, and a folder
that holds another one is refused.

Training needs the extra `agents`; a trained policy is played with NumPy alone. MaskablePPO finds
the masks of models that are down through `action_masks` of the environment; the others meet them
at play alone, by the policy that plays them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import gymnasium as gym
import numpy as np
import typer
from numpy.typing import NDArray

import inframind_gym  # noqa: F401
from baselines.hyperparameters import (
    DEFAULT_FILE,
    Hyperparameters,
    Sb3Environment,
    load_hyperparameters,
)
from baselines.training import finished
from inframind_gym.envs.sb3 import SB3VecEnv
from inframind_gym.errors import ConfigError, friendly, needs, unknown
from inframind_gym.policies import checkpoint

try:
    import stable_baselines3
    import torch
    from sb3_contrib import MaskablePPO
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.vec_env import VecEnv
    from torch import nn

    from baselines.lagrangian import LagrangianLog, LagrangianVecEnv
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(needs("training", error.name or "SB3", "agents")) from None

ENV_ID: Final = "InfraMind-Executor-v0"
ACTIVATIONS: Final = {nn.Tanh: "tanh", nn.ReLU: "relu"}
LOG_EVERY_ROLLOUTS: Final = 10
LOG_EVERY_EPISODES: Final = 1000  # SB3 counts DQN's interval in episodes

AlgorithmName = Literal["ppo", "a2c", "dqn", "maskable_ppo"]
ALGORITHMS: Final = get_args(AlgorithmName)


def algorithm_class(name: str) -> type[BaseAlgorithm]:
    """Return the class of an algorithm.

    Raises:
        ConfigError: there is no such algorithm; names the nearest.
    """
    if name == "maskable_ppo":
        return MaskablePPO
    if name not in ALGORITHMS:
        raise ConfigError(unknown("algorithm", name, ALGORITHMS))
    found: type[BaseAlgorithm] = getattr(stable_baselines3, name.upper())
    return found


def make_algorithm(
    name: str, envs: VecEnv, hyperparameters: Hyperparameters, seed: int, **changes: Any
) -> BaseAlgorithm:
    """Return an algorithm with the arguments of its block.

    Args:
        name: one of `ALGORITHMS`.
        envs: what to train on.
        hyperparameters: all blocks.
        seed: of networks, exploration and environments.
        **changes: arguments of the algorithm that replace those of the block.

    Raises:
        ConfigError: there is no such algorithm.
    """
    kind = algorithm_class(name)
    arguments = getattr(hyperparameters, name).model_dump(exclude={"total_timesteps", "policy"})
    network = getattr(hyperparameters, name).policy
    if name == "dqn":  # half the memory; nothing here is truncated
        arguments["optimize_memory_usage"] = True
        arguments["replay_buffer_kwargs"] = {"handle_timeout_termination": False}
    return kind(
        "MlpPolicy",
        envs,
        policy_kwargs={"net_arch": list(network.net_arch)},
        seed=seed,
        device="cpu",
        **(arguments | changes),
    )


def make_training_env(settings: Sb3Environment, **arguments: Any) -> SB3VecEnv:
    """Return `rows_per_rate` rows for every arrival rate, with budgets drawn from the tiers.

    Row i keeps the rate `rates_per_min[i % len(rates_per_min)]` from episode to episode, so that an
    update sees all loads at once.

    Args:
        settings: block `sb3_environment` of the hyperparameters.
        **arguments: further arguments of the environment, such as `num_queries`.

    Raises:
        ConfigError: the environment cannot be made from these settings.
    """
    rates = np.tile(np.array(settings.rates_per_min), settings.rows_per_rate)
    envs = SB3VecEnv(
        gym.make_vec(
            ENV_ID,
            num_envs=len(rates),
            **settings.model_dump(mode="json", exclude={"rates_per_min", "rows_per_rate"}),
            **arguments,
        )
    )
    envs.set_options([{"arrival_rate_per_min": float(rate)} for rate in rates])
    return envs


def export_network(model: BaseAlgorithm) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
    """Return the acting network of a model: no pickle leaves the training.

    PPO, A2C and MaskablePPO act on its logits, DQN on its values; the best action is the largest of
    either. Weights keep PyTorch's layout, (outputs, inputs).

    Returns:
        Tensors "layer<i>.weight" (outputs, inputs) and "layer<i>.bias" (outputs,), and a
        description {"activation": "tanh", "layers": [779, 64, 64, 15]}.

    Raises:
        ConfigError: the network is no plain perceptron with one kind of activation.
    """
    modules = _acting_modules(model)
    linear = [module for module in modules if isinstance(module, nn.Linear)]
    between = {type(module) for module in modules if not isinstance(module, nn.Linear)}
    if len(between) > 1 or not between <= set(ACTIVATIONS) or not linear:
        raise ConfigError(
            f"{type(model).__name__}: only plain networks with tanh or relu can be exported, got "
            f"{[type(module).__name__ for module in modules]}; use net_arch lists in `policy`"
        )
    tensors: dict[str, NDArray[np.float32]] = {}
    for i, layer in enumerate(linear):
        tensors[f"layer{i}.weight"] = layer.weight.detach().numpy().astype(np.float32)
        tensors[f"layer{i}.bias"] = layer.bias.detach().numpy().astype(np.float32)
    activation = ACTIVATIONS[between.pop()] if between else "relu"
    widths = [linear[0].in_features, *(layer.out_features for layer in linear)]
    return tensors, {"activation": activation, "layers": widths}


def _acting_modules(model: BaseAlgorithm) -> list[nn.Module]:
    policy: Any = model.policy
    if hasattr(policy, "q_net"):
        return list(policy.q_net.q_net)
    return [*policy.mlp_extractor.policy_net, policy.action_net]


def train(
    algorithm: str,
    seed: int,
    out: Path,
    hyperparameters: Hyperparameters,
    total_timesteps: int | None = None,
    **environment: Any,
) -> dict[str, Any]:
    """Train, export and save.

    Args:
        algorithm: one of `ALGORITHMS`.
        seed: of networks, exploration and environments.
        out: folder of the checkpoint.
        hyperparameters: all blocks.
        total_timesteps: decisions to train for; the block's if None.
        **environment: further arguments of the environment.

    Returns:
        The checkpoint's configuration, with the last λ, mean cost and reward.

    Raises:
        ConfigError: no such algorithm, or `out` holds another finished training.
    """
    algorithm_class(algorithm)
    torch.set_num_threads(1)
    settings = hyperparameters.sb3_environment
    steps = total_timesteps or getattr(hyperparameters, algorithm).total_timesteps
    asked = {
        "command": f"python -m baselines.sb3 --algorithm {algorithm} --seed {seed}",
        "seed": seed,
        "asked_timesteps": steps,
        "hyperparameters": getattr(hyperparameters, algorithm).model_dump(mode="json"),
        "environment": settings.model_dump(mode="json") | environment,
        "lagrangian": hyperparameters.lagrangian.model_dump(mode="json"),
    }
    if done := finished(out, asked):
        return done
    base = make_training_env(settings, **environment)
    envs = LagrangianVecEnv(base, hyperparameters.lagrangian)
    model = make_algorithm(algorithm, envs, hyperparameters, seed)
    model.set_logger(configure(str(out), ["json"]))
    every = LOG_EVERY_EPISODES if algorithm == "dqn" else LOG_EVERY_ROLLOUTS
    model.learn(steps, log_interval=every, callback=LagrangianLog(envs))
    tensors, network = export_network(model)
    spec = base.batch.policy_spec()
    config = {
        "kind": "sb3",
        "algorithm": algorithm,
        **network,
        "models": list(spec.models),
        "strategies": list(spec.strategies),
        "system_features": list(settings.system_features),
        "queue_norm": spec.queue_norm,
        "training": {
            **asked,
            "timesteps": int(model.num_timesteps),
            "episodes": base.costs.episode_count,
            "last_lambda": envs.multiplier.value,
            "last_mean_cost": _mean(envs.cost_queue),
            "last_solve_rate": _mean(base.costs.return_queue),
        },
    }
    checkpoint.save(out / "checkpoint", tensors, config)
    envs.close()
    return config


def _mean(values: Any) -> float | None:
    return float(sum(values) / len(values)) if values else None


def main(
    algorithm: Annotated[str, typer.Option(help="ppo, a2c, dqn or maskable_ppo.")],
    out: Annotated[Path, typer.Option(help="Folder of the checkpoint.")],
    seed: Annotated[int, typer.Option(help="Of networks, exploration and environments.")] = 0,
    timesteps: Annotated[
        int | None, typer.Option(help="Decisions to train for; the block's by default.")
    ] = None,
    hyperparameters: Annotated[
        Path, typer.Option(help="YAML with one block an algorithm.")
    ] = DEFAULT_FILE,
) -> None:
    """Train an algorithm of Stable-Baselines3 on InfraMind-Executor-v0 and export its policy."""
    started = time.monotonic()
    with friendly():
        config = train(algorithm, seed, out, load_hyperparameters(hyperparameters), timesteps)
    run = config["training"]
    seconds = time.monotonic() - started
    print(
        f"{out}: {run['timesteps']} decisions in {seconds:.0f} s "
        f"({run['timesteps'] / seconds:.0f}/s), solved {run['last_solve_rate']:.2f}, "
        f"cost {run['last_mean_cost']:.2f}, λ {run['last_lambda']:.3f}"
    )


if __name__ == "__main__":
    typer.run(main)
