"""Keeping prompts within a number of tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

Count = Callable[[str], int]

_PIECES = re.compile(r"[A-Za-z]+|\d|[^\S\n]+|\n|[^\sA-Za-z\d]")
LEAST = 24  # tokens below which a part of an answer is no use
_MARK = "\n[... {0} characters left out ...]\n"


def estimate_upper(text: str) -> int:
    """Return a number of tokens that the tokenizers of current models seldom exceed.

    One for every three letters of a word, every digit, every sign and every line break; the bytes
    of what is not ASCII. About 1.5 times what they make of English prose.
    """
    total = 0
    for piece in _PIECES.findall(text):
        if piece.isascii() and piece.isalpha():
            total += -(-len(piece) // 3)
        elif piece.isspace():
            total += 1 if piece == "\n" else (len(piece) - 1 + 3) // 4
        else:
            total += len(piece.encode("utf-8", "replace"))
    return total


def cut(text: str, limit: int, count: Count) -> str:
    """Return a text of at most `limit` tokens, its middle left out and the cut marked.

    A third of what is kept is the beginning, two thirds are the end, where answers stand. Where
    `limit` leaves nothing of use, a note stands in place of the text, whatever the limit.
    """
    tokens = count(text)
    if tokens <= limit:
        return text
    if limit >= LEAST:
        keep = len(text) * limit // tokens
        while keep > 20:
            head = keep // 3
            tail = keep - head
            mark = _MARK.format(len(text) - keep)
            short = text[:head].rstrip() + mark + text[len(text) - tail :].lstrip()
            if count(short) <= limit:
                return short
            keep = keep * 9 // 10
    return min(f"[{len(text)} characters left out]", text, key=len)


def shares(sizes: Sequence[int], total: int) -> int:
    """Return the largest size that no text may exceed so that all of them fit into `total`.

    The longest are cut first: max h with sum(min(size, h)) <= total.
    """
    left, several = max(total, 0), len(sizes)
    for size in sorted(sizes):
        if size * several > left:
            return left // several
        left -= size
        several -= 1
    return max(sizes, default=0)
