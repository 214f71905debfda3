"""Options of vLLM that the launcher sets itself are refused in a pool, in any spelling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inframind_gym.check import check
from inframind_gym.configs import find_config
from inframind_gym.errors import ConfigError
from inframind_gym.live.server_command import check_launch_options
from inframind_gym.simulator.server.pool import ModelConfig, load_pool


def model(**keys: Any) -> ModelConfig:
    data = load_pool("b200-2gpu").models[0].model_dump(mode="json", exclude_none=True)
    return ModelConfig.model_validate(data | keys)


@pytest.mark.parametrize(
    "argument", ["--max_model_len", "--h=0.0.0.0", "--hos.x", "-t=2", "--no-enable-sleep", "--"]
)
def test_arguments_of_the_launcher_are_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match="extra_args"):
        check_launch_options(model(extra_args=[argument]))


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "VLLM_API_KEY", "A B"])
def test_variables_of_the_launcher_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="env"):
        check_launch_options(model(env={name: "1"}))


def test_arguments_that_only_look_like_ours_are_taken() -> None:
    given = ["--config-format=hf", "--seed", "-1", "-pp=1", "x", "--hostile"]
    check_launch_options(model(extra_args=given, env={"A": 1}))


def test_check_names_them(tmp_path: Path) -> None:
    text = find_config("pools", "b200-2gpu").read_text("utf-8")
    path = tmp_path / "pool.yaml"
    path.write_text(text.replace("    port: ", "    extra_args: [--host, x]\n    port: ", 1))
    with pytest.raises(ConfigError, match="--host"):
        check(str(path))
