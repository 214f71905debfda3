"""Configurations of trainings: the environment, which all share, InfraMind's and our PPO's keys."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from inframind_gym.configs import (
    Fraction,
    NonNegative,
    NonNegativeInt,
    Number,
    Positive,
    PositiveInt,
    StrictModel,
)
from inframind_gym.simulator.workload import RATES_PER_MIN

SystemFeature = Literal["queue", "e2e", "kv", "in_flight"]


class WorldChoice(StrictModel):
    """The environment that a policy is trained in.

    Keys are those of `inframind_gym.envs.routing.config.EnvConfig`. Budgets are drawn from the
    workload's tiers; tasks come from the split "train", and those of the validation from "val".
    """

    pool: str = "b200-2gpu"
    workload: str = "all"
    tasks: str = "builtin"
    arrivals: str | dict[str, Any] = "poisson"
    scheduler: Literal["edf", "edf_late_last", "fcfs"] | None = None
    execution: Literal["parallel", "sequential"] | None = None
    agents: dict[str, Any] | None = None
    metrics_poll_s: Positive | None = None  # between two polls of the telemetry; None: the pool's

    def arguments(self, split: str) -> dict[str, Any]:
        """Keyword arguments of the environment."""
        return {**self.model_dump(), "split": split}


class EnvChoice(WorldChoice):
    """The same with the length of an episode and what is seen of the servers."""

    num_queries: PositiveInt | None = None  # in one episode; without it the workload's
    system_features: tuple[SystemFeature, ...] = ("queue", "e2e")


class ExecutorConfig(StrictModel):
    """PPO of the executor."""

    lr: Positive = 3e-4  # of Adam
    clip: Positive = 0.2
    mini_epochs: PositiveInt = 3
    value_weight: NonNegative = 0.5
    entropy_weight: NonNegative = 0.10
    max_grad_norm: Positive = 0.5
    system_state: bool = True  # ablation: False sees no telemetry


class PlannerConfig(StrictModel):
    """REINFORCE of the planner."""

    lr: Positive = 3e-4  # of Adam
    task_weight: NonNegative = 1.0
    vae_weight: NonNegative = 0.001
    max_grad_norm: Positive = 0.5
    # MasRouter checkpoint whose planner is the first one: folder or shipped name; null: none
    init: str | None = "masrouter"


class LagrangeConfig(StrictModel):
    """The multiplier λ, which executor and planner share."""

    start: NonNegative = 0.2
    lr: NonNegative = 0.001  # paper and dual_critic
    max_value: Positive = 1.0  # paper
    limit: Positive = 1.0  # mean latency over budget that is allowed
    kp: NonNegative = 0.05  # pid
    ki: NonNegative = 0.001  # pid
    kd: NonNegative = 0.05  # pid
    smoothing: Annotated[Number, Field(ge=0, lt=1)] = 0.9  # pid


class ValidationConfig(StrictModel):
    """The measure of every epoch: held-out tasks, one rate and budget, likeliest actions."""

    rate_per_min: Positive = 100.0
    budget_s: Positive = 200.0
    rows: PositiveInt = 4  # streams
    metric: Literal["solved", "goodput"] = "solved"
    early_stopping: PositiveInt = 12  # epochs without a better value
    lr_patience: NonNegativeInt = 4  # epochs without one before the learning rates fall
    lr_factor: Annotated[Number, Field(gt=0, lt=1)] = 0.5


class InfraMindConfig(StrictModel):
    """InfraMind's configuration, `agents/configs/inframind*.yaml`.

    An epoch is `rows_per_rate` streams of `env.num_queries` at every rate, side by side.
    """

    algorithm: Literal["inframind"] = "inframind"
    # "dual_critic": a critic for the cost to go and a λ without a bound; "pid": the same with a
    # PID-controlled λ
    lagrangian: Literal["paper", "dual_critic", "pid"] = "paper"
    # what counts as q = 1: a query that is solved, or one that is solved in its budget
    reward: Literal["solved", "goodput"] = "solved"
    env: EnvChoice = EnvChoice()  # the world
    rates_per_min: Annotated[tuple[Positive, ...], Field(min_length=1)] = RATES_PER_MIN
    rows_per_rate: PositiveInt = 4
    batch_episodes: Annotated[PositiveInt, Field(ge=2)] = 64  # finished queries an update
    epochs: PositiveInt = 30  # at most
    executor: ExecutorConfig = ExecutorConfig()
    planner: PlannerConfig = PlannerConfig()
    lagrange: LagrangeConfig = LagrangeConfig()
    validation: ValidationConfig = ValidationConfig()


class PidConfig(StrictModel):
    """Gains of the multiplier, which is at most `most`."""

    kp: NonNegative = 1.0
    ki: NonNegative = 0.2
    kd: NonNegative = 1.0
    most: Positive = 3.0


class StreamWorld(StrictModel):
    """A pool and a workload whose streams a policy is trained in."""

    pool: str = "b200-2gpu"
    workload: str = "all"
    capacity_per_min: Positive | None = None  # load 1; None: that of the informed bound


class PpoLagrangianConfig(StrictModel):
    """Configuration of a training, `agents/configs/ppo_lagrangian.yaml`."""

    algorithm: Literal["ppo_lagrangian"] = "ppo_lagrangian"
    env: WorldChoice = WorldChoice()  # of all worlds; a pool or a workload chooses among them
    worlds: tuple[StreamWorld, ...] = ()  # that are played side by side
    # arrival rates of the rows, in turn, as shares of capacity; each is moved by up to a sixth
    loads: Annotated[tuple[Positive, ...], Field(min_length=1)]
    rows: PositiveInt = 96  # streams of a world, side by side
    decisions: PositiveInt = 144_000  # of all rows in an update
    together: PositiveInt = 24  # updates in a stream, after which there is a checkpoint
    updates: PositiveInt = 48
    cloning: NonNegativeInt = 40  # the first of them, which imitate `bid_price`
    alone: NonNegativeInt = 24  # the first of these, in which the teacher plays all of the rows
    teacher: str | None = None  # folder of its checkpoint, whose prices PPO pays; null: shipped
    hidden: PositiveInt = 64  # width of the layers
    epochs: PositiveInt = 1  # passes over the decisions of an update
    minibatch: PositiveInt = 2048  # decisions of a step
    cloning_lr: Positive = 2e-3  # of Adam; falls to a tenth in equal steps, as does the next one
    lr: Positive = 1e-4  # after that
    sharpen: Positive = 2.0  # factor on the logits after the imitation
    clip: Positive = 0.2
    value_weight: NonNegative = 0.5
    # weight of the entropy at the start; falls to a hundredth in equal ratios
    entropy_weight: Positive = 5e-4
    max_grad_norm: Positive = 0.5
    promise: Fraction = 0.0  # share of queries that are to be on time; 0: none is promised
    pid: PidConfig = PidConfig()
    congestion: NonNegative = 0.5  # share of its price that a call pays; 0: nobody pays for others
    kept: Fraction = 0.8  # of the averaged weights, from update to update
    validation_rows: PositiveInt = 12  # streams of a world
    validation_loads: Annotated[tuple[Positive, ...], Field(min_length=1)] = (0.3, 0.6, 0.9, 1.1)
    validation_queries: PositiveInt = 600  # of each, that are scored
