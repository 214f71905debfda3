"""The page without a server: its bundle, and its data as files under the paths of the API."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.studio.app import EPISODES, Pages
from inframind_gym.studio.security import PAGE_POLICY
from inframind_gym.teams.runs.compare import compare

MOST_RUNS: Final = 50  # the newest
_MODE: Final = '<meta name="studio" content="{}"'
# The page says itself what a server's header would; frame-ancestors is for headers alone.
_POLICY: Final = "; ".join(
    part for part in PAGE_POLICY.split("; ") if not part.startswith("frame-ancestors")
)
_META: Final = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}" />\n    '


def write_static(pages: Pages, out: Path, bundle: Path) -> str:
    """Write the page and what it shows into a folder; returns what was written, in words.

    Args:
        pages: runs and boards.
        out: the folder; it must be empty, missing, or written by this function before.
        bundle: the built page.

    Raises:
        ConfigError: the folder has other files, or cannot be written.
    """
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / "api").is_dir())):
        raise ConfigError(f"--export {out}: it has other files. Name an empty folder.")
    try:
        shutil.copytree(bundle, out, dirs_exist_ok=True)
        index = out / "index.html"
        text = index.read_text(encoding="utf-8")
        static = text.replace(_MODE.format("live"), _META + _MODE.format("static"))
        index.write_text(static, "utf-8")
        return _write_data(pages, out / "api")
    except OSError as error:
        raise ConfigError(f"--export {out}: it cannot be written ({error}).") from None


def _write_data(pages: Pages, folder: Path) -> str:
    """Write the answers of the API as files."""
    if folder.exists():
        shutil.rmtree(folder)
    runs = pages.store.list_runs(most=MOST_RUNS)
    _write(folder / "info.json", pages.info([]))
    _write(folder / "runs.json", {"runs": pages.runs()[:MOST_RUNS], "owned": []})
    for run in runs:
        _write(folder / "runs" / f"{run.run_id}.json", asdict(run))
        _write(folder / "runs" / run.run_id / "events.json", pages.events(run.run_id))
    for one, other in combinations(runs, 2):
        if one.team == other.team:
            for a, b in ((one, other), (other, one)):
                _compare(pages, folder, a.run_id, b.run_id)
    shown = []
    for row in pages.boards.listed():
        if "error" in row:
            continue
        try:
            html = pages.boards.report(row["name"], EPISODES)
        except InfraMindError:  # a folder without a finished cell
            continue
        shown.append(row)
        path = folder / "boards" / row["name"] / "report.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
    _write(folder / "boards.json", shown)
    return f"{len(runs)} runs, {len(shown)} boards"


def _compare(pages: Pages, folder: Path, first: str, second: str) -> None:
    try:
        found = compare(pages.store, first, second)
    except ConfigError:  # a team whose runs have no comparison
        return
    _write(folder / "compare" / first / f"{second}.json", found)


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
