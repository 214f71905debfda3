"""Command lines, Compose files and tiny models: what is made of a pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from inframind_gym.errors import ConfigError
from inframind_gym.live import weights
from inframind_gym.live.launcher import ServerCommand, server_command, vllm_python
from inframind_gym.simulator.server.pool import PoolConfig, load_pool

ROOT = Path(__file__).resolve().parents[3]


def changed(pool: PoolConfig, model: int = 0, **keys: Any) -> PoolConfig:
    data = pool.model_dump(mode="json", exclude_defaults=True)
    data["models"][model] |= keys
    return PoolConfig.model_validate(data)


def command(pool: PoolConfig, model: int = 0, **options: Any) -> ServerCommand:
    return server_command(pool, pool.models[model], Path("/vllm/bin/python"), **options)


def test_everything_that_a_pool_can_say(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"path": str(tmp_path), "tensor_parallel": 2, "gpus": ["gpu0", "gpu1"]}
    keys |= {"gpu_memory_frac": 0.25, "sleep_mode": True, "load_format": "dummy"}
    pool = changed(load_pool("b200-2gpu"), **keys, extra_args=["--seed", 4], env={"A": 1})
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


def test_on_cpus_there_is_no_gpu() -> None:
    """The rest of the command lines of shipped pools is in `tests/golden`."""
    made = command(load_pool("cpu-tiny"))
    assert "CUDA_VISIBLE_DEVICES" not in made.env
    # vLLM for CPUs refuses the flag, but has the endpoints.
    assert "--enable-sleep-mode" not in made.arguments
    assert made.env["VLLM_SERVER_DEV_MODE"] == "1"
    with pytest.raises(ConfigError, match=r"multiple of 64"):
        command(changed(load_pool("cpu-tiny"), path="tiny:2x100"))


@pytest.mark.parametrize("name", ["b200-2gpu", "single-gpu"])
def test_the_examples_of_compose_pass_the_arguments_of_their_pools(name: str) -> None:
    text = (ROOT / "docker" / f"compose.{name}.yaml").read_text(encoding="utf-8")
    pool, services = load_pool(name), yaml.safe_load(text)["services"]
    assert list(services) == list(pool.aliases)
    for model, gpu in zip(pool.models, pool.gpu_index, strict=True):
        service = services[model.alias]
        made = server_command(pool, model, Path("python3"), "0.0.0.0")
        said = " ".join([*service["entrypoint"], *service["command"]]).replace("=", " ")
        assert said == " ".join(made.arguments).replace("=", " ")
        assert service["ports"] == [f"127.0.0.1:{model.port}:{model.port}"]
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device["device_ids"] == [str(gpu)]
        # One after the other on each GPU.
        earlier = [m.alias for m in pool.models[: pool.index(model.alias)] if m.gpu == model.gpu]
        assert list(service.get("depends_on", {})) == earlier[-1:]


def test_a_missing_vllm_is_told_with_the_extra_that_brings_it() -> None:
    with pytest.raises(ConfigError, match=r"no such interpreter.*--python.*\[vllm\]"):
        vllm_python("/nowhere/python")


def test_tiny_models_are_the_same_everywhere(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    one, other = (weights.make("tiny:2x128", tmp_path / name) for name in "ab")
    names = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in one.iterdir()) == names
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes()
    tokenizer = tokenizers.Tokenizer.from_file(str(one / "tokenizer.json"))
    text = "What does Vera pay altogether, in dollars? naïve 42\n\tdef f(x): return x"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    (one / "config.json").unlink()  # written last: without it the folder is made again
    (one / "tokenizer.json").unlink()
    weights.make("tiny:2x128", tmp_path / "a")
    assert all((one / name).is_file() for name in names)
    for wrong in ("2", "0x128", "2x100", "2x128x2"):
        with pytest.raises(ValueError):
            weights.folder(f"tiny:{wrong}", tmp_path)
