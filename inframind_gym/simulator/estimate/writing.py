"""An estimated pool as YAML, with the origin of its numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import yaml

from inframind_gym.simulator.estimate.packing import Wanted
from inframind_gym.simulator.estimate.roofline import find_gpu, hardware
from inframind_gym.simulator.server.pool import PoolConfig

_WIDTH = 98


def unverified(pool: PoolConfig, wanted: Sequence[Wanted]) -> list[str]:
    """Return a line for each GPU or model of a pool with numbers that no source confirms."""
    device, gpu = find_gpu(pool.gpus[0].device)
    rows = {device: gpu.unverified} | {each.alias: each.model.unverified for each in wanted}
    return [f"{name}: no source confirms {what}." for name, what in rows.items() if what]


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
    paragraphs += unverified(pool, wanted)
    lines = [
        f"# {line}"
        for paragraph in paragraphs
        for line in textwrap.wrap(
            paragraph,
            _WIDTH,
            subsequent_indent="  ",
            break_on_hyphens=False,
            break_long_words=False,
        )
    ]
    content = pool.model_dump(mode="json", exclude_defaults=True)
    return "\n".join([*lines, yaml.safe_dump(content, sort_keys=False, width=100)])
