"""The simulator: compiled rules of servers, workflows, answers and placement, without Gymnasium.

    server      vLLM servers in virtual time: a function per rule of the scheduler; faults, metrics
    workflow    topologies, the life of a query, dispatch, the event loop
    placement   GPUs that hold, wake and load models
    quality     the item-response model: right or wrong, and how many tokens
    workload    workload profiles (YAML); arrivals: when queries arrive
    rng, jit    counter-based random numbers; compiled code and its calls

`SIMULATOR_VERSION` is what recorded results declare. A change that alters an episode bumps it; a
rename, a moved file or an extracted function does not. `tests/golden` holds digests of about fifty
episodes and fails when they change without a new version.
"""

from __future__ import annotations

from typing import Final

SIMULATOR_VERSION: Final = 2
