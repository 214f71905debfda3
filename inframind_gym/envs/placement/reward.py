"""Reward and cost of a decision interval.

| term of the reward | |
|---|---|
| `waiting` | minus the request-seconds that calls were ready and not running, over `request_norm` |
| `service` | minus the request-seconds that calls were running, over `request_norm` |
| `illegal` | minus `illegal_penalty` times the share of GPUs whose choice was illegal |

Request-seconds are the integral over the interval of the number of calls. `request_norm` is the
number of calls that come in an interval on average, a constant of the demand, times
`latency_scale_s`. By Little's law the mean reward of an episode is then minus the mean latency of a
call over `latency_scale_s`. Dividing by the calls that happen to be in the cluster would instead
reward a policy that lets them pile up.

The *cost* of an interval is the number of jobs whose deadline passed in it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.placement.compiled import inner
from inframind_gym.simulator.placement.state import ClusterParams, ClusterState

TERMS: Final = ("waiting", "service", "illegal")


@inner
def write_reward(
    world: ClusterParams, cluster: ClusterState, e: int, terms: NDArray[np.float64]
) -> None:
    """Write the terms of the interval that has been closed.

    Args:
        terms: (3,) in the order of TERMS, written; the reward is their sum.
    """
    settings = world.settings[0]
    episode = cluster.episode[e]
    terms[0] = -episode.waiting_s / settings.request_norm
    terms[1] = -episode.service_s / settings.request_norm
    terms[2] = -settings.illegal_penalty * episode.illegal / world.gpu.shape[0]
