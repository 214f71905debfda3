"""MasRouter's network: the planner, and the router that draws a model for every agent (PyTorch).

Source: MasRouter (ACL 2025). Every agent's model is a draw from one softmax(cosine) over the pool,
given the query, the mode and the roles. In a checkpoint the weights are `planner.*`, which
InfraMind's planner starts from, and `llm_router.*`, which it drops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from agents.planner.blocks import HIDDEN, Candidates, pick
from agents.planner.inference import PLAN_DRAWS
from agents.planner.net import Plan, PlannerNet, PlannerOutput
from agents.planner.texts import model_embeddings
from inframind_gym.simulator.workflow.topology import MAX_AGENTS
from inframind_gym.tasks import EMBED_DIM

ROUTED_DRAWS: Final = PLAN_DRAWS + MAX_AGENTS  # uniform numbers for a plan and its models


class Routed(NamedTuple):
    """A plan and the models of its agents, for B queries."""

    output: PlannerOutput
    plan: Plan
    models: Tensor  # (B, 6) int64, index into the pool; the first `num_agents` of a row are used
    log_prob: Tensor  # (B,) of the plan and the models
    vae_loss: Tensor  # () of all encoders


class MasRouterNet(nn.Module):
    """Planner and model router.

    Args:
        models: aliases of the pool's models, in the order of its actions.

    Raises:
        ConfigError: a model has no text (`agents/planner/texts.py`).
    """

    def __init__(self, models: Sequence[str]) -> None:
        super().__init__()
        self.planner = PlannerNet()
        texts = torch.tensor(model_embeddings(models))
        self.llm_router = Candidates(EMBED_DIM, HIDDEN, texts, context=3)

    def forward(
        self,
        query: Tensor,
        domain: Tensor,
        uniforms: Tensor,
        generator: torch.Generator | None = None,
    ) -> Routed:
        """Plan and route B queries.

        Args:
            query: (B, 384) embeddings.
            domain: (B,) their domains.
            uniforms: (B, 14) numbers in (0, 1): eight for the plan, six for the models.
            generator: of the latents' noise; None: no noise.
        """
        output = self.planner(query, domain, generator)
        plan = self.planner.choose(output, uniforms[:, :PLAN_DRAWS])
        candidates, loss = self.llm_router.encode(generator)
        logits = self.model_logits(output, plan, candidates)
        draws = uniforms[:, PLAN_DRAWS:].T
        models = torch.stack([pick(logits, draws[k]) for k in range(MAX_AGENTS)], dim=-1)
        each = torch.log_softmax(logits, dim=-1).gather(-1, models)
        of_models = each.masked_fill(~self.planner.present(plan.num_agents), 0.0).sum(dim=-1)
        return Routed(output, plan, models, plan.log_prob + of_models, output.vae_loss + loss)

    def model_logits(self, output: PlannerOutput, plan: Plan, candidates: Tensor) -> Tensor:
        """Logits (B, M) of one agent's model, the same for all agents of a query."""
        parts = [output.query, output.modes[plan.topology], self.planner.mean_role(output, plan)]
        return self.llm_router.scores(self.llm_router.context(torch.cat(parts, dim=-1)), candidates)
