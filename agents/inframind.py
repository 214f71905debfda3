"""InfraMind (arXiv 2606.11440): PPO-Lagrangian executor and REINFORCE planner on the closed loop.

    inframind train inframind --seed 0 --out runs/inframind/seed0

An epoch is a sweep over the training questions at each arrival rate, one after another in random
order. Whenever 64 queries have been answered, and at the end of a sweep, both networks and the
Lagrange multiplier λ learn from them and from their decisions:

    executor  PPO with r_i = q - λ·l_i/β for decision i, l_i the latency of its call, β the budget
    planner   REINFORCE with the normalised q - λ·C, plus the task loss and the encoders' loss
    λ         λ + η·(mean C - 1), clipped to [0, 1]

where q is 1 for a solved query and C = latency / β. After each epoch the likeliest actions are
validated; the learning rates fall on a plateau. No epoch begins after `steps` updates (the authors'
trainings have 440 to 630), or after 12 epochs without a better value.

The agent count has no policy gradient, as in the authors' code: it stays at `planner.agents`. With
`planner.draw_count` it is learned. Every departure from the paper is a switch whose default is the
paper's; `inframind_v2` sets three of them: q counts in time, the epoch is chosen by what is solved
within 100 s, and plans have one agent. docs/results/paper.md has what the paper's claims come to,
and what each switch changes.

Left open by the paper, or different from it:

- A query's decisions may be made by weights of several updates (`losses/lag_kl`).
- Adam's learning rates and epsilon, gradient norms clipped at 0.5 and orthogonal first weights are
  ours.
- The planner chooses among the roles of a query's true domain; the task classifier learns, and is
  not used.

A training that is killed goes on from its last finished epoch to the same result.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

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
from inframind_gym.envs.layout import PolicySpec
from inframind_gym.envs.routing import StreamVectorEnv
from inframind_gym.policies import checkpoint
from inframind_gym.policies.networks import PLAN_DRAWS, Player, draw
from inframind_gym.progress import ProgressReport
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.state import COMPLETED, PLAN
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, MAX_NODES, TOPOLOGIES
from inframind_gym.simulator.workload import RATES_PER_MIN
from inframind_gym.tasks import EMBED_DIM

WEIGHTS, TRAINING, NOISE, VALIDATION, ORDER = range(5)  # uses of a seed
EPISODES, DRAWS = 0, 1  # uses of a stream's seed
SWITCHES: Final = {"system_state", "predicted_latency", "dual_pathway", "joint_head"}


class ExecutorConfig(StrictModel):
    """PPO of the executor."""

    lr: Positive = 3e-4  # of Adam
    clip: Positive = 0.2
    mini_epochs: PositiveInt = 3
    value_weight: NonNegative = 0.5
    entropy_weight: NonNegative = 0.10
    max_grad_norm: Positive = 0.5
    # Ablations.
    system_state: bool = True  # False sees no telemetry
    predicted_latency: bool = False  # True sees predicted latencies of all routes in its place
    dual_pathway: bool = True  # False encodes texts, budget and telemetry together
    joint_head: bool = True  # False chooses model and strategy independently


class PlannerConfig(StrictModel):
    """REINFORCE of the planner."""

    lr: Positive = 3e-4  # of Adam
    task_weight: NonNegative = 1.0
    vae_weight: NonNegative = 0.001
    max_grad_norm: Positive = 0.5
    # MasRouter checkpoint whose planner is the first one: folder or shipped name; null: none
    init: str | None = "masrouter"
    # likeliest agent count at the start; null: that of `init`
    agents: Annotated[int, Field(ge=1, le=MAX_AGENTS)] | None = 3
    draw_count: bool = False  # True draws the agent count, which then has a policy gradient


class LagrangeConfig(StrictModel):
    """The multiplier λ, which executor and planner share."""

    start: NonNegative = 0.2
    lr: NonNegative = 0.001  # 0 keeps it as it is
    max_value: Positive = 1.0
    limit: Positive = 1.0  # mean latency over budget that is allowed
    warmup: NonNegativeInt = 0  # epochs in which it is 0

    def step(self, multiplier: float, mean_cost: float) -> float:
        """Return λ after a step of dual ascent: clip(λ + η·(C̄ - limit), 0, max)."""
        return min(max(multiplier + self.lr * (mean_cost - self.limit), 0.0), self.max_value)


class ValidationConfig(StrictModel):
    """The measure of every epoch: held-out tasks, one rate and budget."""

    rate_per_min: Positive = 100.0
    budget_s: Positive | None = 200.0  # null: drawn from the tiers
    rows: PositiveInt = 4  # streams
    metric: Literal["solved", "goodput"] = "solved"
    early_stopping: PositiveInt = 12  # epochs without a better value
    lr_patience: NonNegativeInt = 4  # epochs without one before the learning rates fall
    lr_factor: Annotated[Number, Field(gt=0, lt=1)] = 0.5


class InfraMindConfig(StrictModel):
    """InfraMind's configuration, `agents/configs/inframind*.yaml`; its defaults are the paper's."""

    algorithm: Literal["inframind"] = "inframind"
    # what counts as q = 1: a query that is solved, or one that is solved in its budget
    reward: Literal["solved", "goodput"] = "solved"
    # of routes when it plays and is validated, with the likeliest plan; 0: the likeliest route
    temperature: NonNegative = 0.0
    env: EnvChoice = EnvChoice()  # the world; `num_queries` is the length of a sweep
    budgets: Literal["tiers", "log_uniform"] = "tiers"  # log_uniform: between 5 and 300 s
    rates_per_min: Annotated[tuple[Positive, ...], Field(min_length=1)] = RATES_PER_MIN
    # "side_by_side": all rates at once, a batch mixes them
    sweeps: Literal["in_turn", "side_by_side"] = "in_turn"
    rows_per_rate: PositiveInt = 1  # streams at once at one rate
    batch_episodes: Annotated[PositiveInt, Field(ge=2)] = 64  # finished queries an update
    partial_batch: bool = True  # learn from what is left at the end of a sweep, too
    steps: PositiveInt = 500  # updates after which no epoch begins
    executor: ExecutorConfig = ExecutorConfig()
    planner: PlannerConfig = PlannerConfig()
    lagrange: LagrangeConfig = LagrangeConfig()
    validation: ValidationConfig = ValidationConfig()


# Streams of queries side by side, and the queries that are answered in them.


class Batch(NamedTuple):
    """Q answered queries and their n decisions, query by query."""

    records: Array  # (Q,) COMPLETED
    query: Array  # (n,) query of each decision, 0..Q-1
    node: Array  # (n,) its place in the workflow
    resource: Array  # (n, 1 + M·F) remaining budget and telemetry that were observed
    log_prob: Array  # (n,) of the route when it was drawn

    def column(self, name: str) -> Array:
        """Return a field of `records`, such as "model", for every decision, (n,)."""
        values: Array = self.records[name][self.query]
        return values[np.arange(len(values)), self.node] if values.ndim == 2 else values


class Streams:
    """A stream of queries in each of E rows, with a record of every decision.

    The split of the tasks is "train" or "val"; `changes` are arguments of the environment.
    """

    def __init__(self, config: InfraMindConfig, split: str, rows: int, **changes: Any) -> None:
        arguments = config.env.arguments(split) | {"level": "joint", "observation": "index"}
        if split == "train" and config.budgets == "log_uniform":  # 64 equal steps of log β
            changes |= {"budget_s": np.geomspace(5.0, 300.0, 64).tolist()}
        self.env = StreamVectorEnv(rows, **(arguments | changes))
        self.spec = self.env.policy_spec()
        size = (rows, self.env.simulation.num_queries)
        self.records = np.zeros(size, COMPLETED)
        width = 1 + system_width(config, self.spec)
        self.resource = np.zeros((*size, MAX_NODES, width), np.float32)
        self.log_prob = np.zeros((*size, MAX_NODES), np.float32)

    def begin(self, rates: Array, *key: int) -> None:
        """Start streams with (E,) arrivals/min; all draws are functions of the key."""
        seeds = [seed_of(*key, EPISODES, row) for row in range(len(rates))]
        options = {"arrival_rate_per_min": rates}
        self._observations, _ = self.env.reset(seed=seeds, options=options)
        self._rng = np.random.default_rng([*key, DRAWS])
        self.running = np.ones(len(rates), np.bool_)

    def step(self, player: Player, temperature: float = 1.0) -> Array:
        """Take one decision in every running row; return the answered (row, query) pairs, (k, 2).

        Routes are drawn at the temperature, at 0 the likeliest; plans are drawn at 1 only.
        """
        contexts = self.env.contexts()
        uniforms = self._rng.random((len(contexts), PLAN_DRAWS))
        actions = np.zeros((len(contexts), PLAN_ACTIONS + 1), np.int64)
        is_plan = contexts["kind"] == PLAN
        plan = np.flatnonzero(self.running & is_plan)
        route = np.flatnonzero(self.running & ~is_plan)
        if len(plan):
            drawn = uniforms[plan] if temperature == 1.0 else None
            actions[plan, :PLAN_ACTIONS] = player.plans(contexts.take(plan), drawn)
        if len(route):
            due, resource = contexts.take(route), player.resource(self._observations[route])
            log_probs = player.log_probs(resource, due)
            chosen = draw(log_probs, uniforms[route, 0] if temperature else None, temperature)
            actions[route, -1] = chosen
            at = route, due["query"], due["node"]
            self.resource[at] = resource
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
        query, node = np.nonzero(np.arange(MAX_NODES) < records["num_nodes"][:, None])
        resource, log_prob = self.resource[at][query, node], self.log_prob[at][query, node]
        return Batch(records, query, node, resource, log_prob)


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


def late(records: Array) -> Array:
    """Return (Q,) whether queries took longer than their budget."""
    return np.asarray(records["latency_s"] > records["budget_s"])


# Networks.


def linear(inputs: int, outputs: int, gain: float = 2.0**0.5) -> nn.Linear:
    """Return a layer with orthogonal weights."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class ExecutorNet(nn.Module):
    """From query, role, budget and telemetry to a route: two pathways, one head, a critic.

    Args:
        spec: of the pool.
        system: numbers of telemetry.
        dual_pathway: False encodes all inputs together.
        joint_head: False adds a logit of the model and one of the strategy.
    """

    def __init__(
        self, spec: PolicySpec, system: int, *, dual_pathway: bool = True, joint_head: bool = True
    ) -> None:
        super().__init__()
        self.models, self.dual, self.joint = spec.num_models, dual_pathway, joint_head
        self.semantic = linear(2 * EMBED_DIM + (0 if dual_pathway else 1 + system), 128)
        self.semantic_norm = nn.LayerNorm(128)
        if dual_pathway:
            self.budget, self.system = linear(1, 16), linear(system, 16)
            self.resource, self.resource_norm = linear(32, 64), nn.LayerNorm(64)
        self.merge = linear(192 if dual_pathway else 128, 128)
        factored = spec.num_models + spec.num_strategies
        self.policy = linear(128, spec.num_actions if joint_head else factored, gain=0.01)
        self.value = linear(128, 1, gain=1.0)

    def forward(self, query: Tensor, role: Tensor, resource: Tensor) -> tuple[Tensor, Tensor]:
        """Judge n decisions.

        Args:
            query: (n, 384) embeddings of the queries.
            role: (n, 384) embeddings of the agents' roles.
            resource: (n, 1 + M·F) remaining budget and telemetry.

        Returns:
            Log-probabilities (n, M·S) of all pairs of model and strategy, and values (n,).
        """
        inputs = [query, role] if self.dual else [query, role, resource]
        merged = self.semantic_norm(F.relu(self.semantic(torch.cat(inputs, dim=1))))
        if self.dual:
            paths = [self.budget(resource[:, :1]), self.system(resource[:, 1:])]
            encoded = F.relu(self.resource(F.relu(torch.cat(paths, dim=1))))
            merged = torch.cat([merged, self.resource_norm(encoded)], dim=1)
        hidden = F.relu(self.merge(merged))
        logits = self.policy(hidden)
        if not self.joint:
            logits = (logits[:, : self.models, None] + logits[:, None, self.models :]).flatten(1)
        return F.log_softmax(logits, dim=1), self.value(hidden)[:, 0]


def system_width(config: InfraMindConfig, spec: PolicySpec) -> int:
    """Return how many numbers of telemetry, or of predicted latency, the executor sees."""
    predicted = config.executor.predicted_latency
    return spec.num_actions if predicted else spec.num_models * len(config.env.system_features)


class Agent(nn.Module):
    """Executor and planner; a `planner.init` that is no checkpoint of one is a `ConfigError`."""

    def __init__(self, config: InfraMindConfig, spec: PolicySpec, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(seed, WEIGHTS))
            c, system = config.executor, system_width(config, spec)
            net = {"dual_pathway": c.dual_pathway, "joint_head": c.joint_head}
            self.executor = ExecutorNet(spec, system, **net)
            self.planner = PlannerNet()
        if config.planner.init is not None:  # only the planner of that checkpoint is loaded
            shipped = checkpoint.SHIPPED / config.planner.init
            folder = shipped if shipped.is_dir() else Path(config.planner.init)
            tensors, _ = checkpoint.load(folder)
            shapes = {f"planner.{k}": v.shape for k, v in self.planner.state_dict().items()}
            checkpoint.check_shapes(folder, tensors, shapes)
            load_weights(self.planner, checkpoint.part(tensors, "planner."))
        if config.planner.agents is not None:
            self.planner.start_with(config.planner.agents)


# Learning.


def normalise(values: Array) -> Tensor:
    """Return (n,) shifted and scaled to mean 0 and standard deviation 1."""
    return torch.from_numpy(np.asarray((values - values.mean()) / (values.std() + 1e-8), "f4"))


def approx_kl(log_ratio: Tensor) -> float:
    """Return an estimate of KL(old, new), never negative: E[ρ - 1 - log ρ] (Schulman 2020)."""
    return float((log_ratio.exp() - 1.0 - log_ratio).mean())


class Learner:
    """Networks, optimiser and multiplier."""

    updates: int  # batches that were learned from
    warming_up = False  # λ is 0 and does not move

    def __init__(self, config: InfraMindConfig, seed: int, spec: PolicySpec) -> None:
        self.config, self.seed, self.spec, self.updates = config, seed, spec, 0
        self.agent = Agent(config, spec, seed)
        executor = {"params": self.agent.executor.parameters(), "lr": config.executor.lr}
        planner = {"params": self.agent.planner.parameters(), "lr": config.planner.lr}
        self.optimizer = torch.optim.Adam([executor, planner], eps=1e-5, fused=True)
        plateau = config.validation.lr_factor, config.validation.lr_patience
        self.scheduler = ReduceLROnPlateau(self.optimizer, "max", *plateau, threshold=0.0)
        self.multiplier = config.lagrange.start  # λ

    def player(self) -> Player:
        """Return both networks in NumPy, with the present weights."""
        c, planner = self.config.executor, self.config.planner
        return Player(
            weights_of(self.agent),
            self.spec,
            system_state=c.system_state,
            predicted_latency=c.predicted_latency,
            draw_count=planner.draw_count,
        )

    def update(self, batch: Batch) -> dict[str, float]:
        """Learn from a batch of answered queries; λ moves last."""
        records, weight = batch.records, 0.0 if self.warming_up else self.multiplier
        q = records["solved"].astype(np.float32)
        if self.config.reward == "goodput":
            q = q * ~late(records)
        metrics = self.update_executor(batch, q, weight)
        metrics |= self.update_planner(records, q, weight)
        if not self.warming_up:
            mean_cost = float(records["cost"].mean())
            self.multiplier = self.config.lagrange.step(self.multiplier, mean_cost)
        self.updates += 1
        chosen = {
            "model": (self.spec.models, batch.column("model")),
            "strategy": (self.spec.strategies, batch.column("strategy")),
            "topology": (TOPOLOGIES, records["topology"]),
        }
        return metrics | {
            "charts/episodic_return": float(q.mean()),
            "charts/episodic_cost": float(records["cost"].mean()),
            "lagrange/lambda": 0.0 if self.warming_up else self.multiplier,
            **{f"charts/{name}": value for name, value in measures(records).items()},
            **{
                f"shares/{kind}/{name}": float((values == i).mean())
                for kind, (names, values) in chosen.items()
                for i, name in enumerate(names)
            },
        }

    def update_executor(self, batch: Batch, q: Array, weight: float) -> dict[str, float]:
        """PPO: `mini_epochs` steps on the whole batch, whose queries earn q (Q,); weight is λ."""
        c, net = self.config.executor, self.agent.executor
        query = torch.from_numpy(self.spec.task_embeddings[batch.column("task")])
        role = torch.from_numpy(self.spec.role_embeddings[batch.column("role")])
        inputs = query, role, torch.from_numpy(batch.resource)
        actions = self.spec.action(batch.column("model"), batch.column("strategy"))
        index = torch.from_numpy(actions.astype(np.int64))[:, None]
        old_log_prob = torch.from_numpy(batch.log_prob)

        share = batch.column("node_latency_s") / batch.column("budget_s")
        rewards = np.asarray(q[batch.query] - weight * share, np.float32)
        returns = torch.from_numpy(rewards)
        with torch.no_grad():
            log_probs, values = net(*inputs)
            lag_kl = approx_kl(log_probs.gather(1, index)[:, 0] - old_log_prob)
            advantage = normalise(rewards - values.numpy())

        for _ in range(c.mini_epochs):
            log_probs, values = net(*inputs)
            log_ratio = log_probs.gather(1, index)[:, 0] - old_log_prob
            ratio = log_ratio.exp()
            clipped = ratio.clamp(1.0 - c.clip, 1.0 + c.clip)
            policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
            value_loss = F.mse_loss(values, returns)
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
        log_prob = planner.log_prob(out, plan_of(records), of_count=c.draw_count)
        policy_loss = -(log_prob * utility).mean()
        task_loss = F.cross_entropy(out.task_logits, domain)
        loss = policy_loss + c.task_weight * task_loss + c.vae_weight * out.vae_loss
        self._descend(planner, loss, c.max_grad_norm)
        return {
            "losses/planner_loss": policy_loss.item(),
            "losses/task_loss": task_loss.item(),
            "losses/vae_loss": out.vae_loss.item(),
        }

    def _descend(self, net: nn.Module, loss: Tensor, max_grad_norm: float) -> None:
        """Take one step of Adam on `net`; the other network has no gradients and stays."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(net.parameters(), max_grad_norm)
        self.optimizer.step()

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return everything that learning depends on, as arrays and JSON."""
        numbers: dict[str, Any] = {"updates": self.updates, "multiplier": self.multiplier}
        numbers["scheduler"] = self.scheduler.state_dict()
        numbers["lr"] = [group["lr"] for group in self.optimizer.param_groups]
        return state_of(self.agent, self.optimizer), numbers

    def restore(self, arrays: checkpoint.Tensors, numbers: dict[str, Any]) -> None:
        """Go back to a `state`."""
        load_state(self.agent, self.optimizer, arrays)
        self.updates, self.multiplier = numbers["updates"], numbers["multiplier"]
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
            **self.config.executor.model_dump(include=SWITCHES),
            "draw_count": self.config.planner.draw_count,
            "temperature": self.config.temperature,
            "multiplier": self.multiplier,
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
    rates, rows = np.array(config.rates_per_min), config.rows_per_rate
    in_turn = config.sweeps == "in_turn"
    streams = Streams(config, "train", rows if in_turn else rows * len(rates))
    held_out = Streams(config, "val", c.rows, budget_s=c.budget_s)
    learner = Learner(config, run.seed, streams.spec)
    progress: dict[str, Any] = {"epoch": 0, "decisions": 0, "seconds": 0.0}
    progress |= {"best": None, "best_epoch": 0}
    if saved is not None:
        learner.restore(*saved)
        progress = saved[1]["progress"]
    size = config.batch_episodes
    report = ProgressReport(config.steps, learner.updates, "inframind", "updates")
    with run.tracker(progress["decisions"]) as tracker, report:
        while learner.updates < config.steps and (
            progress["epoch"] < progress["best_epoch"] + c.early_stopping
        ):
            began, updates, decisions = time.perf_counter(), learner.updates, progress["decisions"]
            learner.warming_up = progress["epoch"] < config.lagrange.warmup
            player = learner.player()
            order = np.random.default_rng([run.seed, ORDER, progress["epoch"]]).permutation(rates)
            sweeps = (
                [np.full(rows, rate) for rate in order] if in_turn else [np.repeat(rates, rows)]
            )
            for number, sweep in enumerate(sweeps):  # (E,) arrivals/min
                waiting = np.zeros((0, 2), np.int64)
                streams.begin(sweep, run.seed, TRAINING, progress["epoch"], number)
                while streams.running.any():
                    decisions += int(streams.running.sum())
                    waiting = np.concatenate([waiting, streams.step(player)])
                    is_last = config.partial_batch and not streams.running.any()
                    while len(waiting) >= size or (is_last and len(waiting)):
                        metrics = learner.update(streams.batch(waiting[:size]))
                        speed = (decisions - progress["decisions"]) / (time.perf_counter() - began)
                        metrics |= {"charts/SPS": speed, "charts/rate_per_min": float(sweep.mean())}
                        tracker.log(
                            decisions, metrics | {"charts/queries": float(len(waiting[:size]))}
                        )
                        player, waiting = learner.player(), waiting[size:]
            progress |= {"epoch": progress["epoch"] + 1, "decisions": decisions}
            held_out.begin(np.full(c.rows, c.rate_per_min), run.seed, VALIDATION)  # always the same
            while held_out.running.any():
                held_out.step(player, config.temperature)
            validation = measures(held_out.records.ravel())
            progress["seconds"] += time.perf_counter() - began
            if progress["best"] is None or validation[c.metric] > progress["best"]:
                progress["best"], progress["best_epoch"] = validation[c.metric], progress["epoch"]
                facts = {**learner.facts(), "training": {**run.facts, **progress}}
                checkpoint.save(run.out / BEST, weights_of(learner.agent), facts)
            learner.scheduler.step(validation[c.metric])
            metrics = {f"validation/{name}": value for name, value in validation.items()}
            tracker.log(decisions, metrics | {"charts/epoch": progress["epoch"]})
            tracker.flush()
            arrays, numbers = learner.state()
            run.save(arrays, {**numbers, "progress": progress})
            summary = f"solved {validation['solved']:.3f}, goodput {validation['goodput']:.3f}"
            report.advance(min(learner.updates, config.steps) - updates, summary)
    return progress
