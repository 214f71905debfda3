"""How InfraMind learns from a batch of finished queries; source: `spec/inframind.md` §4.

PPO for the executor, REINFORCE for the planner, and the multiplier λ that both share. A loss comes
with its gradient, which the networks carry on to their weights. What was decided and left open is
said in `agents/inframind/__init__.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray

from agents.config import CHECKPOINTS
from agents.inframind.advantages import costs, gae, last_only, paper_rewards, quality, step_costs
from agents.inframind.config import InfraMindConfig
from agents.inframind.executor_gradient import ExecutorGradient, initial_weights
from agents.inframind.executor_inference import ExecutorShape
from agents.inframind.flat_adam import FlatAdam
from agents.inframind.lagrangian import PID, Dual, Multiplier, Paper
from agents.inframind.planner_gradient import PlannerGradient, Plans
from agents.inframind.rollouts import Episodes
from agents.planner.net import PlannerNet, weights_of
from inframind_gym.policies.checkpoint import check_shapes, load, part, prefixed
from inframind_gym.simulator.workflow.topology import TOPOLOGIES

Array = NDArray[Any]

EXECUTOR: Final = "executor."
PLANNER: Final = "planner."

# Weights that decide nothing: of the latents' variances and of what is read back from them.
LEARNING_ONLY: Final = re.compile(r"(vae|encoder)\.(log_var|decoder|output)\.")

# What the seeds of a training are for, beside those of `rollouts` and `rounds`.
WEIGHTS: Final = 2
NOISE: Final = 3


class Learner:
    """Networks, optimisers and multiplier.

    Args:
        config: of the training.
        seed: of the initial weights and of the latents' noise.
        facts: of the environment, see `Shard.facts`.

    Attributes:
        updates: how many batches were learned from.
    """

    def __init__(self, config: InfraMindConfig, seed: int, facts: Mapping[str, Any]) -> None:
        self.config, self.seed, self.updates = config, seed, 0
        self.facts = facts
        self.tasks: Array = facts["task_embeddings"]  # (T, 384)
        self.shape = ExecutorShape(
            len(facts["models"]), len(facts["strategies"]), **config.network()
        )
        first = initial_weights(self.shape, _draw(seed, WEIGHTS, 0))
        self.executor = ExecutorGradient(self.shape, first, facts["role_embeddings"])
        self.planner = PlannerGradient(first_planner(config, _draw(seed, WEIGHTS, 1)))
        self.executor_adam = FlatAdam(
            self.executor.parameters, config.executor.lr, config.executor.max_grad_norm
        )
        self.planner_adam = FlatAdam(
            self.planner.parameters, config.planner.lr, config.planner.max_grad_norm
        )
        self.multiplier = make_multiplier(config)

    def update(self, batch: Episodes) -> dict[str, float]:
        """Learn from a batch of finished queries; λ moves last."""
        weight = self.multiplier.value
        q = quality(batch, self.config.reward)
        cost = costs(batch, self.config.lagrange.cost_cap)
        metrics = self._update_executor(batch, q, cost, weight)
        metrics |= self._update_planner(batch, q, cost, weight)
        self.multiplier.update(float(cost.mean()))
        self.updates += 1
        return metrics | self._charts(batch, q, cost)

    def _update_executor(
        self, batch: Episodes, q: Array, cost: Array, weight: float
    ) -> dict[str, float]:
        """PPO: K steps on the whole batch (`spec/inframind.md` §4.3)."""
        config = self.config.executor
        mask = batch.decisions()
        actions, old_log_prob = batch.action[mask], batch.log_prob[mask]  # (n,)
        chosen = (np.arange(len(actions)), actions)
        decisions = self.executor.decisions(
            self.tasks[batch.task],
            np.repeat(np.arange(len(batch)), batch.length),
            batch.role[mask],
            batch.resource[mask],
        )
        advantage = targets = cost_targets = cast(Array, np.zeros(0))
        first_kl = 0.0
        for epoch in range(config.mini_epochs):
            out = self.executor.forward(decisions)
            log_ratio = out.log_probs[chosen] - old_log_prob
            if epoch == 0:  # V of before the update: no pass of its own is needed for it
                if out.cost_value is None:
                    targets = paper_rewards(batch, q, weight)[mask]
                    advantage = targets - out.value
                else:
                    reward_gae = self._gae(batch, last_only(batch, q), out.value)
                    cost_gae = self._gae(batch, step_costs(batch, cost), out.cost_value)
                    targets, cost_targets = reward_gae + out.value, cost_gae + out.cost_value
                    advantage = (reward_gae - weight * cost_gae) / (1.0 + weight)
                advantage = normalise(np.asarray(advantage, np.float32))
                first_kl = approx_kl(log_ratio)
            policy_loss, d_log_prob = ppo_loss(log_ratio, advantage, config.clip)
            value_loss, d_value = squared_error(out.value, targets)
            d_cost_value = None
            if out.cost_value is not None:
                cost_value_loss, d_cost_value = squared_error(out.cost_value, cost_targets)
                value_loss += cost_value_loss
                d_cost_value *= config.value_weight
            probabilities = np.exp(out.log_probs)
            entropy, d_logits = mean_entropy(out.log_probs, probabilities)
            d_logits *= -config.entropy_weight
            d_logits -= probabilities * d_log_prob[:, None]
            d_logits[chosen] += d_log_prob
            self.executor.backward(d_logits, config.value_weight * d_value, d_cost_value)
            self.executor_adam.step()
        return {
            "losses/policy_loss": policy_loss,
            "losses/value_loss": value_loss,
            "losses/entropy": entropy,
            "losses/approx_kl": approx_kl(log_ratio),
            "losses/lag_kl": first_kl,  # how far the policy had moved on since the batch was made
        }

    def _gae(self, batch: Episodes, rewards: Array, values: Array) -> Array:
        """Advantages (n,) of all decisions of a batch, from rewards (Q, N) and values (n,)."""
        mask, config = batch.decisions(), self.config.executor
        padded = np.zeros(mask.shape, np.float32)
        padded[mask] = values
        return gae(rewards, padded, batch.length, config.gamma, config.gae_lambda)[mask]

    def _update_planner(
        self, batch: Episodes, q: Array, cost: Array, weight: float
    ) -> dict[str, float]:
        """REINFORCE without a critic, one step (`spec/inframind.md` §4.2)."""
        config = self.config.planner
        noise = self.planner.noise(
            np.random.default_rng([self.seed, NOISE, self.updates]), len(batch)
        )
        # Plans were drawn from latents without noise, so their log-probabilities are of these too.
        plans = Plans(batch.topology, batch.num_agents, batch.plan_roles)
        out = self.planner.forward(self.tasks[batch.task], batch.domain, plans, noise)
        advantage = normalise(np.asarray(q - weight * cost, np.float32))
        share = np.float32(1.0 / len(batch))
        self.planner.backward(
            -share * advantage,
            np.full(len(batch), -share * np.float32(config.task_weight)),
            config.vae_weight,
        )
        self.planner_adam.step()
        return {
            "losses/planner_loss": -mean(out.log_prob * advantage),
            "losses/task_loss": -mean(out.task_log_prob),
            "losses/vae_loss": out.vae_loss,
        }

    def _charts(self, batch: Episodes, q: Array, cost: Array) -> dict[str, float]:
        late = batch.latency_s > batch.budget_s
        actions = batch.action[batch.decisions()]
        model, strategy = np.divmod(actions, self.shape.num_strategies)
        return {
            "charts/episodic_return": float(q.mean()),
            "charts/episodic_cost": float(cost.mean()),
            "charts/violation_rate": float(late.mean()),
            "charts/solve_rate": float(batch.solved.mean()),
            "charts/goodput": float((batch.solved * ~late).mean()),
            "charts/num_agents": float(batch.num_agents.mean()),
            "lagrange/lambda": self.multiplier.value,
            **_shares("model", self.facts["models"], model),
            **_shares("strategy", self.facts["strategies"], strategy),
            **_shares("topology", TOPOLOGIES, batch.topology),
        }

    def weights(self) -> dict[str, Array]:
        """What a checkpoint holds: copies of all weights, float32."""
        executor = self.executor.parameters.copies()
        return prefixed(executor, EXECUTOR) | prefixed(self.planner.weights(), PLANNER)

    def acting(self) -> dict[str, Array]:
        """Those of the weights that a shard acts with."""
        return {k: v for k, v in self.weights().items() if not LEARNING_ONLY.search(k)}

    def scale_lr(self, factor: float) -> None:
        """Set both learning rates to a multiple of those of the configuration."""
        self.executor_adam.lr = self.config.executor.lr * factor
        self.planner_adam.lr = self.config.planner.lr * factor

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Everything that learning depends on, as arrays and JSON."""
        arrays = self.weights()
        arrays |= self.executor_adam.state("executor_adam.")
        arrays |= self.planner_adam.state("planner_adam.")
        return arrays, {"updates": self.updates, "multiplier": self.multiplier.state()}

    def restore(self, arrays: Mapping[str, Array], numbers: Mapping[str, Any]) -> None:
        """Go back to a `state`."""
        self.executor.parameters.load(part(arrays, EXECUTOR))
        self.planner.parameters.load(part(arrays, PLANNER))
        self.executor_adam.restore(arrays, "executor_adam.")
        self.planner_adam.restore(arrays, "planner_adam.")
        self.updates = int(numbers["updates"])
        self.multiplier = type(self.multiplier)(**numbers["multiplier"])


def ppo_loss(log_ratio: Array, advantage: Array, clip: float) -> tuple[float, Array]:
    """-E[min(ρ·A, clip(ρ, 1 - ε, 1 + ε)·A)] and its gradient (n,), from log ρ (n,) and A (n,)."""
    ratio = np.exp(log_ratio)
    free = ratio * advantage
    clipped = np.minimum(np.maximum(ratio, 1.0 - clip), 1.0 + clip) * advantage
    gradient = free * (free <= clipped)
    gradient /= -len(free)
    return -mean(np.minimum(free, clipped)), gradient


def squared_error(values: Array, targets: Array) -> tuple[float, Array]:
    """Mean squared error of values (n,), and its gradient (n,)."""
    error = values - targets
    return float(error @ error) / len(error), (2.0 / len(error)) * error


def mean_entropy(log_probs: Array, probabilities: Array) -> tuple[float, Array]:
    """Mean entropy of n distributions (n, A), and its gradient (n, A) for their logits."""
    terms = probabilities * log_probs
    entropy = -np.add.reduce(terms, axis=1)
    gradient = probabilities * entropy[:, None]
    gradient += terms
    gradient /= -len(gradient)
    return mean(entropy), gradient


def mean(values: Array) -> float:
    """Mean of (n,); NumPy's own takes longer than the sum."""
    return float(np.add.reduce(values)) / len(values)


def approx_kl(log_ratio: Array) -> float:
    """Estimate of KL(old, new) that is never negative: E[ρ - 1 - log ρ] (Schulman 2020)."""
    return mean(np.exp(log_ratio) - 1.0 - log_ratio)


def normalise(values: Array) -> Array:
    """Shift and scale (n,) to mean 0 and standard deviation 1."""
    normal: Array = (values - values.mean()) / (values.std() + values.dtype.type(1e-8))
    return normal


def make_multiplier(config: InfraMindConfig) -> Multiplier:
    """The multiplier that a configuration asks for."""
    c = config.lagrange
    if config.lagrangian == "none":
        return Multiplier(0.0)
    if config.lagrangian == "paper":
        return Paper(c.start, c.lr, c.limit, c.max_value)
    if config.lagrangian == "dual_critic":
        return Dual(c.start, c.lr, c.limit)
    return PID(c.start, c.kp, c.ki, c.kd, c.limit, c.smoothing)


def first_planner(config: InfraMindConfig, seed: int) -> dict[str, NDArray[np.float32]]:
    """The planner's first weights: random, or those of a MasRouter checkpoint.

    That one's router of models is left behind.

    Raises:
        ConfigError: it is no checkpoint, or its planner has other shapes.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        weights = weights_of(PlannerNet())
    init = config.planner.init
    if init is None:
        return weights
    shipped = CHECKPOINTS / init
    folder = shipped if shipped.is_dir() else Path(init)
    tensors, _ = load(folder)
    check_shapes(folder, tensors, {PLANNER + k: v.shape for k, v in weights.items()})
    return {k: tensors[PLANNER + k] for k in weights}


def _draw(*key: int) -> int:
    """A seed that belongs to a key."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint32)[0])


def _shares(kind: str, names: Any, chosen: NDArray[np.int64]) -> dict[str, float]:
    share = np.bincount(chosen, minlength=len(names)) / max(len(chosen), 1)
    return {f"shares/{kind}/{name}": float(share[i]) for i, name in enumerate(names)}
