"""Multiple choice over everyday facts: sizes, kinds, materials, causes, tools, places."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.builtin_tasks.draft import FACTS, Draft, Draw, choice_draft, listing


class Scale(NamedTuple):
    """A quantity that everyday things can be compared by."""

    table: str
    factor: float  # two things compared differ by at least this factor; 0: any difference will do
    high: str  # superlative
    low: str
    question: str  # with a gap for "the" and a superlative
    quantity: str


SCALES = (
    Scale("sizes", 1.5, "largest", "smallest", "Which is usually {}, by its longest side?", "size"),
    Scale("weights", 1.8, "heaviest", "lightest", "Which of these is usually {}?", "weight"),
    Scale("speeds", 1.4, "fastest", "slowest", "Which of these is usually {}?", "speed"),
    Scale("durations", 1.8, "longest", "shortest", "Which of these usually lasts {} time?",
          "duration"),
    Scale("temperatures", 0.0, "hottest", "coldest", "Which of these is usually {}?",
          "temperature"),
)  # fmt: skip

KINDS: dict[str, list[str]] = FACTS["categories"]


def _spread(draw: Draw, scale: Scale, count: int, width: int) -> list[str]:
    """Return at most `count` things of a scale, in ascending order, all clearly apart.

    They come from a run of `width` neighbours, so that a small width makes a close call.
    """
    table: dict[str, float] = FACTS[scale.table]
    names = sorted(table, key=lambda name: table[name])
    start = draw.integer(0, max(0, len(names) - width))
    chosen: list[str] = []
    for name in sorted(draw.sample(names[start : start + width], count), key=names.index):
        if not (scale.factor and chosen) or table[name] >= scale.factor * table[chosen[-1]]:
            chosen.append(name)
    return chosen


def extremes(draw: Draw) -> Draft:
    """The largest, the lightest, the second fastest, ... of several things."""
    scale = draw.pick(SCALES)
    count, width = draw.integer(4, 7), draw.integer(7, 14)
    chosen: list[str] = []
    while len(chosen) < 4:
        chosen = _spread(draw, scale, count, width)
        width += 1
    top = draw.chance(0.5)
    rank = draw.pick((1, 1, 2, 3))
    word = scale.high if top else scale.low
    correct = chosen[-rank] if top else chosen[rank - 1]
    question = scale.question.format(f"the {word}")
    if rank > 1:
        question = (
            f"Put these in order of {scale.quantity}, the {word} first (typical examples). Which "
            f"comes {'second' if rank == 2 else 'third'}?"
        )
    others = [name for name in chosen if name != correct]
    level = 1.0 + 1.3 * (rank - 1) + 0.25 * len(chosen) + 0.8 * math.exp(-width / 10)
    return choice_draft(draw, question, correct, others, level)


def _with_other_orders(
    draw: Draw, right: str, things: list[str], comma: str, count: int
) -> list[str]:
    """Return the right order, and other orders of the same things: `count` texts in all."""
    lists = [right]
    while len(lists) < count:
        other = comma.join(draw.shuffled(things))
        if other not in lists:
            lists.append(other)
    return lists


def orders(draw: Draw) -> Draft:
    """A list in ascending or descending order."""
    scale = draw.pick(SCALES)
    count, width = draw.integer(3, 5), 14
    chosen: list[str] = []
    while len(chosen) < 3:
        chosen = _spread(draw, scale, count + 1, width)[:count]
        width += 1
    up = draw.chance(0.5)
    first, last = (scale.low, scale.high) if up else (scale.high, scale.low)
    right = ", ".join(chosen if up else chosen[::-1])
    lists = _with_other_orders(draw, right, chosen, ", ", min(5, math.factorial(len(chosen))))
    by = f"by {scale.quantity}"
    question = draw.wording(
        f"Which list is ordered {by} from the {first} to the {last}, for typical examples?",
        f"Somebody sorts things {by}, the {first} first and the {last} last. Which is right?",
    )
    return choice_draft(draw, question, lists[0], lists[1:], 1.5 + 0.9 * len(chosen))


def odd_one_out(draw: Draw) -> Draft:
    """One thing that is not of the kind of the others."""
    kind = draw.pick(list(KINDS))
    names = _other_kinds(kind, KINDS)
    close = [n for n in names if any({n, kind} <= set(group) for group in FACTS["near_kinds"])]
    near = bool(close) and draw.chance(0.6)
    odd = draw.pick(KINDS[draw.pick(close if near else names)])
    count = draw.integer(3, 5)
    members = draw.sample(KINDS[kind], count)
    named = draw.chance(0.33)
    question = draw.wording(
        "Which one does not belong with the others?",
        "All but one of these are of one kind. Which is the odd one out?",
    )
    question = f"Which of these is not {_article(kind)} {kind}?" if named else question
    level = 1.0 + 0.25 * count + (0.9 if near else 0.0) + (0.0 if named else 0.5)
    return choice_draft(draw, question, odd, members, level)


def kind_of(draw: Draw) -> Draft:
    """A thing of a given kind, or the kind of given things."""
    kind, *others = draw.sample(list(KINDS), draw.integer(4, 6))
    others = _other_kinds(kind, others)
    if draw.chance(0.5):
        correct = draw.pick(KINDS[kind])
        wrong = [draw.pick(KINDS[n]) for n in others]
        question = draw.wording(
            f"Which of these is {_article(kind)} {kind}?", f"Pick the {kind} from this list."
        )
        return choice_draft(draw, question, correct, wrong, 0.8 + 0.2 * len(others))
    members = draw.sample(KINDS[kind], draw.integer(1, 3))
    verb = "is an example" if len(members) == 1 else "are examples"
    question = f"{listing([m.capitalize() for m in members])} {verb} of which kind of thing?"
    return choice_draft(draw, question, kind, others, 0.6 + 0.2 * len(others))


def script_order(draw: Draw) -> Draft:
    """The first, last or next step of an everyday routine, or the order of its steps."""
    topic = draw.pick(list(FACTS["scripts"]))
    steps = FACTS["scripts"][topic]
    kind = draw.integer(0, 4)
    count = draw.integer(4, len(steps)) if len(steps) > 4 else len(steps)
    kept = set(draw.sample(range(len(steps)), count))
    chosen = [step for i, step in enumerate(steps) if i in kept]
    if kind == 0:
        question = f"Think of {topic}. Which of these happens first?"
        return choice_draft(draw, question, chosen[0], chosen[1:], 0.8 + 0.2 * count)
    if kind == 1:
        question = f"Think of {topic}. Which of these happens last?"
        return choice_draft(draw, question, chosen[-1], chosen[:-1], 0.8 + 0.2 * count)
    if kind == 2:
        at = draw.integer(0, len(chosen) - 2)
        others = [*chosen[:at], *chosen[at + 2 :]]
        question = (
            f"Think of {topic} and of these steps only: {'; '.join(draw.shuffled(chosen))}. Which "
            f"comes directly after {chosen[at]}?"
        )
        return choice_draft(draw, question, chosen[at + 1], others, 1.8 + 0.25 * count)
    if kind == 3:
        at = draw.integer(2, len(chosen) - 2)
        question = f"In the course of {topic}, which of these comes after {chosen[at]}?"
        return choice_draft(draw, question, chosen[at + 1], chosen[:at], 1.2 + 0.2 * count)
    part = chosen[: draw.integer(3, min(5, len(chosen)))]
    lists = _with_other_orders(draw, "; then ".join(part), part, "; then ", 4)
    question = f"Which is the usual order when it comes to {topic}?"
    return choice_draft(draw, question, lists[0], lists[1:], 1.2 + 0.5 * len(part))


def effects(draw: Draw) -> Draft:
    """The likely result of an event, or the event that explains a result."""
    table: dict[str, str] = FACTS["effects"]
    cause, *others = draw.sample(list(table), draw.integer(4, 6))
    if draw.chance(0.55):
        question = draw.wording(
            f"Suppose that {cause}. What is most likely to follow?",
            f"What is the most likely result if {cause}?",
        )
        wrong = [table[o] for o in others]
        return choice_draft(draw, question, table[cause], wrong, 0.9 + 0.2 * len(others))
    question = f"Which of these events best explains the following: {table[cause]}?"
    return choice_draft(draw, question, cause, others, 1.4 + 0.25 * len(others))


def tools_and_places(draw: Draw) -> Draft:
    """The thing to do a job with, or the place where something is found."""
    name = draw.pick(("tools", "places"))
    table: dict[str, str] = FACTS[name]
    key, *others = draw.sample(list(table), draw.integer(4, 7))
    wordings = {
        "tools": (
            f"Somebody wants to {key}. Which of these helps the most?",
            f"What would you use to {key}?",
        ),
        "places": (f"Where are you most likely to find {key}?", f"Which place usually has {key}?"),
    }
    question = draw.wording(*wordings[name])
    wrong = [table[o] for o in others if table[o] != table[key]]
    return choice_draft(draw, question, table[key], wrong, 0.7 + 0.2 * len(wrong))


def materials(draw: Draw) -> Draft:
    """Things with one or two physical properties."""
    table: dict[str, list[bool]] = FACTS["materials"]
    aspects = draw.sample(range(5), draw.integer(1, 3))
    wanted = draw.pick(list(table))
    values = [table[wanted][a] for a in aspects]
    wrong = [n for n in table if [table[n][a] for a in aspects] != values]
    wrong = draw.sample(wrong, min(len(wrong), draw.integer(3, 5)))
    does = listing([FACTS["aspects"][a][not table[wanted][a]] for a in aspects])
    question = draw.wording(f"Which of these {does}?", f"Pick the thing that {does}.")
    return choice_draft(draw, question, wanted, wrong, 0.8 + 0.9 * len(aspects) + 0.15 * len(wrong))


def analogies(draw: Draw) -> Draft:
    """The fourth term of an analogy."""
    table: dict[str, list[list[str]]] = FACTS["relations"]
    relation, *others = draw.sample(list(table), 5)
    (a, b), (c, d), *rest = draw.shuffled(table[relation])
    wrong = [pair[1] for pair in rest[: draw.integer(1, 2)]]
    wrong += [c + "s"] if relation == "made of" else []
    for name in others:
        if len(wrong) < 4:
            first, second = draw.pick(table[name])
            if second not in (*wrong, d) and first not in (a, c):
                wrong.append(second)
    question = draw.wording(
        f"{a.capitalize()} is to {b} as {c} is to what?", f"{a} : {b} = {c} : ?"
    )
    return choice_draft(draw, question, d, list(dict.fromkeys(w for w in wrong if w != d)), 1.8)


def _other_kinds(kind: str, names: Iterable[str]) -> list[str]:
    """Return the kinds that share no member with `kind`."""
    shared = [set(pair) for pair in FACTS["shared_kinds"]]
    return [name for name in names if name != kind and {name, kind} not in shared]


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


FAMILIES = (
    *(extremes, orders, odd_one_out, kind_of, script_order, effects, tools_and_places),
    *(materials, analogies),
)
