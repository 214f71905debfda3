"""Arithmetic word problems: buying, moving, sharing, mixing."""

from __future__ import annotations

from fractions import Fraction

from benchmarks.builtin_tasks.draft import FACTS, NAMES, Draft, Draw, listing, size_level
from benchmarks.builtin_tasks.math_draft import TEMPLATES, posed, worded
from inframind_gym.tasks.taskset import Answer


def plural(item: str, count: int) -> str:
    """Return "3 jars of honey", "1 mug"."""
    head, found, tail = item.partition(" of ")
    many = head[:-1] + "ies" if head.endswith("y") else head + "s"
    many = head + "es" if head.endswith(("ch", "sh", "x")) else many
    return f"{count} {head if count == 1 else many}{found}{tail}"


def shopping(draw: Draw) -> Draft:
    """Several goods, perhaps a coupon, and the change from a note."""
    kinds = draw.integer(2, 5)
    goods = draw.sample(FACTS["goods"], kinds)
    counts = [draw.integer(2, 12) for _ in goods]
    prices = [draw.integer(low, high) for _, low, high in goods]
    total = sum(c * p for c, p in zip(counts, prices, strict=True))
    name = draw.pick(NAMES)
    bought = zip(goods, counts, prices, strict=True)
    lines = listing([f"{plural(item, c)} at ${p} each" for (item, _, _), c, p in bought])
    opening = worded(draw, TEMPLATES["shopping_opening"], name=name, lines=lines)
    coupon = draw.integer(3, 15) if draw.chance(0.4) else 0
    if coupon:
        opening += f" A coupon takes ${coupon} off the bill."
        total -= coupon
    paid = (total // 100 + 1) * 100
    level = 1.0 + 0.7 * kinds + (0.8 if coupon else 0.0) + 0.5 * size_level(total)
    values = {"opening": opening, "name": name, "total": total, "paid": paid}
    return posed(draw, "shopping", draw.chance(0.5), level, **values)


def inventory(draw: Draw) -> Draft:
    """A stock that changes step by step."""
    place, thing = draw.pick(FACTS["stocks"])
    scale = draw.pick((50, 500, 5000, 40000))
    stock = draw.integer(scale, 4 * scale)
    steps = draw.integer(2, 6)
    parts = [f"A {place} starts the day with {stock} {thing}."]
    for i in range(steps):
        kind = draw.pick(("gain", "loss", "half", "double")) if i else draw.pick(("gain", "loss"))
        if kind == "half" and stock % 2 == 0 and stock > 20:
            stock //= 2
            parts.append("Half of what is there then leaves.")
        elif kind == "double" and stock < 6 * scale:
            stock *= 2
            parts.append("After that the number doubles.")
        elif kind == "loss" and stock > 20:
            change = draw.integer(stock // 10 + 1, stock // 2)
            stock -= change
            parts.append(draw.wording(f"Then {change} go out.", f"{change} are taken away."))
        else:
            change = draw.integer(scale // 10, scale)
            stock += change
            parts.append(draw.wording(f"Then {change} come in.", f"{change} are added."))
    ask = draw.wording(f"How many {thing} are there at the end?", "How many are left in the end?")
    level = 0.8 + 0.7 * steps + 0.6 * size_level(stock)
    return Draft(" ".join([*parts, ask]), Answer("number", str(stock)), level)


def journey(draw: Draw) -> Draft:
    """Legs at constant speeds: distance, or average speed over equal times."""
    vehicle = draw.pick(("train", "cyclist", "bus", "ferry", "delivery van", "runner", "drone"))
    count = draw.integer(2, 4)
    speeds = [draw.integer(2, 30) * 4 for _ in range(count)]
    quarters = [draw.integer(2, 14) for _ in range(count)]
    distance = sum(s * q // 4 for s, q in zip(speeds, quarters, strict=True))
    parts = [f"{q * 15} minutes at {s} km/h" for s, q in zip(speeds, quarters, strict=True)]
    level = 1.5 + 0.9 * count + 0.4 * size_level(distance)
    legs = listing(parts, "and then")
    values = {"vehicle": vehicle, "legs": legs, "distance": distance, "quarters": quarters}
    return posed(draw, "journey", draw.chance(0.4), level, **values)


def shared_work(draw: Draw) -> Draft:
    """Workers with different rates together, one of them perhaps against the others."""
    job, *actors = draw.pick(FACTS["jobs"])
    count = draw.integer(2, 3)
    hours = draw.sample((2, 3, 4, 5, 6, 8, 9, 10, 12, 15, 18, 20, 24), count)
    rate = sum((Fraction(1, t) for t in hours), Fraction(0))
    each = listing([f"{actors[i]} needs {hours[i]} hours" for i in range(count)])
    level = 3.0 + 1.2 * count + 0.05 * sum(hours) / count
    return posed(draw, "shared_work", draw.chance(0.5), level, job=job, each=each, rate=rate)


def tickets(draw: Draw) -> Draft:
    """Two unknown counts from their number and their worth."""
    first, second, place = draw.pick(FACTS["tickets"])
    high = draw.pick((40, 120, 900))
    a, b = draw.integer(5, high), draw.integer(5, high)
    p = draw.integer(7, 30)
    q = draw.integer(2, p - 2)
    wanted, count = draw.pick(((first, a), (second, b)))
    level = 3.2 + 0.9 * size_level(a, b) + 0.5 * size_level(p, q)
    values = {"first": first, "second": second, "place": place, "wanted": wanted, "count": count}
    return posed(draw, "tickets", 0, level, a=a, b=b, p=p, q=q, **values)


def ages(draw: Draw) -> Draft:
    """Ages now from a ratio some years ago or ahead."""
    older, younger = draw.sample(NAMES, 2)
    ratio, then_young, shift = draw.integer(2, 6), draw.integer(3, 16), draw.integer(2, 12)
    ahead = draw.chance(0.5) and then_young > shift
    passed = -shift if ahead else shift
    now_young, now_old = then_young + passed, ratio * then_young + passed
    wanted, age = draw.pick(((older, now_old), (younger, now_young)))
    values = {"older": older, "younger": younger, "now_old": now_old, "now_young": now_young}
    values |= {
        "word": ("twice", "three times", "four times", "five times", "six times")[ratio - 2],
        "when": f"In {shift} years" if ahead else f"{shift} years ago",
        "verb": "will be" if ahead else "was",
    }
    level = 3.5 + 0.3 * ratio + 0.1 * shift
    return posed(draw, "ages", 0, level, wanted=wanted, age=age, **values)


def missing_average(draw: Draw) -> Draft:
    """The value that brings an average to a target."""
    count = draw.integer(3, 8)
    known = draw.integers(count, 41, 99)
    target = sum(known) // count + draw.integer(-2, 3)
    missing = target * (count + 1) - sum(known)
    thing = draw.pick(
        ("test scores", "daily temperatures in °F", "weights in kg", "lap times in s")
    )
    level = 1.8 + 0.45 * count + (1.0 if missing < 0 else 0.0)
    values = {"count": count, "known": known, "target": target, "missing": missing, "thing": thing}
    return posed(draw, "missing_average", 0, level, **values)


def discounts(draw: Draw) -> Draft:
    """Percentages one after the other, arranged to end in whole dollars."""
    name = draw.pick(NAMES)
    steps = draw.integer(1, 3)
    changes = [draw.pick((-50, -40, -30, -25, -20, -10, 10, 20, 25, 30, 50)) for _ in range(steps)]
    factor = Fraction(1)
    for change in changes:
        factor *= Fraction(100 + change, 100)
    price = factor.denominator * draw.integer(1, max(1, 4000 // factor.denominator))
    words = [f"{'raised' if c > 0 else 'cut'} by {abs(c)} %" for c in changes]
    thing = draw.pick(("a coat", "a phone", "a sofa", "a used car", "a camera", "a rug"))
    level = 1.5 + 1.2 * steps + 0.5 * size_level(price)
    values = {"name": name, "thing": thing, "price": price, "result": price * factor}
    changed = listing(words, "and then")
    return posed(draw, "discounts", draw.chance(0.4), level, changed=changed, **values)


def recipe(draw: Draw) -> Draft:
    """Scaling a recipe by a ratio of portions."""
    dish, *parts = draw.pick(FACTS["recipes"])
    portions = draw.integer(2, 9)
    grams = [portions * draw.integer(4, 60) for _ in parts]
    guests = draw.integer(10, 180)
    wanted = draw.integer(0, 2)
    result = grams[wanted] // portions * guests
    amounts = listing([f"{g} g of {p}" for g, p in zip(grams, parts, strict=True)])
    level = 1.6 + 0.8 * size_level(guests, result)
    values = {"dish": dish, "portions": portions, "guests": guests, "grams": grams}
    values |= {"amounts": amounts, "part": parts[wanted], "result": result}
    return posed(draw, "recipe", draw.chance(0.5), level, **values)


def savings(draw: Draw) -> Draft:
    """The first week in which growing deposits reach a goal."""
    name = draw.pick(NAMES)
    start, first, step = draw.integer(0, 60), draw.integer(2, 20), draw.integer(1, 9)
    goal = draw.pick((200, 500, 1000, 2500)) + draw.integer(0, 99)
    total, weeks = start, 0
    while total < goal:
        total += first + weeks * step
        weeks += 1
    level = 3.5 + 0.1 * weeks + 0.3 * size_level(goal)
    values = {"name": name, "start": start, "first": first, "step": step, "goal": goal}
    return posed(draw, "savings", 0, level, weeks=weeks, **values)


def mixture(draw: Draw) -> Draft:
    """Concentration after mixing, or the amount that reaches a concentration."""
    substance = draw.pick(("salt", "sugar", "acid", "alcohol", "fruit juice"))
    weak, strong = sorted(draw.sample((5, 10, 15, 20, 30, 40, 50, 60, 75, 80), 2))
    a, b = draw.integer(1, 30), draw.integer(1, 30)
    values = {"substance": substance, "weak": weak, "strong": strong}
    if draw.chance(0.5):
        share = Fraction(a * weak + b * strong, a + b)
        return posed(draw, "mixture", 1, 0.0, a=a, b=b, share=share, **values)
    target, parts = draw.integer(weak + 1, strong - 1), draw.integer(1, 4)
    return posed(draw, "mixture", 0, 0.0, target=target, parts=parts, **values)


def clock_span(draw: Draw) -> Draft:
    """Minutes between two times, less breaks."""
    start = draw.integer(5 * 60, 13 * 60)
    end = start + draw.integer(95, 600)
    breaks = draw.integer(0, 3)
    lengths = draw.integers(breaks, 5, 45)
    name = draw.pick(NAMES)
    work = draw.pick(("a shift", "a rehearsal", "a hike", "an excavation", "a training camp"))
    values = {"name": name, "work": work, "start": start, "end": end, "lengths": lengths}
    values["day"] = worded(draw, TEMPLATES["clock_span_day"], **values)
    values |= {"activity": work.split(" ", 1)[1], "pauses": listing(lengths) if lengths else ""}
    level = 1.2 + 0.7 * breaks + 0.2 * size_level(end - start - sum(lengths))
    return posed(draw, "clock_span", min(breaks, 2), level, **values)


FAMILIES = (
    *(shopping, inventory, journey, shared_work, tickets, ages, missing_average),
    *(discounts, recipe, savings, mixture, clock_span),
)
