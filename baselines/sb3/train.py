"""Trains one algorithm of Stable-Baselines3 under the Lagrangian wrapper and exports what acts.

    python -m baselines.sb3 --algorithm ppo --seed 0 --out runs/sb3_ppo/seed0

The folder gets `progress.json` (JSON Lines: SB3's metrics, λ, costs) while the training runs, and
at its end `checkpoint/` with the weights as safetensors and a JSON file, whole or not at all. A
training that was stopped is started again, one that has finished is left as it is, and a folder
that holds another one is refused.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.policies import checkpoint
from inframind_gym.policies.hyperparameters import (
    DEFAULT_FILE,
    Hyperparameters,
    load_hyperparameters,
)

LOG_EVERY_ROLLOUTS: Final = 10
LOG_EVERY_EPISODES: Final = 1000  # SB3 counts DQN's interval in episodes


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
        algorithm: one of `baselines.sb3.algorithms.ALGORITHMS`.
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
    try:
        import torch
        from stable_baselines3.common.logger import configure
    except ImportError as error:
        raise ConfigError(
            f"training needs {error.name}; install it with `pip install torch` and "
            '`pip install "inframind-gym[agents]"`'
        ) from None
    from baselines.sb3.algorithms import algorithm_class, make_algorithm
    from baselines.sb3.environment import make_training_env
    from baselines.sb3.export import export_network
    from baselines.sb3.lagrangian import LagrangianLog, LagrangianVecEnv

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
    if checkpoint.exists(out / "checkpoint"):
        _, finished = checkpoint.load(out / "checkpoint")
        if asked.items() <= finished.get("training", {}).items():
            return finished
        raise ConfigError(
            f"{out}: holds another finished training; name another folder or delete it"
        )
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
            "last_lambda": envs.multiplier,
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
    try:
        config = train(algorithm, seed, out, load_hyperparameters(hyperparameters), timesteps)
    except InfraMindError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    run = config["training"]
    seconds = time.monotonic() - started
    print(
        f"{out}: {run['timesteps']} decisions in {seconds:.0f} s "
        f"({run['timesteps'] / seconds:.0f}/s), solved {run['last_solve_rate']:.2f}, "
        f"cost {run['last_mean_cost']:.2f}, λ {run['last_lambda']:.3f}"
    )
