"""Variables of `.env` and the options of the server: honoured, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.simulator.estimate.roofline import find_gpu
from inframind_gym.teams.coordination.options import read_environment
from inframind_gym.teams.coordination.serving import GPUS, VllmServer, estimate

WHOLE = """# the team
ENABLE_MULTI_AGENT=true
export AGENT_DECISION_TIMEOUT=300  # ms
FALLBACK_TO_BASIC_RAG='false'
MODEL_PATH="Qwen/Qwen3-4B-Instruct-2507-FP8"
MAX_CONTEXT_LENGTH=128000
VLLM_GPU_MEMORY_UTILIZATION=0.95
VLLM_MAX_MODEL_LEN=128000
VLLM_QUANTIZATION=fp8
SOMETHING_ELSE=1
"""


def test_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "team.env"
    path.write_text(WHOLE)
    found = read_environment({}, path)
    assert found.settings() == {
        "enable_multi_agent": True,
        "agent_decision_timeout_ms": 300.0,
        "fallback_to_basic_rag": False,
    }
    assert (found.MODEL_PATH, found.MAX_CONTEXT_LENGTH) == (
        "Qwen/Qwen3-4B-Instruct-2507-FP8",
        128_000,
    )
    server = VllmServer.of(found)
    assert (server.max_model_len, server.gpu_memory_utilization) == (128_000, 0.95)
    assert "128000" in server.arguments()


def test_variables_of_the_process_win(tmp_path: Path) -> None:
    path = tmp_path / "team.env"
    path.write_text(WHOLE)
    found = read_environment({"AGENT_DECISION_TIMEOUT": "250", "MODEL_PATH": ""}, path)
    assert found.AGENT_DECISION_TIMEOUT == 250.0
    assert found.MODEL_PATH.startswith("Qwen/")


def test_no_file_is_no_error_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_environment({}).settings() == {}
    with pytest.raises(ConfigError, match="no such file"):
        read_environment({}, tmp_path / "other.env")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ENABLE_MULTI_AGENT", "maybe"),
        ("AGENT_DECISION_TIMEOUT", "-1"),
        ("MAX_CONTEXT_LENGTH", "262144"),
        ("VLLM_GPU_MEMORY_UTILIZATION", "1.5"),
        ("VLLM_QUANTIZATION", "awq"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        read_environment({name: value}, None)


def test_what_vllm_refuses_is_refused() -> None:
    with pytest.raises(ValueError, match="take fp8"):
        VllmServer(kv_cache_dtype="fp8_e5m2")


def test_the_server_of_the_design_holds_its_context() -> None:
    server = VllmServer()
    assert server.kv_token_bytes == 73_728
    # 4.4 GB of weights, 9.7 GB of keys and values of 131,072 tokens, buffers.
    assert server.memory_gb("RTX-4090-LAPTOP") == pytest.approx(15.2, abs=0.1)
    card = server.card("RTX-4090-LAPTOP")
    assert 131_072 <= card.num_kv_blocks * card.block_size < 160_000
    half = VllmServer(kv_cache_dtype="auto")
    assert half.kv_token_bytes == 2 * server.kv_token_bytes
    assert half.memory_gb("RTX-4090-LAPTOP") > 17.17 > server.memory_gb("RTX-4090-LAPTOP")


@pytest.mark.parametrize("gpu", GPUS)
def test_estimated_speeds_stay_below_the_data_sheet(gpu: str) -> None:
    speed, sheet = estimate(gpu), find_gpu(gpu)[1]
    weights_gb = 4.4
    assert speed.decode_tok_s < sheet.bandwidth_gb_per_s / (0.7 * weights_gb)
    assert speed.prefill_tok_s < 1e12 * (sheet.fp8_tflops or 0.0) / (2 * 3.6e9)


def test_speeds_of_the_gpus_that_the_design_names() -> None:
    laptop, desktop = estimate("RTX-4090-LAPTOP"), estimate("RTX-4090")
    assert 80 < laptop.decode_tok_s < 100 < desktop.decode_tok_s < 160
    assert laptop.prefill_tok_s > 10 * 1300  # of the rates that the design gives
    assert laptop.checks()["memory < 16 GB"]
    assert not laptop.checks()["decode >= 100 tok/s"]
