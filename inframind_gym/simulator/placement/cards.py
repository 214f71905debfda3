"""Clusters: GPUs, and the cards of the models that may live on them. Read from YAML.

A *catalogue* (`envs_configs/placement/catalogues`) describes models on one kind of GPU; a *cluster*
(`envs_configs/placement/clusters`) names a catalogue, some of its models and its GPUs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

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
)
from inframind_gym.errors import ConfigError, unknown

MOST_MODELS = 64
MOST_GPUS = 4096  # of a group
TensorParallel = Annotated[int, Field(ge=1, le=8)]


class ModelCard(StrictModel):
    """Timing and memory of one model.

    Attributes:
        model_id: Name on the hub.
        alias: Short name, unique in a catalogue.
        tp_min: GPUs that one instance spans (tensor parallelism).
        t_wake_s: From SLEPT to ACTIVE.
        t_sleep_s: From ACTIVE to SLEPT, when this process has slept before.
        t_first_sleep_s: The first time, when pinned memory is still to be allocated.
        t_load_s: From nothing to ACTIVE: process start and weights.
        t_offload_s: Until a process has gone and its memory is free.
        active_mem_MB: Per GPU, weights and KV cache while awake.
        slept_mem_tp1_MB: What a sleeping instance keeps on its GPU, at `tp_min` 1.
        slept_mem_tpg1_MB: The same per GPU, at `tp_min` above 1.
        slots: Calls that run at once (`max_num_seqs`).
        queue: Calls that may wait in the server beyond those; the router keeps the rest.
        base_s: Time of an engine step, which gives every running call one token.
        per_seq_s: What each running call adds to it.
        prefill_tokens_per_s: Prompt tokens that are computed in a second. A step that computes a
            prompt takes so long, if that is longer than a step.
    """

    model_id: str = Field(min_length=1)
    alias: Name
    tp_min: TensorParallel = 1
    t_wake_s: Positive
    t_sleep_s: Positive
    t_first_sleep_s: Positive
    t_load_s: Positive
    t_offload_s: Positive
    active_mem_MB: Positive  # noqa: N815  (megabytes, not millibits)
    slept_mem_tp1_MB: Positive  # noqa: N815
    slept_mem_tpg1_MB: Positive  # noqa: N815
    slots: PositiveInt
    queue: NonNegativeInt
    base_s: Positive
    per_seq_s: NonNegative
    prefill_tokens_per_s: Positive

    @model_validator(mode="after")
    def _check(self) -> ModelCard:
        if self.slept_mem_MB >= self.active_mem_MB:
            raise ValueError(
                f"{self.alias}: sleeping keeps {self.slept_mem_MB:g} MB, which must be less than "
                f"active_mem_MB ({self.active_mem_MB:g})"
            )
        return self

    @property
    def slept_mem_MB(self) -> float:  # noqa: N802
        """Memory that a sleeping instance keeps on each of its GPUs."""
        return self.slept_mem_tp1_MB if self.tp_min == 1 else self.slept_mem_tpg1_MB


class Catalogue(StrictModel):
    """Models on one kind of GPU."""

    name: Name
    description: str = ""
    models: tuple[ModelCard, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Catalogue:
        aliases = [card.alias for card in self.models]
        twice = sorted({alias for alias in aliases if aliases.count(alias) > 1})
        if twice:
            raise ValueError(f"the aliases {', '.join(twice)} name more than one model")
        return self


class GpuGroup(StrictModel):
    """GPUs of one kind, numbered one after the other.

    Attributes:
        count: How many.
        vram_total_MB: Memory of each.
        alpha: Largest share of it that sleeping models may keep.
    """

    count: Annotated[PositiveInt, Field(le=MOST_GPUS)]
    vram_total_MB: Positive  # noqa: N815
    alpha: Fraction


class ClusterConfig(StrictModel):
    """GPUs and the models that are asked for on them.

    Attributes:
        name: Name of the cluster.
        description: One line.
        catalogue: Name or path of a catalogue.
        models: Aliases out of it; their order is that of the actions.
        gpus: The GPUs. An instance of `tp_min` k spans the GPUs k·j to k·j + k - 1 for some j.
    """

    name: Name
    description: str = ""
    catalogue: str
    models: tuple[str, ...] = Field(min_length=1, max_length=MOST_MODELS)
    gpus: tuple[GpuGroup, ...] = Field(min_length=1)

    @property
    def num_gpus(self) -> int:
        """GPUs of all groups."""
        return sum(group.count for group in self.gpus)


def load_cluster(name_or_path: str | Path) -> tuple[ClusterConfig, tuple[ModelCard, ...]]:
    """Read a cluster and the cards of its models.

    Returns:
        The cluster, and its models' cards in its order.

    Raises:
        ConfigError: A file is missing or malformed; a model is not in the catalogue, named twice,
            or fits on no block of GPUs.
    """
    path = find_config("placement/clusters", name_or_path)
    cluster = load_yaml_model(path, ClusterConfig)
    try:
        catalogue_path = find_config("placement/catalogues", cluster.catalogue)
    except ConfigError as error:
        raise ConfigError(f"{path}: catalogue: {error}") from None
    cards = {card.alias: card for card in load_yaml_model(catalogue_path, Catalogue).models}
    vram_mb = [group.vram_total_MB for group in cluster.gpus for _ in range(group.count)]
    for alias in cluster.models:
        if alias not in cards:
            raise ConfigError(f"{path}: models: {unknown('model', alias, cards)}")
        tp = cards[alias].tp_min
        if cluster.models.count(alias) > 1:
            raise ConfigError(f"{path}: models: {alias} is named more than once. Name it once.")
        blocks = (vram_mb[g : g + tp] for g in range(0, len(vram_mb) - tp + 1, tp))
        if not any(min(block) >= cards[alias].active_mem_MB for block in blocks):
            raise ConfigError(
                f"{path}: models: {alias} needs {cards[alias].active_mem_MB:g} MB on each of "
                f"{tp} neighbouring GPUs, and no block of GPUs has that. "
                "Remove it or add GPUs."
            )
    return cluster, tuple(cards[alias] for alias in cluster.models)
