"""Write-a-function tasks over integers: digits, recurrences, dynamic programming."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import combinations, pairwise, product

from inframind_gym.tasks.generators.code_tasks import Case, code_draft, pick_op
from inframind_gym.tasks.generators.draft import Draft, Draw, listing

Property = tuple[str, str, Callable[[int], bool]]  # phrase, Python expression in n, function


def properties(draw: Draw) -> Property:
    """A property of a positive integer n."""
    k = draw.integer(3, 9)
    options: tuple[Property, ...] = (
        (f"divisible by {k}", f"n % {k} == 0", lambda n: not n % k),
        ("a perfect square", "round(n ** 0.5) ** 2 == n", lambda n: math.isqrt(n) ** 2 == n),
        ("prime", "n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))",
         lambda n: sum(n % d == 0 for d in range(1, n + 1)) == 2),
        ("a palindrome in base 10", "str(n) == str(n)[::-1]",
         lambda n: list(str(n)) == list(reversed(str(n)))),
        (f"such that its digits (base 10) add up to a multiple of {k}",
         f"sum(map(int, str(n))) % {k} == 0", lambda n: sum(int(d) for d in str(n)) % k == 0),
        (f"free of the digit {k}", f"'{k}' not in str(n)",
         lambda n: all(n // 10**i % 10 != k for i in range(6))),
        ("divisible by each of its digits other than 0",
         "all(n % int(d) == 0 for d in str(n) if d != '0')",
         lambda n: all(not n % d for d in {int(c) for c in str(n)} - {0})),
        ("such that its binary form holds an even number of ones", "bin(n).count('1') % 2 == 0",
         lambda n: sum(n >> i & 1 for i in range(20)) % 2 == 0),
        (f"equal to {k % 4 + 1} modulo {k}", f"n % {k} == {k % 4 + 1} % {k}",
         lambda n: (n - (k % 4 + 1)) % k == 0),
    )  # fmt: skip
    return draw.pick(options)


def count_numbers(draw: Draw) -> Draft:
    """Count, add up or list the numbers up to a limit with two properties."""
    first, second = properties(draw), properties(draw)
    joint = draw.pick(("and", "or", "but not"))
    while second[1] == first[1]:
        second = properties(draw)
    source = {"and": "({}) and ({})", "or": "({}) or ({})", "but not": "({}) and not ({})"}[joint]
    final = pick_op(
        draw,
        (
            ("how many there are", "len(found)", len),
            ("their sum", "sum(found)", sum),
            ("the list of the last three of them (or fewer)", "found[-3:]", lambda v: v[-3:]),
            ("the largest of them (or 0)", "max(found, default=0)",
             lambda v: max([0, *v])),
        )
    )  # fmt: skip

    def expected(limit: int) -> object:
        found = []
        for n in range(1, limit + 1):
            a, b = first[2](n), second[2](n)
            if {"and": a and b, "or": a or b, "but not": a and not b}[joint]:
                found.append(n)
        return final[2](found)

    condition = source.format(first[1], second[1])
    cases: list[Case] = [(draw.integer(low, 4 * low),) for low in (12, 40, 90, 150)]
    return code_draft(
        draw,
        name=draw.pick(("count_special", "survey", "special_numbers")),
        parameters="limit",
        task=(
            "looks at the integers from 1 to limit (included) that are "
            f"{first[0]} {joint} {second[0]}, and returns {final[0]}."
        ),
        body=f"found = [n for n in range(1, limit + 1) if {condition}]\nreturn {final[1]}",
        expected=expected,
        cases=[*cases, (1,)],
        level=2.2 + 0.02 * len(condition),
    )


def kth_number(draw: Draw) -> Draft:
    """The k-th integer with a property, from a start, in steps."""
    wanted = properties(draw)
    start, step = draw.integer(1, 60), draw.pick((1, 1, 2, 3))
    series = f"{start}, {start + step}, {start + 2 * step}, ..."
    body = (
        f"n, found = {start}, 0\nwhile n < 600:\n    if {wanted[1]}:\n        found += 1\n"
        f"        if found == k:\n            return n\n    n += {step}\nreturn -1"
    )

    def expected(k: int) -> object:
        hits = [n for n in range(start, 600, step) if wanted[2](n)]
        return hits[k - 1] if len(hits) >= k else -1

    cases: list[Case] = [
        (1,),
        (draw.integer(2, 4),),
        (draw.integer(5, 9),),
        (draw.integer(10, 14),),
    ]
    return code_draft(
        draw,
        name=draw.pick(("kth_number", "nth_match", "find_kth")),
        parameters="k",
        task=(
            f"returns the k-th (from 1) number of the series {series} below 600 that is "
            f"{wanted[0]}, or -1 if there are fewer."
        ),
        body=body,
        expected=expected,
        cases=cases,
        level=2.4 + 0.02 * len(wanted[1]) + 0.2 * step,
    )


def digit_folds(draw: Draw) -> Draft:
    """Fold the digits of a number in some base."""
    base = draw.pick((2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 12, 16))
    fold = pick_op(
        draw,
        (
            ("the sum of its digits", "sum(digits)", sum),
            ("the product of its digits other than 0", "math.prod(d for d in digits if d)",
             lambda v: math.prod([d for d in v if d != 0])),
            ("the number of its digits that are larger than the digit to their left",
             "sum(a > b for a, b in zip(digits, digits[1:]))",
             lambda v: len([i for i in range(1, len(v)) if v[i - 1] > v[i]])),
            ("the largest digit minus the smallest", "max(digits) - min(digits)",
             lambda v: sorted(v)[-1] - sorted(v)[0]),
            ("the number with the same digits in reverse order (as an integer)",
             f"sum(d * {base} ** i for i, d in enumerate(digits[::-1]))",
             lambda v: sum(d * base ** (len(v) - 1 - i) for i, d in enumerate(v))),
            ("the number of distinct digits", "len(set(digits))", lambda v: len(dict.fromkeys(v))),
        )
    )  # fmt: skip
    again = draw.chance(0.3) and fold[0] == "the sum of its digits"
    rounds = draw.integer(2, 3) if again else 1
    name = draw.pick(("digit_value", "digits_fold", "from_digits"))
    repeat = f" This is repeated {rounds} times in all, each on the result before." if again else ""
    body = (
        f"import math\nfor _ in range({rounds}):\n    digits = []\n    while True:\n"
        f"        digits.append(n % {base})\n        n //= {base}\n        if n == 0:\n"
        f"            break\n    n = {fold[1]}\nreturn n"
    ).replace("import math\n", "import math\n" if "math" in fold[1] else "")

    def expected(n: int) -> object:
        value = n
        for _ in range(rounds):
            size = 1
            while base**size <= value:
                size += 1
            value = fold[2]([value // base**i % base for i in range(size)])
        return value

    cases: list[Case] = [(draw.integer(10**i, 10 ** (i + 1)),) for i in range(1, 6)]
    return code_draft(
        draw,
        name=name,
        parameters="n",
        task=f"writes an integer n ≥ 0 in base {base} and returns {fold[0]}.{repeat}",
        body=body,
        expected=expected,
        cases=[*draw.shuffled(cases), (0,)],
        level=2.0 + (0.8 if base != 10 else 0.0) + 0.02 * len(fold[1]) + 0.5 * rounds,
    )


def recurrence_mod(draw: Draw) -> Draft:
    """A linear recurrence modulo m."""
    order = draw.integer(2, 3)
    start = draw.integers(order, 0, 6)
    weights = draw.integers(order, 1, 4)
    constant = draw.integer(0, 5)
    m = draw.pick((97, 100, 127, 1000, 1009, 10007))
    terms = " + ".join(f"{w}·f(n-{i + 1})" for i, w in enumerate(weights))
    terms += f" + {constant}" if constant else ""
    firsts = listing([f"f({i}) = {v}" for i, v in enumerate(start)])
    body = (
        f"f = {start!r}\nwhile len(f) <= n:\n    f.append(("
        + " + ".join(f"{w} * f[-{i + 1}]" for i, w in enumerate(weights))
        + f" + {constant}) % {m})\nreturn f[n]"
    )

    def expected(n: int) -> object:
        @cache
        def f(i: int) -> int:
            if i < order:
                return start[i]
            return (sum(w * f(i - 1 - j) for j, w in enumerate(weights)) + constant) % m

        return [f(i) for i in range(n + 1)][n]

    cases: list[Case] = [(n,) for n in (draw.integer(4, 9), 0, order, draw.integer(10, 40), 75)]
    return code_draft(
        draw,
        name=draw.pick(("sequence_term", "recur", "term")),
        parameters="n",
        task=f"returns f(n) for n ≥ 0, where {firsts}, and f(n) = ({terms}) mod {m} from there on.",
        body=body,
        expected=expected,
        cases=cases,
        level=2.4 + 0.6 * order + 0.3 * bool(constant),
    )


def coins(draw: Draw) -> Draft:
    """Ways to pay, or the fewest coins."""
    values = sorted(draw.sample((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), draw.integer(2, 4)))
    kind = draw.integer(0, 2)
    task = (
        "returns in how many ways an amount can be paid with coins of {}, each as often as you "
        "like, if the order does not matter",
        "returns the smallest number of coins of {}, each as often as you like, that make up an "
        "amount, or -1 if it cannot be paid",
        "returns in how many ways an amount can be paid with coins of {}, each as often as you "
        "like, if coins paid in another order count as another way",
    )[kind].format(listing([str(v) for v in values]))
    if kind == 0:
        body = (
            f"ways = [1] + [0] * amount\nfor c in {values!r}:\n"
            "    for a in range(c, amount + 1):\n        ways[a] += ways[a - c]\n"
            "return ways[amount]"
        )
    elif kind == 1:
        body = (
            "best = [0] + [None] * amount\nfor a in range(1, amount + 1):\n"
            f"    known = [best[a - c] for c in {values!r} if c <= a]\n"
            "    known = [b for b in known if b is not None]\n"
            "    best[a] = min(known) + 1 if known else None\n"
            "return -1 if best[amount] is None else best[amount]"
        )
    else:
        body = (
            "ways = [1]\nfor a in range(1, amount + 1):\n"
            f"    ways.append(sum(ways[a - c] for c in {values!r} if c <= a))\n"
            "return ways[amount]"
        )

    def expected(amount: int) -> object:
        total, fewest = 0, -1
        for counts in product(*(range(amount // v + 1) for v in values)):
            if sum(n * v for n, v in zip(counts, values, strict=True)) == amount:
                orders = math.factorial(sum(counts))
                for n in counts:
                    orders //= math.factorial(n)
                total += orders if kind == 2 else 1
                fewest = sum(counts) if fewest < 0 else min(fewest, sum(counts))
        return fewest if kind == 1 else total

    cases: list[Case] = [(n,) for n in (draw.integer(6, 12), 0, 1, draw.integer(13, 20), 23)]
    return code_draft(
        draw,
        name=draw.pick(("pay", "coin_count", "change_ways")),
        parameters="amount",
        task=f"{task}.",
        body=body,
        expected=expected,
        cases=cases,
        level=3.8 + 0.3 * len(values) + 0.2 * kind,
    )


def collatz(draw: Draw) -> Draft:
    """Walk a rule on integers until it stops, and report on the walk."""
    d = draw.pick((2, 3, 4))
    a, b = draw.integer(2, 4), draw.integer(1, 5)
    cap = draw.integer(8, 30)
    final = pick_op(
        draw,
        (
            ("the largest number met, the start included", "max(walk)", max),
            ("the number of steps taken", "len(walk) - 1", lambda w: len(w) - 1),
            ("the last number", "walk[-1]", lambda w: w[-1]),
            ("how many of the numbers met, the start included, are even",
             "sum(x % 2 == 0 for x in walk)", lambda w: len([x for x in w if not x % 2])),
            ("the sum of the numbers met, the start included, modulo 1000",
             "sum(walk) % 1000", lambda w: sum(x % 1000 for x in w) % 1000),
        )
    )  # fmt: skip
    body = (
        f"walk = [n]\nwhile walk[-1] != 1 and len(walk) <= {cap}:\n    x = walk[-1]\n"
        f"    walk.append(x // {d} if x % {d} == 0 else {a} * x + {b})\nreturn {final[1]}"
    )

    def expected(n: int) -> object:
        walk, x = [n], n
        for _ in range(cap):
            if x == 1:
                break
            x = (x // d) if x % d == 0 else a * x + b
            walk.append(x)
        return final[2](walk)

    cases: list[Case] = [(d**3,), (draw.integer(3, 9),), (draw.integer(10, 60),), (1,), (97,)]
    return code_draft(
        draw,
        name=draw.pick(("walk", "orbit", "iterate")),
        parameters="n",
        task=(
            f"starts from an integer n ≥ 1 and repeats: a number x divisible by {d} becomes "
            f"x / {d}, any other x becomes {a}x + {b}. It stops at 1 or after {cap} steps, and "
            f"returns {final[0]}."
        ),
        body=body,
        expected=expected,
        cases=cases,
        level=2.8 + 0.03 * cap,
    )


def subsets(draw: Draw) -> Draft:
    """Choose elements of a list under a restriction, for the best total."""
    gap = draw.integer(1, 3)
    most = draw.integer(2, 4) if draw.chance(0.5) else None
    task = (
        "returns the largest sum of elements of a list of integers that can be chosen so that any "
        f"two chosen positions differ by more than {gap}"
    )
    task += f" and at most {most} elements are chosen" if most else ""
    task += ". Choosing none gives 0."
    bound = most if most else "len(values)"
    body = (
        f"from functools import lru_cache\n@lru_cache(maxsize=None)\ndef best(i, left):\n"
        "    if i >= len(values) or left == 0:\n        return 0\n"
        f"    return max(best(i + 1, left), values[i] + best(i + {gap + 1}, left - 1))\n"
        f"return best(0, {bound})"
    )

    def expected(values: list[int]) -> object:
        top = 0
        for size in range(1, (most or len(values)) + 1):
            for chosen in combinations(range(len(values)), size):
                if all(b - a > gap for a, b in pairwise(chosen)):
                    top = max(top, sum(values[i] for i in chosen))
        return top

    cases: list[Case] = [(draw.integers(draw.integer(4, 9), -6, 20),) for _ in range(4)]
    return code_draft(
        draw,
        name=draw.pick(("best_sum", "choose", "spaced_sum")),
        parameters="values",
        task=task,
        body=body,
        expected=expected,
        cases=[*cases, ([],), ([-3],)],
        level=4.6 + 0.3 * gap + (0.9 if most else 0.0),
    )


def stairs(draw: Draw) -> Draft:
    """Ways to climb stairs with given steps and broken stairs."""
    steps = sorted(draw.sample((1, 2, 3, 4, 5), draw.integer(2, 3)))
    broken = sorted(draw.sample((3, 4, 5, 6, 7, 8, 9), draw.integer(0, 3)))
    m = draw.pick((0, 0, 1000, 97))
    task = (
        f"returns in how many ways one can climb exactly n stairs with steps of "
        f"{listing([str(s) for s in steps], 'or')} stairs at a time"
    )
    if broken:
        task += f", never standing on stair {listing([str(s) for s in broken], 'or')}"
    task += f", modulo {m}" if m else ""
    task += ". There is one way to climb 0 stairs."
    body = (
        "ways = [1]\nfor i in range(1, n + 1):\n"
        f"    reached = sum(ways[i - s] for s in {steps!r} if s <= i)\n"
        f"    ways.append(0 if i in {broken!r} else reached)\n"
        f"return ways[n]{f' % {m}' if m else ''}"
    )

    def expected(n: int) -> object:
        reach = {0: 1}  # forward, stair by stair
        for i in range(n):
            for s in steps:
                if i in reach and i + s not in broken:
                    reach[i + s] = reach.get(i + s, 0) + reach[i]
        return reach.get(n, 0) % m if m else reach.get(n, 0)

    cases: list[Case] = [(n,) for n in (draw.integer(4, 8), 0, 1, draw.integer(9, 14), 24)]
    return code_draft(
        draw,
        name=draw.pick(("climb", "ways_up", "stair_ways")),
        parameters="n",
        task=task,
        body=body,
        expected=expected,
        cases=cases,
        level=3.0 + 0.3 * len(steps) + 0.5 * len(broken) + (0.3 if m else 0.0),
    )


FAMILIES = (
    *(count_numbers, kth_number, digit_folds, recurrence_mod, coins, collatz, subsets, stairs),
)
