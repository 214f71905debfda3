"""The network of `sb3_maskable_ppo` in PyTorch, as a policy of sb3-contrib's MaskablePPO."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from torch import nn

from inframind_gym.envs.placement_kernel import GPU_FEATURES, MODEL_FEATURES
from inframind_gym.policies.mlp import INPUTS, LAYERS, PARTS, take_apart


def _network(inputs: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(),
        nn.Linear(hidden, 1),
    )  # fmt: skip


class Scorer(nn.Module):
    """Actor and critic; what SB3 calls an `mlp_extractor`.

    Args:
        gpus: G.
        models: M.
        hidden: width.
        keep_bias: of leaving a GPU alone, at the start.
    """

    def __init__(self, gpus: int, models: int, hidden: int, keep_bias: float) -> None:
        super().__init__()
        self.gpus, self.models = gpus, models
        self.latent_dim_pi, self.latent_dim_vf = gpus * (models + 1), 2 * hidden
        self.actor = nn.ModuleDict({part: _network(INPUTS[part], hidden) for part in PARTS})
        for part in PARTS:
            last: Any = self.actor[part]
            nn.init.uniform_(last[-1].weight, -0.01, 0.01)
            nn.init.constant_(last[-1].bias, keep_bias if part == "keep" else 0.0)
        self.value_gpu = nn.Sequential(
            nn.Linear(GPU_FEATURES + MODEL_FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, hidden)
        )
        self.value_model = nn.Sequential(
            nn.Linear(MODEL_FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, hidden)
        )

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (n, G·(M + 1)) and what the value is read from (n, 2·hidden)."""
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: torch.Tensor) -> torch.Tensor:
        """Logits, (n, G·(M + 1))."""
        parts = take_apart(features, self.gpus, self.models)
        host = parts.bits[..., 0] @ parts.model
        around = torch.cat(
            [parts.gpu, host, parts.model.mean(1, keepdim=True).expand_as(host)], dim=-1
        )
        shape = parts.bits.shape[:3]
        wide = around[:, :, None, :].expand(*shape, -1)
        each = parts.model[:, None].expand(*shape, -1)
        pair = self.actor["pair"](torch.cat([parts.bits, each, wide], dim=-1))[..., 0]
        return torch.cat([self.actor["keep"](around), pair], dim=-1).flatten(1)

    def forward_critic(self, features: torch.Tensor) -> torch.Tensor:
        """Sums over GPUs and over models, (n, 2·hidden)."""
        parts = take_apart(features, self.gpus, self.models)
        host = parts.bits[..., 0] @ parts.model
        of_gpus = self.value_gpu(torch.cat([parts.gpu, host], dim=-1)).mean(1)
        return torch.cat([of_gpus, self.value_model(parts.model).mean(1)], dim=-1)


class ScorerPolicy(MaskableActorCriticPolicy):
    """MaskablePPO's policy with a `Scorer`, whose scores are the logits themselves."""

    def __init__(self, *args: Any, hidden: int, keep_bias: float, **kwargs: Any) -> None:
        self._hidden, self._keep_bias = hidden, keep_bias
        super().__init__(*args, **{**kwargs, "ortho_init": False})

    def _build_mlp_extractor(self) -> None:
        assert isinstance(self.action_space, spaces.MultiDiscrete)
        choices = self.action_space.nvec
        self.mlp_extractor: Any = Scorer(
            len(choices), int(choices[0]) - 1, self._hidden, self._keep_bias
        )

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.action_net: Any = nn.Identity()
        arguments: dict[str, Any] = {"lr": lr_schedule(1), **self.optimizer_kwargs}
        self.optimizer = self.optimizer_class(self.parameters(), **arguments)


def export(policy: ScorerPolicy) -> dict[str, NDArray[np.float32]]:
    """Return the tensors of the acting network, as its player takes them."""
    tensors = {}
    for part in PARTS:
        network: Any = policy.mlp_extractor.actor[part]
        for i in range(LAYERS):
            layer = network[2 * i]
            tensors[f"{part}{i}.weight"] = layer.weight.detach().numpy().astype(np.float32)
            tensors[f"{part}{i}.bias"] = layer.bias.detach().numpy().astype(np.float32)
    return tensors
