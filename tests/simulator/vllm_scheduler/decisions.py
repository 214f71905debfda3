"""What a scheduler decided, step by step, whichever scheduler it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest


@dataclass(frozen=True)
class Decision:
    """One engine step: it computes tokens, or at least evicts.

    None stands for what cannot be seen from outside.

    Attributes:
        admitted: Requests in order of admission; evicted ones come back here, too.
        evicted: Requests that have to start anew, in order of their ids.
        evictions: How many the server counts: with async scheduling, a request may be evicted while
            its last step is computed, and loses nothing.
        finished: Requests that emit their last token, in order of their ids.
        new_tokens: Tokens computed, of all requests together.
        chunks: Tokens computed, of each request that is served.
        computed: Tokens in the cache after the step, of each request that is served.
    """

    admitted: tuple[int, ...]
    evicted: tuple[int, ...]
    evictions: int
    finished: tuple[int, ...]
    new_tokens: int
    chunks: dict[int, int] | None = None
    computed: dict[int, int] | None = None

    def differences(self, other: Decision) -> list[str]:
        """A line for every field that is known to both and not the same."""
        pairs = [(f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]
        return [
            f"{name}: {mine} != {theirs}"
            for name, mine, theirs in pairs
            if mine is not None and theirs is not None and mine != theirs
        ]


def first_difference(
    expected: Sequence[Decision], actual: Sequence[Decision], names: tuple[str, str]
) -> str | None:
    """Say in which step two schedulers part, and how; None if they agree to the end."""
    for step, (a, b) in enumerate(zip_longest(expected, actual)):
        lines = a.differences(b) if a and b else ["only one of them has this step"]
        if lines:
            heading = (
                f"in step {step} of {len(expected)}, the first to differ, {' != '.join(names)}"
            )
            return "\n  ".join([heading, *lines, f"{names[0]}: {a}", f"{names[1]}: {b}"])
    return None
