"""Write-a-function tasks that read structured strings: settings, clock times, brackets."""

from __future__ import annotations

import re
from typing import Any

from inframind_gym.tasks.generators.code_tasks import Case, code_draft, pick_op
from inframind_gym.tasks.generators.draft import Draft, Draw, counted


def parse_pairs(draw: Draw) -> Draft:
    """Parse "key=value" settings."""
    inner, outer = draw.pick("=:~>"), draw.pick(";,|&")
    rule = pick_op(
        draw,
        (
            ("the last value counts", "result[k] = v", lambda v: v[-1]),
            ("the first value counts", "result.setdefault(k, v)", lambda v: v[0]),
            ("the values are added up", "result[k] = result.get(k, 0) + v", sum),
            ("the largest value counts", "result[k] = max(v, result.get(k, v))", max),
            ("all values are kept", "result.setdefault(k, []).append(v)", list),
        ),
    )
    lower = draw.chance(0.5)
    bad = draw.chance(0.5)
    task = (
        f"parses a string such as 'a{inner}1{outer}b{inner}2' into a dictionary from keys to "
        f"integers (lists of integers if all are kept). Where a key occurs again, {rule[0]}. "
        "Spaces around keys and values do not matter."
    ).replace("integers (lists of integers if all are kept)",
              "lists of integers" if "all" in rule[0] else "integers")  # fmt: skip
    task += " Keys are lower-cased." if lower else ""
    task += f" Parts without '{inner}' are skipped." if bad else " Empty parts are skipped."
    condition = f"'{inner}' not in part" if bad else "not part.strip()"
    body = (
        f"result = {{}}\nfor part in text.split('{outer}'):\n    if {condition}:\n"
        f"        continue\n    k, v = part.split('{inner}')\n"
        f"    k, v = k.strip(){'.lower()' if lower else ''}, int(v)\n    {rule[1]}\nreturn result"
    )

    def expected(text: str) -> object:
        found: dict[str, list[int]] = {}
        for k, v in re.findall(rf"(\w+) *{re.escape(inner)} *(-?\d+)", text):
            found.setdefault(k.lower() if lower else k, []).append(int(v))
        return {k: rule[2](v) for k, v in found.items()}

    cases: list[Case] = []
    for i in range(5):
        parts = []
        for _ in range(draw.integer(2, 6)):
            space = draw.pick(("", "", " "))
            parts.append(f"{draw.pick('abcABx')}{space}{inner}{space}{draw.integer(-9, 60)}")
        if i % 2:
            parts.insert(1, "oops" if bad else "")
        cases.append((f"{outer}{draw.pick(('', ' '))}".join(parts),))
    return code_draft(
        draw,
        name=draw.pick(("parse", "read_settings", "to_dict")),
        parameters="text",
        task=task,
        body=body,
        expected=expected,
        cases=[*cases, ("",)],
        level=3.0 + 0.4 * lower + 0.5 * bad,
    )


def time_strings(draw: Draw) -> Draft:
    """Clock times as strings."""
    k = draw.integer(5, 180)
    unit, pause = k % 25 + 2, k % 13 + 1
    kind = draw.integer(0, 4)
    if kind == 0:
        parameters = "t"
        task = (
            f"takes a clock time 'HH:MM' (24 hours) and returns the time {k} minutes later, in "
            "the same form, past midnight if need be."
        )
        body = (
            f"h, m = map(int, t.split(':'))\nx = (h * 60 + m + {k}) % 1440\n"
            "return f'{x // 60:02d}:{x % 60:02d}'"
        )
    elif kind == 1:
        parameters = "start, end"
        task = (
            "takes two clock times 'HH:MM', the second one on the next day if it is not later "
            "than the first, and returns the minutes between them, rounded down to a multiple of "
            f"{unit}."
        )
        body = (
            "a, b = (int(x[:2]) * 60 + int(x[3:]) for x in (start, end))\n"
            f"d = b - a if b > a else b - a + 1440\nreturn d - d % {unit}"
        )
    elif kind == 2:
        parameters = "n"
        task = (
            f"takes a number of seconds, adds {k} and returns the result as 'Hh MMm SSs' (minutes "
            "and seconds with two digits)."
        )
        body = f"n += {k}\nreturn f'{{n // 3600}}h {{n // 60 % 60:02d}}m {{n % 60:02d}}s'"
    elif kind == 3:
        parameters = "durations"
        task = (
            "takes a list of durations such as '2h05m' or '47m' and returns their total in "
            f"minutes, counting {counted(pause, 'minute')} of pause after each but the last."
        )
        body = (
            "total = 0\nfor d in durations:\n    h, _, m = d.rpartition('h')\n"
            "    total += int(h or 0) * 60 + int(m[:-1])\n"
            f"return total + {pause} * max(0, len(durations) - 1)"
        )
    else:
        parameters = "times"
        task = (
            "takes a list of clock times 'HH:MM' of one day and returns the largest gap in "
            f"minutes between two neighbours in time, or {k} if there are fewer than two times."
        )
        body = (
            "m = sorted(int(t[:2]) * 60 + int(t[3:]) for t in times)\n"
            f"return max((b - a for a, b in zip(m, m[1:])), default={k})"
        )

    def minutes(t: str) -> int:
        return int(t.split(":")[0]) * 60 + int(t.split(":")[1])

    def expected(*case: Any) -> object:
        if kind == 0:
            h, m = divmod(minutes(case[0]) + k, 60)
            return f"{str(h % 24).zfill(2)}:{str(m).zfill(2)}"
        if kind == 1:
            d = (minutes(case[1]) - minutes(case[0]) - 1) % 1440 + 1
            return d // unit * unit
        if kind == 2:
            m, s = divmod(case[0] + k, 60)
            h, m = divmod(m, 60)
            return f"{h}h {str(m).zfill(2)}m {str(s).zfill(2)}s"
        if kind == 3:
            total = 0
            for d in case[0]:
                numbers = [int(x) for x in re.findall(r"\d+", d)]
                total += numbers[-1] + (60 * numbers[0] if len(numbers) > 1 else 0)
            return total + pause * len(case[0][1:])
        times = sorted(map(minutes, case[0]))
        return max([times[i] - times[i - 1] for i in range(1, len(times))]) if times[1:] else k

    def clock() -> str:
        return f"{draw.integer(0, 23):02d}:{draw.integer(0, 59):02d}"

    cases: list[Case] = []
    for i in range(5):
        if kind == 1:
            cases.append((clock(), clock()))
        elif kind == 2:
            cases.append((draw.integer(0, 9000),))
        elif kind == 3:
            cases.append((
                [
                    (f"{draw.integer(1, 5)}h" if draw.chance(0.6) else "")
                    + f"{draw.integer(0, 59):02d}m"
                    for _ in range(i)
                ],
            ))  # fmt: skip
        else:
            cases.append((clock(),) if kind == 0 else ([clock() for _ in range(2 * i)],))
    return code_draft(
        draw,
        name=draw.pick(("clock", "time_value", "schedule")),
        parameters=parameters,
        task=task,
        body=body,
        expected=expected,
        cases=cases if kind < 3 else cases[::-1],
        level=2.2 + 0.4 * kind,
    )


def brackets(draw: Draw) -> Draft:
    """Check nested brackets."""
    pairs = draw.sample(("()", "[]", "{}", "<>"), draw.integer(1, 3))
    limit = draw.integer(2, 4) if draw.chance(0.4) else None
    kind = draw.integer(0, 2)
    names = " and ".join(f"'{p}'" for p in pairs)
    what = (
        "returns True if they are balanced and properly nested, else False",
        "returns the greatest depth of nesting, or -1 if they are not balanced or not properly "
        "nested",
        "returns the position of the first closing bracket that does not fit, else the length of "
        "the string if some stay open, else -1",
    )[kind]
    task = f"looks at the brackets {names} of a string, ignoring all other characters, and {what}."
    if limit is not None and kind < 2:
        task += f" Nesting deeper than {limit} counts as not balanced."
    closing = {p[1]: p[0] for p in pairs}
    fail = ("return False", "return -1", "return i")[kind]
    open_fail = ("return False", "return -1", "return len(s)")[kind]
    good = ("return True", "return depth", "return -1")[kind]
    deep = f"        if len(stack) > {limit}:\n            {fail}\n" if limit and kind < 2 else ""
    body = (
        f"pairs = {closing!r}\nstack = []\ndepth = 0\nfor i, c in enumerate(s):\n"
        "    if c in pairs.values():\n        stack.append(c)\n"
        f"        depth = max(depth, len(stack))\n{deep}"
        "    elif c in pairs:\n        if not stack or stack.pop() != pairs[c]:\n"
        f"            {fail}\nif stack:\n    {open_fail}\n{good}"
    )

    def expected(s: str) -> object:
        # Independent of a stack: delete the innermost pairs, layer by layer.
        signs = "".join(pairs)
        rest = [(i, c) for i, c in enumerate(s) if c in signs]
        depth, changed = [0] * len(rest), True
        items = [(i, c, 0) for i, c in rest]
        while changed:
            changed = False
            for j in range(len(items) - 1):
                if items[j][1] + items[j + 1][1] in pairs:
                    del items[j : j + 2]
                    changed = True
                    break
        level = 0
        for j, (_, c) in enumerate(rest):
            level += 1 if c in [p[0] for p in pairs] else -1
            depth[j] = level
        wrong = [i for i, c, _ in items if c in closing]
        if kind == 2:
            return min(wrong) if wrong else (len(s) if items else -1)
        top = max(depth, default=0)
        fine = not items and (limit is None or top <= limit)
        return fine if kind == 0 else (top if fine else -1)

    def nested(size: int) -> str:
        if size <= 0:
            return draw.pick(("", "x", "y+"))
        p = draw.pick(pairs)
        split = draw.integer(0, size - 1)
        return p[0] + nested(split) + p[1] + nested(size - 1 - split)

    good_one = nested(draw.integer(3, 6))
    broken = nested(4)
    cut = draw.integer(0, len(broken) - 1)
    cases: list[Case] = [
        (good_one,), (broken[:cut] + broken[cut + 1 :],), (nested(2) + pairs[0][1] + nested(2),),
        (nested(7),), (pairs[-1][0] + nested(1),), ("",),
    ]  # fmt: skip
    return code_draft(
        draw,
        name=draw.pick(("check_brackets", "bracket_test", "balance")),
        parameters="s",
        task=task,
        body=body,
        expected=expected,
        cases=cases,
        level=2.6 + 0.5 * len(pairs) + 0.4 * kind + (0.7 if limit and kind < 2 else 0.0),
    )


FAMILIES = (parse_pairs, time_strings, brackets)
