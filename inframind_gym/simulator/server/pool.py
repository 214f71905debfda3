"""A pool: GPUs, the models that live on them, and the server card of each model.

Read from YAML (`envs_configs/pools/`), shared by the surrogate, the live backend and calibration.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from inframind_gym.configs import (
    Fraction,
    Name,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    StrictModel,
    find_config,
    load_yaml_model,
    whole,
)
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.simulator.jit import inner

Scheduler = Literal["edf", "edf_late_last", "fcfs"]
Port = Annotated[int, Field(ge=1, le=65535)]


def _number_as_text(value: Any) -> Any:
    """Return a number as text: YAML reads 4 where a command line needs "4"."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Value = Annotated[  # of an argument of vLLM
    str,
    whole(r"[^-\x00-\x1f][^\x00-\x1f]*", "is empty, begins with '-' or holds a control character"),
]
Text = Annotated[
    str,
    BeforeValidator(_number_as_text),
    whole(r"[^\0]*", "holds a NUL: no process can be given it"),
]

MOST_MODELS: Final = 32  # of a pool: the bits of a mask of models


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid or " " in url:
        raise ValueError(
            f"{url!r:.80} is no server's address: it must start with http:// or https://, "
            "then comes a host and, after ':', a port of 1 to 65535"
        )
    return url


Url = Annotated[Value, AfterValidator(_check_url)]
Weights = Annotated[  # those of tiny: are made by `live/weights.py`
    Value,
    whole(
        r"(?!tiny:).*|tiny:[1-9]\d*x[1-9]\d*",
        "is no path: give a folder (/..., ~/..., ./...), a name on the Hugging Face hub, "
        "tiny:LAYERSxWIDTH (tiny:2x128)",
    ),
]


@inner
def computing_s(step: Any, tokens: float) -> float:
    """Return the time that computing `tokens` adds to reading the weights (`StepCost` or CARD)."""
    alone_s = step.per_new_token_s * tokens
    if step.roofline_power == 1.0:
        return float(alone_s)
    longer_s, shorter_s = max(step.base_s, alone_s), min(step.base_s, alone_s)
    ratio = (shorter_s / longer_s) ** step.roofline_power
    return float(longer_s * (1.0 + ratio) ** (1.0 / step.roofline_power) - step.base_s)


class StepCost(StrictModel):
    """Cost of one engine step, in seconds.

    A step that serves B sequences, reads the keys and values of `kv_tokens` cached tokens and
    computes `new_tokens` tokens (prefilled ones, and one per decoding sequence) takes
    `(base_s^p + (per_new_token_s * new_tokens)^p)^(1/p) + per_seq_s * B
    + per_kv_token_s * kv_tokens + per_attention_unit_s * sum(chunk * context_after)
    + sparse_s * (1 - exp(-new_tokens / sparse_tokens))`, times the co-location factor of its GPU
    (`GpuConfig`), where p is `roofline_power`. The first term is a roofline: reading the weights
    and computing overlap, the more the larger p is. With p = 1 they add up. The last term is for
    mixtures of experts: a step reads the experts that its tokens are routed to.
    """

    base_s: Positive  # reading the weights, launching the kernels
    per_seq_s: NonNegative = 0.0  # for every sequence in the batch
    per_kv_token_s: NonNegative = 0.0  # for every cached token that is read
    per_new_token_s: NonNegative = 0.0  # for every token that is computed: prefill
    per_attention_unit_s: NonNegative = (
        0.0  # for every prefilled token times the context it attends to
    )
    sparse_s: NonNegative = 0.0  # for reading all experts, when there are tokens for all
    sparse_tokens: Positive = 16.0  # that reach 63 % of them: experts over experts a token
    # Not dumped at its default, so that it does not change the hash of a card.
    roofline_power: Annotated[Positive, Field(ge=1.0)] = Field(1.0, exclude_if=lambda p: p == 1.0)

    def computing_s(self, new_tokens: float) -> float:
        """Return the time that computing `new_tokens` tokens adds to reading the weights."""
        return computing_s(self, new_tokens)


class Evidence(StrictModel):
    """Load that a card was fitted to; outside of it, the card is an extrapolation."""

    sequences: tuple[PositiveInt, PositiveInt]  # that ran at once, fewest and most
    new_tokens: tuple[PositiveInt, PositiveInt]  # of a step, fewest and most
    not_identified: tuple[str, ...] = ()  # constants that might as well be half or twice as large


class ServerCard(StrictModel):
    """Limits and speed of one model on one GPU, in the terms of vLLM V1's scheduler."""

    max_num_seqs: PositiveInt  # sequences that run at once ("slots")
    max_num_batched_tokens: PositiveInt  # tokens that one step computes at most
    num_kv_blocks: PositiveInt  # KV cache, in blocks
    block_size: PositiveInt = 16  # tokens a block
    max_model_len: PositiveInt  # tokens: prompt and output together
    # vLLM's `--data-parallel-size`: engines that step together, each with the limits above.
    data_parallel_size: PositiveInt = Field(1, exclude_if=lambda size: size == 1)
    prefix_caching: bool = False  # an evicted request finds again what was not overwritten
    shared_prefix_tokens: NonNegativeInt = 0  # head of all prompts, always cached: a chat template
    async_scheduling: bool = False  # a step is scheduled while the one before it runs
    # Computed from data sheets, not measured. Not dumped when false: the hash of a card stays.
    estimate: bool = Field(False, exclude_if=lambda estimate: not estimate)
    step: StepCost
    evidence: Evidence | None = Field(None, exclude_if=lambda evidence: evidence is None)

    @model_validator(mode="after")
    def _check(self) -> ServerCard:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs}): a step computes one token for every running "
                "sequence"
            )
        if (self.num_kv_blocks - 1) * self.block_size < self.max_model_len:
            raise ValueError(
                f"num_kv_blocks ({self.num_kv_blocks}, of which one is reserved) x block_size "
                f"({self.block_size}) must hold at least one sequence of max_model_len "
                f"({self.max_model_len}) tokens: raise num_kv_blocks or lower max_model_len"
            )
        if self.shared_prefix_tokens and not self.prefix_caching:
            raise ValueError("shared_prefix_tokens needs prefix_caching: true")
        if self.shared_prefix_tokens % self.block_size:
            raise ValueError(
                f"shared_prefix_tokens ({self.shared_prefix_tokens}) must be a multiple of "
                f"block_size ({self.block_size}): only whole blocks are shared"
            )
        return self

    @property
    def slots(self) -> int:
        """Sequences that run at once, in all engines."""
        return self.data_parallel_size * self.max_num_seqs

    def calls_at_once(self, prompt_tokens: float, output_tokens: float) -> int:
        """Return how many calls of a mean length run at once, in all engines.

        These are the slots, or fewer if the KV cache holds fewer calls with all of their output.
        (Running calls are longer than the mean, but have only half of their output.)
        """
        cached = max(prompt_tokens - self.shared_prefix_tokens, 1.0) + output_tokens
        held = (self.num_kv_blocks - 1) * self.block_size - self.shared_prefix_tokens
        return max(1, min(self.slots, int(self.data_parallel_size * held / cached)))

    def call_s(self, prompt_tokens: float, output_tokens: float) -> float:
        """Return the seconds that one call takes on an otherwise idle GPU."""
        step = self.step
        prompt_tokens = max(prompt_tokens - self.shared_prefix_tokens, 1.0)
        chunks = max(1.0, prompt_tokens / self.max_num_batched_tokens)
        prefill_s = chunks * (step.base_s + step.per_seq_s + step.sparse_s)
        prefill_s += chunks * step.computing_s(prompt_tokens / chunks)
        context = prompt_tokens + 0.5 * output_tokens
        decode_s = (
            step.base_s
            + step.per_seq_s
            + step.computing_s(1.0)
            + step.per_kv_token_s * context
            + step.sparse_s * (1.0 - math.exp(-1.0 / step.sparse_tokens))
        )
        return prefill_s + max(0.0, output_tokens - 1.0) * decode_s


class GpuConfig(StrictModel):
    """One GPU. A step on it takes `1 + colocation_slowdown * other busy models` times as long."""

    name: str = Field(min_length=1)
    device: str = Field(min_length=1)  # e.g. "B200"
    memory_gb: Positive | None = None  # 1e9 bytes
    colocation_slowdown: NonNegative = 0.0

    @property
    def is_cpu(self) -> bool:
        """True without a GPU: its servers are those of vLLM for CPUs."""
        return self.device.upper() == "CPU"


class ModelConfig(StrictModel):
    """One served model: what it is, where it lives, how fast it is."""

    name: Value  # as the server knows it, e.g. "meta-llama/Llama-3.1-8B-Instruct"
    alias: Name  # as policies and workloads know it, e.g. "llama-8b"
    gpu: str = ""  # name of a GpuConfig; by default the first of `gpus`
    params_b: Positive  # billions of parameters
    gpu_memory_frac: Annotated[Fraction, Field(gt=0)]
    port: Port | None = None
    url: Url | None = None  # of a server that runs already; instead of a port
    # How `inframind pool up` starts its server; nothing else reads these.
    # Weights: a folder, a name on the Hugging Face hub, or tiny:LAYERSxWIDTH (random ones, made on
    # the spot and converted once); None: `name`
    path: Weights | None = None
    tensor_parallel: PositiveInt = 1  # GPUs that share its layers
    gpus: tuple[str, ...] = ()  # their names if they are several; the first is `gpu`
    load_format: Value | None = None  # "dummy": random weights
    sleep_mode: bool = False  # can be put to sleep and woken up
    extra_args: tuple[Text, ...] = ()  # further ones of vLLM's command line
    env: dict[str, Text] = Field(default_factory=dict)  # further environment variables
    server: ServerCard

    @property
    def all_gpus(self) -> tuple[str, ...]:
        """Names of all GPUs that it is on."""
        return self.gpus or (self.gpu,)

    @model_validator(mode="after")
    def _check_gpus(self) -> ModelConfig:
        needed = self.tensor_parallel * self.server.data_parallel_size
        if len(self.all_gpus) != needed:
            raise ValueError(
                f"tensor_parallel is {self.tensor_parallel} and server.data_parallel_size "
                f"{self.server.data_parallel_size}: name {needed} GPUs under `gpus`, not "
                f"{len(self.all_gpus)}"
            )
        if not self.all_gpus[0]:
            raise ValueError("name its GPU under `gpu`, or several under `gpus`")
        if not self.gpu:
            object.__setattr__(self, "gpu", self.all_gpus[0])  # the model is frozen
        if len(set(self.all_gpus)) != len(self.all_gpus):
            raise ValueError("gpus: names one twice")
        if self.gpu != self.all_gpus[0]:
            raise ValueError(f"gpus: the first must be the model's gpu, {self.gpu}")
        return self


class PoolConfig(StrictModel):
    """The servers that a router chooses from. The order of `models` is the order of the actions."""

    name: Name
    description: str = ""
    scheduler: Scheduler = "edf"
    metrics_poll_s: Positive = 5.0  # telemetry is at most this old
    queue_norm: Positive = 16.0  # requests; divides the observed queue depth
    max_output_tokens: PositiveInt = 2048
    gpus: tuple[GpuConfig, ...] = Field(min_length=1)
    models: tuple[ModelConfig, ...] = Field(min_length=1, max_length=MOST_MODELS)

    @model_validator(mode="after")
    def _check(self) -> PoolConfig:
        gpus = [gpu.name for gpu in self.gpus]
        for what, values in (
            ("gpus: name", gpus),
            ("models: alias", [model.alias for model in self.models]),
            ("models: port", [m.port for m in self.models if m.port is not None]),
        ):
            if repeated := [value for value in values if values.count(value) > 1]:  # type: ignore[arg-type]
                raise ValueError(f"{what} {repeated[0]!r} is used more than once")
        for model in self.models:
            for name in model.all_gpus:
                if name not in gpus:
                    raise ValueError(f"models: {model.alias}: {unknown('gpu', name, gpus)}")
            if model.server.max_model_len <= self.max_output_tokens:
                raise ValueError(
                    f"models: {model.alias}: max_model_len ({model.server.max_model_len}) must "
                    f"exceed the pool's max_output_tokens ({self.max_output_tokens}), or there is "
                    "no room for a prompt"
                )
        for name in gpus:
            used = sum(model.gpu_memory_frac for model in self.models if name in model.all_gpus)
            if used > 1.0 + 1e-9:
                raise ValueError(
                    f"models: the gpu_memory_frac on {name} add up to {used:.2f}: at most 1 fits"
                )
        return self

    @property
    def aliases(self) -> tuple[str, ...]:
        """Aliases of the models, in the order of the actions."""
        return tuple(model.alias for model in self.models)

    @property
    def idle_gpus(self) -> tuple[str, ...]:
        """Names of the GPUs that no model is on."""
        used = {name for model in self.models for name in model.all_gpus}
        return tuple(gpu.name for gpu in self.gpus if gpu.name not in used)

    @property
    def estimates(self) -> tuple[str, ...]:
        """Aliases of the models whose server cards are estimates."""
        return tuple(model.alias for model in self.models if model.server.estimate)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on the origin of its numbers, without full stop."""
        if not self.estimates:
            return ()
        return (f"server cards that are estimates, not measured: {', '.join(self.estimates)}",)

    def gpu_of(self, model: ModelConfig) -> GpuConfig:
        """Return the GPU that a model is on, the first if it is on several."""
        return next(gpu for gpu in self.gpus if gpu.name == model.gpu)

    @property
    def gpu_index(self) -> tuple[int, ...]:
        """Position in `gpus` of each model's GPU."""
        position = {gpu.name: index for index, gpu in enumerate(self.gpus)}
        return tuple(position[model.gpu] for model in self.models)

    def index(self, alias: str) -> int:
        """Return the position of a model.

        Raises:
            ConfigError: If the pool has no such model; names the nearest one.
        """
        if alias not in self.aliases:
            raise ConfigError(f"pool {self.name!r}: {unknown('model', alias, self.aliases)}")
        return self.aliases.index(alias)


def load_pool(name_or_path: str | Path) -> PoolConfig:
    """Read a pool: the name of a shipped one, or the path of a YAML file.

    Raises:
        ConfigError: If there is no such pool or its file is not valid.
    """
    return load_yaml_model(find_config("pools", name_or_path), PoolConfig)
