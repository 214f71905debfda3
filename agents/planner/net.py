"""The planner's network: from a query's embedding to topology, agent count and roles (PyTorch).

Sources: `spec/inframind.md` §2.1 ("VAE + GFusion cross-attention") and its ancestor MasRouter (ACL
2025). MasRouter trains it together with its router of models (`agents/masrouter/net.py`); InfraMind
starts from those weights. What it acts with, without torch, is `agents/planner/inference.py`.

Where it differs from MasRouter's code, and why:

- One variational encoder reads the query for all heads instead of one a head: shipped weights stay
  below 2 MB.
- GFusion, which that code builds and never calls, is used: the query attends to the candidates
  before it is compared with them.
- The agent count is clamp(round(6 * sigmoid), 1, 6) there, which has no gradient. Here that number
  is the mode of a distribution over 1..6 (`count_logits`), whose log-probability is part of the
  plan's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agents.planner.blocks import HIDDEN, Candidates, TaskClassifier, Vae, log_prob_at, pick
from agents.planner.inference import (
    COUNT_SPREAD,
    DRAW_COUNT,
    DRAW_MODE,
    DRAW_ROLE,
    MODE_TEMPERATURE,
    ROLE_DOMAIN,
    ROLE_START,
    ROLE_TEMPERATURE,
)
from agents.planner.texts import mode_embeddings, task_embeddings
from inframind_gym.simulator.workflow.topology import MAX_AGENTS
from inframind_gym.tasks import DOMAINS, EMBED_DIM, load_role_embeddings


class RoleSelector(Candidates):
    """Roles one after another, each given the query, the mode and the roles before it."""

    def __init__(self, embed_dim: int, hidden: int, texts: Tensor) -> None:
        super().__init__(embed_dim, hidden, texts, context=3)
        self.start = nn.Parameter(torch.zeros(hidden))  # stands for the roles before the first

    def logits(
        self, query: Tensor, mode: Tensor, history: Tensor, roles: Tensor, mask: Tensor
    ) -> Tensor:
        """Logits (..., 25) from latents (..., 64) of query, mode and the roles so far."""
        context = self.context(torch.cat([query, mode, history], dim=-1))
        return self.scores(context, roles, mask) / ROLE_TEMPERATURE


class NumAgents(nn.Module):
    """How many agents: 6 * sigmoid of a linear map of the query's latent."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.difficulty = nn.Linear(hidden, 1)

    def forward(self, query: Tensor) -> Tensor:
        """The mean count (B,), in (0, 6)."""
        return MAX_AGENTS * torch.sigmoid(self.difficulty(query).squeeze(-1))


class PlannerOutput(NamedTuple):
    """What the network says of B queries before anything is chosen."""

    task_logits: Tensor  # (B, 3), in the order of DOMAINS
    mode_logits: Tensor  # (B, 6), in the order of TOPOLOGIES
    count_mean: Tensor  # (B,) in (0, 6)
    count_logits: Tensor  # (B, 6) for 1..6 agents
    domain: Tensor  # (B,) whose roles are chosen from
    query: Tensor  # (B, 64) latents of the queries
    modes: Tensor  # (6, 64) latents of the modes
    roles: Tensor  # (25, 64) latents of the roles
    vae_loss: Tensor  # () of the three encoders


class Plan(NamedTuple):
    """Plans of B queries."""

    topology: Tensor  # (B,) int64, index into TOPOLOGIES
    num_agents: Tensor  # (B,) int64, 1..6
    roles: Tensor  # (B, 6) int64, counted within the domain's roles; 0 beyond the count
    log_prob: Tensor  # (B,)


class PlannerNet(nn.Module):
    """Task classifier, and heads for topology, agent count and roles.

    Args:
        embed_dim: width of the frozen text embeddings.
        hidden: width of the latents.
        domains: task classes; the three of DOMAINS.
    """

    role_domain: Tensor
    role_start: Tensor

    def __init__(
        self, embed_dim: int = EMBED_DIM, hidden: int = HIDDEN, domains: int = len(DOMAINS)
    ) -> None:
        super().__init__()
        tasks, modes = task_embeddings()[:domains], mode_embeddings()
        self.query_encoder = Vae(embed_dim, hidden)
        self.task_classifier = TaskClassifier(embed_dim, hidden, torch.tensor(tasks))
        self.collab_mode = Candidates(embed_dim, hidden, torch.tensor(modes))
        self.num_agents = NumAgents(hidden)
        self.role_selector = RoleSelector(embed_dim, hidden, torch.tensor(load_role_embeddings()))
        self.register_buffer("role_domain", torch.tensor(ROLE_DOMAIN), persistent=False)
        self.register_buffer("role_start", torch.tensor(ROLE_START), persistent=False)

    def forward(
        self,
        query: Tensor,
        domain: Tensor | None = None,
        generator: torch.Generator | None = None,
        *,
        quiet: bool = False,
    ) -> PlannerOutput:
        """Encode B queries.

        Args:
            query: (B, 384) embeddings.
            domain: (B,) the known domains; None: those that the classifier finds.
            generator: of the noise of all latents, for training; None: latents are their means.
            quiet: the heads see the means all the same, and the noise is in the VAE's loss alone:
                for plans that were drawn without noise.
        """
        z, query_loss = self.query_encoder(query, generator, quiet=quiet)
        modes, mode_loss = self.collab_mode.encode(generator, quiet=quiet)
        roles, role_loss = self.role_selector.encode(generator, quiet=quiet)
        task_logits = self.task_classifier(query)
        count_mean = self.num_agents(z)
        return PlannerOutput(
            task_logits=task_logits,
            mode_logits=self.collab_mode.scores(z, modes) / MODE_TEMPERATURE,
            count_mean=count_mean,
            count_logits=count_logits(count_mean),
            domain=task_logits.argmax(dim=-1) if domain is None else domain.long(),
            query=z,
            modes=modes,
            roles=roles,
            vae_loss=query_loss + mode_loss + role_loss,
        )

    def sample(
        self,
        query: Tensor,
        domain: Tensor | None = None,
        uniforms: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Plan:
        """Draw plans; see `choose`."""
        return self.choose(self(query, domain, generator), uniforms)

    def log_prob(
        self,
        query: Tensor,
        domain: Tensor | None,
        topology: Tensor,
        count: Tensor,
        roles: Tensor,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Log-probability (B,) of plans; see `log_prob_of`."""
        return self.log_prob_of(self(query, domain, generator), topology, count, roles)

    def choose(self, output: PlannerOutput, uniforms: Tensor | None = None) -> Plan:
        """Draw one plan a query, or take the most likely part by part.

        Args:
            output: of `forward`.
            uniforms: (B, 8) numbers in (0, 1): one for the topology, one for the count, six for the
                roles; None: nothing is drawn.
        """
        with torch.no_grad():
            u = None if uniforms is None else uniforms.T
            topology = pick(output.mode_logits, None if u is None else u[DRAW_MODE])
            count = 1 + pick(output.count_logits, None if u is None else u[DRAW_COUNT])
            mode, mask = output.modes[topology], self._role_mask(output.domain)
            history = self.role_selector.start.expand_as(mode)
            total = torch.zeros_like(mode)
            chosen = []
            for k in range(MAX_AGENTS):
                logits = self.role_selector.logits(output.query, mode, history, output.roles, mask)
                role = pick(logits, None if u is None else u[DRAW_ROLE + k])
                chosen.append(torch.where(k < count, role - self.role_start[output.domain], 0))
                total = total + output.roles[role]
                history = total / (k + 1)
            roles = torch.stack(chosen, dim=-1)
        return Plan(topology, count, roles, self.log_prob_of(output, topology, count, roles))

    def log_prob_of(
        self, output: PlannerOutput, topology: Tensor, count: Tensor, roles: Tensor
    ) -> Tensor:
        """Log-probability (B,) of plans, with gradients to every head that chose them.

        Args:
            output: of `forward`, for the same queries and domains.
            topology: (B,), count: (B,), roles: (B, 6): as in `Plan`.
        """
        index = roles + self.role_start[output.domain][:, None]
        chosen = output.roles[index]  # (B, 6, 64)
        before = chosen.cumsum(dim=1)[:, :-1] / torch.arange(1, MAX_AGENTS)[:, None]
        start = self.role_selector.start.expand(len(index), 1, -1)
        history = torch.cat([start, before], dim=1)
        each = (len(index), MAX_AGENTS, -1)
        logits = self.role_selector.logits(
            output.query[:, None].expand(each),
            output.modes[topology][:, None].expand(each),
            history,
            output.roles,
            self._role_mask(output.domain)[:, None],
        )
        role_log_prob = torch.log_softmax(logits, dim=-1).gather(-1, index[..., None]).squeeze(-1)
        role_log_prob = role_log_prob.masked_fill(~self.present(count), 0.0)
        return (
            log_prob_at(output.mode_logits, topology)
            + log_prob_at(output.count_logits, count - 1)
            + role_log_prob.sum(dim=-1)
        )

    def mean_role(self, output: PlannerOutput, plan: Plan) -> Tensor:
        """Mean latent (B, 64) of the roles of each plan."""
        chosen = output.roles[plan.roles + self.role_start[output.domain][:, None]]
        present = self.present(plan.num_agents)[..., None]
        return (chosen * present).sum(dim=1) / plan.num_agents[:, None]

    @staticmethod
    def present(count: Tensor) -> Tensor:
        """Which of the six places (B, 6) hold an agent."""
        return torch.arange(MAX_AGENTS) < count[:, None]

    def _role_mask(self, domain: Tensor) -> Tensor:
        return self.role_domain == domain[:, None]


def count_logits(count_mean: Tensor) -> Tensor:
    """Logits (B, 6) of 1..6 agents: a normal distribution around the mean (B,), at whole numbers.

    The most likely number is the one nearest to the mean, clamp(round(mean), 1, 6): MasRouter's.
    """
    counts = torch.arange(1, MAX_AGENTS + 1)
    return -0.5 * ((counts - count_mean[:, None]) / COUNT_SPREAD) ** 2


def weights_of(module: nn.Module) -> dict[str, NDArray[np.float32]]:
    """A module's weights as arrays, by their names."""
    return {key: value.detach().numpy().copy() for key, value in module.state_dict().items()}
