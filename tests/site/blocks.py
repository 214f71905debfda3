"""Code blocks of the pages: found, and run as a reader would, page by page in a folder of its own.

Every block of Python or shell is run, unless the line before it says why not:

    <!-- not run: needs a GPU -->

Blocks of Python share their names along a page; `<!-- run first: ... -->` holds lines that a block
needs and the page does not show. A block that begins with `# name.py` is a file, too.
Boards are shortened: `inframind bench run` plays one seed of 20 queries.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
_BLOCK: Final = re.compile(
    r"(?:^<!-- (?P<mark>not run|run first): (?P<said>.*?) ?-->\n)?"
    r"^(?P<indent> *)```(?P<language>python|sh)\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
_SHELL: Final = """set -euo pipefail
inframind() {
  if [ "${1-} ${2-}" = "bench run" ]; then
    set -- "$@" --seeds 1 --workers 1
    case "$*" in
      *assignment_* | *coordination_* | *token_budget_*) ;;
      *placement*) set -- "$@" --set decisions=20 ;;
      *) set -- "$@" --set queries=20 ;;
    esac
  fi
  python -c 'from inframind_gym.cli import app; app()' "$@"
}
"""


class Block(NamedTuple):
    """One block: `not_run` is the reason, "" where it runs."""

    line: int
    language: str
    code: str
    not_run: str
    first: str


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of Python and shell of a page, in its order."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        said = {found["mark"]: found["said"] or ""}
        code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
        line = text.count("\n", 0, found.start("indent")) + 1
        yield Block(
            line, found["language"], code, said.get("not run", ""), said.get("run first", "")
        )


def run_page(page: Path, folder: Path) -> None:
    """Run the blocks of a page in a folder.

    Raises:
        AssertionError: A block of shell failed; names its page and line.
        Exception: Whatever a block of Python raises.
    """
    (folder / "examples").symlink_to(ROOT / "examples")
    names: dict[str, Any] = {"__name__": page.stem}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "PATH": path}
    env["INFRAMIND_STATE"] = str(folder / "state")
    for block in blocks(page):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.not_run:
            continue
        if block.language == "sh":
            code = f"{block.first}\n{block.code}"
            done = subprocess.run(
                ["bash", "-c", _SHELL + code],
                cwd=folder,
                env=env,
                capture_output=True,
                text=True,
                timeout=500,
            )
            said = f"{done.stdout[-1500:]}{done.stderr[-3000:]}"
            assert done.returncode == 0, f"{where}:\n{code}\n{said}"
            continue
        if file := re.match(r"# (\w+\.py)\n", block.code):
            (folder / file[1]).write_text(block.code, encoding="utf-8")
        exec(compile(block.first, where, "exec"), names)
        exec(compile("\n" * (block.line - 1) + block.code, where, "exec"), names)
