"""Given requests through given servers, without workflows.

This is what calibration fits against request logs, what the tests hold against the step-by-step
reference and what `python -m benchmarks speed` times as `kernel_rps`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inframind_gym.errors import InfraMindError
from inframind_gym.simulator.server.open_loop import PLANNED, OpenLoop
from inframind_gym.simulator.server.state import NEVER_S

SERVED: Final = np.dtype(
    [("admitted_s", "f8"), ("first_token_s", "f8"), ("finish_s", "f8"), ("evictions", "i8")]
)


def replay_requests(
    card: NDArray[Any],
    server: ArrayLike,
    submit_s: ArrayLike,
    prompt_tokens: ArrayLike,
    output_tokens: ArrayLike,
    priority: ArrayLike | None = None,
    timeout_s: float = NEVER_S,
    faults: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Serve requests that arrive at given times and say what became of each.

    Args:
        card: (M,) server cards (`inframind_gym.simulator.server.state.cards(pool)`).
        server: (n,) index of the server that each request is sent to.
        submit_s: (n,) times of submission, s, ascending.
        prompt_tokens: (n,) tokens to prefill, at least 1.
        output_tokens: (n,) tokens to emit, at least 1.
        priority: (n,) lower first; without it, first come first served.
        timeout_s: after which a client aborts its request.
        faults: (F,) FAULT, by time, the last at infinity; requests at a server that is down are
            lost.

    Returns:
        (n,) SERVED records: start of the step of first admission, end of the step that emitted the
        first token, end of the last step, s; and how often it was evicted. Of one that was aborted
        or lost NaN and 0.

    Raises:
        InfraMindError: arrays of unequal length, times not ascending, counts below 1, a server that
            does not exist, or a request that can never fit the KV cache of its server.
    """
    times = np.asarray(submit_s, np.float64)
    order = np.zeros(len(times)) if priority is None else np.asarray(priority)
    columns = [np.asarray(column) for column in (server, prompt_tokens, output_tokens)]
    lengths = {len(times), len(order), *map(len, columns)}
    if len(lengths) != 1:
        raise InfraMindError(f"the arrays of a replay differ in length: {sorted(lengths)}")
    if not len(times):
        return np.zeros(0, SERVED)
    planned = np.zeros(len(times), PLANNED)
    planned["submit_s"], planned["priority"] = times, order
    planned["server"], planned["prompt_tokens"], planned["output_tokens"] = columns
    where, prompts, outputs = (
        planned[field] for field in ("server", "prompt_tokens", "output_tokens")
    )
    if not np.isfinite(times).all() or (np.diff(times) < 0).any():
        raise InfraMindError("submit_s must be finite and ascending; sort the requests first")
    if prompts.min() < 1 or outputs.min() < 1:
        raise InfraMindError("every request needs at least one prompt and one output token")
    if where.min() < 0 or where.max() >= len(card):
        raise InfraMindError(f"server must be in 0..{len(card) - 1}")
    needed = -(-(prompts + outputs) // card["block_size"][where])
    if (needed > card["usable_blocks"][where]).any():
        i = int(np.argmax(needed > card["usable_blocks"][where]))
        raise InfraMindError(
            f"request {i} needs {needed[i]} KV blocks and its server has "
            f"{card['usable_blocks'][where[i]]}; raise num_kv_blocks or drop the request"
        )
    ended = OpenLoop(card, len(times), timeout_s=timeout_s, faults=faults).serve(planned)
    out = np.empty(len(times), SERVED)
    for field in ("admitted_s", "first_token_s", "finish_s", "evictions"):
        out[field] = ended[field]
    out[ended["failed"] == 1] = (np.nan, np.nan, np.nan, 0)
    return out
