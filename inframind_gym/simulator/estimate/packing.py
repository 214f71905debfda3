"""A pool of models on GPUs: the largest first, each on the first GPU that has room for it.

A model that is larger than one GPU shares 2, 4 or 8 of them with no other. What is left of a GPU's
memory goes to the KV caches of its models, so that each holds about as many tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Final

from inframind_gym.configs import validate
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.simulator.estimate.architecture import (
    QUANTIZATIONS,
    Architecture,
    find_architecture,
)
from inframind_gym.simulator.estimate.roofline import Gpu, Server, find_gpu, hardware
from inframind_gym.simulator.server.pool import PoolConfig

_FIRST_PORT: Final = 8001
_LARGE_GB: Final = 70  # GPUs from which on vLLM computes 8192 tokens a step by default, not 2048
_MOST_GPUS: Final = (1, 2, 4, 8)  # that one model is split over
_STEPS: Final = 1000  # of gpu_memory_frac: it has three decimals


@dataclass(frozen=True)
class Wanted:
    """A model that was asked for.

    Attributes:
        alias: Its name in the pool.
        name: Its name on the Hugging Face hub, or its folder.
        path: Of its weights, if they are elsewhere.
        model: Its architecture, with the kind of its weights.
        compress: Whether vLLM shall turn its weights into fp8 ones when it loads them.
    """

    alias: str
    name: str
    path: str | None
    model: Architecture
    compress: bool

    @property
    def needs_path(self) -> bool:
        """True if nobody knows where its 4-bit weights are."""
        known = self.path is not None or self.model.repository is None
        return self.model.quantization in ("awq", "gptq") and not known


@dataclass(frozen=True)
class Limits:
    """Launch options that all servers share; None: by the GPU and the model."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    max_output_tokens: int = 2048


def parse_models(text: str) -> tuple[Wanted, ...]:
    """Read models as the command line has them: ``[ALIAS=]MODEL[:QUANTIZATION]``, by commas.

    Raises:
        ConfigError: One is unknown, an alias is used twice, or there is none.
    """
    models = tuple(_parse(part.strip()) for part in text.split(",") if part.strip())
    if not models:
        raise ConfigError("--models: names no model.")
    aliases = [model.alias for model in models]
    for alias in aliases:
        if aliases.count(alias) > 1:
            raise ConfigError(
                f"--models: {alias!r} is there twice. Give one another alias: other={alias}."
            )
    return models


def _parse(text: str) -> Wanted:
    alias, _, spec = text.rpartition("=")
    name, colon, kind = spec.partition(":")
    model = find_architecture(name)
    if colon and kind not in QUANTIZATIONS:
        raise ConfigError(f"--models: {text}: {unknown('quantization', kind, QUANTIZATIONS)}")
    stored = model.quantization
    if colon and kind != stored and stored != "bf16":
        raise ConfigError(f"--models: {text}: its config.json says that its weights are {stored}.")
    kind = kind or stored
    own = name.rstrip("/").rpartition("/")[2].lstrip(".") or "model"
    path = model.awq if kind == "awq" and stored != "awq" else None
    return Wanted(
        alias=alias or re.sub(r"[^a-zA-Z0-9._-]", "-", own),
        name=model.repository or name,
        path=path,
        model=model.model_copy(update={"quantization": kind}),
        compress=kind == "fp8" and stored != "fp8",
    )


def make_pool(
    name: str,
    gpu_name: str,
    num_gpus: int,
    wanted: Sequence[Wanted],
    limits: Limits | None = None,
    price_per_gpu_hour_usd: float | None = None,
) -> PoolConfig:
    """Place models on GPUs and estimate their server cards.

    Args:
        name: The pool's.
        gpu_name: A GPU of `gpus.yaml`.
        num_gpus: Number of such GPUs.
        wanted: The models, in the order of the actions.
        limits: Launch options of the servers.
        price_per_gpu_hour_usd: Of one GPU.

    Raises:
        ConfigError: There is no such GPU, the models do not fit, or a limit does not.
    """
    device, gpu = find_gpu(gpu_name)
    limits = limits or Limits()
    servers = {each.alias: _server(each, gpu, limits) for each in wanted}
    placed, shares = _place(servers, device, num_gpus)
    gpus = [
        {
            "name": f"gpu{index}",
            "device": device,
            "memory_gb": gpu.memory_gb,
            "colocation_slowdown": hardware().factors.colocation_slowdown,
            "price_per_gpu_hour_usd": price_per_gpu_hour_usd,
        }
        for index in range(num_gpus)
    ]
    models = []
    for port, each in enumerate(wanted, start=_FIRST_PORT):
        server, on = servers[each.alias], placed[each.alias]
        if len(on) > 1:
            server = replace(server, tensor_parallel=len(on))
        share = shares[each.alias]
        models.append(
            {
                "name": each.name,
                "alias": each.alias,
                "gpu": f"gpu{on[0]}",
                "params_b": float(f"{each.model.parameters / 1e9:.3g}"),
                "gpu_memory_frac": share,
                "port": port,
                "path": each.path,
                "tensor_parallel": len(on),
                "gpus": [f"gpu{index}" for index in on] if len(on) > 1 else [],
                "extra_args": ["--quantization", "fp8"] if each.compress else [],
                "server": server.card(share * 1e9 * gpu.memory_gb).model_dump(),
            }
        )
    shortest = min(server.max_model_len for server in servers.values())
    content = {
        "name": name,
        "description": f"Estimated: {len(wanted)} models on {num_gpus} x {device}",
        "max_output_tokens": min(limits.max_output_tokens, shortest // 2),
        "gpus": gpus,
        "models": models,
    }
    return validate(content, PoolConfig, source="--models")


def _server(each: Wanted, gpu: Gpu, limits: Limits) -> Server:
    longest = each.model.max_position_embeddings
    if limits.max_model_len is not None and limits.max_model_len > longest:
        raise ConfigError(
            f"--max-model-len {limits.max_model_len}: {each.alias} takes at most {longest} tokens."
        )
    tokens = limits.max_num_batched_tokens
    if tokens is None:
        tokens = max(8192 if gpu.memory_gb >= _LARGE_GB else 2048, limits.max_num_seqs)
    elif tokens < limits.max_num_seqs:
        raise ConfigError(
            f"--max-num-batched-tokens {tokens} must be at least --max-num-seqs "
            f"{limits.max_num_seqs}: a step computes one token for every running sequence."
        )
    return Server(
        model=each.model,
        gpu=gpu,
        tensor_parallel=1,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=tokens,
        max_model_len=limits.max_model_len or min(8192, longest),
    )


def _place(
    servers: dict[str, Server], device: str, num_gpus: int
) -> tuple[dict[str, tuple[int, ...]], dict[str, float]]:
    """Return the GPUs of every model, and its share of the memory of each of them."""
    gpu_bytes = 1e9 * next(iter(servers.values())).gpu.memory_gb
    room = floor(_STEPS * hardware().factors.memory_share)
    free = dict.fromkeys(range(num_gpus), room)  # thousandths of its memory
    placed: dict[str, tuple[int, ...]] = {}
    least: dict[str, int] = {}
    lacking = []

    def needed(server: Server) -> int:
        return ceil(_STEPS * server.least_bytes / gpu_bytes)

    for alias in sorted(servers, key=lambda name: -servers[name].least_bytes):
        server = servers[alias]
        splits = [replace(server, tensor_parallel=n) for n in _MOST_GPUS if _splits(server, n)]
        split = next((one for one in splits if needed(one) <= room), splits[-1])
        ranks, least[alias] = split.tensor_parallel, needed(split)
        if ranks == 1:
            on = [index for index, left in free.items() if left >= least[alias]][:1]
        else:
            on = [index for index, left in free.items() if left == room][:ranks]
        if len(on) < ranks or least[alias] > room:
            lacking.append(_too_large(alias, split, free, room))
            continue
        placed[alias] = tuple(on)
        for index in on:
            free[index] = free[index] - least[alias] if ranks == 1 else 0
        if ranks > 1:
            least[alias] = room
    if lacking:
        raise ConfigError(
            f"the models do not fit on {num_gpus} x {device}:\n  " + "\n  ".join(lacking) + "\n"
            "Raise --num-gpus, take fewer models or a larger GPU, smaller weights (MODEL:fp8, "
            "MODEL:awq), or lower --max-model-len."
        )
    return placed, _shares(servers, placed, least, free)


def _splits(server: Server, ranks: int) -> bool:
    """Return True if as many GPUs can share a model's heads."""
    heads, kept = server.model.num_attention_heads, server.model.num_key_value_heads
    return heads % ranks == 0 and (kept % ranks == 0 or ranks % kept == 0)


def _shares(
    servers: dict[str, Server],
    placed: dict[str, tuple[int, ...]],
    least: dict[str, int],
    free: dict[int, int],
) -> dict[str, float]:
    """Return every model's share of memory, with what is left of its GPU for its KV cache."""
    shares = {}
    for alias, on in placed.items():
        peers = [other for other, its in placed.items() if its == on]
        blocks = sum(servers[other].block_bytes for other in peers)
        extra = floor(free[on[0]] * servers[alias].block_bytes / blocks)
        shares[alias] = (least[alias] + extra) / _STEPS
    return shares


def _too_large(alias: str, server: Server, free: dict[int, int], room: int) -> str:
    """Say what a model needs that finds no room, and how much is missing."""
    ranks, gpu_gb = server.tensor_parallel, server.gpu.memory_gb
    need_gb = server.least_bytes / 1e9
    has_gb = (max(free.values()) if ranks == 1 else room) * gpu_gb / _STEPS
    if need_gb > has_gb:
        lack = f"at most {has_gb:.1f} of {gpu_gb:g} GB are left, {need_gb - has_gb:.1f} GB too few"
    else:
        empty = sum(left == room for left in free.values())
        lack = f"it takes {ranks} GPUs of its own, and {empty} of {len(free)} are empty"
    return (
        f"{alias} needs {need_gb:.1f} GB{f' on each of {ranks} GPUs' if ranks > 1 else ''} "
        f"(weights {server.weight_bytes / 1e9:.1f}, activations and CUDA "
        f"{server.reserved_bytes / 1e9:.1f}, KV cache of one sequence of {server.max_model_len} "
        f"tokens {server.least_blocks * server.block_bytes / 1e9:.1f}); {lack}."
    )
