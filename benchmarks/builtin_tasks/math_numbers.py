"""Number theory, algebra and sequences."""

from __future__ import annotations

import math
from fractions import Fraction

from benchmarks.builtin_tasks.draft import Draft, Draw, listing, number, size_level
from inframind_gym.tasks.taskset import Answer


def signed(value: int, symbol: str = "") -> str:
    """Return " + 3x" or " - 3x"; a coefficient of 1 is left out before a symbol."""
    size = "" if symbol and abs(value) == 1 else str(abs(value))
    return f" {'-' if value < 0 else '+'} {size}{symbol}"


def modular_power(draw: Draw) -> Draft:
    """The remainder of a power, or of a sum of two powers."""
    a, n = draw.integer(2, 60), draw.pick((3, 5, 9, 17, 40, 123, 1000)) + draw.integer(0, 9)
    m = draw.pick((7, 9, 10, 11, 13, 17, 19, 23, 37, 100, 101, 1000))
    level = 2.0 + 0.9 * size_level(n) + 0.9 * size_level(m) + 0.3 * size_level(a)
    if draw.chance(0.35):
        b, k = draw.integer(2, 30), draw.integer(3, 40)
        text = f"What is the remainder when {a}^{n} + {b}^{k} is divided by {m}?"
        return number((pow(a, n, m) + pow(b, k, m)) % m, text, level + 1.2)
    if m in (10, 100, 1000):
        word = {10: "last digit", 100: "last two digits", 1000: "last three digits"}[m]
        text = f"Find the {word} of {a}^{n}, as a number."
    else:
        text = draw.wording(
            f"What is the remainder when {a}^{n} is divided by {m}?",
            f"Compute {a}^{n} modulo {m}.",
        )
    return number(pow(a, n, m), text, level)


def remainders(draw: Draw) -> Draft:
    """The smallest positive integer with given remainders."""
    count = draw.integer(2, 3)
    moduli = sorted(draw.sample((3, 4, 5, 7, 11, 13, 17), count))
    secret = draw.integer(2, math.prod(moduli) - 1)
    clauses = [f"{secret % m} when divided by {m}" for m in moduli]
    text = draw.wording(
        f"Find the smallest positive integer that leaves a remainder of {listing(clauses)}.",
        f"A box holds fewer than {math.prod(moduli)} beads, and at least one. Their number "
        f"leaves a remainder of {listing(clauses)}. How many beads are there?",
    )
    return number(secret, text, 3.0 + 1.3 * count + 0.5 * size_level(secret))


def linear_equation(draw: Draw) -> Draft:
    """One unknown on both sides, with brackets."""
    letter = draw.pick("xyztn")
    solution = draw.integer(-40, 40)
    a, c = draw.sample((2, 3, 4, 5, 6, 7, 8, 9, -2, -3, -4), 2)
    b = draw.integer(1, 30) * draw.pick((1, -1))
    steps = draw.integer(1, 3)
    left = f"{a}{letter}{signed(b)}" if steps == 1 else f"{a}({letter}{signed(b)})"
    value = a * solution + b if steps == 1 else a * (solution + b)
    right, rest = "", value
    if steps == 3:
        right, rest = f"{c}{letter}", value - c * solution
    tail = signed(rest) if right else str(rest)
    if right and rest == 0:
        tail = ""
    text = draw.wording(
        f"Solve for {letter}: {left} = {right}{tail}",
        f"Which value of {letter} satisfies {left} = {right}{tail}?",
        f"Find {letter} if {left} = {right}{tail}.",
    )
    return number(solution, text, 0.8 + 0.9 * steps + 0.3 * size_level(value))


def base_digits(draw: Draw) -> Draft:
    """Digits and bases."""
    base = draw.integer(2, 9)
    value = draw.integer(20, 20 * 10 ** draw.integer(1, 3))
    digits, rest = [], value
    while rest:
        digits.append(rest % base)
        rest //= base
    written = "".join(str(d) for d in reversed(digits))
    level = 1.8 + 0.4 * len(digits)
    kind = draw.integer(0, 2)
    if kind == 0:
        return number(value, f"Write the base-{base} number {written} in base 10.", level)
    if kind == 1:
        text = (
            f"What is the sum of the digits of {value} (base 10) when it is written in base {base}?"
        )
        return number(sum(digits), text, level + 0.8)
    digit = draw.pick(digits)
    text = f"How often does the digit {digit} occur when {value} is written in base {base}?"
    return number(digits.count(digit), text, level + 0.8)


def common_multiple(draw: Draw) -> Draft:
    """Events that repeat: when do they fall together again."""
    count = draw.integer(2, 4)
    periods = sorted(draw.sample((4, 6, 8, 9, 10, 12, 14, 15, 16, 18, 20, 21, 24, 28, 30), count))
    together = math.lcm(*periods)
    things = draw.pick(("bells ring", "lights blink", "buses leave the stop", "buoys flash"))
    listed = listing(periods)
    first = f"{count} {things} every {listed} {draw.pick(('seconds', 'minutes'))} respectively"
    level = 2.0 + 0.9 * count + 0.5 * size_level(together)
    if draw.chance(0.4):
        span = together * draw.integer(2, 9) + draw.integer(1, together - 1)
        text = (
            f"{first}, all together at time 0. How many times after time 0 and up to time {span} "
            "(in the same unit) do all of them fall together?"
        )
        return number(span // together, text, level + 1.0)
    text = f"{first}, all together at time 0. After how much time do they next fall together?"
    return number(together, text, level)


def progression(draw: Draw) -> Draft:
    """Terms and sums of arithmetic and geometric sequences."""
    first, step, n = draw.integer(-20, 50), draw.integer(2, 15), draw.integer(8, 120)
    if draw.chance(0.3):
        ratio, m = draw.integer(2, 4), draw.integer(4, 9)
        start = draw.integer(1, 9)
        terms = ", ".join(str(start * ratio**i) for i in range(3))
        kind = draw.pick(("sum of the first {} terms", "{}th term"))
        value = start * ratio ** (m - 1)
        if kind.startswith("sum"):
            value = start * (ratio**m - 1) // (ratio - 1)
        text = f"A geometric sequence starts {terms}, ... What is the {kind.format(m)}?"
        return number(value, text, 2.5 + 0.3 * m + 0.3 * size_level(value))
    terms = ", ".join(str(first + step * i) for i in range(3))
    level = 2.0 + 0.8 * size_level(n, first * n)
    last = first + step * (n - 1)
    kind_no = draw.integer(0, 2)
    if kind_no == 0:
        ask = f"What is term number {n}, counting the first as number 1?"
        return number(last, f"An arithmetic sequence starts {terms}, ... {ask}", level)
    if kind_no == 1:
        text = f"What is the sum of the first {n} terms of the arithmetic sequence {terms}, ...?"
        return number((first + last) * n // 2, text, level + 1.0)
    text = f"How many terms does the arithmetic sequence {terms}, ..., {last} have?"
    return number(n, text, level + 0.4)


def recurrence(draw: Draw) -> Draft:
    """A sequence given by a rule, walked by hand."""
    p, q = draw.integer(1, 3), draw.pick((-2, -1, 1, 2))
    a, b = draw.integer(0, 5), draw.integer(1, 6)
    n = draw.integer(5, 11)
    values = [a, b]
    while len(values) <= n:
        values.append(p * values[-1] + q * values[-2])
    rule = f"{'' if p == 1 else p}f(n-1){signed(q, 'f(n-2)')}"
    text = f"Let f(0) = {a}, f(1) = {b} and f(n) = {rule} for n ≥ 2. What is f({n})?"
    return number(values[n], text, 1.5 + 0.45 * n + 0.3 * size_level(values[n]))


def quadratic(draw: Draw) -> Draft:
    """Roots of a quadratic, and symmetric functions of them."""
    letter = draw.pick("xyzt")
    r, s = draw.integer(-15, 15), draw.integer(-15, 15)
    middle = signed(-(r + s), letter) if r + s else ""
    last = signed(r * s) if r * s else ""
    equation = f"{letter}^2{middle}{last} = 0"
    kind = draw.integer(0, 3)
    level = 2.5 + 0.6 * size_level(r, s)
    if kind == 0:
        text = f"What is the larger root of {equation}? (Give the root itself if it is double.)"
        return number(max(r, s), text, level)
    if kind == 1:
        text = f"What is the sum of the squares of the roots of {equation}, with multiplicity?"
        return number(r * r + s * s, text, level + 1.0)
    if kind == 2:
        text = f"What is the distance on the number line between the two roots of {equation}?"
        return number(abs(r - s), text, level + 0.5)
    value = draw.integer(-6, 6)
    text = f"Let p({letter}) = {letter}^2{middle}{last}. What is p({value}) + p({value + 1})?"
    total = sum((v - r) * (v - s) for v in (value, value + 1))
    return number(total, text, level + 0.6)


def expand_product(draw: Draw) -> Draft:
    """Expand two or three linear factors; the answer is a polynomial."""
    letter = draw.pick("xyzab")
    factors = draw.integer(2, 3)
    slopes = [draw.integer(1, 4) for _ in range(factors)]
    shifts = [draw.integer(1, 9) * draw.pick((1, -1)) for _ in range(factors)]
    coefficients = [1]  # of 1, x, x^2, ...
    for a, b in zip(slopes, shifts, strict=True):
        grown = [0] * (len(coefficients) + 1)
        for power, value in enumerate(coefficients):
            grown[power] += b * value
            grown[power + 1] += a * value
        coefficients = grown
    terms = ""
    for power in range(factors, -1, -1):
        value = coefficients[power]
        if value:
            symbol = "" if power == 0 else letter if power == 1 else f"{letter}^{power}"
            terms += signed(value, symbol)
    polynomial = terms.removeprefix(" + ").replace(" ", "")
    written = "".join(
        f"({'' if a == 1 else a}{letter}{signed(b)})" for a, b in zip(slopes, shifts, strict=True)
    )
    ask = draw.pick(("Expand and collect like terms", "Write as a polynomial in descending powers"))
    level = 1.0 + 1.4 * factors + 0.5 * size_level(*coefficients)
    return Draft(f"{ask}: {written}", Answer("expression", polynomial), level)


def fraction_sum(draw: Draw) -> Draft:
    """Sums, differences and products of fractions in lowest terms."""
    count = draw.integer(2, 4)
    parts = [Fraction(draw.integer(1, 11), draw.integer(2, 15)) for _ in range(count)]
    signs = ["+"] + [draw.pick("+-") for _ in range(count - 1)]
    total = sum((p if s == "+" else -p for p, s in zip(parts, signs, strict=True)), Fraction(0))
    written = " ".join(f"{s} {p}" for s, p in zip(signs, parts, strict=True)).removeprefix("+ ")
    level = 1.5 + 0.9 * count + 0.4 * size_level(total.denominator)
    if draw.chance(0.3):
        k = draw.integer(2, 9)
        text = f"Compute {k} × ({written}) as a fraction in lowest terms or as an integer."
        return number(k * total, text, level + 0.5)
    return number(total, f"Compute {written} as a fraction in lowest terms or an integer.", level)


FAMILIES = (
    *(modular_power, remainders, linear_equation, base_digits, common_multiple),
    *(progression, recurrence, quadratic, expand_product, fraction_sum),
)
