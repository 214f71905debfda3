"""Learns GPTSwarm's edges: REINFORCE on one logit an edge.

    python -m baselines.gptswarm_training --seed 0 --out inframind_gym/policies/data/gptswarm.json

Source: Zhuge et al. 2024, §3.2 (edge optimisation). Every edge i < j is a Bernoulli variable of
probability sigmoid(logit). An update draws some graphs, asks for the utility of each, and follows

    logits += rate · mean over graphs of (utility - baseline) / scale · (drawn - probability)

where `drawn - probability` is the gradient of a graph's log-probability, the baseline a moving
average of the utility and the scale a moving average of its spread. At the end the edges of
probability above 1/2 stay.

The utility of a graph is the share of queries that are solved where every node asks its own model
and there is no queue: GPTSwarm knows nothing of load or budgets. All graphs of one update meet the
same queries and the same luck (common random numbers).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, cast

import gymnasium as gym
import numpy as np
import typer
from numpy.typing import NDArray

import inframind_gym  # noqa: F401
from baselines.hyperparameters import DEFAULT_FILE, GptSwarmSettings, load_hyperparameters
from inframind_gym.envs.routing.vector import StreamVectorEnv
from inframind_gym.errors import ConfigError, friendly
from inframind_gym.files import replace_text
from inframind_gym.policies.gptswarm import Edge, Swarm, edges_of
from inframind_gym.simulator.server.pool import load_pool

Utility = Callable[[tuple[Edge, ...], int], float]

POOL: Final = "b200-2gpu"
ENV_ID: Final = "InfraMind-Stream-v0"
NO_HURRY_S: Final = 1e4  # a budget that no query exceeds
KEPT_ENVIRONMENTS: Final = 32  # graphs whose environments are kept for a next draw
SMALLEST_SCALE: Final = 1e-6


class PlayedUtility:
    """The share of queries that a graph solves at idle load; the same seed, the same queries.

    Args:
        settings: block `gptswarm` of the hyperparameters.
        pool: name or path of the pool; node k asks its model k.
    """

    def __init__(self, settings: GptSwarmSettings, pool: str = POOL) -> None:
        self.settings = settings
        self.pool = pool
        self.models = load_pool(pool).aliases
        self._environment = lru_cache(maxsize=KEPT_ENVIRONMENTS)(self._make)

    def __call__(self, edges: tuple[Edge, ...], seed: int) -> float:
        """Share of `rows * queries_per_row` queries that are solved."""
        env = self._environment(edges)
        spec = env.policy_spec()
        strategy = spec.strategy_index(self.settings.strategy)
        seeds = np.random.SeedSequence(seed).generate_state(self.settings.rows)
        env.reset(seed=[int(number) for number in seeds])
        solved = 0
        for _ in range(self.settings.queries_per_row * len(self.models)):  # a whole episode
            nodes = env.contexts()["node"].astype(np.int64)
            env.step(spec.action(nodes, strategy))
            solved += int(env.completed()[1]["solved"].sum())
        return solved / (self.settings.rows * self.settings.queries_per_row)

    def _make(self, edges: tuple[Edge, ...]) -> StreamVectorEnv:
        env = gym.make_vec(
            ENV_ID,
            num_envs=self.settings.rows,
            pool=self.pool,
            workload=self.settings.workload,
            split=self.settings.split,
            observation="index",
            num_queries=self.settings.queries_per_row,
            arrival_rate_per_min=self.settings.rate_per_min,
            budget_s=NO_HURRY_S,
            planner={"edges": [list(edge) for edge in edges], "num_agents": len(self.models)},
        )
        return cast(StreamVectorEnv, env.unwrapped)


def learn_edges(
    utility: Utility,
    num_nodes: int,
    settings: GptSwarmSettings,
    seed: int,
    log: Callable[[dict[str, Any]], None] = lambda _: None,
) -> NDArray[np.float64]:
    """Learn the probability of every edge.

    Args:
        utility: what a graph is worth; its second argument is the seed of the update.
        num_nodes: N.
        settings: block `gptswarm` of the hyperparameters.
        seed: of the graphs that are drawn and of the updates.
        log: takes the metrics of every update.

    Returns:
        (N·(N-1)/2,) probabilities, in the order of `edges_of`.
    """
    edges = edges_of(num_nodes)
    start = settings.start_probability
    logits = np.full(len(edges), np.log(start / (1.0 - start)))
    rng = np.random.default_rng(seed)
    baseline = scale = 0.0
    for iteration in range(settings.iterations):
        probabilities = _sigmoid(logits)
        drawn = rng.random((settings.graphs_per_iteration, len(edges))) < probabilities
        update_seed = int(rng.integers(2**32))
        values = np.array([utility(_chosen(edges, row), update_seed) for row in drawn])
        keep = 0.0 if iteration == 0 else settings.baseline_decay
        scale = keep * scale + (1.0 - keep) * float(values.std())
        if iteration == 0:
            baseline = float(values.mean())
        advantages = (values - baseline) / max(scale, SMALLEST_SCALE)
        gradient = (advantages[:, None] * (drawn - probabilities)).mean(axis=0)
        logits += settings.learning_rate * gradient
        decay = settings.baseline_decay
        baseline = decay * baseline + (1.0 - decay) * float(values.mean())
        log(
            {
                "iteration": iteration,
                "charts/utility": float(values.mean()),
                "charts/baseline": baseline,
                "charts/active_edges": int((logits > 0.0).sum()),
                "probabilities": np.round(_sigmoid(logits), 4).tolist(),
            }
        )
    return _sigmoid(logits)


def train(
    seed: int,
    settings: GptSwarmSettings,
    log: Callable[[dict[str, Any]], None] = lambda _: None,
    pool: str = POOL,
) -> Swarm:
    """Learn a graph for a pool's models.

    Raises:
        ConfigError: the pool has more models than a graph can have nodes, or too few.
    """
    utility = PlayedUtility(settings, pool)
    if len(utility.models) < 2:
        raise ConfigError(f"pool {pool!r} has one model; a graph needs two nodes at least")
    probabilities = learn_edges(utility, len(utility.models), settings, seed, log)
    edges = edges_of(len(utility.models))
    return Swarm(
        models=utility.models,
        edges=_chosen(edges, probabilities > 0.5),
        probabilities=tuple(np.round(probabilities, 4).tolist()),
        training={
            "command": f"python -m baselines.gptswarm_training --seed {seed}",
            "seed": seed,
            "pool": pool,
            "hyperparameters": settings.model_dump(mode="json"),
        },
    )


def _chosen(edges: tuple[Edge, ...], mask: NDArray[np.bool_]) -> tuple[Edge, ...]:
    return tuple(edge for edge, on in zip(edges, mask.tolist(), strict=True) if on)


def _sigmoid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1.0 / (1.0 + np.exp(-values)))


def main(
    out: Annotated[Path, typer.Option(help="JSON file of the graph.")],
    seed: Annotated[int, typer.Option(help="Of the graphs that are drawn and of the queries.")] = 0,
    pool: Annotated[str, typer.Option(help="Name or path of a pool.")] = POOL,
    hyperparameters: Annotated[
        Path, typer.Option(help="YAML with a block gptswarm.")
    ] = DEFAULT_FILE,
) -> None:
    """Learn GPTSwarm's edges; metrics go to standard output as JSON Lines."""
    with friendly():
        swarm = train(
            seed,
            load_hyperparameters(hyperparameters).gptswarm,
            lambda metrics: print(json.dumps(metrics), flush=True),
            pool,
        )
        replace_text(out, swarm.model_dump_json(indent=2) + "\n")
    print(f"{out}: {len(swarm.edges)} of {len(swarm.probabilities)} edges", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
