"""InfraMind (arXiv 2606.11440): PPO-Lagrangian executor and REINFORCE planner on the closed loop.

    inframind train inframind --seed 0 --out runs/inframind/seed0

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

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, cast

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

import inframind_gym  # noqa: F401
from agents.lagrangian import Multiplier, PIDMultiplier
from agents.planner_network import PlannerNet, plan_of
from agents.runs import (
    BEST,
    Array,
    EnvChoice,
    Run,
    load_state,
    load_weights,
    seed_of,
    state_of,
    weights_of,
)
from inframind_gym.configs import (
    NonNegative,
    NonNegativeInt,
    Number,
    Positive,
    PositiveInt,
    StrictModel,
)
from inframind_gym.envs.layout import EMBED_DIM, PolicySpec
from inframind_gym.envs.routing import StreamVectorEnv
from inframind_gym.policies import checkpoint
from inframind_gym.policies.networks import PLAN_DRAWS, Player, draw, kinds
from inframind_gym.progress import ProgressReport
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.state import COMPLETED
from inframind_gym.simulator.workflow.topology import MAX_NODES, TOPOLOGIES
from inframind_gym.simulator.workload import RATES_PER_MIN

LOG_EVERY: Final = 50  # updates
WEIGHTS, TRAINING, NOISE, VALIDATION = range(4)  # uses of a seed
EPISODES, DRAWS = 0, 1  # uses of a stream's seed


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
    steps: PositiveInt = 30  # epochs, at most
    executor: ExecutorConfig = ExecutorConfig()
    planner: PlannerConfig = PlannerConfig()
    lagrange: LagrangeConfig = LagrangeConfig()
    validation: ValidationConfig = ValidationConfig()


# Streams of queries side by side, and the queries that are answered in them.


class Batch(NamedTuple):
    """Q answered queries and their n decisions, query by query."""

    records: Array  # (Q,) COMPLETED
    of: Array  # (n,) query of each decision, 0..Q-1
    node: Array  # (n,) its place in the workflow
    resource: Array  # (n, 1 + M·F) remaining budget and telemetry that were observed
    log_prob: Array  # (n,) of the route when it was drawn
    decided_s: Array  # (n,) time of the decision

    def column(self, name: str) -> Array:
        """Return (n,) what `records` say of the decisions, such as "model"."""
        values: Array = self.records[name][self.of]
        return values[np.arange(len(values)), self.node] if values.ndim == 2 else values


class Streams:
    """A stream of queries in every row, and notes of every decision.

    Args:
        config: of the training.
        split: of the tasks, "train" or "val".
        rates: (E,) arrivals/min of the rows.
        changes: arguments of the environment.
    """

    def __init__(self, config: InfraMindConfig, split: str, rates: Array, **changes: Any) -> None:
        arguments = config.env.arguments(split) | {"level": "joint", "observation": "index"}
        made = gym.make_vec("InfraMind-Stream-v0", num_envs=len(rates), **(arguments | changes))
        self.env = cast(StreamVectorEnv, made.unwrapped)
        self.spec, self.rates = self.env.policy_spec(), rates
        size = (len(rates), self.env.simulation.num_queries)
        resource = self.spec.layout.resource
        self.records = np.zeros(size, COMPLETED)
        self.resource = np.zeros((*size, MAX_NODES, resource.stop - resource.start), np.float32)
        self.log_prob = np.zeros((*size, MAX_NODES), np.float32)
        self.decided_s = np.zeros((*size, MAX_NODES))

    def begin(self, *key: int) -> None:
        """Start a stream in every row; all luck is a function of the key."""
        seeds = [seed_of(*key, EPISODES, row) for row in range(len(self.rates))]
        options = {"arrival_rate_per_min": self.rates}
        self._observations, _ = self.env.reset(seed=seeds, options=options)
        self._rng = np.random.default_rng([*key, DRAWS])
        self.running = np.ones(len(self.rates), np.bool_)

    def step(self, player: Player, *, sample: bool = True) -> Array:
        """Take one decision in every running row; returns the (row, query) pairs (k, 2) answered.

        Args:
            player: plans queries that have arrived and routes calls that are ready.
            sample: draw actions; otherwise the likeliest are taken.
        """
        contexts = self.env.contexts()
        uniforms = self._rng.random((len(contexts), PLAN_DRAWS))
        actions = np.zeros((len(contexts), PLAN_ACTIONS + 1), np.int64)
        plan, route = (np.flatnonzero(self.running & due) for due in kinds(contexts))
        if len(plan):
            drawn = uniforms[plan] if sample else None
            actions[plan, :PLAN_ACTIONS] = player.plans(contexts[plan], drawn)
        if len(route):
            due, resource = contexts[route], player.resource(self._observations[route])
            log_probs = player.log_probs(resource, due)
            chosen = draw(log_probs, uniforms[route, 0]) if sample else log_probs.argmax(axis=1)
            actions[route, -1] = chosen
            at = route, due["query"], due["node"]
            self.resource[at], self.decided_s[at] = resource, due["time_s"]
            self.log_prob[at] = log_probs[np.arange(len(route)), chosen]
        self._observations, _, over, _, _ = self.env.step(actions)
        row, records = self.env.completed()
        row, records = row[self.running[row]], records[self.running[row]]
        self.records[row, records["query"]] = records
        self.running &= ~over
        return np.column_stack([row, records["query"]])

    def batch(self, pairs: Array) -> Batch:
        """Return answered queries, (row, query) pairs (Q, 2), with their decisions."""
        at = tuple(pairs.T)
        records = self.records[at]
        of, node = np.nonzero(np.arange(MAX_NODES) < records["num_nodes"][:, None])
        notes = (array[at][of, node] for array in (self.resource, self.log_prob, self.decided_s))
        return Batch(records, of, node, *notes)


def late(records: Array) -> Array:
    """Return (Q,) whether queries took longer than their budget."""
    return np.asarray(records["latency_s"] > records["budget_s"])


def measures(records: Array) -> dict[str, float]:
    """Return means over queries."""
    is_late = late(records)
    return {
        "solved": float(records["solved"].mean()),
        "goodput": float((records["solved"] * ~is_late).mean()),
        "cost": float(records["cost"].mean()),
        "violation_rate": float(is_late.mean()),
        "latency_s": float(records["latency_s"].mean()),
        "num_agents": float(records["num_agents"].mean()),
    }


# Networks.


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
        self.optimizer = torch.optim.Adam([executor, planner], eps=1e-5, fused=True)
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
        chosen = {
            "model": (self.spec.models, batch.column("model")),
            "strategy": (self.spec.strategies, batch.column("strategy")),
            "topology": (TOPOLOGIES, records["topology"]),
        }
        return metrics | {
            "charts/episodic_return": float(q.mean()),
            "charts/episodic_cost": float(records["cost"].mean()),
            "lagrange/lambda": self.multiplier.value,
            **{f"charts/{name}": value for name, value in measures(records).items()},
            **{
                f"shares/{kind}/{name}": float((values == i).mean())
                for kind, (names, values) in chosen.items()
                for i, name in enumerate(names)
            },
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

    def facts(self) -> dict[str, Any]:
        """Return what a checkpoint says of its policy."""
        return {
            "agent": "inframind",
            "models": list(self.spec.models),
            "strategies": list(self.spec.strategies),
            "system_features": list(self.config.env.system_features),
            "system_state": self.config.executor.system_state,
            "multiplier": self.multiplier.value,
        }


# The training.


def train(config: InfraMindConfig, run: Run) -> dict[str, Any]:
    """Train; the best policy is in `run.out/best`.

    Returns:
        Finished epochs, decisions and seconds, the best value of the validation and its epoch.

    Raises:
        ConfigError: see `Run.begin`.
    """
    saved, c = run.begin(config), config.validation
    streams = Streams(config, "train", np.repeat(config.rates_per_min, config.rows_per_rate))
    held_out = Streams(config, "val", np.full(c.rows, c.rate_per_min), budget_s=c.budget_s)
    learner = Learner(config, run.seed, streams.spec)
    done: dict[str, Any] = {"epoch": 0, "decisions": 0, "seconds": 0.0}
    done |= {"best": None, "best_epoch": 0}
    if saved is not None:
        learner.restore(*saved)
        done = saved[1]["progress"]
    report = ProgressReport(config.steps, done["epoch"], "inframind", "epochs")
    with run.tracker(done["decisions"]) as tracker, report:
        while done["epoch"] < min(config.steps, done["best_epoch"] + c.early_stopping):
            began, decisions, history = time.perf_counter(), 0, list[dict[str, float]]()
            player, waiting = learner.player(), np.zeros((0, 2), np.int64)
            streams.begin(run.seed, TRAINING, done["epoch"])
            while streams.running.any():
                decisions += int(streams.running.sum())
                waiting = np.concatenate([waiting, streams.step(player)])
                while len(waiting) >= config.batch_episodes:
                    history.append(learner.update(streams.batch(waiting[: config.batch_episodes])))
                    player, waiting = learner.player(), waiting[config.batch_episodes :]
                if history and (len(history) >= LOG_EVERY or not streams.running.any()):
                    means = {key: float(np.mean([m[key] for m in history])) for key in history[0]}
                    means["charts/SPS"] = decisions / (time.perf_counter() - began)
                    tracker.log(done["decisions"] + decisions, means)
                    history = []
            done["epoch"] += 1
            done["decisions"] += decisions
            held_out.begin(run.seed, VALIDATION)  # the same streams every time
            player = learner.player()
            while held_out.running.any():
                held_out.step(player, sample=False)
            found = measures(held_out.records.ravel())
            done["seconds"] += time.perf_counter() - began
            if done["best"] is None or found[c.metric] > done["best"]:
                done["best"], done["best_epoch"] = found[c.metric], done["epoch"]
                facts = {**learner.facts(), "training": {**run.facts, **done}}
                checkpoint.save(run.out / BEST, weights_of(learner.agent), facts)
            learner.scheduler.step(found[c.metric])
            metrics = {f"validation/{name}": value for name, value in found.items()}
            tracker.log(done["decisions"], metrics | {"charts/epoch": done["epoch"]})
            tracker.flush()
            arrays, numbers = learner.state()
            run.save(arrays, {**numbers, "progress": done})
            report.advance(1, f"solved {found['solved']:.3f}, goodput {found['goodput']:.3f}")
    return done
