"""Workloads: the shipped ones are complete and plausible; wrong ones are refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from inframind_gym.configs import find_config, list_configs
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, STRATEGIES, TOPOLOGIES
from inframind_gym.simulator.workload import (
    BUDGET_TIERS_S,
    RATES_PER_MIN,
    WorkloadConfig,
    load_profiles,
    load_workload,
)

DATASETS = ("gsm_hard", "humaneval", "math", "mbpp", "mmlu_pro")


def plain(name: str = "mbpp") -> dict[str, Any]:
    path = find_config("workloads", name)
    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return data


def written(folder: Path, data: dict[str, Any]) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


def refused(folder: Path, data: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        load_workload(written(folder, data))
    assert "mine.yaml" in str(caught.value)
    return str(caught.value)


# Workloads for a pool with models that no other has.
OF_ONE_POOL = {"copies": "copies-5gpu", "unseen": "unseen-5gpu"}


def test_what_is_shipped() -> None:
    assert set(list_configs("workloads")) == {*DATASETS, "all", "mixed", "drifting", *OF_ONE_POOL}


@pytest.mark.parametrize("name", list_configs("workloads"))
def test_shipped_workloads_are_valid(name: str) -> None:
    workload = load_workload(name)
    assert workload.name == name
    assert workload.budget_tiers_s == BUDGET_TIERS_S
    assert workload.rates_per_min == RATES_PER_MIN
    assert WorkloadConfig.model_validate_json(workload.model_dump_json()) == workload
    profiles = load_profiles(workload)
    assert math.isclose(sum(part.weight for part in profiles.values()), 1.0)
    for dataset, (_, profile) in profiles.items():
        assert profile.dataset == dataset
        for shares in (
            profile.planner.topologies,
            profile.planner.num_agents,
            profile.strategy_mix,
            {alias: model.share for alias, model in profile.models.items()},
        ):
            assert math.isclose(math.fsum(shares.values()), 1.0)
        assert set(profile.planner.topologies) == set(TOPOLOGIES)
        assert tuple(profile.strategy_mix) == STRATEGIES
        pools = {*list_configs("pools")} - {*OF_ONE_POOL.values()}
        for pool in (OF_ONE_POOL[name],) if name in OF_ONE_POOL else pools:
            profile.require_models(load_pool(pool).aliases)


@pytest.mark.parametrize("name", DATASETS)
def test_seconds_per_call_are_near_the_measured_ones(name: str) -> None:
    """A call at 10 queries a minute takes longer than alone.

    Beside busy neighbours it would take as long or, where calls wait or a role makes two, longer.
    """
    measured = {
        "math": (45, 6.7, 10.5, 4.8, 3.5),
        "mbpp": (42, 4.1, 6.7, 2.4, 2.3),
        "gsm_hard": (25, 4.8, 6.3, 2.6, 2.0),
        "humaneval": (37, 6.6, 5.1, 4.0, 3.6),
        "mmlu_pro": (32, 5.3, 5.6, 3.0, 1.2),
    }[name]
    pool, profile = load_pool("b200-2gpu"), load_workload(name).profile
    spread = math.hypot(profile.output.sigma_query, profile.output.sigma_call)
    noise = np.exp(spread * np.random.default_rng(0).standard_normal(20_000))
    for model, gpu, wanted in zip(pool.models, pool.gpu_index, measured, strict=True):
        median = profile.models[model.alias].output_tokens_median
        tokens = float(np.minimum(median * noise, pool.max_output_tokens).mean())
        alone_s = model.server.call_s(400.0, tokens)
        neighbours = pool.gpu_index.count(gpu) - 1
        busy_s = alone_s * (1.0 + pool.gpus[gpu].colocation_slowdown * neighbours)
        assert alone_s < wanted < 1.8 * busy_s


@pytest.mark.parametrize("name", DATASETS)
def test_stronger_models_are_abler_and_reasoning_pays(name: str) -> None:
    profile = load_workload(name).profile
    ability = [model.ability for model in profile.models.values()]
    assert max(ability) == ability[0] and ability[-2:] == sorted(ability)[1::-1]
    gain = profile.quality.strategy_gain
    assert gain["Flash"] < gain["Concise"] < gain["DeepThink"]


def test_reasoning_on_mmlu_pro_is_worth_what_was_published() -> None:
    """Direct answers instead of reasoning cost 9-19 points."""
    profile = load_workload("mmlu_pro").profile
    quality = profile.quality
    difficulty = quality.difficulty_sd * np.linspace(-4, 4, 801)
    weight = np.exp(-0.5 * np.linspace(-4, 4, 801) ** 2)

    def accuracy(ability: float) -> float:
        right = 1.0 / (1.0 + np.exp(quality.discrimination * (difficulty - ability)))
        return float((weight * right).sum() / weight.sum())

    for model in profile.models.values():
        gain = quality.strategy_gain
        points = accuracy(model.ability + gain["DeepThink"]) - accuracy(
            model.ability + gain["Flash"]
        )
        assert 0.09 < points < 0.19


def test_a_single_agent_count_means_always(tmp_path: Path) -> None:
    data = plain()
    data["planner"]["num_agents"] = {3: 0.5, 4: 0.51}
    shares = load_workload(written(tmp_path, data)).profile.planner.num_agents
    assert shares == pytest.approx({3: 0.5 / 1.01, 4: 0.51 / 1.01})
    assert load_workload("mbpp").profile.planner.num_agents == {5: 1.0}


def test_strategies_left_out_have_no_share(tmp_path: Path) -> None:
    data = {**plain(), "strategy_mix": {"Concise": 1}}
    mix = load_workload(written(tmp_path, data)).profile.strategy_mix
    assert mix == {"Flash": 0.0, "Concise": 1.0, "DeepThink": 0.0}


DELETE = object()


@pytest.mark.parametrize(
    ("keys", "value", "part"),
    [
        (["planner", "topologies", "Chian"], 0.1, "Did you mean 'Chain'?"),
        (["planner", "topologies", "IO"], 0.9, "planner.topologies: the shares must sum to 1"),
        (["planner", "num_agents"], MAX_AGENTS + 1, "planner.num_agents"),
        (["planner", "num_agents"], 0, "planner.num_agents"),
        (["planner", "num_agents"], "five", "planner.num_agents"),
        (["strategy_mix", "Flush"], 0.0, "Did you mean 'Flash'?"),
        (["strategy_mix", "Flash"], -0.1, "strategy_mix.Flash: "),
        (["models", "qwen-14b", "share"], 0.9, "models: the shares must sum to 1"),
        (["models", "qwen-14b", "output_tokens_median"], 0, "models.qwen-14b.output_tokens_median"),
        (["models", "qwen-14b", "ability"], math.nan, "models.qwen-14b.ability: "),
        (["models", "qwen-14b", "abilty"], 1.0, "Did you mean 'ability'?"),
        (["output", "strategy_factor", "Flash"], 0, "output.strategy_factor.Flash: "),
        (["output", "strategy_factor", "Flash"], DELETE, "strategy_factor lacks Flash"),
        (["quality", "strategy_gain", "DeepThink"], DELETE, "strategy_gain lacks DeepThink"),
        (["quality", "latent_correlation"], 1.5, "quality.latent_correlation: "),
        (["quality", "discriminaton"], 1.0, "Did you mean 'discrimination'?"),
        (["prompt", "overhead_tokens"], -1, "prompt.overhead_tokens: "),
        (["domain"], "Maths", "Did you mean 'Math'?"),
        (["execution"], "serial", "execution: 'serial' is not valid"),
        (["num_queries"], 0, "num_queries: "),
        (["budget_tiers_s"], [10, 0], "budget_tiers_s.1: "),
        (["budget_tiers_s"], [], "budget_tiers_s: "),
        (["rates_per_min"], [math.nan], "rates_per_min.0: "),
        (["quality"], DELETE, "quality: required"),
        (["mix"], {"math": 1.0}, "not valid beside `mix`"),
    ],
)
def test_wrong_workloads(tmp_path: Path, keys: list[str], value: object, part: str) -> None:
    data = plain()
    section = data
    for key in keys[:-1]:
        section = section[key]
    if value is DELETE:
        del section[keys[-1]]
    else:
        section[keys[-1]] = value
    assert part in refused(tmp_path, data)


@pytest.mark.parametrize(
    ("mix", "part"),
    [
        ({"maths": 1}, "mix.maths: unknown workload 'maths'. Did you mean 'math'?"),
        ({"math": 0}, "mix.math: "),
        ({"math": math.inf}, "mix.math: "),
        ({"mixed": 1}, "mix.mixed: is a mix itself"),
        ({}, "mix: "),
        ({"none.yaml": 1}, "mix.none.yaml: none.yaml: no such workload file"),
    ],
)
def test_wrong_mixes(tmp_path: Path, mix: dict[str, float], part: str) -> None:
    assert part in refused(tmp_path, {"name": "mine", "mix": mix})


def test_a_mix_does_not_profile_a_dataset_twice(tmp_path: Path) -> None:
    path = tmp_path / "copy.yaml"
    path.write_text(yaml.safe_dump(plain("math")), encoding="utf-8")
    message = refused(tmp_path, {"name": "mine", "mix": {"math": 1, str(path): 1}})
    assert "profiles dataset 'math' a second time" in message


def test_weights_of_a_mix() -> None:
    workload = WorkloadConfig(name="mine", mix={"math": 3, "mbpp": 1})
    weights = {dataset: part.weight for dataset, part in load_profiles(workload).items()}
    assert weights == {"math": 0.75, "mbpp": 0.25}
    with pytest.raises(ConfigError, match="is a mix"):
        _ = workload.profile


def test_models_without_a_profile_are_named() -> None:
    with pytest.raises(ConfigError, match=r"'mbpp'.*'llama-70b'.*Did you mean 'llama-"):
        load_workload("mbpp").profile.require_models(["llama-8b", "llama-70b"])


def like(tmp_path: Path, text: str) -> WorkloadConfig:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nlike: mbpp\n" + text)
    return load_workload(path)


def test_a_workload_is_like_another_but_for_its_own_sections(tmp_path: Path) -> None:
    mbpp = load_workload("mbpp")
    mine = like(
        tmp_path,
        "budget_tiers_s: [5]\nmodels: {a: qwen-14b, b: {output_tokens_median: 9, ability: 1}}\n",
    )
    assert mine.budget_tiers_s == (5.0,) and mine.quality == mbpp.quality
    assert mine.models is not None and mbpp.models is not None
    assert set(mine.models) == {"a", "b"}
    assert mine.models["a"].ability == mbpp.models["qwen-14b"].ability
    assert [model.share for model in mine.models.values()] == [0.5, 0.5]
    assert like(tmp_path, "description: x\n").models == mbpp.models


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: {a: qwen-14}\n", r"mine.yaml: models.a: unknown model 'qwen-14'"),
        ("budget_tier_s: [5]\n", "Did you mean 'budget_tiers_s'"),
    ],
)
def test_what_is_not_in_the_other_workload(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        like(tmp_path, text)


def test_no_workload_is_like_a_mix_or_has_draws(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nlike: mixed\n")
    with pytest.raises(ConfigError, match="mixed has no profile of its own"):
        load_workload(path)
    with pytest.raises(ConfigError, match="has no draws of its quality"):
        load_workload("copies#3")
