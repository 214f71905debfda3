"""Dependencies point downward: which folder may import which, read off the sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import inframind_gym
from tests.imports import imports

PACKAGE = Path(inframind_gym.__file__).resolve().parent
ROOT = PACKAGE.parent
# Modules that every layer may import.
GROUND = ("errors", "files", "configs", "progress", "timeouts", "commands")
# What a layer may import beside itself and the ground. `envs` and `policies` know one another:
# an environment can have a policy carry out its plans, a policy reads an environment's `spec`.
LAYERS = {
    **dict.fromkeys((*GROUND, "tasks"), ()),
    "simulator": ("tasks",),
    "teams": ("tasks", "simulator", "envs", "policies"),
    "envs": ("tasks", "simulator", "policies", "teams"),
    "envs.live": ("envs", "tasks", "simulator", "policies", "live"),  # alone reaches live servers
    "policies": ("tasks", "simulator", "envs", "teams"),
    "live": ("tasks", "simulator", "envs", "envs.live", "policies"),
    "calibration": ("tasks", "simulator"),
    "evaluation": ("tasks", "simulator", "envs", "policies", "live", "teams", "__init__"),
    "studio": ("simulator", "tasks", "policies", "envs", "live", "teams", "evaluation", "__init__"),
    "check": ("simulator", "tasks", "policies", "evaluation", "teams", "live"),
    "train": ("evaluation",),
    "cli": ("check", "tasks", "simulator", "envs", "evaluation", "calibration", "live", "__init__"),
    "__init__": (),
    "__main__": ("cli",),
}
ABOVE = ("agents", "baselines", "benchmarks", "examples", "tests")


def layer_of(module: str) -> str:
    """The layer of a module; what the package itself offers is "__init__"."""
    path = module.partition(".")[2]
    found = (layer for layer in LAYERS if f"{path}.".startswith(f"{layer}."))
    return max(found, key=len, default="__init__")


def sources() -> dict[str, Path]:
    """Every module of the package with its file."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


def test_every_file_has_its_layer() -> None:
    layers = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in sources().values()}
    assert layers <= set(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_what_is_below_it(layer: str) -> None:
    allowed = {layer, *GROUND, *LAYERS[layer]}
    wrong = [
        f"{module} imports {name}"
        for module, path in sources().items()
        if layer_of(module) == layer
        for name in imports(path, module)
        if name.split(".")[0] in (PACKAGE.name, *ABOVE)
        and (name.split(".")[0] in ABOVE or layer_of(name) not in allowed)
    ]
    assert not wrong


def test_an_environment_imports_few_files() -> None:
    code = (
        "import sys; import inframind_gym.envs.routing; "
        "print(sum(name.split('.')[0] == 'inframind_gym' for name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) <= 55


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "from inframind_gym import envs\nfrom . import pool\nfrom ..rng import mix\n"
        "def late():\n    import inframind_gym.envs.base as base\n"
    )
    assert set(imports(path, "inframind_gym.simulator.module")) == {
        "inframind_gym.envs",
        "inframind_gym.simulator.pool",
        "inframind_gym.rng.mix",
        "inframind_gym.envs.base",
    }
