"""Cost of an episode in USD, by the prices in its pool."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.server.pool import PoolConfig

_MILLION = 1e6


def with_prices(
    pool: PoolConfig, completed: NDArray[Any], calls: NDArray[Any] | None
) -> NDArray[Any]:
    """Return the queries of an episode with a further field `usd`, if the pool has prices.

    GPUs are paid from the first arrival to the last answer, busy or not; every query bears the same
    share. Tokens are paid by the query whose calls they are.

    Args:
        pool: The servers.
        completed: (q,) COMPLETED, all queries of the episode.
        calls: Its CALL records; needed where tokens have a price.
    """
    if not pool.has_prices:
        return completed
    fields: Any = completed.dtype.fields
    out = np.zeros(
        len(completed), [*((name, field[0]) for name, field in fields.items()), ("usd", "f8")]
    )
    for name in fields:
        out[name] = completed[name]
    hourly_usd = sum(gpu.price_per_gpu_hour_usd or 0.0 for gpu in pool.gpus)
    hours = (completed["finish_s"].max() - completed["arrival_s"].min()) / 3600.0
    out["usd"] = hourly_usd * hours / len(completed)
    if calls is None:
        return out
    for tokens in ("prompt_tokens", "output_tokens"):
        prices = [getattr(model, f"price_per_million_{tokens}_usd") or 0.0 for model in pool.models]
        paid = np.bincount(
            calls["query"],
            calls[tokens] * np.array(prices)[calls["model"]] / _MILLION,
            minlength=int(completed["query"].max()) + 1,
        )
        out["usd"] += paid[completed["query"]]
    return out
