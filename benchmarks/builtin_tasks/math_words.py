"""Arithmetic word problems: buying, moving, sharing, mixing."""

from __future__ import annotations

from fractions import Fraction

from benchmarks.builtin_tasks.draft import FACTS, NAMES, Draft, Draw, listing, number, size_level


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
    lines = listing(
        [
            f"{plural(item, c)} at ${p} each"
            for (item, _, _), c, p in zip(goods, counts, prices, strict=True)
        ]
    )
    opening = draw.wording(
        f"{name} buys {lines}.",
        f"At the market {name} picks up {lines}.",
        f"For the new flat, {name} orders {lines}.",
        f"The shopping list of {name} reads: {lines}.",
    )
    coupon = draw.integer(3, 15) if draw.chance(0.4) else 0
    if coupon:
        opening += f" A coupon takes ${coupon} off the bill."
        total -= coupon
    level = 1.0 + 0.7 * kinds + (0.8 if coupon else 0.0) + 0.5 * size_level(total)
    if draw.chance(0.5):
        paid = (total // 100 + 1) * 100
        ask = f" How many dollars of change does {name} get back from ${paid}?"
        return number(paid - total, opening + ask, level + 0.6)
    ask = draw.pick(
        (" How many dollars are due in total?", f" What does {name} pay altogether, in dollars?")
    )
    return number(total, opening + ask, level)


def inventory(draw: Draw) -> Draft:
    """A stock that changes step by step."""
    place, thing = draw.pick(
        (
            ("warehouse", "boxes"),
            ("library", "books"),
            ("bakery", "rolls"),
            ("nursery", "seedlings"),
            ("car park", "cars"),
            ("reservoir", "cubic metres of water"),
            ("museum", "coins"),
            ("depot", "bicycles"),
        )
    )
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
            parts.append(draw.pick((f"Then {change} go out.", f"{change} are taken away.")))
        else:
            change = draw.integer(scale // 10, scale)
            stock += change
            parts.append(draw.pick((f"Then {change} come in.", f"{change} are added.")))
    parts.append(
        draw.pick((f"How many {thing} are there at the end?", "How many are left in the end?"))
    )
    return number(stock, " ".join(parts), 0.8 + 0.7 * steps + 0.6 * size_level(stock))


def journey(draw: Draw) -> Draft:
    """Legs at constant speeds: distance, or average speed over equal times."""
    vehicle = draw.pick(("train", "cyclist", "bus", "ferry", "delivery van", "runner", "drone"))
    legs = draw.integer(2, 4)
    speeds = [draw.integer(2, 30) * 4 for _ in range(legs)]
    quarters = [draw.integer(2, 14) for _ in range(legs)]
    distance = sum(s * q // 4 for s, q in zip(speeds, quarters, strict=True))
    parts = [f"{q * 15} minutes at {s} km/h" for s, q in zip(speeds, quarters, strict=True)]
    text = f"A {vehicle} travels for {listing(parts, 'and then')}."
    level = 1.5 + 0.9 * legs + 0.4 * size_level(distance)
    if draw.chance(0.4):
        average = Fraction(distance * 4, sum(quarters))
        ask = " What is its average speed over the whole trip in km/h, as a fraction or integer?"
        return number(average, text + ask, level + 1.5)
    return number(distance, text + " How many kilometres does it cover in all?", level)


def shared_work(draw: Draw) -> Draft:
    """Workers with different rates together, one of them perhaps against the others."""
    actors, job = draw.pick(
        (
            (("Pump A", "Pump B", "Pump C"), "fill a tank"),
            (("the old printer", "the new printer", "the spare printer"), "print the catalogue"),
            (("Team Red", "Team Blue", "Team Green"), "pave a yard"),
            (("the first oven", "the second oven", "the third oven"), "bake an order of bread"),
        )
    )
    count = draw.integer(2, 3)
    times = draw.sample((2, 3, 4, 5, 6, 8, 9, 10, 12, 15, 18, 20, 24), count)
    rate = sum((Fraction(1, t) for t in times), Fraction(0))
    each = listing([f"{actors[i]} needs {times[i]} hours" for i in range(count)])
    text = f"To {job}, {each}, each working alone."
    level = 3.0 + 1.2 * count + 0.05 * sum(times) / count
    if draw.chance(0.5):
        jobs = draw.integer(2, 7)
        ask = f" How many hours do they need for {jobs} such jobs if all work at once?"
        result = jobs / rate
    else:
        ask = " How many hours do they need together?"
        result = 1 / rate
    return number(result, f"{text}{ask} Give an integer or a fraction.", level)


def tickets(draw: Draw) -> Draft:
    """Two unknown counts from their number and their worth."""
    first, second, place = draw.pick(
        (
            ("adult tickets", "child tickets", "zoo"),
            ("front seats", "back seats", "theatre"),
            ("day passes", "evening passes", "swimming pool"),
            ("large boxes", "small boxes", "post office"),
        )
    )
    high = draw.pick((40, 120, 900))
    a, b = draw.integer(5, high), draw.integer(5, high)
    p = draw.integer(7, 30)
    q = draw.integer(2, p - 2)
    text = (
        f"A {place} sells {first} at ${p} and {second} at ${q}. One day it sells {a + b} of them "
        f"altogether and takes ${a * p + b * q}."
    )
    wanted, count = draw.pick(((first, a), (second, b)))
    level = 3.2 + 0.9 * size_level(a, b) + 0.5 * size_level(p, q)
    return number(count, f"{text} How many {wanted} were sold?", level)


def ages(draw: Draw) -> Draft:
    """Ages now from a ratio some years ago or ahead."""
    older, younger = draw.sample(NAMES, 2)
    ratio = draw.integer(2, 6)
    then_young = draw.integer(3, 16)
    shift = draw.integer(2, 12)
    ahead = draw.chance(0.5) and then_young > shift
    now_young = then_young - shift if ahead else then_young + shift
    now_old = ratio * then_young - shift if ahead else ratio * then_young + shift
    word = {2: "twice", 3: "three times", 4: "four times", 5: "five times", 6: "six times"}[ratio]
    when = f"In {shift} years" if ahead else f"{shift} years ago"
    verb = "will be" if ahead else "was"
    text = (
        f"{older} is {now_old - now_young} years older than {younger}. {when} {older} {verb} "
        f"{word} as old as {younger}."
    )
    wanted, age = draw.pick(((older, now_old), (younger, now_young)))
    return number(age, f"{text} How old is {wanted} now?", 3.5 + 0.3 * ratio + 0.1 * shift)


def missing_average(draw: Draw) -> Draft:
    """The value that brings an average to a target."""
    count = draw.integer(3, 8)
    known = draw.integers(count, 41, 99)
    total = sum(known)
    target = total // count + draw.integer(-2, 3)
    missing = target * (count + 1) - total
    thing = draw.pick(
        ("test scores", "daily temperatures in °F", "weights in kg", "lap times in s")
    )
    values = listing(known)
    text = (
        f"The first {count} {thing} are {values}. What must the next one be so that the average "
        f"of all {count + 1} is exactly {target}?"
    )
    return number(missing, text, 1.8 + 0.45 * count + (1.0 if missing < 0 else 0.0))


def discounts(draw: Draw) -> Draft:
    """Percentages one after the other, arranged to end in whole dollars."""
    name = draw.pick(NAMES)
    steps = draw.integer(1, 3)
    changes = [draw.pick((-50, -40, -30, -25, -20, -10, 10, 20, 25, 30, 50)) for _ in range(steps)]
    factor = Fraction(1)
    for change in changes:
        factor *= Fraction(100 + change, 100)
    price = factor.denominator * draw.integer(1, max(1, 4000 // factor.denominator))
    result = price * factor
    words = [f"{'raised' if c > 0 else 'cut'} by {abs(c)} %" for c in changes]
    thing = draw.pick(("a coat", "a phone", "a sofa", "a used car", "a camera", "a rug"))
    text = f"{name} sells {thing} for ${price}. The price is {listing(words, 'and then')}."
    level = 1.5 + 1.2 * steps + 0.5 * size_level(price)
    if draw.chance(0.4):
        ask = " By how many dollars has the price changed in all? Count a fall as negative."
        return number(result - price, text + ask, level + 0.8)
    return number(result, text + " What is the price now, in dollars?", level)


def recipe(draw: Draw) -> Draft:
    """Scaling a recipe by a ratio of portions."""
    dish, parts = draw.pick(
        (
            ("lentil soup", ("lentils", "carrots", "onions")),
            ("granola", ("oats", "nuts", "raisins")),
            ("pizza dough", ("flour", "water", "olive oil")),
            ("fruit salad", ("apples", "grapes", "oranges")),
        )
    )
    portions = draw.integer(2, 9)
    grams = [portions * draw.integer(4, 60) for _ in parts]
    guests = draw.integer(10, 180)
    wanted = draw.integer(0, 2)
    result = grams[wanted] // portions * guests
    amounts = listing([f"{g} g of {p}" for g, p in zip(grams, parts, strict=True)])
    text = f"A {dish} for {portions} people takes {amounts}."
    level = 1.6 + 0.8 * size_level(guests, result)
    if draw.chance(0.5):
        ask = f" How many grams of {parts[wanted]} are needed for {guests} people?"
        return number(result, text + ask, level)
    total = sum(g // portions for g in grams) * guests
    ask = f" What do the ingredients for {guests} people weigh together, in grams?"
    return number(total, text + ask, level + 1.0)


def savings(draw: Draw) -> Draft:
    """The first week in which growing deposits reach a goal."""
    name = draw.pick(NAMES)
    start, first, step = draw.integer(0, 60), draw.integer(2, 20), draw.integer(1, 9)
    goal = draw.pick((200, 500, 1000, 2500)) + draw.integer(0, 99)
    total, weeks = start, 0
    while total < goal:
        total += first + weeks * step
        weeks += 1
    text = (
        f"{name} has ${start} and saves ${first} in the first week and ${step} more in every "
        f"following week than in the week before. After how many weeks does {name} first have at "
        f"least ${goal}?"
    )
    return number(weeks, text, 3.5 + 0.1 * weeks + 0.3 * size_level(goal))


def mixture(draw: Draw) -> Draft:
    """Concentration after mixing, or the amount that reaches a concentration."""
    substance = draw.pick(("salt", "sugar", "acid", "alcohol", "fruit juice"))
    weak, strong = sorted(draw.sample((5, 10, 15, 20, 30, 40, 50, 60, 75, 80), 2))
    a, b = draw.integer(1, 30), draw.integer(1, 30)
    share = Fraction(a * weak + b * strong, a + b)
    if draw.chance(0.5):
        text = (
            f"{a} litres of a solution with {weak} % {substance} are mixed with {b} litres of one "
            f"with {strong} %. How many percent {substance} does the mixture hold, as an integer "
            "or a fraction?"
        )
        return number(share, text, 4.0 + 0.6 * size_level(a, b) + (share.denominator > 1))
    target = draw.integer(weak + 1, strong - 1)
    parts = draw.integer(1, 4)
    text = (
        f"How many litres of a solution with {strong} % {substance} must be added to "
        f"{(strong - target) * parts} litres of one with {weak} % so that the mixture holds "
        f"{target} %?"
    )
    result = (target - weak) * parts
    return number(result, text, 3.8 + 0.6 * size_level(result))


def clock_span(draw: Draw) -> Draft:
    """Minutes between two times, less breaks."""
    start = draw.integer(5 * 60, 13 * 60)
    end = start + draw.integer(95, 600)
    breaks = draw.integer(0, 3)
    lengths = draw.integers(breaks, 5, 45)
    name = draw.pick(NAMES)
    work = draw.pick(("a shift", "a rehearsal", "a hike", "an excavation", "a training camp"))
    text = (
        f"{name} starts {work} at {start // 60}:{start % 60:02d} and ends it at "
        f"{end // 60}:{end % 60:02d} of the same day (24-hour clock)."
    )
    if breaks == 1:
        text += f" There is one break of {lengths[0]} minutes."
    elif breaks:
        text += f" There are breaks of {listing(lengths)} minutes."
    net = end - start - sum(lengths)
    ask = f" How many minutes of {work.split(' ', 1)[1]} are left without the breaks?"
    if not breaks:
        ask = " How many minutes does it last?"
    return number(net, text + ask, 1.2 + 0.7 * breaks + 0.2 * size_level(net))


FAMILIES = (
    *(shopping, inventory, journey, shared_work, tickets, ages, missing_average),
    *(discounts, recipe, savings, mixture, clock_span),
)
