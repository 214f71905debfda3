"""Counting, probability and geometry."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import product

from benchmarks.builtin_tasks.draft import FACTS, Draft, Draw, listing, number, size_level, times
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
    text = f"From {a} {first} and {b} {second}, a group of {i + j} is chosen."
    if draw.chance(0.5):
        ask = f" In how many ways can exactly {i} of the {first} and {j} of the {second} be in it?"
        return number(math.comb(a, i) * math.comb(b, j), text + ask, level)
    ask = f" In how many ways can at least one of the {first} be in it?"
    count = math.comb(a + b, i + j) - math.comb(b, i + j)
    return number(count, text + ask, level + 1.0)


def arrangements(draw: Draw) -> Draft:
    """Orders of the letters of a word, or of people in a row."""
    if draw.chance(0.6):
        word = draw.pick(FACTS["letter_words"])
        count = math.factorial(len(word))
        for repeats in Counter(word).values():
            count //= math.factorial(repeats)
        if draw.chance(0.4):
            pinned = draw.pick(sorted(set(word)))
            rest = Counter(word)
            rest[pinned] -= 1
            count = math.factorial(len(word) - 1)
            for repeats in rest.values():
                count //= math.factorial(repeats)
            text = (
                f'How many different arrangements of the letters of "{word}" begin with "{pinned}"?'
            )
            return number(count, text, 3.5 + 0.35 * len(word))
        text = draw.wording(
            f'How many different arrangements do the letters of "{word}" have?',
            f'In how many distinct ways can the letters of the word "{word}" be ordered?',
        )
        return number(count, text, 3.0 + 0.35 * len(word))
    people = draw.integer(4, 9)
    things = draw.pick(("friends", "books", "flags", "cars"))
    if draw.chance(0.5):
        text = (
            f"In how many orders can {people} {things} be lined up if two given ones must be "
            "adjacent?"
        )
        return number(2 * math.factorial(people - 1), text, 3.0 + 0.3 * people)
    text = (
        f"In how many orders can {people} {things} be lined up if two given ones must not be "
        "adjacent?"
    )
    count = math.factorial(people) - 2 * math.factorial(people - 1)
    return number(count, text, 3.5 + 0.3 * people)


def multiples_between(draw: Draw) -> Draft:
    """Inclusion and exclusion over multiples."""
    low = draw.integer(1, 200)
    high = low + draw.pick((80, 400, 3000)) + draw.integer(0, 99)
    a, b = sorted(draw.sample((2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), 2))
    kind = draw.integer(0, 2)
    phrase = (
        f"are divisible by {a} or {b}",
        f"are divisible by {a} but not by {b}",
        f"are divisible by neither {a} nor {b}",
    )[kind]
    hits = 0
    for value in range(low, high + 1):
        by_a, by_b = value % a == 0, value % b == 0
        hits += (by_a or by_b, by_a and not by_b, not by_a and not by_b)[kind]
    text = f"How many integers from {low} to {high}, both included, {phrase}?"
    return number(hits, text, 2.6 + 0.6 * kind + 0.5 * size_level(high))


def dice(draw: Draw) -> Draft:
    """The probability of a sum, a maximum or a product of dice."""
    count, sides = draw.integer(2, 3), draw.pick((4, 6, 6, 8, 10))
    kind = draw.integer(0, 2)
    target = draw.integer(count + 1, count * sides - 1)
    top = draw.integer(2, sides)
    phrase = (
        f"their sum is {target}",
        f"the largest number shown is {top}",
        f"the product of the numbers is divisible by {draw.pick((3, 4, 5)) if sides > 4 else 3}",
    )[kind]
    divisor = int(phrase.rsplit(" ", 1)[1]) if kind == 2 else 1
    hits = 0
    for faces in product(range(1, sides + 1), repeat=count):
        hits += (sum(faces) == target, max(faces) == top, math.prod(faces) % divisor == 0)[kind]
    words = {2: "Two", 3: "Three"}[count]
    text = (
        f"{words} fair {sides}-sided dice with the numbers 1 to {sides} are rolled. What is the "
        f"probability that {phrase}? Give a fraction in lowest terms."
    )
    return number(Fraction(hits, sides**count), text, 2.5 + 1.1 * count + 0.15 * sides)


def marbles(draw: Draw) -> Draft:
    """Draws without replacement."""
    colours = draw.sample(("red", "blue", "green", "white", "black", "yellow"), draw.integer(2, 4))
    counts = [draw.integer(2, 9) for _ in colours]
    total, taken = sum(counts), draw.integer(2, 3)
    bag = listing([f"{n} {c}" for n, c in zip(counts, colours, strict=True)])
    text = f"A bag holds {bag} marbles. {taken} are drawn at random without putting any back."
    level = 2.6 + 0.9 * taken + 0.4 * len(colours)
    if draw.chance(0.5):
        same = sum(math.comb(n, taken) for n in counts)
        ask = " What is the probability that all of them have the same colour?"
        chance = Fraction(same, math.comb(total, taken))
        level += 0.8
    else:
        k = draw.integer(0, len(colours) - 1)
        none = math.comb(total - counts[k], taken)
        ask = f" What is the probability that at least one of them is {colours[k]}?"
        chance = 1 - Fraction(none, math.comb(total, taken))
    return number(chance, f"{text}{ask} Give a fraction in lowest terms.", level)


def grid_paths(draw: Draw) -> Draft:
    """Shortest ways through a grid of streets, perhaps around a closed crossing."""
    w, h = draw.integer(2, 8), draw.integer(2, 8)
    paths = math.comb(w + h, w)
    text = (
        f"In a grid of streets, how many shortest paths lead from one corner to the crossing {w} "
        f"blocks to the east and {h} blocks to the north"
    )
    if draw.chance(0.5):
        x, y = draw.integer(0, w), draw.integer(1, h - 1)
        through = math.comb(x + y, x) * math.comb(w - x + h - y, w - x)
        keep = draw.chance(0.5)
        clause = "pass through" if keep else "avoid"
        text = text.replace("how many shortest paths lead", "how many of the shortest paths")
        text += f" {clause} the crossing {x} blocks to the east and {y} to the north of the start?"
        return number(through if keep else paths - through, text, 3.6 + 0.2 * (w + h))
    return number(paths, text + "?", 2.2 + 0.2 * (w + h))


def border_path(draw: Draw) -> Draft:
    """A path around a rectangle: its area, or the fence around it."""
    w, h, p = draw.integer(6, 60), draw.integer(5, 45), draw.integer(1, 6)
    place = draw.pick(("garden", "pool", "lawn", "playground", "monument"))
    text = (
        f"A rectangular {place} of {w} m by {h} m is surrounded on all sides by a path {p} m wide."
    )
    level = 2.2 + 0.8 * size_level(w, h)
    if draw.chance(0.6):
        area = (w + 2 * p) * (h + 2 * p) - w * h
        return number(area, text + " What is the area of the path in square metres?", level + 0.8)
    fence = 2 * (w + h + 4 * p)
    ask = " How many metres of fence go around the outer edge of the path?"
    return number(fence, text + ask, level)


def right_triangle(draw: Draw) -> Draft:
    """Pythagorean triples in disguise."""
    scale = draw.integer(1, 12)
    a, b, c = (side * scale for side in draw.pick(TRIPLES))
    kind = draw.integer(0, 3)
    level = 2.3 + 0.9 * size_level(c)
    if kind == 0:
        text = (
            f"A ladder of {c} m leans against a wall with its foot {min(a, b)} m from the wall. "
            "How many metres up the wall does it reach?"
        )
        return number(max(a, b), text, level)
    if kind == 1:
        text = (
            f"A ship sails {a} km north and then {b} km east. How far is it from its start, in km?"
        )
        return number(c, text, level)
    if kind == 2:
        text = (
            f"A right triangle has a hypotenuse of {c} cm and one leg of {a} cm. What is its area "
            "in square centimetres?"
        )
        return number(Fraction(a * b, 2), text, level + 0.8)
    text = f"What is the perimeter of a rectangle with one side of {a} cm and a diagonal of {c} cm?"
    return number(2 * (a + b), text, level + 0.6)


def box(draw: Draw) -> Draft:
    """Volume, surface and water level of a box."""
    w, h, d = draw.integers(3, 2, 40)
    kind = draw.integer(0, 3)
    level = 1.6 + 0.9 * size_level(w, h, d)
    size = f"{w} cm by {h} cm by {d} cm"
    if kind == 0:
        return number(w * h * d, f"What is the volume of a box of {size}, in cm³?", level)
    if kind == 1:
        area = 2 * (w * h + h * d + w * d)
        return number(
            area, f"What is the surface area of a closed box of {size}, in cm²?", level + 0.7
        )
    if kind == 2:
        k = draw.integer(2, 5)
        text = (
            f"How many cubes with an edge of {k} cm fit into a box of {w * k} cm by {h * k} cm by "
            f"{d * k} cm?"
        )
        return number(w * h * d, text, level + 0.5)
    rise = draw.integer(1, 9)
    text = (
        f"A tank has a base of {w} cm by {d} cm. When a stone is put into it, the water rises by "
        f"{rise} cm and does not spill. What is the volume of the stone in cm³?"
    )
    return number(w * d * rise, text, level + 0.4)


def circles(draw: Draw) -> Draft:
    """Circles, rings and sectors; the answer is a multiple of pi."""
    r = draw.integer(2, 25)
    kind = draw.integer(0, 3)
    if kind == 0:
        what, value = f"the area of a circle of radius {r}", Fraction(r * r)
    elif kind == 1:
        inner = draw.integer(1, r - 1)
        what = f"the area of the ring between two concentric circles of radii {inner} and {r}"
        value = Fraction(r * r - inner * inner)
    elif kind == 2:
        angle = draw.pick((30, 45, 60, 72, 90, 120, 135, 150))
        what = f"the area of a sector of {angle} degrees of a circle of radius {r}"
        value = Fraction(r * r * angle, 360)
    else:
        height = draw.integer(2, 20)
        what = f"the volume of a cylinder of radius {r} and height {height}"
        value = Fraction(r * r * height)
    top = "\\pi" if value.numerator == 1 else f"{value.numerator}\\pi"
    answer = top if value.denominator == 1 else f"\\frac{{{top}}}{{{value.denominator}}}"
    text = f"What is {what}? Give an exact answer in terms of \\pi."
    return Draft(
        text, Answer("expression", answer), 1.8 + 0.6 * kind + 0.5 * size_level(value.numerator)
    )


def polygon(draw: Draw) -> Draft:
    """Angles, diagonals, handshakes and games."""
    n = draw.integer(5, 40)
    kind = draw.integer(0, 4)
    level = 1.8 + 0.6 * size_level(n)
    if kind == 0:
        text = (
            f"What is the sum of the interior angles of a convex polygon with {n} sides, in "
            "degrees?"
        )
        return number(180 * (n - 2), text, level)
    if kind == 1:
        text = f"How many diagonals does a convex polygon with {n} sides have?"
        return number(n * (n - 3) // 2, text, level + 0.5)
    if kind == 2:
        rounds = draw.integer(1, 4)
        text = (
            f"In a league of {n} teams every team plays every other team {times(rounds)}. How many "
            "games are played?"
        )
        return number(rounds * n * (n - 1) // 2, text, level + 0.3)
    if kind == 3:
        couples = n // 2
        text = (
            f"At a party of {couples} couples everybody shakes hands once with everybody except "
            "their own partner. How many handshakes are there?"
        )
        return number(2 * couples * (couples - 1), text, level + 1.2)
    text = f"One interior angle of a regular polygon with {n} sides has how many degrees?"
    return number(Fraction(180 * (n - 2), n), text + " Give an integer or a fraction.", level + 0.6)


FAMILIES = (
    *(committee, arrangements, multiples_between, dice, marbles, grid_paths, border_path),
    *(right_triangle, box, circles, polygon),
)
