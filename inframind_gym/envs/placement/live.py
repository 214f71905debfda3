"""InfraMind-PlacementLive-v0: placement on live servers."""

from __future__ import annotations

from typing import Any

from inframind_gym.envs.placement.env import PlacementEnv
from inframind_gym.live.config import live_placement_config
from inframind_gym.live.placement.cluster import LivePlacement


class PlacementLiveEnv(PlacementEnv):
    """`InfraMind-Placement-v0` on live vLLM servers: wake, put to sleep, start and stop them.

    ## Description

    Spaces, masks, rewards, costs, records and `context()` are those of `InfraMind-Placement-v0`;
    see there. Every instance is a vLLM process that this environment starts: an awake one serves,
    switching is `POST /sleep` and `POST /wake_up`, offloading ends the process, loading starts one.
    The demand's jobs arrive on the wall clock, their calls are sent as chat completions of the
    drawn lengths, and time is the wall clock's: it goes on while the agent thinks, and a step takes
    `decision_interval_s`. Calls are routed, and answers taken, inside `step` alone: an agent that
    thinks for longer than a routing interval keeps them waiting (`LivePlacement.decide_by` does
    not). `inframind_gym.live.placement` lists the traps of sleeping servers, and the answers.

    Memory is kept in books, by the cards of the cluster: on CPUs `GPUs` are slots that only exist
    there. A start that fails all the same is rolled back, counted and not retried for
    `live.backoff_s`: until then the mask is closed for it.

    Beside those of `InfraMind-Placement-v0`, the last `info` holds `failed_calls`, answers that did
    not come or were cut, and were asked for again, and `lost_calls`, given up after all retries;
    a job with a lost call is late. `late_decisions` counts the steps that came more than a routing
    interval after the last one ended, `unrouted_s` adds up how long nothing was routed before them.

    ## Starting State

    The first `reset` brings up what `initial` says and waits for it: minutes, for large models.
    Later ones leave the models where they are, give up the calls that are under way and wait for
    transitions. A seed draws the same jobs again, nothing else repeats.

    ## Episode End

    As in `InfraMind-Placement-v0`. Servers go on running until `close()`, which ends all of them.

    ## Arguments

    See `inframind_gym.live.config.PlacementLiveConfig`.

    ## Version History

    * v0: first version.
    """

    simulation: LivePlacement

    def _simulate(self, arguments: dict[str, Any]) -> LivePlacement:
        return LivePlacement(live_placement_config(arguments))

    def close(self) -> None:
        """Stop all servers. `reset` would start them again."""
        self.simulation.close()
        self._running = False
        super().close()
