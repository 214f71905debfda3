"""Results folders of benchmarks, and the reports that show them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.evaluation.report.page import write_report
from inframind_gym.evaluation.store import HEADER, finished_ids, read_header

_DEEPEST: Final = 3  # folders below those that were given


class Boards:
    """Results folders under some folders, and their reports.

    Args:
        roots: results folders, or folders of them; one that is missing has none.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = roots

    def find(self) -> dict[str, Path]:
        """Return the folders by the names under which the pages know them."""
        folders: dict[str, Path] = {}
        for root in self._roots:
            for depth in range(_DEEPEST + 1):
                for path in sorted(root.glob("/".join(["*"] * depth + [HEADER]))):
                    name = "--".join(path.parent.relative_to(root).parts) or root.resolve().name
                    folders.setdefault(name, path.parent)
        return folders

    def listed(self) -> list[dict[str, Any]]:
        """Return what is listed of each folder: name, suite, policies, finished cells, or error."""
        rows: list[dict[str, Any]] = []
        for name, folder in self.find().items():
            rows.append({"name": name})
            try:
                header, cells = read_header(folder), len(finished_ids(folder))
            except (InfraMindError, OSError) as error:
                rows[-1]["error"] = str(error)
                continue
            planned = sum(map(len, header.get("planned", {}).values()))
            rows[-1] |= {"suite": header["suite"].get("name", ""), "cells": cells}
            rows[-1] |= {"planned": planned, "policies": ", ".join(header["policies"])}
        return rows

    def report(self, name: str) -> str:
        """Return the HTML of a folder's report; making it can take seconds.

        Raises:
            InfraMindError: there is no such folder, it has no results, or cannot be read.
        """
        folder = self.find().get(name)
        if folder is None:
            raise ConfigError(f"there is no results folder {name[:100]!r}")
        with tempfile.TemporaryDirectory() as scratch:
            page = Path(scratch, "report.html")
            write_report([folder], page)
            return page.read_text(encoding="utf-8")
