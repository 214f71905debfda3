"""Write-a-function tasks in small worlds: robots, grids, circles, cellular automata."""

from __future__ import annotations

from collections import deque

from inframind_gym.tasks.generators.code_tasks import Case, code_draft
from inframind_gym.tasks.generators.draft import Draft, Draw, times

Cell = tuple[int, int]


def robot(draw: Draw) -> Draft:
    """A robot on a grid that turns and walks by commands."""
    ahead, left, right = draw.sample("FGLRTMWS", 3)
    step = draw.integer(1, 3)
    size = draw.integer(4, 9)
    edge = draw.pick(("free", "wrap", "wall"))
    border = {
        "free": "The plane has no borders.",
        "wrap": f"Coordinates are taken modulo {size}, so that the world wraps around.",
        "wall": f"A walk that would leave the square 0..{size} in x or y is not carried out.",
    }[edge]
    final = draw.pick(
        (
            ("its final position as a tuple (x, y)", "(x, y)"),
            ("the number of different positions at which a command ended or the robot started",
             "len(seen)"),
            ("|x| + |y| at the end", "abs(x) + abs(y)"),
            ("its final heading as 'N', 'E', 'S' or 'W'", "'NESW'[d]"),
        )
    )  # fmt: skip
    move = {
        "free": "x, y = nx, ny",
        "wrap": f"x, y = nx % {size}, ny % {size}",
        "wall": f"if 0 <= nx <= {size} and 0 <= ny <= {size}:\n            x, y = nx, ny",
    }[edge]
    body = (
        "x = y = d = 0\nseen = {(0, 0)}\nfor c in commands:\n"
        f"    if c == '{left}':\n        d = (d - 1) % 4\n"
        f"    elif c == '{right}':\n        d = (d + 1) % 4\n"
        f"    elif c == '{ahead}':\n"
        f"        nx = x + {step} * (0, 1, 0, -1)[d]\n        ny = y + {step} * (1, 0, -1, 0)[d]\n"
        f"        {move}\n    seen.add((x, y))\nreturn {final[1]}"
    )

    def expected(commands: str) -> object:
        place, heading, seen = 0j, 1j, {0j}  # the complex plane: north is 1j
        for c in commands:
            if c == left:
                heading *= 1j
            elif c == right:
                heading *= -1j
            elif c == ahead:
                new = place + step * heading
                if edge == "wrap":
                    new = complex(new.real % size, new.imag % size)
                inside = 0 <= new.real <= size and 0 <= new.imag <= size
                place = new if edge != "wall" or inside else place
            seen.add(place)
        x, y = int(place.real), int(place.imag)
        compass = {1j: "N", 1 + 0j: "E", -1j: "S", -1 + 0j: "W"}
        return {
            "(x, y)": (x, y),
            "len(seen)": len(seen),
            "abs(x) + abs(y)": abs(x) + abs(y),
            "'NESW'[d]": compass[heading],
        }[final[1]]

    cases: list[Case] = []
    for _ in range(4):
        signs = (ahead, ahead, ahead, left, right, "?")
        cases.append(("".join(draw.pick(signs) for _ in range(draw.integer(5, 16))),))
    return code_draft(
        draw,
        name=draw.pick(("run_robot", "drive", "follow")),
        parameters="commands",
        task=(
            f"follows the commands of a string with a robot that starts at (0, 0) heading north "
            f"(y grows to the north, x to the east): '{ahead}' walks {step} ahead, '{left}' turns "
            f"left and '{right}' turns right by 90 degrees; other characters do nothing. {border} "
            f"It returns {final[0]}."
        ),
        body=body,
        expected=expected,
        cases=[*cases, ("",)],
        level=3.2 + {"free": 0.0, "wrap": 0.5, "wall": 0.7}[edge],
    )


def grid_search(draw: Draw) -> Draft:
    """Shortest ways and connected areas in a grid of characters."""
    wall = draw.pick("#X@%")
    moves: tuple[tuple[str, tuple[Cell, ...]], ...] = (
        ("up, down, left and right", ((0, 1), (1, 0), (0, -1), (-1, 0))),
        ("to all eight neighbours",
         ((0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))),
        ("diagonally only", ((1, 1), (1, -1), (-1, 1), (-1, -1))),
        ("down and right only", ((1, 0), (0, 1))),
        ("like a chess knight", ((1, 2), (2, 1), (-1, 2), (-2, 1), (1, -2), (2, -1), (-1, -2),
                                 (-2, -1))),
    )  # fmt: skip
    kind = draw.integer(0, 2)
    phrase, steps = draw.pick(moves if kind == 0 else (*moves[:3], moves[4]))
    open_cells = f"the cells that are not '{wall}'"
    task = (
        f"returns the smallest number of moves from the top left to the bottom right cell over "
        f"{open_cells}, or -1 if there is no way",
        f"returns how many connected areas {open_cells} form",
        f"returns the size of the largest connected area of {open_cells} (0 if there is none)",
    )[kind]
    link = "Moves go" if kind == 0 else "Cells are connected if moves lead from one to the other:"
    search = (
        "def reach(start):\n    dist = {start: 0}\n    todo = [start]\n    for r, c in todo:\n"
        f"        for dr, dc in {list(steps)!r}:\n            p = (r + dr, c + dc)\n"
        "            if p in cells and p not in dist:\n"
        "                dist[p] = dist[(r, c)] + 1\n                todo.append(p)\n"
        "    return dist\n"
    )
    cells = (
        "cells = {(r, c) for r, row in enumerate(grid) for c, v in enumerate(row) "
        f"if v != '{wall}'}}\n"
    )
    if kind == 0:
        end = "(len(grid) - 1, len(grid[0]) - 1)"
        tail = f"return reach((0, 0)).get({end}, -1) if (0, 0) in cells else -1"
    else:
        tail = "areas = []\nwhile cells:\n    area = set(reach(min(cells)))\n"
        tail += "    areas.append(len(area))\n    cells = cells - area\n"
        tail += "return len(areas)" if kind == 1 else "return max(areas, default=0)"

    def expected(grid: list[str]) -> object:
        # Relaxation until nothing changes: no queue.
        free = {(r, c) for r in range(len(grid)) for c in range(len(grid[0])) if grid[r][c] != wall}
        if kind == 0:
            best = {(0, 0): 0} if (0, 0) in free else {}
            for _ in range(len(free)):
                for (r, c), value in list(best.items()):
                    for dr, dc in steps:
                        p = (r + dr, c + dc)
                        if p in free:
                            best[p] = min(best.get(p, value + 1), value + 1)
            return best.get((len(grid) - 1, len(grid[0]) - 1), -1)
        label = {p: i for i, p in enumerate(sorted(free))}
        for _ in range(len(free)):
            for r, c in label:
                for dr, dc in steps:
                    q = (r + dr, c + dc)
                    if q in label:
                        label[(r, c)] = label[q] = min(label[(r, c)], label[q])
        sizes = [list(label.values()).count(v) for v in set(label.values())]
        return len(sizes) if kind == 1 else max(sizes, default=0)

    cases: list[Case] = []
    for _ in range(4):
        h, w = draw.integer(2, 4), draw.integer(3, 5)
        rows = ["".join(wall if draw.chance(0.3) else "." for _ in range(w)) for _ in range(h)]
        if kind == 0:
            rows[0], rows[-1] = "." + rows[0][1:], rows[-1][:-1] + "."
        cases.append((rows,))
    return code_draft(
        draw,
        name=draw.pick(("explore", "grid_answer", "search_grid")),
        parameters="grid",
        task=f"takes a grid as a list of strings of equal length and {task}. {link} {phrase}.",
        body=cells + search + tail,
        expected=expected,
        cases=[*cases, ([wall],), (["."],)],
        level=5.0 + 0.3 * kind,
    )


def elimination(draw: Draw) -> Draft:
    """Counting out around a circle."""
    k, grow = draw.integer(2, 7), draw.integer(0, 2)
    final = draw.pick(
        (
            ("the number of the last one left", "circle[0]"),
            ("the list of the numbers in the order in which they leave, the last one left at its "
             "end", "gone + circle"),
            ("the number of the one that leaves first (n itself if n is 1)", "(gone + circle)[0]"),
        )
    )  # fmt: skip
    start = draw.integer(0, 3)
    rule = (
        f"every {k}-th one leaves"
        if not grow
        else (
            f"first the {k}-th one leaves, and each time {grow} more are counted than the time "
            "before"
        )
    )
    body = (
        f"circle = list(range(1, n + 1))\ngone = []\ni = {start} % n\nk = {k}\n"
        "while len(circle) > 1:\n    i = (i + k - 1) % len(circle)\n"
        f"    gone.append(circle.pop(i))\n    k += {grow}\nreturn {final[1]}"
    )

    def expected(n: int) -> object:
        ring, count = deque(range(1, n + 1)), k
        ring.rotate(-start)
        order = []
        while len(ring) > 1:
            ring.rotate(-(count - 1))
            order.append(ring.popleft())
            count += grow
        return {"circle[0]": ring[0], "gone + circle": [*order, ring[0]]}.get(
            final[1], [*order, ring[0]][0]
        )

    cases: list[Case] = [(draw.integer(4, 8),), (1,), (draw.integer(9, 15),), (2,), (21,)]
    return code_draft(
        draw,
        name=draw.pick(("count_out", "circle_game", "survivor")),
        parameters="n",
        task=(
            f"plays a counting-out game with the numbers 1 to n in a circle: counting starts at "
            f"position {start} (from 0, modulo n), {rule}, counting goes on with the next one, "
            f"until one is left. It returns {final[0]}."
        ),
        body=body,
        expected=expected,
        cases=cases,
        level=3.6 + 0.5 * grow + 0.2 * bool(start),
    )


def automaton(draw: Draw) -> Draft:
    """One-dimensional cellular automata."""
    rule, steps, wrap = draw.integer(1, 254), draw.integer(1, 4), draw.chance(0.5)
    ones = [f"{i:03b}" for i in range(8) if rule >> i & 1]
    border = "the row wraps around" if wrap else "cells outside of the row count as 0"
    body = (
        f"for _ in range({steps}):\n"
        + ("    p = s[-1:] + s + s[:1]\n" if wrap else "    p = '0' + s + '0'\n")
        + f"    s = ''.join('1' if p[i:i + 3] in {ones!r} else '0' for i in range(len(s)))\n"
        "return s"
    )

    def expected(s: str) -> object:
        row = [int(c) for c in s]
        for _ in range(steps):
            n = len(row)
            at = [
                [row[(i + o) % n] if wrap or 0 <= i + o < n else 0 for o in (-1, 0, 1)]
                for i in range(n)
            ]
            row = [rule >> (4 * a + 2 * b + c) & 1 for a, b, c in at]
        return "".join(map(str, row))

    cases: list[Case] = []
    for n in (6, 9, 12, 1):
        cases.append(("".join(str(draw.integer(0, 1)) for _ in range(n)),))
    return code_draft(
        draw,
        name=draw.pick(("evolve", "next_rows", "cells")),
        parameters="s",
        task=(
            f"takes a row of cells as a string of 0 and 1 and applies this rule {times(steps)} to "
            "all cells at once: a cell becomes 1 exactly if the three characters made of its left "
            f"neighbour, itself and its right neighbour are one of {', '.join(ones)}; {border}. It "
            "returns the new row."
        ),
        body=body,
        expected=expected,
        cases=[*cases, ("",)],
        level=3.8 + 0.5 * steps,
    )


FAMILIES = (robot, grid_search, elimination, automaton)
