"""PPO with Lagrange multiplier and congestion critic, for planning and routing in one closed loop.

    python -m agents.train --config ppo_lagrangian --workload math --seed 0 --out runs/ppo/math/0

Every row of `InfraMind-Stream-v0` plays a stream at an arrival rate of its own, which goes on from
update to update: at the end of a stream congestion would cost nothing. An update takes some
decisions in every row and learns from those whose queries are answered by then. Query q is worth

    r_q = solved on time + bonus · solved - λ · late

and decision t of it is credited with r_q and with what it does to others: a call holds a slot, and
whoever arrives later waits. The *congestion critic* is regressed on the discounted sum of r over
queries that arrive after one that met a load, and says what one call more on server m costs them:

    x_t = - price of m at its load · (relative length of such a call)

so that the return of a decision is G_t = r_q + x_t + x_{t+1} + … over the query's own decisions.
PPO maximises it against a critic of its own. The first updates imitate `bid_price` instead, while
both critics learn. λ holds the share of late queries at `1 - promise`, by a PID controller (Stooke,
Achiam, Abbeel 2020) with a bounded integral. Entropy's weight falls to almost nothing, so that what
is played, the likeliest action, is what was trained.

To follow one update: `World.play` and `World.met` → `Learner.update`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor, nn

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
from agents.streams import (
    SENT,
    Batch,
    Met,
    World,
    by_network,
    by_teacher,
    late_of,
    overrun,
    validate,
    worth,
)
from inframind_gym.envs.routing.layout import EMBED_DIM
from inframind_gym.envs.routing.spec import PolicySpec
from inframind_gym.policies import checkpoint
from inframind_gym.policies.ppo_lagrangian import (
    HIDDEN,
    NAME,
    Player,
    Seen,
    embed,
    forward,
    shapes,
)

Array = NDArray[Any]

STATE, BEST = "state", "best"  # folders of checkpoints: where to go on from, and what to use
WEIGHTS, EPISODES, DRAWS, BATCHES, VALIDATION = range(5)  # uses of a seed
KNOTS: Final = (0.0, 1.0, 2.0)  # calls in flight per slot from which on a price rises faster
MOST_LOAD: Final = 8.0  # a load above counts as this in the regression
KEPT: Final = 0.95  # of the moments, from update to update
LARGEST_PRICE: Final = 1.0  # of a call, in answers


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


class Congestion:
    """Costs of a call to others: a price a server, which rises with the calls in flight there.

    The reward of those who arrive after a load was met falls with that load. By how much is
    regressed on the load of every server and its square, with weights of 0 or more, so that a call
    costs more on a fuller server: all who queue behind it wait.

    Attributes:
        moments: (F, F + 1) second moments of features, and of features and rewards; old ones fade.
    """

    def __init__(self, models: int) -> None:
        size = (1 + len(KNOTS)) * models
        self.moments = np.zeros((size, size + 1))

    def learn(self, met: Met) -> None:
        """Add loads and what followed."""
        sent = met.sent.astype(np.float64).clip(max=MOST_LOAD)
        features = np.hstack([sent, *(np.maximum(sent - knot, 0.0) ** 2 / 2.0 for knot in KNOTS)])
        features, later = (_centred(x, met.row) for x in (features, met.later[:, None]))
        self.moments = KEPT * self.moments + features.T @ np.hstack([features, -later])

    def prices(self, sent: Array) -> Array:
        """Return (n, M): what a call per slot costs on each server, with `sent` (n, M) per slot."""
        squares, products = self.moments[:, :-1], self.moments[:, -1]
        ridge = 1e-3 * np.diag(squares) + 1e-9
        root = np.linalg.cholesky(squares + np.diag(ridge))
        weights, _ = nnls(root.T, np.linalg.solve(root, products))
        first, *rest = weights.reshape(1 + len(KNOTS), -1)
        rises = (w * np.maximum(sent - knot, 0.0) for w, knot in zip(rest, KNOTS, strict=True))
        return np.asarray(first + sum(rises))


class Learner:
    """Networks, optimiser and multiplier; the seed is of first weights and minibatches."""

    def __init__(self, config: PpoLagrangianConfig, seed: int, spec: PolicySpec) -> None:
        self.config, self.seed, self.spec, self.updates = config, seed, spec, 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(seed, WEIGHTS))
            self.net = Net(spec, identity=config.identity)
        self.optimizer = torch.optim.Adam(self.net.parameters(), config.lr, eps=1e-5, fused=True)
        self.congestion = Congestion(spec.num_models)
        pid = config.pid
        self.pid = PIDMultiplier(
            0.0, pid.kp, pid.ki, pid.kd, 1.0 - config.promise, 0.5, most=pid.most
        )
        self.average = weights_of(self.net)

    @property
    def multiplier(self) -> float:
        """λ, 0 without a promise."""
        return self.pid.value if self.config.promise else 0.0

    @property
    def cloning(self) -> bool:
        """Return whether the next update imitates."""
        return self.updates < self.config.cloning

    def player(self, weights: dict[str, Array] | None = None) -> Player:
        """Return the policy in NumPy, with the present weights or others."""
        weights = weights_of(self.net) if weights is None else weights
        return Player(checkpoint.part(weights, "w."), self.spec, np.float32)

    def update(self, batch: Batch, met: Met) -> dict[str, float]:
        """Learn: congestion critic, prices, PPO or imitation, λ, averaged weights."""
        c, names = self.config, self.spec.models
        first, last = (0, c.cloning) if self.cloning else (c.cloning, c.updates)
        done = (self.updates - first) / max(last - first - 1, 1)
        rng = np.random.default_rng([self.seed, BATCHES, self.updates])
        lr = (c.cloning_lr if self.cloning else c.lr) * (1.0 - 0.9 * done)
        self.optimizer.param_groups[0]["lr"] = lr
        self.congestion.learn(met)
        price = self._prices(batch)
        reward = worth(batch.answer, c.bonus, self.multiplier)
        target = (reward + c.congestion * to_go(price, batch)).astype(np.float32)
        metrics = self._ppo(batch, target, c.entropy_weight * 0.01**done, rng)
        kept = 0.0 if self.cloning else c.kept
        for name, value in weights_of(self.net).items():
            self.average[name] = kept * self.average[name] + (1.0 - kept) * value
        is_plan = batch.node < 0
        answer, late = batch.answer[is_plan], late_of(batch.answer[is_plan])  # one a query
        if c.promise:
            self.pid.update(float(late.mean()))
        self.updates += 1
        models = self.spec.model_of(batch.action[~is_plan])
        metrics |= {f"shares/model/{name}": (models == m).mean() for m, name in enumerate(names)}
        good, group = answer["solved"] * ~late, batch.row[is_plan] % len(c.rates_per_min)
        for i, rate in enumerate(c.rates_per_min):
            metrics[f"charts/goodput/{rate:g}"] = good[group == i].mean()
        metrics |= {
            "charts/goodput": good.mean(),
            "charts/solve_rate": answer["solved"].mean(),
            "charts/violation_rate": late.mean(),
            "charts/num_agents": answer["num_agents"].mean(),
            "charts/price": -price[~is_plan].mean(),
            "lagrange/lambda": self.multiplier,
        }
        return {name: float(value) for name, value in metrics.items()}

    def _prices(self, batch: Batch) -> Array:
        """Return x_t (n,), what each call does to others: 0 or less; 0 for plans."""
        routes = np.flatnonzero(batch.node >= 0)
        action, sent = batch.action[routes], np.expm1(batch.seen.server[routes][..., SENT])
        model, strategy = self.spec.model_of(action), self.spec.strategy_of(action)
        prices = self.congestion.prices(sent) / self.spec.max_num_seqs
        length = batch.answer["node_latency_s"][routes, batch.node[routes]]
        sums, counts = np.zeros((2, self.spec.num_models, self.spec.num_strategies))
        np.add.at(sums, (model, strategy), length.astype(np.float64))
        np.add.at(counts, (model, strategy), 1.0)
        means = sums.sum(axis=1, keepdims=True) / counts.sum(axis=1, keepdims=True).clip(1.0)
        relative = (sums / counts.clip(1.0) / means.clip(1e-9))[model, strategy]
        found = np.zeros(len(batch.row))
        found[routes] = -prices[np.arange(len(routes)), model] * relative.clip(0.3, 3.0)
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
        if self.cloning:  # not from rows in which the teacher is overrun
            everything = np.flatnonzero(~overrun(batch.row, batch.answer))
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
                if self.cloning:
                    policy_loss, entropy_weight = -log_prob.mean(), 0.0
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
        nn.utils.clip_grad_norm_(self.net.parameters(), self.config.max_grad_norm)
        self.optimizer.step()


def _minibatches(rows: Array, size: int, rng: np.random.Generator) -> list[Array]:
    """Return rows in random order, in parts of one size or a little more."""
    return np.array_split(rng.permutation(rows), max(len(rows) // size, 1))


def _cat(parts: Any) -> Tensor:
    return torch.cat(tuple(parts), -1)


def _entropy(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * log_probs).sum(1)


def _centred(values: Array, group: Array) -> Array:
    """Return values (n, k) less the mean of their group."""
    count = np.bincount(group).clip(1)
    means = [np.bincount(group, column) / count for column in values.T]
    return np.asarray(values - np.stack(means, axis=1)[group])


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
        resume: go on from the last streams in `out` that were played.
        wandb: see `Tracker`, as for `tensorboard`.

    Returns:
        Decisions, seconds, and the mean goodput of the best validation.

    Raises:
        ConfigError: `out` holds a training and `resume` is not set, or one of another
            configuration, seed or simulator version; or `bid_price` cannot play and is imitated.
    """
    use_one_thread()
    run, counts, best = run_of(config, seed), {"decisions": 0, "seconds": 0.0}, -1.0
    most = config.together * config.steps // 2 + 1  # a query takes two decisions at least
    world = World(config, "train", config.rows, most)
    learner = Learner(config, seed, world.spec)
    if checkpoint.exists(out / STATE):
        arrays, numbers = checkpoint.load(out / STATE)
        check_resume(out, numbers["run"], run, resume=resume)
        load_state(learner.net, learner.optimizer, arrays)
        learner.average = dict(checkpoint.part(arrays, "average."))
        learner.congestion.moments = arrays["moments"]
        learner.updates, counts, best = numbers["updates"], numbers["counts"], numbers["best"]
        learner.pid = PIDMultiplier(**numbers["multiplier"])
    with Tracker(out, run, wandb=wandb, tensorboard=tensorboard) as tracker:
        tracker.rewind(int(counts["decisions"]))
        while learner.updates < config.updates:  # streams, and a checkpoint after them
            key = (seed, EPISODES, learner.updates)
            world.begin(key, _rates(config, key))
            teacher = None
            if learner.cloning:
                teacher = by_teacher(world.spec, world.rows, config.teacher)
            phase_ends = min(config.cloning if teacher else config.updates, config.updates)
            for _ in range(min(config.together, phase_ends - learner.updates)):
                began = time.perf_counter()
                choose = teacher or by_network(learner.player(), sample=True)
                batch = world.play(choose, (seed, DRAWS, learner.updates))
                metrics = learner.update(batch, world.met(learner.multiplier))
                counts["decisions"] += len(batch.row)
                counts["seconds"] += time.perf_counter() - began
                metrics["charts/SPS"] = counts["decisions"] / counts["seconds"]
                tracker.log(int(counts["decisions"]), metrics)
                print(_report(learner, metrics, counts), file=sys.stderr, flush=True)
            found = validate(config, learner.player(learner.average), (seed, VALIDATION))
            print("validation:", *(f"{g:.3f}" for g in found), file=sys.stderr, flush=True)
            if np.mean(found) > best:
                best = float(np.mean(found))
                content = {
                    "agent": NAME,
                    "models": list(world.spec.models) if config.identity else [],
                    "num_strategies": world.spec.num_strategies,
                    "multiplier": learner.multiplier,
                    "training": {**run, **counts, "validation": found},
                }
                checkpoint.save(out / BEST, checkpoint.part(learner.average, "w."), content)
            tracker.flush()
            numbers = {"run": run, "updates": learner.updates, "counts": counts, "best": best}
            numbers["multiplier"] = asdict(learner.pid)
            arrays = state_of(learner.net, learner.optimizer)
            arrays |= checkpoint.prefixed(learner.average, "average.")
            arrays["moments"] = learner.congestion.moments
            checkpoint.save(out / STATE, arrays, numbers)
    return {**counts, "validation": best}


def _rates(config: PpoLagrangianConfig, key: tuple[int, ...]) -> Array:
    """Return the arrival rates (rows,) of streams."""
    moved = np.random.default_rng(key).uniform(0.84, 1.16, config.rows)
    return np.resize(np.array(config.rates_per_min), config.rows) * moved


def _report(learner: Learner, metrics: dict[str, float], counts: dict[str, Any]) -> str:
    left_s = counts["seconds"] / learner.updates * (learner.config.updates - learner.updates)
    by_rate = (f"{v:.3f}" for k, v in metrics.items() if k.startswith("charts/goodput/"))
    return (
        f"update {learner.updates} of {learner.config.updates}: goodput "
        f"{metrics['charts/goodput']:.3f} ({' '.join(by_rate)}), late "
        f"{metrics['charts/violation_rate']:.3f}, agents {metrics['charts/num_agents']:.2f}, "
        f"entropy {metrics['losses/entropy']:.2f}, {metrics['charts/SPS']:.0f} decisions/s, "
        f"{left_s / 60:.0f} min to go"
    )
