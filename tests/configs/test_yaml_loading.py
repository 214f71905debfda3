"""Finding and reading YAML files: every way in which a file can be wrong is told in full."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
from pydantic import Field

from inframind_gym import errors
from inframind_gym.configs import (
    NonNegative,
    Positive,
    PositiveInt,
    StrictModel,
    find_config,
    load_yaml_model,
)
from inframind_gym.errors import ConfigError, require_within


class Wheel(StrictModel):
    radius_m: Positive
    spokes: PositiveInt = 32


class Bike(StrictModel):
    name: str
    wheels: tuple[Wheel, ...]
    spare: Wheel | None = None
    prices: dict[str, NonNegative] | None = None


GOOD = "name: city\nwheels:\n  - {radius_m: 0.35}\n  - radius_m: 0.35\n    spokes: 36\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "bike.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def message_of(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_yaml_model(write(folder, text), Bike)
    return str(caught.value)


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    for spokes in (36, 28, 36):
        bike = load_yaml_model(write(tmp_path, GOOD.replace("36", str(spokes))), Bike)
        assert bike.wheels[1].spokes == spokes
    # An exponent without a dot is a number, though YAML 1.1 reads it as a string.
    bike = load_yaml_model(write(tmp_path, GOOD.replace("0.35", "4e-5")), Bike)
    assert bike.wheels[0].radius_m == 4e-5


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("name: [city\n", ["bike.yaml:2:1", "malformed YAML", "line 2, column 1", "quotes"]),
        ("", ["bike.yaml: is empty", "name, wheels, spare, prices"]),
        ("- a\n- b\n", ["bike.yaml: is a list"]),
        (GOOD + "nam: town\n", ["bike.yaml:6: nam: unknown key", "Did you mean 'name'?"]),
        (GOOD + "name: town\n", ["bike.yaml:6:1: name: given twice, first in line 1"]),
        (
            GOOD.replace("spokes: 36", "spoke: 36"),
            ["bike.yaml:5: wheels.1.spoke: unknown key", "Did you mean 'spokes'?", "radius_m"],
        ),
        (GOOD + "spare: {spokes: 3}\n", ["bike.yaml:6: spare.radius_m: this key is required"]),
        (GOOD.replace("radius_m: 0.35\n", "radius_m: 0\n"), ["wheels.1.radius_m: ", "got 0"]),
        (GOOD.replace("radius_m: 0.35\n", "radius_m: .nan\n"), ["wheels.1.radius_m: ", "got nan"]),
        (GOOD.replace("radius_m: 0.35\n", "radius_m: on\n"), ["radius_m: must be a number"]),
        (GOOD.replace("36", "36.5"), ["bike.yaml:5: wheels.1.spokes: ", "got 36.5"]),
        (GOOD + "prices: {eu: -3}\n", ["bike.yaml:6: prices.eu: ", "got -3"]),
    ],
)
def test_an_error_names_place_key_and_remedy(tmp_path: Path, text: str, parts: list[str]) -> None:
    message = message_of(tmp_path, text)
    for part in parts:
        assert part in message


def test_every_error_of_a_file_is_told_on_a_line_of_its_own(tmp_path: Path) -> None:
    message = message_of(tmp_path, "nam: city\nwheels: [{radius_m: 0}]\n")
    assert len(message.splitlines()) == 3  # nam unknown, name missing, radius 0
    assert all("bike.yaml" in line for line in message.splitlines())


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    assert find_config("pools", path) == path
    assert find_config("pools", "bike.yaml").resolve() == path
    assert find_config("pools", "./bike.yaml").resolve() == path
    with pytest.raises(ConfigError, match=r"bikes\.yaml: no such pool file\. Did you mean 'bike"):
        find_config("pools", "bikes.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        find_config("pools", tmp_path)


def test_install_hints_name_extras_that_exist() -> None:
    root = Path(errors.__file__).parents[1]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for path in root.glob("[a-z]*/**/*.py"):
        text = path.read_text(encoding="utf-8")
        for extra in re.findall(r'\b(?:needs|require)\([^)]*"(\w+)"\)', text):
            assert extra in extras, path
        own = path.name == "errors.py" or path.is_relative_to(root / "tests")
        assert own or not re.search("pip install [\"']inframind", text), path


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "10", None, [1.0]])
def test_what_is_no_number_or_is_outside_is_refused(value: object) -> None:
    for allowed in (1, 0.5, np.float32(0.5), np.int64(3)):
        assert require_within(allowed, 0.5, 3.0, "budget_s") == allowed
    with pytest.raises(ConfigError, match=r"budget_s must be a number from 0\.5 to 3, got"):
        require_within(value, 0.5, 3.0, "budget_s")


class Shop(StrictModel):
    bikes: Annotated[tuple[Bike, ...], Field(min_length=1)]


@pytest.mark.parametrize(
    ("bikes", "told"),
    [
        # pydantic finds fault with the bike, and then with the list that is left without it.
        ('[{name: hf_SECRET, weels: [], wheels: [{radius_m: 1}]}]', ["bikes.0.weels: unknown key"]),
        ('[[hf_SECRET]]', ["bikes.0: input should be"]),
        ('{name: hf_SECRET}', ["bikes: input should be a valid tuple, got a mapping of 1 keys"]),
        ('[{name: {token: hf_SECRET}, wheels: []}]', ["got a mapping of 1 keys"]),
    ],
)  # fmt: skip
def test_what_stands_in_lists_and_mappings_is_not_shown(
    tmp_path: Path, bikes: str, told: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_yaml_model(write(tmp_path, f"bikes: {bikes}\n"), Shop)
    lines = str(caught.value).splitlines()
    assert "SECRET" not in str(caught.value)
    assert len(lines) == len(told)
    assert all(part in line for part, line in zip(told, lines, strict=True))
