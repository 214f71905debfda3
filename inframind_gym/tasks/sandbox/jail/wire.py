"""Plain values as bytes: how arguments and results travel between two processes.

What is decoded is plain data of exact built-in types, whatever the other side sends: nothing of a
value's own behaviour (`__eq__`, `__hash__`, `__len__` ...) crosses over, and no code is run. What
is not plain data travels as a handle: a number that stands for an object that stays where it is.
"""

from __future__ import annotations

import os
import struct
import sys

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Handle = Callable[[Any], int]

MAX_MESSAGE = 8 << 20  # bytes
MAX_DEPTH = 100  # of containers in containers
MAX_DRAWN = 1 << 20  # how much is drawn from an iterator


class WireError(Exception):
    """A value cannot travel, or what arrived is no value."""


class ClosedError(Exception):
    """The other side is gone."""


_SEQUENCES: dict[bytes, Callable[[list[Any]], Any]] = {
    b"l": list,
    b"t": tuple,
    b"s": set,
    b"z": frozenset,
    b"g": iter,
}
# Built by name from plain arguments; modules are asked for only if they are there already.
_BUILT: dict[str, tuple[str, ...]] = {
    "Fraction": ("fractions", "numerator", "denominator"),
    "datetime": ("datetime", "year", "month", "day", "hour", "minute", "second", "microsecond"),
    "date": ("datetime", "year", "month", "day"),
    "time": ("datetime", "hour", "minute", "second", "microsecond"),
    "timedelta": ("datetime", "days", "seconds", "microseconds"),
}


def encode(value: Any, handle: Handle | None = None) -> bytes:
    """Return a value as bytes.

    Subclasses of built-in types travel as these: a Counter as a dict, a namedtuple as a tuple.
    Iterators are drawn.

    Args:
        value: what is sent.
        handle: gives an object that is no plain data a number; None: such an object is an error.

    Raises:
        WireError: the value is too large, too deep, or no plain data.
    """
    parts: list[bytes] = []
    size = _encode(value, parts, handle, 0)
    if size > MAX_MESSAGE:
        raise WireError("the value is too large")
    return b"".join(parts)


def _put(parts: list[bytes], tag: bytes, body: bytes = b"") -> int:
    part = tag + struct.pack("<I", len(body)) + body
    parts.append(part)
    return len(part)


def _encode(value: Any, parts: list[bytes], handle: Handle | None, depth: int) -> int:
    if depth > MAX_DEPTH:
        raise WireError("the value is nested too deeply")
    if value is None:
        return _put(parts, b"N")
    if value is True or value is False:
        return _put(parts, b"T" if value else b"F")
    if isinstance(value, int):
        number = int(value)
        return _put(
            parts, b"i", number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
        )
    if isinstance(value, float):
        return _put(parts, b"f", struct.pack("<d", value))
    if isinstance(value, complex):
        return _put(parts, b"c", struct.pack("<dd", value.real, value.imag))
    if isinstance(value, str):
        return _put(parts, b"u", value.encode("utf-8", "surrogatepass"))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _put(parts, b"a" if isinstance(value, bytearray) else b"b", bytes(value))
    if isinstance(value, dict):
        return _encode_all(b"d", [x for pair in value.items() for x in pair], parts, handle, depth)
    if isinstance(value, range):
        return _encode_all(b"r", [value.start, value.stop, value.step], parts, handle, depth)
    for tag, kind in ((b"l", list), (b"t", tuple), (b"s", set), (b"z", frozenset)):
        if isinstance(value, kind):
            return _encode_all(tag, list(value), parts, handle, depth)
    if isinstance(value, type({}.keys())):
        return _encode_all(b"s", list(value), parts, handle, depth)
    name = type(value).__name__
    if name == "Decimal" and type(value).__module__ == "decimal":
        return _encode_all(b"o", ["Decimal", str(value)], parts, handle, depth)
    if name in _BUILT and type(value).__module__ == _BUILT[name][0]:
        fields = [name, *(getattr(value, field) for field in _BUILT[name][1:])]
        return _encode_all(b"o", fields, parts, handle, depth)
    if hasattr(type(value), "__next__") or isinstance(value, type({}.values())):
        drawn = []
        for item in value:
            drawn.append(item)
            if len(drawn) > MAX_DRAWN:
                raise WireError("the iterator does not end")
        return _encode_all(b"g", drawn, parts, handle, depth)
    if handle is None:
        raise WireError(f"a value of the type {name} is no plain data")
    return _put(parts, b"h", struct.pack("<I", handle(value)))


def _encode_all(
    tag: bytes, items: list[Any], parts: list[bytes], handle: Handle | None, depth: int
) -> int:
    """Append a container; returns its size."""
    parts.append(tag + struct.pack("<I", len(items)))
    size = 5
    for item in items:
        size += _encode(item, parts, handle, depth + 1)
        if size > MAX_MESSAGE:
            raise WireError("the value is too large")
    return size


def pack(tag: bytes, encoded: list[bytes]) -> bytes:
    """Return a tuple (b"t") or list (b"l") of values that are encoded already."""
    return tag + struct.pack("<I", len(encoded)) + b"".join(encoded)


def decode(data: bytes, resolve: Callable[[int], Any] | None = None) -> Any:
    """Return the value of :func:`encode`'s bytes.

    Args:
        data: what arrived; may be anything.
        resolve: gives the object that a handle stands for; None: a handle is an error.

    Raises:
        WireError: the bytes are no value.
    """
    try:
        value, end = _decode(data, 0, resolve, 0)
    except WireError:
        raise
    except Exception as error:  # an unhashable key, a broken text, a number out of range ...
        raise WireError(f"what arrived is no value ({type(error).__name__})") from None
    if end != len(data):
        raise WireError("something follows the value")
    return value


def _decode(
    data: bytes, at: int, resolve: Callable[[int], Any] | None, depth: int
) -> tuple[Any, int]:
    if depth > MAX_DEPTH + 1 or at + 5 > len(data):
        raise WireError("what arrived is too deep or cut off")
    tag = data[at : at + 1]
    (length,) = struct.unpack_from("<I", data, at + 1)
    at += 5
    if tag in b"ltszgdro":
        if length > len(data):
            raise WireError("what arrived is cut off")
        items = []
        for _ in range(length):
            item, at = _decode(data, at, resolve, depth + 1)
            items.append(item)
        if tag == b"d":
            return dict(zip(items[::2], items[1::2], strict=True)), at
        if tag == b"r":
            return range(*items), at
        if tag == b"o":
            return _build(*items), at
        return _SEQUENCES[tag](items), at
    body = data[at : at + length]
    if len(body) != length:
        raise WireError("what arrived is cut off")
    return _scalar(tag, body, resolve), at + length


def _scalar(tag: bytes, body: bytes, resolve: Callable[[int], Any] | None) -> Any:
    if tag == b"N":
        return None
    if tag in (b"T", b"F"):
        return tag == b"T"
    if tag == b"i":
        return int.from_bytes(body, "little", signed=True)
    if tag == b"f":
        return struct.unpack("<d", body)[0]
    if tag == b"c":
        return complex(*struct.unpack("<dd", body))
    if tag == b"u":
        return body.decode("utf-8", "surrogatepass")
    if tag == b"b":
        return body
    if tag == b"a":
        return bytearray(body)
    if tag == b"h" and resolve is not None:
        return resolve(struct.unpack("<I", body)[0])
    raise WireError(f"what arrived has the unknown mark {tag!r}")


def _build(name: str, *arguments: Any) -> Any:
    """Return an object of the standard library from its name and plain arguments."""
    module = "decimal" if name == "Decimal" else _BUILT[name][0]
    if module not in sys.modules:
        __import__(module)
    return getattr(sys.modules[module], name)(*arguments)


def send(fd: int, data: bytes) -> None:
    """Write one message; ClosedError if nobody reads."""
    view = memoryview(struct.pack("<I", len(data)) + data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        raise ClosedError from None


def receive(fd: int, limit: int = 2 * MAX_MESSAGE) -> bytes:
    """Read one message; ClosedError at the end, WireError if it is longer than `limit`."""
    (length,) = struct.unpack("<I", _read(fd, 4))
    if length > limit:
        raise WireError("the message is too large")
    return _read(fd, length)


def _read(fd: int, length: int) -> bytes:
    parts = []
    while length:
        try:
            part = os.read(fd, min(length, 1 << 20))
        except OSError:
            raise ClosedError from None
        if not part:
            raise ClosedError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
