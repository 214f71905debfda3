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
from typing import Any, Final

from inframind_gym.errors import ConfigError
from inframind_gym.live import packaged_models, tiny_models
from inframind_gym.simulator.server.pool import ModelConfig, PoolConfig
from inframind_gym.tasks.cache import cache_folder

ENTRY: Final = "vllm.entrypoints.openai.api_server"
_MADE: Final = {"tiny": tiny_models, "packaged": packaged_models}  # weights that are made here
_GPU_BLOCK: Final = 16  # tokens: vLLM's own choice on a GPU
_HOW_TO_INSTALL: Final = (
    "Install vLLM into an environment of its own (its versions of torch and numba are not ours) "
    "and name its interpreter with --python or $VLLM_PYTHON. For CPUs, in a checkout: "
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

    Args:
        python: as given by the user; without it $VLLM_PYTHON, `.venv-vllm` in the working folder or
            beside the package, or else this interpreter.

    Raises:
        ConfigError: it does not exist, or has no vLLM.
    """
    chosen = Path(python or os.environ.get("VLLM_PYTHON") or _default_python()).expanduser()
    if not (chosen.is_file() and os.access(chosen, os.X_OK)):
        raise ConfigError(f"{chosen}: no such interpreter. {_HOW_TO_INSTALL}")
    chosen = chosen.absolute()  # not resolved: a link is what makes it the environment's
    looks = "import importlib.util as u, sys; sys.exit(3 if u.find_spec('vllm') is None else 0)"
    try:
        done = subprocess.run(
            [chosen, "-c", looks],
            capture_output=True,
            timeout=120,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{chosen}: cannot be run ({error}). {_HOW_TO_INSTALL}") from None
    if done.returncode:
        raise ConfigError(f"{chosen} has no vLLM. {_HOW_TO_INSTALL}")
    return chosen


def _default_python() -> Path:
    checkout = Path(__file__).resolve().parents[2]
    for folder in (Path.cwd(), checkout):
        python = folder / os.environ.get("VLLM_VENV", ".venv-vllm") / "bin" / "python"
        if python.is_file():
            return python
    return Path(sys.executable)


def server_command(
    pool: PoolConfig,
    model: ModelConfig,
    python: Path,
    host: str = "127.0.0.1",
    visible: str | None = None,
) -> ServerCommand:
    """Return the command of a model's server.

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
        *(str(python), "-m", ENTRY),
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


def missing_weights(model: ModelConfig) -> bool:
    """Return whether a model has weights of ours that have not been made."""
    scheme, name = _scheme(model)
    return scheme is not None and not scheme.is_made(_made(scheme, name))


def make_weights(model: ModelConfig, python: Path) -> None:
    """Make a tiny model, or fetch and convert a packaged one, unless it is there.

    Raises:
        ConfigError: it cannot be made.
    """
    scheme, name = _scheme(model)
    if scheme is None or not missing_weights(model):
        return
    done = subprocess.run(  # by vLLM's interpreter, which has what it needs
        [python, str(scheme.__file__), "--out", str(_made(scheme, name).parent), name],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise ConfigError(f"model {model.alias!r}: {model.path} cannot be made: {said}")


def _scheme(model: ModelConfig) -> tuple[Any, str]:
    """Return the module that makes a model's weights, or None, and the model's name in it."""
    scheme, _, name = (model.path or "").partition(":")
    return _MADE.get(scheme), name


def _made(scheme: Any, name: str) -> Path:
    """Return the folder of weights that are made here."""
    models = "tiny-models" if scheme is tiny_models else "models"
    return cache_folder().absolute() / models / str(scheme.folder_name(name))


def _weights(model: ModelConfig) -> str:
    """Return the weights for vLLM to load."""
    path = model.path or model.name
    scheme, name = _scheme(model)
    if scheme is not None:
        try:
            return str(_made(scheme, name))
        except ValueError as error:
            raise ConfigError(f"model {model.alias!r}: path: {error}") from None
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
