"""MasRouter (ACL 2025): plan and models from the query's text alone, whatever the load or budget.

Collaboration mode, roles and the model of every agent are drawn; the agent count is the most likely
one. MasRouter has no prompt strategies: one is drawn for every call from the workload's measured
mix. Checkpoints come from `agents/masrouter.py`; they are played with NumPy alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from inframind_gym.configs import validate
from inframind_gym.envs.routing.layout import EMBED_DIM
from inframind_gym.errors import ConfigError, shortened
from inframind_gym.policies import BasePolicy, Contexts, PolicySpec, checkpoint, models_up
from inframind_gym.policies.draws import draw_from
from inframind_gym.policies.planner_network import (
    PLAN_DRAWS,
    Candidates,
    Floats,
    Indices,
    NumpyPlanner,
    softmax,
    subset,
)
from inframind_gym.simulator.rng import STREAM_POLICY, uniform_array
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.state import PLAN
from inframind_gym.simulator.workflow.topology import MAX_AGENTS

DEFAULT_CHECKPOINT: Final = checkpoint.SHIPPED / "masrouter"
DRAW_MODEL: Final = PLAN_DRAWS  # uses of a query's numbers: 0..7 the plan, 8..13 the models,
DRAW_STRATEGY: Final = PLAN_DRAWS + MAX_AGENTS  # 14.. the strategies of its nodes
TRAIN: Final = "Train one with `python -m agents.train --config masrouter`"


class _Facts(BaseModel):
    """Keys of `config.json` that are read."""

    algorithm: str = ""
    models: tuple[str, ...] = ()


class TextRouter(BasePolicy):
    """Draw a plan for every query, and a model and a strategy for each of its calls.

    What is drawn for a query is a function of the row's seed and its place in the episode. A
    model that is down is never drawn.

    Args:
        tensors: weights of a MasRouter.
        models: aliases, in the order of its outputs.
        draw_count: draw the agent count too, as in training; otherwise it is the likeliest.
    """

    requires: Mapping[str, Any] = MappingProxyType({"level": "joint"})
    carries_out_any_plan = False

    def __init__(
        self, tensors: checkpoint.Tensors, models: Sequence[str], *, draw_count: bool = False
    ) -> None:
        self.planner = NumpyPlanner(checkpoint.part(tensors, "planner."))
        self.routers = Candidates(subset(tensors, "llm_router."))
        self.models, self.draw_count = tuple(models), draw_count

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Prepare for `len(seeds)` rows.

        Raises:
            ConfigError: the pool has a model that the router was not trained for, or the
                environment does not leave plans to it.
        """
        super().reset(spec, seeds)
        if spec.level != "joint":
            raise ConfigError(
                f"policy {self.name!r} plans and routes; make the environment with level='joint'"
            )
        strange = [model for model in spec.models if model not in self.models]
        if strange:
            raise ConfigError(
                f"{self.name}: was trained for {', '.join(self.models)}, the pool also has "
                f"{', '.join(strange)}. {TRAIN}."
            )
        self._order = [self.models.index(model) for model in spec.models]
        self._probabilities = np.zeros((len(seeds), 0, spec.num_models))  # by row and query

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the plans or routes of `rows`, (n, 9); see `Policy.act_batch`."""
        actions = np.zeros((len(rows), PLAN_ACTIONS + 1), np.int64)
        plans = contexts["kind"] == PLAN
        if plans.any():
            actions[plans, :PLAN_ACTIONS] = self._plan(contexts[plans], rows[plans])
        if not plans.all():
            actions[~plans, PLAN_ACTIONS] = self._route(contexts[~plans], rows[~plans])
        return actions

    def _plan(self, contexts: Contexts, rows: NDArray[np.int64]) -> Indices:
        """Return plans (n, 8) and keep the probabilities that the models are drawn with."""
        query = contexts["query"].astype(np.int64)
        latent = self.planner.encode(self.spec.task_embeddings[contexts["task"]])
        domain = contexts["domain"].astype(np.int64)
        uniforms = np.stack([self._uniform(rows, query, use) for use in range(PLAN_DRAWS)], axis=-1)
        plan = self.planner.plan(latent, domain, uniforms, draw_count=self.draw_count)
        of_models = self.probabilities(latent, domain, *plan)
        known, needed = self._probabilities.shape[1], int(query.max()) + 1
        if needed > known:
            more = max(needed - known, known)
            self._probabilities = np.pad(self._probabilities, ((0, 0), (0, more), (0, 0)))
        self._probabilities[rows, query] = of_models[:, self._order]
        topology, count, roles = plan
        return np.column_stack([topology, count - 1, roles])

    def probabilities(
        self, latent: Floats, domain: Indices, topology: Indices, count: Indices, roles: Indices
    ) -> Floats:
        """Return probabilities (B, M) of the models, the same for every agent of a query."""
        mode = self.planner.modes.latents[topology]
        mean_role = self.planner.mean_role(domain, count, roles)
        return softmax(self.routers.scores(self.routers.context(latent, mode, mean_role)))

    def _route(self, contexts: Contexts, rows: NDArray[np.int64]) -> Indices:
        """Return routes (n,): an agent's model is the same in all of its turns."""
        query, node = contexts["query"].astype(np.int64), contexts["node"].astype(np.int64)
        agent = agent_of(node, contexts["num_agents"].astype(np.int64))
        up = models_up(contexts, self.spec.num_models)
        of_models = self._probabilities[rows, query] * up
        model = draw_from(of_models, self._uniform(rows, query, DRAW_MODEL + agent))
        share = np.broadcast_to(self.spec.strategy_share, (len(rows), self.spec.num_strategies))
        strategy = draw_from(share, self._uniform(rows, query, DRAW_STRATEGY + node))
        return self.spec.action(model, strategy)

    def _uniform(
        self, rows: NDArray[np.int64], query: Indices, use: Indices | int
    ) -> NDArray[np.float64]:
        return uniform_array(self.seeds[rows], STREAM_POLICY, query, use)


class MasRouterPolicy(TextRouter):
    """A trained MasRouter.

    Args:
        checkpoint_folder: of the router; the shipped one if None.

    Raises:
        ConfigError: the folder holds no checkpoint of a MasRouter.
    """

    def __init__(self, checkpoint_folder: str | None = None) -> None:
        folder = DEFAULT_CHECKPOINT if checkpoint_folder is None else Path(checkpoint_folder)
        tensors, content = checkpoint.load(folder)
        facts = validate(content, _Facts, source=str(folder / checkpoint.CONFIG_FILE))
        if facts.algorithm != "masrouter":
            raise ConfigError(
                f"{folder}: is a checkpoint of {shortened(facts.algorithm)!r}, not of a MasRouter. "
                f"{TRAIN}."
            )
        try:
            super().__init__(tensors, facts.models)
            latent, domain = self.planner.encode(np.zeros((1, EMBED_DIM))), np.zeros(1, np.int64)
            self.probabilities(latent, domain, *self.planner.plan(latent, domain))  # fits?
        except (KeyError, IndexError, ValueError) as error:
            raise ConfigError(f"{folder}: is no whole MasRouter: {error}. {TRAIN}.") from None
        if len(self.models) != len(self.routers.latents):
            raise ConfigError(
                f"{folder}: names {len(self.models)} models, its weights are of "
                f"{len(self.routers.latents)}. {TRAIN}."
            )
        self.name = "masrouter" if checkpoint_folder is None else f"masrouter:{checkpoint_folder}"
        self.fingerprint = checkpoint.fingerprint(folder)  # results of other weights are not these


def agent_of(node: Indices, count: Indices) -> Indices:
    """Return the agents (n,) that execute nodes: in Debate, node K + k is agent k's second turn."""
    return np.minimum(node % np.maximum(count, 1), MAX_AGENTS - 1)
