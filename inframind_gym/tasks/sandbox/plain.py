"""Plain data as JSON: what an answer returned, on its way out of the locked process.

`encode` runs inside of the locked process, `decode` outside of it. Content of built-in types
travels, also that of subclasses, whose methods are not asked. Of any other object its truth alone
travels, and it equals nothing.
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

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same object."""
        return self is other

    def __ne__(self, other: object) -> bool:
        """Return whether they are two objects."""
        return self is not other


class Opaque:
    """An object of the locked process: it is true or false, and equals nothing."""

    def __init__(self, truth: bool) -> None:
        self._truth = truth

    def __bool__(self) -> bool:
        """Return its truth."""
        return self._truth


_ITERABLE: tuple[Any, ...] = (
    *(type({}.keys()), type({}.values()), type({}.items()), range, zip, map, filter, enumerate),
    *(
        reversed,
        type(iter([])),
        type(iter(())),
        type(iter({})),
        type(iter("")),
        type(iter(range(0))),
    ),
    type(_ for _ in ()),
)


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
        return ["i", hex(number)]
    if float in bases:
        return ["f", float.hex(value)]
    if complex in bases:
        return ["c", float.hex(complex.__pos__(value).real), float.hex(complex.__pos__(value).imag)]
    if str in bases:
        return ["s", str.__getitem__(value, slice(None))]
    if bytes in bases:
        return ["b", bytes.hex(value)]
    for letter, base in (("l", list), ("t", tuple), ("e", set), ("z", frozenset)):
        if base in bases:
            return [letter, *_all(base.__iter__(value), depth)]
    if dict in bases:
        keys = [*dict.__iter__(value)]
        pairs = [(key, dict.__getitem__(value, key)) for key in keys]
        return ["d", *_all((part for pair in pairs for part in pair), depth)]
    if kind in _ITERABLE:
        return ["x", *_all(iter(value), depth)]
    if kind.__module__ == "numpy" and hasattr(kind, "item") and not getattr(value, "shape", 1):
        return encode(value.item(), depth - 1)
    return ["o", bool(value)]


def _all(values: Any, depth: int) -> list[Any]:
    items: list[Any] = []
    for value in values:
        items.append(encode(value, depth - 1))
        if len(items) > MAX_ITEMS:
            raise NotPlainError("it has too many items")
    return items


def decode(item: Any) -> Any:
    """Return the value of what `encode` made; of anything else an error of Python's."""
    if item is None or isinstance(item, bool):
        return item
    letter, *rest = item
    if letter == "i":
        if len(rest[0]) > MAX_BITS:
            raise ValueError("an integer has too many digits")
        return int(rest[0], 16)
    if letter == "f":
        return float.fromhex(rest[0])
    if letter == "c":
        return complex(float.fromhex(rest[0]), float.fromhex(rest[1]))
    if letter == "s" and isinstance(rest[0], str):
        return rest[0]
    if letter == "o":
        return Opaque(rest[0] is True)
    if letter == "b":
        return bytes.fromhex(rest[0])
    values = [decode(part) for part in rest]
    kinds = {"l": list, "t": tuple, "e": set, "z": frozenset, "x": Items}
    if letter == "d":
        return dict(zip(values[::2], values[1::2], strict=True))
    return kinds[letter](values)
