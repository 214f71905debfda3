"""GPTSwarm: a fixed graph of five nodes, one a model, whose edges were learned.

Source: Zhuge et al., "GPTSwarm: Language Agents as Optimizable Graphs" (ICML 2024), as the
published comparison has it: five nodes, one for each model, of the ten edges i < j those that
REINFORCE has switched on (`baselines.gptswarm_training`). Every query runs through the same graph;
neither load nor budget plays a part. The nodes stand in the pool's order. Every model is used
once, so the workflow's final call goes to the model of node 0.

The edges are a JSON file, `{"models": [...], "edges": [[0, 1], ...], ...}`; the one that is shipped
was made by `python -m baselines.gptswarm_training --seed 0`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from inframind_gym.configs import StrictModel, validate
from inframind_gym.errors import ConfigError
from inframind_gym.files import read_json
from inframind_gym.policies import PolicySpec
from inframind_gym.policies.draws import named
from inframind_gym.policies.heuristic import Asked, Heuristic
from inframind_gym.policies.oblivious import first_up
from inframind_gym.simulator.workflow.topology import MAX_AGENTS

SHIPPED: Final = Path(__file__).parent / "data" / "gptswarm.json"
STRATEGY: Final = "Concise"  # with which the shipped edges were learned

Edge = tuple[int, int]
Node = Annotated[int, Field(ge=0, lt=MAX_AGENTS)]


class Swarm(StrictModel):
    """A trained graph.

    Attributes:
        models: alias of the model of each node; the first also makes the final call.
        edges: pairs [i, j], i < j: node j reads the answer of node i.
        probabilities: learned probability of every possible edge, in the order of `edges_of`.
        training: how it was made.
    """

    models: tuple[str, ...] = Field(min_length=1, max_length=MAX_AGENTS)
    edges: tuple[tuple[Node, Node], ...]
    probabilities: tuple[float, ...] = ()
    training: dict[str, Any] = Field(default_factory=dict)


def edges_of(num_nodes: int) -> tuple[Edge, ...]:
    """All possible edges (i, j), i < j: ten for five nodes."""
    return tuple(combinations(range(num_nodes), 2))


def load_swarm(path: Path) -> Swarm:
    """Read a trained graph.

    Raises:
        ConfigError: the file cannot be read or is no such graph; names it and the key.
    """
    if not path.is_file():
        raise ConfigError(
            f"{path}: cannot be read (no such file); train a graph with "
            f"`python -m baselines.gptswarm_training --out {path}`"
        )
    swarm = validate(read_json(path), Swarm, source=str(path))
    for edge in swarm.edges:
        if edge not in edges_of(len(swarm.models)):
            raise ConfigError(
                f"{path}: edges: {list(edge)} must go from a node to a later one of the "
                f"{len(swarm.models)}"
            )
    return swarm


class GPTSwarmPolicy(Heuristic):
    """Node k of the trained graph asks its model; while that is down, the next one that is up.

    Args:
        edges: JSON file of a trained graph; the shipped one if None.
        strategy: name of a strategy, or "mix" for the measured mix of the workload;
            "Concise" if None.

    Raises:
        ConfigError: the file is no trained graph.
    """

    def __init__(self, edges: str | None = None, strategy: str | None = None) -> None:
        super().__init__(strategy or STRATEGY)
        arguments = [argument for argument in (edges, strategy) if argument is not None]
        self.name = named("gptswarm", *arguments)
        self.swarm = load_swarm(SHIPPED if edges is None else Path(edges))
        self.requires = {
            "planner": {
                "edges": [list(edge) for edge in self.swarm.edges],
                "num_agents": len(self.swarm.models),
            }
        }
        self.fingerprint = f"{self.strategy} {self.swarm.models} {self.swarm.edges}"
        self._order: NDArray[np.int64] = np.zeros(0, np.int64)  # (nodes,) model of each node

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Find the nodes' models in the pool.

        Raises:
            ConfigError: the pool lacks one, or there is no such strategy.
        """
        super().reset(spec, seeds)
        self._order = np.array([spec.model_index(model) for model in self.swarm.models], np.int64)

    def choose_models(self, asked: Asked) -> NDArray[np.int64]:
        """The model of the node, or the next in the pool's order that is up."""
        nodes = asked.contexts["node"].astype(np.int64) % len(self._order)
        return first_up(self._order[nodes], asked.up)
