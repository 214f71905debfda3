"""Mixture of Agents: every model proposes once, the strongest one aggregates.

Source: the MoA baseline of the published comparison (all five models propose in parallel,
DeepSeek-R1-Distill-Qwen-32B aggregates). Here it is a fixed plan, topology IO with one agent per
model. The workflow's final call goes to its most used model, ties to the one used first; so the
aggregator proposes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError
from inframind_gym.policies import PolicySpec
from inframind_gym.policies.draws import named
from inframind_gym.policies.heuristic import Asked, Heuristic
from inframind_gym.policies.oblivious import first_up
from inframind_gym.simulator.workflow.topology import MAX_AGENTS

PUBLISHED_AGGREGATOR: Final = "deepseek-32b"


class MixtureOfAgentsPolicy(Heuristic):
    """Proposer k asks model k, the aggregator being model 0 and the others in the pool's order.

    While a model is down, its proposal comes from the next in that order.

    Args:
        aggregator: alias of the model that also makes the final call; if None, deepseek-32b where
            the pool has it, else the strongest model of the pool.
        strategy: name of a strategy, or "mix" for the measured mix of the workload.
        num_agents: proposers, 1 to 6; the pool's number of models.
    """

    def __init__(
        self, aggregator: str | None = None, strategy: str = "Concise", num_agents: int = 5
    ) -> None:
        super().__init__(strategy)
        self.aggregator = aggregator
        arguments = [strategy] if aggregator is None else [strategy, aggregator]
        self.name = "moa" if arguments == ["Concise"] else named("moa", *arguments)
        if not 1 <= num_agents <= MAX_AGENTS:
            raise ConfigError(f"num_agents is {num_agents}; it must be between 1 and {MAX_AGENTS}")
        self.requires = {"planner": {"topology": "IO", "num_agents": num_agents}}
        self._order: NDArray[np.int64] = np.zeros(0, np.int64)  # (M,) aggregator first

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Order the pool's models, the aggregator first.

        Raises:
            ConfigError: the pool has no such aggregator, or there is no such strategy.
        """
        super().reset(spec, seeds)
        if self.aggregator is not None:
            first = spec.model_index(self.aggregator)
        elif PUBLISHED_AGGREGATOR in spec.models:
            first = spec.model_index(PUBLISHED_AGGREGATOR)
        else:
            first = int(spec.ability.argmax())
        others = [model for model in range(spec.num_models) if model != first]
        self._order = np.array([first, *others], np.int64)

    def choose_models(self, asked: Asked) -> NDArray[np.int64]:
        """Model number `node` of the order, or the next that is up."""
        turn = asked.contexts["node"].astype(np.int64) % self.spec.num_models
        return self._order[first_up(turn, asked.up[:, self._order])]
