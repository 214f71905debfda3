"""Write-a-function tasks that simulate something: accounts, machines, caches, robots, grids."""

from __future__ import annotations

from benchmarks.builtin_tasks.code_draft import (
    TEMPLATES,
    Case,
    Choice,
    choose,
    code_draft,
    filled,
    optional,
    rows,
)
from benchmarks.builtin_tasks.draft import Draft, Draw, times


def account(draw: Draw) -> Draft:
    """A bank account with fees and limits."""
    fee, limit = draw.integer(0, 3), draw.pick((0, 0, 20, 50))
    least, bonus = draw.integer(50, 120), draw.integer(1, 5)
    has_bonus = draw.chance(0.5)
    final = choose(draw, "account.final")

    def change() -> int:
        return draw.integer(5, 130) if draw.chance(0.5) else -draw.integer(5, 90)

    cases: list[Case] = [([change() for _ in range(draw.integer(3, 8))],) for _ in range(4)]
    extra = optional(has_bonus, "account.bonus", least=least, bonus=bonus)
    values = {"fee": fee, "floor": -limit, "bonus": extra, "final": final}
    level = 2.8 + 0.6 * has_bonus + 0.3 * bool(limit) + 0.3 * bool(fee)
    return code_draft(draw, "account", [*cases, ([],)], level, **values)


def stack_machine(draw: Draw) -> Draft:
    """A small stack language with words of its own."""
    k = draw.integer(2, 9)
    template = TEMPLATES["stack_machine"]
    *usual, adding = template["words"]
    words = [*draw.sample(usual, 4), adding]
    phrases, branches, names = [], [], []
    for word in words:
        needed, phrase, code = template["words"][word]
        names.append(filled(word, {"k": k}, "phrase"))
        phrases.append(f"'{names[-1]}' {filled(phrase, {'k': k}, 'phrase')}")
        parts = {"word": names[-1], "needed": needed, "code": filled(code, {"k": k}, "source")}
        branches.append(filled(template["branch"], parts, "source"))
    final = choose(draw, "stack_machine.final")
    cases: list[Case] = []
    for _ in range(5):
        items = [str(draw.integer(1, 9)), str(draw.integer(1, 9))]
        for _ in range(draw.integer(3, 7)):
            items.append(draw.pick(names) if draw.chance(0.6) else str(draw.integer(1, 9)))
        cases.append((" ".join(items),))
    rules = Choice("; ".join(phrases), "\nel".join(branches))
    cases += [(names[0],), ("",)]
    return code_draft(draw, "stack_machine", cases, 4.6, words=rules, final=final)


def workers(draw: Draw) -> Draft:
    """Jobs given to the worker who is free first."""
    k, pause = draw.integer(2, 4), draw.integer(0, 2)
    order = rows("workers.order")[draw.chance(0.4)]
    final = choose(draw, "workers.final")
    cases: list[Case] = [(draw.integers(draw.integer(3, 9), 1, 9),) for _ in range(4)]
    level = 3.8 + 0.5 * bool(pause) + 0.5 * order.index
    values = {"k": k, "pause": pause, "order": order, "final": final}
    return code_draft(draw, "workers", [*cases, ([],)], level, **values)


def cache(draw: Draw) -> Draft:
    """Hits and misses of a small cache."""
    size = draw.integer(2, 4)
    policy = rows("cache.policy")[draw.chance(0.5)]
    flush = optional(draw.chance(0.4), "cache.flush")
    final = choose(draw, "cache.final", cost=draw.integer(3, 12))
    cases: list[Case] = []
    for i in range(4):
        keys = "".join(draw.pick("abcdef"[: size + 2]) for _ in range(draw.integer(6, 14)))
        cases.append((keys[:4] + "-" + keys[4:] if flush.source and i % 2 else keys,))
    level = 3.6 + 0.5 * policy.index + 0.6 * bool(flush.source) + 0.1 * size
    values = {"size": size, "policy": policy, "flush": flush, "final": final}
    return code_draft(draw, "cache", [*cases, ("",)], level, **values)


def robot(draw: Draw) -> Draft:
    """A robot on a grid that turns and walks by commands."""
    ahead, left, right = draw.sample("FGLRTMWS", 3)
    step = draw.integer(1, 3)
    edge = choose(draw, "robot.edge", size=draw.integer(4, 9))
    final = choose(draw, "robot.final")
    cases: list[Case] = []
    for _ in range(4):
        signs = (ahead, ahead, ahead, left, right, "?")
        cases.append(("".join(draw.pick(signs) for _ in range(draw.integer(5, 16))),))
    values = {"ahead": ahead, "left": left, "right": right, "step": step, "edge": edge}
    level = 3.2 + (0.0, 0.5, 0.7)[edge.index]
    return code_draft(draw, "robot", [*cases, ("",)], level, final=final, **values)


def grid_search(draw: Draw) -> Draft:
    """Shortest ways and connected areas in a grid of characters."""
    wall = draw.pick("#X@%")
    kind = choose(draw, "grid_search.kind", wall=wall)
    moves = rows("grid_search.moves")
    if kind.index:
        del moves[3]  # down and right only: "connected" would not go both ways
    steps = draw.pick(moves)
    link = "Cells are connected if moves lead from one to the other:" if kind.index else "Moves go"
    cases: list[Case] = []
    for _ in range(4):
        h, w = draw.integer(2, 4), draw.integer(3, 5)
        grid = ["".join(wall if draw.chance(0.3) else "." for _ in range(w)) for _ in range(h)]
        if kind.index == 0:
            grid[0], grid[-1] = "." + grid[0][1:], grid[-1][:-1] + "."
        cases.append((grid,))
    cases += [([wall],), (["."],)]
    values = {"kind": kind, "moves": steps, "wall": wall, "link": link}
    return code_draft(draw, "grid_search", cases, 5.0 + 0.3 * kind.index, **values)


def elimination(draw: Draw) -> Draft:
    """Counting out around a circle."""
    k, grow = draw.integer(2, 7), draw.integer(0, 2)
    final = choose(draw, "elimination.final")
    start = draw.integer(0, 3)
    rule = f"every {k}-th one leaves"
    if grow:
        rule = f"first the {k}-th one leaves, and each time {grow} more are counted than the time "
        rule += "before"
    cases = [(draw.integer(4, 8),), (1,), (draw.integer(9, 15),), (2,), (21,)]
    level = 3.6 + 0.5 * grow + 0.2 * bool(start)
    values = {"k": k, "grow": grow, "start": start, "rule": rule, "final": final}
    return code_draft(draw, "elimination", cases, level, **values)


def automaton(draw: Draw) -> Draft:
    """One-dimensional cellular automata."""
    rule, steps = draw.integer(1, 254), draw.integer(1, 4)
    border = rows("automaton.border")[draw.chance(0.5)]
    ones = [f"{i:03b}" for i in range(8) if rule >> i & 1]
    rules = Choice(", ".join(ones), repr(ones))
    cases = [("".join(str(draw.integer(0, 1)) for _ in range(n)),) for n in (6, 9, 12, 1)]
    values = {"steps": steps, "times": times(steps), "ones": rules, "border": border}
    return code_draft(draw, "automaton", [*cases, ("",)], 3.8 + 0.5 * steps, **values)


FAMILIES = (
    *(account, stack_machine, workers, cache),
    *(robot, grid_search, elimination, automaton),
)
