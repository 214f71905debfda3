"""Objects of the other process: mirrors of them and of their classes, and the link between both.

An object that is no plain data stays where it was made. The other side gets a mirror of it: its
class has the object's name, mirrored bases, and the special methods that the object has. Each of
them, and each attribute, is a request across the link. An own subclass of an immutable type
(a namedtuple, an IntEnum) or of an exception is mirrored by one; its content is here, as plain
data.

On the side of the tests a mirror follows three rules (``guarded``), so that an object cannot pass
for the plain data that the tests expect:

* It is never handed plain data to compare itself with. It equals an object of the answer if that
  says so, and plain data only if its content does.
* What plain data can do (``len``, ``float``, ``startswith`` ...) it can do only if the task says so
  (``can``): an object whose ``float()`` is another at every use could meet tests of a number.
* Arithmetic with plain data gives objects that are no numbers: ``abs(f(1) - 2) < 1e-6`` would hand
  it the 2, and ask it for a 0.
"""

from __future__ import annotations

import sys

from . import wire

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

MODULES = ("answer", "tests")  # whose classes are mirrored with their bases
_COMPARING = "eq ne lt le gt ge contains"
_ARITHMETIC = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or"
_CONVERTING = (
    "len bool int float complex index abs neg pos invert round trunc floor ceil iter reversed "
    "getitem setitem delitem str repr format bytes"
)


def _dunder(words: str, *prefixes: str) -> frozenset[str]:
    return frozenset(f"__{p}{w}__" for w in words.split() for p in prefixes or ("",))


ARITHMETIC = _dunder(_ARITHMETIC, "", "r", "i")
BETWEEN = ARITHMETIC | _dunder(_COMPARING)
_FREE = _dunder("call next hash enter exit")  # nothing that plain data has
ATTRIBUTES = _dunder("getattr setattr delattr")
NUMBERS = _dunder("len bool int float complex index abs round trunc floor ceil")
SPECIAL = BETWEEN | _dunder(_CONVERTING) | _FREE
_READ = ("__dict__", "__doc__", "__name__", "__qualname__", "__annotations__")
# Types whose subclasses' objects have a content, and how to get it without their own methods.
_CONTENT: dict[type, Callable[[Any], Any]] = {
    int: int.__pos__,
    float: float.__pos__,
    complex: complex.__pos__,
    str: lambda v: str.__getitem__(v, slice(None)),
    bytes: lambda v: bytes.__getitem__(v, slice(None)),
    tuple: lambda v: tuple.__getitem__(v, slice(None)),
    frozenset: lambda v: frozenset([*frozenset.__iter__(v)]),
    list: lambda v: [*list.__iter__(v)],
    set: lambda v: {*set.__iter__(v)},
    dict: lambda v: {k: dict.__getitem__(v, k) for k in dict.__iter__(v)},
    BaseException: lambda v: v.args,
}
_MUTABLE = (list, set, dict)
PLAIN = frozenset(name for kind in _CONTENT for name in dir(kind)) - frozenset(dir(BaseException))


class AnswerError(Exception):
    """The other side raised what ends loops in silence, like StopIteration."""


class UnsupportedError(Exception):
    """The tests do what no answer can meet in this sandbox."""


class MirrorType(type):
    """Class of the mirrored classes: what is done to a class is done to the original."""

    _mirror_link: Link
    _mirror_number: int

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        """Have an object made on the other side."""
        return cls._mirror_link.ask(cls, "__call__", arguments, named)

    def __getattr__(cls, name: str) -> Any:
        """Return an attribute of the class, a member of an Enum for one."""
        return cls._mirror_link.attribute(cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        """Set an attribute of the class."""
        cls._mirror_link.ask(cls, "__setattr__", (name, value))

    def __iter__(cls) -> Any:
        """Iterate over the members of an Enum."""
        return cls._mirror_do("__iter__")

    def __len__(cls) -> Any:
        """Return the number of members of an Enum."""
        return cls._mirror_do("__len__")

    def __bool__(cls) -> bool:
        """Return True, as for any class."""
        return True

    def __getitem__(cls, key: Any) -> Any:
        """Return a member of an Enum by its name."""
        return cls._mirror_do("__getitem__", key)

    def _mirror_do(cls, name: str, *arguments: Any) -> Any:
        if not cls._mirror_link.can(name):
            raise TypeError(f"the task defines no {name} for the class {cls.__name__}")
        return cls._mirror_link.ask(cls, name, arguments)


class Mirror(metaclass=MirrorType):
    """An object of the other side."""

    _mirror_link: Link
    _mirror_number: int

    def __init_subclass__(cls) -> None:
        """Refuse a class that is no mirror: its methods would be here, its objects there."""
        if "_mirror_number" not in vars(cls):
            raise UnsupportedError(f"the tests derive the class {cls.__name__} from the answer's")

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the object."""
        return self._mirror_link.attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the object, but for what the interpreter keeps in exceptions."""
        if name.startswith("__"):
            object.__setattr__(self, name, value)
        else:
            self._mirror_link.ask(self, "__setattr__", (name, value))

    def __delattr__(self, name: str) -> None:
        """Delete an attribute of the object."""
        self._mirror_link.ask(self, "__delattr__", (name,))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be copied or pickled."""
        raise TypeError("objects of the answer cannot be copied")

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        """Attributes of the object."""
        return self._mirror_link.attribute(self, "__dict__")


def is_mirror(value: Any) -> bool:
    """Return whether a value is an object or a class of the other side."""
    return isinstance(type(value), MirrorType) or type(value) is MirrorType


def _forward(name: str) -> Callable[..., Any]:
    def method(self: Mirror, /, *arguments: Any, **named: Any) -> Any:
        return self._mirror_link.do(self, name, arguments, named)

    return method


def _between(name: str) -> Callable[..., Any]:
    """Return a special method whose other operand may be what the tests expect."""

    def method(self: Mirror, /, *others: Any) -> Any:
        link = self._mirror_link
        if not link.guarded or all(map(is_mirror, others)):
            return link.do(self, name, others)
        if name == "__contains__":
            return any(item is others[0] or item == others[0] for item in self)  # type: ignore[attr-defined]
        if isinstance(self, _Content):
            own = getattr(link.ask(self, "content"), name, None)
        else:
            own = getattr(super(Mirror, self), name, None)  # the built-in base's
        result = NotImplemented if own is None else own(*others)
        if result is NotImplemented and name in ARITHMETIC and link.can(name):
            result = link.do(self, name, others, derives=True)
            plain = not is_mirror(result) or isinstance(result, (*_CONTENT, _Content))
            if plain and result is not NotImplemented:
                raise TypeError(f"{name} of the answer's {type(self).__name__} gave no object")
        if result is NotImplemented and name in ("__eq__", "__ne__"):
            return name == "__ne__"
        return result

    return method


def _next(self: Mirror) -> Any:
    """Draw from an iterator; once it has ended, it has ended for good."""
    link = self._mirror_link
    try:
        if self._mirror_number not in link.ended:
            return link.ask(self, "__next__")
    except StopIteration:
        link.ended.add(self._mirror_number)
        raise
    raise StopIteration


def _exit(self: Mirror, *error: Any) -> None:
    """Leave a context; an error of the tests goes on, whatever the object makes of it."""
    self._mirror_link.ask(self, "__exit__", (*error[:2], None))


class _Content:
    """Mark of mirrors whose content can change, so that it stays on the other side."""


def mirror_class(
    link: Link, number: int, name: str, bases: Sequence[type], special: Sequence[str]
) -> type:
    """Return the mirror of a class.

    Args:
        link: to the class.
        number: of the class there.
        name: of the class.
        bases: mirrored ones, exceptions and immutable built-in types.
        special: special methods that its objects have.
    """
    for base in bases:
        if not (isinstance(base, MirrorType) or base in _CONTENT or _is_error(base)):
            raise wire.WireError("a class has a base that is none of the answer's")
    if len({base in _MUTABLE for base in bases if base in _CONTENT}) > 1:
        raise wire.WireError("a class has two contents")
    known = {wire.exactly(str, method) for method in special}
    error = any(issubclass(base, BaseException) for base in bases)
    body: dict[str, Any] = {"__module__": "answer", "_mirror_link": link, "_mirror_number": number}
    for method in SPECIAL & known:
        if method in BETWEEN:
            body[method] = _between(method)
        elif method in _FREE or link.can(method) or (error and method == "__str__"):
            body[method] = _forward(method)
    if "__next__" in body:
        body |= {"__next__": _next, "__iter__": lambda self: self}
    if "__exit__" in body and link.guarded:
        body["__exit__"] = _exit
    kept = [_Content if base in _MUTABLE else base for base in bases]
    first = () if any(isinstance(base, MirrorType) for base in kept) else (Mirror,)
    return MirrorType(wire.exactly(str, name), (*first, *kept), body)


class Link:
    """One end of the line between the tests and the answer; either end may ask the other.

    Attributes:
        guarded: the other side is the answer's (see the module).
        calls: requests made.
        ended: numbers of the iterators that have come to their end.
        derived: numbers of the objects that came out of arithmetic with plain data.
    """

    guarded = False

    def __init__(self, inward: int, outward: int) -> None:
        """Use two pipes."""
        self.calls = 0
        self.ended: set[int] = set()
        self.derived: set[int] = set()
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
        if name.startswith("__") and name.endswith("__") and name not in _READ:
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
        base = next((base for base in _CONTENT if issubclass(kind, base)), None)
        content = base and _CONTENT[base](value)
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
            if not _is_error(described[0]):
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
        mutable = isinstance(content, _MUTABLE)
        if mutable != issubclass(kind, _Content):
            raise wire.WireError("an object's content is not that of its class")
        if mutable and not self.can("__getitem__"):
            return content
        base: Any = next((b for b in kind.__mro__ if b in _CONTENT or _is_error(b)), object)
        if _is_error(base):
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
    if _is_error(value):
        return [(k.__module__, k.__name__) for k in value.__mro__ if _found(k)]
    builtin = value.__module__ == "builtins" and _found(value)
    return [("builtins", value.__name__)] if builtin else []


def _found(kind: type) -> bool:
    return getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind


def _is_error(kind: type) -> bool:
    return issubclass(kind, BaseException) and not isinstance(kind, MirrorType)


def _perform(value: Any, name: str, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
    """Do with an object what a mirror of it was asked for."""
    if name == "__getattr__":
        return getattr(value, *arguments)
    if name == "content":
        return next(get(value) for base, get in _CONTENT.items() if isinstance(value, base))
    return getattr(type(value), name)(value, *arguments, **named)


def _bases(kind: type) -> list[type]:
    """Return the classes that stand for the bases of a class on the other side."""
    kept: list[type] = []
    for base in kind.__mro__[1:]:
        wanted = base in _CONTENT or base.__module__ in MODULES or _is_error(base)
        if wanted and not any(issubclass(other, base) for other in kept):
            kept.append(base)
    return kept


def _special(kind: type) -> list[str]:
    """Return the special methods of a class's objects that are not those of a built-in base."""
    found = []
    for name in SPECIAL:
        definer = next((base for base in kind.__mro__ if name in vars(base)), object)
        built_in = definer is object or (definer in _CONTENT and definer not in _MUTABLE)
        library = _is_error(definer) and definer.__module__ not in MODULES
        if not built_in and not library and vars(definer)[name] is not None:
            found.append(name)
    return found


def _same(first: list[Any], second: list[Any]) -> bool:
    """Return whether two lists of contents are the same, the very objects but for bytes."""
    return len(first) == len(second) and all(
        a is b or (type(a) is bytes and a == b) for a, b in zip(first, second, strict=True)
    )
