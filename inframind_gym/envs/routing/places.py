"""The Dict form of an observation: servers as rows, for set encoders and SB3's `MultiInputPolicy`.

The numbers are those of the flat form, in the same scales (`layout`):

| entry | shape | |
|---|---|---|
| `query` | (384,) | embedding of the query |
| `role` | (384,) | embedding of the role; in the scope "call" |
| `budget` | (1,) | remaining budget |
| `servers` | (M, F) | a row a model, a column a system feature in their order |
| `plan` | (1,) | 1 where a plan is due; at the joint level |
"""

from __future__ import annotations

import numpy as np

from inframind_gym.envs.observations import Places
from inframind_gym.envs.routing.simulation import Simulation


def places(simulation: Simulation) -> Places | None:
    """Places of the entries of a Dict observation; None where observations are flat."""
    if simulation.config.observation != "dict":
        return None
    layout, every = simulation.layout, np.arange(simulation.observation_size)
    found = {"query": every[layout.query], "role": every[layout.role]}
    if layout.scope != "query":
        resource = every[layout.resource]
        found["budget"] = resource[:1]
        found["servers"] = resource[1:].reshape(-1, layout.num_models).T
    found["plan"] = every[layout.size :]
    return {name: at for name, at in found.items() if at.size}
