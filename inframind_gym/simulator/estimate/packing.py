"""A pool of models on GPUs, as YAML: the largest first, each on the first GPU with room for it.

A model that is larger than one GPU shares 2, 4 or 8 of them with no other. What is left of a GPU's
memory goes to the KV caches of its models, so that each holds about as many tokens.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Final

import yaml

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
    """A model that was asked for."""

    alias: str  # its name in the pool
    name: str  # its name on the Hugging Face hub, or its folder
    path: str | None  # of its weights, if they are elsewhere
    model: Architecture  # its architecture, with the kind of its weights
    compress: bool  # whether vLLM shall turn its weights into fp8 ones when it loads them

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
    """Return a model's server on one GPU."""
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
    max_model_len = limits.max_model_len or min(8192, longest)
    return Server(each.model, gpu, 1, limits.max_num_seqs, tokens, max_model_len)


def _place(
    servers: dict[str, Server], device: str, num_gpus: int
) -> tuple[dict[str, tuple[int, ...]], dict[str, float]]:
    """Return the GPUs of every model, and its share of the memory of each of them."""
    gpu_gb = next(iter(servers.values())).gpu.memory_gb
    room = floor(_STEPS * hardware().factors.memory_share)
    free = dict.fromkeys(range(num_gpus), room)  # thousandths of its memory
    placed: dict[str, tuple[int, ...]] = {}
    least: dict[str, int] = {}
    lacking = []
    for alias in sorted(servers, key=lambda name: -servers[name].least_bytes):
        for ranks in _MOST_GPUS:
            heads, kept = (
                servers[alias].model.num_attention_heads,
                servers[alias].model.num_key_value_heads,
            )
            if heads % ranks == 0 and (kept % ranks == 0 or ranks % kept == 0):
                split = replace(servers[alias], tensor_parallel=ranks)
                least[alias] = ceil(_STEPS * split.least_bytes / (1e9 * gpu_gb))
                if least[alias] <= room:
                    break
        ranks = split.tensor_parallel
        if ranks == 1:
            on = [index for index, left in free.items() if left >= least[alias]][:1]
        else:
            on = [index for index, left in free.items() if left == room][:ranks]
        if len(on) == ranks and least[alias] <= room:
            placed[alias] = tuple(on)
            for index in on:
                free[index] = free[index] - least[alias] if ranks == 1 else 0
            if ranks > 1:
                least[alias] = room
            continue
        need_gb = split.least_bytes / 1e9
        has_gb = (max(free.values()) if ranks == 1 else room) * gpu_gb / _STEPS
        lack = f"at most {has_gb:.1f} of {gpu_gb:g} GB are left, {need_gb - has_gb:.1f} GB too few"
        if need_gb <= has_gb:
            empty = sum(left == room for left in free.values())
            lack = f"it takes {ranks} GPUs of its own, and {empty} of {len(free)} are empty"
        lacking.append(
            f"{alias} needs {need_gb:.1f} GB{f' on each of {ranks} GPUs' if ranks > 1 else ''} "
            f"(weights {split.weight_bytes / 1e9:.1f}, activations and CUDA "
            f"{split.reserved_bytes / 1e9:.1f}, KV cache of one sequence of {split.max_model_len} "
            f"tokens {split.least_blocks * split.block_bytes / 1e9:.1f}); {lack}."
        )
    if lacking:
        raise ConfigError(
            f"the models do not fit on {num_gpus} x {device}:\n  " + "\n  ".join(lacking) + "\n"
            "Raise --num-gpus, take fewer models or a larger GPU, smaller weights (MODEL:fp8, "
            "MODEL:awq), or lower --max-model-len."
        )
    shares = {}
    for alias, on_gpus in placed.items():  # with what is left of its GPU for its KV cache
        blocks = sum(servers[peer].block_bytes for peer, its in placed.items() if its == on_gpus)
        extra = floor(free[on_gpus[0]] * servers[alias].block_bytes / blocks)
        shares[alias] = (least[alias] + extra) / _STEPS
    return placed, shares


def pool_yaml(pool: PoolConfig, wanted: Sequence[Wanted], command: str) -> str:
    """Return a pool as YAML that `load_pool` reads, its origin in comments.

    Args:
        pool: A pool of `make_pool`.
        wanted: Its models.
        command: The command that made it.
    """
    device, gpu = find_gpu(pool.gpus[0].device)
    factors = hardware().factors
    link_s, link = (
        (factors.nvlink_s, factors.nvlink_efficiency)
        if gpu.link == "nvlink"
        else (factors.pcie_s, factors.pcie_efficiency)
    )
    paragraphs = [
        f"Made by: {command}",
        "Server cards are estimates (`estimate: true`) from architectures and data sheets: nothing "
        "here was measured. `inframind calibrate` fits a card to a server's request log; put its "
        "card in place of the one here.",
        f"{device} ({gpu.source}): {gpu.bandwidth_gb_per_s:g} GB/s, of which "
        f"{gpu.bandwidth_efficiency:g} are reached; {gpu.bf16_tflops:g} TFLOP/s (bf16, dense)"
        f"{f', {gpu.fp8_tflops:g} (fp8)' if gpu.fp8_tflops else ''}, of which "
        f"{gpu.compute_efficiency:g} are reached.",
        f"A step further takes {1e3 * factors.step_s:g} ms, {1e6 * factors.layer_s:g} us a layer "
        f"and {1e6 * factors.seq_s:g} us a sequence. On several GPUs: two all-reduces a layer, "
        f"{1e6 * link_s:g} us and {gpu.link_gb_per_s * link:g} GB/s each.",
        "num_kv_blocks: what gpu_memory_frac leaves beside weights, activations and "
        f"{factors.runtime_gb:g} GB for CUDA. colocation_slowdown: assumed, processes on one GPU "
        "take turns.",
    ]
    for each in wanted:
        kind = each.model.quantization
        text = f"{each.alias}: {each.name}, {each.model.weight_bytes / 1e9:.1f} GB in {kind}"
        if each.needs_path:
            text += f". `path` must name {kind} weights before `inframind pool up` can start it"
        if each.model.source is not None:
            text += f". Architecture: {each.model.source}"
        paragraphs.append(text + ".")
    lines = [
        f"# {line}"
        for paragraph in paragraphs
        for line in textwrap.wrap(
            paragraph, 98, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )
    ]
    content = pool.model_dump(mode="json", exclude_defaults=True)
    return "\n".join([*lines, yaml.safe_dump(content, sort_keys=False, width=100)])
