"""From a block of the hyperparameters to an algorithm of Stable-Baselines3 that is ready to learn.

MaskablePPO finds the masks of models that are down through `action_masks` of the environment; the
others are told at play alone, by the policy that plays them.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from inframind_gym.errors import ConfigError, unknown
from inframind_gym.policies.hyperparameters import Hyperparameters

AlgorithmName = Literal["ppo", "a2c", "dqn", "maskable_ppo"]
ALGORITHMS: Final = get_args(AlgorithmName)


def algorithm_class(name: str) -> type[BaseAlgorithm]:
    """The class of an algorithm.

    Raises:
        ConfigError: there is no such algorithm; names the nearest.
    """
    if name == "maskable_ppo":
        from sb3_contrib import MaskablePPO

        return MaskablePPO
    if name not in ALGORITHMS:
        raise ConfigError(unknown("algorithm", name, ALGORITHMS))
    import stable_baselines3

    found: type[BaseAlgorithm] = getattr(stable_baselines3, name.upper())
    return found


def make_algorithm(
    name: str, envs: VecEnv, hyperparameters: Hyperparameters, seed: int, **changes: Any
) -> BaseAlgorithm:
    """An algorithm with the arguments of its block.

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
