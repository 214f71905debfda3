"""Imports of a source file, read off its text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path


def imports(path: Path, module: str, *, typed: bool = True) -> Iterator[str]:
    """Names that a file imports, inside functions too.

    Args:
        path: the file.
        module: its module.
        typed: with those for annotations alone (`if TYPE_CHECKING`).
    """
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    tree = _parsed(path)
    if not typed:
        tree = ast.Module([node for node in tree.body if not _for_annotations(node)], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            stem = [*start, *(node.module.split(".") if node.module else [])]
            yield from (".".join([*stem, alias.name]) for alias in node.names)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _for_annotations(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
