"""Asserts of a task's tests that are decided outside of the locked process.

In ``assert abs(f([1, 2]) - 1.5) < 1e-6`` the locked process needs to know ``f([1, 2])`` alone.
`lift` replaces such an assert by a call that sends out what the answer returned; `holds` decides
it here, over plain data, so that what a test expects is nowhere where an answer's code runs. An
assert is lifted if all but the answer's calls is made of literals, arithmetic, comparisons and a
few functions. All others run beside the answer.
"""

from __future__ import annotations

import ast
import builtins
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_OPERATORS: Final[dict[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    kind.__name__: kind
    for kind in (abs, all, any, bool, dict, divmod, float, frozenset, int, len, list, max, min)
} | {kind.__name__: kind for kind in (round, set, sorted, sum, tuple, math.isclose)}
_CONTAINERS: Final[dict[type[ast.AST], Callable[..., Any]]] = {
    ast.List: list,
    ast.Tuple: tuple,
    ast.Set: set,
}


@dataclass(frozen=True)
class Lifted:
    """An assert that is decided outside.

    Attributes:
        test: its expression; the answer's calls are the names "0", "1", …
        required: it is run whenever the tests run to their end.
    """

    test: ast.expr
    required: bool


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
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    if entry_point:
        answers = {entry_point, *_parameters(tree, entry_point)}
    else:
        stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)
                  and isinstance(node.ctx, ast.Store)}  # fmt: skip
        called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call)
                  and isinstance(node.func, ast.Name)}  # fmt: skip
        answers = {name for name in called - defined - stored - {*dir(builtins)}
                   if name not in preamble}  # fmt: skip
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
                test = _without_calls(statement.test, answers, calls, plain)
                if test is not None and calls:
                    arguments = [ast.Constant(len(lifted)), *calls]
                    name = ast.Name("__lifted__", ast.Load())
                    replacement = ast.Expr(ast.Call(name, arguments, []))
                    body[index] = ast.copy_location(replacement, statement)
                    lifted.append(Lifted(test, required))
            elif isinstance(statement, ast.FunctionDef):
                visit(statement.body, required and statement.name in called_above)
            elif isinstance(statement, (ast.For, ast.While, ast.If)):
                visit(statement.body, False)
                visit(statement.orelse, False)
            elif isinstance(statement, ast.With):
                visit(statement.body, False)

    visit(tree.body, True)
    return ast.unparse(ast.fix_missing_locations(tree)) if lifted else tests, lifted


def _parameters(tree: ast.Module, entry_point: str) -> set[str]:
    """Return the names under which functions of the tests are given the answer's function."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    names = set()
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        function = functions.get(node.func.id)
        for position, argument in enumerate(node.args):
            given = isinstance(argument, ast.Name) and argument.id == entry_point
            if given and function is not None and position < len(function.args.args):
                names.add(function.args.args[position].arg)
    return names


def _without_calls(
    node: ast.expr, answers: set[str], calls: list[ast.expr], plain: bool
) -> ast.expr | None:
    """Return an expression with the answer's calls as names; None where it holds other names.

    Args:
        node: the expression.
        answers: names of the answer's functions.
        calls: gets the calls, in the order in which Python carries them out.
        plain: see `lift`.
    """

    def part(child: ast.expr) -> ast.expr:
        result = _without_calls(child, answers, calls, plain)
        if result is None:
            raise LookupError
        return result

    try:
        if _is_answers(node, answers):
            if not plain and isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                return None  # an object of the answer's class
            calls.append(node)
            return ast.Name(str(len(calls) - 1), ast.Load())
        if isinstance(node, ast.Constant):
            return node
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return type(node)([part(item) for item in node.elts])
        if isinstance(node, ast.Dict) and None not in node.keys:
            pairs = [(part(k), part(v)) for k, v in zip(node.keys, node.values, strict=True) if k]
            return ast.Dict([k for k, _ in pairs], [v for _, v in pairs])
        if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
            return ast.UnaryOp(node.op, part(node.operand))
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return ast.BinOp(part(node.left), node.op, part(node.right))
        if isinstance(node, ast.Compare):
            identity = any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops)
            if identity and not isinstance(node.comparators[-1], ast.Constant):
                return None
            return ast.Compare(part(node.left), node.ops, [part(c) for c in node.comparators])
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            return ast.BoolOp(node.op, [part(value) for value in node.values])
        if isinstance(node, ast.Call) and _function_name(node.func) in _FUNCTIONS:
            named = [ast.keyword(k.arg, part(k.value)) for k in node.keywords if k.arg]
            if len(named) == len(node.keywords):
                function = ast.Name(_function_name(node.func), ast.Load())
                return ast.Call(function, [part(argument) for argument in node.args], named)
    except LookupError:
        return None
    return None


def _is_answers(node: ast.expr, answers: set[str]) -> bool:
    """Return whether an expression is a call of the answer's function, or is read off one."""
    while isinstance(node, (ast.Subscript, ast.Attribute, ast.Call)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return node.func.id in answers
        node = node.func if isinstance(node, ast.Call) else node.value
    return False


def _function_name(node: ast.expr) -> str:
    """Return the name of a function of `_FUNCTIONS`; "" for others."""
    if isinstance(node, ast.Name):
        return node.id if node.id != "isclose" else ""
    is_math = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    return "isclose" if is_math and ast.unparse(node) == "math.isclose" else ""


def holds(test: ast.expr, values: Sequence[Any]) -> bool:
    """Return whether a lifted assert holds, given what the answer's calls returned (plain data)."""
    try:
        return bool(_value(test, {str(i): value for i, value in enumerate(values)}))
    except (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError):
        return False


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Compute an expression of `_without_calls`."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return values[node.id]
        case ast.List() | ast.Tuple() | ast.Set():
            return _CONTAINERS[type(node)](_value(item, values) for item in node.elts)
        case ast.Dict():
            keys = [_value(key, values) for key in node.keys if key is not None]
            return dict(zip(keys, (_value(v, values) for v in node.values), strict=True))
        case ast.UnaryOp():
            return _OPERATORS[type(node.op)](_value(node.operand, values))
        case ast.BinOp():
            left, right = _value(node.left, values), _value(node.right, values)
            numbers = all(isinstance(side, (int, float, complex)) for side in (left, right))
            joined = isinstance(node.op, ast.Add) and type(left) is type(right)
            power = isinstance(node.op, ast.Pow)
            if not (numbers or joined) or (power and max(abs(left), abs(right)) > 1000):
                raise ValueError("no arithmetic that takes longer than reading the operands")
            return _OPERATORS[type(node.op)](left, right)
        case ast.Compare():
            left = _value(node.left, values)
            for comparison, comparator in zip(node.ops, node.comparators, strict=True):
                right = _value(comparator, values)
                if not _OPERATORS[type(comparison)](left, right):
                    return False
                left = right
            return True
        case ast.BoolOp():
            return all(_value(value, values) for value in node.values)
        case ast.Call():
            arguments = [_value(argument, values) for argument in node.args]
            named = {str(k.arg): _value(k.value, values) for k in node.keywords}
            assert isinstance(node.func, ast.Name)
            return _FUNCTIONS[node.func.id](*arguments, **named)
    raise TypeError(f"{type(node).__name__} is not lifted")
