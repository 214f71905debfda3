"""PPO with Lagrange multiplier and congestion critic, for planning and routing in one closed loop.

    inframind train ppo_lagrangian --seed 0 --out runs/ppo/0

Every row of `InfraMind-Stream-v0` plays a stream at an arrival rate of its own, which goes on from
update to update: at the end of a stream congestion would cost nothing. Rows of several *worlds*,
pools and workloads, stand side by side, and one network learns them all. An update takes some
decisions in every row and learns from those whose queries are answered by then. Query q is worth

    r_q = solved on time - λ · late

and decision t of it is credited with r_q and with what it does to others: a call holds a slot, and
whoever arrives later waits. The *congestion critic* says what that costs them. It is no network:
in steady load the cost of a second of a slot is the dual price of the server in the linear program
of the load, which `bid_price` has solved:

    x_t = - price of the server's second · seconds of such a call

so that the return of a decision is G_t = r_q + x_t + x_{t+1} + … over the query's own decisions.
PPO maximises it against a critic of its own. The first updates imitate `bid_price` instead, while
the critic learns. λ holds the share of late queries at `1 - promise`, by a PID controller (Stooke,
Achiam, Abbeel 2020) with a bounded integral; the shipped configuration promises nothing, and λ is
0. Entropy's weight falls to almost nothing, so that what is played, the likeliest action, is what
was trained.

To follow one update: `World.play` → `Learner.update`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from agents.lagrangian import PIDMultiplier
from agents.runs import BEST, Array, Run, load_state, seed_of, state_of, weights_of
from agents.streams import (
    Batch,
    PpoLagrangianConfig,
    World,
    by_network,
    by_teacher,
    imitated,
    play_worlds,
    steps_of,
    teacher_of,
    training_worlds,
    validation_worlds,
    worth,
)
from inframind_gym.envs.layout import EMBED_DIM
from inframind_gym.policies import checkpoint
from inframind_gym.policies.ppo_lagrangian import (
    NAME,
    Seen,
    embed,
    encode,
    plan_logits,
    route_logits,
    shapes,
)
from inframind_gym.progress import ProgressReport

WEIGHTS, EPISODES, DRAWS, BATCHES, VALIDATION = range(5)  # uses of a seed


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
    """The policy's weights, and its critic's.

    Args:
        worlds: of the training; the tasks of the first come first.
        hidden: width of the layers.
    """

    w: nn.ParameterDict

    def __init__(self, worlds: Sequence[World], hidden: int) -> None:
        super().__init__()
        spec = worlds[0].spec
        sizes = shapes(spec.num_strategies, hidden)
        self.w = nn.ParameterDict({name: torch.zeros(size) for name, size in sizes.items()})
        for name, value in self.w.items():
            if value.ndim == 2:  # almost even odds at the start
                nn.init.orthogonal_(value, 0.01 if name.endswith("_out") else 1.0)
        self.value = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        roles = np.vstack([spec.role_embeddings, np.zeros((1, EMBED_DIM), np.float32)])
        tasks = np.concatenate([world.spec.task_embeddings for world in worlds])
        self._texts = torch.from_numpy(tasks), torch.from_numpy(roles)

    def forward(self, seen: Seen, up: Tensor, routes: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities of routes (k, M·S) and plans (n - k, P), and values (n,).

        Args:
            seen: n decisions, routes before plans.
            up: (n, M) models that could be chosen.
            routes: k.
        """
        w = cast(dict[str, Tensor], self.w)
        texts = embed(w, *self._texts, torch.relu)
        server, pool, state = encode(
            w, texts, seen, torch.relu, lambda parts: torch.cat(tuple(parts), -1)
        )
        route = route_logits(w, server[:routes], pool[:routes], torch.relu)
        route = route.masked_fill(~up[:routes, :, None], -1e9).flatten(1)
        plan = plan_logits(w, pool[routes:], torch.relu)
        return route.log_softmax(1), plan.log_softmax(1), self.value(state)[:, 0]


class Learner:
    """Network, optimiser and multiplier; the seed is of first weights and minibatches."""

    def __init__(self, config: PpoLagrangianConfig, seed: int, worlds: Sequence[World]) -> None:
        self.config, self.seed, self.worlds, self.updates = config, seed, worlds, 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(seed, WEIGHTS))
            self.net = Net(worlds, config.hidden)
        self.optimizer = torch.optim.Adam(self.net.parameters(), config.lr, eps=1e-5, fused=True)
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

    def weights(self, *, averaged: bool = False) -> dict[str, Array]:
        """Return the weights of the policy: the present ones, or averaged over updates."""
        return checkpoint.part(self.average if averaged else weights_of(self.net), "w.")

    def sharpen(self) -> None:
        """Make likely actions likelier, the likeliest staying what they are.

        An imitation is unsure where its teacher is not: too many of its draws are what nobody
        would do, and fill servers that the teacher leaves empty.
        """
        with torch.no_grad():
            for name, value in self.net.w.items():
                if "_out" in name:
                    value *= self.config.sharpen
        self.average = weights_of(self.net)

    def update(self, batch: Batch) -> dict[str, float]:
        """Learn: PPO or imitation, λ, averaged weights."""
        c = self.config
        first, last = (0, c.cloning) if self.cloning else (c.cloning, c.steps)
        done = (self.updates - first) / max(last - first - 1, 1)
        rng = np.random.default_rng([self.seed, BATCHES, self.updates])
        lr = (c.cloning_lr if self.cloning else c.lr) * (1.0 - 0.9 * done)
        self.optimizer.param_groups[0]["lr"] = lr
        target = worth(batch.answer, self.multiplier) - c.congestion * to_go(batch.price, batch)
        metrics = self._ppo(batch, target.astype(np.float32), c.entropy_weight * 0.01**done, rng)
        kept = 0.0 if self.cloning else c.kept
        for name, value in weights_of(self.net).items():
            self.average[name] = kept * self.average[name] + (1.0 - kept) * value
        metrics |= self._figures(batch)
        if c.promise:
            self.pid.update(metrics["charts/violation_rate"])
        self.updates += 1
        return metrics

    def _ppo(
        self, batch: Batch, target: Array, entropy_weight: float, rng: np.random.Generator
    ) -> dict[str, float]:
        c, everything = self.config, np.arange(len(batch.row))
        seen, up = Seen(*map(torch.from_numpy, batch.seen)), torch.from_numpy(batch.up)
        action, old = torch.from_numpy(batch.action)[:, None], torch.from_numpy(batch.log_prob)
        goal, is_plan = torch.from_numpy(target), batch.node < 0
        if self.cloning:
            everything, entropy_weight = imitated(batch), 0.0
            action = torch.from_numpy(batch.label)[:, None]
        losses: list[tuple[float, ...]] = []
        for _ in range(c.epochs):
            parts = max(len(everything) // c.minibatch, 1)
            for b in np.array_split(rng.permutation(everything), parts):
                b = b[np.argsort(is_plan[b], kind="stable")]
                k = len(b) - int(is_plan[b].sum())
                route, plan, value = self.net(Seen(*(p[b] for p in seen)), up[b], k)
                a = action[b]
                log_prob = torch.cat([route.gather(1, a[:k]), plan.gather(1, a[k:])])[:, 0]
                entropy = torch.cat([-(p.exp() * p).sum(1) for p in (route, plan)]).mean()
                error = goal[b] - value
                value_loss = error.square().mean()
                log_ratio = log_prob - old[b]
                ratio, advantage = log_ratio.exp(), error.detach()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                clipped = ratio.clamp(1 - c.clip, 1 + c.clip)
                policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
                if self.cloning:
                    policy_loss = -log_prob.mean()
                loss = policy_loss + c.value_weight * value_loss - entropy_weight * entropy
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.net.parameters(), c.max_grad_norm)
                self.optimizer.step()
                kl = (ratio - 1.0 - log_ratio).mean()
                losses.append(
                    tuple(float(x.detach()) for x in (policy_loss, value_loss, entropy, kl))
                )
        names = ("policy_loss", "value_loss", "entropy", "approx_kl")
        means = dict(zip(names, np.mean(losses, axis=0).tolist(), strict=True))
        means["explained"] = 1.0 - means["value_loss"] / float(goal.var())
        return {f"losses/{name}": value for name, value in means.items()}

    def _figures(self, batch: Batch) -> dict[str, float]:
        """Return what became of the queries: goodput by world and load, and more."""
        c, is_plan = self.config, batch.node < 0
        answer, row = batch.answer[is_plan], batch.row[is_plan]  # one a query
        good, load = worth(answer, 0.0), row % c.rows % len(c.loads)
        found = {
            "charts/goodput": good.mean(),
            "charts/solve_rate": answer["solved"].mean(),
            "charts/violation_rate": answer["late"].mean(),
            "charts/num_agents": answer["num_agents"].mean(),
            "charts/price": batch.price[~is_plan].mean(),
            "lagrange/lambda": self.multiplier,
        }
        groups = [(f"load/{x:g}", load == i) for i, x in enumerate(c.loads)]
        for i, world in enumerate(self.worlds):
            place = world.place
            groups += [(f"{place.pool}/{place.workload}", row // c.rows == i)]
        found |= {f"charts/goodput/{name}": good[at].mean() for name, at in groups if at.any()}
        return {name: float(value) for name, value in found.items()}


def train(config: PpoLagrangianConfig, run: Run) -> dict[str, Any]:
    """Train; the policy is in `run.out/best`.

    Returns:
        Decisions, seconds, and the mean goodput of the best validation.

    Raises:
        ConfigError: see `Run.begin`; or `bid_price` cannot play and is imitated.
    """
    saved, seed, counts, best = run.begin(config), run.seed, {"decisions": 0, "seconds": 0.0}, -1.0
    worlds = training_worlds(config)
    held_out, steps = validation_worlds(config, worlds), steps_of(config, len(worlds))
    teachers = [teacher_of(world, config.teacher) for world in worlds]
    learner = Learner(config, seed, worlds)
    if saved is not None:
        arrays, numbers = saved
        load_state(learner.net, learner.optimizer, arrays)
        learner.average = dict(checkpoint.part(arrays, "average."))
        learner.updates, counts, best = numbers["updates"], numbers["counts"], numbers["best"]
        learner.pid = PIDMultiplier(**numbers["multiplier"])
    report = ProgressReport(config.steps, learner.updates, "ppo_lagrangian", "updates")
    with run.tracker(int(counts["decisions"])) as tracker, report:
        while learner.updates < config.steps:  # streams, and a checkpoint after them
            for i, world in enumerate(worlds):
                world.begin((seed, EPISODES, learner.updates, i), moved=True)
            cloning = learner.cloning
            if learner.updates == config.cloning:
                learner.sharpen()
            ends = min(config.cloning if cloning else config.steps, config.steps)
            for _ in range(min(config.together, ends - learner.updates)):
                began, weights = time.perf_counter(), learner.weights()
                choosers = [by_network(weights, w, sample=not cloning) for w in worlds]
                if cloning:
                    alone = learner.updates < config.alone
                    choosers = [
                        by_teacher(teacher, world, None if alone else own)
                        for teacher, world, own in zip(teachers, worlds, choosers, strict=True)
                    ]
                batch = play_worlds(worlds, choosers, (seed, DRAWS, learner.updates), steps)
                metrics = learner.update(batch)
                counts["decisions"] += len(batch.row)
                counts["seconds"] += time.perf_counter() - began
                metrics["charts/SPS"] = counts["decisions"] / counts["seconds"]
                tracker.log(int(counts["decisions"]), metrics)
                report.advance(
                    1,
                    f"goodput {metrics['charts/goodput']:.3f}, late "
                    f"{metrics['charts/violation_rate']:.3f}, {metrics['charts/SPS']:.0f} "
                    "decisions/s",
                )
            found: dict[str, float] = {}  # goodput of the likeliest actions, by world and load
            loads = config.validation_loads
            for i, world in enumerate(held_out):
                choose = by_network(learner.weights(averaged=True), world, sample=False)
                good = world.validate(choose, (seed, VALIDATION, i), config.validation_queries)
                place = f"{world.place.pool}/{world.place.workload}"
                for k, load in enumerate(loads):
                    found[f"{place}/{load:g}"] = float(good[k :: len(loads)].mean())
            if np.mean(list(found.values())) > best:
                best = float(np.mean(list(found.values())))
                content = {
                    "agent": NAME,
                    "num_strategies": worlds[0].spec.num_strategies,
                    "hidden": config.hidden,
                    "multiplier": learner.multiplier,
                    "training": {**run.facts, **counts, "validation": found},
                }
                checkpoint.save(run.out / BEST, learner.weights(averaged=True), content)
            tracker.flush()
            numbers = {"updates": learner.updates, "counts": counts, "best": best}
            numbers["multiplier"] = asdict(learner.pid)
            arrays = state_of(learner.net, learner.optimizer)
            run.save(arrays | checkpoint.prefixed(learner.average, "average."), numbers)
    return {**counts, "validation": best}
