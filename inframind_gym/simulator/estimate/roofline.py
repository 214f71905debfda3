"""Time and memory of a server by the roofline: the architecture of a model on a GPU's data sheet.

A model is one of `models.yaml`, or a folder with a `config.json`. `gpus.yaml` has the GPUs, the
constants and their sources.

A step reads the weights and computes its tokens at the same time: with N tokens it takes
``(weights_s^p + (token_s * N)^p)^(1/p)``; with p = 4 that is nearly the longer of the two. Reading
keys and values, attention, and what each sequence costs come on top.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from inframind_gym.configs import (
    Fraction,
    NonNegative,
    Positive,
    PositiveInt,
    StrictModel,
    load_yaml_model,
    validate,
)
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.files import read_json
from inframind_gym.simulator.server.pool import ServerCard, StepCost

BLOCK_SIZE: Final = 16
ROOFLINE_POWER: Final = 4.0  # p
_BYTES_A_WEIGHT: Final = {"bf16": 2.0, "fp8": 1.0, "awq": 0.52, "gptq": 0.52}  # 4 bits and scales
QUANTIZATIONS: Final = tuple(_BYTES_A_WEIGHT)
_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")  # names of one number
_NOT_KNOWN: Final = (  # keys of other caches and layers than those that the estimate knows
    *("kv_lora_rank", "ssm_cfg", "mamba_d_state", "linear_num_value_heads"),
    *("n_shared_experts", "shared_expert_intermediate_size"),
)


class Architecture(StrictModel):
    """A transformer; keys are those of its `config.json`."""

    repository: str  # on the Hugging Face hub, or a folder
    awq: str | None = None  # repository of its weights in 4 bits
    source: str  # page where the numbers were checked, or file
    num_hidden_layers: PositiveInt
    hidden_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    intermediate_size: PositiveInt  # of the MLP, or of one expert
    vocab_size: PositiveInt
    tie_word_embeddings: bool
    max_position_embeddings: PositiveInt
    num_experts: PositiveInt = 1
    num_experts_per_tok: PositiveInt = 1
    quantization: str = "bf16"

    @model_validator(mode="after")
    def _check(self) -> Architecture:
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"num_experts_per_tok ({self.num_experts_per_tok}) exceeds num_experts "
                f"({self.num_experts})"
            )
        return self

    @property
    def always_read(self) -> int:
        """Weights of the layers that every step reads: all but those of experts."""
        heads = self.num_attention_heads + self.num_key_value_heads
        attention = 2 * self.hidden_size * heads * self.head_dim
        router = self.hidden_size * self.num_experts if self.num_experts > 1 else 0
        return self.num_hidden_layers * (attention + router + self._mlp * (self.num_experts == 1))

    @property
    def in_experts(self) -> int:
        """Weights of all experts; 0 without any."""
        return self.num_hidden_layers * self._mlp * self.num_experts * (self.num_experts > 1)

    @property
    def used_by_a_token(self) -> float:
        """Weights of the layers that one token is multiplied with."""
        return self.always_read + self.in_experts * self.num_experts_per_tok / self.num_experts

    @property
    def in_head(self) -> int:
        """Weights of the layer that gives the logits."""
        return self.hidden_size * self.vocab_size

    @property
    def parameters(self) -> int:
        """All weights."""
        embeddings = self.in_head * (1 if self.tie_word_embeddings else 2)
        return self.always_read + self.in_experts + embeddings

    @property
    def bytes_a_weight(self) -> float:
        """Of the layers; embeddings and head stay in 16 bits."""
        return _BYTES_A_WEIGHT[self.quantization]

    @property
    def weight_bytes(self) -> float:
        """Of all weights."""
        layers = self.always_read + self.in_experts
        return self.bytes_a_weight * layers + 2.0 * (self.parameters - layers)

    @property
    def kv_token_bytes(self) -> int:
        """Of the keys and values of one token, in 16 bits."""
        return 4 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim

    @property
    def _mlp(self) -> int:
        return 3 * self.hidden_size * self.intermediate_size


class _Models(StrictModel):
    models: dict[str, Architecture]


@cache
def known_models() -> dict[str, Architecture]:
    """Return the models of `models.yaml` by their names."""
    return load_yaml_model(Path(__file__).with_name("models.yaml"), _Models).models


def find_architecture(name: str) -> Architecture:
    """Return the architecture of a model.

    Args:
        name: One of `models.yaml`, or a folder with a `config.json`: it contains a "/".

    Raises:
        ConfigError: There is no such model or folder, or its `config.json` does not say enough.
    """
    if "/" in name:
        return _read_config(os.path.abspath(os.path.expanduser(name)))
    if name not in known_models():
        folder = name if Path(name, "config.json").is_file() else "my-model"
        raise ConfigError(
            f"{unknown('model', name, known_models())} Others are given as a folder that holds "
            f"their config.json, such as ./{folder}."
        )
    return known_models()[name]


def _read_config(folder: str) -> Architecture:
    """Read a folder's `config.json`, as Hugging Face's transformers write it."""
    path = Path(folder, "config.json")
    data: Any = read_json(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: is no JSON object.")
    text = data.get("text_config")  # of a model that takes images as well
    data |= text if isinstance(text, dict) else {}
    for key in _NOT_KNOWN:
        if data.get(key):
            raise ConfigError(
                f"{path}: {key}: this kind of model has another cache or other layers than the "
                "estimate knows (keys and values of every token; an MLP, or experts alone). "
                "Measure a server of it instead: inframind calibrate."
            )
    quantized = data.get("quantization_config")
    quantized = quantized if isinstance(quantized, dict) else {}
    kind, bits = quantized.get("quant_method", "bf16"), quantized.get("bits", 4)
    if kind not in QUANTIZATIONS or (kind != "fp8" and bits != 4):
        raise ConfigError(
            f"{path}: quantization_config: {kind!r:.40} with {bits!r:.20} bits is not known. "
            f"Known: {', '.join(QUANTIZATIONS)} (awq and gptq with 4 bits)."
        )
    found: dict[str, Any] = {"tie_word_embeddings": True}  # what transformers take it for
    heads, width = data.get("num_attention_heads"), data.get("hidden_size")
    if isinstance(heads, int) and isinstance(width, int) and heads > 0:
        found |= {"num_key_value_heads": heads, "head_dim": width // heads}
    found |= {key: data[key] for key in Architecture.model_fields if data.get(key) is not None}
    found["num_experts"] = next((data[key] for key in _EXPERTS if data.get(key)), 1)
    if found["num_experts"] != 1 and data.get("moe_intermediate_size"):
        found["intermediate_size"] = data["moe_intermediate_size"]
    found |= {"repository": folder, "awq": None, "source": str(path), "quantization": kind}
    return validate(found, Architecture, source=str(path))


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
