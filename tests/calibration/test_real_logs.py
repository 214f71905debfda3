"""Real vLLM logs: what was not fitted is predicted within the targets of docs/fidelity.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from inframind_gym.calibration.report import log_report
from inframind_gym.calibration.request_log import read_log
from inframind_gym.calibration.server_card import Limits, calibrate

LOGS = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "vllm_traces"
pytestmark = pytest.mark.skipif(
    not LOGS.is_dir(), reason="the folder shared/data/vllm_traces is not beside the repository"
)


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("RTXPRO6000_Llama-3.1-8B", Limits(128, 2048)),
        ("RTXPRO6000_Qwen3-32B", Limits(128, 2048)),
        ("RTX4090_Llama-3.1-8B", Limits(256, 2048, 2588)),
    ],
)
def test_the_unseen_half(name: str, limits: Limits) -> None:
    figures = log_report(calibrate(read_log(LOGS / f"{name}.jsonl"), limits))
    e2e = figures["unseen"]["e2e_s"]
    assert abs(e2e["mean"]["error_pct"]) <= 1.0
    for percentile in ("p50", "p90", "p95", "p99"):
        assert abs(e2e[percentile]["error_pct"]) <= 3.0, percentile
    assert abs(figures["unseen"]["ttft_s"]["mean"]["error_pct"]) <= 3.0
    assert figures["parameters"]["count"] <= 8
    assert figures["warnings"] == []


@pytest.mark.slow
def test_the_full_cache_shows() -> None:
    log = read_log(LOGS / "RTX4090_Llama-3.1-8B.jsonl")
    figures = log_report(calibrate(log, Limits(256, 2048)))
    assert "Give --num-kv-blocks" in figures["warnings"][0]
    assert abs(figures["unseen"]["e2e_s"]["mean"]["error_pct"]) <= 3.0
