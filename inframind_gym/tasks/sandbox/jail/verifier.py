"""The process that compares formulas with math-verify, one pair after the other.

Formulas that a model wrote can keep SymPy busy for ever or fill the memory. math-verify's own time
limits are Python signals, which do not interrupt long steps; here the kernel ends the process.
"""

from __future__ import annotations

from . import wire

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from typing import Any


def load() -> Any:
    """Import math-verify, which needs files, and warm it up; returns :func:`same`'s tools."""
    import logging

    logging.disable(logging.CRITICAL)
    from math_verify import LatexExtractionConfig, parse, verify

    # Only LaTeX: the extraction of plain expressions evaluates them as Python.
    settings = [LatexExtractionConfig()]

    def read(formula: str) -> Any:
        return parse(f"${formula}$", settings, fallback_mode="no_fallback", parsing_timeout=None)

    def same(expected: str, found: str) -> bool:
        first, second = read(expected), read(found)
        if not first or not second:
            return False
        return bool(verify(first, second, timeout_seconds=None, allow_set_relation_comp=True))

    same(r"\frac{1}{2}x + \sqrt{2}", r"x/2 + 2^{0.5}")
    return same


def serve(same: Any, requests: int, results: int, timeout_s: int) -> None:
    """Answer pairs (expected, found) with True or False until the other side hangs up.

    Args:
        same: from :func:`load`.
        requests, results: pipes.
        timeout_s: the process is killed when a pair takes longer.
    """
    import signal

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    wire.send(results, wire.encode("ready"))
    while True:
        expected, found = wire.decode(wire.receive(requests))
        signal.alarm(timeout_s)
        try:
            result = same(expected, found)
        except Exception:  # what math-verify cannot read is not shown to be equal
            result = False
        signal.alarm(0)
        wire.send(results, wire.encode(result))
