"""The house keeps its size: lines of each room and function, circles of imports, lines said twice.

A number here is a ceiling, the lines of the room rounded up to the next fifty. It is lowered when a
room gets smaller, and raised only by a commit that lowers another by as much.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.imports import imports
from tests.test_layers import PACKAGE, ROOT, sources

# Lines of Python of a folder; "inframind_gym/." is the package's own modules.
CEILINGS = {
    "inframind_gym/.": 1_500,
    "inframind_gym/calibration": 1_950,
    "inframind_gym/envs": 6_200,
    "inframind_gym/evaluation": 6_650,
    "inframind_gym/live": 6_750,
    "inframind_gym/policies": 5_550,
    "inframind_gym/simulator": 9_350,
    "inframind_gym/studio": 1_550,
    "inframind_gym/tasks": 2_500,
    "inframind_gym/teams": 7_550,
    "agents": 2_900,
    "baselines": 1_100,
    "benchmarks": 3_050,
    "examples": 350,
}
TESTS = 27_400
LONGEST_FUNCTION = 80  # lines below its docstring
LONGEST_FILE = 641
SAME_LINES = 8  # of code in a row that may stand in two places
REMEDY = (
    "more lines than the ceiling: delete as many there, or lower another by what this one needs"
)
CIRCLES = 0  # of modules that import one another, imports for annotations alone included


def lines(paths: list[Path]) -> int:
    """Return the number of lines of some files."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


@pytest.mark.parametrize("room", CEILINGS)
def test_a_room_is_no_larger_than_its_ceiling(room: str) -> None:
    folder = ROOT / room
    paths = folder.glob("*.py") if room.endswith("/.") else folder.rglob("*.py")
    assert lines(list(paths)) <= CEILINGS[room], REMEDY


def test_every_room_has_a_ceiling() -> None:
    rooms = {f"inframind_gym/{path.name}" for path in PACKAGE.iterdir() if path.is_dir()}
    assert {room for room in rooms if list((ROOT / room).rglob("*.py"))} <= set(CEILINGS)


def test_the_tests_are_no_larger_than_their_ceiling() -> None:
    assert lines(list((ROOT / "tests").rglob("*.py"))) <= TESTS, REMEDY


def test_no_function_is_longer_than_the_longest() -> None:
    longest = {}
    for module, path in sources().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[0]
                documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
                begin = first.end_lineno if documented and first.end_lineno else node.lineno
                longest[f"{module}.{node.name}"] = (node.end_lineno or 0) - begin
    assert {name: size for name, size in longest.items() if size > LONGEST_FUNCTION} == {}


def test_no_file_is_longer_than_the_longest() -> None:
    files = {path.relative_to(ROOT).as_posix(): lines([path]) for path in sources().values()}
    assert {name: size for name, size in files.items() if size > LONGEST_FILE} == {}


@pytest.mark.parametrize(("typed", "most"), [(False, 0), (True, CIRCLES)])
def test_few_modules_import_one_another_even_late(typed: bool, most: int) -> None:
    networkx = pytest.importorskip("networkx")
    modules, graph = sources(), networkx.DiGraph()
    for module, path in modules.items():
        for name in imports(path, module, typed=typed):
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and target != module:
                graph.add_edge(module, target)
    circles = [c for c in networkx.strongly_connected_components(graph) if len(c) > 1]
    assert len(circles) <= most, circles


def test_no_code_stands_twice() -> None:
    places: dict[tuple[str, ...], list[str]] = {}
    for module, path in sources().items():
        text = path.read_text(encoding="utf-8")
        not_code: set[int] = set()
        for node in ast.walk(ast.parse(text)):
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if isinstance(node, ast.stmt) and (
                is_text or isinstance(node, ast.Import | ast.ImportFrom)
            ):
                not_code.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        numbered = [(i, line.strip()) for i, line in enumerate(text.splitlines(), 1)]
        code = [(i, line) for i, line in numbered if line and i not in not_code]
        for k in range(len(code) - SAME_LINES):
            run = tuple(line for _, line in code[k : k + SAME_LINES + 1])
            places.setdefault(run, []).append(f"{module}:{code[k][0]}")
    assert [found for found in places.values() if len(found) > 1] == []
