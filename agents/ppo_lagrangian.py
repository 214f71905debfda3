"""Training of `ppo_lagrangian`: PPO on a Lagrangian whose multipliers are controlled, not fixed.

Streams of several workloads go on side by side, each row at its own arrival rate. When a query
arrives, the network chooses one recipe for it; that is the whole decision, and the Lagrangian

    L = 1[solved in time] - λ · 1[late] - U,        U = Σ_g μ_g · seconds of slots on GPU g

is known when the query has been answered, at the latest at its deadline. U is what the choice costs
later queries. λ and μ belong to a row and a moment; the policy controls them as it does in play
(`inframind_gym.policies.ppo_lagrangian`). The advantage is

    A = (1[solved in time] - V_r) - λ · (1[late] - V_l) - (U - Σ_r π_r U_r)

with a critic each for reward V_r and lateness V_l. Queries are credited one by one (γ is 0). U is
the price times the *predicted* seconds of a recipe's calls, so its mean over recipes is exact. The
policy plays with the average of the weights over updates. PPO: Schulman et al. (2017).

To follow one update: `World.play` → `Learner.update`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, cast

import numpy as np
import torch
from gymnasium.utils import seeding
from pydantic import Field
from torch import Tensor, nn

from agents.runs import (
    BEST,
    Array,
    Run,
    StreamWorld,
    WorldChoice,
    load_state,
    seed_of,
    state_of,
    weights_of,
)
from inframind_gym.configs import Fraction, NonNegative, Positive, PositiveInt, StrictModel
from inframind_gym.envs.routing import StreamVectorEnv
from inframind_gym.evaluation.queries import Window, stream_length
from inframind_gym.policies import checkpoint
from inframind_gym.policies.networks import draw, log_softmax
from inframind_gym.policies.ppo_lagrangian import (
    NAME,
    QUERY,
    RECIPE,
    Library,
    PpoLagrangianPolicy,
    Seen,
    embed,
    scores_of,
    shapes,
)
from inframind_gym.progress import ProgressReport
from inframind_gym.simulator.workflow.dispatch import DECISION

WEIGHTS, EPISODES, BATCHES, VALIDATION = range(4)  # uses of a seed
SETTLED_S: Final = 200.0  # before and after the queries that a validation scores
OVERRUN: Final = 0.5  # share of late queries above which a row restarts
REWARD, LATE = 0, 1  # outputs of the critic


class PpoLagrangianConfig(StrictModel):
    """Configuration of a training, `agents/configs/ppo_lagrangian.yaml`."""

    algorithm: Literal["ppo_lagrangian"] = "ppo_lagrangian"
    env: WorldChoice = WorldChoice()  # of all worlds; a pool or a workload chooses among them
    worlds: tuple[StreamWorld, ...] = ()  # that are played side by side
    # arrival rates of the rows, in turn, as shares of capacity; each is moved by up to a sixth
    loads: Annotated[tuple[Positive, ...], Field(min_length=1)]
    rows: PositiveInt = 48  # streams of a world, side by side
    queries: PositiveInt = 48_000  # of all rows in an update, at least
    together: PositiveInt = 20  # updates in a stream, after which there is a checkpoint
    steps: PositiveInt = 40  # updates
    hidden: PositiveInt = 48  # width of the layers
    epochs: PositiveInt = 2  # passes over the decisions of an update
    minibatch: PositiveInt = 1024  # decisions of a step
    lr: Positive = 1e-3  # of Adam; falls to a tenth in equal steps
    # logits of a right answer, in the first update and in the last
    sharpness: tuple[Positive, Positive] = (40.0, 150.0)
    clip: Positive = 0.2
    value_weight: NonNegative = 0.5
    entropy_weight: NonNegative = 1e-4
    max_grad_norm: Positive = 0.5
    promise: Fraction = 0.975  # share of queries that are to be in time
    averaged: Fraction = 0.9  # weight of the past in the average of the weights
    # what an ablation leaves out
    prices: bool = True  # μ
    lateness: bool = True  # λ
    cost_critic: bool = True  # V_l and Σ π U; without them one critic of L
    restarts: bool = True  # of rows in which most queries are late
    validation_rows: PositiveInt = 12  # streams of a world
    validation_loads: Annotated[tuple[Positive, ...], Field(min_length=1)] = (0.3, 0.6, 0.9, 1.1)
    validation_queries: PositiveInt = 600  # of each, that are scored


class Batch(NamedTuple):
    """Decisions of queries that have ended or are late."""

    load: Array  # (n,) index of the row's load
    seen: Seen
    action: Array  # (n,) recipe
    price: Array  # (n,) mean μ of the row's GPUs at no load
    log_prob: Array  # (n,)
    use: Array  # (n,) U
    use_expected: Array  # (n,) Σ π U
    multiplier: Array  # (n,) λ
    good: Array  # (n,) solved in time
    late: Array  # (n,)


class Explorer(PpoLagrangianPolicy):
    """The policy in training: it draws recipes and records its decisions.

    Attributes:
        sharpness: logits of a right answer.
        decisions_made: per call of `pick`: rows, queries, deadlines, and the columns of a batch
            from `seen` to `multiplier`.
    """

    def __init__(self, config: PpoLagrangianConfig, *, sample: bool) -> None:
        # Without PpoLagrangianPolicy's, which loads a checkpoint.
        super(PpoLagrangianPolicy, self).__init__(prices=config.prices)
        self.name, self.sample, self.has_lateness = NAME, sample, config.lateness
        self.sharpness, self.decisions_made = 1.0, list[tuple[Any, ...]]()

    def pick(self, seen: Seen, scores: Array, contexts: Array, rows: Array) -> Array:
        """Return recipes (n,) by their scores (n, R)."""
        if not self.sample:
            return np.asarray(scores.argmax(axis=1), np.int64)
        log_probs = log_softmax(self.sharpness * scores)
        action = draw(log_probs, self.draw(rows, contexts["query"]))
        each, use = np.arange(len(rows)), seen.recipe[..., 4]
        self.decisions_made.append(
            (
                rows.copy(),
                contexts["query"].astype(np.int64),
                contexts["arrival_s"] + contexts["budget_s"],
                *seen,
                action,
                np.exp(self.log_price[rows]).mean(axis=1),
                log_probs[each, action].astype(np.float32),
                use[each, action],
                (np.exp(log_probs) * use).sum(axis=1).astype(np.float32),
                self.lagrange[rows].astype(np.float32),
            )
        )
        return np.asarray(action, np.int64)


class World:
    """Rows of the closed loop in one pool and workload, and the policy that plays them.

    The split of the tasks is "train" or "val"; `queries` is the length of a stream.
    """

    def __init__(
        self, config: PpoLagrangianConfig, place: StreamWorld, split: str, queries: int
    ) -> None:
        rows, loads = config.validation_rows, config.validation_loads
        if split == "train":
            rows, loads = config.rows, config.loads
        self.config = config
        arguments: dict[str, Any] = config.env.arguments(split) | {
            "pool": place.pool,
            "workload": place.workload,
            "num_queries": queries,
            "system_features": ("in_flight",),
            "level": "joint",
            "observation": "index",
        }
        env = StreamVectorEnv(rows, **arguments)
        self.simulation, self.spec = env.simulation, env.policy_spec()
        self.place, self.rows, self.every = place, rows, np.arange(rows)
        self.load = self.every % len(loads)
        self.rates_per_min = np.array(loads)[self.load] * (place.capacity_per_min or 0.0)
        self.policy = Explorer(config, sample=split == "train")
        self._solved, self._late, self._ended = np.zeros((3, rows, queries), np.bool_)

    def begin(self, weights: Mapping[str, Array], key: tuple[int, ...]) -> None:
        """Begin a stream in every row; its draws are functions of the key."""
        self._key, self._begun = key, np.zeros(self.rows, np.int64)
        rates = self.rates_per_min.copy()
        if self.policy.sample:
            rates *= np.random.default_rng(key).uniform(0.84, 1.16, self.rows)
        self.simulation.set_options({"arrival_rate_per_min": rates})
        self.simulation.seeded()
        self.policy.use(weights, self.config.promise, np.float32)
        self.policy.decisions_made = []
        self.policy.reset(self.spec, [seed_of(*key, row) for row in range(self.rows)])
        self._observations = self.simulation.observations()
        self._restart(self.every)

    def _restart(self, rows: Array) -> None:
        """Begin new streams in some rows."""
        seeds = [seed_of(*self._key, row, self._begun[row]) for row in rows.tolist()]
        self._begun[rows] += 1
        generators = [seeding.np_random(seed)[0] for seed in seeds]
        self.simulation.reset(rows, generators, self._observations)
        self.policy.forget(rows)
        self._ended[rows] = False

    def step(self) -> None:
        """Take a decision in every row, and learn from what has ended."""
        contexts = self.simulation.contexts(self.every)
        self._time_s = contexts["time_s"]
        actions = self.policy.act_batch(self._observations, contexts, self.every)
        self.simulation.step(self.every, self.simulation.checked(actions), self._observations)
        row, completed = self.simulation.completed_batch()
        if not len(row):
            return
        query = completed["query"]
        self._late[row, query] = completed["latency_s"] > completed["budget_s"]
        self._solved[row, query] = completed["solved"]
        self._ended[row, query] = True
        self.policy.learn(completed, row)

    def play(self, queries: int) -> Batch:
        """Go on until `queries` queries have been planned; return the decisions to learn from."""
        planned, decisions = 0, self.policy.decisions_made
        parts: list[list[Array]] = []
        while planned < queries:
            before = len(decisions)
            self.step()
            planned += sum(len(columns[0]) for columns in decisions[before:])
            over = self.simulation.status != DECISION
            if self.config.restarts:
                over |= self.policy.late > OVERRUN
            if over.any():
                parts.append(self._settle(over))
                self._restart(np.flatnonzero(over))
        parts.append(self._settle(np.zeros(self.rows, np.bool_)))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        row, seen, rest = columns[0], Seen(*columns[1:6]), columns[6:]
        return Batch(self.load[row], seen, *rest)

    def _settle(self, over: Array) -> list[Array]:
        """Return the decisions of queries that have ended or are late; the others wait.

        In rows `over`, which restart, the others are dropped.
        """
        columns = [np.concatenate(c) for c in zip(*self.policy.decisions_made, strict=True)]
        row, query, deadline_s = columns[:3]
        ended = self._ended[row, query]
        missed = ~ended & (self._time_s[row] > deadline_s)
        late = np.where(ended, self._late[row, query], True)
        good = ended & self._solved[row, query] & ~late
        settled, waits = ended | missed, ~ended & ~missed & ~over[row]
        self.policy.decisions_made[:] = [tuple(column[waits] for column in columns)]
        return [column[settled] for column in (row, *columns[3:], good, late)]

    def validate(self, weights: Mapping[str, Array], key: tuple[int, ...]) -> tuple[Array, Array]:
        """Return goodput and share in time (E,) of streams in steady load.

        Queries are scored that arrive after SETTLED_S, while others go on arriving. Those without
        an answer for so long are late.
        """
        self.begin(weights, key)
        scored = self.config.validation_queries
        window = Window.steady(self.simulation.state.arrival_s, scored, SETTLED_S)
        columns = window.first[:, None] + np.arange(scored)
        over = np.zeros(self.rows, np.bool_)
        while not over.all():
            for _ in range(100):
                self.step()
            ended = np.take_along_axis(self._ended, columns, 1)
            over = ended.all(axis=1) | (self._time_s >= window.until_s)
        in_time = ended & ~np.take_along_axis(self._late, columns, 1)
        good = in_time & np.take_along_axis(self._solved, columns, 1)
        return good.mean(axis=1), in_time.mean(axis=1)


TORCH: Final = Library(torch.relu, lambda arrays: torch.cat(tuple(arrays), -1), torch.where)


class Net(nn.Module):
    """The policy's weights, and its critic's.

    Args:
        worlds: of the training.
        hidden: width of the layers.
    """

    def __init__(self, worlds: Sequence[World], hidden: int) -> None:
        super().__init__()
        self.w = nn.ParameterDict({n: torch.zeros(size) for n, size in shapes(hidden).items()})
        for value in self.w.values():
            if value.ndim == 2:  # `out` is 0: at the start the score alone decides
                nn.init.orthogonal_(value, 1.0)
        self.value = nn.Sequential(
            nn.Linear(QUERY + RECIPE, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, 2)
        )
        for parameter in self.value[2].parameters():
            nn.init.zeros_(parameter)
        self._embeddings = [torch.tensor(w.spec.task_embeddings) for w in worlds]
        self._policies, self.sharpness = [w.policy for w in worlds], 1.0

    def forward(self, world: int, seen: Seen) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of recipes (n, R), and V_r and V_l (n, 2)."""
        w = cast(dict[str, Tensor], self.w)
        text = embed(w, self._embeddings[world][seen.task], TORCH)
        fixed = torch.from_numpy(self._policies[world].fixed)
        scores = scores_of(w, seen, text, fixed, TORCH)
        log_probs = (self.sharpness * scores).log_softmax(1)
        probs = log_probs.detach().exp()[:, :, None]
        mean = (probs * seen.recipe).sum(1)  # features of a recipe, expected under the policy
        chance, in_time = seen.recipe[..., :1], seen.recipe[..., 1:2]
        believed = torch.cat([(probs * chance * in_time).sum(1), 1.0 - mean[:, 1:2]], 1)
        return log_probs, believed + self.value(torch.cat([seen.query, text.detach(), mean], 1))


class Learner:
    """Network and optimiser; the seed is of first weights and minibatches."""

    def __init__(self, config: PpoLagrangianConfig, seed: int, worlds: Sequence[World]) -> None:
        self.config, self.seed, self.worlds, self.updates = config, seed, worlds, 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(seed, WEIGHTS))
            self.net = Net(worlds, config.hidden)
        self.optimizer = torch.optim.Adam(self.net.parameters(), config.lr, eps=1e-5, fused=True)
        self.average = weights_of(self.net)

    def weights(self, *, averaged: bool = False) -> dict[str, Array]:
        """Return the weights of the policy: the present ones, or averaged over updates."""
        return checkpoint.part(self.average if averaged else weights_of(self.net), "w.")

    def prepare(self) -> None:
        """Give the worlds the weights and the sharpness of the next update."""
        c = self.config
        (first, last), done = c.sharpness, self.updates / max(c.steps - 1, 1)
        self.net.sharpness = first * (last / first) ** done
        for world in self.worlds:
            world.policy.sharpness = self.net.sharpness
            world.policy.use(self.weights(), c.promise, np.float32)

    def update(self, batches: Sequence[Batch]) -> dict[str, float]:
        """Take a step of PPO for every minibatch of decisions, of one world each."""
        c, losses = self.config, []
        self.optimizer.param_groups[0]["lr"] = c.lr * (1.0 - 0.9 * self.updates / c.steps)
        rng = np.random.default_rng([self.seed, BATCHES, self.updates])
        for _ in range(c.epochs):
            minibatches: list[tuple[int, Array]] = []
            for world, batch in enumerate(batches):
                n = len(batch.action)
                splits = np.array_split(rng.permutation(n), max(n // c.minibatch, 1))
                minibatches += [(world, part) for part in splits]
            for k in rng.permutation(len(minibatches)):
                world, part = minibatches[k]
                losses.append(self._step(world, batches[world], part))
        for name, value in weights_of(self.net).items():
            self.average[name] = c.averaged * self.average[name] + (1.0 - c.averaged) * value
        self.updates += 1
        names = ("policy_loss", "value_loss", "entropy", "approx_kl", "clipped")
        means = np.mean(losses, axis=0).tolist()
        metrics = {f"losses/{name}": x for name, x in zip(names, means, strict=True)}
        return metrics | self._figures(batches)

    def _step(self, world: int, batch: Batch, part: Array) -> tuple[float, ...]:
        """Learn from some decisions (k,) of a batch; returns losses and figures."""
        c = self.config
        seen = Seen(*(torch.from_numpy(column[part]) for column in batch.seen))
        old, use, expected, lagrange, good, late = (
            torch.from_numpy(np.asarray(column[part], np.float32)) for column in batch[4:]
        )
        log_probs, value = self.net(world, seen)
        log_prob = log_probs.gather(1, torch.from_numpy(batch.action[part])[:, None])[:, 0]
        if c.cost_critic:
            error = torch.stack([good, late], 1) - value
            advantage = error[:, REWARD] - lagrange * error[:, LATE] - (use - expected)
        else:
            error = (good - lagrange * late - use)[:, None] - value[:, :1]
            advantage = error[:, REWARD]
        advantage = advantage.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        log_ratio = log_prob - old
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1.0 - c.clip, 1.0 + c.clip)
        policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
        value_loss = error.square().mean()
        entropy = -(log_probs.exp() * log_probs).sum(1).mean()
        loss = policy_loss + c.value_weight * value_loss - c.entropy_weight * entropy
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), c.max_grad_norm)
        self.optimizer.step()
        kl, share = (ratio - 1.0 - log_ratio).mean(), (ratio != clipped).float().mean()
        return tuple(float(x.detach()) for x in (policy_loss, value_loss, entropy, kl, share))

    def _figures(self, batches: Sequence[Batch]) -> dict[str, float]:
        """Return what became of the queries, and the multipliers, by load and world."""
        shown = {
            "charts/goodput": "good",
            "charts/violation_rate": "late",
            "charts/use": "use",
            "lagrange/lambda": "multiplier",
            "lagrange/mu": "price",
        }
        load = np.concatenate([batch.load for batch in batches])
        parts: dict[str, Any] = {"": slice(None)}
        parts |= {f"/load/{x:g}": load == i for i, x in enumerate(self.config.loads)}
        figures = {}
        for name, field in shown.items():
            column = np.concatenate([getattr(batch, field) for batch in batches])
            for suffix, at in parts.items():
                if column[at].size:
                    figures[name + suffix] = float(column[at].mean())
        for world, batch in zip(self.worlds, batches, strict=True):
            name = f"{world.place.pool}/{world.place.workload}"
            figures[f"charts/goodput/{name}"] = float(batch.good.mean())
        for pool in dict.fromkeys(world.place.pool for world in self.worlds):
            own = [w.policy.log_price for w in self.worlds if w.place.pool == pool]
            for gpu, mu in enumerate(np.exp(np.concatenate(own)).mean(axis=0)):
                figures[f"lagrange/gpu_mu/{pool}/{gpu}"] = float(mu)
        return figures


def train(config: PpoLagrangianConfig, run: Run) -> dict[str, Any]:
    """Train; the policy is in `run.out/best`.

    Returns:
        Queries, seconds, and the mean goodput of the best validation.

    Raises:
        ConfigError: see `Run.begin`.
    """
    saved, seed, best = run.begin(config), run.seed, -1.0
    counts = {"queries": 0, "seconds": 0.0}
    c, places = config, config.env.among(config.worlds)
    length = c.together * c.queries // (len(places) * c.rows) + 200
    worlds = [World(c, place, "train", length) for place in places]
    fastest = [max(c.validation_loads) * (place.capacity_per_min or 0.0) for place in places]
    lengths = [stream_length(rate, c.validation_queries, SETTLED_S) for rate in fastest]
    held_out = [World(c, place, "val", n) for place, n in zip(places, lengths, strict=True)]
    learner = Learner(c, seed, worlds)
    if saved is not None:
        arrays, numbers = saved
        load_state(learner.net, learner.optimizer, arrays)
        learner.average = dict(checkpoint.part(arrays, "average."))
        learner.updates, counts, best = numbers["updates"], numbers["counts"], numbers["best"]
    report = ProgressReport(c.steps, learner.updates, NAME, "updates")
    with run.tracker(int(counts["queries"])) as tracker, report:
        while learner.updates < c.steps:  # streams, and a checkpoint after them
            for i, world in enumerate(worlds):
                world.begin(learner.weights(), (seed, EPISODES, learner.updates, i))
            for _ in range(min(c.together, c.steps - learner.updates)):
                began, share = time.perf_counter(), -(-c.queries // len(worlds))
                learner.prepare()
                batches = [world.play(share) for world in worlds]
                metrics = learner.update(batches)
                counts["queries"] += sum(len(batch.action) for batch in batches)
                counts["seconds"] += time.perf_counter() - began
                metrics["charts/SPS"] = counts["queries"] / counts["seconds"]
                tracker.log(int(counts["queries"]), metrics)
                mu = [f"{v:.4f}" for key, v in metrics.items() if "gpu_mu" in key]
                report.advance(
                    1,
                    f"goodput {metrics['charts/goodput']:.3f}, late "
                    f"{metrics['charts/violation_rate']:.3f}, λ {metrics['lagrange/lambda']:.3f}, "
                    f"μ {' '.join(mu)}, {metrics['charts/SPS']:.0f} queries/s",
                )
            cells: dict[str, dict[str, float]] = {"goodput": {}, "in_time": {}}
            for i, world in enumerate(held_out):
                results = world.validate(learner.weights(averaged=True), (seed, VALIDATION, i))
                for name, shares in zip(cells, results, strict=True):
                    for k, load in enumerate(c.validation_loads):
                        cell = f"{world.place.pool}/{world.place.workload}/{load:g}"
                        cells[name][cell] = float(shares[k :: len(c.validation_loads)].mean())
            metrics = {f"validation/{k}": float(np.mean([*v.values()])) for k, v in cells.items()}
            tracker.log(int(counts["queries"]), metrics)
            if metrics["validation/goodput"] > best:
                best = metrics["validation/goodput"]
                content = {
                    "agent": NAME,
                    "hidden": c.hidden,
                    "promise": c.promise,
                    "prices": c.prices,
                    "lateness": c.lateness,
                    "training": {**run.facts, **counts, "validation": cells},
                }
                checkpoint.save(run.out / BEST, learner.weights(averaged=True), content)
            tracker.flush()
            numbers = {"updates": learner.updates, "counts": counts, "best": best}
            arrays = state_of(learner.net, learner.optimizer)
            run.save(arrays | checkpoint.prefixed(learner.average, "average."), numbers)
    return {**counts, "validation": best}
