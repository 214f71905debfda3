"""Plain data as JSON: what an answer returned, on its way out of the locked process.

`encode` runs inside of the locked process, `decode` outside of it. Content of built-in types
travels, also that of subclasses, whose methods are not asked. Of any other object its truth alone
travels, and it equals nothing. JSON's own types stand for themselves but for objects, which hold
one name of a type and its content.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from typing import Any

MAX_DEPTH = 60
MAX_ITEMS = 1_000_000
MAX_BITS = 200_000  # of an integer: arithmetic with more could take minutes outside


class NotPlainError(Exception):
    """A value is too large to be sent."""


class Items(list):  # type: ignore[type-arg]
    """Items of an iterator or a view: it can be iterated over, and equals no list."""

    __hash__ = None
    __eq__ = object.__eq__
    __ne__ = object.__ne__


class Opaque:
    """An object of the locked process: it is true or false, and equals nothing."""

    def __init__(self, truth: Any) -> None:
        self._truth = truth is True

    def __bool__(self) -> bool:
        """Return its truth."""
        return self._truth


_SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset}
_SAMPLES: tuple[Any, ...] = ({}.keys(), {}.values(), {}.items(), (_ for _ in ()))
_SAMPLES += tuple(map(iter, ([], (), {}, "", range(0))))
_ITERABLE = (zip, map, filter, enumerate, reversed, range, *map(type, _SAMPLES))


def encode(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return a value as what `json` writes; NotPlainError: too deep, too many items or digits."""
    kind = type(value)
    bases = type.__dict__["__mro__"].__get__(kind)
    if value is None or kind is bool:
        return value
    if depth == 0:
        raise NotPlainError("it is nested too deeply")
    if int in bases:
        number = int.__pos__(value)
        if number.bit_length() > MAX_BITS:
            raise NotPlainError("an integer has too many digits")
        return {"int": hex(number)}
    if float in bases:
        return float.__pos__(value)
    if complex in bases:
        both = complex.__pos__(value)
        return {"complex": [both.real, both.imag]}
    if str in bases:
        return str.__getitem__(value, slice(None))
    if bytes in bases:
        return {"bytes": bytes.hex(value)}
    if list in bases:
        return _all(list.__iter__(value), depth)
    for name, base in _SEQUENCES.items():
        if base in bases:
            return {name: _all(base.__iter__(value), depth)}  # type: ignore[attr-defined]
    if dict in bases:
        pairs = [(key, dict.__getitem__(value, key)) for key in dict.__iter__(value)]
        return {"dict": _all((part for pair in pairs for part in pair), depth)}
    if kind in _ITERABLE:
        return {"items": _all(iter(value), depth)}
    if kind.__module__ == "numpy" and hasattr(kind, "item") and not getattr(value, "shape", 1):
        return encode(value.item(), depth - 1)
    return {"object": bool(value)}


def _all(values: Any, depth: int) -> list[Any]:
    items: list[Any] = []
    for value in values:
        items.append(encode(value, depth - 1))
        if len(items) > MAX_ITEMS:
            raise NotPlainError("it has too many items")
    return items


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
    if name == "complex":
        return complex(*content)
    if name == "bytes":
        return bytes.fromhex(content)
    if name == "object":
        return Opaque(content)
    values = decode(content)
    if name == "dict":
        return dict(zip(values[::2], values[1::2], strict=True))
    return {**_SEQUENCES, "items": Items}[name](values)
