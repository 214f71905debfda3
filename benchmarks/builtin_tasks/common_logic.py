"""Multiple choice that takes a few steps: calendars, orders, directions, kinship, who has what."""

from __future__ import annotations

from itertools import pairwise, permutations

from benchmarks.builtin_tasks.draft import (
    FACTS,
    NAMES,
    Draft,
    Draw,
    choice_draft,
    counted,
    listing,
    ordinal,
)

WEEKDAYS: list[str] = FACTS["weekdays"]
MONTHS = list(FACTS["months"])
MONTH_DAYS = list(FACTS["months"].values())
COMPASS: list[str] = FACTS["compass"]
KIN = {(first, second): result for first, second, result in FACTS["kin"]}


def weekdays(draw: Draw) -> Draft:
    """The weekday some days before or after another."""
    day = draw.integer(0, 6)
    kind = draw.integer(0, 3)
    if kind == 0:
        shift = draw.integer(2, 9 * 10 ** draw.integer(0, 2))
        ahead = draw.chance(0.6)
        question = draw.wording(
            f"Today is {WEEKDAYS[day]}. Which day of the week "
            f"{'is it in' if ahead else 'was it'} {shift} days{'' if ahead else ' ago'}?",
            f"If a parcel {'sent on a' if ahead else 'that arrived on a'} {WEEKDAYS[day]} "
            f"{'takes' if ahead else 'took'} exactly {shift} days, on which weekday "
            f"{'does it arrive' if ahead else 'was it sent'}?",
        )
        result, level = day + (shift if ahead else -shift), 1.2 + 0.03 * min(shift, 60)
    elif kind == 1:
        back, ahead_days = draw.integer(1, 4), draw.integer(1, 6)
        word = {1: "yesterday", 2: "the day before yesterday"}.get(back, f"{back} days ago")
        question = (
            f"If {word} was a {WEEKDAYS[day]}, which weekday is it "
            f"{counted(ahead_days, 'day')} after tomorrow?"
        )
        result, level = day + back + 1 + ahead_days, 2.2 + 0.1 * ahead_days
    elif kind == 2:
        month = draw.integer(0, 11)
        days = MONTH_DAYS[month]
        leap = " of a year that is no leap year" if month == 1 else ""
        question = (
            f"{MONTHS[month]} 1{leap} falls on a {WEEKDAYS[day]}. On which weekday does "
            f"{MONTHS[(month + 1) % 12]} 1 fall next?"
        )
        result, level = day + days, 2.6
    else:
        date, later = draw.integer(1, 12), draw.integer(15, 28)
        name = draw.pick(MONTHS)
        question = (
            f"In some year {name} {date} is a {WEEKDAYS[day]}. Which weekday is {name} {later} "
            "of that year?"
        )
        result, level = day + later - date, 2.0
    correct = WEEKDAYS[result % 7]
    wrong = draw.sample([w for w in WEEKDAYS if w != correct], draw.integer(3, 6))
    return choice_draft(draw, question, correct, wrong, level)


def dates(draw: Draw) -> Draft:
    """The date some days later, in a year that is no leap year."""
    month = draw.integer(0, 11)
    date = draw.integer(1, MONTH_DAYS[month])
    shift = draw.integer(3, draw.pick((20, 60, 150)))
    m, d = month, date + shift
    while d > MONTH_DAYS[m]:
        d -= MONTH_DAYS[m]
        m = (m + 1) % 12
    thing = draw.pick(("A library loan", "A visa", "A trial membership", "An exhibition"))
    question = (
        f"{thing} starts on {MONTHS[month]} {date} of a year that is no leap year (nor is the next "
        f"one) and ends {shift} days later. On which date?"
    )
    correct = f"{MONTHS[m]} {d}"
    wrong: list[str] = []
    while len(wrong) < draw.integer(3, 5):
        near_m = (m + draw.pick((0, 0, 1, -1))) % 12
        near_d = min(MONTH_DAYS[near_m], max(1, d + draw.integer(-3, 3)))
        other = f"{MONTHS[near_m]} {near_d}"
        if other != correct and other not in wrong:
            wrong.append(other)
    return choice_draft(draw, question, correct, wrong, 2.0 + 0.02 * shift)


def comparisons(draw: Draw) -> Draft:
    """An order that follows from comparisons of neighbours, given in any order."""
    more, less, most, least = draw.pick(FACTS["comparisons"])
    count = draw.integer(3, 7)
    people = draw.sample(NAMES, count)  # in descending order
    clues = []
    for a, b in pairwise(people):
        clues.append(f"{a} is {more} {b}." if draw.chance(0.5) else f"{b} is {less} {a}.")
    rank = draw.integer(1, count)
    if rank in (1, count):
        ask = f"Who is the {most if rank == 1 else least}?"
    else:
        ask = f"Counting from the {most} as number 1, who is number {rank}?"
    question = f"{' '.join(draw.shuffled(clues))} {ask}"
    wrong = [p for i, p in enumerate(people) if i != rank - 1]
    level = 0.8 + 0.6 * count + (0.8 if 1 < rank < count else 0.0)
    return choice_draft(draw, question, people[rank - 1], wrong, level)


def seating(draw: Draw) -> Draft:
    """A row of seats fixed by clues: the clues are drawn until one order is left."""
    count = draw.integer(3, 5)
    people = draw.sample(NAMES, count)
    truth = draw.shuffled(people)
    left = list(permutations(people))
    clues: list[str] = []
    while len(left) > 1:
        a, b = draw.sample(people, 2)
        ia, ib = truth.index(a), truth.index(b)
        kind = draw.integer(0, 3)
        if kind == 0 and abs(ia - ib) == 1:
            clue = f"{a} sits next to {b}."
            kept = [p for p in left if abs(p.index(a) - p.index(b)) == 1]
        elif kind == 1 and abs(ia - ib) > 1:
            clue = f"{a} does not sit next to {b}."
            kept = [p for p in left if abs(p.index(a) - p.index(b)) > 1]
        elif kind == 2 and ia < ib:
            clue = f"{a} sits somewhere to the left of {b}."
            kept = [p for p in left if p.index(a) < p.index(b)]
        elif kind == 3:
            clue = f"{a} does not have the {ordinal(ib + 1)} seat from the left."
            kept = [p for p in left if p.index(a) != ib]
        else:
            continue
        if len(kept) < len(left):
            clues.append(clue)
            left = kept
    seat = draw.integer(1, count)
    question = (
        f"{listing(people)} sit in a row of {count} seats, all facing us. {' '.join(clues)} Who "
        f"has the {ordinal(seat)} seat from the left (as we see it)?"
    )
    correct = truth[seat - 1]
    wrong = [p for p in people if p != correct]
    return choice_draft(draw, question, correct, wrong, 1.6 + 0.5 * count + 0.35 * len(clues))


def directions(draw: Draw) -> Draft:
    """Turns on the spot, or a walk and the way back."""
    name = draw.pick(NAMES)
    if draw.chance(0.5):
        facing = draw.integer(0, 3) * 2
        turns = draw.integer(2, 6)
        parts, now = [], facing
        for _ in range(turns):
            degrees, right = draw.pick((45, 90, 90, 135, 180)), draw.chance(0.5)
            now += degrees // 45 * (1 if right else -1)
            side = (
                "around" if degrees == 180 else f"{degrees}° to the {'right' if right else 'left'}"
            )
            parts.append(f"turns {side}")
        question = (
            f"{name} faces {COMPASS[facing]}, then {listing(parts, 'and')}. Which way does {name} "
            "face now?"
        )
        correct, level = COMPASS[now % 8], 1.4 + 0.6 * turns
    else:
        legs = draw.integer(2, 5)
        x, y, parts = 0, 0, []
        for _ in range(legs):
            heading, blocks = draw.integer(0, 3), draw.integer(1, 6)
            x += blocks * (0, 1, 0, -1)[heading]
            y += blocks * (1, 0, -1, 0)[heading]
            parts.append(f"{counted(blocks, 'block')} {COMPASS[2 * heading]}")
        if x == 0 and y == 0:
            x, parts = 2, [*parts, "2 blocks east"]
        vertical = "north" if y > 0 else "south" if y < 0 else ""
        horizontal = "east" if x > 0 else "west" if x < 0 else ""
        question = (
            f"From the station {name} walks {listing(parts, 'and then')}. In which direction from "
            f"the station is {name} now? ('northeast' stands for anything between north and east, "
            "and so on.)"
        )
        correct, level = vertical + horizontal, 1.6 + 0.55 * legs
    wrong = draw.sample([c for c in COMPASS if c != correct], draw.integer(3, 7))
    return choice_draft(draw, question, correct, wrong, level)


def kinship(draw: Draw) -> Draft:
    """Chains of family relations."""
    first, second = draw.pick(list(KIN))
    chain, result = [first, second], KIN[(first, second)]
    grown = [s for r, s in KIN if r == result]
    if grown and draw.chance(0.6):
        chain.append(draw.pick(grown))
        result = KIN[(result, chain[2])]
    women, men = draw.shuffled(FACTS["women"]), draw.shuffled(FACTS["men"])
    head = {"wife": men, "husband": women}.get(first, draw.pick((women, men)))
    people = [head.pop()] + [
        (women if step in FACTS["female_kin"] else men).pop() for step in chain
    ]
    if draw.chance(0.5):
        facts = [f"{people[i + 1]} is the {step} of {people[i]}." for i, step in enumerate(chain)]
        question = f"{' '.join(draw.shuffled(facts))} What is {people[-1]} to {people[0]}?"
        level = 2.0 + 0.9 * len(chain)
    else:
        words = "'s ".join(chain)
        question = draw.wording(
            f"What is {people[0]}'s {words} to {people[0]}?",
            f"{people[0]} meets the person who is {people[0]}'s {words}. Who is that, as seen "
            f"by {people[0]}?",
        )
        level = 1.0 + 0.9 * len(chain)
    others = sorted(set(KIN.values()) - {result})
    return choice_draft(draw, question, result, draw.sample(others, draw.integer(3, 6)), level)


def swaps(draw: Draw) -> Draft:
    """Things and their holders after a number of swaps."""
    count = draw.integer(3, 5)
    people = draw.sample(NAMES, count)
    thing, kinds = draw.pick(list(FACTS["swapped"].items()))
    held = draw.sample(kinds, count)
    start = listing([f"{p} has the {k} {thing}" for p, k in zip(people, held, strict=True)])
    parts = []
    moves = draw.integer(2, 7)
    for _ in range(moves):
        i, j = draw.sample(range(count), 2)
        held[i], held[j] = held[j], held[i]
        parts.append(f"{people[i]} and {people[j]} swap.")
    level = 0.8 + 0.55 * moves + 0.2 * count
    text = f"At first {start}. {' '.join(parts)}"
    if draw.chance(0.5):
        i = draw.integer(0, count - 1)
        question = f"{text} Which {thing} does {people[i]} have in the end?"
        correct = f"the {held[i]} one"
        wrong = [f"the {k} one" for k in held if k != held[i]]
        return choice_draft(draw, question, correct, wrong, level)
    i = draw.integer(0, count - 1)
    wrong = [p for p in people if p != people[i]]
    question = f"{text} Who has the {held[i]} {thing} in the end?"
    return choice_draft(draw, question, people[i], wrong, level + 0.2)


def quantifiers(draw: Draw) -> Draft:
    """Consequences of statements on all and no members of groups."""
    count = draw.integer(3, 5)
    chain = draw.sample(FACTS["groups"], count)
    place = draw.pick(("In a village", "In a club", "On an island", "At a fair"))
    negative = draw.chance(0.5)
    facts = [f"All {a} are {b}." for a, b in pairwise(chain)]
    if negative:
        facts[-1] = f"No {chain[-2]} are {chain[-1]}."
    low = draw.integer(0, count - (3 if negative else 2))
    first = chain[low]
    if negative:
        correct = f"No {first} are {chain[-1]}."
        wrong = [f"All {first} are {chain[-1]}.", f"All {chain[-1]} are {first}."]
        wrong += [f"Some {chain[-1]} are {first}.", f"Some {first} are {chain[-1]}."]
    else:
        high = draw.integer(low + 1, count - 1)
        last = chain[high]
        correct = f"All {first} are {last}."
        wrong = [f"All {last} are {first}.", f"No {first} are {last}."]
        wrong += [f"No {last} are {first}.", f"Some {first} are not {last}."]
    question = (
        f"{place}, the following holds, and there is at least one person in every group named: "
        f"{' '.join(draw.shuffled(facts))} Which of these must be true?"
    )
    level = 1.5 + 0.7 * count + (0.8 if negative else 0.0)
    return choice_draft(draw, question, correct, draw.sample(wrong, draw.integer(3, 4)), level)


FAMILIES = (*(weekdays, dates, comparisons, seating, directions, kinship, swaps, quantifiers),)
