"""What scores depend on, but for weights and chance: while it stays the same, records stay valid.

Of code what it does counts: comments, docstrings and layout do not. That is the simulator, the
policy and, where it is trained, all that its training imports, with its configuration. The
versions of NumPy and numba, which do the arithmetic, count too.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import yaml

import benchmarks
from agents.config import find as find_config
from agents.sources import INITIAL, ROOT
from baselines.hyperparameters import DEFAULT_FILE
from benchmarks.families import ROUTING, family
from benchmarks.provenance import (
    ROLLOUT,
    code_settings,
    meaning_hash,
    rooms_left_out,
    workload_fingerprint,
    world_settings,
)
from benchmarks.results_page.plan import EntryConfig, EntryRun
from benchmarks.runner import resolve
from benchmarks.simulator import simulator_files
from benchmarks.sources import imported_by, policy_sources
from benchmarks.suite import SuiteConfig, name_of
from inframind_gym.policy.loading import registered_policies

FORMAT: Final = 1
SIMULATOR: Final = "what the simulator does"
_ANYBODY: Final = "random"  # stands for policies that may not be here
_SEARCH: Final = ("cmaes.py",)  # rooms of the simulator's package that trainings alone rest on


def rests_on(run: EntryRun) -> dict[str, Any]:
    """What the scores of a run depend on, JSON.

    Raises:
        InfraMindError: A workload cannot be read.
    """
    entry, suite = run.entry, _of_anybody(run)
    content = {
        "format": FORMAT,
        "policy": entry.policy,
        "what the policy does": _policy_code(entry.policy.partition(":")[0]),
        "training": _training(entry),
        "workloads": {name_of(one): workload_fingerprint(one) for one in suite.workloads},
        "rates_per_min": suite.rates_per_min,
        "budgets_s": suite.budgets_s,
        "seeds": suite.seed_list,
        **_code(rooms_left_out(suite)),
        "world": world_settings(suite),
    }
    return dict(json.loads(json.dumps(content)))


def same_simulator(run: EntryRun, header: Mapping[str, Any]) -> bool:
    """Whether the code that a run's header tells of is that of now."""
    now = code_settings(ROLLOUT, rooms_left_out(_of_anybody(run)))
    return all(header["settings"].get(key) == value for key, value in now.items())


def _of_anybody(run: EntryRun) -> SuiteConfig:
    """A run's suite, checked, with a policy in place of those that may not be here."""
    return resolve(run.suite.model_copy(update={"policies": (_ANYBODY,)}))


@cache
def _code(left_out: tuple[str, ...]) -> dict[str, str]:
    here = Path(str(benchmarks.__file__)).parent
    return {
        SIMULATOR: meaning_hash(simulator_files(left_out)),
        "what a sweep does": meaning_hash(here / name for name in ROLLOUT),
        "numpy": version("numpy"),
        "numba": version("numba"),
    }


@cache
def _module_of(policy: str) -> tuple[str, str]:
    """Module and class of a registered policy; empty where none of that name is registered."""
    family(ROUTING).resolve_policy(_ANYBODY)  # registers them
    for entry in registered_policies():
        if entry.name == policy:
            module, _, name = entry.path.partition(":")
            return module, name
    return "", ""


@cache
def _policy_code(policy: str) -> str:
    module, name = _module_of(policy)
    return meaning_hash(policy_sources(getattr(import_module(module), name))) if module else ""


def _training(entry: EntryConfig) -> dict[str, Any] | None:
    """Command, seeds, code and configuration of an entry's trainings; None if it has none."""
    if entry.training is None:
        return None
    module, _ = _module_of(entry.policy.partition(":")[0])
    return {
        "command": entry.training.command,
        "seeds": entry.training.seed_list,
        "after": entry.training.after,
        "code": _training_code(module),
        "config": _configuration(module, entry.training.command),
    }


@cache
def _training_code(module: str) -> str:
    """Hash of the package that a policy stands in, and of all that it imports."""
    if not module:
        return ""
    package = Path(str(import_module(module).__file__)).parent
    return meaning_hash(imported_by(package.rglob("*.py"), ROOT, _SEARCH))


@cache
def _configuration(module: str, command: str) -> Any:
    """What a training reads beside its code: the file that `--config` names, or a block of ours."""
    if module.startswith("baselines."):
        return yaml.safe_load(DEFAULT_FILE.read_text(encoding="utf-8"))
    words = shlex.split(command)
    if "--config" not in words[:-1]:
        return None
    path = find_config(words[words.index("--config") + 1])
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    started = module.startswith("agents.inframind.")  # from the planner of a checkpoint
    initial = (ROOT / INITIAL).glob("*") if started else ()
    return [config, meaning_hash(initial)]
