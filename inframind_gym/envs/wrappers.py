"""`ExportMetrics`: metrics of a router for Prometheus."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
from gymnasium.core import ActType, ObsType
from gymnasium.utils import RecordConstructorArgs

from inframind_gym.envs.exporter import DEFAULT_PORT, RouterExporter
from inframind_gym.envs.routing import RoutingEnv
from inframind_gym.errors import InfraMindError


class ExportMetrics(gym.Wrapper[ObsType, ActType, ObsType, ActType], RecordConstructorArgs):
    """Show what a router does to Prometheus while it runs (`docs/metrics.md`).

        env = ExportMetrics(gym.make("InfraMind-StreamLive-v0", record_calls=True), port=9400)
        env.follow(policy)  # shows its name and its λ, if it has one
        ...
        env.close()  # stops serving

    Any single environment of this package, live or simulated; calls, retries and tokens by model
    are counted where it was made with `record_calls=True`.

    Args:
        env: the environment, also within other wrappers.
        port: where to listen; 0 takes a free port.
        host: address to listen at. The metrics are shown to whoever can reach it.

    Attributes:
        exporter: the metrics and their server, with its `url`.

    Raises:
        InfraMindError: the environment is none that can be watched, the port is in use, or
            prometheus-client is not installed.
    """

    def __init__(
        self, env: gym.Env[ObsType, ActType], port: int = DEFAULT_PORT, host: str = "127.0.0.1"
    ) -> None:
        RecordConstructorArgs.__init__(self, port=port, host=host)
        gym.Wrapper.__init__(self, env)
        watched: object = env.unwrapped
        if not isinstance(watched, RoutingEnv):
            raise InfraMindError(
                f"{type(watched).__name__} cannot be watched: metrics are exported of the single "
                "environments that route queries (Executor, Planner, Stream, simulated or live)"
            )
        self.exporter = RouterExporter(watched.simulation.pool.aliases, port, host)
        self.exporter.metrics.watch(watched)

    def follow(self, policy: object) -> None:
        """Say who decides: its `name` is shown, and its `multiplier` λ if it has one."""
        self.exporter.metrics.follow(policy)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset the environment."""
        result = self.env.reset(seed=seed, options=options)
        self.exporter.metrics.began()
        return result

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment, and count what was decided and what has ended."""
        result = self.env.step(action)
        self.exporter.metrics.stepped()
        return result

    def close(self) -> None:
        """Stop serving, and close the environment."""
        self.exporter.close()
        super().close()
