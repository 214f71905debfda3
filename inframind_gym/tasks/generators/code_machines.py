"""Write-a-function tasks that simulate machines: accounts, stacks, workers, caches."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from inframind_gym.tasks.generators.code_tasks import Case, code_draft
from inframind_gym.tasks.generators.draft import Draft, Draw


def account(draw: Draw) -> Draft:
    """A bank account with fees and limits."""
    fee, limit = draw.integer(0, 3), draw.pick((0, 0, 20, 50))
    bonus_at, bonus = draw.integer(50, 120), draw.integer(1, 5)
    has_bonus = draw.chance(0.5)
    final = draw.pick(
        (
            ("the final balance", "balance"),
            ("the number of refused withdrawals", "refused"),
            ("the lowest balance ever (the 0 at the start included)", "lowest"),
            ("a tuple of the final balance and the number of refused withdrawals",
             "(balance, refused)"),
        )
    )  # fmt: skip
    task = (
        "takes a list of integers: a positive one is a deposit, a negative one a withdrawal "
        f"from an account that starts at 0. A withdrawal costs a fee of {fee}, taken along with "
        f"it, and is refused (without a fee) if the balance would fall below {-limit}."
    )
    if has_bonus:
        task += f" A single deposit of at least {bonus_at} earns {bonus} extra."
    task += f" It returns {final[0]}."
    extra = f"            balance += {bonus} if t >= {bonus_at} else 0\n" if has_bonus else ""
    body = (
        "balance = refused = lowest = 0\nfor t in items:\n    if t > 0:\n        balance += t\n"
        + extra.replace("            ", "        ", 1)
        + f"    elif t < 0:\n        if balance + t - {fee} < {-limit}:\n            refused += 1\n"
        f"        else:\n            balance += t - {fee}\n"
        f"    lowest = min(lowest, balance)\nreturn {final[1]}"
    )

    def expected(items: list[int]) -> object:
        history = [0]
        refused = 0
        for t in items:
            change = t if t > 0 else t - fee
            change += bonus if has_bonus and t >= bonus_at else 0
            if t < 0 and history[-1] + change < -limit:
                refused, change = refused + 1, 0
            history.append(history[-1] + change)
        both = (history[-1], refused)
        return {"balance": both[0], "refused": refused, "lowest": min(history)}.get(final[1], both)

    cases: list[Case] = []
    for _ in range(4):
        cases.append((
            [
                draw.integer(5, 130) if draw.chance(0.5) else -draw.integer(5, 90)
                for _ in range(draw.integer(3, 8))
            ],
        ))  # fmt: skip
    return code_draft(
        draw,
        name=draw.pick(("run_account", "ledger", "bank")),
        parameters="items",
        task=task,
        body=body,
        expected=expected,
        cases=[*cases, ([],)],
        level=2.8 + 0.6 * has_bonus + 0.3 * bool(limit) + 0.3 * bool(fee),
    )


def stack_machine(draw: Draw) -> Draft:
    """A small stack language with words of its own."""
    k = draw.integer(2, 9)
    words = draw.sample(("dup", "pop", "add", "mul", "swap", "neg", "twice", "sub", "max"), 4)
    words.append(f"plus{k}")
    meaning = {
        "dup": ("pushes the top value again", "s.append(s[-1])", 1),
        "pop": ("removes the top value", "s.pop()", 1),
        "add": ("replaces the two top values by their sum", "s.append(s.pop() + s.pop())", 2),
        "mul": ("replaces the two top values by their product", "s.append(s.pop() * s.pop())", 2),
        "swap": ("exchanges the two top values", "s[-1], s[-2] = s[-2], s[-1]", 2),
        "neg": ("changes the sign of the top value", "s[-1] = -s[-1]", 1),
        "twice": ("doubles the top value", "s[-1] *= 2", 1),
        "sub": ("replaces the two top values by the lower one minus the top one",
                "b = s.pop()\n        s[-1] -= b", 2),
        "max": ("replaces the two top values by the larger one", "s.append(max(s.pop(), s.pop()))",
                2),
        f"plus{k}": (f"adds {k} to the top value", f"s[-1] += {k}", 1),
    }  # fmt: skip
    final = draw.pick(
        (("the stack as a list, bottom first", "s"), ("the sum of the stack", "sum(s)"))
    )
    rules = "; ".join(f"'{w}' {meaning[w][0]}" for w in words)
    body = "s = []\nfor w in program.split():\n"
    for i, w in enumerate(words):
        body += f"    {'el' if i else ''}if w == '{w}':\n        if len(s) < {meaning[w][2]}:\n"
        body += f"            return None\n        {meaning[w][1]}\n"
    body += f"    else:\n        s.append(int(w))\nreturn {final[1]}"

    def apply(w: str, a: list[int]) -> list[int]:
        low, top = a[:-2], a[-2:]
        results: dict[str, list[int]] = {
            "dup": [*a, a[-1]], "pop": a[:-1], "neg": [*a[:-1], 0 - a[-1]],
            "twice": [*a[:-1], a[-1] + a[-1]], f"plus{k}": [*a[:-1], a[-1] + k],
        }  # fmt: skip
        if len(top) == 2:
            results |= {
                "add": [*low, sum(top)], "mul": [*low, top[0] * top[1]],
                "swap": [*low, top[1], top[0]], "sub": [*low, top[0] - top[1]],
                "max": [*low, max(top)],
            }  # fmt: skip
        return results[w]

    def expected(program: str) -> object:
        stack: list[int] = []
        for w in program.split():
            if w not in words:
                stack = [*stack, int(w)]
            elif len(stack) < meaning[w][2]:
                return None
            else:
                stack = apply(w, stack)
        return stack if final[1] == "s" else sum(stack)

    cases: list[Case] = []
    for _ in range(5):
        items = [str(draw.integer(1, 9)), str(draw.integer(1, 9))]
        for _ in range(draw.integer(3, 7)):
            items.append(draw.pick(words) if draw.chance(0.6) else str(draw.integer(1, 9)))
        cases.append((" ".join(items),))
    return code_draft(
        draw,
        name=draw.pick(("run_program", "evaluate", "machine")),
        parameters="program",
        task=(
            f"runs a program of words separated by spaces on an empty stack: an integer is pushed; "
            f"{rules}. It returns {final[0]}, or None as soon as a word finds too few values."
        ),
        body=body,
        expected=expected,
        cases=[*cases, (words[0],), ("",)],
        level=4.6,
    )


def workers(draw: Draw) -> Draft:
    """Jobs given to the worker who is free first."""
    k, pause = draw.integer(2, 4), draw.integer(0, 2)
    longest_first = draw.chance(0.4)
    final = draw.pick(
        (
            ("the time at which the last job ends (0 without jobs)", "max(ends, default=0)"),
            ("the list of the times at which the jobs end, in the order in which they were given "
             "out", "ends"),
            ("the list of how many jobs each worker did", "done"),
        )
    )  # fmt: skip
    order = "longest first (equal ones in their given order)" if longest_first else "in given order"
    jobs = "sorted(jobs, key=lambda j: -j)" if longest_first else "jobs"
    body = (
        f"free = [0] * {k}\ndone = [0] * {k}\nends = []\nfor j in {jobs}:\n"
        "    w = free.index(min(free))\n    ends.append(free[w] + j)\n"
        f"    free[w] += j + {pause}\n    done[w] += 1\nreturn {final[1]}"
    )

    def expected(jobs: list[int]) -> object:
        timelines: list[list[int]] = [[] for _ in range(k)]  # ends of the jobs of each worker
        ends = []
        for j in sorted(jobs, reverse=True) if longest_first else jobs:
            ready = [line[-1] + pause if line else 0 for line in timelines]
            w = min(range(k), key=lambda i: (ready[i], i))
            timelines[w].append(ready[w] + j)
            ends.append(ready[w] + j)
        if final[1] == "done":
            return [len(line) for line in timelines]
        return ends if final[1] == "ends" else max([0, *ends])

    cases: list[Case] = [(draw.integers(draw.integer(3, 9), 1, 9),) for _ in range(4)]
    return code_draft(
        draw,
        name=draw.pick(("assign_jobs", "schedule", "dispatch")),
        parameters="jobs",
        task=(
            f"gives jobs (a list of positive durations), {order}, to {k} workers: each job goes to "
            "the worker who is ready first (of several, the one with the lowest number). After a "
            f"job a worker pauses for {pause}. All start at time 0. It returns {final[0]}."
        ),
        body=body,
        expected=expected,
        cases=[*cases, ([],)],
        level=3.8 + 0.5 * bool(pause) + 0.5 * longest_first,
    )


def cache(draw: Draw) -> Draft:
    """Hits and misses of a small cache."""
    size, recent = draw.integer(2, 4), draw.chance(0.5)
    policy = "that was used least recently" if recent else "that was put in first"
    weights = draw.chance(0.4)
    cost = draw.integer(3, 12)
    final = draw.pick(
        (
            ("the number of hits", "hits"),
            ("the keys left in the cache, in alphabetical order, as one string",
             "''.join(sorted(store))"),
            (f"the total cost, where a hit costs 1 and a miss {cost}", f"hits + {cost} * misses"),
            ("the string of the keys thrown out, in order", "''.join(out)"),
        )
    )  # fmt: skip
    touch = "            store.remove(key)\n            store.append(key)\n" if recent else ""
    skip = "    if key == '-':\n        store, out = [], out + store\n        continue\n"
    body = (
        "store, out, hits, misses = [], [], 0, 0\nfor key in keys:\n"
        + (skip if weights else "")
        + "    if key in store:\n        hits += 1\n"
        + touch.replace("            ", "        ")
        + f"    else:\n        misses += 1\n        if len(store) == {size}:\n"
        f"            out.append(store.pop(0))\n        store.append(key)\nreturn {final[1]}"
    )
    task = (
        f"asks a cache of {size} keys, empty at first, for the characters of a string one by one. "
        f"A key that is there is a hit; one that is not is a miss and is put in, after the key "
        f"{policy} is thrown out if the cache is full."
    )
    if weights:
        task += " A '-' is no key: it throws out all keys, in the order in which they would leave."

    def expected(keys: str) -> object:
        store: OrderedDict[str, None] = OrderedDict()
        thrown, log = "", ""
        for key in keys:
            if weights and key == "-":
                thrown += "".join(store)
                store.clear()
                continue
            log += "h" if key in store else "m"
            if key not in store and len(store) == size:
                thrown += store.popitem(last=False)[0]
            store.setdefault(key, None)
            if recent:
                store.move_to_end(key)
        values: dict[str, Any] = {
            "hits": log.count("h"),
            "''.join(sorted(store))": "".join(sorted(store)),
            "''.join(out)": thrown,
        }
        return values.get(final[1], log.count("h") + cost * log.count("m"))

    cases: list[Case] = []
    for i in range(4):
        keys = "".join(draw.pick("abcdef"[: size + 2]) for _ in range(draw.integer(6, 14)))
        cases.append((keys[:4] + "-" + keys[4:] if weights and i % 2 else keys,))
    return code_draft(
        draw,
        name=draw.pick(("run_cache", "cache_report", "simulate_cache")),
        parameters="keys",
        task=f"{task} It returns {final[0]}.",
        body=body,
        expected=expected,
        cases=[*cases, ("",)],
        level=3.6 + 0.5 * recent + 0.6 * weights + 0.1 * size,
    )


FAMILIES = (account, stack_machine, workers, cache)
