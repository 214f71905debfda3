"""Number theory, algebra and sequences."""

from __future__ import annotations

import math
from fractions import Fraction

from benchmarks.builtin_tasks.draft import Draft, Draw, listing, size_level
from benchmarks.builtin_tasks.math_draft import posed
from inframind_gym.tasks.taskset import Answer


def signed(value: int, symbol: str = "") -> str:
    """Return " + 3x" or " - 3x"; a coefficient of 1 is left out before a symbol."""
    size = "" if symbol and abs(value) == 1 else str(abs(value))
    return f" {'-' if value < 0 else '+'} {size}{symbol}"


def modular_power(draw: Draw) -> Draft:
    """The remainder of a power, or of a sum of two powers."""
    a, n = draw.integer(2, 60), draw.pick((3, 5, 9, 17, 40, 123, 1000)) + draw.integer(0, 9)
    m = draw.pick((7, 9, 10, 11, 13, 17, 19, 23, 37, 100, 101, 1000))
    endings = {10: "last digit", 100: "last two digits", 1000: "last three digits"}
    level = 2.0 + 0.9 * size_level(n) + 0.9 * size_level(m) + 0.3 * size_level(a)
    kind = 2 if draw.chance(0.35) else int(m in endings)
    return posed(draw, "modular_power", kind, level, a=a, n=n, m=m, ending=endings.get(m))


def remainders(draw: Draw) -> Draft:
    """The smallest positive integer with given remainders."""
    count = draw.integer(2, 3)
    moduli = sorted(draw.sample((3, 4, 5, 7, 11, 13, 17), count))
    secret = draw.integer(2, math.prod(moduli) - 1)
    clauses = listing([f"{secret % m} when divided by {m}" for m in moduli])
    level = 3.0 + 1.3 * count + 0.5 * size_level(secret)
    return posed(draw, "remainders", 0, level, moduli=moduli, clauses=clauses, secret=secret)


def linear_equation(draw: Draw) -> Draft:
    """One unknown on both sides, with brackets."""
    letter = draw.pick("xyztn")
    solution = draw.integer(-40, 40)
    a, c = draw.sample((2, 3, 4, 5, 6, 7, 8, 9, -2, -3, -4), 2)
    b = draw.integer(1, 30) * draw.pick((1, -1))
    steps = draw.integer(1, 3)
    left = f"{a}{letter}{signed(b)}" if steps == 1 else f"{a}({letter}{signed(b)})"
    value = a * solution + b if steps == 1 else a * (solution + b)
    right = str(value)
    if steps == 3:
        rest = value - c * solution
        right = f"{c}{letter}{signed(rest) if rest else ''}"
    level = 0.8 + 0.9 * steps + 0.3 * size_level(value)
    values = {"letter": letter, "left": left, "right": right, "solution": solution}
    return posed(draw, "linear_equation", 0, level, **values)


def base_digits(draw: Draw) -> Draft:
    """Digits and bases."""
    base = draw.integer(2, 9)
    value = draw.integer(20, 20 * 10 ** draw.integer(1, 3))
    digits, rest = [], value
    while rest:
        digits.append(rest % base)
        rest //= base
    written = "".join(str(d) for d in reversed(digits))
    kind = draw.integer(0, 2)
    digit = draw.pick(digits) if kind == 2 else None
    values = {"base": base, "value": value, "written": written, "digits": digits, "digit": digit}
    return posed(draw, "base_digits", kind, 1.8 + 0.4 * len(digits), **values)


def common_multiple(draw: Draw) -> Draft:
    """Events that repeat: when do they fall together again."""
    count = draw.integer(2, 4)
    periods = sorted(draw.sample((4, 6, 8, 9, 10, 12, 14, 15, 16, 18, 20, 21, 24, 28, 30), count))
    together = math.lcm(*periods)
    things = draw.pick(("bells ring", "lights blink", "buses leave the stop", "buoys flash"))
    unit = draw.pick(("seconds", "minutes"))
    events = f"{count} {things} every {listing(periods)} {unit} respectively"
    level = 2.0 + 0.9 * count + 0.5 * size_level(together)
    if draw.chance(0.4):
        span = together * draw.integer(2, 9) + draw.integer(1, together - 1)
        return posed(draw, "common_multiple", 1, level, events=events, together=together, span=span)
    return posed(draw, "common_multiple", 0, level, events=events, together=together)


def progression(draw: Draw) -> Draft:
    """Terms and sums of arithmetic and geometric sequences."""
    first, step, n = draw.integer(-20, 50), draw.integer(2, 15), draw.integer(8, 120)
    if draw.chance(0.3):
        ratio, m = draw.integer(2, 4), draw.integer(4, 9)
        start = draw.integer(1, 9)
        terms = ", ".join(str(start * ratio**i) for i in range(3))
        values = {"terms": terms, "start": start, "ratio": ratio, "m": m}
        return posed(draw, "geometric", draw.integer(0, 1), 2.5 + 0.3 * m, **values)
    last = first + step * (n - 1)
    terms = ", ".join(str(first + step * i) for i in range(3))
    level = 2.0 + 0.8 * size_level(n, first * n)
    values = {"terms": terms, "first": first, "last": last, "n": n}
    return posed(draw, "arithmetic", draw.integer(0, 2), level, **values)


def recurrence(draw: Draw) -> Draft:
    """A sequence given by a rule, walked by hand."""
    p, q = draw.integer(1, 3), draw.pick((-2, -1, 1, 2))
    a, b = draw.integer(0, 5), draw.integer(1, 6)
    n = draw.integer(5, 11)
    values = [a, b]
    while len(values) <= n:
        values.append(p * values[-1] + q * values[-2])
    rule = f"{'' if p == 1 else p}f(n-1){signed(q, 'f(n-2)')}"
    level = 1.5 + 0.45 * n + 0.3 * size_level(values[n])
    return posed(draw, "recurrence", 0, level, a=a, b=b, n=n, rule=rule, values=values)


def quadratic(draw: Draw) -> Draft:
    """Roots of a quadratic, and symmetric functions of them."""
    letter = draw.pick("xyzt")
    r, s = draw.integer(-15, 15), draw.integer(-15, 15)
    middle = signed(-(r + s), letter) if r + s else ""
    last = signed(r * s) if r * s else ""
    level = 2.5 + 0.6 * size_level(r, s)
    values = {"letter": letter, "r": r, "s": s, "p": f"{letter}^2{middle}{last}"}
    return posed(draw, "quadratic", draw.integer(0, 3), level, **values)


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
        symbol = "" if power == 0 else letter if power == 1 else f"{letter}^{power}"
        terms += signed(coefficients[power], symbol) if coefficients[power] else ""
    written = "".join(
        f"({'' if a == 1 else a}{letter}{signed(b)})" for a, b in zip(slopes, shifts, strict=True)
    )
    ask = draw.pick(("Expand and collect like terms", "Write as a polynomial in descending powers"))
    level = 1.0 + 1.4 * factors + 0.5 * size_level(*coefficients)
    polynomial = terms.removeprefix(" + ").replace(" ", "")
    return Draft(f"{ask}: {written}", Answer("expression", polynomial), level)


def fraction_sum(draw: Draw) -> Draft:
    """Sums, differences and products of fractions in lowest terms."""
    count = draw.integer(2, 4)
    parts = [Fraction(draw.integer(1, 11), draw.integer(2, 15)) for _ in range(count)]
    signs = ["+"] + [draw.pick("+-") for _ in range(count - 1)]
    total = sum((p if s == "+" else -p for p, s in zip(parts, signs, strict=True)), Fraction(0))
    written = " ".join(f"{s} {p}" for s, p in zip(signs, parts, strict=True)).removeprefix("+ ")
    level = 1.5 + 0.9 * count + 0.4 * size_level(total.denominator)
    return posed(draw, "fraction_sum", draw.chance(0.3), level, total=total, written=written)


FAMILIES = (
    *(modular_power, remainders, linear_equation, base_digits, common_multiple),
    *(progression, recurrence, quadratic, expand_product, fraction_sum),
)
