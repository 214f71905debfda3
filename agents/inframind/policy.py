"""InfraMind's trained policy: plans and routes in NumPy, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from agents.config import CHECKPOINTS
from agents.inframind.executor_inference import Executor, ExecutorShape, draw, log_softmax
from agents.planner.inference import Floats, NumpyPlanner
from inframind_gym.errors import ConfigError
from inframind_gym.policies import Contexts, PolicySpec, models_up
from inframind_gym.policies.checkpoint import check_shapes, fingerprint, load, part
from inframind_gym.policies.draws import RowwiseDraws, named
from inframind_gym.simulator.workflow.state import PLAN
from inframind_gym.simulator.workflow.topology import MAX_AGENTS

PLAN_PARTS: Final = 2 + MAX_AGENTS  # topology, agents less one, roles
DRAW_ROUTE: Final = 0  # uses of a row's draws; the parts of a plan follow
SAMPLE: Final = "sample"


class InfraMindPolicy(RowwiseDraws):
    """Planner and executor of a checkpoint (`spec/inframind.md` §2), likeliest actions.

    Args:
        checkpoint: folder; without it the shipped checkpoint of this policy's name.
        mode: "sample" draws actions, as in training; without it nothing is drawn.

    Raises:
        ConfigError: there is no such checkpoint, it is damaged, or of another network.
    """

    name = "inframind"

    def __init__(self, checkpoint: str | None = None, mode: str | None = None) -> None:
        super().__init__()
        if mode not in (None, SAMPLE):
            raise ConfigError(f"mode is {mode!r}; it is {SAMPLE!r} or left out.")
        self.folder = CHECKPOINTS / self.name if checkpoint is None else Path(checkpoint)
        arguments = [a for a in (checkpoint, mode) if a is not None]
        self.name = named(type(self).name, *arguments)
        self.sample = mode == SAMPLE
        if checkpoint is None and not self.folder.is_dir():
            raise ConfigError(
                f"no checkpoint of {self.name} is shipped. Train one: python -m agents.train "
                f"--config {self.name} --out FOLDER, and play {self.name}:FOLDER/best"
            )
        tensors, self.config = load(self.folder)
        self.multiplier = self.config.get("multiplier")  # λ; older checkpoints don't tell it
        self.fingerprint = fingerprint(self.folder)  # results of other weights are not these
        self.shape = self._shape(self.config)
        self.requires = {"level": "joint", "system_features": self.config["system_features"]}
        self._executor_weights = part(tensors, "executor.")
        check_shapes(self.folder, self._executor_weights, self.shape.shapes())
        self._planner = NumpyPlanner(part(tensors, "planner."))
        self._executor: Executor | None = None
        self._projected = np.zeros((0, 0))  # (T, ·) queries, as far as the executor's first layer
        self._latents: Floats = np.zeros((0, 0))  # (T, 64) queries, as the planner sees them
        self._plans = np.zeros((0, PLAN_PARTS), np.int64)  # (T, 8) likeliest plans, once made
        self._is_planned = np.zeros(0, np.bool_)

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Prepare for `len(seeds)` rows.

        Raises:
            ConfigError: the pool or the level is not the one that the policy was trained for.
        """
        super().reset(spec, seeds)
        if list(spec.models) != self.config["models"]:
            raise ConfigError(
                f"{self.folder}: was trained for the models {', '.join(self.config['models'])}; "
                f"this pool has {', '.join(spec.models)}. Train a policy for it: agents/train.py."
            )
        if spec.level != "joint" or not len(spec.task_embeddings):
            raise ConfigError(
                f"policy {self.name!r} plans and routes: make the environment with "
                'level="joint", observation="index" and what else `requires` says.'
            )
        executor = Executor(self._executor_weights, self.shape, spec.role_embeddings)
        self._executor = executor
        self._projected = executor.project(spec.task_embeddings)
        self._latents = self._planner.encode(spec.task_embeddings)
        self._plans = np.zeros((len(self._latents), PLAN_PARTS), np.int64)
        self._is_planned = np.zeros(len(self._latents), np.bool_)

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The actions (n, 9) of `rows`: a plan or a route, whichever is due."""
        actions = np.zeros((len(rows), PLAN_PARTS + 1), np.int64)
        is_plan = contexts["kind"] == PLAN
        if is_plan.any():
            actions[is_plan, :PLAN_PARTS] = self._plan(contexts[is_plan], rows[is_plan])
        if not is_plan.all():
            due = ~is_plan
            actions[due, PLAN_PARTS] = self._route(observations[due], contexts[due], rows[due])
        self.decisions[rows] += 1
        return actions

    def _plan(self, contexts: Contexts, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        task = contexts["task"].astype(np.int64)
        domain = contexts["domain"].astype(np.int64)
        if self.sample:
            uses = range(DRAW_ROUTE + 1, DRAW_ROUTE + 1 + PLAN_PARTS)
            uniforms = np.stack([self.uniform(rows, use) for use in uses], axis=1)
            return _as_action(self._planner.plan(self._latents[task], domain, uniforms))
        new = ~self._is_planned[task]
        if new.any():
            plans = self._planner.plan(self._latents[task[new]], domain[new])
            self._plans[task[new]] = _as_action(plans)
            self._is_planned[task[new]] = True
        return self._plans[task]

    def _route(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        assert self._executor is not None  # `reset` has been called
        resource = observations[:, self.spec.layout.resource].copy()
        if not self.config["system_state"]:
            resource[:, 1:] = 0.0
        logits = self._executor(self._projected[contexts["task"]], contexts["role"], resource)
        up = np.repeat(models_up(contexts, self.spec.num_models), self.spec.num_strategies, axis=1)
        logits[~up] = -np.inf
        if self.sample:
            return draw(log_softmax(logits), self.uniform(rows, DRAW_ROUTE))
        return np.asarray(logits.argmax(axis=1), np.int64)

    def _shape(self, config: dict[str, Any]) -> ExecutorShape:
        try:
            return ExecutorShape(
                len(config["models"]), len(config["strategies"]), **config["network"]
            )
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"{self.folder}: config.json is not that of an InfraMind checkpoint ({error})."
            ) from None


class InfraMindDualCriticPolicy(InfraMindPolicy):
    """The variant with a critic for the cost."""

    name = "inframind_dual_critic"


class InfraMindPIDPolicy(InfraMindPolicy):
    """The variant with a PID-controlled multiplier."""

    name = "inframind_pid"


def _as_action(
    plan: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
) -> NDArray[np.int64]:
    topology, count, roles = plan
    return np.concatenate([topology[:, None], count[:, None] - 1, roles], axis=1)
