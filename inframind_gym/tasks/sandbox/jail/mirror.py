"""Objects of the other process: mirrors of them and of their classes.

An object that is no plain data stays where it was made. The other side gets a mirror of it: its
class has the object's name, mirrored bases, and the special methods that the object has. Each of
them, and each attribute, is a request across the link. An own subclass of an immutable type
(a namedtuple, an IntEnum) or of an exception is mirrored by one; its content is here, as plain
data.

On the side of the tests a mirror follows four rules (``guarded``), so that an object cannot pass
for the plain data that the tests expect:

* It is never handed plain data to compare itself with. It equals an object of the answer if that
  says so, and plain data only if its content does.
* What plain data can do (``len``, ``float``, ``startswith`` ...) it can do only if the task says so
  (``can``): an object whose ``float()`` is another at every use could meet tests of a number.
* An Enum holds the members, objects of its own, that it held the first time.
* Arithmetic with plain data gives objects that are no numbers: ``abs(f(1) - 2) < 1e-6`` would hand
  it the 2, and ask it for a 0.
"""

from __future__ import annotations

from . import wire

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .link import Link

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
READ = ("__dict__", "__doc__", "__name__", "__qualname__", "__annotations__")
# Types whose subclasses' objects have a content, and how to get it without their own methods.
CONTENT: dict[type, Callable[[Any], Any]] = {
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
MUTABLE = (list, set, dict)
PLAIN = frozenset(name for kind in CONTENT for name in dir(kind)) - frozenset(dir(BaseException))


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
        link, number = cls._mirror_link, cls._mirror_number
        if link.can(name):
            return link.ask(cls, name, arguments)
        if number not in link.members:
            try:
                found = [*link.ask(cls, "__iter__")]
            except AttributeError:  # it is no Enum
                found = [None]
            if not all(isinstance(member, cls) for member in found):
                raise TypeError(f"the task defines no {name} for the class {cls.__name__}")
            link.members[number] = {member.name: member for member in found}
        members = link.members[number]
        return getattr(members.values() if name == "__iter__" else members, name)(*arguments)


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


class _Read:
    """Attribute that every class has, but which is read from the original."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, mirror: Mirror | None, kind: MirrorType) -> Any:
        original: Any = kind if mirror is None else mirror
        return original._mirror_link.attribute(original, self._name)


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
        if isinstance(self, Changeable):
            own = getattr(link.ask(self, "content"), name, None)
        else:
            own = getattr(super(Mirror, self), name, None)  # the built-in base's
        result = NotImplemented if own is None else own(*others)
        if result is NotImplemented and name in ARITHMETIC and link.can(name):
            result = link.do(self, name, others, derives=True)
            plain = not is_mirror(result) or isinstance(result, (*CONTENT, Changeable))
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


class Changeable:
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
        if not (isinstance(base, MirrorType) or base in CONTENT or is_error(base)):
            raise wire.WireError("a class has a base that is none of the answer's")
    if len({base in MUTABLE for base in bases if base in CONTENT}) > 1:
        raise wire.WireError("a class has two contents")
    known = {wire.exactly(str, method) for method in special}
    error = any(issubclass(base, BaseException) for base in bases)
    body: dict[str, Any] = {"__module__": "answer", "_mirror_link": link, "_mirror_number": number}
    body |= {attribute: _Read(attribute) for attribute in ("__doc__", "__annotations__")}
    for method in SPECIAL & known:
        if method in BETWEEN:
            body[method] = _between(method)
        elif method in _FREE or link.can(method) or (error and method == "__str__"):
            body[method] = _forward(method)
    if "__next__" in body:
        body |= {"__next__": _next, "__iter__": lambda self: self}
    if "__exit__" in body and link.guarded:
        body["__exit__"] = _exit
    # What stands in for an exception can be a base of another one.
    lowest = [base for base in bases if not any(issubclass(b, base) for b in {*bases} - {base})]
    kept = [Changeable if base in MUTABLE else base for base in dict.fromkeys(lowest)]
    first = () if any(isinstance(base, MirrorType) for base in kept) else (Mirror,)
    return MirrorType(wire.exactly(str, name), (*first, *kept), body)


def is_error(kind: type) -> bool:
    """Return whether a class is an exception of this side."""
    return issubclass(kind, BaseException) and not isinstance(kind, MirrorType)
