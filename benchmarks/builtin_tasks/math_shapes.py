"""Counting, probability and geometry."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product

from benchmarks.builtin_tasks.draft import FACTS, Draft, Draw, listing, size_level
from benchmarks.builtin_tasks.math_draft import TEMPLATES, posed, worded
from inframind_gym.tasks.taskset import Answer

TRIPLES = ((3, 4, 5), (5, 12, 13), (8, 15, 17), (7, 24, 25), (20, 21, 29), (9, 40, 41))


def committee(draw: Draw) -> Draft:
    """Choosing people from two groups."""
    first, second = draw.pick(
        (("women", "men"), ("chemists", "physicists"), ("seniors", "juniors"), ("dogs", "cats"))
    )
    a, b = draw.integer(4, 14), draw.integer(4, 14)
    i, j = draw.integer(1, 4), draw.integer(1, 4)
    level = 2.8 + 0.5 * size_level(a, b) + 0.2 * (i + j)
    values = {"first": first, "second": second, "a": a, "b": b, "i": i, "j": j}
    return posed(draw, "committee", draw.chance(0.5), level, **values)


def arrangements(draw: Draw) -> Draft:
    """Orders of the letters of a word, or of people in a row."""
    if draw.chance(0.6):
        word = draw.pick(FACTS["letter_words"])
        pinned = draw.pick(sorted(set(word))) if draw.chance(0.4) else ""
        level = 3.0 + 0.35 * len(word)
        family = "arrangements_of_letters"
        return posed(draw, family, bool(pinned), level, word=word, pinned=pinned)
    people = draw.integer(4, 9)
    things = draw.pick(("friends", "books", "flags", "cars"))
    kind, level = draw.chance(0.5), 3.0 + 0.3 * people
    return posed(draw, "arrangements_in_a_row", kind, level, people=people, things=things)


def multiples_between(draw: Draw) -> Draft:
    """Inclusion and exclusion over multiples."""
    low = draw.integer(1, 200)
    high = low + draw.pick((80, 400, 3000)) + draw.integer(0, 99)
    a, b = sorted(draw.sample((2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), 2))
    kind = draw.integer(0, 2)
    level = 2.6 + 0.6 * kind + 0.5 * size_level(high)
    return posed(draw, "multiples_between", kind, level, low=low, high=high, a=a, b=b)


def dice(draw: Draw) -> Draft:
    """The probability of a sum, a maximum or a product of dice."""
    count, sides = draw.integer(2, 3), draw.pick((4, 6, 6, 8, 10))
    kind = draw.integer(0, 2)
    values = {"target": draw.integer(count + 1, count * sides - 1), "top": draw.integer(2, sides)}
    values["divisor"] = draw.pick((3, 4, 5)) if sides > 4 else 3
    words = {2: "Two", 3: "Three"}[count]
    rolled = worded(draw, TEMPLATES["dice_rolled"], words=words, sides=sides)
    rolls = list(product(range(1, sides + 1), repeat=count))
    level = 2.5 + 1.1 * count + 0.15 * sides
    return posed(draw, "dice", kind, level, rolled=rolled, rolls=rolls, **values)


def marbles(draw: Draw) -> Draft:
    """Draws without replacement."""
    colours = draw.sample(("red", "blue", "green", "white", "black", "yellow"), draw.integer(2, 4))
    counts = [draw.integer(2, 9) for _ in colours]
    taken = draw.integer(2, 3)
    bag = listing([f"{n} {c}" for n, c in zip(counts, colours, strict=True)])
    level = 2.6 + 0.9 * taken + 0.4 * len(colours)
    values = {"counts": counts, "total": sum(counts), "taken": taken, "bag": bag}
    if draw.chance(0.5):
        return posed(draw, "marbles", 1, level, **values)
    k = draw.integer(0, len(colours) - 1)
    return posed(draw, "marbles", 0, level, colour=colours[k], wanted=counts[k], **values)


def grid_paths(draw: Draw) -> Draft:
    """Shortest ways through a grid of streets, perhaps around a closed crossing."""
    w, h = draw.integer(2, 8), draw.integer(2, 8)
    paths, level = math.comb(w + h, w), 2.2 + 0.2 * (w + h)
    if draw.chance(0.5):
        x, y = draw.integer(0, w), draw.integer(1, h - 1)
        through = math.comb(x + y, x) * math.comb(w - x + h - y, w - x)
        values = {"x": x, "y": y, "through": through}
        kind = 2 if draw.chance(0.5) else 1
        return posed(draw, "grid_paths", kind, level, w=w, h=h, paths=paths, **values)
    return posed(draw, "grid_paths", 0, level, w=w, h=h, paths=paths)


def border_path(draw: Draw) -> Draft:
    """A path around a rectangle: its area, or the fence around it."""
    w, h, p = draw.integer(6, 60), draw.integer(5, 45), draw.integer(1, 6)
    place = draw.pick(("garden", "pool", "lawn", "playground", "monument"))
    level = 2.2 + 0.8 * size_level(w, h)
    return posed(draw, "border_path", draw.chance(0.6), level, w=w, h=h, p=p, place=place)


def right_triangle(draw: Draw) -> Draft:
    """Pythagorean triples in disguise."""
    scale = draw.integer(1, 12)
    a, b, c = (side * scale for side in draw.pick(TRIPLES))
    level = 2.3 + 0.9 * size_level(c)
    return posed(draw, "right_triangle", draw.integer(0, 3), level, a=a, b=b, c=c)


def box(draw: Draw) -> Draft:
    """Volume, surface and water level of a box."""
    w, h, d = draw.integers(3, 2, 40)
    level = 1.6 + 0.9 * size_level(w, h, d)
    return posed(draw, "box", draw.integer(0, 3), level, w=w, h=h, d=d)


def circles(draw: Draw) -> Draft:
    """Circles, rings and sectors; the answer is a multiple of pi."""
    r = draw.integer(2, 25)
    kind = draw.integer(0, 3)
    inner = draw.integer(1, r - 1) if kind == 1 else 0
    angle = draw.pick((30, 45, 60, 72, 90, 120, 135, 150)) if kind == 2 else 0
    exact = "Give an exact answer in terms of \\pi."
    draft = posed(draw, "circles", kind, 0.0, r=r, inner=inner, angle=angle, exact=exact)
    value = Fraction(draft.answer.value)
    top = "\\pi" if value.numerator == 1 else f"{value.numerator}\\pi"
    answer = top if value.denominator == 1 else f"\\frac{{{top}}}{{{value.denominator}}}"
    level = 1.8 + 0.6 * kind + 0.5 * size_level(value.numerator)
    return replace(draft, answer=Answer("expression", answer), level=level)


def polygon(draw: Draw) -> Draft:
    """Angles, diagonals, handshakes and games."""
    n = draw.integer(5, 40)
    return posed(draw, "polygon", draw.integer(0, 4), 1.8 + 0.6 * size_level(n), n=n)


FAMILIES = (
    *(committee, arrangements, multiples_between, dice, marbles, grid_paths, border_path),
    *(right_triangle, box, circles, polygon),
)
