"""The process in which an answer's code runs: it is given arguments and gives back results.

It is given neither the tests nor what they expect, and has no line to whoever reads the verdict.
Everything that the answer can change, find or fake here ends in a result that is wrong.
"""

from __future__ import annotations

import sys

from . import wire
from .link import Link
from .lockdown import LockError

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from typing import Any

MODULE = "answer"
MAX_NAMES = 2000
MAX_TEXT = 300  # characters of an error


def load(sources: list[str]) -> dict[str, Any]:
    """Run the question's own code, if it has any, and then the answer's; returns the names."""
    module = type(sys)(MODULE)
    sys.modules[MODULE] = module
    names = module.__dict__
    for source in sources:
        exec(compile(source, f"<{MODULE}>", "exec", dont_inherit=True), names)
    return names


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
    link = Link(requests, results)
    try:
        names = load(job["sources"])
        own = [(name, value) for name, value in names.items() if callable(value)][:MAX_NAMES]
        loaded = wire.Encoder(link).encode(("loaded", tuple(map(_as_the_answers, own))))
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"[:MAX_TEXT]
        wire.send(results, wire.encode(("broken", text)))
        return
    wire.send(results, loaded)
    while True:
        request = wire.receive(requests)
        link.answer(request[1:])


def _as_the_answers(pair: tuple[str, Any]) -> tuple[str, Any]:
    """Return a name with what it stands for; ``f = sorted`` or ``f = int`` is the answer's, too."""
    name, value = pair
    if isinstance(value, type) and value.__module__ == "builtins":
        return name, lambda *arguments, **named: value(*arguments, **named)
    return pair
