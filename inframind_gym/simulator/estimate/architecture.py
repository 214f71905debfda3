"""Architectures of models: those of `models.yaml`, and of folders with a `config.json`."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import model_validator

from inframind_gym.configs import PositiveInt, StrictModel, load_yaml_model, validate
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.files import read_json

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
