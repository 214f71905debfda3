"""What the environments share in which one query is one episode: how a sweep goes on."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing.base import InfraMindEnv
from inframind_gym.envs.routing.simulation import SWEEP_OVER


class OneQueryEnv(InfraMindEnv):
    """One of the sweep's queries is the agent's, the others are its weather."""

    one_query: ClassVar[bool] = True
    _begun = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start the episode of the next query; see Starting State."""
        super().reset(seed=seed)
        self._set_options(options)
        fresh = seed is not None or bool(options) or self._running or not self._begun
        self._begun = True
        if fresh:
            observation = self._begin(inside=True)
        else:
            observations, self._contexts = self.simulation.buffers()
            self.simulation.resume(self._row, observations, self._contexts)
            if self.simulation.status[0] == SWEEP_OVER:
                observation = self._begin(inside=False)
            else:
                observation = self._episode_starts(observations)
        return observation, self._info(0.0)

    def _summary(self) -> dict[str, Any]:
        query = self.completed()[-1]
        return {
            "solved": int(query["solved"]),
            "latency_s": float(query["latency_s"]),
            "budget_s": float(query["budget_s"]),
        }
