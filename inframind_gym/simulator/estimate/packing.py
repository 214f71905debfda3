"""A pool of models on GPUs, as YAML: the largest first, each on the emptiest GPU.

A model that is split over 2, 4 or 8 GPUs shares them with no other. What is left of a GPU's memory
goes to the KV caches of its models, so that each holds about as many tokens.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from inframind_gym.configs import validate
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.simulator.estimate.roofline import (
    QUANTIZATIONS,
    Architecture,
    Gpu,
    Server,
    find_architecture,
    find_gpu,
    hardware,
    known_models,
)
from inframind_gym.simulator.server.pool import PoolConfig

_FIRST_PORT: Final = 8001
_LARGE_GB: Final = 70  # GPUs from which on vLLM computes 8192 tokens a step by default, not 2048
_MOST_GPUS: Final = (1, 2, 4, 8)  # that one model is split over
_MOST_OUTPUT_TOKENS: Final = 2048
Placing = Literal["spread", "first"]
_STEPS: Final = 1000  # of gpu_memory_frac: it has three decimals


@dataclass(frozen=True)
class Wanted:
    """A model that was asked for."""

    alias: str  # its name in the pool
    model: Architecture  # its architecture, with the kind of its weights
    path: str | None = None  # of its weights, if they are elsewhere than in its repository
    needs_path: bool = False  # True if nobody knows where its 4-bit weights are
    ranks: int | None = None  # GPUs to split it over; None: as few as hold it


def parse_gpus(text: str) -> tuple[str, ...]:
    """Read GPUs as the command line has them, ``KIND[:COUNT]`` by commas: one kind an entry.

    Args:
        text: what `--gpu` was given.

    Raises:
        ConfigError: A GPU is unknown, or a count is no number from 1 to 64.
    """
    devices: list[str] = []
    for part in filter(None, map(str.strip, text.split(","))):
        kind, colon, number = part.partition(":")
        if colon and not re.fullmatch(r"[1-9]|[1-5]\d|6[0-4]", number):
            raise ConfigError(f"--gpu: {part}: wanted KIND:COUNT with 1 to 64 GPUs.")
        devices += [find_gpu(kind)[0]] * (int(number) if colon else 1)
    if not 1 <= len(devices) <= 64:
        raise ConfigError(f"--gpu: names {len(devices)} GPUs, wanted 1 to 64.")
    return tuple(devices)


def parse_models(text: str) -> tuple[Wanted, ...]:
    """Read models as on the command line: ``[ALIAS=]MODEL[:QUANTIZATION][@tpGPUS]``, by commas.

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


def known_models_of(names: Sequence[str]) -> str:
    """Return what `parse_models` reads for models by the names under which servers serve them.

    Raises:
        ConfigError: Nothing is known of one.
    """
    keys: list[str] = []
    for name in names:
        key, kind = _known(name)
        if not key:
            raise ConfigError(
                f"--url: the architecture of {name!r} is not known. Give --models in the order of "
                "the addresses, for example --models mine=llama-3.1-8b or --models mine=./folder."
            )
        again = f"-{len(keys) + 1}" if any(f"={key}" in each for each in keys) else ""
        keys.append(f"{key}{again}={key}{kind}")
    return ",".join(keys)


def _known(name: str) -> tuple[str, str]:
    """Return the key and the quantization of a model that is served under a name, or ""."""
    for key, model in known_models().items():
        kinds = {key: "", model.repository: "", model.awq: ":awq"}
        kind = {each.lower(): kind for each, kind in kinds.items() if each}.get(name.lower())
        if kind is not None:
            return key, kind
    return "", ""


def as_served(pool: PoolConfig, served: Sequence[Mapping[str, Any]]) -> PoolConfig:
    """Return a pool with what its servers say of themselves in place of estimates.

    Args:
        pool: Of `make_pool`.
        served: By model: `name`, `url`, and what is known of its card, as `server`.

    Raises:
        ConfigError: There are not as many servers as models, one is there twice, or one serves
            another known model.
    """
    if len(served) != len(pool.models):
        raise ConfigError(f"--url: {len(served)} addresses for {len(pool.models)} --models.")
    models, urls = [], set()
    for model, facts in zip(pool.models, served, strict=True):
        url, (theirs, _), (ours, _) = facts["url"], _known(facts["name"]), _known(model.name)
        if (address := url.replace("//localhost", "//127.0.0.1")) in urls:
            raise ConfigError(f"--url: {url} is there twice.")
        urls.add(address)
        if theirs and ours and theirs != ours:
            raise ConfigError(
                f"--url: {url} serves {facts['name']}, but --models has {ours} in its place."
            )
        card = model.server.model_dump() | facts["server"]
        least = ceil(card["max_model_len"] / card["block_size"]) + 1
        card["num_kv_blocks"] = max(card["num_kv_blocks"], least)
        own = {"port": None, "path": None, "extra_args": (), **facts, "server": card}
        models.append(model.model_dump() | own)
    shortest = min(model["server"]["max_model_len"] for model in models)
    most = min(pool.max_output_tokens, shortest // 2)
    content = {**pool.model_dump(), "models": models, "max_output_tokens": most}
    return validate(content, PoolConfig, source="--url")


def _parse(text: str) -> Wanted:
    alias, _, spec = text.rpartition("=")
    spec, split, ranks = spec.partition("@")
    name, colon, kind = spec.partition(":")
    model = find_architecture(name)
    if split and ranks not in (known := [f"tp{number}" for number in _MOST_GPUS]):
        raise ConfigError(f"--models: {text}: {unknown('split over GPUs', ranks, known)}")
    if colon and kind not in QUANTIZATIONS:
        raise ConfigError(f"--models: {text}: {unknown('quantization', kind, QUANTIZATIONS)}")
    stored = model.quantization
    if colon and stored not in ("bf16", kind):
        raise ConfigError(f"--models: {text}: its config.json says that its weights are {stored}.")
    kind = kind or stored
    elsewhere = kind in ("awq", "gptq") and kind != stored  # vLLM quantizes to fp8 alone itself
    path = model.awq if elsewhere and kind == "awq" else None
    own = Path(model.repository).name if "/" in name else name
    return Wanted(
        alias=alias or re.sub(r"[^a-zA-Z0-9._-]", "-", own),
        model=model.model_copy(update={"quantization": kind}),
        path=path,
        needs_path=elsewhere and path is None,
        ranks=int(ranks[2:]) if split else None,
    )


def make_pool(
    name: str,
    devices: Sequence[str],
    wanted: Sequence[Wanted],
    placing: Placing = "spread",
    max_num_seqs: int = 256,
    max_model_len: int | None = None,
) -> PoolConfig:
    """Place models on GPUs and estimate their server cards.

    Args:
        name: The pool's.
        devices: A GPU of `gpus.yaml` for each GPU.
        wanted: The models, in the order of the actions.
        placing: "spread": each on the GPU with the most memory left; "first": on the first with
            room, so that GPUs stay free.
        max_num_seqs, max_model_len: Of all servers; None: by the GPU and the model.

    Raises:
        ConfigError: There is no such GPU, the models do not fit, or a limit does not.
    """

    def server_on(each: Wanted, gpu: Gpu) -> Server:
        longest = each.model.max_position_embeddings
        if max_model_len is not None and max_model_len > longest:
            raise ConfigError(
                f"--max-model-len {max_model_len}: {each.alias} takes at most {longest} tokens."
            )
        tokens = max(8192 if gpu.memory_gb >= _LARGE_GB else 2048, max_num_seqs)
        tokens_a_call = max_model_len or min(8192, longest)
        return Server(each.model, gpu, 1, max_num_seqs, tokens, tokens_a_call)

    placed, shares = _place(wanted, devices, server_on, placing)
    gpus: list[dict[str, Any]] = []
    for index, (device, gpu) in enumerate(map(find_gpu, devices)):
        known = {"name": f"gpu{index}", "device": device, "memory_gb": gpu.memory_gb}
        gpus.append(known | {"colocation_slowdown": hardware().factors.colocation_slowdown})
    models = []
    for port, each in enumerate(wanted, start=_FIRST_PORT):
        (server, on), share = placed[each.alias], shares[each.alias]
        models.append(
            {
                "name": each.model.repository,
                "alias": each.alias,
                "gpu": f"gpu{on[0]}",
                "params_b": float(f"{each.model.parameters / 1e9:.3g}"),
                "gpu_memory_frac": share,
                "port": port,
                "path": each.path,
                "tensor_parallel": len(on),
                "gpus": [f"gpu{index}" for index in on] if len(on) > 1 else [],
                "extra_args": ["--quantization", "fp8"] if each.model.quantization == "fp8" else [],
                "server": server.card(share * 1e9 * server.gpu.memory_gb).model_dump(),
            }
        )
    shortest = min(server.max_model_len for server, _ in placed.values())
    content = {
        "name": name,
        "description": f"Estimated: {len(wanted)} models on {_counted(devices)}",
        "max_output_tokens": min(_MOST_OUTPUT_TOKENS, shortest // 2),
        "gpus": gpus,
        "models": models,
    }
    return validate(content, PoolConfig, source="--models")


def _counted(devices: Sequence[str]) -> str:
    kinds = [find_gpu(device)[0] for device in devices]
    return " and ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))


def _place(
    wanted: Sequence[Wanted],
    devices: Sequence[str],
    server_on: Callable[[Wanted, Gpu], Server],
    placing: Placing,
) -> tuple[dict[str, tuple[Server, tuple[int, ...]]], dict[str, float]]:
    """Return the server and the GPUs of every model, and its share of the memory of each of them.

    A model on several GPUs has them for itself, and they are of one kind.
    """
    gpus = [find_gpu(device)[1] for device in devices]
    room = floor(_STEPS * hardware().factors.memory_share)
    free = dict.fromkeys(range(len(gpus)), room)  # thousandths of its memory
    placed: dict[str, tuple[Server, tuple[int, ...]]] = {}
    least: dict[str, int] = {}
    lacking = []

    largest_first = sorted(wanted, key=lambda each: -server_on(each, gpus[0]).least_bytes)
    for each in sorted(largest_first, key=lambda each: -(each.ranks or 1)):
        # For each kind of GPU the model over as few as hold it, or over as many as was asked for.
        splits = {gpu: _split(server_on(each, gpu), each.ranks, room) for gpu in gpus}
        places = []
        for gpu, server in splits.items():
            ranks, needed = server.tensor_parallel, _thousandths(server)
            on = [i for i in free if gpus[i] == gpu and free[i] >= (needed if ranks == 1 else room)]
            if placing == "spread" and ranks == 1:
                on.sort(key=lambda index: -free[index])
            if len(on) >= ranks and needed <= room:
                places.append((ranks, server, tuple(on[:ranks])))
        if places:  # over the fewest GPUs, there on the emptiest, the fastest of them, or the first
            ranks, server, on_gpus = min(
                places,
                key=lambda place: (
                    place[0],
                    -free[place[2][0]] if placing == "spread" else place[2][0],
                    -place[1].gpu.bandwidth_gb_per_s,
                ),
            )
            placed[each.alias] = server, on_gpus
            least[each.alias] = _thousandths(server) if ranks == 1 else room
            for index in on_gpus:
                free[index] -= least[each.alias]
            continue
        server = min(splits.values(), key=lambda server: server.tensor_parallel)
        gpu_gb, ranks = server.gpu.memory_gb, server.tensor_parallel
        left = [free[i] for i in free if gpus[i] == server.gpu]
        lacking.append(
            f"{each.alias} needs {server.least_bytes / 1e9:.1f} GB on each of {ranks} GPUs"
            f"{' of its own' if ranks > 1 else ''} ({server.weight_bytes / 1e9:.1f} of them "
            f"weights); {len(left)} GPUs have at most {max(left) * gpu_gb / _STEPS:.1f} of "
            f"{gpu_gb:g} GB left."
        )
    if lacking:
        raise ConfigError(
            f"the models do not fit on {_counted(devices)}:\n  " + "\n  ".join(lacking) + "\n"
            "Give more GPUs (--gpu KIND:COUNT) or larger ones, take fewer models, "
            "smaller weights (MODEL:fp8, MODEL:awq), or lower --max-model-len."
        )
    shares = {}
    for alias, (server, on_gpus) in placed.items():  # with what is left for its KV cache
        blocks = sum(peer.block_bytes for peer, its in placed.values() if its == on_gpus)
        extra = floor(free[on_gpus[0]] * server.block_bytes / blocks)
        shares[alias] = (least[alias] + extra) / _STEPS
    return placed, shares


def _thousandths(server: Server) -> int:
    return ceil(_STEPS * server.least_bytes / (1e9 * server.gpu.memory_gb))


def _split(server: Server, ranks: int | None, room: int) -> Server:
    """Return a server over so many GPUs, or over as few as hold it; the widest if none does."""
    heads, kept = server.model.num_attention_heads, server.model.num_key_value_heads
    for number in _MOST_GPUS if ranks is None else (ranks,):
        if heads % number == 0 and (kept % number == 0 or number % kept == 0):
            server = replace(server, tensor_parallel=number)
            if _thousandths(server) <= room:
                break
        elif ranks is not None:
            words = f"has {heads} attention heads, {kept} of them for keys"
            raise ConfigError(f"--models: it {words}: they cannot be split over {number} GPUs.")
    return server


def pool_yaml(pool: PoolConfig, wanted: Sequence[Wanted], command: str) -> str:
    """Return a pool as YAML that `load_pool` reads, its origin in comments.

    Args:
        pool: A pool of `make_pool`.
        wanted: Its models.
        command: The command that made it.
    """
    factors = hardware().factors
    paragraphs = [
        f"Made by: {command}",
        "Server cards are estimates (`estimate: true`) from architectures and data sheets: nothing "
        "here was measured. `inframind calibrate` fits a card to a server's request log; put its "
        "card in place of the one here.",
    ]
    for device in dict.fromkeys(gpu.device for gpu in pool.gpus):
        gpu = find_gpu(device)[1]
        link_s, link = factors.pcie_s, factors.pcie_efficiency
        if gpu.link == "nvlink":
            link_s, link = factors.nvlink_s, factors.nvlink_efficiency
        paragraphs += [
            f"{device} ({gpu.source}): {gpu.bandwidth_gb_per_s:g} GB/s, of which "
            f"{gpu.bandwidth_efficiency:g} are reached; {gpu.bf16_tflops:g} TFLOP/s (bf16, dense)"
            f"{f', {gpu.fp8_tflops:g} (fp8)' if gpu.fp8_tflops else ''}, of which "
            f"{gpu.compute_efficiency:g} are reached.",
            f"A step further takes {1e3 * factors.step_s:g} ms, {1e6 * factors.layer_s:g} us a "
            f"layer and {1e6 * factors.seq_s:g} us a sequence. On several GPUs: two all-reduces a "
            f"layer, {1e6 * link_s:g} us and {gpu.link_gb_per_s * link:g} GB/s each.",
        ]
    paragraphs.append(
        "num_kv_blocks: what gpu_memory_frac leaves beside weights, activations and "
        f"{factors.runtime_gb:g} GB for CUDA. colocation_slowdown: assumed, processes on one GPU "
        "take turns."
    )
    if any(model.url for model in pool.models):
        paragraphs.append(
            "Names, addresses, max_model_len, num_kv_blocks and prefix_caching are the servers'; "
            "max_num_seqs and max_num_batched_tokens are not: set them as the servers were started."
        )
    for each in wanted:
        kind = each.model.quantization
        size = f"{each.model.weight_bytes / 1e9:.1f} GB in {kind}"
        text = f"{each.alias}: {each.model.repository}, {size}"
        if each.needs_path and not pool.models[0].url:
            text += f". `path` must name {kind} weights before `inframind pool up` can start it"
        paragraphs.append(f"{text}. Architecture: {each.model.source}.")
    lines = [
        f"# {line}"
        for paragraph in paragraphs
        for line in textwrap.wrap(
            paragraph, 98, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )
    ]
    content = pool.model_dump(mode="json", exclude_defaults=True)
    return "\n".join([*lines, yaml.safe_dump(content, sort_keys=False, width=100)])
