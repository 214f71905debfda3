"""Access log: one JSON object a line, one line a request, however it ended.

The fields are those of the live environments' request log (`live/request_log.py`), which
`inframind calibrate` reads, and these:

    asked            model that was asked for
    tenant           name of the key
    http             status of the answer
    budget_s, latency_s, predicted_s
    path, stream, domain

No text of a question, of an answer or of a key is written. `status` is "whole" of an answer that
was not streamed: its first token has no time. Calibrations of a pool count it by its end, those of
one model leave it out. Requests that were refused before they were read have no line.
"""

from __future__ import annotations

from typing import Any

from inframind_gym.live.gateway.asked import Asked
from inframind_gym.live.gateway.upstream import Attempt
from inframind_gym.simulator.workflow.topology import STRATEGIES


def record(
    asked: Asked, attempt: Attempt | None, end_s: float, epoch_s: float, **ended: Any
) -> dict[str, Any]:
    """Return the line of a request.

    Args:
        asked: the request.
        attempt: the last one; None: none was made.
        end_s: when it was over.
        epoch_s: time of day when the monotonic clock stood at 0.
        ended: how: status (as of the request log, or "whole"), http, attempts, error.
    """
    line: dict[str, Any] = {
        "request_id": asked.request_id,
        "model": None,
        **ended,
        "input_toks": None,
        "output_toks": None,
        "submit_ts": round(asked.arrived_s, 6),
        "end_ts": round(end_s, 6),
        "asked": asked.model[:100],
        "tenant": asked.tenant.config.name,
        "budget_s": asked.budget_s,
        "latency_s": round(end_s - asked.arrived_s, 6),
        "path": asked.path,
        "stream": asked.stream,
        "domain": asked.domain,
        "max_tokens": asked.max_tokens,
    }
    if attempt is not None:
        choice, result = attempt.choice, attempt.result
        times_s = {
            "sent_ts": result.sent_s,
            "queued_ts": result.queued_s,
            "scheduled_ts": result.scheduled_s,
            "first_token_ts": result.first_token_s,
            "last_token_ts": result.last_token_s,
            "arrival_time": None if result.sent_s is None else result.sent_s + epoch_s,
        }
        line |= {name: None if s is None else round(s, 6) for name, s in times_s.items()}
        line |= {
            "model": choice.alias,
            "input_toks": result.prompt_tokens,
            "output_toks": result.output_tokens,
            "priority": choice.priority,
            "strategy": None if choice.strategy is None else STRATEGIES[choice.strategy],
            "predicted_s": round(choice.predicted_s, 3),
        }
    return line
