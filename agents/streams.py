"""Streams of queries that do not end, side by side: the training and the validation of our PPO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, cast

import gymnasium as gym
import numpy as np
from pydantic import Field

import inframind_gym  # noqa: F401
from agents.runs import Array, WorldChoice, seed_of
from inframind_gym.configs import (
    Fraction,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    StrictModel,
)
from inframind_gym.envs.layout import PolicySpec
from inframind_gym.envs.routing import StreamVectorEnv
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.play import Window, stream_length
from inframind_gym.policies import models_up
from inframind_gym.policies.bid_price import BidPriceModel, BidPricePolicy
from inframind_gym.policies.networks import draw
from inframind_gym.policies.ppo_lagrangian import (
    PLANS,
    SYSTEM_FEATURES,
    Eyes,
    Plans,
    Player,
    Seen,
)
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.state import PLAN

# Observations, contexts, what is seen, models up and uniform numbers of rows; returns actions,
# their log-probabilities, and the actions of the teacher, -1 where it has none.
Choose = Callable[[Array, Array, Seen, Array, Array], tuple[Array, Array, Array]]

ENV_ID: Final = "InfraMind-Stream-v0"
MOST_LATE: Final = 0.1  # share of late queries in rows that are imitated
SENT: Final = 2  # column of a server's load: log of 1 + own calls in flight per slot
LARGEST_PRICE: Final = 1.0  # of a call, in right answers
SETTLED_S: Final = 200.0  # before and after the queries that a validation scores
ANSWER: Final = np.dtype([("solved", "?"), ("late", "?"), ("num_agents", "i1"), ("known", "?")])


class PidConfig(StrictModel):
    """Gains of the multiplier, which is at most `most`."""

    kp: NonNegative = 1.0
    ki: NonNegative = 0.2
    kd: NonNegative = 1.0
    most: Positive = 3.0


class StreamWorld(StrictModel):
    """A pool and a workload whose streams a policy is trained in."""

    pool: str = "b200-2gpu"
    workload: str = "all"
    capacity_per_min: Positive | None = None  # load 1; None: that of the informed bound


class PpoLagrangianConfig(StrictModel):
    """Configuration of a training, `agents/configs/ppo_lagrangian.yaml`."""

    algorithm: Literal["ppo_lagrangian"] = "ppo_lagrangian"
    env: WorldChoice = WorldChoice()  # of all worlds; a pool or a workload chooses among them
    worlds: tuple[StreamWorld, ...] = ()  # that are played side by side
    # arrival rates of the rows, in turn, as shares of capacity; each is moved by up to a sixth
    loads: Annotated[tuple[Positive, ...], Field(min_length=1)]
    rows: PositiveInt = 96  # streams of a world, side by side
    decisions: PositiveInt = 144_000  # of all rows in an update
    together: PositiveInt = 24  # updates in a stream, after which there is a checkpoint
    steps: PositiveInt = 48  # updates
    cloning: NonNegativeInt = 40  # the first of them, which imitate `bid_price`
    alone: NonNegativeInt = 24  # the first of these, in which the teacher plays all of the rows
    teacher: str | None = None  # folder of its checkpoint, whose prices PPO pays; null: shipped
    hidden: PositiveInt = 64  # width of the layers
    epochs: PositiveInt = 1  # passes over the decisions of an update
    minibatch: PositiveInt = 2048  # decisions of a step
    cloning_lr: Positive = 2e-3  # of Adam; falls to a tenth in equal steps, as does the next one
    lr: Positive = 1e-4  # after that
    sharpen: Positive = 2.0  # factor on the logits after the imitation
    clip: Positive = 0.2
    value_weight: NonNegative = 0.5
    # weight of the entropy at the start; falls to a hundredth in equal ratios
    entropy_weight: Positive = 5e-4
    max_grad_norm: Positive = 0.5
    promise: Fraction = 0.0  # share of queries that are to be on time; 0: none is promised
    pid: PidConfig = PidConfig()
    congestion: NonNegative = 0.5  # share of its price that a call pays; 0: nobody pays for others
    kept: Fraction = 0.8  # of the averaged weights, from update to update
    validation_rows: PositiveInt = 12  # streams of a world
    validation_loads: Annotated[tuple[Positive, ...], Field(min_length=1)] = (0.3, 0.6, 0.9, 1.1)
    validation_queries: PositiveInt = 600  # of each, that are scored


class Batch(NamedTuple):
    """Decisions of queries that have been answered, in the order of time within a row."""

    row: Array  # (n,)
    query: Array  # (n,)
    node: Array  # (n,) -1: a plan
    domain: Array  # (n,)
    seen: Seen
    up: Array  # (n, M) models that could be chosen
    action: Array  # (n,) route or plan
    log_prob: Array  # (n,)
    label: Array  # (n,) the teacher's action; -1: none
    price: Array  # (n,) what a call costs others; 0 for plans
    answer: Array  # (n,) ANSWER, of the query


def worth(answer: Array, multiplier: float) -> Array:
    """Return r_q of answers, an array like theirs."""
    good = answer["solved"] & ~answer["late"]
    return np.asarray(good - multiplier * answer["late"], np.float64)


def imitated(batch: Batch) -> Array:
    """Return the decisions (k,) with a label, not of rows in which the teacher is overrun."""
    of_teacher = batch.action == batch.label
    count = np.bincount(batch.row).clip(1)
    late, own = (np.bincount(batch.row, x) / count for x in (batch.answer["late"], of_teacher))
    is_overrun = (late > MOST_LATE) & (own == 1.0)
    return np.flatnonzero((batch.label >= 0) & ~is_overrun[batch.row])


class CallPrices:
    """The congestion critic: what a call costs others, by the prices of `bid_price`.

    A second of a slot costs what it would be worth to the queries that arrive at that rate: the
    dual price of the server in a linear program. A server with free slots is cheaper. A queue makes
    none dearer than a full one: who waits has time, and `bid_price` pays more for a queue only to
    come back to its plan.

    Args:
        model: of `bid_price`.
        spec: the facts of the run.

    Attributes:
        seconds: (D, M, S) for which a call holds a slot, over recipes that have such calls.
    """

    def __init__(self, model: BidPriceModel, spec: PolicySpec) -> None:
        self._log_rates, self._spec = np.log(model.rates_per_min), spec
        base, load = (
            x.reshape(len(self._log_rates), -1) for x in (model.prices.base, model.prices.load)
        )
        self._by_rate = np.stack(np.broadcast_arrays(base, load), axis=2)  # (K, M, 2)
        own = np.arange(spec.num_models)
        calls = (model.recipes.models[:, :, None] == own).sum(axis=1)  # (R, M)
        each = model.known.work_s / calls.clip(1)  # (D, R, M)
        usual = spec.expected_call_s[:, None]
        self.seconds = np.tile(usual, (len(each), 1, spec.num_strategies))
        for m in own:
            for s in range(spec.num_strategies):
                has = (calls[:, m] > 0) & (model.recipes.strategy == s)
                if has.any():
                    self.seconds[:, m, s] = each[:, has, m].mean(axis=1)

    def of(self, rate_per_min: Array, sent: Array, domain: Array, action: Array) -> Array:
        """Return (n,) prices of routes, in right answers.

        Args:
            rate_per_min: (n,) of arrivals.
            sent: (n, M) calls in flight per slot.
            domain: (n,) of the questions.
            action: (n,) routes.
        """
        model, strategy = self._spec.model_of(action), self._spec.strategy_of(action)
        last = len(self._log_rates) - 1
        place = np.interp(np.log(rate_per_min), self._log_rates, np.arange(last + 1))
        below = place.astype(np.int64)
        part, above = (place - below)[:, None], np.minimum(below + 1, last)
        table = self._by_rate
        base, load = ((1.0 - part) * table[below, model] + part * table[above, model]).T
        fill = np.minimum(sent[np.arange(len(action)), model], 1.0)
        cost = np.exp(base + load * fill) * self.seconds[domain, model, strategy]
        return np.asarray(cost.clip(max=LARGEST_PRICE), np.float64)


class World:
    """Rows of the closed loop in one pool and workload, on the tasks of a split.

    Args:
        config: of the training.
        place: pool and workload.
        split: of the tasks.
        rows: E.
        queries: N of a stream; no stream is played to its end.
        loads: of the rows, in turn.
    """

    def __init__(
        self,
        config: PpoLagrangianConfig,
        place: StreamWorld,
        split: str,
        rows: int,
        queries: int,
        loads: Sequence[float],
    ) -> None:
        of_place = {"pool": place.pool, "workload": place.workload, "num_queries": queries}
        arguments: dict[str, Any] = config.env.arguments(split) | of_place
        arguments |= {"system_features": SYSTEM_FEATURES, "level": "joint"}
        made = gym.make_vec(ENV_ID, num_envs=rows, observation="index", **arguments)
        self.env, self.rows, self.queries = cast(StreamVectorEnv, made.unwrapped), rows, queries
        self.place, self.spec = place, self.env.policy_spec()
        self.plans, self._every = Plans(self.spec), np.arange(rows)
        self.rates_per_min = np.resize(np.array(loads), rows) * (place.capacity_per_min or 0.0)
        self.num_loads, self.prices = len(loads), cast(CallPrices | None, None)

    def begin(self, key: tuple[int, ...], *, moved: bool) -> None:
        """Start a stream in every row; its luck is a function of the key.

        Args:
            key: of the luck.
            moved: whether arrival rates differ a little from the loads.
        """
        seeds = [seed_of(*key, row) for row in range(self.rows)]
        self._rates = self.rates_per_min.copy()
        if moved:
            self._rates *= np.random.default_rng(key).uniform(0.84, 1.16, self.rows)
        options = {"arrival_rate_per_min": self._rates}
        self._observations, _ = self.env.reset(seed=seeds, options=options)
        self._eyes = Eyes(self.spec, self.rows)
        self.answers = np.zeros((self.rows, self.queries), ANSWER)
        self._read = np.zeros(self.rows, np.int64)  # records of the stream that were read
        self.follows = np.zeros((self.rows, self.queries), np.bool_)  # plans like the teacher's
        self._waiting: list[Array] = []

    def step(self, uniforms: Array, choose: Choose) -> tuple[Array, ...]:
        """Take one decision in every row; returns the first columns of a batch."""
        contexts = self.env.contexts()
        seen = self._eyes.see(self._observations, contexts, self._every)
        up, is_plan = models_up(contexts, self.spec.num_models), contexts["kind"] == PLAN
        self.time_s = contexts["time_s"]
        action, log_prob, label = choose(self._observations, contexts, seen, up, uniforms)
        numbers = np.zeros((self.rows, PLAN_ACTIONS + 1), np.int64)
        numbers[is_plan, :-1] = self.plans.actions(action[is_plan], contexts[is_plan])
        numbers[~is_plan, -1] = action[~is_plan]
        self._observations = self.env.step(numbers)[0]
        node = np.where(is_plan, -1, contexts["node"])
        facts = self._every, contexts["query"], node, contexts["domain"]
        return *facts, *seen, up, action, log_prob, label

    def play(self, choose: Choose, key: tuple[int, ...], steps: int) -> Batch:
        """Go on by some steps; returns the decisions that can be learned from.

        Args:
            choose: makes the decisions.
            key: of its luck.
            steps: how many decisions of a row.
        """
        luck = np.random.default_rng(key).random((steps, self.rows))
        played = [self.step(uniforms, choose) for uniforms in luck]
        columns = [np.concatenate(column) for column in zip(*played, strict=True)]
        if self._waiting:
            columns = [np.concatenate(c) for c in zip(self._waiting, columns, strict=True)]
        self.read()
        answer = self.answers[columns[0], columns[1]]
        is_due = answer["known"]
        self._waiting = [column[~is_due] for column in columns]
        row, query, node, domain, *seen, up, action, log_prob, label = (c[is_due] for c in columns)
        price = np.zeros(len(row))
        if self.prices:
            at = np.flatnonzero(node >= 0)
            sent = np.expm1(seen[3][at, :, SENT])
            price[at] = self.prices.of(self._rates[row[at]], sent, domain[at], action[at])
        facts = row, query, node, domain, Seen(*seen), up, action, log_prob, label, price
        return Batch(*facts, answer[is_due])

    def read(self) -> None:
        """Note the queries that have been answered since the last call."""
        state = self.env.simulation.state
        for row, last in enumerate(state.stream["finished"].tolist()):
            new = state.completed[row, self._read[row] : last]
            late = new["latency_s"] > new["budget_s"]
            answers = self.answers[row]
            at = new["query"]
            answers["late"][at] = late
            answers["solved"][at] = new["solved"]
            answers["num_agents"][at] = new["num_agents"]
            answers["known"][at] = True
            self._read[row] = last

    def validate(self, choose: Choose, key: tuple[int, ...], scored: int) -> Array:
        """Return (E,) goodput of streams in steady load.

        Queries are scored that arrive after SETTLED_S, while others go on arriving. Those without
        an answer for so long are not solved.
        """
        self.begin(key, moved=False)
        arrival_s = self.env.simulation.state.arrival_s
        window = Window.steady(arrival_s, scored, SETTLED_S)
        columns, over = window.first[:, None] + np.arange(scored), np.zeros(self.rows, np.bool_)
        while not over.all():
            for _ in range(100):
                self.step(np.zeros(self.rows), choose)
            self.read()
            of = np.take_along_axis(self.answers, columns, 1)
            over = of["known"].all(axis=1) | (self.time_s >= window.until_s)
        return np.asarray(worth(of, 0.0).mean(axis=1))


def places_of(config: PpoLagrangianConfig) -> list[StreamWorld]:
    """Return the pools and workloads of a training, each with its capacity.

    A pool or a workload of `env` chooses among those of the configuration, or is a world of its
    own, whose capacity takes up to two minutes of one core.
    """
    named = {
        k: getattr(config.env, k) for k in ("pool", "workload") if k in config.env.model_fields_set
    }
    own = StreamWorld(pool=config.env.pool, workload=config.env.workload)
    places = []
    for place in [w for w in config.worlds if named.items() <= w.model_dump().items()] or [own]:
        capacity = place.capacity_per_min
        if capacity is None:
            from inframind_gym.evaluation.bounds import SteadyBounds
            from inframind_gym.evaluation.scenarios import Scenario

            scenario = Scenario(workload=place.workload, pool=place.pool)
            capacity = SteadyBounds().of(scenario).capacity_per_min()
        places.append(place.model_copy(update={"capacity_per_min": capacity}))
    return places


def steps_of(config: PpoLagrangianConfig, worlds: int) -> int:
    """Return the decisions of a row in an update."""
    return max(config.decisions // (config.rows * worlds), 1)


def training_worlds(config: PpoLagrangianConfig) -> list[World]:
    """Return the worlds that are played in training.

    Raises:
        ConfigError: their numbers of models differ.
    """
    places = places_of(config)
    queries = config.together * steps_of(config, len(places)) // 2 + 1  # two decisions at least
    made = [World(config, place, "train", config.rows, queries, config.loads) for place in places]
    sizes = {w.place.pool: w.spec.num_models for w in made}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{pool} has {size}" for pool, size in sizes.items())
        raise ConfigError(f"worlds: pools need the same number of models; {listed}.")
    return made


def validation_worlds(config: PpoLagrangianConfig, worlds: Sequence[World]) -> list[World]:
    """Return the worlds of the validation, on held-out tasks."""
    made, loads, scored = [], config.validation_loads, config.validation_queries
    for place in (world.place for world in worlds):
        fastest = max(loads) * (place.capacity_per_min or 0.0)
        queries = stream_length(fastest, scored, SETTLED_S)
        made.append(World(config, place, "val", config.validation_rows, queries, loads))
    return made


def play_worlds(
    worlds: Sequence[World], choosers: Sequence[Choose], key: tuple[int, ...], steps: int
) -> Batch:
    """Go on in every world; returns rows and tasks numbered one world after the other."""
    batches, tasks, rows = [], 0, 0
    for i, (world, choose) in enumerate(zip(worlds, choosers, strict=True)):
        batch = world.play(choose, (*key, i), steps)
        seen = batch.seen._replace(task=batch.seen.task + tasks)
        batches.append(batch._replace(row=batch.row + rows, seen=seen))
        tasks, rows = tasks + len(world.spec.task_embeddings), rows + world.rows
    parts = (np.concatenate(part) for part in zip(*(b.seen for b in batches), strict=True))
    columns = {
        name: np.concatenate([getattr(b, name) for b in batches])
        for name in Batch._fields
        if name != "seen"
    }
    return Batch(seen=Seen(*parts), **columns)


def by_network(weights: Mapping[str, Array], world: World, *, sample: bool) -> Choose:
    """Return the chooser that draws a network's actions, or takes the likeliest."""
    player = Player(weights, world.spec, np.float32)

    def choose(
        _: Array, contexts: Array, seen: Seen, up: Array, uniforms: Array
    ) -> tuple[Array, Array, Array]:
        is_plan = contexts["kind"] == PLAN
        action, log_prob = np.zeros(len(up), np.int64), np.zeros(len(up), np.float32)
        for due, own in zip((~is_plan, is_plan), player.log_probs(seen, up, is_plan), strict=True):
            chosen = draw(own, uniforms[due]) if sample else own.argmax(axis=1)
            action[due], log_prob[due] = chosen, own[np.arange(len(own)), chosen]
        return action, log_prob, np.full(len(up), -1)

    return choose


def teacher_of(world: World, folder: str | None) -> BidPricePolicy:
    """Return `bid_price`, ready to play a world, which from now on has its prices.

    Args:
        world: what it is to play.
        folder: of its checkpoint; None: the shipped one.

    Raises:
        ConfigError: it has no prices for this pool.
    """
    try:
        teacher = BidPricePolicy(folder)
        teacher.reset(world.spec, [0] * world.rows)
    except ConfigError as error:
        raise ConfigError(f"{error} It is imitated, and calls pay its prices.") from None
    world.prices = CallPrices(teacher.model, world.spec)
    return teacher


def by_teacher(teacher: BidPricePolicy, world: World, network: Choose | None = None) -> Choose:
    """Return the chooser that is imitated: the recipes of `bid_price`.

    Args:
        teacher: of `teacher_of`.
        world: that it plays.
        network: plays half of the rows instead, and the teacher says what it would do there
            (DAgger: Ross, Gordon, Bagnell, AISTATS 2011). A teacher alone never shows the way out
            of queues that it never has.
    """
    every, agents = np.arange(world.rows), PLANS[2]
    own = every // world.num_loads % 2 == 1

    def choose(
        observations: Array, contexts: Array, seen: Seen, up: Array, uniforms: Array
    ) -> tuple[Array, Array, Array]:
        is_plan, query = contexts["kind"] == PLAN, contexts["query"]
        routes = teacher.act_batch(observations, contexts, every)[:, -1]
        table, recipe = teacher.recipes, teacher.assigned[every, query]
        plan = table.topology[recipe], table.num_agents[recipe] - 1, table.roles[recipe]
        action = label = np.where(is_plan, np.ravel_multi_index(plan, PLANS), routes)
        if network:
            action = np.where(own, network(observations, contexts, seen, up, uniforms)[0], label)
        same = action // agents == label // agents  # topology and number of agents
        world.follows[every[is_plan], query[is_plan]] = same[is_plan]
        has_label = is_plan | world.follows[every, query]
        return action, np.zeros(len(every), np.float32), np.where(has_label, label, -1)

    return choose
