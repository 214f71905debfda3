"""Parts of the planner's and MasRouter's networks (PyTorch); see `agents/planner/net.py`."""

from __future__ import annotations

import math
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agents.planner.inference import TASK_TEMPERATURE

HIDDEN: Final = 64
LATENT_NOISE: Final = 0.1  # z = mu + 0.1 * eps * sigma
PRIOR_STD: Final = 0.1


class Vae(nn.Module):
    """Variational encoder: 384 -> 64 ReLU -> mu and log variance (64), and back to 384."""

    def __init__(self, embed_dim: int, hidden: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(embed_dim, hidden)
        self.mu = nn.Linear(hidden, hidden)
        self.log_var = nn.Linear(hidden, hidden)
        self.decoder = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, embed_dim)

    def forward(
        self, x: Tensor, generator: torch.Generator | None, *, quiet: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Encode embeddings.

        Args:
            x: (n, 384).
            generator: of the latent's noise; None: z is its mean.
            quiet: z is its mean all the same, and the noise is in the loss alone.

        Returns:
            z (n, 64), and the loss (): mean squared error of the reconstruction plus the divergence
            from N(0, 0.1^2), each a mean over all numbers.
        """
        h = F.relu(self.encoder(x))
        mu, log_var = self.mu(h), self.log_var(h)
        z = mu
        if generator is not None:
            noise = torch.randn(mu.shape, generator=generator)
            z = mu + LATENT_NOISE * noise * torch.exp(0.5 * log_var)
        x_hat = self.output(F.relu(self.decoder(z)))
        prior_var = PRIOR_STD**2
        relative = (mu**2 + log_var.exp()) / prior_var
        divergence = 0.5 * (relative - 1.0 - log_var + math.log(prior_var))
        return mu if quiet else z, F.mse_loss(x_hat, x) + divergence.mean()


class GFusion(nn.Module):
    """Single-head cross-attention: queries from x, keys and values from y, added to x."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Fuse x (..., d) with y (n, d); `mask` (..., n) tells which rows of y may be read."""
        scores = self.query(x) @ self.key(y).T / x.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        read: Tensor = self.output(torch.softmax(scores, dim=-1) @ self.value(y))
        return x + read


class TaskClassifier(nn.Module):
    """Two linear maps, cosine, softmax(. / 0.5) over the three task classes."""

    texts: Tensor

    def __init__(self, embed_dim: int, hidden: int, texts: Tensor) -> None:
        super().__init__()
        self.query = nn.Linear(embed_dim, hidden)
        self.task = nn.Linear(embed_dim, hidden)
        self.register_buffer("texts", texts)

    def forward(self, query: Tensor) -> Tensor:
        """Logits (B, 3) for queries (B, 384)."""
        return cosine(self.query(query), self.task(self.texts)) / TASK_TEMPERATURE


class Candidates(nn.Module):
    """What all selectors share: candidates given by texts, encoded, and fused into the context."""

    texts: Tensor

    def __init__(self, embed_dim: int, hidden: int, texts: Tensor, context: int = 0) -> None:
        super().__init__()
        self.vae = Vae(embed_dim, hidden)
        self.fusion = GFusion(hidden)
        if context:
            self.context = nn.Linear(context * hidden, hidden)
        self.register_buffer("texts", texts)

    def encode(
        self, generator: torch.Generator | None, *, quiet: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Latents (n, 64) of the candidates and the loss of their encoder; see `Vae.forward`."""
        latents, loss = self.vae(self.texts, generator, quiet=quiet)
        return latents, loss

    def scores(self, context: Tensor, candidates: Tensor, mask: Tensor | None = None) -> Tensor:
        """Cosines (..., n) of a context (..., 64) and the candidates, masked ones -inf."""
        scores = cosine(self.fusion(context, candidates, mask), candidates)
        return scores if mask is None else scores.masked_fill(~mask, -torch.inf)


def cosine(x: Tensor, y: Tensor) -> Tensor:
    """Cosines (..., n) of x (..., d) and the rows of y (n, d)."""
    return F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).T


def pick(logits: Tensor, uniforms: Tensor | None) -> Tensor:
    """One index a row of logits (B, n): drawn with `uniforms` (B,), or the most likely."""
    if uniforms is None:
        return logits.argmax(dim=-1)
    edges = torch.softmax(logits, dim=-1).cumsum(dim=-1)
    last = logits.isfinite().cumsum(dim=-1).argmax(dim=-1)  # the sum may end just below 1
    return torch.minimum((edges <= uniforms[:, None]).sum(dim=-1), last)


def log_prob_at(logits: Tensor, index: Tensor) -> Tensor:
    """Log-probability (B,) of one index a row of logits (B, n)."""
    return torch.log_softmax(logits, dim=-1).gather(-1, index[:, None]).squeeze(-1)
