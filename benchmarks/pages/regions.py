"""Tables in pages written by hand: regions between two comments, refreshed by the scripts.

<!-- table: goodput -->
…
<!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.errors import unknown
from inframind_gym.files import replace_text

_REGION: Final = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str, blocks: Mapping[str, str]) -> str:
    """The text with the content of every region replaced; a BenchmarkError for an unknown one."""

    def region(match: re.Match[str]) -> str:
        if match[2] not in blocks:
            raise BenchmarkError(unknown("table", match[2], blocks))
        return f"{match[1]}\n{blocks[match[2]]}\n\n{match[3]}"

    return _REGION.sub(region, text)


def refresh(page: Path, blocks: Mapping[str, str], *, check: bool = False) -> bool:
    """Refresh the regions of a page, unless only checking; return whether it was up to date.

    Raises:
        InfraMindError: The page cannot be read or written, or has a region without a block.
    """
    try:
        old = page.read_text(encoding="utf-8")
    except OSError as error:
        raise BenchmarkError(f"{page}: {error.strerror}.") from None
    new = fill(old, blocks)
    if new != old and not check:
        replace_text(page, new)
    return new == old
