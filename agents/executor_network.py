"""The executor's network: from query, role, budget and telemetry to a route (PyTorch).

Source: InfraMind (arXiv 2606.11440). Checkpoints are played without torch by
`inframind_gym/policies/inframind.py`, the same arithmetic in NumPy.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inframind_gym.envs.routing.layout import EMBED_DIM
from inframind_gym.policies.inframind import (
    BUDGET,
    HIDDEN,
    RESOURCE,
    SEMANTIC,
    SYSTEM,
    ExecutorShape,
)


class ExecutorOutput(NamedTuple):
    """Judgement of n decisions."""

    log_probs: Tensor  # (n, M·S) of all pairs of model and strategy
    value: Tensor  # (n,) expected reward
    cost_value: Tensor | None  # (n,) expected cost; None without a cost critic


class ExecutorNet(nn.Module):
    """The executor; its parameters are named and sized as in `ExecutorShape`."""

    def __init__(self, shape: ExecutorShape) -> None:
        super().__init__()
        self.shape = shape
        inputs, merged = 2 * EMBED_DIM, SEMANTIC + RESOURCE
        if not shape.dual_pathway:
            inputs, merged = inputs + shape.resource_size, shape.first_size
        self.semantic = nn.Linear(inputs, shape.first_size)
        self.semantic_norm = nn.LayerNorm(shape.first_size)
        if shape.dual_pathway:
            self.budget = nn.Linear(1, BUDGET)
            self.system = nn.Linear(shape.resource_size - 1, SYSTEM)
            self.resource = nn.Linear(BUDGET + SYSTEM, RESOURCE)
            self.resource_norm = nn.LayerNorm(RESOURCE)
        self.merge = nn.Linear(merged, HIDDEN)
        self.policy = nn.Linear(HIDDEN, shape.num_logits)
        self.value = nn.Linear(HIDDEN, 1)
        if shape.cost_critic:
            self.cost_value = nn.Linear(HIDDEN, 1)
        gains = {"policy": 0.01, "value": 1.0, "cost_value": 1.0}
        for name, layer in self.named_children():
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, gains.get(name, 2.0**0.5))
                nn.init.zeros_(layer.bias)

    def forward(self, query: Tensor, role: Tensor, resource: Tensor) -> ExecutorOutput:
        """Judge n decisions.

        Args:
            query: (n, 384) embeddings of the queries.
            role: (n, 384) embeddings of the agents' roles.
            resource: (n, 1 + M·F) remaining budget and telemetry.
        """
        semantic = [query, role] if self.shape.dual_pathway else [query, role, resource]
        hidden = self.semantic_norm(F.relu(self.semantic(torch.cat(semantic, dim=1))))
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
