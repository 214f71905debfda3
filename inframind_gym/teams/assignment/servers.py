"""The servers of the simulated team, with queues: a task is a request to one of eight servers."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.configs import find_config
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.jit import jit
from inframind_gym.simulator.server.engine import (
    finish_stretch,
    release_request,
    reset_cluster,
    submit,
)
from inframind_gym.simulator.server.faults import STRETCH_ENDS, next_event
from inframind_gym.simulator.server.pool import PoolConfig, load_pool
from inframind_gym.simulator.server.state import NEVER_S, Cluster, allocate, cards
from inframind_gym.teams.state import Floats, Ints

POOL: Final = "team-4gpu"  # eight models, in the order of the actions
MOST_IN_FLIGHT: Final = 2_000_000  # tasks of all environments of a batch


def agent_pool() -> PoolConfig:
    """Return the pool whose models answer the agents' calls."""
    return load_pool(find_config("teams/pools", POOL))


class AgentServers:
    """The servers of E environments with queues, those of `inframind_gym.simulator.server`.

    Continuous batching, a queue where all slots are taken, and two models on each agent's GPU that
    slow each other.

    Args:
        num_envs: E.
        num_tasks: of an episode; so many can be in flight.

    Attributes:
        slots: (8,) calls that a server runs at once.
        now_s: (E,) virtual time.

    Raises:
        ConfigError: there are too many tasks.
    """

    def __init__(self, num_envs: int, num_tasks: int) -> None:
        config = agent_pool()
        if num_envs * num_tasks > MOST_IN_FLIGHT:
            raise ConfigError(
                f"num_tasks {num_tasks} in {num_envs} environments are too many for load 'queue'; "
                f"{MOST_IN_FLIGHT // num_envs} at most"
            )
        self.slots = np.array([model.server.max_num_seqs for model in config.models])
        self.cluster: Cluster = allocate(cards(config), num_envs, num_tasks)
        self.now_s = np.zeros(num_envs)
        self._ended = np.empty((2, num_envs * num_tasks), np.int64)
        self._times_s = np.empty((2, num_envs * num_tasks))

    def start(self, rows: Ints) -> None:
        """Empty the servers of some environments, at time 0."""
        self.now_s[rows] = 0.0
        _reset(self.cluster, rows)

    def advance(
        self, rows: Ints, actions: Ints, ordinals: Ints, tokens: tuple[Ints, Ints], until_s: Floats
    ) -> tuple[Ints, Ints, Floats, Floats]:
        """Submit a call in each of `rows` and let time run, (k,) each.

        Args:
            rows: environments.
            actions: servers that take the calls.
            ordinals: of the tasks.
            tokens: of prompts and of answers.
            until_s: time up to which the servers run; infinity: until all calls have ended.

        Returns:
            Row, ordinal, latency and wait of the calls that ended, (k,) each, row by row in the
            order in which they ended.
        """
        calls = (rows, actions, ordinals, *tokens, until_s)
        count = _advance(self.cluster, self.now_s, *calls, self._ended, self._times_s)
        (row, ordinal), (latency_s, wait_s) = self._ended[:, :count], self._times_s[:, :count]
        return row.copy(), ordinal.copy(), latency_s.copy(), wait_s.copy()

    def in_flight(self, rows: Ints) -> Ints:
        """Return the calls in each server, running and waiting, (k, 8)."""
        server = self.cluster.server
        return np.asarray(server["running"][rows] + server["waiting"][rows], np.int64)

    def waiting(self, rows: Ints) -> Ints:
        """Return the calls in each server's queue, (k, 8)."""
        return self.cluster.server["waiting"][rows].astype(np.int64)


@jit
def _reset(cluster: Cluster, rows: NDArray[np.int64]) -> None:
    for i in range(rows.shape[0]):
        reset_cluster(cluster, rows[i])


@jit
def _advance(
    cluster: Cluster,
    now_s: Floats,
    rows: Ints,
    actions: Ints,
    ordinals: Ints,
    prompt_tokens: Ints,
    output_tokens: Ints,
    until_s: Floats,
    ended: Ints,
    times_s: Floats,
) -> int:
    """Carry out `AgentServers.advance`, write `ended` and `times_s`, (2, most); return how many."""
    count = 0
    for i in range(rows.shape[0]):
        e = rows[i]
        identity = submit(cluster, e, actions[i], now_s[e], 0.0, prompt_tokens[i], output_tokens[i])
        cluster.request[e, identity].query = ordinals[i]
        while True:
            kind, next_s, m = next_event(cluster, e, now_s[e], until_s[i], NEVER_S, NEVER_S)
            if next_s == NEVER_S:
                break
            now_s[e] = next_s
            if kind != STRETCH_ENDS:
                break
            for k in range(finish_stretch(cluster, e, m, next_s)):
                done = int(cluster.done[k])
                request = cluster.request[e, done]
                ended[0, count] = e
                ended[1, count] = request.query
                times_s[0, count] = next_s - request.submit_s
                times_s[1, count] = request.admitted_s - request.submit_s
                count += 1
                release_request(cluster, e, done)
    return count
