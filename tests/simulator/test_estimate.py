"""Pools estimated from architectures and data sheets: sizes, placement, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from inframind_gym.calibration.request_log import read_log
from inframind_gym.cli import app
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.estimate.packing import Placing, make_pool, parse_gpus, parse_models
from inframind_gym.simulator.estimate.roofline import (
    Server,
    find_architecture,
    find_gpu,
    hardware,
    known_models,
)
from inframind_gym.simulator.server.open_loop import replay_requests
from inframind_gym.simulator.server.pool import PoolConfig, load_pool
from inframind_gym.simulator.server.state import card_record

LOGS = Path(__file__).resolve().parents[3] / "shared" / "data" / "vllm_traces"

PUBLISHED_B = """
llama-3.2-1b 1.24, llama-3.2-3b 3.21, llama-3.1-8b 8.03, llama-3.3-70b 70.6,
qwen2.5-0.5b 0.49, qwen2.5-1.5b 1.54, qwen2.5-3b 3.09, qwen2.5-7b 7.61, qwen2.5-14b 14.7,
qwen2.5-32b 32.5, qwen2.5-72b 72.7, qwen3-4b 4.02, qwen3-8b 8.2, qwen3-14b 14.8, qwen3-32b 32.8,
qwen3-30b-a3b 30.5, mistral-7b 7.25, mixtral-8x7b 46.7, mistral-small-24b 23.6,
gemma-2-9b 9.24, gemma-2-27b 27.2, phi-4 14.7"""  # parameters by the model cards, 10^9
LLAMA = find_architecture("llama-3.1-8b").model_dump(
    include={"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"}
    | {"intermediate_size", "vocab_size", "tie_word_embeddings", "max_position_embeddings"}
)


def pool(gpu: str, num_gpus: int, models: str) -> PoolConfig:
    return make_pool("mine", parse_gpus(f"{gpu}:{num_gpus}"), parse_models(models))


def folder(path: Path, **config: Any) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@pytest.mark.parametrize("row", " ".join(PUBLISHED_B.split()).split(", "))
def test_parameters_are_the_published_ones(row: str) -> None:
    name, published = row.split()
    assert find_architecture(name).parameters / 1e9 == pytest.approx(float(published), rel=0.01)


@pytest.mark.parametrize("name", known_models())
def test_every_model_has_a_card_on_every_gpu_that_holds_it(name: str) -> None:
    for gpu in hardware().gpus.values():
        server = Server(find_architecture(name), gpu, 1, 64, 2048, 4096)
        card = server.card(2 * server.least_bytes)
        assert card.estimate
        assert card.num_kv_blocks > server.least_blocks
        # No faster than reading what a token needs, nor slower than half as fast.
        model = server.model
        read = 2.0 * (model.used_by_a_token + model.in_head)
        token_s = (card.call_s(10, 101) - card.call_s(10, 1)) / 100
        assert token_s > 0.7 * read / (1e9 * gpu.bandwidth_gb_per_s)


def test_the_cache_of_the_rtx_4090_is_the_one_that_vllm_reports() -> None:
    """2,588 blocks with 256 sequences and 2,048 tokens a step (LLMServingSim's log)."""
    (model,) = pool("RTX 4090", 1, "llama-3.1-8b").models
    assert model.server.num_kv_blocks == pytest.approx(2588, rel=0.03)


def test_a_folder_with_a_config_json_is_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000}
    mixtral = find_architecture(folder(tmp_path / "a", **LLAMA, text_config=experts))
    assert mixtral.parameters == find_architecture("mixtral-8x7b").parameters
    assert mixtral.used_by_a_token < 0.3 * mixtral.parameters
    folder(tmp_path / "mine", **LLAMA)
    folder(tmp_path / "4 bits", **LLAMA, quantization_config={"quant_method": "gptq", "bits": 4})
    wanted = parse_models("./mine,./4 bits,known=llama-3.1-8b,b=./mine:fp8,c=./mine:awq")
    assert [model.needs_path for model in wanted] == [False] * 4 + [True]
    mine, quantized, known, *_ = make_pool("own", parse_gpus("H200"), wanted).models
    assert (mine.name, mine.alias, mine.path) == (str(tmp_path / "mine"), "mine", None)
    assert mine.server.step == known.server.step and mine.params_b == known.params_b
    assert quantized.alias == "4-bits" and wanted[1].model.quantization == "gptq"
    assert quantized.server.step.base_s < 0.6 * mine.server.step.base_s
    with pytest.raises(ConfigError, match=r"its weights are gptq"):
        parse_models("./4 bits:fp8")


def test_peers_share_what_is_left_and_a_split_model_reads_on_all_its_gpus() -> None:
    found = pool("H100-80GB", 2, "qwen2.5-7b,llama-3.1-8b,qwen2.5-32b")
    assert found.aliases == ("qwen2.5-7b", "llama-3.1-8b", "qwen2.5-32b")  # order of the actions
    seven, eight, _ = found.models
    assert seven.gpu_memory_frac + eight.gpu_memory_frac == pytest.approx(0.9, abs=0.002)
    assert seven.server.num_kv_blocks == pytest.approx(eight.server.num_kv_blocks, rel=0.05)
    assert found.gpus[1].colocation_slowdown == 1.0
    assert found.estimates == found.aliases
    split, whole = pool("H100-80GB", 2, "llama-3.3-70b"), pool("H200", 1, "llama-3.3-70b:fp8")
    assert split.models[0].server.step.base_s < 2.0 * whole.models[0].server.step.base_s


@pytest.mark.parametrize(
    ("gpu", "models", "placing", "where"),
    [
        ("A100-80GB:2", "a=llama-3.1-8b,b=llama-3.1-8b", "spread", "0 1"),
        ("A100-80GB:2", "a=llama-3.1-8b,b=llama-3.1-8b", "first", "0 0"),
        ("L4,H100-80GB", "llama-3.2-1b,llama-3.1-8b", "spread", "0 1"),  # the larger on the faster
        # The largest first, each on the emptiest; one that is larger than a GPU has its own.
        ("H100-80GB:2", "qwen2.5-7b,llama-3.1-8b,qwen2.5-32b", "spread", "1 1 0"),
        ("H100-80GB:3", "llama-3.2-3b,llama-3.3-70b", "spread", "2 0,1"),
        ("A100-80GB:2,H100-80GB:2", "llama-3.1-8b,phi-4,qwen3-32b@tp2", "spread", "1 0 2,3"),
    ],
)
def test_places_of_models(gpu: str, models: str, placing: Placing, where: str) -> None:
    found = make_pool("mine", parse_gpus(gpu), parse_models(models), placing=placing)
    places = [",".join(name.removeprefix("gpu") for name in m.all_gpus) for m in found.models]
    assert " ".join(places) == where
    assert found.idle_gpus == (("gpu1",) if placing == "first" else ())


@pytest.mark.parametrize(
    ("make", "wrong", "words"),
    [
        (find_architecture, {"hidden_size": None}, ["config.json", "hidden_size", "required"]),
        (find_architecture, {"kv_lora_rank": 512}, ["kv_lora_rank", "inframind calibrate"]),
        (find_architecture, {"num_experts_per_tok": 2}, ["_tok (2) exceeds num_experts (1)"]),
        (find_architecture, {"quantization_config": {"quant_method": "bits"}}, ["bits", "awq"]),
        (parse_models, "llama-8b", ["Did you mean 'llama-3.1-8b'"]),
        (parse_models, "llama-3.1-8b:int3", ["unknown quantization 'int3'"]),
        (parse_models, "llama-3.1-8b,llama-3.1-8b:fp8", ["is there twice"]),
        (parse_models, "/nowhere/model", ["config.json"]),
        (partial(pool, "H100-80GB", 1), "llama-3.3-70b", ["2 GPUs of its own", "1 GPUs have"]),
        (partial(pool, "L4", 1), "llama-3.1-8b,llama-3.2-3b", ["8.9 GB", "--gpu KIND:COUNT"]),
    ],
)
def test_what_does_not_do_is_said(
    tmp_path: Path, make: Callable[[Any], object], wrong: Any, words: list[str]
) -> None:
    given = folder(tmp_path / "m", **{**LLAMA, **wrong}) if isinstance(wrong, dict) else wrong
    with pytest.raises(ConfigError) as caught:
        make(given)
    for word in words:
        assert word in str(caught.value)


def test_the_command_writes_a_pool_that_is_read_back(tmp_path: Path) -> None:
    out = tmp_path / "my pool.yaml"
    command = ["pool", "new", "--gpu", "H100-80GB", "--models", "qwen-14b=qwen2.5-coder-14b:awq"]
    command += ["--out", str(out)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    found = load_pool(out)
    (model,) = found.models
    assert (found.name, model.alias, model.server.estimate) == ("my-pool", "qwen-14b", True)
    assert model.path == "Qwen/Qwen2.5-Coder-14B-Instruct-AWQ"
    assert "estimates" in out.read_text()
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2
    assert "--force" in again.output
    assert CliRunner().invoke(app, [*command, "--force"]).exit_code == 0
    said = CliRunner().invoke(app, ["check", str(out)]).output
    assert "estimates, not measured: qwen-14b" in said and "no model is on" not in said
    two = CliRunner().invoke(app, [*command, "--force", "--gpu", "A100-80GB:2"])
    assert "GPUs without a model: gpu1." in two.output
    assert "no model is on gpu1" in CliRunner().invoke(app, ["check", str(out)]).output


# Request logs of real servers, predicted from the servers' options alone


@pytest.mark.skipif(not LOGS.is_dir(), reason="the logs are not beside the repository")
@pytest.mark.parametrize(
    ("log_name", "model", "gpu_name", "ranks", "max_num_seqs"),
    [
        ("RTX4090_Llama-3.1-8B", "llama-3.1-8b", "RTX-4090", 1, 256),
        ("RTXPRO6000_Llama-3.1-8B", "llama-3.1-8b", "RTX-PRO-6000", 1, 128),
        ("RTXPRO6000_Qwen3-32B", "qwen3-32b", "RTX-PRO-6000", 2, 128),
    ],
)
def test_the_mean_latency_of_a_log(
    log_name: str, model: str, gpu_name: str, ranks: int, max_num_seqs: int
) -> None:
    _, gpu = find_gpu(gpu_name)
    server = Server(find_architecture(model), gpu, ranks, max_num_seqs, 2048, 8192)
    card = card_record(server.card(1e9 * gpu.memory_gb * hardware().factors.memory_share))
    log = read_log(LOGS / f"{log_name}.jsonl")
    where = np.zeros(len(log), np.int64)
    served = replay_requests(card, where, log.arrival_s, log.prompt_tokens, log.output_tokens)
    predicted = np.mean(served["finish_s"] - log.arrival_s)
    assert abs(predicted / np.mean(log.last_token_s - log.arrival_s) - 1.0) <= 0.15
