"""InfraMind (arXiv 2606.11440): PPO-Lagrangian executor and REINFORCE planner on the closed loop.

    python -m agents.train --config inframind --seed 0 --out runs/inframind/seed0

A round is one episode in every row of `InfraMind-Stream-v0`, from empty servers to the last query,
each row at an arrival rate of its own. Whenever `batch_episodes` queries have finished, both
networks and the Lagrange multiplier λ learn from them and from all of their decisions:

    executor  PPO with r_i = q - λ·l_i/β for decision i, l_i the latency of its node, β the budget
    planner   REINFORCE with the normalised q - λ·C, plus the task loss and the encoders' loss
    λ         λ + η·(mean C - limit), clipped to [0, 1]

where q is 1 for a solved query and C = latency / β. The variants `dual_critic` and `pid` give the
executor a critic for the cost, with GAE over a query's decisions, and replace the multiplier.

Left open by the paper, or different from it:

- Rows that run together are at different rates, so that a batch mixes them; the paper plays one
  rate after the other.
- A query's decisions may be made by weights of several updates (`losses/lag_kl`).
- Adam's learning rates and epsilon, gradient norms clipped at 0.5 and orthogonal initial weights
  are ours. With the few epochs of the shipped configuration early stopping cannot be reached.
- The planner chooses among the roles of a query's true domain; the task classifier learns, and is
  not used.
- The last batch of a round takes what is left over, up to 2 * batch_episodes - 1 queries.

A training that is killed goes on from its last finished round to the same result.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from agents.config import InfraMindConfig, ValidationConfig
from agents.executor_network import ExecutorNet, ExecutorOutput
from agents.lagrangian import Multiplier, PIDMultiplier
from agents.planner_network import Plan, PlannerNet
from agents.rollouts import Batch, Rollouts, concatenate
from agents.runs import (
    Tracker,
    check_resume,
    load_state,
    load_weights,
    run_of,
    seed_of,
    state_of,
    use_one_thread,
    weights_of,
)
from inframind_gym.envs.routing.spec import PolicySpec
from inframind_gym.policies import checkpoint
from inframind_gym.policies.inframind import Executor, ExecutorShape
from inframind_gym.policies.planner_network import NumpyPlanner

Array = NDArray[np.floating[Any]]

ADAM_EPS: Final = 1e-5
LOG_EVERY: Final = 50  # updates
STATE, BEST = "state", "best"  # folders of checkpoints: where to go on from, and what to use
WEIGHTS, NOISE, RATES, VALIDATION = range(2, 6)  # uses of a seed, after those of `rollouts`


def make_multiplier(config: InfraMindConfig) -> Multiplier | PIDMultiplier:
    """Return the multiplier that a configuration asks for."""
    c = config.lagrange
    if config.lagrangian == "pid":
        return PIDMultiplier(c.start, c.kp, c.ki, c.kd, c.limit, c.smoothing)
    if config.lagrangian == "none":
        return Multiplier(0.0, 0.0)
    return Multiplier(c.start, c.lr, c.limit, c.max_value if config.lagrangian == "paper" else None)


class Agent(nn.Module):
    """Executor and planner.

    Args:
        config: of the training.
        spec: the pool, the tasks and the roles.
        seed: of the first weights.

    Raises:
        ConfigError: `planner.init` is no checkpoint, or its planner has other shapes.
    """

    def __init__(self, config: InfraMindConfig, spec: PolicySpec, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(seed, WEIGHTS))
            self.executor = ExecutorNet(
                ExecutorShape(spec.num_models, spec.num_strategies, **config.network())
            )
            self.planner = PlannerNet()
        if config.planner.init is not None:  # its router of models is left behind
            shipped = checkpoint.SHIPPED / config.planner.init
            folder = shipped if shipped.is_dir() else Path(config.planner.init)
            tensors, _ = checkpoint.load(folder)
            shapes = {f"planner.{k}": v.shape for k, v in self.planner.state_dict().items()}
            checkpoint.check_shapes(folder, tensors, shapes)
            load_weights(self.planner, checkpoint.part(tensors, "planner."))


def gae(
    rewards: Array, values: Array, length: NDArray[Any], gamma: float, gae_lambda: float
) -> Array:
    """Return generalised advantage estimates (Q, N) over the decisions of each query.

    A_t = δ_t + γ·λ·A_{t+1} with δ_t = r_t + γ·V_{t+1} - V_t, and V = 0 after the last decision
    (Schulman et al. 2016). Padding gets 0.

    Args:
        rewards: (Q, N).
        values: (Q, N).
        length: (Q,) number of decisions.
        gamma: discount γ.
        gae_lambda: λ of the estimator, not the multiplier.
    """
    advantages = np.zeros(rewards.shape, np.float32)
    carried, following = np.zeros(len(rewards)), np.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        here = t < length
        delta = rewards[:, t] + gamma * following - values[:, t]
        carried = np.where(here, delta + gamma * gae_lambda * carried, 0.0)
        following = np.where(here, values[:, t], 0.0)
        advantages[:, t] = carried
    return advantages


def ppo_loss(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Return -E[min(ρ·A, clip(ρ, 1 - ε, 1 + ε)·A)] from log ρ (n,) and A (n,)."""
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def approx_kl(log_ratio: Tensor) -> float:
    """Return an estimate of KL(old, new), never negative: E[ρ - 1 - log ρ] (Schulman 2020)."""
    return float((log_ratio.exp() - 1.0 - log_ratio).mean())


def normalise(values: Array) -> Tensor:
    """Return (n,) shifted and scaled to mean 0 and standard deviation 1."""
    return torch.from_numpy(np.asarray((values - values.mean()) / (values.std() + 1e-8), "f4"))


class Learner:
    """Networks, optimisers and multiplier.

    Args:
        config: of the training.
        seed: of the first weights and of the latents' noise.
        spec: the pool, the tasks and the roles.

    Attributes:
        updates: batches that were learned from.
    """

    def __init__(self, config: InfraMindConfig, seed: int, spec: PolicySpec) -> None:
        self.config, self.seed, self.spec, self.updates = config, seed, spec, 0
        self.agent = Agent(config, spec, seed)
        self.optimizer = torch.optim.Adam(
            [
                {"params": self.agent.executor.parameters(), "lr": config.executor.lr},
                {"params": self.agent.planner.parameters(), "lr": config.planner.lr},
            ],
            eps=ADAM_EPS,
            fused=True,
        )
        self.multiplier = make_multiplier(config)

    def update(self, batch: Batch) -> dict[str, float]:
        """Learn from a batch of finished queries; λ moves last."""
        weight = self.multiplier.value
        q = batch.quality(self.config.reward)
        cost = np.minimum(batch.records["cost"], self.config.lagrange.cost_cap or np.inf)
        metrics = self.update_executor(batch, q, cost, weight)
        metrics |= self.update_planner(batch, q, cost, weight)
        self.multiplier.update(float(cost.mean()))
        self.updates += 1
        return metrics | {
            "charts/episodic_return": float(q.mean()),
            "charts/episodic_cost": float(cost.mean()),
            "lagrange/lambda": self.multiplier.value,
            **batch.charts(self.spec),
        }

    def update_executor(
        self, batch: Batch, q: Array, cost: Array, weight: float
    ) -> dict[str, float]:
        """PPO: K steps on the whole batch."""
        config, mask, records = self.config.executor, batch.mask, batch.records
        tasks = records["task"][np.nonzero(mask)[0]]  # (n,) of the decisions
        query = torch.from_numpy(self.spec.task_embeddings[tasks])
        role = torch.from_numpy(self.spec.role_embeddings[records["role"][mask]])
        resource = torch.from_numpy(batch.resource[mask])
        actions = torch.from_numpy(batch.routes(self.spec))[:, None]
        old_log_prob = torch.from_numpy(batch.log_prob[mask])
        for epoch in range(config.mini_epochs):
            out: ExecutorOutput = self.agent.executor(query, role, resource)
            log_ratio = out.log_probs.gather(1, actions)[:, 0] - old_log_prob
            if epoch == 0:  # advantages from the values before the update
                value = out.value.detach().numpy()
                if out.cost_value is None:
                    targets = batch.node_rewards(q, weight)[mask]
                    advantage = normalise(targets - value)
                else:
                    cost_value = out.cost_value.detach().numpy()
                    reward_gae = self._gae(batch, batch.at_the_end(q), value)
                    cost_gae = self._gae(batch, batch.spread(cost), cost_value)
                    targets = reward_gae + value
                    cost_targets = torch.from_numpy(cost_gae + cost_value)
                    advantage = normalise((reward_gae - weight * cost_gae) / (1.0 + weight))
                lag_kl = approx_kl(log_ratio.detach())
            policy_loss = ppo_loss(log_ratio, advantage, config.clip)
            value_loss = F.mse_loss(out.value, torch.from_numpy(targets))
            if out.cost_value is not None:
                value_loss = value_loss + F.mse_loss(out.cost_value, cost_targets)
            entropy = -(out.log_probs.exp() * out.log_probs).sum(dim=1).mean()
            loss = policy_loss + config.value_weight * value_loss - config.entropy_weight * entropy
            self._descend(self.agent.executor, loss, config.max_grad_norm)
        return {
            "losses/policy_loss": policy_loss.item(),
            "losses/value_loss": value_loss.item(),
            "losses/entropy": entropy.item(),
            "losses/approx_kl": approx_kl(log_ratio.detach()),
            "losses/lag_kl": lag_kl,  # of the policy since the decisions were made
        }

    def update_planner(
        self, batch: Batch, q: Array, cost: Array, weight: float
    ) -> dict[str, float]:
        """REINFORCE without a critic, one step."""
        config, records = self.config.planner, batch.records
        noise = torch.Generator().manual_seed(seed_of(self.seed, NOISE, self.updates))
        domain = torch.from_numpy(records["domain"].astype(np.int64))
        query = torch.from_numpy(self.spec.task_embeddings[records["task"]])
        # Plans were drawn from latents without noise, so their log-probabilities are of these too.
        out = self.agent.planner(query, domain, noise, quiet=True)
        plan = Plan(*(torch.from_numpy(part) for part in batch.plans()))
        log_prob = self.agent.planner.log_prob(out, plan)
        policy_loss = -(log_prob * normalise(q - weight * cost)).mean()
        task_loss = F.cross_entropy(out.task_logits, domain)
        loss = policy_loss + config.task_weight * task_loss + config.vae_weight * out.vae_loss
        self._descend(self.agent.planner, loss, config.max_grad_norm)
        return {
            "losses/planner_loss": policy_loss.item(),
            "losses/task_loss": task_loss.item(),
            "losses/vae_loss": out.vae_loss.item(),
        }

    def players(self) -> tuple[Executor, NumpyPlanner]:
        """Return both networks in NumPy, with the present weights: what a checkpoint plays."""
        executor, planner = weights_of(self.agent.executor), weights_of(self.agent.planner)
        roles = self.spec.role_embeddings
        return Executor(executor, self.agent.executor.shape, roles), NumpyPlanner(planner)

    def scale_lr(self, factor: float) -> None:
        """Set both learning rates to a multiple of those of the configuration."""
        of_config = (self.config.executor.lr, self.config.planner.lr)
        for group, lr in zip(self.optimizer.param_groups, of_config, strict=True):
            group["lr"] = lr * factor

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return everything that learning depends on, as arrays and JSON."""
        numbers = {"updates": self.updates, "multiplier": asdict(self.multiplier)}
        return state_of(self.agent, self.optimizer), numbers

    def restore(self, arrays: checkpoint.Tensors, numbers: dict[str, Any]) -> None:
        """Go back to a `state`."""
        load_state(self.agent, self.optimizer, arrays)
        self.updates = int(numbers["updates"])
        self.multiplier = type(self.multiplier)(**numbers["multiplier"])

    def _descend(self, net: nn.Module, loss: Tensor, max_grad_norm: float) -> None:
        """Take one step of Adam, which leaves the network alone that the loss is not of."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(net.parameters(), max_grad_norm)
        self.optimizer.step()

    def _gae(self, batch: Batch, rewards: Array, values: Array) -> Array:
        """Return advantages (n,) of all decisions, from rewards (Q, N) and values (n,)."""
        mask, config = batch.mask, self.config.executor
        padded = np.zeros(mask.shape, np.float32)
        padded[mask] = values
        length = batch.records["num_nodes"]
        return gae(rewards, padded, length, config.gamma, config.gae_lambda)[mask]


# The training.


@dataclass
class Progress:
    """Counters of a training and the verdicts of its validations."""

    round: int = 0  # rounds that are finished
    decisions: int = 0  # made so far
    episodes: int = 0  # queries finished so far
    seconds: float = 0.0  # spent in rounds
    best: float | None = None  # best value of the validation; None before the first
    best_round: int = 0  # finished rounds when it was reached
    bad_epochs: int = 0  # validations since then
    lr_bad_epochs: int = 0  # validations since then or since the learning rates fell
    lr_scale: float = 1.0  # of the learning rates
    stopped: bool = False  # whether early stopping has ended the training

    def judge(self, value: float, config: ValidationConfig) -> bool:
        """Take note of a validation: early stopping, and the learning rates on a plateau.

        Returns:
            Whether it is the best so far.
        """
        if self.best is None or value > self.best:
            self.best, self.best_round = value, self.round
            self.bad_epochs = self.lr_bad_epochs = 0
            return True
        self.bad_epochs += 1
        self.lr_bad_epochs += 1
        if self.lr_bad_epochs > config.lr_patience:
            self.lr_scale *= config.lr_factor
            self.lr_bad_epochs = 0
        self.stopped = self.bad_epochs >= config.early_stopping
        return False


def train(
    config: InfraMindConfig,
    *,
    seed: int,
    out: Path,
    resume: bool = False,
    wandb: bool = False,
    tensorboard: bool = False,
) -> dict[str, Any]:
    """Train; the best policy is in `out/best`, the metrics in `out/metrics.jsonl`.

    Args:
        config: of the training.
        seed: same seed, same result.
        out: folder of the training.
        resume: go on from the last round in `out` that was finished.
        wandb: see `Tracker`, as for `tensorboard`.

    Returns:
        The `Progress` as a dict.

    Raises:
        ConfigError: `out` holds a training and `resume` is not set, or one of another
            configuration, seed or simulator version.
    """
    use_one_thread()
    run = run_of(config, seed)
    progress = Progress()
    saved: tuple[dict[str, NDArray[Any]], dict[str, Any]] | None = None
    if checkpoint.exists(out / STATE):
        saved = checkpoint.load(out / STATE)
        check_resume(out, saved[1]["run"], run, resume=resume)
        progress = Progress(**saved[1]["progress"])
    see_system = config.executor.system_state
    rollouts = Rollouts(config.env.arguments("train"), config.rows, see_system)
    held_out = config.env.arguments("val") | {"budget_s": config.validation.budget_s}
    validation = Rollouts(held_out, config.validation.rows, see_system)
    learner = Learner(config, seed, rollouts.spec)
    best = weights_of(learner.agent)
    with Tracker(out, run, wandb=wandb, tensorboard=tensorboard) as tracker:
        if saved is not None:
            learner.restore(*saved)
            learner.scale_lr(progress.lr_scale)
            best = checkpoint.part(saved[0], "best.")
        tracker.rewind(progress.decisions)  # a round may have been noted before a state was saved
        per_epoch = len(config.rates_per_min)
        while progress.round < config.epochs * per_epoch and not progress.stopped:
            play_round(learner, rollouts, tracker, progress)
            if progress.round % per_epoch == 0:
                metrics = validate(learner, validation)
                if progress.judge(
                    metrics[f"validation/{config.validation.metric}"], config.validation
                ):
                    best = weights_of(learner.agent)
                learner.scale_lr(progress.lr_scale)
                metrics["charts/lr_scale"] = progress.lr_scale
                tracker.log(progress.decisions, metrics)
                checkpoint.save(out / BEST, best, policy_config(learner, progress, run))
                print(_report(progress, metrics, learner), file=sys.stderr, flush=True)
            tracker.flush()
            arrays, numbers = learner.state()
            numbers |= {"run": run, "progress": asdict(progress)}
            checkpoint.save(out / STATE, arrays | checkpoint.prefixed(best, "best."), numbers)
    return asdict(progress)


def play_round(learner: Learner, rollouts: Rollouts, tracker: Tracker, progress: Progress) -> None:
    """Play one episode in every row and learn from every query that finishes."""
    size, began, decisions = learner.config.batch_episodes, time.perf_counter(), 0
    rollouts.begin(
        learner.seed, progress.round, round_rates(learner.config, learner.seed, progress.round)
    )
    players = learner.players()
    waiting: list[Batch] = []
    history: list[dict[str, float]] = []
    to_come = rollouts.queries  # of the round, not learned from
    while rollouts.running.any():
        decisions += int(rollouts.running.sum())
        done = concatenate([*waiting, rollouts.step(*players)])
        # Where too few for a batch of their own are left over, they join the last one.
        while to_come and len(done) >= (end := size if to_come >= 2 * size else to_come):
            history.append(learner.update(done.take(slice(end))))
            players = learner.players()
            done, to_come = done.take(slice(end, None)), to_come - end
        waiting = [done]
        if history and (len(history) >= LOG_EVERY or to_come == 0):
            means = {key: float(np.mean([m[key] for m in history])) for key in history[0]}
            means["charts/SPS"] = decisions / (time.perf_counter() - began)
            tracker.log(progress.decisions + decisions, means)
            history = []
    progress.round += 1
    progress.decisions += decisions
    progress.episodes += rollouts.queries
    progress.seconds += time.perf_counter() - began


def round_rates(config: InfraMindConfig, seed: int, round_: int) -> Array:
    """Return the arrival rates (E,) of a round: each row shuffles the rates of every epoch."""
    epoch, position = divmod(round_, len(config.rates_per_min))
    orders = [
        np.random.default_rng([seed, RATES, epoch, row]).permutation(config.rates_per_min)
        for row in range(config.rows)
    ]
    return np.array([order[position] for order in orders])


def validate(learner: Learner, rollouts: Rollouts) -> dict[str, float]:
    """Return solve rate, goodput, cost and violations on held-out tasks, without draws."""
    config = learner.config.validation
    rollouts.begin(learner.seed, VALIDATION, np.full(config.rows, config.rate_per_min))
    players, parts = learner.players(), []
    while rollouts.running.any():
        parts.append(rollouts.step(*players, deterministic=True))
    done = concatenate(parts)
    return {
        "validation/solved": float(done.records["solved"].mean()),
        "validation/goodput": float((done.records["solved"] * ~done.late).mean()),
        "validation/cost": float(done.records["cost"].mean()),
        "validation/violation_rate": float(done.late.mean()),
        "validation/latency_s": float(done.records["latency_s"].mean()),
    }


def policy_config(learner: Learner, progress: Progress, run: dict[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint says of its policy and of how it was made."""
    return {
        "agent": "inframind",
        "network": learner.config.network(),
        "models": list(learner.spec.models),
        "strategies": list(learner.spec.strategies),
        "system_features": list(learner.config.env.system_features),
        "system_state": learner.config.executor.system_state,
        "multiplier": learner.multiplier.value,
        "training": {**run, **asdict(progress)},
    }


def _report(progress: Progress, metrics: dict[str, float], learner: Learner) -> str:
    return (
        f"round {progress.round}: solved {metrics['validation/solved']:.3f}, goodput "
        f"{metrics['validation/goodput']:.3f}, late {metrics['validation/violation_rate']:.3f}, "
        f"lambda {learner.multiplier.value:.3f}, {progress.decisions} decisions, "
        f"{progress.decisions / progress.seconds:.0f}/s"
    )
