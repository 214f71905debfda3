"""InfraMind: a PPO-Lagrangian executor and a REINFORCE planner on the closed loop.

Source: `spec/inframind.md` §4. `lagrangian: paper` has that text's networks, losses, multiplier and
schedules; `dual_critic` and `pid` replace its advantage and its multiplier. From top to bottom:
`Learner` holds the networks and learns from 64 finished queries at a time; `train` plays rounds,
feeds the learner, validates, saves and resumes.

What the text leaves open, or where this differs from it:

- Sweeps run side by side, and rows that run together are at different rates, so that a batch mixes
  them; the text sweeps one rate after the other.
- The weights that act are up to a phase older than those that learn (`losses/lag_kl`).
- Adam's learning rates, its epsilon, gradient norms clipped at 0.5 and orthogonal initial weights
  are ours. With the few epochs of the shipped configuration its early stopping cannot be reached.
- The planner chooses among the roles of a query's true domain; what its task classifier finds is
  learned (the task loss) and not used.
- The last batch of a round takes what is left over, up to 127 queries.

A run that is killed goes on from its last round, and a round from which a worker is lost is played
again: the result is the same, bit for bit, for any number of workers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from agents.advantages import costs, gae, last_only, paper_rewards, quality, step_costs
from agents.checkpoint import check_shapes, load, part, prefixed, save
from agents.config import CHECKPOINTS, InfraMindConfig
from agents.executor_net import ExecutorNet
from agents.flat_adam import FlatAdam
from agents.fleet import Fleet, WorkerDiedError
from agents.inference import ExecutorShape
from agents.lagrangian import PID, Dual, Multiplier, Paper
from agents.planner_net import PlannerNet
from agents.progress import Progress
from agents.rollouts import Episodes, Shard, by_step, limit_threads
from agents.rounds import cut, round_rates, shard_config, validation_shard
from agents.tracking import Tracker
from inframind_gym.topology import TOPOLOGIES

EXECUTOR: Final = "executor."
PLANNER: Final = "planner."
BEST: Final = "best."
MAX_ATTEMPTS: Final = 3  # at a round that loses workers
LOG_EVERY: Final = 50  # updates

# What the seeds of a training are for, beside those of `agents.rollouts` and `agents.rounds`.
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
        self.tasks = torch.from_numpy(facts["task_embeddings"])  # (T, 384)
        self.roles = torch.from_numpy(facts["role_embeddings"])  # (25, 384)
        self.shape = ExecutorShape(
            len(facts["models"]), len(facts["strategies"]), **config.network()
        )
        self.executor = ExecutorNet(self.shape, _draw(seed, WEIGHTS, 0))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_draw(seed, WEIGHTS, 1))
            self.planner = PlannerNet()
        if config.planner.init is not None:
            take_over_planner(self.planner, config.planner.init)
        self.executor_adam = FlatAdam(
            self.executor, config.executor.lr, config.executor.max_grad_norm
        )
        self.planner_adam = FlatAdam(self.planner, config.planner.lr, config.planner.max_grad_norm)
        self.multiplier = make_multiplier(config)
        self._beside = ThreadPoolExecutor(1)  # the planner learns while the executor does

    def update(self, batch: Episodes) -> dict[str, float]:
        """Learn from a batch of finished queries; λ moves last."""
        weight = self.multiplier.value
        q = quality(batch, self.config.reward)
        cost = costs(batch, self.config.lagrange.cost_cap)
        planner = self._beside.submit(self._update_planner, batch, q, cost, weight)
        metrics = self._update_executor(batch, q, cost, weight) | planner.result()
        self.multiplier.update(float(cost.mean()))
        self.updates += 1
        return metrics | self._charts(batch, q, cost)

    def _update_executor(
        self, batch: Episodes, q: NDArray[Any], cost: NDArray[Any], weight: float
    ) -> dict[str, float]:
        """PPO: K steps on the whole batch (`spec/inframind.md` §4.3)."""
        config = self.config.executor
        mask = batch.decisions()
        queries = self.tasks[torch.from_numpy(batch.task)]  # (Q, 384)
        query_index = torch.from_numpy(np.repeat(np.arange(len(batch)), batch.length))  # (n,)
        role_index = torch.from_numpy(batch.role[mask])  # (n,)
        resource = torch.from_numpy(batch.resource[mask])  # (n, 1 + M·F)
        actions = torch.from_numpy(batch.action[mask])[:, None]  # (n, 1)
        old_log_prob = torch.from_numpy(batch.log_prob[mask])  # (n,)
        advantage = targets = cost_targets = torch.zeros(0)
        first_kl = 0.0
        for epoch in range(config.mini_epochs):
            out = self.executor(queries, query_index, self.roles, role_index, resource)
            log_prob = out.log_probs.gather(1, actions)[:, 0]
            log_ratio = log_prob - old_log_prob
            if epoch == 0:  # V of before the update: no pass of its own is needed for it
                values = out.value.detach()
                if out.cost_value is None:
                    targets = torch.from_numpy(paper_rewards(batch, q, weight)[mask])
                    advantage = targets - values
                else:
                    cost_values = out.cost_value.detach()
                    reward_gae = self._gae(batch, last_only(batch, q), values)
                    cost_gae = self._gae(batch, step_costs(batch, cost), cost_values)
                    targets, cost_targets = reward_gae + values, cost_gae + cost_values
                    advantage = (reward_gae - weight * cost_gae) / (1.0 + weight)
                advantage = normalise(advantage)
                first_kl = approx_kl(log_ratio)
            policy_loss = ppo_loss(log_ratio, advantage, config.clip)
            value_loss = F.mse_loss(out.value, targets)
            if out.cost_value is not None:
                value_loss = value_loss + F.mse_loss(out.cost_value, cost_targets)
            entropy = -(out.log_probs.exp() * out.log_probs).sum(dim=1).mean()
            loss = policy_loss + config.value_weight * value_loss - config.entropy_weight * entropy
            self.executor_adam.zero_grad()
            loss.backward()
            self.executor_adam.step()
        return {
            "losses/policy_loss": policy_loss.item(),
            "losses/value_loss": value_loss.item(),
            "losses/entropy": entropy.item(),
            "losses/approx_kl": approx_kl(log_ratio),
            "losses/lag_kl": first_kl,  # how far the policy had moved on since the batch was made
        }

    def _gae(self, batch: Episodes, rewards: NDArray[Any], values: Tensor) -> Tensor:
        """Advantages (n,) of all decisions of a batch, from rewards (Q, N) and values (n,)."""
        mask, config = batch.decisions(), self.config.executor
        padded = np.zeros(mask.shape, np.float32)
        padded[mask] = values.numpy()
        advantages = gae(rewards, padded, batch.length, config.gamma, config.gae_lambda)
        return torch.from_numpy(advantages[mask])

    def _update_planner(
        self, batch: Episodes, q: NDArray[Any], cost: NDArray[Any], weight: float
    ) -> dict[str, float]:
        """REINFORCE without a critic, one step (`spec/inframind.md` §4.2)."""
        config = self.config.planner
        noise = torch.Generator().manual_seed(_draw(self.seed, NOISE, self.updates))
        domain = torch.from_numpy(batch.domain)
        queries = self.tasks[torch.from_numpy(batch.task)]
        # Plans were drawn from latents without noise, so their log-probabilities are of these too.
        out = self.planner(queries, domain, noise, quiet=True)
        log_prob = self.planner.log_prob_of(
            out,
            torch.from_numpy(batch.topology),
            torch.from_numpy(batch.num_agents),
            torch.from_numpy(batch.plan_roles),
        )
        advantage = normalise(torch.from_numpy(np.asarray(q - weight * cost, np.float32)))
        policy_loss = -(log_prob * advantage).mean()
        task_loss = F.cross_entropy(out.task_logits, domain)
        loss = policy_loss + config.task_weight * task_loss + config.vae_weight * out.vae_loss
        self.planner_adam.zero_grad()
        loss.backward()
        self.planner_adam.step()
        return {
            "losses/planner_loss": policy_loss.item(),
            "losses/task_loss": task_loss.item(),
            "losses/vae_loss": out.vae_loss.item(),
        }

    def _charts(self, batch: Episodes, q: NDArray[Any], cost: NDArray[Any]) -> dict[str, float]:
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

    def weights(self) -> dict[str, NDArray[Any]]:
        """What shards and policies act with: copies, float32."""
        return prefixed(_arrays(self.executor), EXECUTOR) | prefixed(_arrays(self.planner), PLANNER)

    def scale_lr(self, factor: float) -> None:
        """Set both learning rates to a multiple of those of the configuration."""
        self.executor_adam.lr = self.config.executor.lr * factor
        self.planner_adam.lr = self.config.planner.lr * factor

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Everything that learning depends on, as arrays and JSON."""
        arrays = self.weights()
        arrays |= self.executor_adam.state("executor_adam.")
        arrays |= self.planner_adam.state("planner_adam.")
        return arrays, {"updates": self.updates, "multiplier": self.multiplier.state()}

    def restore(self, arrays: Mapping[str, NDArray[Any]], numbers: Mapping[str, Any]) -> None:
        """Go back to a `state`."""
        _load(self.executor, part(arrays, EXECUTOR))
        _load(self.planner, part(arrays, PLANNER))
        self.executor_adam.restore(arrays, "executor_adam.")
        self.planner_adam.restore(arrays, "planner_adam.")
        self.updates = int(numbers["updates"])
        self.multiplier = type(self.multiplier)(**numbers["multiplier"])


def ppo_loss(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """-E[min(ρ·A, clip(ρ, 1 - ε, 1 + ε)·A)], from log ρ (n,) and A (n,)."""
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    return -torch.minimum(ratio * advantage, clipped * advantage).mean()


def approx_kl(log_ratio: Tensor) -> float:
    """Estimate of KL(old, new) that is never negative: E[ρ - 1 - log ρ] (Schulman 2020)."""
    detached = log_ratio.detach()
    return float((detached.exp() - 1.0 - detached).mean())


def normalise(values: Tensor) -> Tensor:
    """Shift and scale to mean 0 and standard deviation 1."""
    return (values - values.mean()) / (values.std(correction=0) + 1e-8)


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


def take_over_planner(planner: PlannerNet, name_or_folder: str) -> None:
    """Start from the planner of a MasRouter checkpoint; its router of models is left behind.

    Args:
        planner: gets the weights.
        name_or_folder: of the checkpoint; a name is one of `agents/checkpoints`.

    Raises:
        ConfigError: it is no checkpoint, or its planner has other shapes.
    """
    shipped = CHECKPOINTS / name_or_folder
    folder = shipped if shipped.is_dir() else Path(name_or_folder)
    tensors, _ = load(folder)
    mine = _arrays(planner)
    check_shapes(folder, tensors, {PLANNER + k: v.shape for k, v in mine.items()})
    _load(planner, {k: tensors[PLANNER + k] for k in mine})


def train(
    config: InfraMindConfig,
    *,
    seed: int,
    out: Path,
    workers: int = 1,
    ray_address: str | None = None,
    resume: bool = False,
    wandb: bool = False,
    tensorboard: bool = False,
    max_rounds: int | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train; the best policy is in `out/best`, the metrics in `out/metrics.jsonl`.

    Args:
        config: see there.
        seed: same seed, same result.
        out: folder of the training.
        workers: processes, or actors of a Ray cluster, for the shards.
        ray_address: of a Ray cluster.
        resume: go on from the last round in `out` that was finished.
        wandb: see `Tracker`, as for `tensorboard`.
        max_rounds: stop after so many rounds of this call; `resume` goes on.
        quiet: print nothing.

    Returns:
        The `Progress` as a dict.

    Raises:
        ConfigError: `out` holds a training and `resume` is not set, or one of another
            configuration or seed.
        WorkerDiedError: one round has lost workers three times.
    """
    torch.set_num_threads(1)
    limit_threads()
    run = {"config": config.model_dump(mode="json"), "seed": seed}
    progress = Progress.open(out, run, resume=resume)
    shards = [shard_config(config, seed, i) for i in range(config.shards)]
    with (
        Fleet("agents.rollouts:Shard", shards, workers, ray_address) as fleet,
        Tracker(out, run, wandb=wandb, tensorboard=tensorboard) as tracker,
    ):
        learner = Learner(config, seed, fleet.call("facts")[0])
        validator = Shard(**validation_shard(config, seed))
        best = learner.weights()
        saved = progress.load(learner.restore)
        if saved is not None:
            best = part(saved, BEST)
            learner.scale_lr(progress.lr_scale)
            _save_best(out, learner, best, progress, run)
            tracker.rewind(progress.decisions)
        per_epoch = len(config.rates_per_min)
        rounds = 0
        while progress.round < config.epochs * per_epoch and not progress.stopped:
            _round(learner, fleet, tracker, progress)
            progress.round += 1
            if progress.round % per_epoch == 0:
                metrics = validate(learner, validator)
                value = metrics[f"validation/{config.validation.metric}"]
                if progress.judge(value, config.validation):
                    best = learner.weights()
                learner.scale_lr(progress.lr_scale)
                metrics |= {"charts/lr_scale": progress.lr_scale}
                tracker.log(progress.decisions, metrics)
                if not quiet:
                    _report(progress, metrics, learner)
                _save_best(out, learner, best, progress, run)
            tracker.flush()
            progress.save(*learner.state(), prefixed(best, BEST), run)
            rounds += 1
            if rounds == max_rounds:
                break
    return progress.as_dict()


def _round(learner: Learner, fleet: Fleet, tracker: Tracker, progress: Progress) -> None:
    """One sweep in every row; again from its start if a worker dies."""
    before = learner.state()
    for attempt in range(MAX_ATTEMPTS):
        try:
            _play_round(learner, fleet, tracker, progress)
            return
        except WorkerDiedError:
            if attempt == MAX_ATTEMPTS - 1:
                raise
            tracker.drop()
            learner.restore(*before)
            fleet.restart()


def _play_round(learner: Learner, fleet: Fleet, tracker: Tracker, progress: Progress) -> None:
    config = learner.config
    fleet.call("begin", progress.round, each=round_rates(config, learner.seed, progress.round))
    began, decisions, episodes = time.perf_counter(), 0, 0
    waiting: list[Episodes] = []
    window: list[dict[str, float]] = []
    with ThreadPoolExecutor(1) as beside:
        # The shards play a phase while the learner learns from the one before.
        playing = beside.submit(fleet.call, "play", learner.weights(), config.steps_per_phase)
        running = True
        while running:
            phases = playing.result()
            running = any(phase.running for phase in phases)
            if running:
                playing = beside.submit(
                    fleet.call, "play", learner.weights(), config.steps_per_phase
                )
            decisions += sum(phase.decisions for phase in phases)
            finished = by_step([phase.episodes for phase in phases])
            episodes += len(finished)
            batches, rest = cut([*waiting, finished], config.batch_episodes, last=not running)
            waiting = [rest]
            window.extend(learner.update(batch) for batch in batches)
            if len(window) >= LOG_EVERY or not running:
                speed = decisions / (time.perf_counter() - began)
                mean = {key: float(np.mean([m[key] for m in window])) for key in window[0]}
                tracker.log(progress.decisions + decisions, mean | {"charts/SPS": speed})
                window = []
    progress.decisions += decisions
    progress.episodes += episodes
    progress.seconds += time.perf_counter() - began


def validate(learner: Learner, validator: Shard) -> dict[str, float]:
    """Solve rate, goodput, cost and violations on held-out tasks, without draws."""
    config = learner.config.validation
    rates = [config.rate_per_min] * config.rows
    done = validator.evaluate(learner.weights(), 0, rates)  # the same sweeps every time
    late = done.latency_s > done.budget_s
    return {
        "validation/solved": float(done.solved.mean()),
        "validation/goodput": float((done.solved * ~late).mean()),
        "validation/cost": float(done.cost.mean()),
        "validation/violation_rate": float(late.mean()),
        "validation/latency_s": float(done.latency_s.mean()),
    }


def policy_config(learner: Learner, progress: Progress, run: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of its policy and of how it was made."""
    return {
        "agent": "inframind",
        "network": learner.config.network(),
        "models": list(learner.facts["models"]),
        "strategies": list(learner.facts["strategies"]),
        "system_features": list(learner.config.env.system_features),
        "system_state": learner.config.executor.system_state,
        "training": {**run, **progress.as_dict()},
    }


def _save_best(
    out: Path, learner: Learner, best: Mapping[str, NDArray[Any]], progress: Progress, run: Any
) -> None:
    save(out / "best", best, policy_config(learner, progress, run))


def _report(progress: Progress, metrics: Mapping[str, float], learner: Learner) -> None:
    print(
        f"round {progress.round}: solved {metrics['validation/solved']:.3f}, goodput "
        f"{metrics['validation/goodput']:.3f}, late {metrics['validation/violation_rate']:.3f}, "
        f"lambda {learner.multiplier.value:.3f}, {progress.decisions} decisions, "
        f"{progress.decisions / progress.seconds:.0f}/s",
        file=sys.stderr,
        flush=True,
    )


def _draw(*key: int) -> int:
    """A seed that belongs to a key."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint32)[0])


def _arrays(module: torch.nn.Module) -> dict[str, NDArray[Any]]:
    return {name: tensor.detach().numpy().copy() for name, tensor in module.state_dict().items()}


def _load(module: torch.nn.Module, arrays: Mapping[str, NDArray[Any]]) -> None:
    module.load_state_dict({name: torch.from_numpy(np.array(a)) for name, a in arrays.items()})


def _shares(kind: str, names: Any, chosen: NDArray[np.int64]) -> dict[str, float]:
    share = np.bincount(chosen, minlength=len(names)) / max(len(chosen), 1)
    return {f"shares/{kind}/{name}": float(share[i]) for i, name in enumerate(names)}
