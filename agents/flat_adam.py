"""Adam over all parameters of a network at once.

The networks here are small and updated thousands of times a minute: stepping through their
parameters one by one would take longer than the step itself. So they are laid end to end in one
tensor, of which the network's own parameters and gradients are views.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

BETAS: Final = (0.9, 0.999)
EPS: Final = 1e-5


class FlatAdam:
    """Adam (Kingma and Ba 2015) with gradients clipped by their norm.

    Args:
        module: the network; its parameters become views of one tensor.
        lr: learning rate.
        max_grad_norm: gradients with a longer norm are scaled to it.
    """

    def __init__(self, module: nn.Module, lr: float, max_grad_norm: float) -> None:
        self.lr, self.max_grad_norm = lr, max_grad_norm
        parameters = list(module.parameters())
        self._values = torch.cat([p.detach().reshape(-1) for p in parameters])
        self._gradient = torch.zeros_like(self._values)
        self._mean = torch.zeros_like(self._values)
        self._square = torch.zeros_like(self._values)
        self._steps = 0
        at = 0
        for p in parameters:
            end = at + p.numel()
            p.data = self._values[at:end].view_as(p)
            p.grad = self._gradient[at:end].view_as(p)
            at = end

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self._gradient.zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Move the parameters."""
        self._steps += 1
        gradient = self._gradient
        norm = float(gradient.norm())
        if norm > self.max_grad_norm:
            gradient.mul_(self.max_grad_norm / (norm + 1e-6))
        first, second = BETAS
        self._mean.lerp_(gradient, 1.0 - first)
        self._square.mul_(second).addcmul_(gradient, gradient, value=1.0 - second)
        scale = math.sqrt(1.0 - second**self._steps)
        root = self._square.sqrt().div_(scale).add_(EPS)
        self._values.addcdiv_(self._mean, root, value=-self.lr / (1.0 - first**self._steps))

    def state(self, prefix: str) -> dict[str, NDArray[Any]]:
        """What `restore` needs beside the parameters."""
        return {
            f"{prefix}mean": self._mean.numpy().copy(),
            f"{prefix}square": self._square.numpy().copy(),
            f"{prefix}steps": np.array([self._steps], np.int64),
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]], prefix: str) -> None:
        """Go back to a `state`."""
        self._mean.copy_(torch.from_numpy(np.array(arrays[f"{prefix}mean"])))
        self._square.copy_(torch.from_numpy(np.array(arrays[f"{prefix}square"])))
        self._steps = int(arrays[f"{prefix}steps"][0])
