"""Provenance of results: what determines them (hashed into cell ids), and where they were made.

Results rest on declared versions: of the folder's format, of the simulator and of each policy. A
folder made under another version is refused; a change that no version declares is not seen.
"""

from __future__ import annotations

import hashlib
import inspect
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import inframind_gym
from inframind_gym.benchmark.cells import content_hash
from inframind_gym.benchmark.machine import machine
from inframind_gym.benchmark.store import FORMAT
from inframind_gym.policies import PerRowPolicy
from inframind_gym.simulator import SIMULATOR_VERSION

if TYPE_CHECKING:
    from inframind_gym.benchmark.suite import BaseSuite

PACKAGE: Final = Path(inframind_gym.__file__).resolve().parent


def file_hash(path: Path) -> str:
    """Return 16 hexadecimal digits of a file's content; empty if there is no such file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def settings(suite: BaseSuite) -> dict[str, Any]:
    """Return what all cells of a resolved suite share and what their results depend on, as JSON.

    Two runs may share a results folder only if it is equal.
    """
    return {
        "format": FORMAT,
        "simulator": SIMULATOR_VERSION,
        "numpy": version("numpy"),
        "numba": version("numba"),
        **suite.settings(),
    }


def policy_fingerprint(policy: Any) -> dict[str, Any]:
    """Return what a policy's results depend on: class, declared version, module and weights.

    Of a policy from outside this package the text of the module of its class counts too. What else
    it imports does not: a policy that changes there declares a new `version`.

    Returns:
        JSON content: "class", "version", "module" (hash of its source; "" for one of this package)
        and "weights" (hash of its `fingerprint`).
    """
    kind = type(policy.instances[0] if isinstance(policy, PerRowPolicy) else policy)
    return {
        "class": kind.__qualname__,
        "version": getattr(kind, "version", 1),
        "module": _source_of(kind),
        "weights": weights_hash(policy),
    }


def _source_of(kind: type) -> str:
    """Hash the module of a class; empty for a class of this package."""
    if kind.__module__.partition(".")[0] == PACKAGE.name:
        return ""
    try:
        source = inspect.getsourcefile(kind)
    except (TypeError, OSError):  # built in, or made in an interactive session
        return ""
    return file_hash(Path(source)) if source else ""


def weights_hash(policy: Any) -> str:
    """Hash a policy's `fingerprint`: its weights, and what else its behaviour rests on."""
    one = policy.instances[0] if isinstance(policy, PerRowPolicy) else policy
    return content_hash(str(getattr(one, "fingerprint", "")))


def provenance() -> dict[str, Any]:
    """Return versions, machine and git revision of this process."""
    return {
        "python": platform.python_version(),
        "packages": {
            "inframind-gym": inframind_gym.__version__,
            **{name: version(name) for name in ("gymnasium", "numba", "numpy")},
        },
        "machine": machine(),
        "git": git_revision(),
    }


def git_revision() -> dict[str, Any] | None:
    """Return commit of the checkout and whether it has changes; None outside of a checkout."""
    root = PACKAGE.parent
    inside = (root / ".git").exists()  # an installed copy may lie in another repository
    commit = git(root, "rev-parse", "HEAD") if inside else None
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(git(root, "status", "--porcelain"))}


def git(root: Path, *arguments: str) -> str | None:
    """Return what git prints in a folder; None where it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
