"""A pool's servers as containers: a Docker Compose file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from inframind_gym.errors import ConfigError
from inframind_gym.live.server_command import ENTRY, server_command
from inframind_gym.simulator.server.pool import ModelConfig, PoolConfig

IMAGE: Final = "vllm/vllm-openai:v0.32.0"
_HEAD: Final = """\
# Written by `inframind pool compose --pool {pool}`.
#
#   HF_TOKEN=... docker compose -f docker/compose.{pool}.yaml up -d --wait
#   inframind pool status --pool {pool}     # "up", and "not started by `pool up`"
#   docker compose -f docker/compose.{pool}.yaml down
#
# Servers on one GPU come up one after the other: vLLM takes memory that another one is filling
# meanwhile for its own (vllm-project/vllm#55827). They answer on this machine's loopback alone.
# Weights are kept in ~/.cache/huggingface. VLLM_IMAGE names another image.
"""
_WEIGHTS: Final = "/weights"  # in a container: where the hub's cache is mounted
_PASSED_ON: Final = ("HF_TOKEN", "VLLM_API_KEY")  # from the shell, if they are set there


def compose_file(pool: PoolConfig) -> str:
    """Return a Compose file for a pool on GPUs.

    Raises:
        ConfigError: the pool cannot run in containers.
    """
    services: dict[str, Any] = {}
    before: dict[str, str] = {}  # the last service on each GPU
    for model in pool.models:
        if model.url is not None:
            continue
        local = (model.path or "").startswith(("tiny:", "packaged:", "/", "~", "."))
        if pool.gpu_of(model).is_cpu or local:
            raise ConfigError(
                f"model {model.alias!r} is not for a container: the image is vLLM's for GPUs, and "
                "loads models from the Hugging Face hub"
            )
        after = sorted({before[gpu] for gpu in model.all_gpus if gpu in before})
        services[model.alias] = _service(pool, model, after)
        before.update(dict.fromkeys(model.all_gpus, model.alias))
    text = yaml.safe_dump({"name": pool.name, "services": services}, sort_keys=False, width=100)
    return _HEAD.format(pool=pool.name) + text


def _service(pool: PoolConfig, model: ModelConfig, after: list[str]) -> dict[str, Any]:
    command = server_command(pool, model, Path("python3"), "0.0.0.0")
    entry, arguments = list(command.arguments[:3]), list(command.arguments[3:])
    assert entry[-1] == ENTRY
    env = {name: value for name, value in command.env.items() if name != "CUDA_VISIBLE_DEVICES"}
    order = [gpu.name for gpu in pool.gpus]
    devices = [str(order.index(name)) for name in model.all_gpus]
    check = f"import urllib.request as u; u.urlopen('http://127.0.0.1:{model.port}/health')"
    service: dict[str, Any] = {
        "image": f"${{VLLM_IMAGE:-{IMAGE}}}",
        "entrypoint": entry,
        "command": _pairs(arguments),
        "environment": [f"{name}={value}" for name, value in sorted(env.items())]
        + [f"HF_HOME={_WEIGHTS}", *_PASSED_ON],
        "ports": [f"127.0.0.1:{model.port}:{model.port}"],
        "volumes": [f"${{HF_HOME:-~/.cache/huggingface}}:{_WEIGHTS}"],
        "ipc": "host",
        "deploy": {
            "resources": {
                "reservations": {
                    "devices": [
                        {"driver": "nvidia", "device_ids": devices, "capabilities": ["gpu"]}
                    ]
                }
            }
        },
        "healthcheck": {
            "test": ["CMD", "python3", "-c", check],
            "interval": "5s",
            "timeout": "5s",
            "retries": 3,
            "start_period": "30m",
        },
    }
    if after:
        service["depends_on"] = {alias: {"condition": "service_healthy"} for alias in after}
    return service


def _pairs(arguments: list[str]) -> list[str]:
    """Join `--name value` to `--name=value`: a line each."""
    joined: list[str] = []
    for argument in arguments:
        takes = joined and joined[-1].startswith("--") and "=" not in joined[-1]
        if takes and not argument.startswith("-"):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined
