"""Write-a-function tasks over lists, records and matrices."""

from __future__ import annotations

from benchmarks.builtin_tasks.code_draft import (
    NOTHING,
    Case,
    Choice,
    choose,
    code_draft,
    in_turn,
    number_lists,
    optional,
    rows,
)
from benchmarks.builtin_tasks.draft import FACTS, Draft, Draw, ordinal


def keep_map_reduce(draw: Draw) -> Draft:
    """Filter, change and reduce a list of integers."""
    reduction = choose(draw, "keep_map_reduce.reduction")
    k = draw.integer(2, 9)
    keep = choose(draw, "keep_map_reduce.keep", k=k, triple=3 * k)
    changed = draw.chance(0.7)
    change = Choice("and", "x")
    if changed:
        change = choose(draw, "keep_map_reduce.change", k=draw.integer(2, 9))
    level = 2.0 + (1.2 if changed else 0.0) + 0.25 * reduction.index
    cases = number_lists(draw, 6, -20, 40)
    return code_draft(
        draw, "keep_map_reduce", cases, level, keep=keep, change=change, reduction=reduction
    )


def windows(draw: Draw) -> Draft:
    """Statistics of sliding windows."""
    k = draw.integer(2, 5)
    stat = choose(draw, "windows.stat", middle=(k - 1) // 2)
    final = choose(draw, "windows.final", t=draw.integer(5, 40))
    level = 3.0 + 0.2 * k + (0.8 if final.index else 0.0)
    cases = number_lists(draw, 6, 0, 30)
    return code_draft(draw, "windows", cases, level, k=k, last=k - 1, stat=stat, final=final)


def grouping(draw: Draw) -> Draft:
    """Group words by a key and reduce each group."""
    k = draw.integer(1, 3)
    first = "first letter" if k == 1 else f"first {k} letters"
    key = choose(draw, "grouping.key", first=first, k=k)
    reduce = choose(draw, "grouping.reduce")
    minimum = draw.integer(2, 3) if draw.chance(0.4) else 1
    extra = f" Groups of fewer than {minimum} words are left out." if minimum > 1 else ""
    words = FACTS["vocabulary"]
    cases: list[Case] = [([draw.pick(words) for _ in range(draw.integer(3, 8))],) for _ in range(4)]
    level = 3.0 + (0.8 if minimum > 1 else 0.0)
    values = {"key": key, "reduce": reduce, "minimum": minimum, "extra": extra}
    return code_draft(draw, "grouping", [*cases, ([],)], level, **values)


def ranking(draw: Draw) -> Draft:
    """Sort records by two keys and take some of them."""
    down, longest_first = draw.chance(0.5), draw.chance(0.5)
    field = draw.pick(("score", "price", "age", "weight"))
    k = draw.integer(1, 4)
    floor = draw.integer(3, 12) if draw.chance(0.5) else None
    keep = Choice(f"drops those whose {field} is below {floor}, ", f" if p[1] >= {floor}")
    order = Choice("descending", "-p[1]") if down else Choice("ascending", "p[1]")
    ties, tie_key = " and pairs that tie by name", ""
    if longest_first:
        ties, tie_key = (
            ", then by the length of the name (longest first), then by name",
            "-len(p[0])",
        )
    cases: list[Case] = []
    for _ in range(4):
        names = draw.sample(FACTS["vocabulary"], draw.integer(3, 7))
        cases.append(([(name, draw.integer(1, 15)) for name in names],))
    values = {"field": field, "keep": keep if floor else NOTHING, "order": order, "ties": ties}
    values |= {"k": k, "key": ", ".join(filter(None, (order.source, tie_key, "p[0]")))}
    level = 3.2 + (0.7 if floor else 0.0) + (0.9 if longest_first else 0.0)
    return code_draft(draw, "ranking", [*cases, ([],)], level, **values)


def intervals(draw: Draw) -> Draft:
    """Merge intervals and measure them."""
    shortest = draw.integer(2, 4) if draw.chance(0.5) else 0
    low, high = draw.integer(0, 4), draw.integer(18, 30)
    clip = draw.chance(0.4)
    rest = "the rest" if shortest else "them"
    final = choose(draw, "intervals.final")
    cases: list[Case] = []
    for _ in range(5):
        starts = draw.integers(draw.integer(2, 6), 0, 30)
        cases.append(([[s, s + draw.integer(1, 8)] for s in starts],))
    drop = optional(shortest > 0, "intervals.drop", shortest=shortest)
    cut = optional(clip, "intervals.cut", rest=rest, low=low, high=high)
    level = 4.2 + (0.8 if shortest else 0.0) + (1.2 if clip else 0.0)
    return code_draft(draw, "intervals", [*cases, ([],)], level, drop=drop, cut=cut, final=final)


def pairs(draw: Draw) -> Draft:
    """Count or find pairs of positions with a property."""
    relation = choose(draw, "pairs.relation", k=draw.integer(3, 20), m=draw.integer(2, 6))
    near = draw.integer(2, 4) if draw.chance(0.4) else None
    apart = f" and j - i <= {near}" if near else ""
    final = choose(draw, "pairs.final")
    level = 3.0 + (0.7 if near else 0.0) + (0.6 if final.index else 0.0)
    cases = number_lists(draw, 6, 0, 15)
    return code_draft(draw, "pairs", cases, level, relation=relation, apart=apart, final=final)


def slices(draw: Draw) -> Draft:
    """Rearrange a list by several slicing moves."""
    k, m = draw.integer(2, 4), draw.integer(1, 3)
    moves = rows("slices.moves", k=k, m=m, kth=ordinal(k), few=k + m)
    chosen = draw.sample(moves, draw.integer(2, 4))
    cases = number_lists(draw, 6, 1, 6, longest=11)
    return code_draft(draw, "slices", cases, 1.6 + 1.0 * len(chosen), moves=in_turn(chosen))


def matrix_region(draw: Draw) -> Draft:
    """Aggregate over a region of a square matrix."""
    region = choose(draw, "matrix_region.region", k=draw.integer(2, 3))
    t = draw.integer(3, 7)
    final = choose(draw, "matrix_region.final", t=t, m=t + 90)
    sizes = draw.shuffled((2, 3, 4, 5))
    cases: list[Case] = [([draw.integers(n, 0, 12) for _ in range(n)],) for n in sizes]
    level = 2.8 + 0.1 * len(region.source) ** 0.8
    return code_draft(draw, "matrix_region", cases, level, region=region, final=final)


def matrix_turns(draw: Draw) -> Draft:
    """Turn, mirror and transpose a matrix in a given order."""
    count = draw.integer(1, 4)
    moves = in_turn([choose(draw, "matrix_turns.moves") for _ in range(count)])
    cases: list[Case] = []
    for _ in range(4):
        width = draw.integer(1, 4)
        cases.append(([draw.integers(width, 0, 9) for _ in range(draw.integer(1, 4))],))
    return code_draft(draw, "matrix_turns", cases, 1.8 + 1.1 * count, moves=moves)


FAMILIES = (
    *(keep_map_reduce, windows, grouping, ranking, intervals, pairs, slices),
    *(matrix_region, matrix_turns),
)
