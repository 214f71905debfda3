"""The executor of `spec/inframind.md` §2.2 in torch, written to be read."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agents.inframind.executor_inference import (
    BUDGET,
    HIDDEN,
    RESOURCE,
    SEMANTIC,
    SYSTEM,
    ExecutorShape,
)
from inframind_gym.envs.routing.layout import EMBED_DIM


class ExecutorOutput(NamedTuple):
    """What the executor says of n decisions.

    Attributes:
        log_probs: (n, M·S) of all pairs of model and strategy.
        value: (n,) what it expects of the reward.
        cost_value: (n,) what it expects of the cost; None without a cost critic.
    """

    log_probs: Tensor
    value: Tensor
    cost_value: Tensor | None


class ExecutorNet(nn.Module):
    """The executor, with the weights that torch gives it."""

    def __init__(self, shape: ExecutorShape) -> None:
        super().__init__()
        self.shape = shape
        resources = 0 if shape.dual_pathway else shape.resource_size
        merged = shape.first_size
        self.semantic = nn.Linear(2 * EMBED_DIM + resources, shape.first_size)
        self.semantic_norm = nn.LayerNorm(shape.first_size)
        if shape.dual_pathway:
            self.budget = nn.Linear(1, BUDGET)
            self.system = nn.Linear(shape.resource_size - 1, SYSTEM)
            self.resource = nn.Linear(BUDGET + SYSTEM, RESOURCE)
            self.resource_norm = nn.LayerNorm(RESOURCE)
            merged = SEMANTIC + RESOURCE
        self.merge = nn.Linear(merged, HIDDEN)
        self.policy = nn.Linear(HIDDEN, shape.num_logits)
        self.value = nn.Linear(HIDDEN, 1)
        if shape.cost_critic:
            self.cost_value = nn.Linear(HIDDEN, 1)

    def forward(
        self,
        queries: Tensor,
        query_index: Tensor,
        roles: Tensor,
        role_index: Tensor,
        resource: Tensor,
    ) -> ExecutorOutput:
        """Judge n decisions.

        Args:
            queries: (Q, 384) embeddings, each once.
            query_index: (n,) which of them a decision is about.
            roles: (R, 384) embeddings of the roles.
            role_index: (n,) which of them decides.
            resource: (n, 1 + M·F) remaining budget and telemetry.
        """
        semantic = [queries[query_index], roles[role_index]]
        if not self.shape.dual_pathway:
            semantic.append(resource)
        hidden = self.semantic(torch.cat(semantic, dim=1))
        hidden = self.semantic_norm(F.relu(hidden))
        if self.shape.dual_pathway:
            budget = F.relu(self.budget(resource[:, :1]))
            system = F.relu(self.system(resource[:, 1:]))
            encoded = F.relu(self.resource(torch.cat([budget, system], dim=1)))
            hidden = torch.cat([hidden, self.resource_norm(encoded)], dim=1)
        hidden = F.relu(self.merge(hidden))
        logits = self.policy(hidden)
        if not self.shape.joint_head:
            models, strategies = logits.split(
                [self.shape.num_models, self.shape.num_strategies], dim=1
            )
            logits = (models[:, :, None] + strategies[:, None, :]).flatten(1)
        cost_value = self.cost_value(hidden)[:, 0] if self.shape.cost_critic else None
        return ExecutorOutput(F.log_softmax(logits, dim=1), self.value(hidden)[:, 0], cost_value)
