"""From a trained Stable-Baselines3 model to plain arrays: no pickle leaves the training.

The network that acts is a plain perceptron: PPO, A2C and MaskablePPO act on its logits, DQN on its
values; the best action is the largest of either. Weights keep PyTorch's layout, (outputs, inputs).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from torch import nn

from inframind_gym.errors import ConfigError

ACTIVATIONS: Final = {nn.Tanh: "tanh", nn.ReLU: "relu"}


def export_network(model: BaseAlgorithm) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
    """The acting network of a model.

    Returns:
        Tensors "layer<i>.weight" (outputs, inputs) and "layer<i>.bias" (outputs,), and a
        description {"activation": "tanh", "layers": [779, 64, 64, 15]}.

    Raises:
        ConfigError: the network is no plain perceptron with one kind of activation.
    """
    modules = _acting_modules(model)
    linear = [module for module in modules if isinstance(module, nn.Linear)]
    between = {type(module) for module in modules if not isinstance(module, nn.Linear)}
    if len(between) > 1 or not between <= set(ACTIVATIONS) or not linear:
        raise ConfigError(
            f"{type(model).__name__}: only plain networks with tanh or relu can be exported, got "
            f"{[type(module).__name__ for module in modules]}; use net_arch lists in `policy`"
        )
    tensors: dict[str, NDArray[np.float32]] = {}
    for i, layer in enumerate(linear):
        tensors[f"layer{i}.weight"] = layer.weight.detach().numpy().astype(np.float32)
        tensors[f"layer{i}.bias"] = layer.bias.detach().numpy().astype(np.float32)
    activation = ACTIVATIONS[between.pop()] if between else "relu"
    widths = [linear[0].in_features, *(layer.out_features for layer in linear)]
    return tensors, {"activation": activation, "layers": widths}


def _acting_modules(model: BaseAlgorithm) -> list[nn.Module]:
    policy: Any = model.policy
    if hasattr(policy, "q_net"):
        return list(policy.q_net.q_net)
    return [*policy.mlp_extractor.policy_net, policy.action_net]
