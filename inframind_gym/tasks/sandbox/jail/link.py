"""The link between the tests and the answer: requests, replies, and references to objects.

An object has a number on its own side. A request names the object by it, a special method and the
arguments; meanwhile the other side may make requests of its own, as a callback does.
"""

from __future__ import annotations

import sys

from . import wire
from .mirror import (
    ATTRIBUTES,
    CONTENT,
    MUTABLE,
    NUMBERS,
    PLAIN,
    READ,
    SPECIAL,
    AnswerError,
    Changeable,
    is_error,
    is_mirror,
    mirror_class,
)

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .mirror import Mirror

MODULES = ("answer", "tests")  # whose classes are mirrored with their bases


class Link:
    """One end of the line between the tests and the answer; either end may ask the other.

    Attributes:
        guarded: the other side is the answer's (see the module).
        calls: requests made.
        ended: numbers of the iterators that have come to their end.
        derived: numbers of the objects that came out of arithmetic with plain data.
        members: of the Enums that were looked into, by number and name.
    """

    guarded = False

    def __init__(self, inward: int, outward: int) -> None:
        """Use two pipes."""
        self.calls = 0
        self.ended: set[int] = set()
        self.derived: set[int] = set()
        self.members: dict[int, dict[str, Any]] = {}
        self._inward, self._outward = inward, outward
        self._own: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._described: set[int] = set()
        self._mirrors: dict[int, Any] = {}

    # What a side decides for itself.

    def can(self, name: str) -> bool:
        """Return whether mirrors can do what plain data can do."""
        return True

    def may(self, value: Any, name: str, arguments: Sequence[Any]) -> bool:
        """Return whether the other side may do something with an object of this one."""
        return True

    def named(self, places: Sequence[tuple[str, str]]) -> Any:
        """Return the first of several things that can be had by module and name."""
        module, name = places[0]
        return getattr(wire.module(module), name)

    def broken(self, why: str) -> BaseException:
        """Return what is raised when the other side has gone or sends nonsense."""
        return EOFError(why)

    # Asking, and answering.

    def attribute(self, value: Any, name: str) -> Any:
        """Return an attribute of a mirrored object."""
        if name.startswith("__") and name.endswith("__") and name not in READ:
            raise AttributeError(f"{name} of the answer's objects is not to be had")
        found = self.ask(value, "__getattr__", (name,))
        if self.guarded and name in PLAIN and callable(found) and not self.can(name):
            raise AttributeError(f"the task defines no {name}")
        return found

    def do(
        self,
        mirror: Mirror,
        name: str,
        arguments: Sequence[Any] = (),
        named: dict[str, Any] | None = None,
        *,
        derives: bool = False,
    ) -> Any:
        """Have a special method called, like :meth:`ask`; keep count of what is derived.

        Raises:
            TypeError: a number is asked of an object that is.
        """
        derives = self.guarded and (derives or mirror._mirror_number in self.derived)
        if derives and name in NUMBERS:
            raise TypeError(f"{name}: arithmetic of objects with plain data gives no number")
        result = self.ask(mirror, name, arguments, named)
        if derives and is_mirror(result):
            self.derived.add(result._mirror_number)
        return result

    def ask(
        self,
        value: Any,
        name: str,
        arguments: Sequence[Any] = (),
        named: dict[str, Any] | None = None,
    ) -> Any:
        """Have a special method of a mirrored object called; raises what it raises.

        The containers among the arguments have afterwards the contents that the call gave them.
        """
        self.calls += 1
        encoder = wire.Encoder(self)
        try:
            request = encoder.encode((value._mirror_number, name, tuple(arguments), named or {}))
        except wire.WireError as error:
            raise self.broken(f"an argument cannot be handed over: {error}") from None
        sent = encoder.containers
        try:
            wire.send(self._outward, b"?" + request)
            while (message := wire.receive(self._inward))[:1] == b"?":
                self.answer(message[1:])
            result, changes = wire.Decoder(self, sent).decode(message[1:])
            for position, items in changes:
                wire.refill(sent[position], items)
        except wire.ClosedError:
            raise self.broken("the answer's process ended") from None
        except Exception as error:
            raise self.broken(f"the answer's result is unusable: {error}") from None
        if message[:1] == b"=":
            return result
        if not isinstance(result, BaseException):
            raise self.broken("the answer's process broke the protocol")
        silent = isinstance(result, (StopIteration, StopAsyncIteration, GeneratorExit))
        if silent and not (name == "__next__" and isinstance(result, StopIteration)):
            raise AnswerError(f"{type(result).__name__}: {result}") from None
        raise result

    def answer(self, request: bytes) -> None:
        """Do what the other side asks for, and send the result."""
        decoder = wire.Decoder(self)
        number, name, arguments, named = decoder.decode(request)
        for kind, part in ((int, number), (str, name), (tuple, arguments), (dict, named)):
            wire.exactly(kind, part)
        containers = decoder.containers
        before = [wire.contents(container) for container in containers]
        mark = b"="
        try:
            value = self._own[number]
            if name in ATTRIBUTES:
                wire.exactly(str, arguments[0])
            if not self.may(value, name, arguments):
                refusal = AttributeError if name == "__getattr__" else TypeError
                raise refusal(f"{name} of an object of the tests is not to be had")
            result = _perform(value, name, arguments, named)
        except BaseException as error:
            if self.is_end(error):
                raise
            mark, result = b"!", error
        changes = [
            (position, tuple(after))
            for position, (container, items) in enumerate(zip(containers, before, strict=True))
            if not _same(items, after := wire.contents(container))
        ]
        try:
            reply = wire.Encoder(self, containers).encode((result, changes))
        except wire.WireError as error:
            mark, reply = b"!", wire.Encoder(self).encode((TypeError(str(error)), []))
        wire.send(self._outward, mark + reply)

    def is_end(self, error: BaseException) -> bool:
        """Return whether an exception ends this side, so that the other never gets it."""
        return isinstance(error, wire.ClosedError)

    # References, for the wire.

    def describe(self, value: Any) -> Sequence[Any]:
        """Return what stands for an object: ("yours" | "named" | "class" | "error" | "object")."""
        if is_mirror(value):
            return ("yours", value._mirror_number)
        places = _places(value)
        if places:
            return ("named", *places)
        if isinstance(value, type):
            return self._describe_class(value)
        if isinstance(value, BaseException) and _places(type(value)):
            return ("error", type(value), value.args)
        kind = type(value)
        base = next((base for base in CONTENT if issubclass(kind, base)), None)
        content = base and CONTENT[base](value)
        return ("object", self._number(value), self._describe_class(kind), content)

    def _describe_class(self, kind: type) -> tuple[Any, ...]:
        number = self._number(kind)
        if number in self._described:
            return ("class", number)
        self._described.add(number)
        return ("class", number, kind.__name__, tuple(_bases(kind)), tuple(_special(kind)))

    def resolve(self, kind: str, *described: Any) -> Any:
        """Return the object or the mirror that a description stands for."""
        if wire.exactly(str, kind) == "yours":
            return self._own[wire.exactly(int, described[0])]
        if kind == "named":
            return self.named([(wire.exactly(str, m), wire.exactly(str, n)) for m, n in described])
        if kind == "error":
            if not is_error(described[0]):
                raise wire.WireError("what is raised is no exception")
            return described[0].__new__(described[0], *described[1])
        number = wire.exactly(int, described[0])
        if number not in self._mirrors:
            if kind == "class":
                made = mirror_class(self, *described)
            else:
                made = self._mirror(*described)
                if not is_mirror(made):
                    return made  # plain data
            self._mirrors[number] = made
        return self._mirrors[number]

    def _mirror(self, number: int, described: Sequence[Any], content: Any) -> Any:
        """Return the mirror of an object, or plain data where only that will do."""
        kind: Any = self.resolve(*described)
        if not (isinstance(kind, type) and is_mirror(kind)):
            raise wire.WireError("an object has no class")
        mutable = isinstance(content, MUTABLE)
        if mutable != issubclass(kind, Changeable):
            raise wire.WireError("an object's content is not that of its class")
        if mutable and not (self.can("__getitem__") or self.can(kind.__name__)):
            return content  # the task names no such class
        base: Any = next((b for b in kind.__mro__ if b in CONTENT or is_error(b)), object)
        if is_error(base):
            made = base.__new__(kind, *content)
        else:
            made = base.__new__(kind) if base is object else base.__new__(kind, content)
        object.__setattr__(made, "_mirror_number", number)
        return made

    def _number(self, value: Any) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._own)
            self._own[len(self._own)] = value
        return self._numbers[id(value)]


def _places(value: Any) -> list[tuple[str, str]]:
    """Return where the other side finds a built-in type, or an exception or a base of it."""
    if not isinstance(value, type) or value.__module__ in MODULES:
        return []
    if is_error(value):
        return [(k.__module__, k.__name__) for k in value.__mro__ if _found(k)]
    builtin = value.__module__ == "builtins" and _found(value)
    return [("builtins", value.__name__)] if builtin else []


def _found(kind: type) -> bool:
    return getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind


def _perform(value: Any, name: str, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
    """Do with an object what a mirror of it was asked for."""
    if name == "__getattr__":
        return getattr(value, *arguments)
    if name == "content":
        return next(get(value) for base, get in CONTENT.items() if isinstance(value, base))
    return getattr(type(value), name)(value, *arguments, **named)


def _bases(kind: type) -> list[type]:
    """Return the classes that stand for the bases of a class on the other side."""
    kept: list[type] = []
    for base in kind.__mro__[1:]:
        wanted = base in CONTENT or base.__module__ in MODULES or is_error(base)
        if wanted and not any(issubclass(other, base) for other in kept):
            kept.append(base)
    return kept


def _special(kind: type) -> list[str]:
    """Return the special methods of a class's objects that are not those of a built-in base."""
    found = []
    for name in SPECIAL:
        definer = next((base for base in kind.__mro__ if name in vars(base)), object)
        built_in = definer is object or (definer in CONTENT and definer not in MUTABLE)
        library = is_error(definer) and definer.__module__ not in MODULES
        if not built_in and not library and vars(definer)[name] is not None:
            found.append(name)
    return found


def _same(first: list[Any], second: list[Any]) -> bool:
    """Return whether two lists of contents are the same, the very objects but for bytes."""
    return len(first) == len(second) and all(
        a is b or (type(a) is bytes and a == b) for a, b in zip(first, second, strict=True)
    )
