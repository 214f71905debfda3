"""Episodes played live and simulated: the same arrivals, plans and decisions for the same seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing.backend_simulation import BackendSimulation, open_surrogate
from inframind_gym.envs.routing.simulation import DECISION
from inframind_gym.errors import InfraMindError
from inframind_gym.live.config import LiveConfig
from inframind_gym.live.simulation import LiveSimulation
from inframind_gym.simulator.rng import STREAM_POLICY, uniform_array
from inframind_gym.simulator.server.pool import PoolConfig
from inframind_gym.simulator.workflow.backend import Call
from inframind_gym.simulator.workflow.topology import MAX_NODES

MOST_FAILED: Final = 0.05  # share of a live episode's calls


@dataclass(frozen=True)
class Episode:
    """Calls and queries of one episode.

    Attributes:
        rate_per_min: Arrival rate.
        seed: Of arrivals, tasks, plans, budgets and decisions.
        calls: (c,) CALL of the calls that were answered, in order of submission.
        completed: (q,) COMPLETED, in order of arrival.
        failed: Calls without an answer, of which some were sent again.
    """

    rate_per_min: float
    seed: int
    calls: NDArray[Any]
    completed: NDArray[Any]
    failed: int

    @property
    def e2e_s(self) -> NDArray[np.float64]:
        """Latency (c,) of the calls."""
        return np.asarray(self.calls["finish_s"] - self.calls["submit_s"])

    @property
    def ttft_s(self) -> NDArray[np.float64]:
        """Time (c,) to the calls' first tokens; NaN where the server does not stream."""
        return np.asarray(self.calls["first_token_s"] - self.calls["submit_s"])


def play_live(simulation: LiveSimulation, rate_per_min: float, seed: int) -> Episode:
    """Play an episode on live servers.

    Args:
        simulation: At level "executor", recording its calls.
        rate_per_min: Arrival rate.
        seed: Of the episode.

    Raises:
        InfraMindError: No server answers, or too many calls fail.
    """
    episode = play(simulation, rate_per_min, seed)
    sent = len(episode.calls) + episode.failed
    if episode.failed > MOST_FAILED * sent:
        raise InfraMindError(
            f"{episode.failed} of {sent} calls failed at {rate_per_min:g} queries a minute: too "
            "many to fit or compare anything. Look at the servers' logs (inframind pool logs), or "
            "lower the rates"
        )
    return episode


def play_simulated(config: LiveConfig, pool: PoolConfig, live: Episode) -> Episode:
    """Play the same episode on simulated servers, every call as long as it was live.

    Args:
        config: As of the live episode.
        pool: Server cards of the simulated servers.
        live: The episode.
    """
    lengths: dict[tuple[int, int, int], tuple[int, int]] = {
        (int(c["query"]), int(c["node"]), int(c["phase"])): (
            max(int(c["prompt_tokens"]), 1),
            max(int(c["output_tokens"]), 1),
        )
        for c in live.calls
    }

    def length_of(call: Call) -> tuple[int, int]:
        planned = (call.prompt_tokens, call.max_tokens)  # of a call that failed for good
        return lengths.get((call.query, call.node, call.phase), planned)

    open_backend = partial(open_surrogate, pool=pool, lengths=length_of)
    simulation = BackendSimulation(config, open_backend, one_query=False)
    try:
        return play(simulation, live.rate_per_min, live.seed)
    finally:
        simulation.close()


def play(simulation: BackendSimulation, rate_per_min: float, seed: int) -> Episode:
    """Play an episode whose routes are drawn from the seed."""
    observations, contexts = simulation.buffers()
    rewards, costs = np.zeros(1), np.zeros(1)
    routes = _routes(seed, simulation.num_queries, simulation.num_routes)
    simulation.start(
        np.zeros(1, np.int64),
        [np.random.default_rng(seed)],
        np.array([rate_per_min]),
        np.array([np.nan]),
        observations,
        contexts,
    )
    completed = []
    action = np.zeros((1, 1), np.int64)
    while simulation.status[0] == DECISION:
        action[0, 0] = routes[contexts[0]["query"], contexts[0]["node"]]
        simulation.step(action, observations, contexts, rewards, costs)
        completed.append(simulation.completed(0))
    records = np.concatenate(completed)
    calls = simulation.calls(0)
    answered = calls[calls["failed"] == 0]
    return Episode(
        rate_per_min,
        seed,
        answered[np.argsort(answered["submit_s"], kind="stable")],
        records[np.argsort(records["query"])],
        len(calls) - len(answered),
    )


def _routes(seed: int, queries: int, routes: int) -> NDArray[np.int64]:
    """Draw routes (queries, nodes) at random, whatever the servers do."""
    query, node = np.meshgrid(np.arange(queries), np.arange(MAX_NODES), indexing="ij")
    seeds = np.full(query.size, seed, np.uint64)
    draws = uniform_array(seeds, STREAM_POLICY, query.ravel(), node.ravel())
    return np.minimum((draws * routes).astype(np.int64), routes - 1).reshape(query.shape)
