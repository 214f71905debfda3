"""Hyperparameters of the trainings, read from `hyperparameters.yaml`, one block each."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from inframind_gym.configs import (
    Fraction,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    StrictModel,
    load_yaml_model,
)

DEFAULT_FILE: Final = Path(__file__).with_name("hyperparameters.yaml")

Split = Literal["train", "val", "test", "all"]
Probability = Annotated[float, Field(gt=0.0, lt=1.0)]


class Sb3Environment(StrictModel):
    """The environment that the Stable-Baselines3 algorithms train on."""

    pool: str  # name or path of a pool
    workload: str  # name or path of a workload
    split: Split  # of the tasks
    # arrival rates; each is that of `rows_per_rate` rows of the batch
    rates_per_min: tuple[Positive, ...] = Field(min_length=1)
    rows_per_rate: PositiveInt  # see `rates_per_min`
    # policy that routes the queries that are not the agent's
    background: Literal["static_mix", "round_robin", "least_loaded", "none"]
    system_features: tuple[Literal["queue", "e2e", "kv", "in_flight"], ...]  # observed telemetry


class LagrangianSettings(StrictModel):
    """The dual update; see `baselines.lagrangian`."""

    start: NonNegative  # λ at the start
    learning_rate: NonNegative  # η
    largest: NonNegative  # upper bound of λ
    cost_limit: Positive  # the mean cost of an episode that λ is moved towards
    every_episodes: PositiveInt  # episodes between two updates
    largest_step_cost: Positive  # cost of one step beyond which the penalty does not grow


class Network(StrictModel):
    """Widths of the hidden layers of policy and value network."""

    net_arch: tuple[PositiveInt, ...]


class _Training(StrictModel):
    total_timesteps: PositiveInt
    policy: Network


class _Sb3Arguments(StrictModel):
    learning_rate: Positive
    gamma: Fraction
    max_grad_norm: Positive


class _ActorCritic(_Sb3Arguments):
    n_steps: PositiveInt
    gae_lambda: Fraction
    ent_coef: NonNegative
    vf_coef: NonNegative


class PpoArguments(_ActorCritic):
    """Arguments of `stable_baselines3.PPO` and `sb3_contrib.MaskablePPO`, with SB3's names."""

    batch_size: PositiveInt
    n_epochs: PositiveInt
    clip_range: Positive


class PpoSettings(_Training, PpoArguments):
    """Training of PPO or MaskablePPO."""


class A2cSettings(_Training, _ActorCritic):
    """Arguments of `stable_baselines3.A2C`, with SB3's names."""


class DqnSettings(_Training, _Sb3Arguments):
    """Arguments of `stable_baselines3.DQN`, with SB3's names."""

    buffer_size: PositiveInt
    learning_starts: NonNegativeInt
    batch_size: PositiveInt
    train_freq: PositiveInt
    gradient_steps: PositiveInt
    target_update_interval: PositiveInt
    exploration_fraction: Fraction
    exploration_final_eps: Fraction


class GptSwarmSettings(StrictModel):
    """The training of GPTSwarm's edges; see `baselines.gptswarm_training`."""

    workload: str  # name or path of a workload
    split: Split  # of the tasks
    strategy: str  # prompt strategy of every call
    rate_per_min: Positive  # arrival rate, so low that there is no queue
    rows: PositiveInt  # episodes over which the utility of a graph is a mean
    queries_per_row: PositiveInt  # queries in one episode
    iterations: PositiveInt  # updates of the logits
    graphs_per_iteration: PositiveInt  # graphs that are drawn for one update
    learning_rate: Positive  # of the logits
    baseline_decay: Fraction  # of the moving average of the utility
    start_probability: Probability  # of every edge at the start


class Hyperparameters(StrictModel):
    """All blocks of the file."""

    sb3_environment: Sb3Environment
    lagrangian: LagrangianSettings
    ppo: PpoSettings
    a2c: A2cSettings
    dqn: DqnSettings
    maskable_ppo: PpoSettings
    gptswarm: GptSwarmSettings


@cache
def load_hyperparameters(path: Path = DEFAULT_FILE) -> Hyperparameters:
    """Read and check a file of hyperparameters.

    Raises:
        ConfigError: the file cannot be read, or a key or a value is wrong.
    """
    return load_yaml_model(path, Hyperparameters)
