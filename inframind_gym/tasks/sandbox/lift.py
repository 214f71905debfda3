"""Asserts of a task's tests that are decided outside of the locked process.

In ``assert abs(f([1, 2]) - 1.5) < 1e-6`` the locked process needs to know ``f([1, 2])`` alone.
`lift` replaces such an assert by a call that sends out what the answer returned; `holds` decides
it here, over plain data, so that what a test expects is nowhere where an answer's code runs. An
assert is lifted if all but the answer's calls is made of literals, arithmetic, comparisons and a
few functions: no attributes, no subscripts, no other names. All others run beside the answer.
"""

from __future__ import annotations

import ast
import builtins
import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final

_ARITHMETIC: Final[dict[str, Callable[..., Any]]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "Div": operator.truediv,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Pow": operator.pow,
}
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    kind.__name__: kind
    for kind in (abs, all, any, bool, dict, divmod, float, frozenset, int, len, list, max, min)
} | {kind.__name__: kind for kind in (round, set, sorted, sum, tuple, math.isclose)}


@dataclass(frozen=True)
class Lifted:
    """An assert that is decided outside.

    In its expression the answer's calls are the names "_0", "_1", …; a required one is run whenever
    the tests run to their end.
    """

    test: CodeType
    required: bool


@functools.lru_cache(1024)
def lift(tests: str, entry_point: str, preamble: str, plain: bool) -> tuple[str, list[Lifted]]:
    """Take out of tests the asserts that can be decided outside.

    Args:
        tests: Python source.
        entry_point: name of the answer's function; "": names that the tests do not define.
        preamble: source of what the tests have beside themselves.
        plain: the answer's functions return plain data. Else what is read off their results is.

    Returns:
        The tests, in which the i-th of those asserts is ``__lifted__(i, calls…)``; and the asserts.
    """
    try:
        tree = ast.parse(tests)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return tests, []  # the locked process says what is wrong with them
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    named_calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    calls_by_name = [(n.func.id, n) for n in named_calls if isinstance(n.func, ast.Name)]
    if entry_point:
        answers = {entry_point}
        for name, call in calls_by_name:  # parameters of the tests' functions that it is given to
            parameters = functions[name].args.args if name in functions else []
            for parameter, argument in zip(parameters, call.args, strict=False):
                if isinstance(argument, ast.Name) and argument.id == entry_point:
                    answers.add(parameter.arg)
    else:
        known = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                known.add(node.id)
        unknown = {name for name, _ in calls_by_name} - known - {*dir(builtins)}
        answers = {name for name in unknown if name not in preamble}
    called_above = {
        node.func.id
        for statement in tree.body
        if isinstance(statement, ast.Expr)
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    lifted: list[Lifted] = []

    def visit(body: list[ast.stmt], required: bool) -> None:
        for index, statement in enumerate(body):
            if isinstance(statement, ast.Assert):
                calls: list[ast.expr] = []
                try:
                    test = ast.Expression(_without_calls(statement.test, answers, calls, plain))
                    code = compile(ast.fix_missing_locations(test), "<assert>", "eval")
                except (LookupError, SyntaxError, ValueError, RecursionError):
                    continue
                if calls:
                    arguments = [ast.Constant(len(lifted)), *calls]
                    name = ast.Name("__lifted__", ast.Load())
                    replacement = ast.Expr(ast.Call(name, arguments, []))
                    body[index] = ast.copy_location(replacement, statement)
                    lifted.append(Lifted(code, required))
            elif isinstance(statement, ast.FunctionDef):
                visit(statement.body, required and statement.name in called_above)
            elif isinstance(statement, (ast.For, ast.While, ast.If)):
                visit(statement.body, False)
                visit(statement.orelse, False)
            elif isinstance(statement, ast.With):
                visit(statement.body, False)

    visit(tree.body, True)
    return ast.unparse(ast.fix_missing_locations(tree)) if lifted else tests, lifted


def _without_calls(
    node: ast.expr, answers: set[str], calls: list[ast.expr], plain: bool
) -> ast.expr:
    """Return an expression with the answer's calls as names.

    The calls are added to `calls`, in the order in which Python carries them out. LookupError: it
    holds something that is not decided outside.
    """

    def part(child: ast.expr) -> ast.expr:
        return _without_calls(child, answers, calls, plain)

    if _is_answers(node, answers):
        if not plain and isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            raise LookupError("an object of the answer's class")
        calls.append(node)
        return ast.Name(f"_{len(calls) - 1}", ast.Load())
    match node:
        case ast.Constant():
            return node
        case ast.List() | ast.Tuple() | ast.Set():
            items = [part(item) for item in node.elts]
            return ast.Set(items) if isinstance(node, ast.Set) else type(node)(items, ast.Load())
        case ast.Dict() if None not in node.keys:
            pairs = [(part(k), part(v)) for k, v in zip(node.keys, node.values, strict=True) if k]
            return ast.Dict([k for k, _ in pairs], [v for _, v in pairs])
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.UAdd()):
            return ast.UnaryOp(node.op, part(node.operand))
        case ast.BinOp() if type(node.op).__name__ in _ARITHMETIC:
            sides = [part(node.left), part(node.right)]
            operation = ast.Constant(type(node.op).__name__)
            return ast.Call(ast.Name("_arithmetic", ast.Load()), [operation, *sides], [])
        case ast.Compare():
            last, identity = node.comparators[-1], {ast.Is, ast.IsNot} & {*map(type, node.ops)}
            if identity and ast.unparse(last) not in ("None", "True", "False"):
                raise LookupError("identity of what is no singleton")
            return ast.Compare(part(node.left), node.ops, [part(c) for c in node.comparators])
        case ast.BoolOp(op=ast.And()):
            return ast.BoolOp(node.op, [part(value) for value in node.values])
        case ast.Call():
            name = "isclose" if ast.unparse(node.func) == "math.isclose" else ""
            if isinstance(node.func, ast.Name) and node.func.id != "isclose":
                name = node.func.id
            named = [ast.keyword(k.arg, part(k.value)) for k in node.keywords if k.arg]
            if name in _FUNCTIONS and len(named) == len(node.keywords):
                arguments = [part(argument) for argument in node.args]
                return ast.Call(ast.Name(name, ast.Load()), arguments, named)
    raise LookupError(type(node).__name__)


def _is_answers(node: ast.expr, answers: set[str]) -> bool:
    """Return whether an expression is a call of the answer's function, or is read off one."""
    while isinstance(node, (ast.Subscript, ast.Attribute, ast.Call)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return node.func.id in answers
        node = node.func if isinstance(node, ast.Call) else node.value
    return False


def holds(test: CodeType, values: Sequence[Any]) -> bool:
    """Return whether a lifted assert holds, given what the answer's calls returned (plain data)."""
    names = {f"_{number}": value for number, value in enumerate(values)}
    try:
        return bool(eval(test, {**_FUNCTIONS, **names, "__builtins__": {}, **_OWN}))
    except (*_FAILURES, RecursionError):
        return False


def _arithmetic(operation: str, left: Any, right: Any) -> Any:
    """Carry out arithmetic, if it takes no longer than reading its operands; else a ValueError."""
    numbers = all(isinstance(side, (int, float, complex)) for side in (left, right))
    joined = operation == "Add" and type(left) is type(right)
    if not (numbers or joined) or (operation == "Pow" and max(abs(left), abs(right)) > 1000):
        raise ValueError("no arithmetic that takes longer than reading the operands")
    return _ARITHMETIC[operation](left, right)


# A test that cannot be computed, or whose values were not sent.
_FAILURES: Final = (ArithmeticError, LookupError, MemoryError, NameError, TypeError, ValueError)
_OWN: Final = {"_arithmetic": _arithmetic}
