"""Fills the templates under ``docs/templates`` and writes the pages.

Prose is committed in the templates; every number in it is a ``{{name}}`` that is filled in here, as
are tables. The same evidence gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.errors import unknown
from inframind_gym.files import replace_text

TEMPLATES: Final = Path(__file__).resolve().parents[2] / "docs" / "templates"
_PLACE: Final = re.compile(r"\{\{\s*([\w.-]+)\s*\}\}")


@dataclass(frozen=True)
class Written:
    """The files of a page.

    Attributes:
        page: The page.
        figures: Its figures.
    """

    page: Path
    figures: tuple[Path, ...] = ()

    @property
    def beside(self) -> str:
        """What was written beside the page, in words."""
        return f"{len(self.figures)} figures"


def write_page(path: Path, template: str, names: Mapping[str, str], *, command: str) -> Path:
    """Write a page.

    Args:
        path: The page.
        template: Path of its template below ``docs/templates``.
        names: What stands for each ``{{name}}``.
        command: Arguments of ``python -m benchmarks`` that write it.

    Returns:
        The page.

    Raises:
        BenchmarkError: The template asks for a name that is unknown, or cannot be read.
        InfraMindError: The page cannot be written.
    """
    try:
        text = (TEMPLATES / template).read_text(encoding="utf-8")
    except OSError as error:
        raise BenchmarkError(f"{error.filename}: {error.strerror or error}.") from None
    head = (
        f"<!-- Written by `python -m benchmarks {command}` from docs/templates/{template}: "
        "edit that file, not this one. -->\n\n"
    )
    replace_text(path, head + fill(text, names))
    return path


def fill(template: str, names: Mapping[str, str]) -> str:
    """The template with every ``{{name}}`` replaced.

    Raises:
        BenchmarkError: A name is unknown.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in names:
            raise BenchmarkError(unknown("name in the template", match[1], names))
        return names[match[1]]

    return _PLACE.sub(value, template)
