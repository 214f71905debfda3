"""The team's server: vLLM with Qwen3-4B in FP8, its options, and its estimated speed on a GPU.

Options that vLLM refuses are refused here, with the reason. Speeds are estimates by the roofline
that `inframind pool new` uses (`inframind_gym.simulator.estimate`); `measure` takes those of a
running server.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self

from pydantic import model_validator

from inframind_gym.configs import StrictModel, within
from inframind_gym.simulator.estimate.architecture import find_architecture
from inframind_gym.simulator.estimate.roofline import Gpu, Server, find_gpu
from inframind_gym.simulator.server.pool import ServerCard
from inframind_gym.teams.coordination.context import kv_bytes_per_token
from inframind_gym.teams.coordination.options import MODEL, Environment
from inframind_gym.teams.llm.service import LLMService

GPUS: Final = ("RTX-4090-LAPTOP", "RTX-4090", "L4", "H100-80GB")
DECODE_TOK_S: Final = (100.0, 160.0)  # asked for
PREFILL_TOK_S: Final = (800.0, 1300.0)
MOST_VRAM_GB: Final = 16.0
_ARCHITECTURE: Final = "qwen3-4b"
_PROMPT_TOKENS: Final = 1024  # of the prefill that is estimated and measured
_WORDS: Final = ("queue", "cache", "block", "batch", "token", "agent", "route", "plan", "rank")


class VllmServer(StrictModel):
    """Options of the team's server, by vLLM's names.

    Attributes:
        model: On the Hugging Face hub, or a folder.
        max_model_len: Tokens of prompt and answer.
        gpu_memory_utilization: Share of the GPU's memory that vLLM takes.
        quantization: Of the weights.
        kv_cache_dtype: "fp8" (e4m3); e5m2 does not go with a checkpoint in FP8.
        max_num_seqs: Calls at once; fewer than three carry out parallel retrievals in turn.
        max_num_batched_tokens: Tokens of a step; longer prompts are computed in several.
        enforce_eager: No CUDA graphs.
    """

    model: str = MODEL
    max_model_len: Annotated[int, within(1024, 131_072)] = 131_072
    gpu_memory_utilization: Annotated[float, within(0.1, 1.0)] = 0.95
    quantization: Literal["fp8", "none"] = "fp8"
    kv_cache_dtype: Literal["fp8", "fp8_e4m3", "fp8_e5m2", "auto"] = "fp8"
    max_num_seqs: Annotated[int, within(1, 1024)] = 3
    max_num_batched_tokens: Annotated[int, within(256, 131_072)] = 2048
    enforce_eager: bool = False

    @model_validator(mode="after")
    def _servable(self) -> Self:
        if self.kv_cache_dtype == "fp8_e5m2" and self.quantization == "fp8":
            raise ValueError(
                "kv_cache_dtype fp8_e5m2: vLLM refuses it with a checkpoint in FP8; take fp8 (e4m3)"
            )
        return self

    @classmethod
    def of(cls, variables: Environment) -> VllmServer:
        """Return the server that the variables of an `.env` file ask for."""
        return cls(
            model=variables.MODEL_PATH,
            max_model_len=variables.VLLM_MAX_MODEL_LEN,
            gpu_memory_utilization=variables.VLLM_GPU_MEMORY_UTILIZATION,
            quantization=variables.VLLM_QUANTIZATION,
        )

    def arguments(self) -> list[str]:
        """Return the arguments of ``vllm serve`` after the model."""
        arguments = [
            *("--max-model-len", str(self.max_model_len)),
            *("--gpu-memory-utilization", f"{self.gpu_memory_utilization:g}"),
            *("--kv-cache-dtype", self.kv_cache_dtype),
            *("--max-num-seqs", str(self.max_num_seqs)),
            *("--max-num-batched-tokens", str(self.max_num_batched_tokens)),
            "--enable-prefix-caching",
        ]
        return arguments + (["--enforce-eager"] if self.enforce_eager else [])

    def card(self, gpu: str) -> ServerCard:
        """Return the estimated server card on a GPU, with keys and values of the chosen type.

        Raises:
            ConfigError: The GPU is not known.
        """
        server, found = self._server(gpu)
        room = 1e9 * found.memory_gb * self.gpu_memory_utilization
        room -= server.weight_bytes + server.reserved_bytes
        card = server.card(1e9 * found.memory_gb)
        share = self.kv_token_bytes / server.model.kv_token_bytes
        step = card.step.model_copy(update={"per_kv_token_s": card.step.per_kv_token_s * share})
        blocks = int(room // (card.block_size * self.kv_token_bytes))
        return card.model_copy(update={"step": step, "num_kv_blocks": max(blocks, 0)})

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of keys and values of one token."""
        return kv_bytes_per_token(_ARCHITECTURE, "fp8" if self.kv_cache_dtype != "auto" else "bf16")

    def memory_gb(self, gpu: str) -> float:
        """Return the memory that one context of `max_model_len` takes with weights and buffers."""
        server, _ = self._server(gpu)
        cache = self.max_model_len * self.kv_token_bytes
        return (server.weight_bytes + server.reserved_bytes + cache) / 1e9

    def _server(self, gpu: str) -> tuple[Server, Gpu]:
        quantization = "bf16" if self.quantization == "none" else self.quantization
        model = find_architecture(_ARCHITECTURE).model_copy(update={"quantization": quantization})
        found = find_gpu(gpu)[1]
        sizes = (self.max_num_seqs, self.max_num_batched_tokens, self.max_model_len)
        return Server(model, found, 1, *sizes), found


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of a server.

    Attributes:
        where: GPU of an estimate, or the model of a measured server.
        decode_tok_s: Tokens of one answer a second, nothing else running.
        prefill_tok_s: Tokens of a prompt of 1,024 a second, nothing else running.
        memory_gb: With one context of full length; None where it was not estimated.
    """

    where: str
    decode_tok_s: float
    prefill_tok_s: float
    memory_gb: float | None

    def checks(self) -> dict[str, bool]:
        """Return what is reached of what was asked for; faster than asked for counts as reached."""
        checks = {
            f"decode >= {DECODE_TOK_S[0]:g} tok/s": self.decode_tok_s >= DECODE_TOK_S[0],
            f"prefill >= {PREFILL_TOK_S[0]:g} tok/s": self.prefill_tok_s >= PREFILL_TOK_S[0],
        }
        if self.memory_gb is not None:
            checks[f"memory < {MOST_VRAM_GB:g} GB"] = self.memory_gb < MOST_VRAM_GB
        return checks


def estimate(gpu: str, server: VllmServer | None = None) -> Speed:
    """Return the estimated speed of a server on a GPU.

    Raises:
        ConfigError: The GPU is not known.
    """
    server = server or VllmServer()
    card = server.card(gpu)
    prefill_s = card.call_s(_PROMPT_TOKENS, 1)
    decode_s = (card.call_s(_PROMPT_TOKENS, 129) - prefill_s) / 128
    return Speed(gpu, 1 / decode_s, _PROMPT_TOKENS / prefill_s, server.memory_gb(gpu))


async def measure(service: LLMService, provider: str, seed: int = 0) -> Speed:
    """Return the speed of a running server: two lengths of answers, two of prompts.

    Every prompt begins with words of its own, as servers keep the prefixes that they have seen.

    Raises:
        LLMError: A call failed.
    """
    draws = random.Random(seed)

    async def call(words: int, most: int) -> tuple[float, int, int]:
        text = " ".join(draws.choice(_WORDS) + str(draws.randrange(1000)) for _ in range(words))
        system = f"{draws.random()} Count upwards from 1, one number a line, and never stop."
        reply = await service.acall(system, text, provider, most, agent="speed")
        return reply.latency_s, reply.input_tokens, reply.output_tokens

    await call(8, 4)  # what a server does once
    few, many = await call(8, 8), await call(8, 136)
    short, long = await call(8, 1), await call(1500, 1)
    return Speed(
        service.providers[provider].model,
        max(many[2] - few[2], 1) / max(many[0] - few[0], 1e-9),
        (long[1] - short[1]) / max(long[0] - short[0], 1e-9),
        None,
    )
