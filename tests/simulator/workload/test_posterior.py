"""Workloads with a draw of what is uncertain of their quality."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import yaml
from typer.testing import CliRunner

from inframind_gym.cli import app
from inframind_gym.configs import find_config
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.posterior import draws_of, with_draw
from inframind_gym.simulator.workload import load_profiles, load_workload

POSTERIOR = """# a comment
draw,workload,models.llama-8b.ability,quality.difficulty_sd,quality.structure_gain.dense
3,mine,0.125,1.5,-0.25
4,mine,0.25,,0.5
"""


def mine(folder: Path, posterior: str = POSTERIOR) -> Path:
    """A copy of the workload `math` with a posterior of its own."""
    data = yaml.safe_load(find_config("workloads", "math").read_text(encoding="utf-8"))
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    (folder / "posterior.csv").write_text(posterior, encoding="utf-8")
    return path


def test_a_draw_replaces_what_its_row_says_and_nothing_else(tmp_path: Path) -> None:
    path = mine(tmp_path)
    plain, drawn = load_workload(path).profile, load_workload(f"{path}#3").profile
    assert drawn.models["llama-8b"].ability == 0.125
    assert drawn.quality.difficulty_sd == 1.5
    assert drawn.quality.structure_gain["dense"] == -0.25
    assert drawn.models["llama-3b"] == plain.models["llama-3b"]
    assert drawn.output == plain.output
    assert load_workload(f"{path}#4").profile.quality.difficulty_sd == plain.quality.difficulty_sd
    assert load_workload(f"{path}#3").draw == 3
    assert "draw" not in load_workload(path).model_dump()


def test_names_of_models_may_contain_dots_and_one_another(tmp_path: Path) -> None:
    header = "draw,workload,models.llama-3.1-8b.ability,models.llama-3.ability,quality.new.gain"
    path = mine(tmp_path, f"{header}\n0,mine,1,2,3\n")
    models: dict[str, Any] = {"llama-3": {"ability": 0.0}, "llama-3.1-8b": {"share": 0.5}}
    assert with_draw(path, {"models": models}, 0) == {
        "models": {"llama-3": {"ability": 2.0}, "llama-3.1-8b": {"share": 0.5, "ability": 1.0}},
        "quality": {"new": {"gain": 3.0}},
    }
    assert models["llama-3"] == {"ability": 0.0}


def test_a_change_of_the_posterior_shows_at_once(tmp_path: Path) -> None:
    path = mine(tmp_path)
    load_workload(f"{path}#3")
    mine(tmp_path, POSTERIOR.replace("0.125", "0.75"))
    assert load_workload(f"{path}#3").profile.models["llama-8b"].ability == 0.75


@pytest.mark.parametrize("name", ["math", "mbpp", "gsm_hard", "humaneval", "mmlu_pro"])
def test_every_draw_of_every_shipped_workload_can_be_played(name: str) -> None:
    path = find_config("workloads", name)
    draws = draws_of(path)
    assert sorted(draws) == list(range(len(draws)))
    assert len(draws) >= 16
    plain = load_workload(name)
    for draw in draws:
        assert load_workload(f"{name}#{draw}").quality != plain.quality


def test_a_mix_takes_the_draw_of_all_its_parts() -> None:
    parts = load_profiles(load_workload("mixed#5"))
    for dataset, part in parts.items():
        assert part.profile == load_workload(f"{dataset}#5").profile
    assert load_workload("mixed#5").name == "mixed"  # policies know it by its name


def test_an_environment_takes_a_mapping_and_a_file_of_the_same_content(tmp_path: Path) -> None:
    content: dict[str, Any] = {"name": "math", "quality": {"draw": 7}}
    path = tmp_path / "drawn.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    for given in (content, str(path), "math#7"):
        env = gym.make("InfraMind-Stream-v0", workload=given, num_queries=2)
        simulation = env.unwrapped.simulation  # type: ignore[attr-defined]
        assert simulation.workload == load_workload("math#7")
        assert env.spec is not None
        again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
        assert again.unwrapped.simulation.workload.draw == 7  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("math#64000", ["math.yaml", "unknown draw '64000'", "Known: 0 to "]),
        ({"name": "math", "quality": {"drw": 7}}, ["workload", "quality.drw", "'draw'"]),
        ({"name": "math", "quality": {"draw": -1}}, ["workload", "quality.draw", "-1"]),
        ({"name": "math", "quality": {"draw": 1}, "models": {}}, ["models", "Valid keys here"]),
        ({"name": "nope", "quality": {"draw": 1}}, ["unknown workload 'nope'"]),
    ],
)
def test_what_cannot_be_drawn(given: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        gym.make("InfraMind-Stream-v0", workload=given)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("posterior", "words"),
    [
        (POSTERIOR.replace("mine", "other"), "has no row of 'mine'"),
        (
            POSTERIOR.replace("llama-8b.ability", "llama-8b.abilty"),
            "models.llama-8b.abilty: unknown",
        ),
        (POSTERIOR.replace("0.125", "nan"), "draw 3: models.llama-8b.ability"),
        (POSTERIOR.replace("0.125", "much"), "posterior.csv:3: wanted 5 columns"),
        (POSTERIOR.replace("4,mine", "3,mine"), "posterior.csv:4: draw 3 of 'mine' is there twice"),
        (POSTERIOR.replace("draw,workload", "n,workload"), "wanted columns draw, workload"),
    ],
)
def test_a_posterior_that_does_not_do(tmp_path: Path, posterior: str, words: str) -> None:
    path = mine(tmp_path, posterior)
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_workload(f"{path}#3")


def test_draws_are_not_given_beside_a_whole_workload(tmp_path: Path) -> None:
    path = mine(tmp_path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("quality:\n", "quality:\n  draw: 3\n"), encoding="utf-8")
    with pytest.raises(ConfigError, match="Valid keys here: name, quality"):
        load_workload(path)
    path.write_text(f"draw: 3\n{text}", encoding="utf-8")
    with pytest.raises(ConfigError, match="has two keys"):
        load_workload(path)


def test_check_says_draws(tmp_path: Path) -> None:
    path = mine(tmp_path)
    for target, words in {
        "math#7": "draw 7 of its quality",
        "math": "draws of its quality",
        "mixed": "draws of its quality",
        str(path): "2 draws of its quality",
        f"{path}#4": "draw 4 of its quality",
    }.items():
        done = CliRunner().invoke(app, ["check", target])
        assert done.exit_code == 0, done.output
        assert words in done.output.replace("\n", " ")
    assert CliRunner().invoke(app, ["check", f"{path}#9"]).exit_code == 2
