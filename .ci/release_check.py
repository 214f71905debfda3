"""Checks that a commit can be released, but for wheel and site (`make release-check` has all).

The version is the same in the package, CITATION.cff and CHANGELOG.md, whose first heading reads
"## 1.2.3 (2030-01-31)"; the tag v1.2.3 is free, nothing is uncommitted, and no file names this
machine: its folders, its name, the hosts of its package index.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
PUBLIC_HOSTS = {"pypi.org", "files.pythonhosted.org", "download.pytorch.org", "localhost"}


def found(pattern: str, path: str) -> str:
    """Return the first group of a pattern in a file, or ""."""
    match = re.search(pattern, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else ""


def versions() -> Iterator[str]:
    """Yield what differs between the places that hold version and date."""
    version = found(r'^__version__ = "(.*)"', "inframind_gym/__init__.py")
    cited = found(r"^version: (.*)", "CITATION.cff")
    heading = found(r"^## (.*)", "CHANGELOG.md")
    if cited != version:
        yield f"CITATION.cff: version {cited}, the package has {version}"
    dated = re.fullmatch(rf"{re.escape(version)} \((\d{{4}}-\d\d-\d\d)\)", heading)
    if dated is None:
        yield f'CHANGELOG.md: the first heading is "{heading}", wanted "{version} (YYYY-MM-DD)"'
    elif (released := found(r'^date-released: "?([\d-]+)', "CITATION.cff")) != dated[1]:
        yield f'CITATION.cff: date-released is "{released}", CHANGELOG.md has {dated[1]}'
    if git("tag", "--list", f"v{version}"):
        yield f"git: the tag v{version} exists; raise the version"


def strangers() -> Iterator[str]:
    """Yield lines that name this machine."""
    host = socket.gethostname()
    is_name = len(host) > 4 and re.search(r"[-.\d]", host)  # not a word such as "docker"
    names = {str(ROOT), str(Path.home()), *index_hosts(), *([host] if is_name else [])} - {""}
    fixed = "|".join(re.escape(name) for name in sorted(names))
    pattern = rf"(?<![\w.])({fixed})(?![\w.])|(^|[\s\"'`=:(])/(home|Users|work|root)/[A-Za-z]"
    yield from git("grep", "-nIP", pattern, "--", ":!.ci/release_check.py").splitlines()


def index_hosts() -> set[str]:
    """Return the hosts from which pip installs here, but for public ones."""
    told = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(told, capture_output=True, text=True).stdout.split()
    urls = re.findall(r"https?://[^\s'\"]+", " ".join([*lines, *os.environ.values()]))
    return {urlsplit(url).hostname or "" for url in urls if "index" in url or "pypi" in url} - (
        PUBLIC_HOSTS
    )


def git(*arguments: str) -> str:
    """Return what git prints."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def main() -> int:
    """Print every problem; the exit status is 1 if there are any."""
    problems = [*versions(), *strangers()]
    if changed := git("status", "--porcelain"):
        problems.append(f"git: uncommitted changes:\n{changed}")
    print("\n".join(problems) or "version, tag, tree and names are in order")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
