"""Results folders of benchmarks, and the reports that show them."""

from __future__ import annotations

import re
import tempfile
import threading
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.report.page import write_report
from inframind_gym.benchmark.store import CELLS, HEADER, read_header
from inframind_gym.errors import ConfigError, InfraMindError

_DEEPEST: Final = 3  # folders below those that were given
_SCRIPT: Final = re.compile(r"<script>(.*?)</script>", re.DOTALL)


class Boards:
    """Results folders under some folders, with their reports.

    A report is made once, and again when its folder has changed.

    Args:
        roots: results folders, or folders of them; one that is missing has none.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = roots
        self._kept = tempfile.TemporaryDirectory(prefix="inframind-studio-")
        self._lock = threading.Lock()

    def find(self) -> dict[str, Path]:
        """Return the folders by the names under which the page knows them."""
        found: dict[str, Path] = {}
        for root in self._roots:
            patterns = ("/".join(["*"] * depth) for depth in range(1, _DEEPEST + 1))
            below = (path for pattern in patterns for path in root.glob(f"{pattern}/{HEADER}"))
            for path in (root / HEADER, *sorted(below)):
                if path.is_file():
                    folder = path.parent
                    name = folder.relative_to(root).as_posix().replace("/", "--")
                    found.setdefault(folder.resolve().name if name == "." else name, folder)
        return found

    def listed(self) -> list[dict[str, Any]]:
        """Return what the page lists of each folder: name, suite, policies, finished cells."""
        rows: list[dict[str, Any]] = []
        for name, folder in self.find().items():
            try:
                header = read_header(folder)
                lines = (folder / CELLS).read_bytes().count(b"\n")
            except (InfraMindError, OSError) as error:
                rows.append({"name": name, "error": str(error)})
                continue
            planned = header.get("planned", {})
            rows.append(
                {
                    "name": name,
                    "suite": header["suite"].get("name", ""),
                    "kind": header["suite"].get("kind", "routing"),
                    "policies": list(header["policies"]),
                    "cells": lines,
                    "planned": sum(map(len, planned.values())),
                    "started": header["runs"][-1].get("started", "") if header["runs"] else "",
                }
            )
        return rows

    def report(self, name: str, episodes: int) -> str:
        """Return the HTML of a folder's report; making it can take seconds.

        Args:
            name: of the folder, see `find`.
            episodes: whose timelines are shown, at most.

        Raises:
            ConfigError: there is no such folder.
            InfraMindError: it has no results, or they cannot be read.
        """
        folder = self.find().get(name)
        if folder is None:
            raise ConfigError(f"there is no results folder {name[:100]!r}")
        cells = folder / CELLS
        if not cells.is_file():
            raise BenchmarkError(f"{folder}: no cell is finished yet")
        seen = f"{folder.resolve()}|{cells.stat().st_mtime_ns}|{episodes}"
        kept = Path(self._kept.name, f"{sha256(seen.encode()).hexdigest()}.html")
        with self._lock:  # making one takes a whole core
            if not kept.is_file():
                write_report([folder], kept, most_episodes=episodes)
        return kept.read_text(encoding="utf-8")

    def close(self) -> None:
        """Remove the reports that were made."""
        self._kept.cleanup()


def script_hashes(html: str) -> str:
    """Return the sources of a content security policy that admit a page's own scripts alone."""
    digests = (sha256(script.encode()).digest() for script in _SCRIPT.findall(html))
    return " ".join(f"'sha256-{b64encode(digest).decode()}'" for digest in digests)
