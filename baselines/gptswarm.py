"""Training of GPTSwarm's edges: REINFORCE on one logit an edge.

    inframind train gptswarm --seed 0 --out runs/gptswarm
    inframind bench run --suite starter --policies gptswarm:runs/gptswarm/graph.json

Source: Zhuge et al. 2024, §3.2 (edge optimisation). Every edge i < j is a Bernoulli variable of
probability sigmoid(logit). An update draws some graphs, asks for the utility of each, and follows

    logits += rate · mean over graphs of (utility - baseline) / scale · (drawn - probability)

where `drawn - probability` is the gradient of a graph's log-probability, the baseline a moving
average of the utility and the scale a moving average of its spread. At the end the edges of
probability above 1/2 stay.

The utility of a graph is the share of queries that are solved where every node asks its own model
and there is no queue: GPTSwarm knows nothing of load or budgets. All graphs of one update meet the
same queries with common random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field

from agents.runs import Run
from inframind_gym.configs import Fraction, Positive, PositiveInt, StrictModel
from inframind_gym.envs.core import Bools, Floats
from inframind_gym.envs.routing import StreamVectorEnv
from inframind_gym.errors import ConfigError
from inframind_gym.files import replace_text
from inframind_gym.policies.simple import Edge, Swarm, edges_of
from inframind_gym.progress import ProgressReport
from inframind_gym.simulator.server.pool import load_pool

Utility = Callable[[tuple[Edge, ...], int], float]
Log = Callable[[int, dict[str, float]], None]

NO_HURRY_S: Final = 1e4  # a budget that no query exceeds
KEPT_ENVIRONMENTS: Final = 32  # graphs whose environments are kept for a next draw
SMALLEST_SCALE: Final = 1e-6


class SwarmWorld(StrictModel):
    """The servers and the questions that a graph is learned on."""

    pool: str = "b200-2gpu"
    workload: str = "all"
    split: Literal["train", "val", "test", "all"] = "train"


class GptSwarmConfig(StrictModel):
    """Configuration of a training, `baselines/configs/gptswarm.yaml`."""

    algorithm: Literal["gptswarm"] = "gptswarm"
    env: SwarmWorld = SwarmWorld()
    strategy: str  # prompt strategy of every call
    rate_per_min: Positive  # arrival rate, so low that there is no queue
    rows: PositiveInt  # episodes over which the utility of a graph is a mean
    queries_per_row: PositiveInt  # queries in one episode
    steps: PositiveInt  # updates of the logits
    graphs_per_step: PositiveInt  # graphs that are drawn for one update
    learning_rate: Positive  # of the logits
    baseline_decay: Fraction  # of the moving average of the utility
    start_probability: Annotated[float, Field(gt=0.0, lt=1.0)]  # of every edge at the start


class PlayedUtility:
    """The share of queries that a graph solves at idle load; the same seed, the same queries.

    Args:
        config: of the training; node k asks the pool's model k.
    """

    def __init__(self, config: GptSwarmConfig) -> None:
        self.config, self.models = config, load_pool(config.env.pool).aliases
        self._environment = lru_cache(maxsize=KEPT_ENVIRONMENTS)(self._make)

    def __call__(self, edges: tuple[Edge, ...], seed: int) -> float:
        """Share of `rows * queries_per_row` queries that are solved."""
        env, config = self._environment(edges), self.config
        spec = env.policy_spec()
        strategy = spec.strategy_index(config.strategy)
        seeds = np.random.SeedSequence(seed).generate_state(config.rows)
        env.reset(seed=[int(number) for number in seeds])
        solved = 0
        for _ in range(config.queries_per_row * len(self.models)):  # a whole episode
            nodes = env.contexts()["node"].astype(np.int64)
            env.step(spec.action(nodes, strategy))
            solved += int(env.completed()[1]["solved"].sum())
        return solved / (config.rows * config.queries_per_row)

    def _make(self, edges: tuple[Edge, ...]) -> StreamVectorEnv:
        return StreamVectorEnv(
            self.config.rows,
            **self.config.env.model_dump(),
            observation="index",
            num_queries=self.config.queries_per_row,
            arrival_rate_per_min=self.config.rate_per_min,
            budget_s=NO_HURRY_S,
            planner={"edges": [list(edge) for edge in edges], "num_agents": len(self.models)},
        )


def learn_edges(
    utility: Utility, num_nodes: int, config: GptSwarmConfig, seed: int, log: Log = lambda *_: None
) -> Floats:
    """Return the probability of every edge of N nodes, (N·(N-1)/2,) in the order of `edges_of`.

    Args:
        utility: of a graph (edges) and the seed of the update.
        num_nodes: N.
        config: of the training.
        seed: of the graphs that are drawn and of the updates.
        log: takes the number of every update and its metrics.
    """
    edges, start, decay = edges_of(num_nodes), config.start_probability, config.baseline_decay
    logits = np.full(len(edges), np.log(start / (1.0 - start)))
    rng = np.random.default_rng(seed)
    baseline = scale = 0.0
    for step in range(config.steps):
        probabilities = _sigmoid(logits)
        drawn = rng.random((config.graphs_per_step, len(edges))) < probabilities
        update_seed = int(rng.integers(2**32))
        values = np.array([utility(_chosen(edges, row), update_seed) for row in drawn])
        keep = 0.0 if step == 0 else decay
        scale = keep * scale + (1.0 - keep) * float(values.std())
        if step == 0:
            baseline = float(values.mean())
        advantages = (values - baseline) / max(scale, SMALLEST_SCALE)
        gradient = (advantages[:, None] * (drawn - probabilities)).mean(axis=0)
        logits += config.learning_rate * gradient
        baseline = decay * baseline + (1.0 - decay) * float(values.mean())
        metrics = {"charts/utility": float(values.mean()), "charts/baseline": baseline}
        log(step + 1, {**metrics, "charts/active_edges": float((logits > 0.0).sum())})
    return _sigmoid(logits)


def train(config: GptSwarmConfig, run: Run) -> dict[str, Any]:
    """Learn a graph for a pool's models; it is in `run.out/graph.json`.

    Returns:
        Updates, edges, and the probabilities of all possible edges.

    Raises:
        ConfigError: see `Run.begin`; or the pool has more models than a graph can have nodes, or
            too few.
    """
    saved = run.begin(config)
    if saved is not None:  # it has finished
        return dict(saved[1])
    utility, seed = PlayedUtility(config), run.seed
    if len(utility.models) < 2:
        raise ConfigError(
            f"pool {config.env.pool!r} has one model; a graph needs two nodes at least"
        )
    edges = edges_of(len(utility.models))
    report = ProgressReport(config.steps, 0, "gptswarm", "updates")
    with run.tracker(-1) as tracker, report:

        def log(step: int, metrics: dict[str, float]) -> None:
            tracker.log(step, metrics)
            report.advance(1, f"utility {metrics['charts/utility']:.3f}")

        probabilities = learn_edges(utility, len(utility.models), config, seed, log)
    swarm = Swarm(
        models=utility.models,
        edges=_chosen(edges, probabilities > 0.5),
        probabilities=tuple(np.round(probabilities, 4).tolist()),
        training=run.facts,
    )
    run.out.mkdir(parents=True, exist_ok=True)
    replace_text(run.out / "graph.json", swarm.model_dump_json(indent=2) + "\n")
    result = {"steps": config.steps, "edges": list(swarm.edges), "p": list(swarm.probabilities)}
    run.save({}, result)
    return result


def _chosen(edges: tuple[Edge, ...], mask: Bools) -> tuple[Edge, ...]:
    return tuple(edge for edge, on in zip(edges, mask.tolist(), strict=True) if on)


def _sigmoid(values: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-values)))
