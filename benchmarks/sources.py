"""Which source files a policy rests on."""

from __future__ import annotations

import ast
import inspect
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.simulator import PACKAGE, is_left_out

_WHOLE_PACKAGES = ("baselines",)  # its modules share code freely
_PATHS = sysconfig.get_paths()
_INSTALLED = tuple(
    Path(_PATHS[key]).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")
)


def policy_sources(kind: type, left_out: Sequence[str] = ()) -> set[Path]:
    """The source files on which a policy's class rests.

    These are the files of the class and of its bases, those of its own project that they import,
    one through the other, and all baselines for a baseline. Of `agents` only what a policy imports
    counts: how it is trained shows in its weights. Imports are read from the source, not from
    what happens to be loaded, so other policies of the same process make no difference. Left out
    are what is installed and the simulator, as far as the settings of a run cover it.

    Args:
        kind: The policy's class.
        left_out: Rooms of the simulator that the settings do not cover.
    """
    sources: set[Path] = set()
    for base in kind.__mro__:
        file = _file_of(base)
        if file is None or (base is not kind and not _is_own(file, left_out)):
            continue
        package, _, rest = base.__module__.partition(".")
        if package in _WHOLE_PACKAGES:
            top = file.parents[rest.count(".")] if rest else file.parent
            sources |= {path for path in top.rglob("*.py") if path.is_file()}
        root = file.parents[base.__module__.count(".") + (file.name == "__init__.py")]
        _follow(file, root, sources, left_out)
    return sources


def imported_by(files: Iterable[Path], root: Path, left_out: Sequence[str] = ()) -> set[Path]:
    """Source files and those of their project that they import, one through the other.

    Args:
        files: Where to begin.
        root: The project's folder.
        left_out: See `policy_sources`.
    """
    found: set[Path] = set()
    for file in files:
        _follow(file.resolve(), root, found, left_out)
    return found


def _follow(file: Path, root: Path, found: set[Path], left_out: Sequence[str]) -> None:
    """Add a file and the files of its project that it imports; `root` is where they start."""
    waiting, seen = [file], set[Path]()
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting += [path for path in _imports(current, root) if _is_own(path, left_out)]
    found |= seen


def _imports(file: Path, root: Path) -> Iterator[Path]:
    """Files that may be what its import statements name: below `root`, beside it, the simulator."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names, starts = [alias.name for alias in node.names], [root, file.parent]
        elif isinstance(node, ast.ImportFrom):
            stem = f"{node.module}." if node.module else ""
            names = [stem + alias.name for alias in node.names]
            starts = [file.parents[node.level - 1]] if node.level else [root, file.parent]
        else:
            continue
        for start in starts:
            for name in names:
                place = PACKAGE.parent if name.startswith(f"{PACKAGE.name}.") else start
                for part in name.split("."):
                    place = place / part
                    for path in (place.with_name(f"{part}.py"), place / "__init__.py"):
                        if path.is_file():
                            yield path.resolve()


def _file_of(kind: type) -> Path | None:
    try:
        source = inspect.getsourcefile(kind)
    except (TypeError, OSError):  # built in
        return None
    return Path(source).resolve() if source else None


def _is_own(file: Path, left_out: Sequence[str]) -> bool:
    """Whether a file is neither installed nor part of what the settings cover."""
    if file.is_relative_to(PACKAGE):
        return is_left_out(file, left_out)
    return not any(file.is_relative_to(place) for place in _INSTALLED)
