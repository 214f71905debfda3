"""Where results come from: what determines them (hashed into cell ids) and what they ran on."""

from __future__ import annotations

import hashlib
import inspect
import platform
import subprocess
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import inframind_gym
from inframind_gym.benchmark.cells import content_hash
from inframind_gym.benchmark.cores import available_cores
from inframind_gym.benchmark.suite import SuiteConfig
from inframind_gym.policies import PerRowPolicy, resolve_policy
from inframind_gym.simulator import SIMULATOR_VERSION
from inframind_gym.simulator.arrivals import make_arrivals
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workload import load_profiles, load_workload

FORMAT = 2  # of the results folder
PACKAGE: Final = Path(inframind_gym.__file__).resolve().parent

_PACKAGES = ("inframind-gym", "gymnasium", "numba", "numpy")


def version_settings() -> dict[str, Any]:
    """What results of every family depend on: declared versions, and the packages that compute."""
    return {
        "format": FORMAT,
        "simulator": SIMULATOR_VERSION,
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
    return {**version_settings(), **world_settings(suite)}


def world_settings(suite: SuiteConfig) -> dict[str, Any]:
    """Those of `settings` that are no versions."""
    return {
        "pool": content_hash(load_pool(suite.pool).model_dump(mode="json")),
        "tasks": suite.tasks if suite.tasks == "builtin" else _tasks_hash(Path(suite.tasks)),
        "split": suite.split,
        "num_queries": suite.num_queries,
        "num_queries by workload": {w: own.num_queries for w, own in suite.by_workload.items()},
        "arrivals": _arrivals(suite.arrivals),
        "execution": suite.execution,
        "scheduler": suite.scheduler,
        "system_features": list(suite.system_features),
        "metrics_poll_s": suite.metrics_poll_s,
        "down_models": list(suite.down_models),
        "backend": suite.backend,
        "live": suite.live.model_dump(mode="json"),
    }


def workload_fingerprint(name_or_path: str) -> str:
    """Hash of a workload's settings and of those of the workloads that it mixes."""
    workload = load_workload(name_or_path)
    profiles = {
        dataset: [part.weight, part.profile.model_dump(mode="json")]
        for dataset, part in load_profiles(workload).items()
    }
    return content_hash([workload.model_dump(mode="json"), profiles])


def policy_fingerprint(name_or_path: str, resolve: Callable[[str], Any] = resolve_policy) -> str:
    """Hash of all that a policy's results depend on: name, declared version and weights.

    Of a policy from outside this package the text of the module of its class counts too. What else
    it imports does not: a policy that changes there declares a new `version`.

    Args:
        name_or_path: A name of the family, or ``package.module:Class``.
        resolve: Makes a policy of the family.

    Raises:
        ConfigError: The policy is unknown or cannot be made.
    """
    policy = resolve(name_or_path)
    extra = _extra(policy)
    if isinstance(policy, PerRowPolicy):
        policy = policy.instances[0]
    declared = [getattr(policy, "version", 1), _source_of(type(policy))]
    return content_hash([name_or_path, type(policy).__qualname__, declared, extra])


def _source_of(kind: type) -> str:
    """Hash of the module of a class; empty for a class of this package."""
    if kind.__module__.partition(".")[0] == PACKAGE.name:
        return ""
    try:
        source = inspect.getsourcefile(kind)
    except (TypeError, OSError):  # built in, or made in an interactive session
        return ""
    return file_hash(Path(source)) if source else ""


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
    root = str(PACKAGE.parent)
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
