"""Write-a-function tasks over strings, plain or with a structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.builtin_tasks.code_draft import (
    Case,
    Choice,
    choose,
    code_draft,
    in_turn,
    optional,
    rows,
    sentences,
)
from benchmarks.builtin_tasks.draft import FACTS, Draft, Draw, counted, ordinal


def pipeline(draw: Draw) -> Draft:
    """One to four changes of a string."""
    k = draw.integer(2, 4)
    old, new = draw.sample("aeiorstn", 2)
    moves = rows("pipeline.moves", k=k, double=2 * k, kth=ordinal(k), old=old, new=new)
    chosen = draw.sample(moves, draw.integer(1, 4))
    level = 1.2 + 1.0 * len(chosen)
    return code_draft(draw, "pipeline", sentences(draw, 5), level, moves=in_turn(chosen))


def word_filter(draw: Draw) -> Draft:
    """Select words of a sentence and report on them."""
    k, letter = draw.integer(4, 6), draw.pick("aeiorstlm")
    keep = choose(draw, "word_filter.keep", k=k, letter=letter)
    sign = draw.pick(("-", "+", "/", ", ", "|"))
    final = choose(draw, "word_filter.final", sign=sign)
    level = 1.8 + 0.02 * len(keep.source) + 0.02 * len(final.source)
    return code_draft(draw, "word_filter", sentences(draw, 5), level, keep=keep, final=final)


def run_length(draw: Draw) -> Draft:
    """Encode runs of characters, in several formats."""
    before, drop_one = draw.chance(0.5), draw.chance(0.5)
    sign = draw.pick(("", ",", "-", ";", " "))
    limit = draw.integer(3, 9)
    piece = rows("run_length.piece")[before]
    phrase, source = piece.phrase, piece.source
    if drop_one:
        phrase += ", but a run of length 1 becomes the character alone"
        source = f"c if n == 1 else {source}"
    cases: list[Case] = []
    for _ in range(4):
        runs = [draw.pick("abcx") * draw.integer(1, limit + 3) for _ in range(draw.integer(2, 5))]
        cases.append(("".join(runs),))
    level = 3.4 + 0.8 * drop_one + 0.3 * bool(sign)
    joined = f". The pieces are joined by {sign!r}" if sign else ""
    values = {"piece": Choice(phrase, source), "limit": limit, "sign": sign, "joined": joined}
    return code_draft(draw, "run_length", [*cases, ("",), ("q",)], level, **values)


def shift_cipher(draw: Draw) -> Draft:
    """Ciphers that shift letters by a rule."""
    k, step = draw.integer(2, 24), draw.integer(0, 4)
    digits = draw.integer(1, 8) if draw.chance(0.5) else 0
    mirror = draw.chance(0.3)
    rule = f"by {k} places"
    if step:
        rule = f"by {k} + {step}·i places, where i is its position in the string (from 0)"
    words = FACTS["vocabulary"]
    cases: list[Case] = [
        (f"{draw.pick(words).capitalize()} {draw.pick(words)}-{draw.integer(10, 99)}!",)
        for _ in range(4)
    ]
    values: dict[str, Any] = {"k": k, "step": step, "rule": rule}
    values |= {
        "digits": optional(digits > 0, "shift_cipher.digits", digits=digits),
        "mirror": optional(mirror, "shift_cipher.mirror"),
    }
    level = 2.8 + 1.2 * bool(step) + 0.6 * bool(digits) + 0.3 * mirror
    return code_draft(draw, "shift_cipher", [*cases, ("Xyz",), ("",)], level, **values)


def letter_counts(draw: Draw) -> Draft:
    """The most or least frequent letters of a text."""
    k = draw.integer(1, 4)
    most = Choice("most", "-") if draw.chance(0.6) else Choice("least", "")
    skip = "".join(sorted(draw.sample("aeioustn", draw.integer(0, 3))))
    minimum = draw.integer(2, 3) if draw.chance(0.4) else 1
    form = choose(draw, "letter_counts.form")
    skipped = f" The letters in '{skip}' are not counted." if skip else ""
    rare = f" Letters that occur fewer than {minimum} times are left out." if minimum > 1 else ""
    values = {"k": k, "most": most, "skip": skip, "minimum": minimum, "form": form}
    level = 2.6 + 0.5 * bool(skip) + 0.6 * (minimum > 1) + 0.1 * k
    values |= {"skipped": skipped, "rare": rare}
    return code_draft(draw, "letter_counts", sentences(draw, 5), level, **values)


def parse_pairs(draw: Draw) -> Draft:
    """Parse "key=value" settings."""
    inner, outer = draw.pick("=:~>"), draw.pick(";,|&")
    rule = choose(draw, "parse_pairs.rule")
    lower, bad = draw.chance(0.5), draw.chance(0.5)
    cases: list[Case] = []
    for i in range(5):
        parts = []
        for _ in range(draw.integer(2, 6)):
            space = draw.pick(("", "", " "))
            parts.append(f"{draw.pick('abcABx')}{space}{inner}{space}{draw.integer(-9, 60)}")
        if i % 2:
            parts.insert(1, "oops" if bad else "")
        cases.append((f"{outer}{draw.pick(('', ' '))}".join(parts),))
    values: dict[str, Any] = {"inner": inner, "outer": outer, "rule": rule}
    values |= {
        "values": "lists of integers" if rule.phrase == "all values are kept" else "integers",
        "lower": optional(lower, "parse_pairs.lower"),
        "skip": rows("parse_pairs.skip", inner=inner)[bad],
    }
    return code_draft(draw, "parse_pairs", [*cases, ("",)], 3.0 + 0.4 * lower + 0.5 * bad, **values)


def time_strings(draw: Draw) -> Draft:
    """Clock times as strings."""
    k = draw.integer(5, 180)
    unit, pause = k % 25 + 2, k % 13 + 1
    kind = draw.integer(0, 4)

    def clock() -> str:
        return f"{draw.integer(0, 23):02d}:{draw.integer(0, 59):02d}"

    def duration() -> str:
        hours = f"{draw.integer(1, 5)}h" if draw.chance(0.6) else ""
        return f"{hours}{draw.integer(0, 59):02d}m"

    arguments: tuple[tuple[str, Callable[[int], Case]], ...] = (
        ("t", lambda i: (clock(),)),
        ("start, end", lambda i: (clock(), clock())),
        ("n", lambda i: (draw.integer(0, 9000),)),
        ("durations", lambda i: ([duration() for _ in range(i)],)),
        ("times", lambda i: ([clock() for _ in range(2 * i)],)),
    )
    parameters, case = arguments[kind]
    cases = [case(i) for i in range(5)]
    values = {"k": k, "unit": unit, "pause": pause, "pauses": counted(pause, "minute")}
    chosen = rows("time_strings.kind", **values)[kind]
    ordered = cases if kind < 3 else cases[::-1]
    level = 2.2 + 0.4 * kind
    return code_draft(draw, "time_strings", ordered, level, parameters=parameters, kind=chosen)


def brackets(draw: Draw) -> Draft:
    """Check nested brackets."""
    pairs = draw.sample(("()", "[]", "{}", "<>"), draw.integer(1, 3))
    limit = draw.integer(2, 4) if draw.chance(0.4) else 0
    kind = choose(draw, "brackets.kind")
    wrong, unfinished, fine = kind.source.split()
    limited = limit > 0 and kind.index < 2

    def nested(size: int) -> str:
        if size <= 0:
            return draw.pick(("", "x", "y+"))
        p = draw.pick(pairs)
        split = draw.integer(0, size - 1)
        return p[0] + nested(split) + p[1] + nested(size - 1 - split)

    good = nested(draw.integer(3, 6))
    broken = nested(4)
    cut = draw.integer(0, len(broken) - 1)
    strings = [good, broken[:cut] + broken[cut + 1 :], nested(2) + pairs[0][1] + nested(2)]
    strings += [nested(7), pairs[-1][0] + nested(1), ""]
    values: dict[str, Any] = {"kind": kind, "wrong": wrong, "open": unfinished, "fine": fine}
    values |= {
        "names": " and ".join(f"'{p}'" for p in pairs),
        "closing": {p[1]: p[0] for p in pairs},
        "deep": optional(limited, "brackets.deep", limit=limit, wrong=wrong),
    }
    level = 2.6 + 0.5 * len(pairs) + 0.4 * kind.index + (0.7 if limited else 0.0)
    return code_draft(draw, "brackets", [(string,) for string in strings], level, **values)


FAMILIES = (
    *(pipeline, word_filter, run_length, shift_cipher, letter_counts),
    *(parse_pairs, time_strings, brackets),
)
