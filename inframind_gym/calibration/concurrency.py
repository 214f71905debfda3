"""Requests of a log that ran or waited at once: evidence of the server's limits.

A request runs from `scheduled_s` to `last_token_s`; while it is evicted it counts as running, too.
With first come, first served nobody who comes later runs while a request waits: what is said of
the first `n` requests needs no other.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.calibration.request_log import RequestLog
from inframind_gym.simulator.server.pool import ServerCard

_PATIENCE: Final = 4  # steps; a request that arrives within a step waits for its end
_LEAST_STARVED_S: Final = 1.0
_LEAST_STARVED_SHARE: Final = 0.1  # of the log's length


def count_at(
    start_s: NDArray[np.float64], end_s: NDArray[np.float64], times: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Count the intervals [start, end) that contain each time."""
    begun = np.searchsorted(np.sort(start_s), times, side="right")
    ended = np.searchsorted(np.sort(end_s), times, side="right")
    return (begun - ended).astype(np.int64)


def most_running(log: RequestLog, n: int) -> int:
    """Return the most of the first `n` requests that ran at once; 0 if the log does not say."""
    if not log.has_schedule:
        return 0
    start_s = log.scheduled_s[:n]
    return int(count_at(start_s, log.last_token_s[:n], start_s).max())


def starved_s(log: RequestLog, n: int, slots: int) -> float:
    """Return the time in which the KV cache alone can have kept the first `n` requests waiting, s.

    A request waited, for longer than a few steps, fewer than `slots` ran, and none of them was in
    its prefill: the steps computed one token for each, so the token budget was not full either.
    """
    if not log.has_schedule:
        return 0.0
    first_s, last_s = log.first_token_s[:n], log.last_token_s[:n]
    scheduled_s, steps = log.scheduled_s[:n], np.maximum(log.output_tokens[:n] - 1, 1)
    patience_s = _PATIENCE * float(np.median((last_s - first_s) / steps))
    since_s = np.minimum(log.queued_s[:n] + patience_s, scheduled_s)
    times = np.unique(np.concatenate([since_s, scheduled_s, first_s, last_s]))
    lasts_s = np.diff(times)
    middle_s = times[:-1] + 0.5 * lasts_s
    starved = count_at(since_s, scheduled_s, middle_s) > 0
    starved &= count_at(scheduled_s, last_s, middle_s) < slots
    starved &= count_at(scheduled_s, first_s, middle_s) == 0
    return float(lasts_s[starved].sum())


def cache_was_full(log: RequestLog, n: int, slots: int) -> bool:
    """Return True if the KV cache kept the first `n` requests waiting for long."""
    span_s = float(log.last_token_s[:n].max() - log.queued_s[0])
    return starved_s(log, n, slots) > max(_LEAST_STARVED_S, _LEAST_STARVED_SHARE * span_s)


def most_blocks(log: RequestLog, n: int, block_size: int) -> int:
    """Return the most KV blocks that the first `n` requests held, if tokens came at an even pace.

    Evicted requests hold none and are counted: under pressure it is somewhat too large.
    """
    most = 0
    scheduled_s, first_s, last_s = log.scheduled_s[:n], log.first_token_s[:n], log.last_token_s[:n]
    lasts_s = np.maximum(last_s - first_s, 1e-9)
    for now_s in scheduled_s:
        running = (scheduled_s <= now_s) & (last_s > now_s)
        done = np.clip((now_s - first_s) / lasts_s, 0.0, 1.0)
        tokens = (log.prompt_tokens[:n] + done * log.output_tokens[:n])[running]
        most = max(most, int(np.ceil(tokens / block_size).sum()))
    return most


def load_range(
    card: ServerCard, prompt_tokens: NDArray[np.int64], served: NDArray[Any], n: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the load of a simulation until the first `n` requests have ended.

    Returns:
        Fewest and most sequences at once, without the extreme hundredths of the busy time; fewest
        and most new tokens of a step: those of a step that admits, if all of them fit one.
    """
    start_s, end_s = served["admitted_s"], served["finish_s"]
    times = np.unique(np.concatenate([start_s, end_s]))
    times = times[times <= end_s[:n].max()]
    running, lasts_s = count_at(start_s, end_s, times[:-1]), np.diff(times)
    order = np.argsort(running)
    order = order[running[order] > 0]
    share = np.cumsum(lasts_s[order]) / lasts_s[order].sum()
    fewest, most = (int(running[order][np.searchsorted(share, at)]) for at in (0.01, 0.99))
    instants, which = np.unique(start_s, return_inverse=True)
    admitted = np.bincount(which, prompt_tokens)[instants <= times[-1]]
    budget = card.data_parallel_size * card.max_num_batched_tokens
    return (fewest, most), (fewest, max(most, min(int(admitted.max()), budget)))
