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
import copy
import functools
import math
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import Any, Final, NamedTuple

from inframind_gym.tasks.sandbox.jail import MAX_BITS

_ARITHMETIC: Final[dict[str, Callable[..., Any]]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "Div": operator.truediv,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Pow": operator.pow,
}
_MOST_HASHED: Final = 10_000  # values with one hash take half a second to tell apart


def _hashed(values: Iterable[Any]) -> list[Any]:
    """Return values of a set or keys of a dict; a ValueError for many that could share a hash."""
    values = list(values)
    if len(values) > _MOST_HASHED:
        for value in values:  # a small integer is its own hash; texts have others in every process
            is_small = isinstance(value, int) and abs(value) < sys.hash_info.modulus
            if not (is_small or isinstance(value, str | bytes)):
                raise ValueError("a set of so many values")
    return values


def _dict(items: Any = (), **named: Any) -> dict[Any, Any]:
    pairs = list(items.items() if isinstance(items, dict) else items)
    _hashed(key for key, *_ in pairs)
    return dict(pairs, **named)


def _set(items: Iterable[Any] = ()) -> set[Any]:
    return set(_hashed(items))


def _frozenset(items: Iterable[Any] = ()) -> frozenset[Any]:
    return frozenset(_hashed(items))


_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    kind.__name__: kind
    for kind in (abs, all, any, bool, divmod, float, int, len, list, max, min, round, sorted, sum)
} | {
    "dict": _dict,
    "frozenset": _frozenset,
    "math.isclose": math.isclose,
    "set": _set,
    "tuple": tuple,
}
_DECIDED: Final = (
    ast.Constant,
    ast.List,
    ast.Tuple,
    ast.Set,
    ast.Load,
    ast.keyword,
    ast.UnaryOp,
    ast.Not,
    ast.USub,
    ast.UAdd,
    ast.BoolOp,
    ast.And,
    ast.Compare,
    ast.cmpop,
)


class Lifted(NamedTuple):
    """An assert that is decided outside."""

    test: CodeType  # in which the answer's calls are the names "_0", "_1", …
    required: bool  # run whenever the tests run to their end


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
    calls = _calls_by_name(tree)
    if entry_point:
        answers = {entry_point}
        for name, call in calls:  # parameters of the tests' functions that it is given to
            parameters = functions[name].args.args if name in functions else []
            for parameter, argument in zip(parameters, call.args, strict=False):
                if isinstance(argument, ast.Name) and argument.id == entry_point:
                    answers.add(parameter.arg)
    else:
        known = {*dir(builtins)}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                known.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                known.add(node.id)
        answers = {name for name, _ in calls if name not in known and name not in preamble}
    always = [*tree.body]
    for statement in tree.body:
        if isinstance(statement, ast.Expr):
            for name, _ in _calls_by_name(statement):
                always += functions[name].body if name in functions else []
    lifter = _Lifter(answers, plain, always)
    lifter.visit(tree)
    return ast.unparse(ast.fix_missing_locations(tree)) if lifter.lifted else tests, lifter.lifted


def _calls_by_name(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [(call.func.id, call) for call in calls if isinstance(call.func, ast.Name)]


class _Lifter(ast.NodeTransformer):
    """Replaces asserts by calls of ``__lifted__``."""

    def __init__(self, answers: set[str], plain: bool, always: list[ast.stmt]) -> None:
        self._answers, self._plain, self._always = answers, plain, always
        self.lifted: list[Lifted] = []

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visit what is below a node, unless asserts there may be meant to fail."""
        kinds = ast.Try, ast.TryStar, ast.ClassDef, ast.AsyncFunctionDef, ast.expr
        return node if isinstance(node, kinds) else super().generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        """Replace an assert, if it can be decided outside."""
        try:
            expression = _Expression(self._answers, self._plain)
            test = ast.Expression(expression.visit(copy.deepcopy(node.test)))
            code = compile(ast.fix_missing_locations(test), "<assert>", "eval")
        except (LookupError, SyntaxError, ValueError, RecursionError):
            return node
        if not expression.calls:
            return node
        arguments = [ast.Constant(len(self.lifted)), *expression.calls]
        self.lifted.append(Lifted(code, node in self._always))
        call = ast.Call(ast.Name("__lifted__", ast.Load()), arguments, [])
        return ast.copy_location(ast.Expr(call), node)


class _Expression(ast.NodeTransformer):
    """Puts names in the place of the answer's calls; LookupError: the rest is no plain data.

    The calls are collected in the order in which Python carries them out.
    """

    def __init__(self, answers: set[str], plain: bool) -> None:
        self._answers, self._plain = answers, plain
        self.calls: list[ast.expr] = []

    def visit(self, node: ast.AST | None) -> Any:
        """Return a node as it is decided outside; None, as ``**`` has for a key, is not."""
        if isinstance(node, ast.expr) and _is_answers(node, self._answers):
            if not self._plain and isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                raise LookupError("an object of the answer's class")
            self.calls.append(node)
            return ast.Name(f"_{len(self.calls) - 1}", ast.Load())
        if isinstance(node, ast.BinOp) and type(node.op).__name__ in _ARITHMETIC:
            operation = ast.Constant(type(node.op).__name__)
            sides = [self.visit(node.left), self.visit(node.right)]
            return ast.Call(ast.Name("_arithmetic", ast.Load()), [operation, *sides], [])
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            items = [(self.visit(key), self.visit(value)) for key, value in pairs]
            return ast.Dict([key for key, _ in items], [value for _, value in items])
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _FUNCTIONS:
            if any(named.arg is None for named in node.keywords):
                raise LookupError("a mapping as arguments")
            if ast.unparse(node.func) == "sum" and len(node.args) + len(node.keywords) > 1:
                raise LookupError("a sum of lists, which takes the square of their number")
            arguments = [self.visit(argument) for argument in node.args]
            return ast.Call(node.func, arguments, [self.visit(named) for named in node.keywords])
        if isinstance(node, ast.Compare) and {ast.Is, ast.IsNot} & {*map(type, node.ops)}:
            if ast.unparse(node.comparators[-1]) not in ("None", "True", "False"):
                raise LookupError("identity of what is no singleton")
        elif not isinstance(node, _DECIDED):
            raise LookupError(type(node).__name__)
        return self.generic_visit(node)


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
        return bool(eval(test, {**_FUNCTIONS, **names, **_OWN}))
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
_OWN: Final = {"_arithmetic": _arithmetic, "math": math, "__builtins__": {}}


# What the answer's calls returned, as `jail.encode` sends it


class Items(list):  # type: ignore[type-arg]
    """Items of an iterator or a view: it can be iterated over, and equals no list."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same object; without a "no", Python would ask the list."""
        return self is other

    def __ne__(self, other: object) -> bool:
        """Return whether they are two objects."""
        return self is not other


class Opaque:
    """An object of the locked process: it is true or false, and equals nothing."""

    def __init__(self, truth: Any) -> None:
        self._truth = truth is True

    def __bool__(self) -> bool:
        """Return its truth."""
        return self._truth


def decode(item: Any) -> Any:
    """Return the value of what `encode` made; of anything else an error of Python's."""
    if isinstance(item, list):
        return [decode(part) for part in item]
    if not isinstance(item, dict):
        return item
    ((name, content),) = item.items()
    if name == "int":
        if len(content) > MAX_BITS:
            raise ValueError("an integer has too many digits")
        return int(content, 16)
    if name == "float":
        return float.fromhex(content)
    if name == "complex":
        return complex(*content)
    if name == "bytes":
        return bytes.fromhex(content)
    if name == "object":
        return Opaque(content)
    values = decode(content)
    if name == "dict":
        return _dict(zip(values[::2], values[1::2], strict=True))
    if name == "items":
        return Items(values)
    if name not in ("tuple", "set", "frozenset"):
        raise ValueError("no type of plain data")
    return _FUNCTIONS[name](values)
