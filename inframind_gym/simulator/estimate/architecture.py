"""Architectures of the models of `models.yaml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from inframind_gym.configs import PositiveInt, StrictModel, load_yaml_model
from inframind_gym.errors import ConfigError, unknown

_BYTES_A_WEIGHT: Final = {"bf16": 2.0, "fp8": 1.0, "awq": 0.52}  # 4 bits and scales
QUANTIZATIONS: Final = tuple(_BYTES_A_WEIGHT)


class Architecture(StrictModel):
    """A transformer; keys are those of its `config.json`."""

    repository: str  # on the Hugging Face hub
    awq: str | None = None  # repository of its weights in 4 bits
    source: str  # page where the numbers were checked
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
    """Return the architecture of a model of `models.yaml`.

    Raises:
        ConfigError: There is no such model.
    """
    if name not in known_models():
        raise ConfigError(
            f"{unknown('model', name, known_models())} Measure a server of another model: "
            "inframind calibrate."
        )
    return known_models()[name]
