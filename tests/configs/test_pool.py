"""Pools: shipped ones are whole, wrong ones are refused; `golden/sim.py` has their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from inframind_gym.configs import find_config, list_configs, validate
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.placement.config import Catalogue, ClusterConfig
from inframind_gym.simulator.server.pool import PoolConfig, ServerCard, StepCost, load_pool
from inframind_gym.simulator.server.state import card_record, linear_cards

ALIASES = ("deepseek-32b", "mistral-24b", "qwen-14b", "llama-8b", "llama-3b")


def plain(name: str = "b200-2gpu", kind: str = "pools") -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(find_config(kind, name).read_text(encoding="utf-8"))
    return data


@pytest.mark.parametrize("name", list_configs("pools"))
def test_shipped_pools_are_valid(name: str) -> None:
    pool = load_pool(name)
    assert pool.name == name
    if name not in ("copies-5gpu", "unseen-5gpu"):  # which have workloads of their own
        assert set(pool.aliases) <= set(ALIASES)  # workloads have profiles of these
    assert (pool.aliases == ALIASES) == (name in ("b200-2gpu", "h100-5gpu"))
    assert pool.scheduler == "edf"
    assert PoolConfig.model_validate_json(pool.model_dump_json()) == pool


def test_call_seconds_by_hand() -> None:
    step = StepCost(base_s=0.01, per_seq_s=0.001, per_kv_token_s=1e-6, per_new_token_s=1e-4)
    card = ServerCard(
        max_num_seqs=4,
        max_num_batched_tokens=100,
        num_kv_blocks=65,  # one is reserved
        max_model_len=1024,
        step=step,
    )
    # 200 tokens in two chunks: 2 x 11 ms + 20 ms; then 10 tokens at 11.1 ms + 205.5 us of KV.
    assert card.call_s(200, 11) == pytest.approx(0.042 + 10 * (0.0111 + 205.5e-6))


GPUS = ["gpu0", "gpu1"]


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"models.3.alias": "llama-8b", "models.4.alias": "llama-8b"}, "alias 'llama-8b' is used"),
        ({"models.3.port": 8001, "models.4.port": 8001}, "port 8001 is used more than once"),
        ({"models.1.server.max_num_batched_tokens": 8}, "must be at least max_num_seqs (16)"),
        ({"models.1.server.num_kv_blocks": 1024}, "one sequence of max_model_len (16384)"),
        ({"models.1.server.max_model_len": 2048}, "exceed the pool's max_output_tokens (2048)"),
        ({"models.1.server.shared_prefix_tokens": 16}, "needs prefix_caching: true"),
        ({"scheduler": "efd"}, "Did you mean 'edf'?"),
        ({"models": [m for _ in range(7) for m in plain()["models"]]}, "at most 32 items"),
        ({"schedular": "edf"}, "schedular: unknown key. Did you mean 'scheduler'?"),
        ({"models.0.gpu_memory_frac": 0.9}, "on gpu0 add up to 1.08"),
        ({"models.0.extra_args": ["--seed", "4\0"]}, "models.0.extra_args.1: '4\\x00' holds a NUL"),
        ({"models.0.name": "--host=0.0.0.0"}, "name: '--host=0.0.0.0' is empty, begins with"),
        ({"models.0.env": {"A": True}}, "models.0.env.A: input should be a valid string"),
        ({"models.0.path": "tiny:small"}, "tiny:LAYERSxWIDTH"),
        (
            {"models.0.tensor_parallel": 2},
            "tensor_parallel is 2 and server.data_parallel_size 1: name 2 GPUs",
        ),
        ({"models.0.gpus": GPUS}, "name 1 GPUs under `gpus`, not 2"),
        ({"models.0.tensor_parallel": 2, "models.0.gpus": ["gpu0", "gpu0"]}, "names one twice"),
        ({"models.0.tensor_parallel": 2, "models.0.gpus": GPUS[::-1]}, "must be the model's gpu"),
        ({"models.0.tensor_parallel": 2, "models.0.gpus": ["gpu0", "gpu2"]}, "unknown gpu 'gpu2'"),
        # 0.50 on both GPUs, beside 0.30 + 0.15 + 0.12 on the second
        ({"models.0.tensor_parallel": 2, "models.0.gpus": GPUS}, "on gpu1 add up to 1.07"),
    ],
)
def test_wrong_pools_are_refused(tmp_path: Path, changes: dict[str, Any], part: str) -> None:
    data = plain()
    for dotted, value in changes.items():
        *groups, key = dotted.split(".")
        inner: Any = data
        for group in groups:
            inner = inner[int(group) if group.isdecimal() else group]
        inner[key] = value
    path = tmp_path / "pool.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_pool(path)
    assert "pool.yaml" in str(caught.value) and part in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "shipped", "model", "key"),
    [
        ("pools", "b200-2gpu", PoolConfig, "name"),
        ("pools", "b200-2gpu", PoolConfig, "models.0.alias"),
        ("placement/clusters", "h100-4gpu", ClusterConfig, "name"),
        ("placement/catalogues", "h100", Catalogue, "name"),
        ("placement/catalogues", "h100", Catalogue, "models.0.alias"),
    ],
)
@pytest.mark.parametrize("name", ["", "..", "c/d", "/etc", "-f", "a b", "a\0", "é", "a" * 65])
def test_names_of_files_and_folders_are_plain(
    kind: str, shipped: str, model: type[BaseModel], key: str, name: str
) -> None:
    data = plain(shipped, kind)
    (data if key == "name" else data["models"][0])[key.rpartition(".")[2]] = name
    with pytest.raises(ConfigError) as caught:
        validate(data, model, source="file")
    message = str(caught.value)
    assert f"{key}: " in message and "is no name: give 1 to 64 of a-z, A-Z, 0-9, '.'" in message
    assert len(message) < 400


def test_a_model_on_two_gpus() -> None:
    data = plain()
    data["models"][0] |= {"tensor_parallel": 2, "gpus": ["gpu0", "gpu1"], "gpu_memory_frac": 0.4}
    pool = PoolConfig.model_validate(data)
    assert pool.models[0].all_gpus == ("gpu0", "gpu1")
    assert pool.gpu_index == (0, 1, 0, 1, 1)  # the surrogate has it on the first
    assert pool.gpu_of(pool.models[0]).name == "gpu0"
    del data["models"][0]["gpu"]  # `gpus` says it
    assert PoolConfig.model_validate(data) == pool


def test_engines_in_lockstep_share_all_limits() -> None:
    one = load_pool("b200-2gpu").models[0].server
    two = one.model_copy(update={"data_parallel_size": 2})
    single, double = card_record(one), card_record(two)
    for limit in ("max_num_seqs", "max_num_batched_tokens", "usable_blocks"):
        assert double[limit] == 2 * single[limit]
    assert two.slots == 2 * one.slots
    # What a file does not say isn't dumped: the pool's hash is that of before the field was there.
    assert "data_parallel_size" not in one.model_dump()
    assert "roofline_power" not in one.step.model_dump()


@pytest.mark.parametrize("power", [1.0, 4.0, 100.0])
def test_a_linear_card_is_never_slower(power: float) -> None:
    step = StepCost(base_s=0.01, per_new_token_s=1e-4, roofline_power=power)
    card = load_pool("b200-2gpu").models[0].server.model_copy(update={"step": step})
    (linear,) = linear_cards(card_record(card))
    for tokens in (1, 5, 16, 100, 2048):
        exact_s = step.base_s + step.computing_s(tokens)
        linear_s = linear["base_s"] + linear["per_new_token_s"] * tokens
        assert linear_s <= exact_s * (1 + 1e-12)
        if tokens == card.slots or power == 1.0:
            assert linear_s == pytest.approx(exact_s, rel=1e-12)
    assert max(0.01, 1e-4 * 2048) <= 0.01 + step.computing_s(2048) <= 0.01 + 1e-4 * 2048
