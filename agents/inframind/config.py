"""Configuration of InfraMind's training (`agents/configs/inframind*.yaml`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from agents.config import EnvChoice
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


class ExecutorConfig(StrictModel):
    """Network and PPO of the executor (`spec/inframind.md` §2.2, §4.3)."""

    lr: Positive = 3e-4  # of Adam; the specification leaves it open
    clip: Positive = 0.2
    mini_epochs: PositiveInt = 3
    value_weight: NonNegative = 0.5
    entropy_weight: NonNegative = 0.10
    max_grad_norm: Positive = 0.5
    gamma: Fraction = 1.0  # dual_critic and pid: discount from one decision of a query to its next
    gae_lambda: Fraction = 0.95  # dual_critic and pid
    joint_head: bool = True  # ablation: False has independent heads for model and strategy
    dual_pathway: bool = True  # ablation: False encodes everything in one layer of like size
    system_state: bool = True  # ablation: False sees no telemetry


class PlannerConfig(StrictModel):
    """REINFORCE of the planner (`spec/inframind.md` §4.2)."""

    lr: Positive = 3e-4  # of Adam; the specification leaves it open
    task_weight: NonNegative = 1.0
    vae_weight: NonNegative = 0.001
    max_grad_norm: Positive = 0.5
    init: str | None = None  # MasRouter checkpoint whose planner is taken over: folder or name


class LagrangeConfig(StrictModel):
    """The multiplier λ (`spec/inframind.md` §4.1), shared by executor and planner."""

    start: NonNegative = 0.2
    lr: NonNegative = 0.001
    max_value: Positive = 1.0  # paper
    limit: Positive = 1.0  # mean latency over budget that is allowed
    cost_cap: Positive | None = None  # a query's cost counts as at most this; None: as it is
    kp: NonNegative = 0.05  # pid
    ki: NonNegative = 0.001  # pid
    kd: NonNegative = 0.05  # pid
    smoothing: Annotated[Number, Field(ge=0, lt=1)] = 0.9  # pid


class ValidationConfig(StrictModel):
    """The measure of every epoch (`spec/inframind.md` §4.5)."""

    rate_per_min: Positive = 100.0
    budget_s: Positive = 200.0
    rows: PositiveInt = 4  # sweeps
    metric: Literal["solved", "goodput"] = "solved"
    early_stopping: PositiveInt = 12  # epochs without a better value
    lr_patience: NonNegativeInt = 4  # epochs without one before the learning rates fall
    lr_factor: Annotated[Number, Field(gt=0, lt=1)] = 0.5


class InfraMindConfig(StrictModel):
    """InfraMind: PPO-Lagrangian executor and REINFORCE planner.

    Attributes:
        algorithm: "inframind".
        lagrangian: "paper" is that of `spec/inframind.md` §4. "dual_critic" has a critic for
            the cost, GAE for reward and cost over a query's decisions and an unbounded λ; "pid" is
            the same with a PID-controlled λ. "none" is "paper" with λ = 0.
        reward: what counts as 1: a query that is solved, or one that is solved in its budget.
        env: the world.
        rates_per_min: arrival rates of the sweeps of an epoch.
        shards: batches of rows; with the number of rows part of the result, unlike workers.
        rows_per_shard: sweeps that run in lockstep in one shard.
        steps_per_phase: steps between two changes of the weights that the shards act with.
        batch_episodes: finished queries an update.
        epochs: at most; in an epoch every row goes through all rates.
    """

    algorithm: Literal["inframind"] = "inframind"
    lagrangian: Literal["paper", "dual_critic", "pid", "none"] = "paper"
    reward: Literal["solved", "goodput"] = "solved"
    env: EnvChoice = EnvChoice()
    rates_per_min: Annotated[tuple[Positive, ...], Field(min_length=1)] = RATES_PER_MIN
    shards: PositiveInt = 2
    rows_per_shard: PositiveInt = 16
    steps_per_phase: PositiveInt = 24
    batch_episodes: Annotated[PositiveInt, Field(ge=2)] = 64
    epochs: PositiveInt = 30
    executor: ExecutorConfig = ExecutorConfig()
    planner: PlannerConfig = PlannerConfig()
    lagrange: LagrangeConfig = LagrangeConfig()
    validation: ValidationConfig = ValidationConfig()

    @property
    def cost_critic(self) -> bool:
        """Whether the executor has a critic for the cost."""
        return self.lagrangian in ("dual_critic", "pid")

    def network(self) -> dict[str, Any]:
        """Keyword arguments of `executor_inference.ExecutorShape`, but for the pool's numbers."""
        return {
            "num_features": len(self.env.system_features),
            "joint_head": self.executor.joint_head,
            "dual_pathway": self.executor.dual_pathway,
            "cost_critic": self.cost_critic,
        }
