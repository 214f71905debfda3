"""Command line and environment of a model's server, from the pool."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inframind_gym.errors import ConfigError, install_command
from inframind_gym.live import weights
from inframind_gym.simulator.server.pool import ModelConfig, PoolConfig
from inframind_gym.tasks.embedding import cache_folder

_ENTRY: Final = "vllm.entrypoints.openai.api_server"
_GPU_BLOCK: Final = 16  # tokens: vLLM's own choice on a GPU
_HOW_TO_INSTALL: Final = (
    "Install vLLM into an environment of its own (its versions of torch and numba are not ours) "
    "and name its interpreter with --python or $VLLM_PYTHON. For GPUs: "
    f"{install_command('vllm')}, or vllm alone. For CPUs, in a checkout: "
    "make .venv-vllm/.installed-vllm"
)


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """A process to run."""

    arguments: tuple[str, ...]  # the interpreter first
    env: Mapping[str, str]  # in addition to this process's own

    @property
    def digest(self) -> str:
        """Identity of the settings, without keeping what may be a secret."""
        text = json.dumps([self.arguments, sorted(self.env.items())])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def vllm_python(python: str | Path | None = None) -> Path:
    """Return the interpreter that has vLLM.

    It is the one that is given, $VLLM_PYTHON, `.venv-vllm` in the working folder or beside the
    package, or else this one.

    Raises:
        ConfigError: it does not exist, or has no vLLM.
    """
    venv = Path(os.environ.get("VLLM_VENV", ".venv-vllm"), "bin", "python")
    places = (Path.cwd() / venv, Path(__file__).resolve().parents[2] / venv)
    usual = next(filter(Path.is_file, places), Path(sys.executable))
    # Not resolved: a link is what makes it the environment's.
    chosen = Path(python or os.environ.get("VLLM_PYTHON") or usual).expanduser().absolute()
    probe = [str(chosen), "-c", "import importlib.util as u; exit(u.find_spec('vllm') is None)"]
    env = {**os.environ, "PYTHONSAFEPATH": "1"}
    try:
        done = subprocess.run(probe, capture_output=True, timeout=120, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{chosen}: no such interpreter ({error}). {_HOW_TO_INSTALL}") from None
    if done.returncode:
        raise ConfigError(f"{chosen} has no vLLM. {_HOW_TO_INSTALL}")
    return chosen


def server_command(
    pool: PoolConfig,
    model: ModelConfig,
    python: Path,
    host: str = "127.0.0.1",
    visible: str | None = None,
) -> ServerCommand:
    """Return the command of the server of one of a pool's models.

    Args:
        pool: the model's pool.
        model: one of its models.
        python: interpreter that has vLLM.
        host: address to listen on.
        visible: the GPUs that may be used, as in $CUDA_VISIBLE_DEVICES; None: all.

    Raises:
        ConfigError: it has no port, the pool names more GPUs than there are, or its folder is
            missing.
    """
    if model.port is None:
        raise ConfigError(
            f"model {model.alias!r} has no port and no url: give it a port to have it started, or "
            "the url of a server that runs already"
        )
    card = model.server
    arguments = [
        *(str(python), "-m", _ENTRY),
        *("--model", _weights(model)),
        *("--served-model-name", model.name),
        *("--host", host),
        *("--port", str(model.port)),
        *("--max-num-seqs", str(card.max_num_seqs)),
        *("--max-num-batched-tokens", str(card.max_num_batched_tokens)),
        *("--max-model-len", str(card.max_model_len)),
        *("--scheduling-policy", "priority"),
        "--enable-prefix-caching" if card.prefix_caching else "--no-enable-prefix-caching",
        "--async-scheduling" if card.async_scheduling else "--no-async-scheduling",
        "--disable-uvicorn-access-log",  # the watcher asks every second
    ]
    # No usage statistics without consent; modules of the working folder are not vLLM's.
    env = {"VLLM_NO_USAGE_STATS": "1", "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    if model.load_format is not None:
        arguments += ["--load-format", model.load_format]
    if pool.gpu_of(model).is_cpu:
        # The cache is as large as the card says; on a GPU vLLM takes what memory there is.
        arguments += ["--block-size", str(card.block_size)]
        if not any(a.startswith("--num-gpu-blocks-override") for a in model.extra_args):
            arguments += ["--num-gpu-blocks-override", str(card.num_kv_blocks)]
    else:
        arguments += ["--gpu-memory-utilization", f"{model.gpu_memory_frac:g}"]
        arguments += ["--tensor-parallel-size", str(model.tensor_parallel)]
        if card.data_parallel_size > 1:
            arguments += ["--data-parallel-size", str(card.data_parallel_size)]
        if card.block_size != _GPU_BLOCK:
            arguments += ["--block-size", str(card.block_size)]
        env["CUDA_VISIBLE_DEVICES"] = _gpus(pool, model, visible)
    if model.sleep_mode:
        env["VLLM_SERVER_DEV_MODE"] = "1"
        if not pool.gpu_of(model).is_cpu:  # refused there; the endpoints work without it
            arguments.append("--enable-sleep-mode")
    return ServerCommand((*arguments, *model.extra_args), {**env, **model.env})


def make_weights(model: ModelConfig, python: Path) -> None:
    """Make a tiny model, unless it is there, by vLLM's interpreter.

    Raises:
        ConfigError: it cannot be made.
    """
    folder = _made(model)
    if folder is None or weights.is_made(folder):
        return
    done = subprocess.run(
        [python, weights.__file__, str(model.path), str(cache_folder().absolute())],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    if done.returncode:
        output = (done.stderr or done.stdout).strip()
        raise ConfigError(f"model {model.alias!r}: {model.path} cannot be made: {output}")


def _made(model: ModelConfig) -> Path | None:
    """Return the folder of weights that are made here, or None."""
    try:
        return weights.folder(model.path or "", cache_folder().absolute())
    except ValueError as error:
        raise ConfigError(f"model {model.alias!r}: path: {error}") from None


def _weights(model: ModelConfig) -> str:
    """Return the weights for vLLM to load."""
    path = model.path or model.name
    if made := _made(model):
        return str(made)
    if not path.startswith(("/", "~", "./", "../")):
        return path
    folder = Path(path).expanduser().absolute()
    if not folder.exists():
        raise ConfigError(f"model {model.alias!r}: path: {folder}: there is no such folder")
    return str(folder)


def _gpus(pool: PoolConfig, model: ModelConfig, visible: str | None) -> str:
    """Return a model's GPUs, as CUDA numbers them: in the pool's order, among the visible ones."""
    order = [gpu.name for gpu in pool.gpus if not gpu.is_cpu]
    devices = [str(index) for index in range(len(order))]
    if visible is not None:
        devices = [device.strip() for device in visible.split(",") if device.strip()]
    wanted = [order.index(name) for name in model.all_gpus]
    if max(wanted) >= len(devices):
        raise ConfigError(
            f"model {model.alias!r} is on GPU {max(wanted) + 1} of the pool, but "
            f"CUDA_VISIBLE_DEVICES={visible!r} lets us use {len(devices)}"
        )
    return ",".join(devices[index] for index in wanted)
