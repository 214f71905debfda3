"""Write-a-function tasks over integers: digits, recurrences, dynamic programming."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.builtin_tasks.code_draft import (
    NOTHING,
    Case,
    Choice,
    choose,
    code_draft,
    rows,
)
from benchmarks.builtin_tasks.draft import Draft, Draw, listing


def properties(draw: Draw) -> Choice:
    """Return a property of a positive integer n."""
    k = draw.integer(3, 9)
    return choose(draw, "properties", k=k, rest=k % 4 + 1)


def count_numbers(draw: Draw) -> Draft:
    """Count, add up or list the numbers up to a limit with two properties."""
    first, second = properties(draw), properties(draw)
    joint = draw.integer(0, 2)
    while second.source == first.source:
        second = properties(draw)
    condition = rows("count_numbers.condition", first=first, second=second)[joint]
    final = choose(draw, "count_numbers.final")
    cases: list[Case] = [(draw.integer(low, 4 * low),) for low in (12, 40, 90, 150)]
    level = 2.2 + 0.02 * len(condition.source)
    return code_draft(
        draw, "count_numbers", [*cases, (1,)], level, condition=condition, final=final
    )


def kth_number(draw: Draw) -> Draft:
    """The k-th integer with a property, from a start, in steps."""
    wanted = properties(draw)
    start, step = draw.integer(1, 60), draw.pick((1, 1, 2, 3))
    series = f"{start}, {start + step}, {start + 2 * step}, ..."
    cases: list[Case] = [(1,), *((draw.integer(a, b),) for a, b in ((2, 4), (5, 9), (10, 14)))]
    level = 2.4 + 0.02 * len(wanted.source) + 0.2 * step
    values = {"wanted": wanted, "start": start, "step": step, "series": series}
    return code_draft(draw, "kth_number", cases, level, **values)


def digit_folds(draw: Draw) -> Draft:
    """Fold the digits of a number in some base."""
    base = draw.pick((2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 12, 16))
    fold = choose(draw, "digit_folds.fold", base=base)
    rounds = draw.integer(2, 3) if draw.chance(0.3) and fold.index == 0 else 1
    repeat = f" This is repeated {rounds} times in all, each on the result before."

    def cases() -> Iterator[Case]:
        yield from draw.shuffled([(draw.integer(10**i, 10 ** (i + 1)),) for i in range(1, 6)])
        yield (0,)

    values = {"base": base, "fold": fold, "rounds": rounds, "repeat": repeat if rounds > 1 else ""}
    values["imports"] = "import math" if "math" in fold.source else ""
    level = 2.0 + (0.8 if base != 10 else 0.0) + 0.02 * len(fold.source) + 0.5 * rounds
    return code_draft(draw, "digit_folds", cases(), level, **values)


def recurrence_mod(draw: Draw) -> Draft:
    """A linear recurrence modulo m."""
    order = draw.integer(2, 3)
    start = draw.integers(order, 0, 6)
    weights = draw.integers(order, 1, 4)
    constant = draw.integer(0, 5)
    m = draw.pick((97, 100, 127, 1000, 1009, 10007))
    terms = " + ".join(f"{w}·f(n-{i + 1})" for i, w in enumerate(weights))
    terms += f" + {constant}" if constant else ""
    code = " + ".join(f"{w} * f[-{i + 1}]" for i, w in enumerate(weights))
    cases = [(n,) for n in (draw.integer(4, 9), 0, order, draw.integer(10, 40), 75)]
    firsts = listing([f"f({i}) = {v}" for i, v in enumerate(start)])
    rule = Choice(terms, f"{code} + {constant}")
    level = 2.4 + 0.6 * order + 0.3 * bool(constant)
    values = {"start": start, "firsts": firsts, "terms": rule, "m": m}
    return code_draft(draw, "recurrence_mod", cases, level, **values)


def coins(draw: Draw) -> Draft:
    """Ways to pay, or the fewest coins."""
    values = sorted(draw.sample(range(1, 13), draw.integer(2, 4)))
    kind = choose(draw, "coins.kind", values=values, listed=listing(values))
    cases = [(n,) for n in (draw.integer(6, 12), 0, 1, draw.integer(13, 20), 23)]
    return code_draft(draw, "coins", cases, 3.8 + 0.3 * len(values) + 0.2 * kind.index, kind=kind)


def collatz(draw: Draw) -> Draft:
    """Walk a rule on integers until it stops, and report on the walk."""
    d = draw.pick((2, 3, 4))
    a, b = draw.integer(2, 4), draw.integer(1, 5)
    cap = draw.integer(8, 30)
    final = choose(draw, "collatz.final")
    cases = [(d**3,), (draw.integer(3, 9),), (draw.integer(10, 60),), (1,), (97,)]
    values = {"d": d, "a": a, "b": b, "cap": cap, "final": final}
    return code_draft(draw, "collatz", cases, 2.8 + 0.03 * cap, **values)


def subsets(draw: Draw) -> Draft:
    """Choose elements of a list under a restriction, for the best total."""
    gap = draw.integer(1, 3)
    most = draw.integer(2, 4) if draw.chance(0.5) else 0
    bound = Choice("", "len(values)")
    if most:
        bound = Choice(f" and at most {most} elements are chosen", str(most))
    cases: list[Case] = [(draw.integers(draw.integer(4, 9), -6, 20),) for _ in range(4)]
    cases += [([],), ([-3],)]
    level = 4.6 + 0.3 * gap + (0.9 if most else 0.0)
    return code_draft(draw, "subsets", cases, level, gap=gap, next=gap + 1, bound=bound)


def stairs(draw: Draw) -> Draft:
    """Ways to climb stairs with given steps and broken stairs."""
    steps = sorted(draw.sample((1, 2, 3, 4, 5), draw.integer(2, 3)))
    broken = sorted(draw.sample((3, 4, 5, 6, 7, 8, 9), draw.integer(0, 3)))
    m = draw.pick((0, 0, 1000, 97))
    cases = [(n,) for n in (draw.integer(4, 8), 0, 1, draw.integer(9, 14), 24)]
    avoided = f", never standing on stair {listing(broken, 'or')}" if broken else ""
    modulo = Choice(f", modulo {m}", f" % {m}") if m else NOTHING
    values = {"steps": steps, "broken": broken, "avoided": avoided, "modulo": modulo}
    level = 3.0 + 0.3 * len(steps) + 0.5 * len(broken) + (0.3 if m else 0.0)
    return code_draft(draw, "stairs", cases, level, listed=listing(steps, "or"), **values)


FAMILIES = (
    *(count_numbers, kth_number, digit_folds, recurrence_mod, coins, collatz, subsets, stairs),
)
