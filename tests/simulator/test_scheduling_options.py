"""A shared head of all prompts, which vLLM's recorded decisions do not have, worked out by hand."""

from __future__ import annotations

import numpy as np

from inframind_gym.simulator.server.pool import ServerCard, StepCost
from inframind_gym.simulator.server.replay import replay_requests
from inframind_gym.simulator.server.state import card_record


def test_a_shared_head_is_neither_computed_nor_stored_twice() -> None:
    card = ServerCard(
        max_num_seqs=4,
        max_num_batched_tokens=64,
        num_kv_blocks=101,
        max_model_len=64,
        prefix_caching=True,
        shared_prefix_tokens=32,
        step=StepCost(base_s=1.0, per_new_token_s=1.0),
    )
    submit_s, prompts, outputs = [0.0, 100.0, 200.0], [33, 32, 5], [1, 1, 1]
    served = replay_requests(card_record(card), np.zeros(3), submit_s, prompts, outputs)
    # One token is left of the first prompt. The last token of a prompt is always computed, and
    # blocks are found whole: 16 tokens are left of the second prompt, all of the third.
    assert served["finish_s"].tolist() == [2.0, 117.0, 206.0]
