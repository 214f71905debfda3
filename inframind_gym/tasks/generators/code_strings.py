"""Write-a-function tasks over strings."""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby

from inframind_gym.tasks.generators.code_tasks import (
    VOCABULARY,
    Case,
    Op,
    code_draft,
    pick_op,
    sentences,
)
from inframind_gym.tasks.generators.draft import Draft, Draw, ordinal


def pipeline(draw: Draw) -> Draft:
    """One to four changes of a string."""
    k = draw.integer(2, 4)
    old, new = draw.sample("aeiorstn", 2)
    moves: tuple[Op, ...] = (
        ("reverse it", "s = s[::-1]", lambda s: "".join(reversed(s))),
        ("remove the vowels (a, e, i, o, u in either case)",
         "s = ''.join(c for c in s if c.lower() not in 'aeiou')",
         lambda s: re.sub("[aeiouAEIOU]", "", s)),
        ("swap upper and lower case", "s = s.swapcase()",
         lambda s: "".join(c.lower() if c.isupper() else c.upper() for c in s)),
        (f"repeat every character {k} times", f"s = ''.join(c * {k} for c in s)",
         lambda s: "".join(c for c in s for _ in range(k))),
        (f"keep only the characters at positions 0, {k}, {2 * k}, and so on", f"s = s[::{k}]",
         lambda s: "".join(c for i, c in enumerate(s) if i % k == 0)),
        (f"replace every '{old}' by '{new}'", f"s = s.replace('{old}', '{new}')",
         lambda s: "".join(new if c == old else c for c in s)),
        ("reverse the order of the words (separated by single spaces)",
         "s = ' '.join(s.split()[::-1])", lambda s: " ".join(reversed(s.split()))),
        ("reverse every word in its place", "s = ' '.join(w[::-1] for w in s.split(' '))",
         lambda s: re.sub("[^ ]+", lambda m: m.group()[::-1], s)),
        ("collapse runs of equal characters to one",
         "s = ''.join(c for i, c in enumerate(s) if i == 0 or c != s[i - 1])",
         lambda s: "".join(c for c, _ in groupby(s))),
        (f"replace every {ordinal(k)} character by '*'",
         f"s = ''.join('*' if i % {k} == {k} - 1 else c for i, c in enumerate(s))",
         lambda s: "".join("*" if (i + 1) % k == 0 else c for i, c in enumerate(s))),
    )  # fmt: skip
    chosen = draw.sample(moves, draw.integer(1, 4))
    steps = "; ".join(f"({i + 1}) {m[0]}" for i, m in enumerate(chosen))

    def expected(s: str) -> object:
        for move in chosen:
            s = move[2](s)
        return s

    return code_draft(
        draw,
        name=draw.pick(("convert", "rewrite", "transform_text")),
        parameters="s",
        task=f"takes a string, does the following in this order and returns the result: {steps}.",
        body="".join(f"{m[1]}\n" for m in chosen) + "return s",
        expected=expected,
        cases=sentences(draw, 5),
        level=1.2 + 1.0 * len(chosen),
    )


def word_filter(draw: Draw) -> Draft:
    """Select words of a sentence and report on them."""
    k = draw.integer(4, 6)
    letter = draw.pick("aeiorstlm")
    keep = pick_op(
        draw,
        (
            (f"have at least {k} letters", f"len(w) >= {k}", lambda w: not len(w) < k),
            (f"have fewer than {k} letters", f"len(w) < {k}", lambda w: not len(w) >= k),
            (f"contain the letter '{letter}' in either case", f"'{letter}' in w.lower()",
             lambda w: w.lower().count(letter) > 0),
            (f"do not contain the letter '{letter}' in either case",
             f"'{letter}' not in w.lower()", lambda w: not w.lower().count(letter)),
            ("start with a capital letter", "w[0].isupper()", lambda w: w[:1] != w[:1].lower()),
            ("start with a vowel in either case", "w[0].lower() in 'aeiou'",
             lambda w: re.match("[aeiou]", w, re.IGNORECASE)),
            ("have an even number of letters", "len(w) % 2 == 0", lambda w: not len(w) & 1),
            ("have two equal letters side by side",
             "any(a == b for a, b in zip(w, w[1:]))", lambda w: re.search(r"(.)\1", w)),
        )
    )  # fmt: skip
    sign = draw.pick(("-", "+", "/", ", ", "|"))
    final = pick_op(
        draw,
        (
            ("returns how many there are", "return len(kept)", len),
            (f"returns them in order, joined by {sign!r}", f"return {sign!r}.join(kept)",
             lambda v: sign.join(v)),
            ("returns the longest of them (the first of several), or ''",
             "return max(kept, key=len, default='')",
             lambda v: sorted(v, key=lambda w: -len(w))[0] if v else ""),
            ("returns the sorted list of their lower-case forms without repetitions",
             "return sorted({w.lower() for w in kept})",
             lambda v: sorted(dict.fromkeys(w.lower() for w in v))),
            ("returns a string of their last letters", "return ''.join(w[-1] for w in kept)",
             lambda v: "".join(w[len(w) - 1] for w in v)),
            ("returns the list of their lengths", "return [len(w) for w in kept]",
             lambda v: list(map(len, v))),
            ("returns the total number of their letters", "return sum(len(w) for w in kept)",
             lambda v: len("".join(v))),
        )
    )  # fmt: skip

    def expected(text: str) -> object:
        return final[2]([w for w in text.split() if keep[2](w)])

    return code_draft(
        draw,
        name=draw.pick(("pick_words", "word_report", "select_words")),
        parameters="text",
        task=f"looks at the words of a text (separated by spaces) that {keep[0]} and {final[0]}.",
        body=f"kept = [w for w in text.split() if {keep[1]}]\n{final[1]}",
        expected=expected,
        cases=sentences(draw, 5),
        level=1.8 + 0.02 * len(keep[1]) + 0.02 * len(final[1]),
    )


def run_length(draw: Draw) -> Draft:
    """Encode runs of characters, in several formats."""
    before, drop_one = draw.chance(0.5), draw.chance(0.5)
    sign = draw.pick(("", ",", "-", ";", " "))
    limit = draw.integer(3, 9)
    task = "encodes a string by its runs of equal characters: every run becomes "
    task += (
        "its length followed by the character"
        if before
        else ("the character followed by its length")
    )
    task += ", but a run of length 1 becomes the character alone" if drop_one else ""
    task += f". Runs longer than {limit} are cut into runs of {limit} and a rest"
    task += f". The pieces are joined by {sign!r}." if sign else "."
    piece = "str(n) + c" if before else "c + str(n)"
    piece = f"c if n == 1 else {piece}" if drop_one else piece
    body = (
        "pieces = []\ni = 0\nwhile i < len(s):\n    c, n = s[i], 1\n"
        f"    while i + n < len(s) and s[i + n] == c and n < {limit}:\n        n += 1\n"
        f"    pieces.append({piece})\n    i += n\nreturn {sign!r}.join(pieces)"
    )

    def expected(s: str) -> object:
        pieces = []
        for match in re.finditer(rf"(.)\1{{0,{limit - 1}}}", s):
            run, c = match.group(), match.group(1)
            text = f"{len(run)}{c}" if before else f"{c}{len(run)}"
            pieces.append(c if drop_one and len(run) == 1 else text)
        return sign.join(pieces)

    cases: list[Case] = []
    for _ in range(4):
        runs = [draw.pick("abcx") * draw.integer(1, limit + 3) for _ in range(draw.integer(2, 5))]
        cases.append(("".join(runs),))
    return code_draft(
        draw,
        name=draw.pick(("encode_runs", "compress", "run_length")),
        parameters="s",
        task=task,
        body=body,
        expected=expected,
        cases=[*cases, ("",), ("q",)],
        level=3.4 + 0.8 * drop_one + 0.3 * bool(sign),
    )


def shift_cipher(draw: Draw) -> Draft:
    """Ciphers that shift letters by a rule."""
    k, step = draw.integer(2, 24), draw.integer(0, 4)
    digits = draw.integer(1, 8) if draw.chance(0.5) else 0
    mirror = draw.chance(0.3)
    rule = (
        f"by {k} places"
        if not step
        else (f"by {k} + {step}·i places, where i is its position in the string (from 0)")
    )
    task = f"shifts every letter of a string forward in the alphabet {rule}, from z on to a again"
    task += ", keeping its case"
    task += f", shifts every digit forward by {digits} modulo 10" if digits else ""
    task += ", leaves other characters alone"
    task += ", and returns the result reversed." if mirror else ", and returns the result."
    body = (
        "out = []\nfor i, c in enumerate(s):\n    if c.isalpha():\n"
        "        base = ord('a') if c.islower() else ord('A')\n"
        f"        out.append(chr(base + (ord(c) - base + {k} + {step} * i) % 26))\n"
    )
    if digits:
        body += f"    elif c.isdigit():\n        out.append(str((int(c) + {digits}) % 10))\n"
    body += "    else:\n        out.append(c)\n"
    body += "return ''.join(out)[::-1]" if mirror else "return ''.join(out)"
    alphabet = "abcdefghijklmnopqrstuvwxyz"

    def expected(s: str) -> object:
        out = ""
        for i, c in enumerate(s):
            places = (k + step * i) % 26
            turned = alphabet[places:] + alphabet[:places]
            if c.lower() in alphabet:
                new = turned[alphabet.index(c.lower())]
                new = new.upper() if c.isupper() else new
            else:
                new = "0123456789"[(int(c) + digits) % 10] if c in "0123456789" else c
            out = new + out if mirror else out + new
        return out

    cases: list[Case] = [
        (f"{draw.pick(VOCABULARY).capitalize()} {draw.pick(VOCABULARY)}-{draw.integer(10, 99)}!",)
        for _ in range(4)
    ]
    return code_draft(
        draw,
        name=draw.pick(("encrypt", "shift_text", "cipher")),
        parameters="s",
        task=task,
        body=body,
        expected=expected,
        cases=[*cases, ("Xyz",), ("",)],
        level=2.8 + 1.2 * bool(step) + 0.6 * bool(digits) + 0.3 * mirror,
    )


def letter_counts(draw: Draw) -> Draft:
    """The most or least frequent letters of a text."""
    k = draw.integer(1, 4)
    most = draw.chance(0.6)
    skip = "".join(sorted(draw.sample("aeioustn", draw.integer(0, 3))))
    minimum = draw.integer(2, 3) if draw.chance(0.4) else 1
    form = pick_op(
        draw,
        (
            ("as a list of (letter, count) pairs", "best", lambda v: v),
            ("as a string of the letters", "''.join(c for c, _ in best)",
             lambda v: "".join(c for c, _ in v)),
            ("as a dictionary from letter to count", "dict(best)", dict),
        )
    )  # fmt: skip
    task = (
        f"counts the letters of a text without regard to case and returns the {k} "
        f"{'most' if most else 'least'} frequent ones (fewer if there are not so many), ties in "
        f"alphabetical order, {form[0]}."
    )
    task += f" The letters in '{skip}' are not counted." if skip else ""
    task += f" Letters that occur fewer than {minimum} times are left out." if minimum > 1 else ""
    body = (
        "counts = {}\nfor c in text.lower():\n"
        f"    if c.isalpha() and c not in '{skip}':\n        counts[c] = counts.get(c, 0) + 1\n"
        f"items = [(c, n) for c, n in counts.items() if n >= {minimum}]\n"
        f"best = sorted(items, key=lambda p: ({'-' if most else ''}p[1], p[0]))[:{k}]\n"
        f"return {form[1]}"
    )

    def expected(text: str) -> object:
        counts = Counter(re.sub("[^a-z]", "", text.lower()))
        left = [(c, n) for c, n in sorted(counts.items()) if c not in skip and n >= minimum]
        return form[2](sorted(left, key=lambda p: p[1], reverse=most)[:k])

    return code_draft(
        draw,
        name=draw.pick(("letter_counts", "frequent_letters", "histogram")),
        parameters="text",
        task=task,
        body=body,
        expected=expected,
        cases=sentences(draw, 5),
        level=2.6 + 0.5 * bool(skip) + 0.6 * (minimum > 1) + 0.1 * k,
    )


FAMILIES = (
    *(
        pipeline,
        word_filter,
        run_length,
        shift_cipher,
    ),
    letter_counts,
)
