"""Routing environments on live servers: the same spaces, records and costs, on the wall clock."""

from __future__ import annotations

from typing import Any

from inframind_gym.envs.routing.base import InfraMindEnv
from inframind_gym.envs.routing.executor import ExecutorEnv
from inframind_gym.envs.routing.stream import StreamEnv
from inframind_gym.live.config import live_config
from inframind_gym.live.simulation import LiveSimulation


class _LiveEnv(InfraMindEnv):
    """Common part of the live routing environments."""

    simulation: LiveSimulation

    def _simulate(self, arguments: dict[str, Any]) -> LiveSimulation:
        return LiveSimulation(live_config(arguments), one_query=self.one_query)

    def models_up(self) -> int:
        """Return the bit mask of the models whose servers are up now, not at the last step."""
        servers = self.simulation.servers
        if servers is None:
            return super().models_up()
        return servers.watcher.up & self.simulation.models_up

    def close(self) -> None:
        """Give up what is in flight and disconnect from the servers, which go on running."""
        self.simulation.disconnect()
        super().close()


class ExecutorLiveEnv(_LiveEnv, ExecutorEnv):
    """`InfraMind-Executor-v0` on live servers: route every agent call of one query.

    ## Description

    Spaces, rewards, costs and records are those of `InfraMind-Executor-v0`; see there. The calls go
    to the vLLM servers of a pool (`inframind pool up --pool FILE` starts them), their answers are
    graded, and time is the wall clock's: it goes on while the agent thinks. The background traffic
    is sent by the `background` router, when they arrive and the environment is stepped.

    A server that is down or asleep is masked out (`action_masks()`), and used again when it comes
    back. A call that fails is sent again, to another server if need be, and counts as a wrong
    answer when it has failed for good. Call `close()`: it gives up what is in flight.

    ## Arguments

    See `inframind_gym.live.config.LiveConfig`.

    ## Version History

    * v0: first version.
    """


class StreamLiveEnv(_LiveEnv, StreamEnv):
    """`InfraMind-Stream-v0` on live servers: a whole stream of queries, every decision the agent's.

    ## Description

    As `InfraMind-ExecutorLive-v0` is to `InfraMind-Executor-v0`. Queries arrive on the wall clock;
    a policy that is slow to decide makes all of them wait.

    ## Arguments

    See `inframind_gym.live.config.LiveConfig`.

    ## Version History

    * v0: first version.
    """
