"""Estimated cards predict request logs of real servers from the servers' options alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inframind_gym.calibration.request_log import read_log
from inframind_gym.simulator.estimate.architecture import find_architecture
from inframind_gym.simulator.estimate.roofline import Server, find_gpu, hardware
from inframind_gym.simulator.server.replay import replay_requests
from inframind_gym.simulator.server.state import card_record

LOGS = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "vllm_traces"
pytestmark = pytest.mark.skipif(
    not LOGS.is_dir(), reason="the folder shared/data/vllm_traces is not beside the repository"
)


def error_pct(log_name: str, model: str, gpu_name: str, ranks: int, max_num_seqs: int) -> float:
    """Error of the mean end-to-end latency of a log, in percent."""
    _, gpu = find_gpu(gpu_name)
    server = Server(find_architecture(model), gpu, ranks, max_num_seqs, 2048, 8192)
    card = server.card(1e9 * gpu.memory_gb * hardware().factors.memory_share)
    log = read_log(LOGS / f"{log_name}.jsonl")
    where = np.zeros(len(log), np.int64)
    served = replay_requests(
        card_record(card), where, log.arrival_s, log.prompt_tokens, log.output_tokens
    )
    predicted = np.mean(served["finish_s"] - log.arrival_s)
    return float(100.0 * (predicted / np.mean(log.last_token_s - log.arrival_s) - 1.0))


@pytest.mark.parametrize(
    ("log", "model", "gpu", "ranks", "max_num_seqs"),
    [
        ("RTX4090_Llama-3.1-8B", "llama-3.1-8b", "RTX-4090", 1, 256),
        ("RTXPRO6000_Llama-3.1-8B", "llama-3.1-8b", "RTX-PRO-6000", 1, 128),
        ("RTXPRO6000_Qwen3-32B", "qwen3-32b", "RTX-PRO-6000", 2, 128),
    ],
)
def test_the_mean_latency_of_a_log(
    log: str, model: str, gpu: str, ranks: int, max_num_seqs: int
) -> None:
    error = error_pct(log, model, gpu, ranks, max_num_seqs)
    print(f"{log}: {error:+.1f} %")
    assert abs(error) <= 15.0
