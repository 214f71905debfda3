"""Where results come from: what determines them (hashed into cell ids) and what they ran on."""

from __future__ import annotations

import ast
import hashlib
import platform
import subprocess
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import baselines
from benchmarks.cells import content_hash
from benchmarks.cores import available_cores
from benchmarks.simulator import ASIDE, LIVE, PACKAGE, PLACEMENT, simulator_files
from benchmarks.sources import policy_sources
from benchmarks.suite import SuiteConfig
from inframind_gym.policy import PerRowPolicy
from inframind_gym.serving.pool import load_pool
from inframind_gym.workload.arrivals import make_arrivals
from inframind_gym.workload.config import load_profiles, load_workload

FORMAT = 1  # of the results folder

ROLLOUT = (
    "cells.py",
    "metrics.py",
    "routing/live.py",
    "routing/records.py",
    "routing/rollout.py",
)  # modules beside this one that make the results
_PACKAGES = ("inframind-gym", "gymnasium", "numba", "numpy")


def code_settings(modules: Sequence[str], left_out: Sequence[str]) -> dict[str, Any]:
    """The code that results of any family depend on.

    Args:
        modules: Paths of the modules that make the results, below this one's folder.
        left_out: Rooms of the simulator that they never import (`benchmarks.simulator`).
    """
    return {
        "format": FORMAT,
        "code of inframind_gym": _simulator_hash(left_out),
        "code of benchmarks": files_hash(Path(__file__).parent / name for name in modules),
        "numpy": version("numpy"),
        "numba": version("numba"),
    }


def file_hash(path: Path) -> str:
    """16 hexadecimal digits of a file's content; empty if there is no such file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def settings(suite: SuiteConfig) -> dict[str, Any]:
    """What all cells of a run of routing share and what their results depend on.

    Paths are replaced by the hash of what they hold, so that a folder can be moved and a changed
    file shows; of a pool by the hash of what it says, so that its comments do not count.

    Args:
        suite: The resolved suite.

    Returns:
        JSON content; two runs may share a results folder only if it is equal.
    """
    return {**code_settings(ROLLOUT, rooms_left_out(suite)), **world_settings(suite)}


def world_settings(suite: SuiteConfig) -> dict[str, Any]:
    """Those of `settings` that are no code, nor versions."""
    return {
        "pool": content_hash(load_pool(suite.pool).model_dump(mode="json")),
        "tasks": suite.tasks if suite.tasks == "builtin" else _tasks_hash(Path(suite.tasks)),
        "split": suite.split,
        "num_queries": suite.num_queries,
        "num_queries by workload": {w: own.num_queries for w, own in suite.by_workload.items()},
        "arrivals": _arrivals(suite.arrivals),
        "protocol": suite.protocol,
        "scheduler": suite.scheduler,
        "system_features": list(suite.system_features),
        "metrics_poll_s": suite.metrics_poll_s,
        "down_models": list(suite.down_models),
        "backend": suite.backend,
        "live": suite.live.model_dump(mode="json"),
    }


def rooms_left_out(suite: SuiteConfig) -> tuple[str, ...]:
    """Rooms of the simulator that no cell of a suite of routing imports."""
    live = () if suite.backend == "vllm" else LIVE
    return (*ASIDE, *PLACEMENT, *live)


def workload_fingerprint(name_or_path: str) -> str:
    """Hash of a workload's settings and of those of the workloads that it mixes."""
    workload = load_workload(name_or_path)
    profiles = {
        dataset: [part.weight, part.profile.model_dump(mode="json")]
        for dataset, part in load_profiles(workload).items()
    }
    return content_hash([workload.model_dump(mode="json"), profiles])


def policy_fingerprint(
    name_or_path: str,
    resolve: Callable[[str], Any] = baselines.resolve_policy,
    left_out: Sequence[str] = (),
) -> str:
    """Hash of a policy's name, of the source that it rests on, and of its `fingerprint`.

    A policy whose behaviour rests on more than its source (weights, a table) says so by a string
    `fingerprint`.

    Args:
        name_or_path: The policy.
        resolve: How policies of its family are made.
        left_out: Rooms of the simulator that the settings of the run leave out: what the policy
            imports of them counts here.

    Raises:
        ConfigError: The policy is unknown or cannot be made.
    """
    policy = resolve(name_or_path)
    extra = _extra(policy)
    if isinstance(policy, PerRowPolicy):
        policy = policy.instances[0]
    sources = files_hash(policy_sources(type(policy), left_out))
    return content_hash([name_or_path, type(policy).__qualname__, sources, extra])


def weights_hash(policy: Any) -> str:
    """Hash of what a policy's behaviour rests on beside its source: of its `fingerprint`."""
    return content_hash(_extra(policy))


def _extra(policy: Any) -> str:
    one = policy.instances[0] if isinstance(policy, PerRowPolicy) else policy
    return str(getattr(one, "fingerprint", ""))


def provenance() -> dict[str, Any]:
    """Versions, machine and git revision of this process."""
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "machine": machine(),
        "git": git_revision(),
    }


def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, and operating system."""
    return {
        "processor": _processor(),
        "cores": available_cores(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def git_revision() -> dict[str, Any] | None:
    """Commit of the checkout and whether it has changes; None outside of a repository."""
    root = str(Path(__file__).resolve().parent.parent)
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(_git(root, "status", "--porcelain"))}


def _git(root: str, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", root, *arguments], capture_output=True, text=True, check=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _arrivals(arrivals: str | dict[str, Any]) -> Any:
    spec = make_arrivals(arrivals).to_json()
    return {**spec, "path": file_hash(Path(spec["path"]))} if "path" in spec else spec


def _tasks_hash(folder: Path) -> str:
    files = (path for path in folder.iterdir() if path.name.endswith((".jsonl", ".jsonl.gz")))
    return content_hash([[path.name, file_hash(path)] for path in sorted(files)])


def _simulator_hash(left_out: Sequence[str]) -> str:
    return content_hash(
        [[str(path.relative_to(PACKAGE)), file_hash(path)] for path in simulator_files(left_out)]
    )


def files_hash(files: Iterable[Path]) -> str:
    """Hash of files by their names and contents, wherever they are and in whatever order."""
    return content_hash(sorted([path.name, file_hash(path)] for path in files))


def meaning_hash(files: Iterable[Path]) -> str:
    """The same of what Python files do: comments, docstrings and layout make no difference."""
    return content_hash(
        sorted(
            [path.name, _meaning(path) if path.suffix == ".py" else file_hash(path)]
            for path in files
        )
    )


@cache
def _meaning(path: Path) -> str:
    """Of a Python file; not of how a Python version writes a syntax tree down."""
    tree = ast.parse(path.read_bytes())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return hashlib.sha256(repr(_shape(tree)).encode()).hexdigest()[:16]


def _shape(node: Any) -> Any:
    """A syntax tree as tuples, without what is empty."""
    if isinstance(node, ast.AST):
        fields = [(name, _shape(value)) for name, value in ast.iter_fields(node)]
        return type(node).__name__, *(field for field in fields if field[1] not in (None, ()))
    return tuple(map(_shape, node)) if isinstance(node, list) else node
