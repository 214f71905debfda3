"""PPO with Lagrange multiplier and congestion critic, for planning and routing in one closed loop.

    python -m agents.train --config ppo_lagrangian --workload math --seed 0 --out runs/ppo/math/0

An update plays one episode in every row of `InfraMind-Stream-v0`, each at an arrival rate of its
own, and learns from all decisions. Query q is worth

    r_q = solved on time + bonus · solved - λ · late

and decision t of it is credited with r_q and with what it does to others: a call holds a slot, and
whoever arrives later waits. The *congestion critic* C(load, rate) is regressed on the discounted
mean of r over queries that arrive after a decision. One call more on server m changes it, for
`rate · horizon` queries, by

    x_t = rate · horizon · (C(load + one call on m) - C(load)) · (relative length of such a call)

so that the return of a decision is G_t = r_q + x_t + x_{t+1} + … over the query's own decisions.
PPO maximises it against a critic of its own. λ holds the share of late queries at `1 - promise`, by
a PID controller (Stooke, Achiam, Abbeel 2020) whose integral is bounded. Entropy's weight falls to
almost nothing, so that what is played, the likeliest action, is what was trained.

To follow one update: `play` → `credit` → `Learner.update`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import inframind_gym  # noqa: F401
from agents.config import PpoLagrangianConfig
from agents.lagrangian import PIDMultiplier
from agents.runs import (
    Tracker,
    check_resume,
    load_state,
    run_of,
    seed_of,
    state_of,
    use_one_thread,
    weights_of,
)
from inframind_gym.envs.routing.layout import EMBED_DIM
from inframind_gym.envs.routing.spec import PolicySpec
from inframind_gym.envs.routing.vector import StreamVectorEnv
from inframind_gym.policies import checkpoint, models_up
from inframind_gym.policies.inframind import draw
from inframind_gym.policies.ppo_lagrangian import (
    HIDDEN,
    LOAD,
    NAME,
    SERVER,
    SYSTEM_FEATURES,
    Eyes,
    Plans,
    Player,
    Seen,
    embed,
    forward,
    shapes,
)
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.state import PLAN

Array = NDArray[Any]

ENV_ID: Final = "InfraMind-Stream-v0"
STATE, BEST = "state", "best"  # folders of checkpoints: where to go on from, and what to use
WEIGHTS, EPISODES, DRAWS, BATCHES, VALIDATION = range(5)  # uses of a seed
SENT: Final = slice(2, 4)  # columns of a server's load that its own calls in flight decide
LARGEST_PRICE: Final = 0.5  # a call that costs others more than half an answer counts as that


class Batch(NamedTuple):
    """Decisions of all episodes, in the order of time, and the queries."""

    row: Array  # (n,)
    query: Array  # (n,)
    node: Array  # (n,) -1: a plan
    time_s: Array  # (n,)
    seen: Seen
    up: Array  # (n, M) models that could be chosen
    action: Array  # (n,) route or plan
    log_prob: Array  # (n,)
    records: Array  # (rows, queries) COMPLETED
    rates_per_min: Array  # (rows,)

    @property
    def late(self) -> Array:
        """(rows, queries) whether each query missed its budget."""
        return np.asarray(self.records["latency_s"] > self.records["budget_s"])

    def goodput(self) -> Array:
        """Share of queries solved on time, (rows,), without the first fifth of each episode."""
        good = self.records["solved"] * ~self.late
        return np.asarray(good[:, good.shape[1] // 5 :].mean(axis=1))


class World:
    """Rows of the closed loop, on the tasks of a split."""

    def __init__(self, config: PpoLagrangianConfig, split: str, rows: int) -> None:
        arguments = config.env.arguments(split) | {"num_queries": config.queries}
        arguments |= {"system_features": SYSTEM_FEATURES, "level": "joint"}
        made = gym.make_vec(ENV_ID, num_envs=rows, observation="index", **arguments)
        self.env, self.rows = cast(StreamVectorEnv, made.unwrapped), rows
        self.spec, self.queries = self.env.policy_spec(), config.queries
        self.plans = Plans(self.spec)

    def play(self, player: Player, key: tuple[int, ...], rates: Array, *, sample: bool) -> Batch:
        """Play an episode in every row; all luck is a function of the key."""
        rng = np.random.default_rng([*key, DRAWS])
        seeds = [seed_of(*key, row) for row in range(self.rows)]
        observations, _ = self.env.reset(seed=seeds, options={"arrival_rate_per_min": rates})
        eyes = Eyes(self.spec, self.rows)
        rows, steps = np.arange(self.rows), []
        records = np.zeros((self.rows, self.queries), self.env.completed()[1].dtype)
        while len(rows):
            contexts = self.env.contexts()[rows]
            seen = eyes.see(observations[rows], contexts, rows)
            up, is_plan = models_up(contexts, self.spec.num_models), contexts["kind"] == PLAN
            action, log_prob = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.float32)
            uniforms = rng.random(self.rows)[rows]
            for due, log_probs in zip((~is_plan, is_plan), player.log_probs(seen, up), strict=True):
                own = log_probs[due]
                chosen = draw(own, uniforms[due]) if sample else own.argmax(axis=1)
                action[due], log_prob[due] = chosen, own[np.arange(len(own)), chosen]
            numbers = np.zeros((self.rows, PLAN_ACTIONS + 1), np.int64)
            plan = rows[is_plan]
            numbers[plan, :-1] = self.plans.actions(action[is_plan], contexts[is_plan])
            numbers[rows[~is_plan], -1] = action[~is_plan]
            node = np.where(is_plan, -1, contexts["node"])
            facts = rows, contexts["query"], node, contexts["time_s"]
            steps.append((*facts, *seen, up, action, log_prob))
            observations, _, over, _, _ = self.env.step(numbers)
            of, finished = self.env.completed()
            ours = np.isin(of, rows)
            records[of[ours], finished["query"][ours]] = finished[ours]
            rows = rows[~over[rows]]
        columns = [np.concatenate(column) for column in zip(*steps, strict=True)]
        fields: list[Any] = [*columns[:4], Seen(*columns[4:8]), *columns[8:]]
        return Batch._make([*fields, records, rates])


class Credit(NamedTuple):
    """Rewards of queries, and their means over those that arrive after a decision."""

    reward: Array  # (rows, queries)
    later: Array  # (n,) discounted mean reward of queries that arrive after the decision
    known: Array  # (n,) bool: there are enough of them


def credit(batch: Batch, config: PpoLagrangianConfig, multiplier: float) -> Credit:
    """Return what the queries of a batch are worth, and what followed its decisions."""
    solved, late = batch.records["solved"].astype(np.float64), batch.late
    reward = solved * ~late + config.bonus * solved - multiplier * late
    arrival_s = batch.records["arrival_s"]
    gap = np.exp(-np.diff(arrival_s, axis=1) / config.horizon_s)
    worth, count = np.zeros(len(reward)), np.zeros(len(reward))
    mean = np.zeros((len(reward), reward.shape[1] + 1))
    for j in reversed(range(reward.shape[1])):  # sums over what arrives at or after j
        kept = gap[:, j] if j < gap.shape[1] else 0.0
        worth, count = reward[:, j] + kept * worth, 1.0 + kept * count
        mean[:, j] = worth / count
    following = np.empty(len(batch.row), np.int64)
    for row in range(len(reward)):
        of = batch.row == row
        following[of] = np.searchsorted(arrival_s[row], batch.time_s[of], side="right")
    enough = following < 0.95 * reward.shape[1]
    return Credit(reward.astype(np.float32), mean[batch.row, following].astype(np.float32), enough)


def to_go(values: Array, batch: Batch) -> Array:
    """Return, for each decision, the sum of `values` (n,) over it and those its query has left."""
    group = batch.row.astype(np.int64) * (int(batch.query.max()) + 1) + batch.query
    order = np.argsort(group, kind="stable")  # within a query still in the order of time
    sums = np.cumsum(values[order][::-1])[::-1]
    last = np.flatnonzero(np.diff(group[order], append=-1))
    after = np.append(sums, 0.0)[last + 1]
    found = np.empty(len(values), np.float32)
    found[order] = sums - np.repeat(after, np.diff(last, prepend=-1))
    return found


class Net(nn.Module):
    """The policy's weights, and its critic's."""

    w: nn.ParameterDict

    def __init__(self, spec: PolicySpec, *, identity: bool) -> None:
        super().__init__()
        sizes = shapes(spec.num_models, spec.num_strategies, identity=identity)
        self.w = nn.ParameterDict({name: torch.zeros(size) for name, size in sizes.items()})
        for name, value in self.w.items():
            if name == "identity":
                nn.init.normal_(value, 0.0, 0.5)
            elif value.ndim == 2:  # almost even odds at the start
                nn.init.orthogonal_(value, 0.01 if name.endswith("_out") else 1.0)
        self.value = nn.Sequential(nn.Linear(2 * HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
        roles = np.vstack([spec.role_embeddings, np.zeros((1, EMBED_DIM), np.float32)])
        self._texts = torch.tensor(spec.task_embeddings), torch.from_numpy(roles)

    def forward(self, seen: Seen, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities of routes (n, M·S) and plans (n, P), and values (n,)."""
        w = cast(dict[str, Tensor], self.w)
        texts = embed(w, *self._texts, torch.relu)
        routes, plans, state = forward(w, texts, seen, torch.relu, _cat)
        routes = routes.masked_fill(~up[..., None], -1e9).flatten(1)
        return routes.log_softmax(1), plans.log_softmax(1), self.value(state)[:, 0]


class Congestion(nn.Module):
    """C: the mean reward of queries that arrive later, from the servers' load and the rate."""

    def __init__(self, models: int, *, identity: bool) -> None:
        super().__init__()
        self.server = nn.Linear(SERVER - LOAD - 2 + 2 + 1, HIDDEN)
        self.identity = nn.Parameter(0.5 * torch.randn(models, HIDDEN), requires_grad=identity)
        self.out = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
        if not identity:
            nn.init.zeros_(self.identity)

    def read(self, sent: Tensor, facts: Tensor, log_rate: Tensor) -> Tensor:
        """Return (n, M, HIDDEN): each server, with `sent` (n, M) calls in flight per slot."""
        parts = [sent.log1p()[..., None], sent.clamp(max=1.0)[..., None], facts]
        seen = torch.cat([*parts, log_rate[:, None, None].expand(*sent.shape, 1)], 2)
        return torch.relu(self.server(seen) + self.identity)

    def forward(self, sent: Tensor, facts: Tensor, log_rate: Tensor) -> Tensor:
        """Return C (n,)."""
        return cast(Tensor, self.out(self.read(sent, facts, log_rate).mean(1))[:, 0])

    def prices(self, sent: Tensor, facts: Tensor, log_rate: Tensor, slots: Tensor) -> Tensor:
        """Return (n, M): by how much one more call on each server changes C."""
        now, then = (self.read(s, facts, log_rate) for s in (sent, sent + 1.0 / slots))
        pool = now.mean(1, keepdim=True)
        changed = pool + (then - now) / sent.shape[1]
        return cast(Tensor, (self.out(changed) - self.out(pool))[..., 0])


class Learner:
    """Networks, optimiser and multiplier; the seed is of first weights and minibatches."""

    def __init__(self, config: PpoLagrangianConfig, seed: int, spec: PolicySpec) -> None:
        self.config, self.seed, self.spec, self.updates = config, seed, spec, 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(seed, WEIGHTS))
            nets = {
                "policy": Net(spec, identity=config.identity),
                "congestion": Congestion(spec.num_models, identity=config.identity),
            }
        self.nets = nn.ModuleDict(nets)
        self.net, self.critic = cast(Net, nets["policy"]), cast(Congestion, nets["congestion"])
        groups = [{"params": net.parameters(), "lr": config.lr} for net in nets.values()]
        self.optimizer = torch.optim.Adam(groups, eps=1e-5, fused=True)
        pid = config.pid
        self.multiplier = PIDMultiplier(
            0.0, pid.kp, pid.ki, pid.kd, 1.0 - config.promise, 0.5, most=pid.most
        )
        self.average = weights_of(self.net)
        self._slots = torch.tensor(spec.max_num_seqs, dtype=torch.float32)

    def player(self, weights: dict[str, Array] | None = None) -> Player:
        """Return the policy in NumPy, with the present weights or others."""
        weights = weights_of(self.net) if weights is None else weights
        return Player(checkpoint.part(weights, "w."), self.spec, np.float32)

    def update(self, batch: Batch) -> dict[str, float]:
        """Learn from a batch: congestion critic, prices, PPO, λ."""
        c, done = self.config, self.updates / max(self.config.updates - 1, 1)
        rng = np.random.default_rng([self.seed, BATCHES, self.updates])
        self.optimizer.param_groups[0]["lr"] = c.lr * (1.0 - 0.9 * done)
        entropy_weight = c.entropy_weight * 0.01**done
        earned = credit(batch, c, self.multiplier.value if c.promise else 0.0)
        explained = self._learn_congestion(batch, earned, rng)
        price = self._prices(batch)
        target = earned.reward[batch.row, batch.query] + c.congestion * to_go(price, batch)
        metrics = self._ppo(batch, target, entropy_weight, rng)
        if c.promise:
            self.multiplier.update(float(batch.late.mean()))
        for name, value in weights_of(self.net).items():
            self.average[name] = c.kept * self.average[name] + (1.0 - c.kept) * value
        self.updates += 1
        routes, names = batch.node >= 0, self.spec.models
        shares = np.bincount(self.spec.model_of(batch.action[routes]), minlength=len(names))
        return {
            "charts/goodput": float(batch.goodput().mean()),
            "charts/solve_rate": float(batch.records["solved"].mean()),
            "charts/violation_rate": float(batch.late.mean()),
            "charts/num_agents": float(batch.records["num_agents"].mean()),
            "charts/price": float(-price[routes].mean()),
            "lagrange/lambda": self.multiplier.value,
            "losses/congestion_explained": explained,
            **metrics,
            **{
                f"shares/model/{m}": float(s) for m, s in zip(self.spec.models, shares, strict=True)
            },
        }

    def _load(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return calls in flight per slot (n, M), facts (n, M, 3) and the log of the rate (n,)."""
        server = torch.from_numpy(batch.seen.server)
        log_rate = torch.from_numpy(np.log(batch.rates_per_min[batch.row]).astype(np.float32) - 4.0)
        return server[..., SENT.start].expm1(), server[..., LOAD + 2 :], log_rate

    def _learn_congestion(self, batch: Batch, earned: Credit, rng: np.random.Generator) -> float:
        """Regress C on what followed; returns the share of its variance that is explained."""
        load, later = self._load(batch), torch.from_numpy(earned.later)
        known = np.flatnonzero(earned.known)
        for _ in range(1 if self.updates else 4):
            for b in _minibatches(known, self.config.minibatch, rng):
                loss = F.mse_loss(self.critic(*(part[b] for part in load)), later[b])
                self._descend(loss)
        with torch.no_grad():
            error = self.critic(*(part[known] for part in load)) - later[known]
        return 1.0 - float(error.square().mean() / later[known].var())

    def _prices(self, batch: Batch) -> Array:
        """Return x_t (n,), what each call does to others: 0 or less; 0 for plans."""
        routes = np.flatnonzero(batch.node >= 0)
        with torch.no_grad():
            sent, facts, log_rate = (part[routes] for part in self._load(batch))
            prices = self.critic.prices(sent, facts, log_rate, self._slots).numpy()
        action = batch.action[routes]
        model, strategy = self.spec.model_of(action), self.spec.strategy_of(action)
        at = (batch.row[routes], batch.query[routes], batch.node[routes])
        length = batch.records["node_latency_s"][at].astype(np.float64)
        sums, counts = np.zeros((2, self.spec.num_models, self.spec.num_strategies))
        np.add.at(sums, (model, strategy), length)
        np.add.at(counts, (model, strategy), 1.0)
        means = sums.sum(axis=1, keepdims=True) / counts.sum(axis=1, keepdims=True).clip(1.0)
        relative = (sums / counts.clip(1.0) / means.clip(1e-9))[model, strategy]
        touched = batch.rates_per_min[at[0]] / 60.0 * self.config.horizon_s
        found = np.zeros(len(batch.row))
        found[routes] = prices[np.arange(len(routes)), model] * touched * relative.clip(0.3, 3.0)
        return found.clip(-LARGEST_PRICE, 0.0)

    def _ppo(
        self, batch: Batch, target: Array, entropy_weight: float, rng: np.random.Generator
    ) -> dict[str, float]:
        c, everything = self.config, np.arange(len(batch.row))
        seen, up = Seen(*map(torch.from_numpy, batch.seen)), torch.from_numpy(batch.up)
        action, old = torch.from_numpy(batch.action)[:, None], torch.from_numpy(batch.log_prob)
        is_plan, goal = torch.from_numpy(batch.node < 0), torch.from_numpy(target)
        with torch.no_grad():
            parts = np.array_split(everything, max(len(everything) // 16_384, 1))
            values = [self.net(Seen(*(p[b] for p in seen)), up[b])[2] for b in parts]
        advantage = goal - torch.cat(values)
        explained = 1.0 - float(advantage.var() / goal.var())
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        losses: list[tuple[float, ...]] = []
        for _ in range(c.epochs):
            for b in _minibatches(everything, c.minibatch, rng):
                routes, plans, value = self.net(Seen(*(p[b] for p in seen)), up[b])
                of_plan, a = is_plan[b], action[b]
                taken_route = routes.gather(1, a.clamp(max=routes.shape[1] - 1))[:, 0]
                log_prob = torch.where(of_plan, plans.gather(1, a)[:, 0], taken_route)
                entropy = torch.where(of_plan, _entropy(plans), _entropy(routes)).mean()
                log_ratio = log_prob - old[b]
                ratio, adv = log_ratio.exp(), advantage[b]
                clipped = ratio.clamp(1 - c.clip, 1 + c.clip)
                policy_loss = -torch.min(ratio * adv, clipped * adv).mean()
                value_loss = F.mse_loss(value, goal[b])
                self._descend(policy_loss + c.value_weight * value_loss - entropy_weight * entropy)
                kl = (ratio - 1.0 - log_ratio).mean()
                parts_of_loss = (policy_loss, value_loss, entropy, kl)
                losses.append(tuple(float(x.detach()) for x in parts_of_loss))
        names = ("policy_loss", "value_loss", "entropy", "approx_kl")
        means = dict(zip(names, np.mean(losses, axis=0).tolist(), strict=True))
        return {f"losses/{n}": v for n, v in means.items()} | {"losses/explained": explained}

    def _descend(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.nets.parameters(), self.config.max_grad_norm)
        self.optimizer.step()


def _minibatches(rows: Array, size: int, rng: np.random.Generator) -> list[Array]:
    """Return rows in random order, in parts of one size or a little more."""
    return np.array_split(rng.permutation(rows), max(len(rows) // size, 1))


def _cat(parts: Any) -> Tensor:
    return torch.cat(tuple(parts), -1)


def _entropy(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * log_probs).sum(1)


def train(
    config: PpoLagrangianConfig,
    *,
    seed: int,
    out: Path,
    resume: bool = False,
    wandb: bool = False,
    tensorboard: bool = False,
) -> dict[str, Any]:
    """Train; the policy is in `out/best`, the metrics in `out/metrics.jsonl`.

    Args:
        config: of the training.
        seed: same seed, same result.
        out: folder of the training.
        resume: go on from the last update in `out` that was finished.
        wandb: see `Tracker`, as for `tensorboard`.

    Returns:
        Decisions, seconds, and the goodput of the validation, by weights and rate.

    Raises:
        ConfigError: `out` holds a training and `resume` is not set, or one of another
            configuration, seed or simulator version.
    """
    use_one_thread()
    run, counts = run_of(config, seed), {"decisions": 0, "seconds": 0.0}
    world = World(config, "train", config.rows)
    learner = Learner(config, seed, world.spec)
    if checkpoint.exists(out / STATE):
        arrays, numbers = checkpoint.load(out / STATE)
        check_resume(out, numbers["run"], run, resume=resume)
        load_state(learner.nets, learner.optimizer, arrays)
        learner.average = dict(checkpoint.part(arrays, "average."))
        learner.updates, counts = numbers["updates"], numbers["counts"]
        learner.multiplier = PIDMultiplier(**numbers["multiplier"])
    with Tracker(out, run, wandb=wandb, tensorboard=tensorboard) as tracker:
        tracker.rewind(int(counts["decisions"]))
        while learner.updates < config.updates:
            began = time.perf_counter()
            rates = _rates(config, seed, learner.updates)
            key = (seed, EPISODES, learner.updates)
            batch = world.play(learner.player(), key, rates, sample=True)
            metrics = learner.update(batch)
            counts["decisions"] += len(batch.row)
            counts["seconds"] += time.perf_counter() - began
            metrics["charts/SPS"] = counts["decisions"] / counts["seconds"]
            tracker.log(int(counts["decisions"]), metrics)
            tracker.flush()
            numbers = {"run": run, "updates": learner.updates, "counts": counts}
            numbers["multiplier"] = asdict(learner.multiplier)
            arrays = state_of(learner.nets, learner.optimizer)
            arrays |= checkpoint.prefixed(learner.average, "average.")
            checkpoint.save(out / STATE, arrays, numbers)
            print(_report(learner, metrics, counts), file=sys.stderr, flush=True)
        found = _validate(config, learner, seed)
        name = max(found, key=lambda which: float(np.mean(found[which])))
        weights = learner.average if name == "averaged" else weights_of(learner.net)
        content = {
            "agent": NAME,
            "models": list(world.spec.models) if config.identity else [],
            "num_strategies": world.spec.num_strategies,
            "multiplier": learner.multiplier.value,
            "training": {**run, **counts, "validation": found, "weights": name},
        }
        checkpoint.save(out / BEST, checkpoint.part(weights, "w."), content)
    return {**counts, "validation": found, "weights": name}


def _rates(config: PpoLagrangianConfig, seed: int, update: int) -> Array:
    """Return the arrival rates (rows,) of an update."""
    moved = np.random.default_rng([seed, EPISODES, update]).uniform(0.9, 1.1, config.rows)
    return np.resize(np.array(config.rates_per_min), config.rows) * moved


def _validate(config: PpoLagrangianConfig, learner: Learner, seed: int) -> dict[str, list[float]]:
    """Return the goodput at each rate on held-out tasks, of last and averaged weights."""
    world = World(config, "val", config.validation_rows)
    rates = np.resize(np.array(config.rates_per_min), world.rows)
    found = {}
    for name, weights in (("last", weights_of(learner.net)), ("averaged", learner.average)):
        key = (seed, VALIDATION)
        goodput = world.play(learner.player(weights), key, rates, sample=False).goodput()
        found[name] = [float(goodput[rates == rate].mean()) for rate in config.rates_per_min]
    return found


def _report(learner: Learner, metrics: dict[str, float], counts: dict[str, Any]) -> str:
    left_s = counts["seconds"] / learner.updates * (learner.config.updates - learner.updates)
    return (
        f"update {learner.updates} of {learner.config.updates}: goodput "
        f"{metrics['charts/goodput']:.3f}, solved {metrics['charts/solve_rate']:.3f}, late "
        f"{metrics['charts/violation_rate']:.3f}, agents {metrics['charts/num_agents']:.2f}, "
        f"entropy {metrics['losses/entropy']:.2f}, {metrics['charts/SPS']:.0f} decisions/s, "
        f"{left_s / 60:.0f} min to go"
    )
