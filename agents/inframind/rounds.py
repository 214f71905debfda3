"""What a training plays: which sweeps in which round, in which shards, and the batches it makes.

A round is one sweep in every row; an epoch is as many rounds as there are rates, which every row
goes through in an order of its own (`spec/inframind.md` §4.5).
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np

from agents.inframind.config import InfraMindConfig
from agents.inframind.rollouts import Episodes, concatenate

# What the seeds of a training are for, beside those of `rollouts` and `learner`.
RATES: Final = 4
VALIDATION: Final = 5


def round_rates(config: InfraMindConfig, seed: int, round_: int) -> list[list[float]]:
    """Arrival rate of every row of every shard: each row shuffles the rates of an epoch anew."""
    rates = np.asarray(config.rates_per_min)
    epoch, sweep = divmod(round_, len(rates))
    out = []
    for shard in range(config.shards):
        orders = [
            np.random.default_rng([seed, RATES, epoch, shard, row]).permutation(len(rates))
            for row in range(config.rows_per_shard)
        ]
        out.append([float(rates[order[sweep]]) for order in orders])
    return out


def shard_config(config: InfraMindConfig, seed: int, shard: int) -> dict[str, Any]:
    """Keyword arguments of a training shard."""
    return {
        "env": config.env.arguments("train"),
        "rows": config.rows_per_shard,
        "shard": shard,
        "seed": seed,
        "network": config.network(),
        "see_system": config.executor.system_state,
    }


def validation_shard(config: InfraMindConfig, seed: int) -> dict[str, Any]:
    """Keyword arguments of the shard that validates: held-out tasks, one budget, no draws."""
    arguments = config.env.arguments("val") | {"budget_s": config.validation.budget_s}
    return shard_config(config, seed, VALIDATION) | {
        "env": arguments,
        "rows": config.validation.rows,
        "deterministic": True,
    }


def cut(waiting: list[Episodes], size: int, *, last: bool) -> tuple[list[Episodes], Episodes]:
    """Cut queries into batches.

    Args:
        waiting: the queries, in order.
        size: of a batch.
        last: no more will come: what is left over joins the last batch.

    Returns:
        The batches and what is left over.
    """
    queries = concatenate(waiting)
    count = len(queries) // size
    edges = [i * size for i in range(count + 1)]
    if last and len(queries) > 1:
        edges = [*edges[: max(count, 1)], len(queries)]
    batches = [queries.take(slice(a, b)) for a, b in itertools.pairwise(edges)]
    return batches, queries.take(slice(edges[-1], None))
