"""The environments for OmniSafe: `import inframind_gym.envs.safe_rl` registers their ids there.

    agent = omnisafe.Agent("PPOLag", "InfraMind-Stream-v0", custom_cfgs={"env_cfgs": {...}, ...})

`env_cfgs` are the arguments of the environment, whose observation must be one array (Assignment:
`observation="flat"`). OmniSafe's actions are continuous: a discrete environment gets one number for
each choice, and takes the open choice with the largest. Costs are `info["cost"]`, in routing
latency / budget; `cost_limit` applies to an episode's sum.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from inframind_gym.errors import ConfigError, require

torch: Any = require("torch", "OmniSafe", "agents")
if "safety_gymnasium" not in sys.modules and find_spec("safety_gymnasium") is None:
    # OmniSafe imports it for tasks of its own; it pins Gymnasium 0.28
    sys.modules["safety_gymnasium"] = ModuleType("safety_gymnasium")
try:
    core: Any = import_module("omnisafe.envs.core")
except ImportError as error:
    raise ConfigError(
        f"this adapter needs {error.name or 'omnisafe'}, which is not installed and in no extra: "
        "OmniSafe pins Gymnasium 0.28. `pip install --no-deps omnisafe`, then what it asks for."
    ) from None


@core.env_register
class InfraMindCMDP(core.CMDP):  # type: ignore[misc]
    """One environment of this package as OmniSafe's constrained Markov decision process.

    Raises:
        ConfigError: `num_envs` is not 1, the observation is not one array, or an argument of the
            environment is wrong.
    """

    need_time_limit_wrapper = False
    need_auto_reset_wrapper = True
    _support_envs: ClassVar[list[str]] = [
        name
        for name, spec in gym.registry.items()
        if name.startswith("InfraMind-") and not spec.nondeterministic  # those of live servers
    ]

    def __init__(self, env_id: str, num_envs: int = 1, device: Any = "cpu", **arguments: Any):
        super().__init__(env_id)
        if num_envs != 1:
            raise ConfigError(f"num_envs: {num_envs}; this adapter has one environment: give 1")
        self._env, self._num_envs, self._device = gym.make(env_id, **arguments), 1, device
        self._seed: int | None = None
        if not isinstance(self._env.observation_space, spaces.Box):
            raise ConfigError(f"{env_id}: OmniSafe reads one array: give observation='flat'")
        unwrapped: Any = self._env.unwrapped
        self._masks, self._highs = unwrapped.action_masks, unwrapped.simulation.highs
        self._observation_space = self._env.observation_space
        self._action_space = unwrapped.action_space
        if len(self._highs):
            self._action_space = spaces.Box(-1.0, 1.0, (int(self._highs.sum()),))

    def _tensor(self, value: Any) -> Any:
        return torch.as_tensor(value, dtype=torch.float32, device=self._device)

    def step(self, action: Any) -> tuple[Any, ...]:
        """Return observation (d,), reward, cost, terminated, truncated, all float32, and info."""
        choice = action.detach().cpu().numpy().reshape(-1)
        if len(self._highs):
            numbers = np.where(self._masks(), choice, -np.inf)
            parts = np.split(numbers, np.cumsum(self._highs)[:-1])
            choice = np.array([int(part.argmax()) for part in parts])
            if not isinstance(self._env.action_space, spaces.MultiDiscrete):
                choice = choice[0]
        seen, reward, terminated, truncated, info = self._env.step(choice)
        results = map(self._tensor, (seen, reward, info["cost"], terminated, truncated))
        return *results, info

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Return the first observation of an episode, and its info."""
        chosen, self._seed = seed if seed is not None else self._seed, None
        seen, info = self._env.reset(seed=chosen, options=options)
        return self._tensor(seen), info

    def set_seed(self, seed: int) -> None:
        """Take a seed for the next reset."""
        self._seed = seed

    def render(self) -> Any:
        """Return what the environment renders."""
        return self._env.render()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
