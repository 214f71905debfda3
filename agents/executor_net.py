"""The executor in torch, for training: dual pathway, joint head, value head.

Source: `spec/inframind.md` §2.2. `agents.inference.Executor` is the same in NumPy, for acting; the
tests hold the two equal.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agents.inference import BUDGET, HIDDEN, RESOURCE, SEMANTIC, SYSTEM, ExecutorShape
from inframind_gym.policy.layout import EMBED_DIM


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
    """The executor.

    Args:
        shape: which executor.
        seed: of the initial weights: orthogonal, √2 in the trunk, 0.01 in the policy head and 1 in
            the value heads; biases 0.
    """

    def __init__(self, shape: ExecutorShape, seed: int = 0) -> None:
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
        self._initialise(torch.Generator().manual_seed(seed))

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
        weight = self.semantic.weight
        # [e_q | e_r] W = e_q W_q + e_r W_r: embeddings that decisions share are multiplied once.
        of_query = F.linear(queries, weight[:, :EMBED_DIM])
        of_role = F.linear(roles, weight[:, EMBED_DIM : 2 * EMBED_DIM], self.semantic.bias)
        hidden = F.embedding(query_index, of_query) + F.embedding(role_index, of_role)
        if not self.shape.dual_pathway:
            hidden = hidden + F.linear(resource, weight[:, 2 * EMBED_DIM :])
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

    def _initialise(self, generator: torch.Generator) -> None:
        gains = {"policy": 0.01, "value": 1.0, "cost_value": 1.0}
        for name, module in self.named_children():
            if isinstance(module, nn.Linear):
                gain = gains.get(name, 2.0**0.5)
                nn.init.orthogonal_(module.weight, gain, generator=generator)
                nn.init.zeros_(module.bias)
