"""Request logs made by the kernel itself, with known constants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from inframind_gym.simulator.server.open_loop import replay_requests
from inframind_gym.simulator.server.pool import ServerCard, StepCost
from inframind_gym.simulator.server.state import card_record

STEP = StepCost(base_s=0.012, per_kv_token_s=8e-8, per_new_token_s=4e-5, per_attention_unit_s=2e-9)


def card(**changes: Any) -> ServerCard:
    """A server that never runs out of KV cache, or whatever the changes say."""
    fields: dict[str, Any] = {
        "max_num_seqs": 16,
        "max_num_batched_tokens": 1024,
        "num_kv_blocks": 4000,
        "max_model_len": 2048,
        "step": STEP,
    }
    return ServerCard(**(fields | changes))


def rows(server: ServerCard, requests: int = 120, *, per_s: float = 8.0) -> list[dict[str, Any]]:
    """What the server's log says of a load that is above its capacity at first, then ends."""
    rng = np.random.default_rng(7)
    submit_s = np.cumsum(rng.exponential(1.0 / per_s, requests))
    prompts = rng.integers(40, 900, requests)
    outputs = rng.integers(50, 250, requests)
    served = replay_requests(card_record(server), np.zeros(requests), submit_s, prompts, outputs)
    late_s = rng.uniform(0.0, 0.01, requests) * (np.arange(requests) % 5 > 0)
    queued_s = np.minimum(submit_s + late_s, served["admitted_s"])
    engine_s, epoch_s = 5000.0, 1.75e9  # the two clocks
    return [
        {
            "request_id": f"r-{i}",
            "input_toks": int(prompts[i]),
            "output_toks": int(outputs[i]),
            "arrival_time": epoch_s + submit_s[i],
            "queued_ts": engine_s + queued_s[i],
            "scheduled_ts": engine_s + served["admitted_s"][i],
            "first_token_ts": engine_s + served["first_token_s"][i],
            "last_token_ts": engine_s + served["finish_s"][i],
        }
        for i in range(requests)
    ]


def write(folder: Path, lines: list[dict[str, Any]]) -> Path:
    """The log as a file."""
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
