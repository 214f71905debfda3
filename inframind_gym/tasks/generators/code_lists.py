"""Write-a-function tasks over lists and records."""

from __future__ import annotations

from itertools import chain, pairwise

from inframind_gym.tasks.generators.code_tasks import (
    VOCABULARY,
    Case,
    Op,
    code_draft,
    number_lists,
    pick_op,
)
from inframind_gym.tasks.generators.draft import Draft, Draw, ordinal

Ints = list[int]


def predicates(draw: Draw) -> Op:
    """A condition on an integer x."""
    k = draw.integer(2, 9)
    options: tuple[Op, ...] = (
        ("are even", "x % 2 == 0", lambda x: x % 2 == 0),
        ("are odd", "x % 2 == 1", lambda x: x % 2 == 1),
        ("are negative", "x < 0", lambda x: x < 0),
        ("are not negative", "x >= 0", lambda x: x >= 0),
        (f"are greater than {k}", f"x > {k}", lambda x: x > k),
        (f"are at most {k}", f"x <= {k}", lambda x: x <= k),
        (f"are divisible by {k}", f"x % {k} == 0", lambda x: x % k == 0),
        (f"are not divisible by {k}", f"x % {k} != 0", lambda x: x % k != 0),
        (f"have an absolute value below {3 * k}", f"abs(x) < {3 * k}", lambda x: abs(x) < 3 * k),
        (
            f"end in the digit {k} (ignoring the sign)",
            f"abs(x) % 10 == {k}",
            lambda x: abs(x) % 10 == k,
        ),
    )
    return draw.pick(options)


def mappings(draw: Draw) -> Op:
    """A change of an integer x."""
    k = draw.integer(2, 9)
    options: tuple[Op, ...] = (
        ("squares each of them", "x * x", lambda x: x * x),
        (f"multiplies each of them by {k}", f"x * {k}", lambda x: x * k),
        (f"adds {k} to each of them", f"x + {k}", lambda x: x + k),
        (f"subtracts each of them from {k}", f"{k} - x", lambda x: k - x),
        ("takes the absolute value of each of them", "abs(x)", abs),
        (f"takes each of them modulo {k} (as Python's `%`)", f"x % {k}", lambda x: x % k),
        (f"caps each of them at {k}", f"min(x, {k})", lambda x: min(x, k)),
    )
    return draw.pick(options)


REDUCTIONS: tuple[Op, ...] = (
    ("returns their sum", "sum(kept)", sum),
    ("returns how many distinct values there are", "len(set(kept))", lambda v: len(set(v))),
    ("returns the largest value, or None if there is none", "max(kept, default=None)",
     lambda v: max(v) if v else None),
    ("returns the smallest value, or None if there is none", "min(kept, default=None)",
     lambda v: min(v) if v else None),
    ("returns them as a list in ascending order", "sorted(kept)", sorted),
    ("returns them as a list in reverse order", "kept[::-1]", lambda v: list(reversed(v))),
    ("returns a list of their running totals", "[sum(kept[:i + 1]) for i in range(len(kept))]",
     lambda v: [sum(v[:i]) for i in range(1, len(v) + 1)]),
    ("returns the first value minus the second plus the third minus the fourth and so on",
     "sum(x if i % 2 == 0 else -x for i, x in enumerate(kept))",
     lambda v: sum(v[0::2]) - sum(v[1::2])),
    ("returns the list without repetitions, keeping first occurrences",
     "list(dict.fromkeys(kept))", lambda v: [x for i, x in enumerate(v) if x not in v[:i]]),
)  # fmt: skip


def keep_map_reduce(draw: Draw) -> Draft:
    """Filter, change and reduce a list of integers."""
    reduction = draw.pick(REDUCTIONS)
    keep = predicates(draw)
    change = mappings(draw) if draw.chance(0.7) else None
    task = f"keeps the integers of a list that {keep[0]}, "
    task += f"{change[0]} and " if change else "and "
    term = change[1] if change else "x"
    body = f"kept = [{term} for x in values if {keep[1]}]\nreturn {reduction[1]}"

    def expected(values: Ints) -> object:
        kept = [x for x in values if keep[2](x)]
        return reduction[2]([change[2](x) for x in kept] if change else kept)

    return code_draft(
        draw,
        name=draw.pick(("process", "summarise_values", "filtered_result", "crunch")),
        parameters="values",
        task=f"{task}{reduction[0]}.",
        body=body,
        expected=expected,
        cases=number_lists(draw, 6, -20, 40),
        level=2.0 + (1.2 if change else 0.0) + 0.25 * REDUCTIONS.index(reduction),
    )


def windows(draw: Draw) -> Draft:
    """Statistics of sliding windows."""
    k = draw.integer(2, 5)
    stat = pick_op(
        draw,
        (
            ("sum", "sum(w)", sum),
            ("largest value", "max(w)", max),
            ("smallest value", "min(w)", min),
            ("range (largest minus smallest value)", "max(w) - min(w)", lambda w: max(w) - min(w)),
            ("number of distinct values", "len(set(w))", lambda w: len(set(w))),
            ("median (lower middle if even)", f"sorted(w)[{(k - 1) // 2}]",
             lambda w: sorted(w)[(len(w) - 1) // 2]),
        )
    )  # fmt: skip
    t = draw.integer(5, 40)
    final = pick_op(
        draw,
        (
            ("returns the list of the results", "return results", lambda r: r),
            (f"returns how many of the results exceed {t}",
             f"return sum(r > {t} for r in results)", lambda r: len([x for x in r if x > t])),
            ("returns the start index of the first window with the largest result, or -1",
             "return results.index(max(results)) if results else -1",
             lambda r: min((i for i, x in enumerate(r) if x == max(r)), default=-1)),
        )
    )  # fmt: skip
    body = (
        f"results = []\nfor i in range(len(values) - {k - 1}):\n    w = values[i:i + {k}]\n"
        f"    results.append({stat[1]})\n{final[1]}"
    )

    def expected(values: Ints) -> object:
        return final[2]([stat[2](values[i - k : i]) for i in range(k, len(values) + 1)])

    return code_draft(
        draw,
        name=draw.pick(("windows", "sliding", "scan_windows")),
        parameters="values",
        task=(
            f"computes the {stat[0]} of every window of {k} consecutive integers of a list, from "
            f"left to right, and {final[0]}. A list shorter than {k} has no window."
        ),
        body=body,
        expected=expected,
        cases=number_lists(draw, 6, 0, 30),
        level=3.0 + 0.2 * k + (0.0 if final[1] == "return results" else 0.8),
    )


def grouping(draw: Draw) -> Draft:
    """Group words by a key and reduce each group."""
    k = draw.integer(1, 3)
    key = pick_op(
        draw,
        (
            ("length", "len(w)", len),
            ("first letter", "w[0]", lambda w: w[0]),
            ("last letter", "w[-1]", lambda w: w[-1:]),
            ("first letter" if k == 1 else f"first {k} letters", f"w[:{k}]", lambda w: w[0:k]),
            ("number of vowels (a, e, i, o, u)", "sum(c in 'aeiou' for c in w)",
             lambda w: len([c for c in w if c in "aeiou"])),
        )
    )  # fmt: skip
    reduce = pick_op(
        draw,
        (
            ("the number of words", "len(g)", len),
            ("the list of words in their order", "g", lambda g: g),
            ("the sorted list of words", "sorted(g)", sorted),
            ("the longest word (the first one of several)", "max(g, key=len)",
             lambda g: sorted(g, key=lambda w: -len(w))[0]),
            ("the total number of letters", "sum(len(w) for w in g)", lambda g: len("".join(g))),
            ("the words joined by '-'", "'-'.join(g)", "-".join),
        )
    )  # fmt: skip
    minimum = draw.integer(2, 3) if draw.chance(0.4) else 1
    extra = f" Groups of fewer than {minimum} words are left out." if minimum > 1 else ""
    body = (
        f"groups = {{}}\nfor w in words:\n    groups.setdefault({key[1]}, []).append(w)\n"
        f"return {{k: {reduce[1]} for k, g in groups.items() if len(g) >= {minimum}}}"
    )

    def expected(words: list[str]) -> object:
        keys = [key[2](w) for w in words]
        groups = {v: [w for w, u in zip(words, keys, strict=True) if u == v] for v in keys}
        return {v: reduce[2](g) for v, g in groups.items() if len(g) >= minimum}

    cases: list[Case] = [
        ([draw.pick(VOCABULARY) for _ in range(draw.integer(3, 8))],) for _ in range(4)
    ]
    return code_draft(
        draw,
        name=draw.pick(("group_words", "index_words", "bucket")),
        parameters="words",
        task=(
            f"groups a list of lower-case words by their {key[0]} and returns a dictionary from "
            f"each key to {reduce[0]} of its group.{extra}"
        ),
        body=body,
        expected=expected,
        cases=[*cases, ([],)],
        level=3.0 + (0.8 if minimum > 1 else 0.0),
    )


def ranking(draw: Draw) -> Draft:
    """Sort records by two keys and take some of them."""
    down = draw.chance(0.5)
    second_down = draw.chance(0.5)
    field = draw.pick(("score", "price", "age", "weight"))
    k = draw.integer(1, 4)
    floor = draw.integer(3, 12) if draw.chance(0.5) else None
    order = "descending" if down else "ascending"
    task = f"takes a list of (name, {field}) pairs with integer values, "
    task += f"drops those whose {field} is below {floor}, " if floor else ""
    task += f"sorts them by {field} in {order} order"
    task += (
        ", then by the length of the name (longest first), then by name"
        if second_down
        else (" and pairs that tie by name")
    )
    task += f", and returns the names of the first {k} (fewer if there are not so many)."
    keep = f" if p[1] >= {floor}" if floor else ""
    key = ["-p[1]" if down else "p[1]", *(["-len(p[0])"] if second_down else []), "p[0]"]
    body = (
        f"chosen = [p for p in pairs{keep}]\n"
        f"chosen.sort(key=lambda p: ({', '.join(key)}))\n"
        f"return [p[0] for p in chosen[:{k}]]"
    )

    def expected(pairs: list[tuple[str, int]]) -> object:
        result = sorted(pair for pair in pairs if floor is None or pair[1] >= floor)
        if second_down:
            result = sorted(result, key=lambda pair: len(pair[0]), reverse=True)
        result = sorted(result, key=lambda pair: pair[1], reverse=down)
        return [name for name, _ in result][:k]

    cases: list[Case] = []
    for _ in range(4):
        names = draw.sample(VOCABULARY, draw.integer(3, 7))
        cases.append(([(name, draw.integer(1, 15)) for name in names],))
    return code_draft(
        draw,
        name=draw.pick(("top_names", "ranking", "select_names")),
        parameters="pairs",
        task=task,
        body=body,
        expected=expected,
        cases=[*cases, ([],)],
        level=3.2 + (0.7 if floor else 0.0) + (0.9 if second_down else 0.0),
    )


def intervals(draw: Draw) -> Draft:
    """Merge intervals and measure them."""
    shortest = draw.integer(2, 4) if draw.chance(0.5) else 0
    low, high = draw.integer(0, 4), draw.integer(18, 30)
    clip = draw.chance(0.4)
    final = pick_op(
        draw,
        (
            ("returns the merged intervals as a sorted list of lists", "return merged",
             lambda m: m),
            ("returns the total length that they cover", "return sum(b - a for a, b in merged)",
             lambda m: sum(b - a for a, b in m)),
            ("returns how many separate intervals remain after merging", "return len(merged)", len),
            ("returns the length of the longest merged interval (0 if there is none)",
             "return max((b - a for a, b in merged), default=0)",
             lambda m: max([b - a for a, b in m] + [0])),
        )
    )  # fmt: skip
    task = "takes a list of intervals [start, end] with start < end, "
    body = "todo = sorted(list(i) for i in intervals)\n"
    if shortest:
        task += f"ignores those shorter than {shortest}, "
        body += f"todo = [i for i in todo if i[1] - i[0] >= {shortest}]\n"
    if clip:
        rest = "the rest" if shortest else "them"
        task += f"cuts {rest} to the range {low} to {high} (dropping what is empty), "
        body += f"todo = [[max(a, {low}), min(b, {high})] for a, b in todo]\n"
        body += "todo = sorted(i for i in todo if i[0] < i[1])\n"
    task += f"merges those that overlap or touch, and {final[0]}."
    body += (
        "merged = []\nfor a, b in todo:\n    if merged and a <= merged[-1][1]:\n"
        "        merged[-1][1] = max(merged[-1][1], b)\n    else:\n        merged.append([a, b])\n"
    )

    def expected(items: list[Ints]) -> object:
        # Unit cells: an independent way that needs no sorting of intervals.
        covered = [False] * 41
        for a, b in items:
            if b - a >= shortest:
                for x in range(max(a, low) if clip else a, min(b, high) if clip else b):
                    covered[x] = True
        merged: list[Ints] = []
        for x in range(41):
            if covered[x] and (x == 0 or not covered[x - 1]):
                merged.append([x, x + 1])
            elif covered[x]:
                merged[-1][1] = x + 1
        return final[2](merged)

    cases: list[Case] = []
    for _ in range(5):
        starts = draw.integers(draw.integer(2, 6), 0, 30)
        cases.append(([[s, s + draw.integer(1, 8)] for s in starts],))
    return code_draft(
        draw,
        name=draw.pick(("merge_intervals", "covered", "merge_spans")),
        parameters="intervals",
        task=task,
        body=body + final[1],
        expected=expected,
        cases=[*cases, ([],)],
        level=4.2 + (0.8 if shortest else 0.0) + (1.2 if clip else 0.0),
    )


def pairs(draw: Draw) -> Draft:
    """Count or find pairs of positions with a property."""
    k = draw.integer(3, 20)
    m = draw.integer(2, 6)
    relation = pick_op(
        draw,
        (
            (f"their sum is {k}", f"a + b == {k}", lambda a, b: a == k - b),
            (f"their sum is divisible by {m}", f"(a + b) % {m} == 0", lambda a, b: not (a + b) % m),
            (f"they differ by exactly {m}", f"abs(a - b) == {m}", lambda a, b: m in (a - b, b - a)),
            (f"their product is less than {k}", f"a * b < {k}", lambda a, b: k > a * b),
            ("the first is greater than the second", "a > b", lambda a, b: b < a),
            (f"the second exceeds the first by at least {m}", f"b - a >= {m}",
             lambda a, b: b >= a + m),
        )
    )  # fmt: skip
    near = draw.integer(2, 4) if draw.chance(0.4) else None
    final = pick_op(
        draw,
        (
            ("returns how many pairs there are", "return len(found)", len),
            ("returns the largest sum of such a pair, or None",
             "return max((a + b for _, _, a, b in found), default=None)",
             lambda f: max([a + b for _, _, a, b in f]) if f else None),
            ("returns the positions (i, j) of the first pair in the order of i, then j, or None",
             "return (found[0][0], found[0][1]) if found else None",
             lambda f: min((i, j) for i, j, _, _ in f) if f else None),
        )
    )  # fmt: skip
    apart = f" and j - i <= {near}" if near else ""
    body = (
        "found = []\nfor i in range(len(values)):\n    for j in range(i + 1, len(values)):\n"
        "        a, b = values[i], values[j]\n"
        f"        if {relation[1]}{apart}:\n            found.append((i, j, a, b))\n{final[1]}"
    )

    def expected(values: Ints) -> object:
        return final[2](
            [
                (i, j, a, b)
                for i, a in enumerate(values)
                for j, b in enumerate(values)
                if i < j and relation[2](a, b) and (near is None or j <= i + near)
            ]
        )

    return code_draft(
        draw,
        name=draw.pick(("find_pairs", "pair_search", "matching_pairs")),
        parameters="values",
        task=(
            f"looks at all pairs of positions i < j{apart} of a list of integers for which, of "
            f"the values at i (first) and j (second), {relation[0]}, and {final[0]}."
        ),
        body=body,
        expected=expected,
        cases=number_lists(draw, 6, 0, 15),
        level=3.0 + (0.7 if near else 0.0) + (0.6 if "None" in final[0] else 0.0),
    )


def slices(draw: Draw) -> Draft:
    """Rearrange a list by several slicing moves."""
    k, m = draw.integer(2, 4), draw.integer(1, 3)
    moves: tuple[Op, ...] = (
        (f"rotate it to the left by {m}", f"v = v[{m} % len(v):] + v[:{m} % len(v)] if v else v",
         lambda v: [v[(i + m) % len(v)] for i in range(len(v))]),
        (f"remove every {ordinal(k)} element", f"v = [x for i, x in enumerate(v) if (i + 1) % {k}]",
         lambda v: [v[i] for i in range(len(v)) if i % k != k - 1]),
        ("reverse it", "v = v[::-1]", lambda v: list(reversed(v))),
        (f"reverse every block of {k} (the last may be shorter)",
         f"v = [x for i in range(0, len(v), {k}) for x in v[i:i + {k}][::-1]]",
         lambda v: list(chain(*(reversed(v[i : i + k]) for i in range(0, len(v), k))))),
        ("swap its two halves (the middle of an odd length stays in the middle)",
         "h = len(v) // 2\nv = v[len(v) - h:] + v[h:len(v) - h] + v[:h]",
         lambda v: v[-(len(v) // 2) :] + v[len(v) // 2 : -(len(v) // 2)] + v[: len(v) // 2]
         if len(v) > 1 else v),
        ("remove elements equal to the one just before them",
         "v = [x for i, x in enumerate(v) if i == 0 or x != v[i - 1]]",
         lambda v: v[:1] + [b for a, b in pairwise(v) if a != b]),
        (f"keep only the first {k + m} elements", f"v = v[:{k + m}]",
         lambda v: [x for i, x in enumerate(v) if i < k + m]),
    )  # fmt: skip
    chosen = draw.sample(moves, draw.integer(2, 4))
    steps = "; ".join(f"({i + 1}) {m[0]}" for i, m in enumerate(chosen))

    def expected(values: Ints) -> object:
        for move in chosen:
            values = move[2](values)
        return values

    return code_draft(
        draw,
        name=draw.pick(("rearrange", "shuffle_steps", "reorder")),
        parameters="values",
        task=f"takes a list, does the following in this order and returns the new list: {steps}.",
        body="v = list(values)\n" + "".join(f"{m[1]}\n" for m in chosen) + "return v",
        expected=expected,
        cases=number_lists(draw, 6, 1, 6, longest=11),
        level=1.6 + 1.0 * len(chosen),
    )


FAMILIES = (
    *(keep_map_reduce, windows, grouping, ranking, intervals),
    *(pairs, slices),
)
