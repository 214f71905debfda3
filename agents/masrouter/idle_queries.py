"""Single queries on idle servers: where MasRouter is trained, and what its queries cost in dollars.

Every row of the batch is one query that has all servers for itself, so neither load nor budget
matters, as for a router that knows of neither.

MasRouter's cost is what an API charges for the tokens of all calls of a query. The servers here are
one's own: `usd_per_million_tokens` names a price for each model (`agents/configs/masrouter.yaml`),
the same for prompt and output tokens. The calls are recorded, so that every token is charged to the
model that read or wrote it, those of second calls and of the final call included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing.config import env_config
from inframind_gym.envs.routing.simulation import DECISION, Simulation
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.simulator.workflow.state import CONTEXT
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, MAX_NODES

MILLION: Final = 1e6
_ANY_RATE_PER_MIN: Final = 1.0  # there is one query, which arrives when it does
_ANY_BUDGET_S: Final = 1000.0


class Choices(NamedTuple):
    """What a router decides for R queries from their texts."""

    topology: NDArray[np.int64]  # (R,)
    num_agents: NDArray[np.int64]  # (R,) 1..6
    roles: NDArray[np.int64]  # (R, 6) within the domain
    models: NDArray[np.int64]  # (R, 6) of each agent


class Outcome(NamedTuple):
    """How R queries ended."""

    solved: NDArray[np.float64]  # (R,) 0 or 1
    usd: NDArray[np.float64]  # (R,)
    latency_s: NDArray[np.float64]  # (R,)


class IdleQueries:
    """R queries side by side, each alone on its servers.

    Args:
        environment: arguments of the environment: pool, workload, tasks, split, ...
        rows: R.
        usd_per_million_tokens: price of each of the pool's models, by its alias.

    Attributes:
        embeddings: (T, 384) of the tasks.

    Raises:
        ConfigError: a model has no price, or an argument is wrong.
    """

    def __init__(
        self,
        environment: Mapping[str, Any],
        rows: int,
        usd_per_million_tokens: Mapping[str, float],
    ) -> None:
        arguments = {
            **environment,
            "num_queries": 1,
            "level": "joint",
            "observation": "index",
            "record_calls": True,
        }
        self.simulation = Simulation(env_config(arguments), rows, one_query=False)
        self.models = self.simulation.pool.aliases
        self.prices = np.zeros(len(self.models))
        for m, alias in enumerate(self.models):
            if alias not in usd_per_million_tokens:
                raise ConfigError(
                    "usd_per_million_tokens: "
                    f"{unknown('model', alias, usd_per_million_tokens)} Add its price."
                )
            self.prices[m] = usd_per_million_tokens[alias]
        self.embeddings = self.simulation.tasks.embeddings
        share = self.simulation.policy_spec().strategy_share
        self._strategy_edges = share.cumsum()[:-1]
        self._num_strategies = len(share)
        self._rows = np.arange(rows)
        self._generators: list[np.random.Generator] = []
        self._observations, _ = self.simulation.buffers()
        self._contexts: NDArray[Any] = np.zeros(rows, CONTEXT)

    def begin(self, seeds: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Let a new query arrive in every row.

        Args:
            seeds: R keys; a row's query and all its luck are functions of its key.

        Returns:
            Tasks (R,), indices into `embeddings`, and their domains (R,).
        """
        rows = len(self._rows)
        self._generators = [np.random.default_rng(key) for key in seeds]
        self.simulation.start(
            self._rows,
            self._generators,
            np.full(rows, _ANY_RATE_PER_MIN),
            np.full(rows, _ANY_BUDGET_S),
            self._observations,
            self._contexts,
        )
        return self._contexts["task"].astype(np.int64), self._contexts["domain"].astype(np.int64)

    def uniforms(self, columns: int) -> NDArray[np.float64]:
        """Numbers (R, columns) in (0, 1) for the router's draws, from each row's generator."""
        return np.stack([g.random(columns) for g in self._generators])

    def finish(self, choices: Choices) -> Outcome:
        """Carry out the choices; strategies are drawn from the workload's measured mix.

        MasRouter has no prompt strategies.
        """
        simulation = self.simulation
        rows = len(self._rows)
        plan = [choices.topology[:, None], choices.num_agents[:, None] - 1, choices.roles]
        actions = np.concatenate([*plan, np.zeros((rows, 1), np.int64)], axis=1)
        actions = np.ascontiguousarray(actions, np.int64)
        strategies = np.searchsorted(self._strategy_edges, self.uniforms(MAX_NODES))
        rewards, costs = np.empty(rows), np.empty(rows)
        status = np.full(rows, DECISION)
        while (status == DECISION).any():
            status = simulation.step(actions, self._observations, self._contexts, rewards, costs)
            node = self._contexts["node"].astype(np.int64)
            agent = agent_of(node, choices.num_agents)
            model = choices.models[self._rows, agent]
            actions[:, -1] = model * self._num_strategies + strategies[self._rows, node]
        ended = simulation.state.completed[:, 0]
        return Outcome(
            ended["solved"].astype(np.float64), self._usd(), ended["latency_s"].astype(np.float64)
        )

    def _usd(self) -> NDArray[np.float64]:
        """Dollars (R,) for the tokens of every call."""
        recorded = self.simulation.state.stream["recorded_calls"]
        calls = self.simulation.state.call[:, : int(recorded.max())]
        tokens = calls["prompt_tokens"].astype(np.float64) + calls["output_tokens"]
        there = np.arange(calls.shape[1]) < recorded[:, None]
        usd: NDArray[np.float64] = (tokens * self.prices[calls["model"]] * there).sum(axis=1)
        return usd / MILLION


def agent_of(node: NDArray[np.int64], count: NDArray[np.int64]) -> NDArray[np.int64]:
    """The agent (n,) that executes a node: in Debate, node K + k is agent k's second turn."""
    return np.minimum(node % np.maximum(count, 1), MAX_AGENTS - 1)
