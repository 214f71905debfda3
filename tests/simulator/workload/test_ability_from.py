"""Models that published scores place, and shares that a file leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inframind_gym.check import check
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.item_response import accuracy
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workload import estimates, load_workload
from tests.simulator.workload.test_workload_config import plain, refused, written


def entry(data: dict[str, Any], **scores: float) -> dict[str, Any]:
    data["models"] = {
        alias: {key: value for key, value in of.items() if key != "share"}
        for alias, of in data["models"].items()
    }
    data["models"]["new-7b"] = {"output_tokens_median": 300, "ability_from": scores}
    return data


def test_a_score_on_the_own_dataset_is_the_accuracy(tmp_path: Path) -> None:
    workload = load_workload(written(tmp_path, entry(plain("mmlu_pro"), mmlu_pro=52.1)))
    ability = workload.profile.models["new-7b"].ability
    sd = workload.profile.quality.difficulty_sd
    assert accuracy(np.array([ability]), sd)[0] == pytest.approx(0.521)
    assert estimates(workload) == [
        "ability of new-7b on mmlu_pro: estimate from published mmlu_pro 52.1 %"
    ]
    assert any("estimate from published" in line for line in check(str(tmp_path / "mine.yaml")))
    assert not estimates(load_workload("mixed"))


def test_another_benchmark_counts_by_the_models_that_both_have(tmp_path: Path) -> None:
    """The five shipped models are 1.1 logits better on math than on gsm_hard."""
    own = load_workload(written(tmp_path, entry(plain("gsm_hard"), gsm_hard=40.0))).profile
    far = load_workload(written(tmp_path, entry(plain("math"), gsm_hard=40.0))).profile
    models = load_pool("b200-2gpu").aliases
    apart = [far.models[m].ability - own.models[m].ability for m in models]
    moved = far.models["new-7b"].ability - own.models["new-7b"].ability
    assert moved == pytest.approx(np.mean(apart))
    both = load_workload(written(tmp_path, entry(plain("math"), gsm_hard=40.0, math=50.0))).profile
    alone = load_workload(written(tmp_path, entry(plain("math"), math=50.0))).profile
    mean = 0.5 * (far.models["new-7b"].ability + alone.models["new-7b"].ability)
    assert both.models["new-7b"].ability == pytest.approx(mean)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ability_from": {"mmlu_pro": 0.521}}, "write 52.1 for 0.521"),
        ({"ability_from": {"mmlu-pro": 52.1}}, "Did you mean 'mmlu_pro'"),
        ({"ability_from": {"mixed": 52.1}}, "unknown benchmark 'mixed'"),
        ({"ability_from": {"mmlu_pro": 52.1}, "ability": 1.0}, "one of ability"),
        ({}, "one of ability"),
        ({"ability_from": {"mmlu_pro": 50.0}, "share": 0.2}, "1 of 6 models"),
    ],
)
def test_what_cannot_place_a_model_is_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    data = entry(plain("math"))
    data["models"]["new-7b"] = {"output_tokens_median": 300, **change}
    assert message in refused(tmp_path, data)


def test_scales_without_a_model_in_common_are_not_connected(tmp_path: Path) -> None:
    data = entry(plain("math"), mmlu_pro=50.0)
    data["models"] = {f"my-{alias}": of for alias, of in data["models"].items()}
    assert "0 models in common" in refused(tmp_path, data)


def test_models_without_shares_get_equal_ones(tmp_path: Path) -> None:
    profile = load_workload(written(tmp_path, entry(plain("math"), math=50.0))).profile
    assert {model.share for model in profile.models.values()} == {1.0 / 6.0}


def test_an_unknown_model_names_the_commands_that_help() -> None:
    with pytest.raises(ConfigError) as caught:
        load_workload("math").profile.require_models(["my-7b"])
    for remedy in ("inframind workload fit", "inframind bench run --pool", "ability_from"):
        assert remedy in str(caught.value)
