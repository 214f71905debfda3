"""Dependencies point downward: which room may import which, read off the sources."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest

import inframind_gym
from tests.imports import imports

PACKAGE = Path(inframind_gym.__file__).resolve().parent
# From the ground up: a room imports only what stands above it here.
ROOMS = (
    "errors",
    "_jit",
    "configs",
    "files",
    "rng",
    "cmaes",
    "registration",
    "topology",
    "policy",
    "tasks",
    "workload",
    "quality",
    "serving",
    "prompts",
    "orchestration",
    "placement",
    "calibration",
    "envs",
    "sim2real",
    "__init__",
    "cli",
)
ABOVE = ("agents", "baselines", "benchmarks", "tests")  # packages that build on inframind_gym


def room_of(module: str) -> str:
    """The room of a module of inframind_gym; what the package itself offers is "__init__"."""
    name = module.split(".")[1] if "." in module else "__init__"
    return name if name in ROOMS else "__init__"


def files() -> list[tuple[Path, str]]:
    """The sources of the package with their modules."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found.append((path, ".".join(part for part in parts if part != "__init__")))
    return found


def test_every_room_has_its_place() -> None:
    rooms = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path, _ in files()}
    assert rooms == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_is_below_it(room: str) -> None:
    allowed = {room, *takewhile(lambda other: other != room, ROOMS)}
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path, module in files()
        if room_of(module) == room
        for name in imports(path, module)
        if name.split(".")[0] == PACKAGE.name and room_of(name) not in allowed
    ]
    assert not wrong


def test_nothing_imports_what_builds_on_the_package() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path, module in files()
        for name in imports(path, module)
        if name.split(".")[0] in ABOVE
    ]
    assert not wrong


def test_clients_of_servers_know_nothing_of_starting_them() -> None:
    live = "inframind_gym.live."
    clients = {f"{live}{name}" for name in ("backend", "client", "probe", "servers", "watcher")}
    launchers = {f"{live}{name}" for name in ("launcher", "processes", "server_command", "started")}
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path, module in files()
        if module in clients
        for name in imports(path, module)
        if name in launchers or name.rpartition(".")[0] in launchers
    ]
    assert not wrong


@pytest.mark.parametrize("room", [room for room in ROOMS if (PACKAGE / room).is_dir()])
def test_modules_import_one_another_in_no_circle(room: str) -> None:
    own = {module: path for path, module in files() if room_of(module) == room}
    needs = {
        module: {
            name if name in own else name.rpartition(".")[0]
            for name in imports(path, module, typed=False)
        }
        & (own.keys() - {module})
        for module, path in own.items()
    }
    done: set[str] = set()
    while ready := {module for module in own.keys() - done if needs[module] <= done}:
        done |= ready
    assert own.keys() - done == set()


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "from inframind_gym import envs\nfrom . import pool\nfrom ..rng import mix\n"
        "def late():\n    import inframind_gym.envs.routing.base as base\n"
    )
    found = set(imports(path, "inframind_gym.serving.module"))
    assert found == {
        "inframind_gym.envs",
        "inframind_gym.simulator.server.pool",
        "inframind_gym.simulator.rng.mix",
        "inframind_gym.envs.routing.base",
    }
    assert [room_of(name) for name in sorted(found)] == ["envs", "envs", "rng", "serving"]
    assert room_of("inframind_gym.__version__") == "__init__"
