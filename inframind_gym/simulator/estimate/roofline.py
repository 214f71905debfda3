"""Time and memory of a server by the roofline: the architecture of a model on a GPU's data sheet.

A step reads the weights and computes its tokens at the same time: with N tokens it takes
``(weights_s^p + (token_s * N)^p)^(1/p)``; with p = 4 that is nearly the longer of the two. Reading
keys and values, attention, and what each sequence costs come on top. `gpus.yaml` has the constants
and their sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from inframind_gym.configs import Fraction, NonNegative, Positive, StrictModel, load_yaml_model
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.simulator.estimate.architecture import Architecture
from inframind_gym.simulator.server.pool import ServerCard, StepCost

BLOCK_SIZE: Final = 16
ROOFLINE_POWER: Final = 4.0  # p


class Gpu(StrictModel):
    """A GPU by its data sheet, and the share of its peaks that a server reaches."""

    memory_gb: Positive  # 1e9 bytes
    bandwidth_gb_per_s: Positive
    bf16_tflops: Positive  # dense
    fp8_tflops: Positive | None = None
    link: Literal["nvlink", "pcie"]
    link_gb_per_s: Positive  # to another GPU, in one direction
    bandwidth_efficiency: Fraction = Field(gt=0)
    compute_efficiency: Fraction = Field(gt=0)
    source: str  # page where the numbers were checked


class Factors(StrictModel):
    """Constants that all GPUs have in common; `gpus.yaml` explains them."""

    step_s: NonNegative
    layer_s: NonNegative
    seq_s: NonNegative
    nvlink_s: NonNegative
    nvlink_efficiency: Fraction = Field(gt=0)
    pcie_s: NonNegative
    pcie_efficiency: Fraction = Field(gt=0)
    unpacking: Fraction = Field(gt=0)
    runtime_gb: NonNegative
    memory_share: Fraction = Field(gt=0)
    colocation_slowdown: NonNegative


class _Hardware(StrictModel):
    factors: Factors
    gpus: dict[str, Gpu]


@cache
def hardware() -> _Hardware:
    """Return what `gpus.yaml` holds."""
    return load_yaml_model(Path(__file__).with_name("gpus.yaml"), _Hardware)


def find_gpu(name: str) -> tuple[str, Gpu]:
    """Return a GPU of `gpus.yaml` and its name there; capitals and blanks do not matter.

    Raises:
        ConfigError: It has no such GPU.
    """
    known = hardware().gpus
    wanted = name.strip().replace(" ", "-").upper()
    for own, gpu in known.items():
        if own.upper() == wanted:
            return own, gpu
    raise ConfigError(unknown("GPU", name, known))


@dataclass(frozen=True)
class Server:
    """A server of one model that is to be estimated."""

    model: Architecture  # its architecture
    gpu: Gpu  # each of its GPUs
    tensor_parallel: int  # their number
    max_num_seqs: int  # see `ServerCard`, as the next two
    max_num_batched_tokens: int  # tokens
    max_model_len: int  # tokens

    @property
    def weight_bytes(self) -> float:
        """Of the weights on each GPU."""
        return self.model.weight_bytes / self.tensor_parallel

    @property
    def reserved_bytes(self) -> float:
        """Of activations and CUDA on each GPU: a step's widest layer, and its logits thrice."""
        model = self.model
        wide = 2 * model.intermediate_size * model.num_experts_per_tok / self.tensor_parallel
        activations = 2.0 * self.max_num_batched_tokens * (wide + 4 * model.hidden_size)
        logits = 12.0 * self.max_num_seqs * model.vocab_size / self.tensor_parallel
        return 1e9 * hardware().factors.runtime_gb + activations + logits

    @property
    def block_bytes(self) -> float:
        """Of one KV block on each GPU; heads that are fewer than the GPUs are kept by several."""
        heads = max(self.model.num_key_value_heads / self.tensor_parallel, 1.0)
        return BLOCK_SIZE * self.model.kv_token_bytes * heads / self.model.num_key_value_heads

    @property
    def least_blocks(self) -> int:
        """KV blocks that hold one sequence of `max_model_len`, and the reserved one."""
        return -(-self.max_model_len // BLOCK_SIZE) + 1

    @property
    def least_bytes(self) -> float:
        """Of memory on each GPU below which it cannot start."""
        return self.weight_bytes + self.reserved_bytes + self.least_blocks * self.block_bytes

    def card(self, gpu_bytes: float) -> ServerCard:
        """Return the server card with `gpu_bytes` of memory on each GPU, `least_bytes` or more."""
        blocks = int((gpu_bytes - self.weight_bytes - self.reserved_bytes) // self.block_bytes)
        return ServerCard(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            num_kv_blocks=max(blocks, self.least_blocks),
            block_size=BLOCK_SIZE,
            max_model_len=self.max_model_len,
            prefix_caching=True,
            async_scheduling=True,
            estimate=True,
            step=self._step(),
        )

    def _step(self) -> StepCost:
        """Return the cost of a step."""
        model, gpu, factors = self.model, self.gpu, hardware().factors
        bandwidth = 1e9 * gpu.bandwidth_gb_per_s * gpu.bandwidth_efficiency * self.tensor_parallel
        peak = gpu.bf16_tflops
        if model.quantization == "fp8":
            peak = gpu.fp8_tflops or peak * factors.unpacking
        elif model.quantization != "bf16":
            peak *= factors.unpacking
        flops = 1e12 * gpu.compute_efficiency * self.tensor_parallel
        seq_flop = 2.0 * model.in_head
        attention_flop = 4.0 * (
            model.num_hidden_layers * model.num_attention_heads * model.head_dim
        )
        reduce_s, reduce_token_s = self._all_reduce_s()
        read = model.bytes_a_weight * model.always_read + 2.0 * model.in_head
        weights_s = read / bandwidth + factors.step_s + factors.layer_s * model.num_hidden_layers
        costs = {
            "base_s": weights_s + reduce_s,
            "per_new_token_s": 2.0 * model.used_by_a_token / (peak * flops) + reduce_token_s,
            "roofline_power": ROOFLINE_POWER,
            "per_seq_s": factors.seq_s + seq_flop / (gpu.bf16_tflops * flops),
            "per_kv_token_s": self.block_bytes / BLOCK_SIZE * self.tensor_parallel / bandwidth,
            "per_attention_unit_s": attention_flop / (gpu.bf16_tflops * flops),
        }
        if model.in_experts:
            costs["sparse_s"] = model.bytes_a_weight * model.in_experts / bandwidth
            costs["sparse_tokens"] = model.num_experts / model.num_experts_per_tok
        return StepCost(**{name: float(f"{cost:.4g}") for name, cost in costs.items()})

    def _all_reduce_s(self) -> tuple[float, float]:
        """Return the time of a step's all-reduces, two a layer: at least, and for every token."""
        gpu, factors, ranks = self.gpu, hardware().factors, self.tensor_parallel
        if ranks == 1:
            return 0.0, 0.0
        nvlink = gpu.link == "nvlink"
        least_s = factors.nvlink_s if nvlink else factors.pcie_s
        share = factors.nvlink_efficiency if nvlink else factors.pcie_efficiency
        moved = 2.0 * (ranks - 1) / ranks * 2.0 * self.model.hidden_size  # bytes, in a ring
        times = 2 * self.model.num_hidden_layers
        return times * least_s, times * moved / (1e9 * gpu.link_gb_per_s * share)
