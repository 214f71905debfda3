"""Values as bytes: how arguments and results travel between two processes.

What is decoded is plain data of exact built-in types, whatever the other side sends: nothing of a
value's own behaviour (`__eq__`, `__hash__`, `__len__` ...) crosses over, and no code is run. What
is not plain data stays where it is, and travels as a reference to it (``mirror.py``).

Containers that can be changed are numbered in the order in which they come by. Both sides know
them by their number, so that a reply can name the argument that it returns and the arguments that
it changed: copy-restore.
"""

from __future__ import annotations

import os
import struct
import sys

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Protocol

    class References(Protocol):
        """Objects that stay on one side; see ``link.Link``."""

        def describe(self, value: Any) -> Sequence[Any]:
            """Return the values that stand for an object, the kind of reference first."""

        def resolve(self, kind: str, *described: Any) -> Any:
            """Return the object, or its mirror, of what describe() has given."""


MAX_MESSAGE = 8 << 20  # bytes
MAX_DEPTH = 100  # of containers in containers


class WireError(Exception):
    """A value cannot travel, or what arrived is no value."""


class ClosedError(Exception):
    """The other side is gone."""


_CONSTANTS = {b"N": None, b"T": True, b"F": False, b"E": Ellipsis, b"X": NotImplemented}
_TAGS = {id(value): tag for tag, value in _CONSTANTS.items()}
# Built by name from plain arguments. Modules are asked for only if they are there already.
_BUILT: dict[str, tuple[str, Callable[[Any], Iterable[Any]]]] = {
    "range": ("builtins", lambda v: (v.start, v.stop, v.step)),
    "slice": ("builtins", lambda v: (v.start, v.stop, v.step)),
    "Decimal": ("decimal", lambda v: (str(v),)),
    "Fraction": ("fractions", lambda v: (v.numerator, v.denominator)),
    "timezone": ("datetime", lambda v: v.__getinitargs__()),
    "timedelta": ("datetime", lambda v: (v.days, v.seconds, v.microseconds)),
    "date": ("datetime", lambda v: (v.year, v.month, v.day)),
    "time": ("datetime", lambda v: (v.hour, v.minute, v.second, v.microsecond, v.tzinfo)),
    "datetime": (
        "datetime",
        lambda v: (v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.tzinfo),
    ),
}
_VIEWS: dict[str, Callable[[list[Any]], Any]] = {
    "dict_keys": lambda items: dict.fromkeys(items).keys(),
    "dict_values": lambda items: dict(enumerate(items)).values(),
    "dict_items": lambda items: dict(items).items(),
}
# Containers that can be changed, by name: module, what is needed to make an empty one.
_CONTAINERS: dict[str, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {
    "list": ("builtins", lambda v: ()),
    "dict": ("builtins", lambda v: ()),
    "set": ("builtins", lambda v: ()),
    "bytearray": ("builtins", lambda v: ()),
    "Counter": ("collections", lambda v: ()),
    "OrderedDict": ("collections", lambda v: ()),
    "deque": ("collections", lambda v: ((), v.maxlen)),
    "defaultdict": ("collections", lambda v: (v.default_factory,)),
    "ndarray": ("numpy", lambda v: (v.shape, _numpy_type(v.dtype.str))),
}


def is_container(value: Any) -> bool:
    """Return whether a value is a container that can be changed, of exactly a known type."""
    known = _CONTAINERS.get(type(value).__name__)
    return known is not None and type(value).__module__ == known[0]


def contents(container: Any) -> list[Any]:
    """Return what a container holds, as a list; a dict's keys and values alternate."""
    if isinstance(container, dict):
        return [x for pair in container.items() for x in pair]
    if isinstance(container, bytearray):
        return [bytes(container)]
    if hasattr(container, "tobytes"):
        return [container.tobytes()]
    return list(container)


def refill(container: Any, items: Sequence[Any]) -> None:
    """Give a container the contents that :func:`contents` has given."""
    if isinstance(container, dict):
        container.clear()
        for key, value in zip(items[::2], items[1::2], strict=True):
            container[key] = value
    elif isinstance(container, bytearray):
        container[:] = items[0]
    elif hasattr(container, "tobytes"):
        flat = sys.modules["numpy"].frombuffer(items[0], container.dtype)
        container[...] = flat.reshape(container.shape)
    else:
        container.clear()
        container.update(items) if isinstance(container, set) else container.extend(items)


class _Message:
    """One message, on either side.

    Attributes:
        containers: those that both sides know by their position, and then those of the message.
    """

    def __init__(
        self, references: References | None = None, containers: Sequence[Any] = ()
    ) -> None:
        self.containers = list(containers)
        self._references = references
        self._depth = 0


class Encoder(_Message):
    """Writer of one message."""

    def encode(self, value: Any) -> bytes:
        """Return a value as bytes.

        Raises:
            WireError: the value is too large, too deep, or no plain data where there are no
                references.
        """
        self._numbers = {id(c): i for i, c in enumerate(self.containers)}
        self._parts: list[bytes] = []
        self._size = 0
        self._write(value)
        return b"".join(self._parts)

    def _put(self, tag: bytes, body: bytes = b"", length: int | None = None) -> None:
        part = tag + struct.pack("<I", len(body) if length is None else length) + body
        self._size += len(part)
        if self._size > MAX_MESSAGE:
            raise WireError("the value is too large")
        self._parts.append(part)

    def _write(self, value: Any) -> None:
        kind = type(value)
        if id(value) in _TAGS:
            self._put(_TAGS[id(value)])
        elif kind is int:
            length = value.bit_length() // 8 + 1
            self._put(b"i", value.to_bytes(length, "little", signed=True))
        elif kind is float:
            self._put(b"f", struct.pack("<d", value))
        elif kind is complex:
            self._put(b"c", struct.pack("<dd", value.real, value.imag))
        elif kind is str:
            self._put(b"u", value.encode("utf-8", "surrogatepass"))
        elif kind is bytes or kind is memoryview:
            self._put(b"b", bytes(value))
        elif kind is tuple or kind is frozenset:
            self._write_all(b"t" if kind is tuple else b"z", value)
        elif is_container(value):
            self._write_container(value)
        else:
            self._write_other(value, kind.__name__, kind.__module__)

    def _write_all(self, tag: bytes, items: Any) -> None:
        self._put(tag, length=len(items))
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise WireError("the value is nested too deeply")
        for item in items:
            self._write(item)
        self._depth -= 1

    def _write_container(self, value: Any) -> None:
        number = self._numbers.get(id(value))
        if number is not None:
            self._put(b"=", struct.pack("<I", number))
            return
        name = type(value).__name__
        self._numbers[id(value)] = len(self.containers)
        self.containers.append(value)
        if name == "list":
            self._write_all(b"l", value)
        else:
            self._write_all(b"m", [name, *_CONTAINERS[name][1](value)])
            self._write_all(b"t", contents(value))

    def _write_other(self, value: Any, name: str, module: str) -> None:
        if name in _BUILT and module == _BUILT[name][0]:
            self._write_all(b"o", [name, *_BUILT[name][1](value)])
        elif name in _VIEWS and module == "builtins":
            self._write_all(b"o", [name, *value])
        elif module == "numpy" and hasattr(value, "dtype") and hasattr(value, "tobytes"):
            self._write_all(b"o", ["numpy", _numpy_type(value.dtype.str), value.tobytes()])
        elif self._references is None:
            raise WireError(f"a value of the type {name} is no plain data")
        else:
            self._write_all(b"h", self._references.describe(value))


class Decoder(_Message):
    """Reader of one message, which may be anything."""

    def decode(self, data: bytes) -> Any:
        """Return the value of :meth:`Encoder.encode`'s bytes.

        Raises:
            WireError: the bytes are no value.
        """
        self._data, self._at = data, 0
        try:
            value = self._read()
        except WireError:
            raise
        except Exception as error:  # an unhashable key, a broken text, a number out of range ...
            raise WireError(f"what arrived is no value ({type(error).__name__})") from None
        if self._at != len(data):
            raise WireError("something follows the value")
        return value

    def _read(self) -> Any:
        at = self._at
        if self._depth > MAX_DEPTH + 1 or at + 5 > len(self._data):
            raise WireError("what arrived is too deep or cut off")
        tag = self._data[at : at + 1]
        (length,) = struct.unpack_from("<I", self._data, at + 1)
        self._at = at + 5
        if tag == b"l":
            made: list[Any] = []
            self.containers.append(made)
            made.extend(self._read_all(length))
            return made
        if tag == b"m":
            empty = _container(*self._read_all(length))
            self.containers.append(empty)
            refill(empty, self._read())
            return empty
        if tag == b"t":
            return tuple(self._read_all(length))
        if tag == b"z":
            return frozenset(self._read_all(length))
        if tag == b"o":
            return _build(*self._read_all(length))
        if tag == b"h" and self._references is not None:
            return self._references.resolve(*self._read_all(length))
        body = self._data[self._at : self._at + length]
        self._at += length
        if len(body) != length:
            raise WireError("what arrived is cut off")
        if tag == b"=":
            return self.containers[struct.unpack("<I", body)[0]]
        return _scalar(tag, body)

    def _read_all(self, length: int) -> list[Any]:
        if length > len(self._data):
            raise WireError("what arrived is cut off")
        self._depth += 1
        items = [self._read() for _ in range(length)]
        self._depth -= 1
        return items


def exactly(kind: type, value: Any) -> Any:
    """Return a value whose type is `kind`; WireError if it is another's mirror, or anything else.

    What arrives as a name or a number is used twice, to look and to take: a mirror could be
    something else at each use.
    """
    if type(value) is not kind:
        raise WireError(f"what arrived is no {kind.__name__}")
    return value


def encode(value: Any) -> bytes:
    """Return plain data as bytes; WireError if it is too large, too deep, or no plain data."""
    return Encoder().encode(value)


def decode(data: bytes) -> Any:
    """Return the plain data of :func:`encode`'s bytes; WireError if they are none."""
    return Decoder().decode(data)


def _scalar(tag: bytes, body: bytes) -> Any:
    if tag in _CONSTANTS:
        return _CONSTANTS[tag]
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
    raise WireError(f"what arrived has the unknown mark {tag!r}")


def _build(name: str, *arguments: Any) -> Any:
    """Return an object that cannot be changed from its name and plain arguments."""
    if exactly(str, name) in _VIEWS:
        return _VIEWS[name](list(arguments))
    if name == "numpy":
        kind, data = arguments
        return sys.modules["numpy"].frombuffer(data, _numpy_type(kind))[0]
    return getattr(module(_BUILT[name][0]), name)(*arguments)


def _container(name: str, *arguments: Any) -> Any:
    """Return an empty container."""
    if exactly(str, name) == "ndarray":
        shape, kind = arguments
        return sys.modules["numpy"].empty(shape, _numpy_type(kind))
    return getattr(module(_CONTAINERS[name][0]), name)(*arguments)


def _numpy_type(text: str) -> str:
    """Return the type of an array's elements; no objects, no structures."""
    import re  # takes longer than all else here

    if not re.fullmatch(r"[<>|=][biufcSUmM]\d{1,4}(\[\w{1,4}\])?", exactly(str, text)):
        raise WireError("arrays travel if they hold numbers, texts or times")
    return text


def module(name: str) -> Any:
    """Return a module, without looking for one that is there already."""
    return sys.modules[name] if name in sys.modules else __import__(name)


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
