"""InfraMind (arXiv 2606.11440): PPO-Lagrangian executor and REINFORCE planner on the closed loop.

    python -m agents.train --config inframind --seed 0 --out runs/inframind/seed0

Streams of queries run side by side, each at one arrival rate. Whenever 64 queries have been
answered, both networks and the Lagrange multiplier λ learn from them and from their decisions:

    executor  PPO with r_i = q - λ·l_i/β for decision i, l_i the latency of its call, β the budget
    planner   REINFORCE with the normalised q - λ·C, plus the task loss and the encoders' loss
    λ         λ + η·(mean C - 1), clipped to [0, 1]

where q is 1 for a solved query and C = latency / β. An epoch is as many queries as the paper's, six
sweeps over the training questions. After each the likeliest actions are validated; the learning
rates fall on a plateau, and training stops after 12 epochs without a better value.

The variants `dual_critic` and `pid` have a second critic, for the cost to go: (answer's time -
now)/β, so that a decision also pays for the calls after it. `pid` controls λ by PID.

Training is *bistable*: under load a seed ends either in a policy that leaves the strongest model as
queues grow, or in one that stays with it and is overrun (docs/results.md has the five seeds). The
likely reason: a late answer earns as much as one in time and λ ends near 0, so little pulls a
training out of the second regime.

Left open by the paper, or different from it:

- Streams of all rates run at once, so that a batch mixes them; the paper plays one after the other.
- A query's decisions may be made by weights of several updates (`losses/lag_kl`). The last queries
  of an epoch, fewer than a batch, are not learned from.
- Adam's learning rates and epsilon, gradient norms clipped at 0.5 and orthogonal first weights are
  ours.
- The planner chooses among the roles of a query's true domain; the task classifier learns, and is
  not used.

A training that is killed goes on from its last finished epoch to the same result.
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
from torch.optim.lr_scheduler import ReduceLROnPlateau

from agents.config import InfraMindConfig
from agents.lagrangian import Multiplier, PIDMultiplier
from agents.planner_network import PlannerNet, plan_of
from agents.rollouts import Batch, Streams, late, measures, shares
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
from inframind_gym.envs.routing.layout import EMBED_DIM
from inframind_gym.envs.routing.spec import PolicySpec
from inframind_gym.policies import checkpoint
from inframind_gym.policies.inframind import Player

Array = NDArray[Any]

ADAM_EPS: Final = 1e-5
LOG_EVERY: Final = 50  # updates
STATE, BEST = "state", "best"  # folders of checkpoints: where to go on from, and what to use
WEIGHTS, TRAINING, NOISE, VALIDATION = range(4)  # uses of a seed


def linear(inputs: int, outputs: int, gain: float = 2.0**0.5) -> nn.Linear:
    """Return a layer with orthogonal weights."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class ExecutorNet(nn.Module):
    """From query, role, budget and telemetry to a route: two pathways, one head, its critics."""

    def __init__(self, spec: PolicySpec, num_features: int, *, cost_critic: bool) -> None:
        super().__init__()
        self.semantic, self.semantic_norm = linear(2 * EMBED_DIM, 128), nn.LayerNorm(128)
        self.budget, self.system = linear(1, 16), linear(spec.num_models * num_features, 16)
        self.resource, self.resource_norm = linear(32, 64), nn.LayerNorm(64)
        self.merge = linear(192, 128)
        self.policy = linear(128, spec.num_models * spec.num_strategies, gain=0.01)
        self.value = linear(128, 2 if cost_critic else 1, gain=1.0)  # of reward, and of cost

    def forward(self, query: Tensor, role: Tensor, resource: Tensor) -> tuple[Tensor, Tensor]:
        """Judge n decisions.

        Args:
            query: (n, 384) embeddings of the queries.
            role: (n, 384) embeddings of the agents' roles.
            resource: (n, 1 + M·F) remaining budget and telemetry.

        Returns:
            Log-probabilities (n, M·S) of all pairs of model and strategy, and values (n, 1 or 2).
        """
        semantic = self.semantic_norm(F.relu(self.semantic(torch.cat([query, role], dim=1))))
        budget, system = F.relu(self.budget(resource[:, :1])), F.relu(self.system(resource[:, 1:]))
        encoded = F.relu(self.resource(torch.cat([budget, system], dim=1)))
        hidden = F.relu(self.merge(torch.cat([semantic, self.resource_norm(encoded)], dim=1)))
        return F.log_softmax(self.policy(hidden), dim=1), self.value(hidden)


class Agent(nn.Module):
    """Executor and planner.

    Raises:
        ConfigError: `planner.init` is no checkpoint, or its planner has other shapes.
    """

    def __init__(self, config: InfraMindConfig, spec: PolicySpec, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(seed, WEIGHTS))
            features, cost_critic = len(config.env.system_features), config.lagrangian != "paper"
            self.executor = ExecutorNet(spec, features, cost_critic=cost_critic)
            self.planner = PlannerNet()
        if config.planner.init is not None:  # its router of models is left behind
            shipped = checkpoint.SHIPPED / config.planner.init
            folder = shipped if shipped.is_dir() else Path(config.planner.init)
            tensors, _ = checkpoint.load(folder)
            shapes = {f"planner.{k}": v.shape for k, v in self.planner.state_dict().items()}
            checkpoint.check_shapes(folder, tensors, shapes)
            load_weights(self.planner, checkpoint.part(tensors, "planner."))


# Learning.


def normalise(values: Array) -> Tensor:
    """Return (n,) shifted and scaled to mean 0 and standard deviation 1."""
    return torch.from_numpy(np.asarray((values - values.mean()) / (values.std() + 1e-8), "f4"))


def approx_kl(log_ratio: Tensor) -> float:
    """Return an estimate of KL(old, new), never negative: E[ρ - 1 - log ρ] (Schulman 2020)."""
    return float((log_ratio.exp() - 1.0 - log_ratio).mean())


class Learner:
    """Networks, optimiser and multiplier.

    Attributes:
        updates: batches that were learned from.
    """

    def __init__(self, config: InfraMindConfig, seed: int, spec: PolicySpec) -> None:
        self.config, self.seed, self.spec, self.updates = config, seed, spec, 0
        self.agent = Agent(config, spec, seed)
        executor = {"params": self.agent.executor.parameters(), "lr": config.executor.lr}
        planner = {"params": self.agent.planner.parameters(), "lr": config.planner.lr}
        self.optimizer = torch.optim.Adam([executor, planner], eps=ADAM_EPS, fused=True)
        plateau = config.validation.lr_factor, config.validation.lr_patience
        self.scheduler = ReduceLROnPlateau(self.optimizer, "max", *plateau, threshold=0.0)
        c = config.lagrange
        most = c.max_value if config.lagrangian == "paper" else None
        self.multiplier: Multiplier | PIDMultiplier = Multiplier(c.start, c.lr, c.limit, most)
        if config.lagrangian == "pid":
            self.multiplier = PIDMultiplier(c.start, c.kp, c.ki, c.kd, c.limit, c.smoothing)

    def player(self) -> Player:
        """Return both networks in NumPy, with the present weights: what a checkpoint plays."""
        seen = self.config.executor.system_state
        return Player(weights_of(self.agent), self.spec, system_state=seen)

    def update(self, batch: Batch) -> dict[str, float]:
        """Learn from a batch of answered queries; λ moves last."""
        records, weight = batch.records, self.multiplier.value
        q = records["solved"].astype(np.float32)
        if self.config.reward == "goodput":
            q = q * ~late(records)
        metrics = self.update_executor(batch, q, weight)
        metrics |= self.update_planner(records, q, weight)
        self.multiplier.update(float(records["cost"].mean()))
        self.updates += 1
        return metrics | {
            "charts/episodic_return": float(q.mean()),
            "charts/episodic_cost": float(records["cost"].mean()),
            "lagrange/lambda": self.multiplier.value,
            **{f"charts/{name}": value for name, value in measures(records).items()},
            **shares(batch, self.spec),
        }

    def update_executor(self, batch: Batch, q: Array, weight: float) -> dict[str, float]:
        """PPO: K steps on the whole batch.

        Args:
            batch: Q queries.
            q: (Q,) what they earn.
            weight: λ.
        """
        c, net = self.config.executor, self.agent.executor
        query = torch.from_numpy(self.spec.task_embeddings[batch.column("task")])
        role = torch.from_numpy(self.spec.role_embeddings[batch.column("role")])
        seen = query, role, torch.from_numpy(batch.resource)
        actions = self.spec.action(batch.column("model"), batch.column("strategy"))
        index = torch.from_numpy(actions.astype(np.int64))[:, None]
        old_log_prob = torch.from_numpy(batch.log_prob)

        # What each critic is to expect, and how much it counts.
        budget_s, earned = batch.column("budget_s"), q[batch.of]
        if self.config.lagrangian == "paper":
            latency_s = batch.column("node_latency_s")
            targets, counts = (earned - weight * latency_s / budget_s)[:, None], np.ones(1)
        else:
            to_go_s = batch.column("finish_s") - batch.decided_s
            targets, counts = np.stack([earned, to_go_s / budget_s], 1), np.array([1.0, -weight])
        wanted = torch.from_numpy(targets.astype(np.float32))
        with torch.no_grad():
            log_probs, values = net(*seen)
            lag_kl = approx_kl(log_probs.gather(1, index)[:, 0] - old_log_prob)
            advantage = normalise((targets - values.numpy()) @ counts)

        for _ in range(c.mini_epochs):
            log_probs, values = net(*seen)
            log_ratio = log_probs.gather(1, index)[:, 0] - old_log_prob
            ratio = log_ratio.exp()
            clipped = ratio.clamp(1.0 - c.clip, 1.0 + c.clip)
            policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
            value_loss = F.mse_loss(values, wanted, reduction="none").mean(0).sum()
            entropy = -(log_probs.exp() * log_probs).sum(dim=1).mean()
            loss = policy_loss + c.value_weight * value_loss - c.entropy_weight * entropy
            self._descend(net, loss, c.max_grad_norm)
        return {
            "losses/policy_loss": policy_loss.item(),
            "losses/value_loss": value_loss.item(),
            "losses/entropy": entropy.item(),
            "losses/approx_kl": approx_kl(log_ratio.detach()),
            "losses/lag_kl": lag_kl,  # of the policy since the decisions were made
        }

    def update_planner(self, records: Array, q: Array, weight: float) -> dict[str, float]:
        """REINFORCE without a critic, one step; arguments as of `update_executor`."""
        c, planner = self.config.planner, self.agent.planner
        noise = torch.Generator().manual_seed(seed_of(self.seed, NOISE, self.updates))
        domain = torch.from_numpy(records["domain"].astype(np.int64))
        out = planner(torch.from_numpy(self.spec.task_embeddings[records["task"]]), domain, noise)
        utility = normalise(q - weight * records["cost"])
        policy_loss = -(planner.log_prob(out, plan_of(records)) * utility).mean()
        task_loss = F.cross_entropy(out.task_logits, domain)
        loss = policy_loss + c.task_weight * task_loss + c.vae_weight * out.vae_loss
        self._descend(planner, loss, c.max_grad_norm)
        return {
            "losses/planner_loss": policy_loss.item(),
            "losses/task_loss": task_loss.item(),
            "losses/vae_loss": out.vae_loss.item(),
        }

    def _descend(self, net: nn.Module, loss: Tensor, max_grad_norm: float) -> None:
        """Take one step of Adam, which leaves the network alone that the loss is not of."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(net.parameters(), max_grad_norm)
        self.optimizer.step()

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return everything that learning depends on, as arrays and JSON."""
        numbers = {"updates": self.updates, "multiplier": asdict(self.multiplier)}
        numbers["scheduler"] = self.scheduler.state_dict()
        numbers["lr"] = [group["lr"] for group in self.optimizer.param_groups]
        return state_of(self.agent, self.optimizer), numbers

    def restore(self, arrays: checkpoint.Tensors, numbers: dict[str, Any]) -> None:
        """Go back to a `state`."""
        load_state(self.agent, self.optimizer, arrays)
        self.updates = int(numbers["updates"])
        self.multiplier = type(self.multiplier)(**numbers["multiplier"])
        self.scheduler.load_state_dict(numbers["scheduler"])
        for group, lr in zip(self.optimizer.param_groups, numbers["lr"], strict=True):
            group["lr"] = lr


# The training.


@dataclass
class Progress:
    """Counters of a training."""

    epoch: int = 0  # epochs that are finished
    decisions: int = 0  # made so far
    seconds: float = 0.0  # spent in epochs, validations included
    best: float | None = None  # best value of the validation; None before the first
    best_epoch: int = 0  # finished epochs when it was reached


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
        resume: go on from the last epoch in `out` that was finished.
        wandb: see `Tracker`, as for `tensorboard`.

    Returns:
        The `Progress` as a dict.

    Raises:
        ConfigError: `out` holds a training and `resume` is not set, or one of another
            configuration, seed or simulator version.
    """
    use_one_thread()
    run, progress, c = run_of(config, seed), Progress(), config.validation
    streams = Streams(config, "train", np.repeat(config.rates_per_min, config.rows_per_rate))
    held_out = Streams(config, "val", np.full(c.rows, c.rate_per_min), budget_s=c.budget_s)
    learner = Learner(config, seed, streams.spec)
    if checkpoint.exists(out / STATE):
        arrays, numbers = checkpoint.load(out / STATE)
        check_resume(out, numbers["run"], run, resume=resume)
        learner.restore(arrays, numbers)
        progress = Progress(**numbers["progress"])
    with Tracker(out, run, wandb=wandb, tensorboard=tensorboard) as tracker:
        tracker.rewind(progress.decisions)  # an epoch may have been noted before it was saved
        while progress.epoch < min(config.epochs, progress.best_epoch + c.early_stopping):
            began = time.perf_counter()
            play_epoch(learner, streams, tracker, progress)
            found = validate(learner, held_out)
            progress.seconds += time.perf_counter() - began
            if progress.best is None or found[c.metric] > progress.best:
                progress.best, progress.best_epoch = found[c.metric], progress.epoch
                played = policy_config(learner, progress, run)
                checkpoint.save(out / BEST, weights_of(learner.agent), played)
            learner.scheduler.step(found[c.metric])
            metrics = {f"validation/{name}": value for name, value in found.items()}
            tracker.log(progress.decisions, metrics | {"charts/epoch": progress.epoch})
            tracker.flush()
            print(_report(progress, found, learner), file=sys.stderr, flush=True)
            arrays, numbers = learner.state()
            numbers |= {"run": run, "progress": asdict(progress)}
            checkpoint.save(out / STATE, arrays, numbers)
    return asdict(progress)


def play_epoch(learner: Learner, streams: Streams, tracker: Tracker, progress: Progress) -> None:
    """Play a stream in every row and learn from every batch of queries that is answered."""
    size, began, decisions = learner.config.batch_episodes, time.perf_counter(), 0
    player, waiting = learner.player(), np.zeros((0, 2), np.int64)
    history: list[dict[str, float]] = []
    streams.begin(learner.seed, TRAINING, progress.epoch)
    while streams.running.any():
        decisions += int(streams.running.sum())
        waiting = np.concatenate([waiting, streams.step(player)])
        while len(waiting) >= size:
            history.append(learner.update(streams.batch(waiting[:size])))
            player, waiting = learner.player(), waiting[size:]
        if history and (len(history) >= LOG_EVERY or not streams.running.any()):
            means = {key: float(np.mean([m[key] for m in history])) for key in history[0]}
            means["charts/SPS"] = decisions / (time.perf_counter() - began)
            tracker.log(progress.decisions + decisions, means)
            history = []
    progress.epoch += 1
    progress.decisions += decisions


def validate(learner: Learner, streams: Streams) -> dict[str, float]:
    """Return `measures` on held-out tasks, without draws; the same streams every time."""
    streams.begin(learner.seed, VALIDATION)
    player = learner.player()
    while streams.running.any():
        streams.step(player, sample=False)
    return measures(streams.records.ravel())


def policy_config(learner: Learner, progress: Progress, run: dict[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint says of its policy and of how it was made."""
    return {
        "agent": "inframind",
        "models": list(learner.spec.models),
        "strategies": list(learner.spec.strategies),
        "system_features": list(learner.config.env.system_features),
        "system_state": learner.config.executor.system_state,
        "multiplier": learner.multiplier.value,
        "training": {**run, **asdict(progress)},
    }


def _report(progress: Progress, found: dict[str, float], learner: Learner) -> str:
    return (
        f"epoch {progress.epoch}: solved {found['solved']:.3f}, goodput {found['goodput']:.3f}, "
        f"late {found['violation_rate']:.3f}, lambda {learner.multiplier.value:.3f}, "
        f"{progress.decisions} decisions, {progress.decisions / progress.seconds:.0f}/s"
    )
