"""The executor's network: from query, role, budget and telemetry to a route (PyTorch).

Source: InfraMind (arXiv 2606.11440). Checkpoints are played without torch by
`inframind_gym/policies/inframind.py`, the same arithmetic in NumPy.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inframind_gym.policies.inframind import ExecutorShape

GAINS: Final = {"policy": 0.01, "value": 1.0, "cost_value": 1.0}  # of first weights; others √2


class ExecutorOutput(NamedTuple):
    """Judgement of n decisions."""

    log_probs: Tensor  # (n, M·S) of all pairs of model and strategy
    value: Tensor  # (n,) expected reward
    cost_value: Tensor | None  # (n,) expected cost; None without a cost critic


class ExecutorNet(nn.Module):
    """The executor, with the layers of its shape: some are missing in the ablations."""

    semantic: nn.Linear
    semantic_norm: nn.LayerNorm
    budget: nn.Linear
    system: nn.Linear
    resource: nn.Linear
    resource_norm: nn.LayerNorm
    merge: nn.Linear
    policy: nn.Linear
    value: nn.Linear
    cost_value: nn.Linear

    def __init__(self, shape: ExecutorShape) -> None:
        super().__init__()
        self.shape = shape
        for name, size in shape.layers().items():
            linear = len(size) == 2
            self.add_module(name, nn.Linear(size[1], size[0]) if linear else nn.LayerNorm(size))
        for name, layer in self.named_children():
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, GAINS.get(name, 2.0**0.5))
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
