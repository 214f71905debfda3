"""The planner's network: from a query's embedding to topology, agent count and roles (PyTorch).

MasRouter trains it together with its router of models (`agents/masrouter.py`), InfraMind starts
from those weights (`agents/inframind.py`). Checkpoints are played without torch by
`inframind_gym/policies/networks.py`, the same arithmetic in NumPy.

Plans are drawn by the player; here their log-probabilities have gradients.

Sources: MasRouter (ACL 2025); InfraMind (arXiv 2606.11440), which fuses the query with the
candidates by cross-attention. Differences from MasRouter's code:

- One variational encoder reads the query for all heads instead of one a head: shipped weights stay
  below 2 MB. Its noise is in the reconstruction alone, so that log-probabilities are exact.
- GFusion, which that code builds and never calls, is used: the query attends to the candidates
  before it is compared with them.
- The agent count is clamp(round(6 * sigmoid), 1, 6) there, which has no gradient. Here that number
  is the mode of a distribution over 1..6 (`count_logits`). Its log-probability is part of the
  plan's where the count is learned: MasRouter here, `planner.draw_count` of InfraMind.

Task classes, collaboration modes and models are embedded as the texts of `data/planner_texts.yaml`;
queries and roles come with `inframind_gym.tasks`. `python -m benchmarks.embed_shipped` writes the
embeddings, `data/planner_texts.npy`, with all-MiniLM-L6-v2 (extra `embed`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from numpy.typing import NDArray
from torch import Tensor, nn

from inframind_gym.errors import ConfigError, unknown
from inframind_gym.policies.networks import (
    COUNT_SPREAD,
    MODE_TEMPERATURE,
    ROLE_DOMAIN,
    ROLE_START,
    ROLE_TEMPERATURE,
)
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES
from inframind_gym.tasks import DOMAINS, EMBED_DIM, load_role_embeddings

HIDDEN: Final = 64
TASK_TEMPERATURE: Final = 0.5
LATENT_NOISE: Final = 0.1  # z = mu + 0.1 * eps * sigma
PRIOR_STD: Final = 0.1

TEXTS_FILE: Final = Path(__file__).resolve().parent / "data" / "planner_texts.yaml"
EMBEDDINGS_FILE: Final = TEXTS_FILE.with_suffix(".npy")

TEXTS: Final[dict[str, str]] = yaml.safe_load(TEXTS_FILE.read_text(encoding="utf-8"))


def text_embeddings(names: Sequence[str]) -> Tensor:
    """Return the embeddings (n, 384) of task classes, collaboration modes or models.

    Raises:
        ConfigError: a name, such as that of a pool's model, has no text.
    """
    for name in names:
        if name not in TEXTS:
            raise ConfigError(
                f"{unknown('text', name, TEXTS)} MasRouter chooses models by their texts: add one "
                f"to {TEXTS_FILE} and run `python -m benchmarks.embed_shipped`."
            )
    table = np.load(EMBEDDINGS_FILE, allow_pickle=False).astype(np.float32)
    if len(table) != len(TEXTS):
        raise ConfigError(
            f"{EMBEDDINGS_FILE}: holds {len(table)} rows, wanted {len(TEXTS)}, a row a text. Run "
            "`python -m benchmarks.embed_shipped`."
        )
    order = list(TEXTS)
    return torch.tensor(table[[order.index(name) for name in names]])


class Vae(nn.Module):
    """Variational encoder: 384 -> 64 ReLU -> mu and log variance (64), and back to 384."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(EMBED_DIM, HIDDEN)
        self.mu = nn.Linear(HIDDEN, HIDDEN)
        self.log_var = nn.Linear(HIDDEN, HIDDEN)
        self.decoder = nn.Linear(HIDDEN, HIDDEN)
        self.output = nn.Linear(HIDDEN, EMBED_DIM)

    def forward(self, x: Tensor, noise: torch.Generator) -> tuple[Tensor, Tensor]:
        """Encode embeddings (n, 384).

        Returns:
            Mean latents (n, 64), and the loss (): mean squared error of the reconstruction from a
            noisy latent plus the divergence from N(0, 0.1^2), each a mean over all numbers.
        """
        h = F.relu(self.encoder(x))
        mu, log_var = self.mu(h), self.log_var(h)
        drawn = torch.randn(mu.shape, generator=noise)
        z = mu + LATENT_NOISE * drawn * torch.exp(0.5 * log_var)
        x_hat = self.output(F.relu(self.decoder(z)))
        prior_var = PRIOR_STD**2
        relative = (mu**2 + log_var.exp()) / prior_var
        divergence = 0.5 * (relative - 1.0 - log_var + math.log(prior_var))
        return mu, F.mse_loss(x_hat, x) + divergence.mean()


class GFusion(nn.Module):
    """Single-head cross-attention: queries from x, keys and values from y, added to x."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(HIDDEN, HIDDEN)
        self.key = nn.Linear(HIDDEN, HIDDEN)
        self.value = nn.Linear(HIDDEN, HIDDEN)
        self.output = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Fuse x (..., 64) with y (n, 64), reading the rows of y where `mask` (..., n) is true."""
        scores = self.query(x) @ self.key(y).T / x.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        read: Tensor = self.output(torch.softmax(scores, dim=-1) @ self.value(y))
        return x + read


class TaskClassifier(nn.Module):
    """Two linear maps, cosine, softmax(. / 0.5) over the three task classes."""

    texts: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(EMBED_DIM, HIDDEN)
        self.task = nn.Linear(EMBED_DIM, HIDDEN)
        self.register_buffer("texts", text_embeddings(DOMAINS))

    def forward(self, query: Tensor) -> Tensor:
        """Return logits (B, 3) for queries (B, 384)."""
        return cosine(self.query(query), self.task(self.texts)) / TASK_TEMPERATURE


class Candidates(nn.Module):
    """A selector: candidates given by texts, encoded, and compared with a fused context.

    Args:
        texts: (n, 384) embeddings of the candidates.
        context: latents that the context is made of, for `context`; 0: it is one latent.
    """

    texts: Tensor

    def __init__(self, texts: Tensor, context: int = 0) -> None:
        super().__init__()
        self.vae = Vae()
        self.fusion = GFusion()
        if context:
            self.context = nn.Linear(context * HIDDEN, HIDDEN)
        self.register_buffer("texts", texts)

    def encode(self, noise: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return latents (n, 64) of the candidates and the encoder's loss; see `Vae.forward`."""
        encoded: tuple[Tensor, Tensor] = self.vae(self.texts, noise)
        return encoded

    def scores(self, context: Tensor, candidates: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return cosines (..., n) of a context (..., 64) and the candidates, masked ones -inf."""
        scores = cosine(self.fusion(context, candidates, mask), candidates)
        return scores if mask is None else scores.masked_fill(~mask, -torch.inf)


class PlannerOutput(NamedTuple):
    """Distributions and latents of B queries before anything is chosen."""

    task_logits: Tensor  # (B, 3), in the order of DOMAINS
    mode_logits: Tensor  # (B, 6), in the order of TOPOLOGIES
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


def plan_of(records: NDArray[Any]) -> Plan:
    """Return the plans of finished queries, COMPLETED (B,)."""
    count = torch.from_numpy(records["num_agents"].astype(np.int64))
    roles = records["role"][:, :MAX_AGENTS] - ROLE_START[records["domain"]][:, None]
    within = torch.from_numpy(roles.astype(np.int64)).masked_fill(~present(count), 0)
    return Plan(torch.from_numpy(records["topology"].astype(np.int64)), count, within)


class PlannerNet(nn.Module):
    """Task classifier, and heads for topology, agent count and roles."""

    role_domain: Tensor
    role_start: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.query_encoder = Vae()
        self.task_classifier = TaskClassifier()
        self.collab_mode = Candidates(text_embeddings(TOPOLOGIES))
        self.num_agents = nn.ModuleDict({"difficulty": nn.Linear(HIDDEN, 1)})
        # Roles one after another, each given the query, the mode and the roles before it.
        self.role_selector = Candidates(torch.tensor(load_role_embeddings()), context=3)
        start = nn.Parameter(torch.zeros(HIDDEN))  # in place of the roles before the first
        self.role_selector.register_parameter("start", start)
        self.register_buffer("role_domain", torch.tensor(ROLE_DOMAIN), persistent=False)
        self.register_buffer("role_start", torch.tensor(ROLE_START), persistent=False)

    def forward(self, query: Tensor, domain: Tensor, noise: torch.Generator) -> PlannerOutput:
        """Encode B queries.

        Args:
            query: (B, 384) embeddings.
            domain: (B,) whose roles are chosen from.
            noise: of the encoders' loss; the heads see mean latents, as where plans are drawn.
        """
        z, query_loss = self.query_encoder(query, noise)
        modes, mode_loss = self.collab_mode.encode(noise)
        roles, role_loss = self.role_selector.encode(noise)
        task_logits = self.task_classifier(query)
        count_mean = MAX_AGENTS * torch.sigmoid(self.num_agents["difficulty"](z).squeeze(-1))
        return PlannerOutput(
            task_logits=task_logits,
            mode_logits=self.collab_mode.scores(z, modes) / MODE_TEMPERATURE,
            count_logits=count_logits(count_mean),
            domain=domain,
            query=z,
            modes=modes,
            roles=roles,
            vae_loss=query_loss + mode_loss + role_loss,
        )

    def start_with(self, agents: int) -> None:
        """Let the likeliest agent count be the same number for every query."""
        head = cast(nn.Linear, self.num_agents["difficulty"])
        nn.init.zeros_(head.weight)
        nn.init.constant_(head.bias, math.log(agents / (MAX_AGENTS + 0.1 - agents)))

    def log_prob(self, output: PlannerOutput, plan: Plan, *, of_count: bool = True) -> Tensor:
        """Return the log-probability (B,) of plans, with gradients to every head.

        Args:
            output: of `forward`, for the same queries and domains.
            plan: one a query.
            of_count: the agent count was drawn, too.
        """
        index = plan.roles + self.role_start[output.domain][:, None]
        chosen = output.roles[index]  # (B, 6, 64)
        before = chosen.cumsum(dim=1)[:, :-1] / torch.arange(1, MAX_AGENTS)[:, None]
        selector, each = self.role_selector, (len(index), MAX_AGENTS, -1)
        start = selector.get_parameter("start").expand(len(index), 1, -1)
        known = [
            output.query[:, None].expand(each),
            output.modes[plan.topology][:, None].expand(each),
            torch.cat([start, before], dim=1),
        ]
        mask = (self.role_domain == output.domain[:, None])[:, None]
        context = selector.context(torch.cat(known, dim=-1))
        logits = selector.scores(context, output.roles, mask) / ROLE_TEMPERATURE
        role_log_prob = torch.log_softmax(logits, dim=-1).gather(-1, index[..., None]).squeeze(-1)
        role_log_prob = role_log_prob.masked_fill(~present(plan.num_agents), 0.0)
        log_prob = log_prob_at(output.mode_logits, plan.topology) + role_log_prob.sum(dim=-1)
        if of_count:
            log_prob = log_prob + log_prob_at(output.count_logits, plan.num_agents - 1)
        return log_prob

    def mean_role(self, output: PlannerOutput, plan: Plan) -> Tensor:
        """Return the mean latent (B, 64) of the roles of each plan."""
        chosen = output.roles[plan.roles + self.role_start[output.domain][:, None]]
        shown = chosen * present(plan.num_agents)[..., None]
        return shown.sum(dim=1) / plan.num_agents[:, None]


def present(count: Tensor) -> Tensor:
    """Return a mask (B, 6) of the places that hold an agent, from the counts (B,)."""
    return torch.arange(MAX_AGENTS) < count[:, None]


def count_logits(count_mean: Tensor) -> Tensor:
    """Return logits (B, 6) of 1..6 agents: a normal distribution around the mean (B,).

    The most likely number is the one nearest to the mean, clamp(round(mean), 1, 6): MasRouter's.
    """
    counts = torch.arange(1, MAX_AGENTS + 1)
    return -0.5 * ((counts - count_mean[:, None]) / COUNT_SPREAD) ** 2


def cosine(x: Tensor, y: Tensor) -> Tensor:
    """Return cosines (..., n) of x (..., d) and the rows of y (n, d)."""
    return F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).T


def log_prob_at(logits: Tensor, index: Tensor) -> Tensor:
    """Return the log-probability (B,) of one index a row of logits (B, n)."""
    return torch.log_softmax(logits, dim=-1).gather(-1, index[:, None]).squeeze(-1)
