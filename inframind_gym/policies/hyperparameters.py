"""Hyperparameters of the learned baselines, read from `hyperparameters.yaml`, one block each."""

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
    """What the Stable-Baselines3 algorithms train on.

    Attributes:
        pool: name or path of a pool.
        workload: name or path of a workload.
        split: of the tasks.
        rates_per_min: arrival rates; each is that of `rows_per_rate` rows of the batch.
        rows_per_rate: see `rates_per_min`.
        background: who routes the queries that are not the agent's.
        system_features: observed telemetry.
    """

    pool: str
    workload: str
    split: Split
    rates_per_min: tuple[Positive, ...] = Field(min_length=1)
    rows_per_rate: PositiveInt
    background: Literal["static_mix", "round_robin", "least_loaded", "none"]
    system_features: tuple[Literal["queue", "e2e", "kv", "in_flight"], ...]


class LagrangianSettings(StrictModel):
    """The dual update; see `baselines.sb3.lagrangian`.

    Attributes:
        start: λ at the start.
        learning_rate: η.
        largest: upper bound of λ.
        cost_limit: the mean cost of an episode that λ is moved towards.
        every_episodes: episodes between two updates.
        largest_step_cost: cost of one step beyond which the penalty does not grow.
    """

    start: NonNegative
    learning_rate: NonNegative
    largest: NonNegative
    cost_limit: Positive
    every_episodes: PositiveInt
    largest_step_cost: Positive


class Network(StrictModel):
    """Widths of the hidden layers of policy and value network."""

    net_arch: tuple[PositiveInt, ...]


class _Sb3Algorithm(StrictModel):
    total_timesteps: PositiveInt
    policy: Network
    learning_rate: Positive
    gamma: Fraction
    max_grad_norm: Positive


class _ActorCritic(_Sb3Algorithm):
    n_steps: PositiveInt
    gae_lambda: Fraction
    ent_coef: NonNegative
    vf_coef: NonNegative


class PpoSettings(_ActorCritic):
    """Arguments of `stable_baselines3.PPO` and `sb3_contrib.MaskablePPO`, with SB3's names."""

    batch_size: PositiveInt
    n_epochs: PositiveInt
    clip_range: Positive


class A2cSettings(_ActorCritic):
    """Arguments of `stable_baselines3.A2C`, with SB3's names."""


class DqnSettings(_Sb3Algorithm):
    """Arguments of `stable_baselines3.DQN`, with SB3's names."""

    buffer_size: PositiveInt
    learning_starts: NonNegativeInt
    batch_size: PositiveInt
    train_freq: PositiveInt
    gradient_steps: PositiveInt
    target_update_interval: PositiveInt
    exploration_fraction: Fraction
    exploration_final_eps: Fraction


class LinUcbSettings(StrictModel):
    """LinUCB (`inframind_gym/policies/linucb.py`).

    Attributes:
        alpha: weight of the uncertainty.
        ridge: weight of the identity in A_a.
        embedding_components: principal components of the query's embedding among the features.
        cost_weight: what latency / budget of 1 takes from the reward.
    """

    alpha: NonNegative
    ridge: Positive
    embedding_components: Annotated[NonNegativeInt, Field(le=384)]
    cost_weight: NonNegative


class GptSwarmSettings(StrictModel):
    """The training of GPTSwarm's edges; see `baselines.gptswarm_training`.

    Attributes:
        workload: name or path of a workload.
        split: of the tasks.
        strategy: prompt strategy of every call.
        rate_per_min: arrival rate, so low that there is no queue.
        rows: sweeps over which the utility of a graph is a mean.
        queries_per_row: queries in one sweep.
        iterations: updates of the logits.
        graphs_per_iteration: graphs that are drawn for one update.
        learning_rate: of the logits.
        baseline_decay: of the moving average of the utility.
        start_probability: of every edge at the start.
    """

    workload: str
    split: Split
    strategy: str
    rate_per_min: Positive
    rows: PositiveInt
    queries_per_row: PositiveInt
    iterations: PositiveInt
    graphs_per_iteration: PositiveInt
    learning_rate: Positive
    baseline_decay: Fraction
    start_probability: Probability


class QLearningSettings(StrictModel):
    """Load-aware Q-learning (`inframind_gym/policies/q_learning_policy.py`).

    Attributes:
        window_size: assignments that the tracker remembers.
        hot_threshold: multiple of the fair share above which a model is hot.
        penalty_weight: penalty for each fair share in excess.
        max_penalty: cap of the penalty.
        lr: learning rate.
        gamma: discount.
        epsilon: probability of exploring at the start.
        epsilon_min: its least value.
        epsilon_decay: its factor at every finished query.
    """

    window_size: PositiveInt
    hot_threshold: Positive
    penalty_weight: NonNegative
    max_penalty: NonNegative
    lr: Fraction
    gamma: Fraction
    epsilon: Fraction
    epsilon_min: Fraction
    epsilon_decay: Fraction


class Hyperparameters(StrictModel):
    """All blocks of the file."""

    sb3_environment: Sb3Environment
    lagrangian: LagrangianSettings
    ppo: PpoSettings
    a2c: A2cSettings
    dqn: DqnSettings
    maskable_ppo: PpoSettings
    q_learning_load_tracker: QLearningSettings
    linucb: LinUcbSettings
    gptswarm: GptSwarmSettings


@cache
def load_hyperparameters(path: Path = DEFAULT_FILE) -> Hyperparameters:
    """Read and check a file of hyperparameters.

    Raises:
        ConfigError: the file cannot be read, or a key or a value is wrong.
    """
    return load_yaml_model(path, Hyperparameters)
