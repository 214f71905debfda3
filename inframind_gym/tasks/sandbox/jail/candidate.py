"""The process in which an answer's code runs: it is given arguments and gives back results.

It is given neither the tests nor what they expect, and has no line to whoever reads the verdict.
Everything that the answer can change, find or fake here ends in a result that is wrong.
"""

from __future__ import annotations

import sys

from . import wire
from .lockdown import LockError

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from typing import Any

MODULE = "answer"
MAX_NAMES = 2000


class Objects:
    """Numbers for the objects that stay in this process."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}

    def number(self, value: Any) -> int:
        """Return the number of an object, the same whenever it comes by."""
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return self.numbers[id(value)]

    def get(self, number: int) -> Any:
        """Return the object of a number."""
        return self.objects[number]


def load(sources: list[str]) -> dict[str, Any]:
    """Run the question's own code, if it has any, and then the answer's; returns the names."""
    module = type(sys)(MODULE)
    sys.modules[MODULE] = module
    names = module.__dict__
    for source in sources:
        exec(compile(source, f"<{MODULE}>", "exec"), names)
    return names


def reply(names: dict[str, Any], objects: Objects, request: Any) -> bytes:
    """Carry out one call.

    Args:
        names: the answer's names.
        objects: what is known by number.
        request: (name or number, positional arguments, named ones).

    Returns:
        ("value", result, pairs of the index and the new value of arguments that were changed), or
        ("raised", name of the exception, text); encoded.
    """
    target, arguments, named = request
    try:
        function = names[target] if isinstance(target, str) else objects.get(target)
        before = _mutable(arguments, objects)
        result = wire.encode(function(*arguments, **named), objects.number)
        after = _mutable(arguments, objects)
        changed = [[wire.encode(i), data] for i, data in after.items() if data != before[i]]
        pairs = [wire.pack(b"t", pair) for pair in changed]
        return wire.pack(b"t", [wire.encode("value"), result, wire.pack(b"l", pairs)])
    except wire.WireError as error:
        return wire.encode(("raised", "TypeError", str(error)))
    except BaseException as error:
        return wire.encode(("raised", type(error).__name__, f"{error}"[:300]))


def _mutable(arguments: list[Any], objects: Objects) -> dict[int, bytes]:
    """Return, encoded, the arguments that a function can change."""
    kinds = (list, dict, set, bytearray)
    return {
        i: wire.encode(value, objects.number)
        for i, value in enumerate(arguments)
        if isinstance(value, kinds)
    }


def serve(job: dict[str, Any], requests: int, results: int, locked: LockError | None) -> None:
    """Load the answer and carry out calls until the other side hangs up.

    Args:
        job: "sources".
        requests, results: pipes from and to the examiner.
        locked: why the process could not be locked, or None. Nothing is run if it could not.
    """
    if locked is not None:
        wire.send(results, wire.encode(("unlocked", str(locked))))
        return
    wire.send(results, wire.encode(("ready", "")))
    try:
        names = load(job["sources"])
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"[:300]
        wire.send(results, wire.encode(("broken", text)))
        return
    own = [n for n, v in names.items() if callable(v)][:MAX_NAMES]
    wire.send(results, wire.encode(("loaded", own)))
    objects = Objects()
    while True:
        request = wire.decode(wire.receive(requests), objects.get)
        wire.send(results, reply(names, objects, request))
