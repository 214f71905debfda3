"""`import inframind_gym` is quick and needs nothing heavy; making an environment needs no torch."""

from __future__ import annotations

import importlib
import json
import pydoc
import re
import statistics
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest

import inframind_gym

ROOT = Path(__file__).parents[1]
IDS = ("InfraMind-Executor-v0", "InfraMind-Planner-v0", "InfraMind-Stream-v0")
HEAVY = ("torch", "numba", "sentence_transformers", "matplotlib")
OPTIONAL = (
    *("torch", "sentence_transformers", "matplotlib", "stable_baselines3", "wandb", "ray"),
    *("aiohttp", "prometheus_client", "psutil"),
    *("fastapi", "langgraph", "openai"),
)

IMPORT = """
import json, sys, time
before = time.perf_counter(), time.process_time()
import inframind_gym
after = time.perf_counter(), time.process_time()
print(json.dumps([after[0] - before[0], after[1] - before[1], sorted(sys.modules)]))
"""

# A module that is None in sys.modules cannot be imported.
WITHOUT = """
import sys
for name in {names!r}:
    sys.modules[name] = None
import gymnasium as gym
import inframind_gym
assert {ids!r} <= set(gym.registry)
{then}
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_takes_less_than_a_second_and_loads_nothing_heavy() -> None:
    runs = [json.loads(run(IMPORT)) for _ in range(3)]
    for _, _, modules in runs:
        assert not set(modules) & {*HEAVY, *OPTIONAL, "scipy", "pandas", "PIL"}
        assert not set(modules) & {"agents", "baselines", "benchmarks"}
    # Processor time too: a machine that does something else beside is no fault of the package.
    wall_s, processor_s = (statistics.median(r[i] for r in runs) for i in (0, 1))
    assert min(wall_s, processor_s) < 1.0


def run_without(names: tuple[str, ...], then: str = "") -> str:
    return run(WITHOUT.format(names=names, ids=set(IDS), then=then))


def test_import_works_where_nothing_heavy_is_installed() -> None:
    run_without((*HEAVY, *OPTIONAL))


EPISODES = """
for name in {ids!r}:
    env = gym.make(name, num_queries=3)
    env.reset(seed=0)
    env.step(env.action_space.sample())
"""


def test_environments_run_without_any_optional_package() -> None:
    run_without(OPTIONAL, EPISODES.format(ids=IDS))


WINDOW = """
import numpy
from gymnasium.utils.env_checker import check_env
try:
    gym.make("InfraMind-Stream-v0", num_queries=3, render_mode="human")
except ValueError as error:
    print(error)
env = gym.make("InfraMind-Stream-v0", num_queries=3, render_mode="rgb_array")
check_env(env.unwrapped)
"""


def test_windows_name_our_extra() -> None:
    said = run_without(("pygame",), WINDOW)
    assert "needs pygame" in said and "[render]" in said


def test_the_docstring_lists_every_id() -> None:
    assert inframind_gym.__doc__ is not None
    named = set(re.findall(r"InfraMind-\w+-v\d", inframind_gym.__doc__))
    assert named == set(inframind_gym.ENVIRONMENTS) == {i for i in gym.registry if "InfraMind" in i}


@pytest.mark.parametrize("name", sorted(inframind_gym.ENVIRONMENTS))
def test_help_lists_the_arguments(name: str) -> None:
    made = gym.registry[name].entry_point
    assert isinstance(made, str)
    module, _, attribute = made.partition(":")
    cls = getattr(importlib.import_module(module), attribute)
    text = pydoc.plain(pydoc.render_doc(cls))
    fields = list(cls.arguments.model_fields)
    assert [name for name in fields if name not in text] == []
    if "Live" not in attribute:  # whose words refer to the simulated environment's
        assert [name for name in fields if f"`{name}`" not in cls.__doc__] == []
    assert "Validator" not in text and "Annotated" not in text and " at 0x" not in text


def test_compiled_rules_are_read_without_numba() -> None:
    """Machine code that is kept runs without it."""
    run("import inframind_gym.envs.routing, sys; assert 'numba' not in sys.modules")
