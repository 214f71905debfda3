"""Asserts of a task's tests that are decided outside of the locked process.

In ``assert abs(f([1, 2]) - 1.5) < 1e-6`` the locked process needs to know ``f([1, 2])`` alone.
`lift` replaces such an assert by a call that sends out what the answer returned; `Reader` decides
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
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
_HASHING_S: Final = 1.0  # of a judgement, for its sets and dicts; a million numbers take half
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    kind.__name__: kind
    for kind in (abs, all, any, bool, dict, divmod, float, frozenset, int, len, list, max, min)
} | {kind.__name__: kind for kind in (round, set, sorted, sum, tuple)}
_FUNCTIONS["math.isclose"] = math.isclose
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
            if ast.unparse(node.func) == "sum":
                for start in [*node.args[1:], *(named.value for named in node.keywords)]:
                    number = start.operand if isinstance(start, ast.UnaryOp) else start
                    if not isinstance(getattr(number, "value", None), int | float):
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


# Values that stand for objects of the locked process


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


class Reader:
    """Reads what the answer's calls returned, and decides the asserts; one a judgement.

    Values of sets and keys of dicts that share a hash, or have hashes that are made for it, are
    compared with all the others. There is a second of processor time for that, then a ValueError.
    """

    def __init__(self) -> None:
        self._left_s = _HASHING_S
        own = {"dict": self._dict, "frozenset": self._frozenset, "set": self._set}
        self._names: dict[str, Any] = {**_FUNCTIONS, **own, **_OWN}

    def read(self, item: dict[str, Any]) -> Any:
        """Return the value of an object of JSON that `jail.encode` made, its content read already.

        Of anything else an error of Python's.
        """
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
        if name == "dict":
            return self._dict(zip(content[::2], content[1::2], strict=True))
        if name == "items":
            return Items(content)
        if name not in ("tuple", "set", "frozenset"):
            raise ValueError("no type of plain data")
        return self._names[name](content)

    def holds(self, test: CodeType, values: Sequence[Any]) -> bool:
        """Return whether a lifted assert holds, given what the answer's calls returned."""
        names = {f"_{i}": value for i, value in enumerate(values[: len(test.co_names)])}
        try:
            return bool(eval(test, {**self._names, **names}))
        except (*_FAILURES, RecursionError):
            return False

    def _dict(self, items: Any = (), /, **named: Any) -> dict[Any, Any]:
        return dict(self._timed(items.items() if isinstance(items, dict) else items), **named)

    def _frozenset(self, items: Iterable[Any] = (), /) -> frozenset[Any]:
        return frozenset(self._timed(items))

    def _set(self, items: Iterable[Any] = (), /) -> set[Any]:
        return set(self._timed(items))

    def _timed(self, values: Iterable[Any]) -> Iterator[Any]:
        """Yield values for a set or dict, each put in before the next; a ValueError after time."""
        started = time.thread_time()
        for value in values:
            yield value
            if time.thread_time() - started > self._left_s:
                raise ValueError("a set or dict that takes too long to make")
        self._left_s -= time.thread_time() - started
