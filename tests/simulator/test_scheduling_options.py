"""Async scheduling, prefix caching and experts, on instances that can be checked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inframind_gym.simulator.server.pool import ServerCard, StepCost
from inframind_gym.simulator.server.replay import replay_requests
from inframind_gym.simulator.server.state import card_record


def serve(
    requests: list[tuple[float, int, int]], priority: list[int] | None = None, **changes: Any
) -> np.ndarray:
    """Serve (submit_s, prompt tokens, output tokens); a step takes 1 s unless told otherwise."""
    fields: dict[str, Any] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "num_kv_blocks": 101,
        "max_model_len": 64,
        "step": StepCost(base_s=1.0),
    }
    card = card_record(ServerCard(**(fields | changes)))
    submit_s, prompts, outputs = zip(*requests, strict=True)
    return replay_requests(card, np.zeros(len(requests)), submit_s, prompts, outputs, priority)


@pytest.mark.parametrize(("prefix_caching", "finish_s"), [(False, 25.0), (True, 23.0)])
def test_an_evicted_request_finds_blocks_again(prefix_caching: bool, finish_s: float) -> None:
    # 9 blocks of one token. Step 1 prefills 4 + 4 tokens, in step 2 the second request finds no
    # block and is evicted; steps 3 and 4 of the first overwrite two of the four that it left. Step
    # 5 computes 5 tokens anew, or the 3 that are missing; steps 6 and 7 emit the last two.
    served = serve(
        [(0.0, 4, 4), (0.0, 4, 4)],
        num_kv_blocks=10,
        block_size=1,
        max_model_len=9,
        prefix_caching=prefix_caching,
        step=StepCost(base_s=1.0, per_new_token_s=1.0),
    )
    assert served["evictions"].tolist() == [0, 1]
    assert served["finish_s"].tolist() == [9.0 + 3 * 2.0, finish_s]


def test_a_shared_head_is_neither_computed_nor_stored_twice() -> None:
    served = serve(
        [(0.0, 33, 1), (100.0, 32, 1), (200.0, 5, 1)],
        prefix_caching=True,
        shared_prefix_tokens=32,
        step=StepCost(base_s=1.0, per_new_token_s=1.0),
    )
    # One token is left of the first prompt. The last token of a prompt is always computed, and
    # blocks are found whole: 16 tokens are left of the second prompt, all of the third.
    assert served["finish_s"].tolist() == [2.0, 117.0, 206.0]


def test_a_step_reads_the_experts_that_its_tokens_need() -> None:
    step = StepCost(base_s=1.0, sparse_s=4.0, sparse_tokens=8.0)
    served = serve([(0.0, 8, 2)], step=step)
    prefill_s, decode_s = 1 + 4 * (1 - np.exp(-1)), 1 + 4 * (1 - np.exp(-1 / 8))
    assert served["first_token_s"][0] == pytest.approx(prefill_s)
    assert served["finish_s"][0] == pytest.approx(prefill_s + decode_s)
