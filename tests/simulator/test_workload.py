"""Workloads: shipped ones are complete and plausible, draws, published scores, wrong files."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml

from inframind_gym.check import check
from inframind_gym.configs import find_config, list_configs
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.item_response import accuracy
from inframind_gym.simulator.posterior import draws_of, with_draw
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workflow.topology import STRATEGIES, TOPOLOGIES
from inframind_gym.simulator.workload import (
    BUDGET_TIERS_S,
    RATES_PER_MIN,
    WorkloadConfig,
    estimates,
    load_profiles,
    load_workload,
)

DATASETS = ("gsm_hard", "humaneval", "math", "mbpp", "mmlu_pro")
# Workloads for a pool with models that no other has.
OF_ONE_POOL = {"copies": "copies-5gpu", "unseen": "unseen-5gpu"}
DELETE = object()
POSTERIOR = """# a comment
draw,workload,models.llama-8b.ability,quality.difficulty_sd,quality.structure_gain.dense
3,mine,0.125,1.5,-0.25
4,mine,0.25,,0.5
"""


def plain(name: str = "mbpp") -> dict[str, Any]:
    path = find_config("workloads", name)
    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return data


def written(folder: Path, data: dict[str, Any]) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


# Shipped workloads


@pytest.mark.parametrize("name", list_configs("workloads"))
def test_shipped_workloads_are_valid(name: str) -> None:
    assert name in {*DATASETS, "all", "mixed", "drifting", *OF_ONE_POOL}
    workload = load_workload(name)
    assert workload.name == name
    assert (workload.budget_tiers_s, workload.rates_per_min) == (BUDGET_TIERS_S, RATES_PER_MIN)
    assert WorkloadConfig.model_validate_json(workload.model_dump_json()) == workload
    profiles = load_profiles(workload)
    assert math.isclose(sum(part.weight for part in profiles.values()), 1.0)
    for dataset, (_, profile) in profiles.items():
        assert profile.dataset == dataset
        planner, models = profile.planner, profile.models
        shares = {alias: model.share for alias, model in models.items()}
        for each in (planner.topologies, planner.num_agents, profile.strategy_mix, shares):
            assert math.isclose(math.fsum(each.values()), 1.0)
        assert set(planner.topologies) == set(TOPOLOGIES)
        assert tuple(profile.strategy_mix) == STRATEGIES
        pools = {*list_configs("pools")} - {*OF_ONE_POOL.values()}
        for pool in (OF_ONE_POOL[name],) if name in OF_ONE_POOL else pools:
            profile.require_models(load_pool(pool).aliases)


# Files


def test_shares_that_a_file_shortens(tmp_path: Path) -> None:
    data = {**plain(), "strategy_mix": {"Concise": 1}}
    data["planner"]["num_agents"] = {3: 0.5, 4: 0.51}
    profile = load_workload(written(tmp_path, data)).profile
    assert profile.planner.num_agents == pytest.approx({3: 0.5 / 1.01, 4: 0.51 / 1.01})
    assert profile.strategy_mix == {"Flash": 0.0, "Concise": 1.0, "DeepThink": 0.0}
    assert load_workload("mbpp").profile.planner.num_agents == {5: 1.0}


@pytest.mark.parametrize(
    ("keys", "value", "part"),
    [
        ("planner.topologies.Chian", 0.1, "Did you mean 'Chain'?"),
        ("models.qwen-14b.share", 0.9, "models: the shares must sum to 1"),
        ("output.strategy_factor.Flash", DELETE, "strategy_factor: lacks Flash"),
        ("quality", DELETE, "quality: required"),
        ("mix", {"math": 1.0}, "not valid beside `mix`"),
        ("drift_queries", 10, "mix_to and drift_queries: give both"),
        ("draw", 3, "not in a file"),
        (None, {"maths": 1}, "mix.maths: unknown workload 'maths'. Did you mean 'math'?"),
        (None, {"mixed": 1}, "mix.mixed: is a mix itself"),
        (None, {"math": 1, "./copy.yaml": 1}, "profiles dataset 'math' a second time"),
    ],
)
def test_wrong_workloads(tmp_path: Path, keys: str | None, value: Any, part: str) -> None:
    (tmp_path / "copy.yaml").write_text(yaml.safe_dump(plain("math")), encoding="utf-8")
    data = section = plain() if keys is not None else {"name": "mine", "mix": value}
    *path, last = (keys or "mix").split(".")
    for key in path:
        section = section[key]
    section[last] = value
    if value is DELETE:
        del section[last]
    with pytest.raises(ConfigError) as caught:
        load_workload(written(tmp_path, data))
    assert "mine.yaml" in str(caught.value) and part in str(caught.value)


def test_weights_of_a_mix() -> None:
    workload = WorkloadConfig(name="mine", mix={"math": 3, "mbpp": 1})
    weights = {dataset: part.weight for dataset, part in load_profiles(workload).items()}
    assert weights == {"math": 0.75, "mbpp": 0.25}
    with pytest.raises(ConfigError, match="is a mix"):
        _ = workload.profile


# Models that published scores place


def entry(data: dict[str, Any], **scores: float) -> dict[str, Any]:
    data["models"] = {
        alias: {key: value for key, value in of.items() if key != "share"}
        for alias, of in data["models"].items()
    }
    data["models"]["new-7b"] = {"output_tokens_median": 300, "ability_from": scores}
    return data


def test_a_score_on_the_own_dataset_is_the_accuracy(tmp_path: Path) -> None:
    workload = load_workload(written(tmp_path, entry(plain("mmlu_pro"), mmlu_pro=52.1)))
    profile = workload.profile
    ability = np.array([profile.models["new-7b"].ability])
    assert accuracy(ability, profile.quality.difficulty_sd)[0] == pytest.approx(0.521)
    text = "ability of new-7b on mmlu_pro: estimate from published mmlu_pro 52.1 %"
    assert estimates(workload) == [text]
    assert any("estimate from published" in line for line in check(str(tmp_path / "mine.yaml")))
    assert {model.share for model in profile.models.values()} == {1.0 / 6.0}


# Draws of what is uncertain of quality


def with_posterior(folder: Path, posterior: str = POSTERIOR) -> Path:
    """A copy of the workload `math` with a posterior of its own."""
    (folder / "posterior.csv").write_text(posterior, encoding="utf-8")
    return written(folder, plain("math"))


def test_a_draw_replaces_what_its_row_says_and_nothing_else(tmp_path: Path) -> None:
    path = with_posterior(tmp_path)
    undrawn, drawn = load_workload(path).profile, load_workload(f"{path}#3").profile
    assert drawn.models["llama-8b"].ability == 0.125
    assert (drawn.quality.difficulty_sd, drawn.quality.structure_gain["dense"]) == (1.5, -0.25)
    assert drawn.models["llama-3b"] == undrawn.models["llama-3b"]
    assert drawn.output == undrawn.output
    assert load_workload(f"{path}#4").profile.quality.difficulty_sd == undrawn.quality.difficulty_sd
    assert load_workload(f"{path}#3").draw == 3
    assert "draw" not in load_workload(path).model_dump()
    with_posterior(tmp_path, POSTERIOR.replace("0.125", "0.75"))  # shows at once
    assert load_workload(f"{path}#3").profile.models["llama-8b"].ability == 0.75


def test_names_of_models_may_contain_dots_and_one_another(tmp_path: Path) -> None:
    header = "draw,workload,models.llama-3.1-8b.ability,models.llama-3.ability,quality.new.gain"
    path = with_posterior(tmp_path, f"{header}\n0,mine,1,2,3\n")
    models: dict[str, Any] = {"llama-3": {"ability": 0.0}, "llama-3.1-8b": {"share": 0.5}}
    assert with_draw(path, {"models": models}, 0) == {
        "models": {"llama-3": {"ability": 2.0}, "llama-3.1-8b": {"share": 0.5, "ability": 1.0}},
        "quality": {"new": {"gain": 3.0}},
    }


@pytest.mark.parametrize("name", DATASETS)
def test_every_draw_of_every_shipped_workload_can_be_played(name: str) -> None:
    draws = draws_of(find_config("workloads", name))
    assert sorted(draws) == list(range(len(draws))) and len(draws) >= 16
    undrawn = load_workload(name)
    assert all(load_workload(f"{name}#{draw}").quality != undrawn.quality for draw in draws)


def test_a_mix_takes_the_draw_of_all_its_parts() -> None:
    for dataset, part in load_profiles(load_workload("mixed#5")).items():
        assert part.profile == load_workload(f"{dataset}#5").profile
    assert load_workload("mixed#5").name == "mixed"  # policies know it by its name


def test_an_environment_takes_a_draw() -> None:
    env = gym.make("InfraMind-Stream-v0", workload="math#7", num_queries=2)
    assert env.unwrapped.simulation.workload == load_workload("math#7")  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"math\.yaml.*unknown draw '64000'.*Known: 0 to "):
        gym.make("InfraMind-Stream-v0", workload="math#64000")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("mine", "other", "has no row of 'mine'"),
        ("llama-8b.ability", "llama-8b.abilty", "models.llama-8b.abilty: unknown"),
        ("0.125", "nan", "draw 3: models.llama-8b.ability"),
        ("4,mine", "3,mine", "posterior.csv:4: draw 3 of 'mine' is there twice"),
    ],
)
def test_a_posterior_that_does_not_do(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = with_posterior(tmp_path, POSTERIOR.replace(old, new))
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_workload(f"{path}#3")
