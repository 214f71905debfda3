"""Write-a-function tasks over matrices."""

from __future__ import annotations

from collections.abc import Callable

from inframind_gym.tasks.generators.code_tasks import Case, Op, code_draft, pick_op
from inframind_gym.tasks.generators.draft import Draft, Draw

Ints = list[int]
Region = tuple[str, str, Callable[[int, int, int], bool]]  # of row, column and size


def matrix_region(draw: Draw) -> Draft:
    """Aggregate over a region of a square matrix."""
    k = draw.integer(2, 3)
    region: Region = draw.pick(
        (
            ("that lie on the main diagonal", "i == j", lambda i, j, n: i - j == 0),
            ("that lie on the other diagonal", "i + j == n - 1", lambda i, j, n: j == n - 1 - i),
            ("that lie above the main diagonal", "i < j", lambda i, j, n: j - i > 0),
            ("that lie on or below the main diagonal", "i >= j", lambda i, j, n: not j > i),
            ("that lie on the border", "i in (0, n - 1) or j in (0, n - 1)",
             lambda i, j, n: min(i, j) == 0 or max(i, j) == n - 1),
            ("that lie inside of the border", "0 < i < n - 1 and 0 < j < n - 1",
             lambda i, j, n: min(i, j) > 0 and max(i, j) < n - 1),
            (f"whose row and column numbers (from 0) add up to a multiple of {k}",
             f"(i + j) % {k} == 0", lambda i, j, n: not (i + j) % k),
            (f"that lie in rows whose number (from 0) is a multiple of {k}", f"i % {k} == 0",
             lambda i, j, n: i in range(0, n, k)),
        )
    )  # fmt: skip
    t = draw.integer(3, 7)
    final = pick_op(
        draw,
        (
            ("their sum", "sum(cells)", sum),
            ("the largest of them (0 if there is none)", "max(cells, default=0)",
             lambda c: max(c) if c else 0),
            (f"the number of those greater than {t}", f"sum(v > {t} for v in cells)",
             lambda c: len([v for v in c if v > t])),
            ("the list of them, row by row", "cells", list),
            (f"the sum of their squares modulo {t + 90}",
             f"sum(v * v for v in cells) % {t + 90}", lambda c: sum(v**2 for v in c) % (t + 90)),
        )
    )  # fmt: skip
    body = (
        "n = len(matrix)\n"
        f"cells = [matrix[i][j] for i in range(n) for j in range(n) if {region[1]}]\n"
        f"return {final[1]}"
    )

    def expected(matrix: list[Ints]) -> object:
        n = len(matrix)
        return final[2](
            [v for i, row in enumerate(matrix) for j, v in enumerate(row) if region[2](i, j, n)]
        )

    cases: list[Case] = [
        ([draw.integers(n, 0, 12) for _ in range(n)],) for n in draw.shuffled((2, 3, 4, 5))
    ]
    return code_draft(
        draw,
        name=draw.pick(("matrix_value", "region", "scan_matrix")),
        parameters="matrix",
        task=(
            f"looks at the entries of a square matrix (a list of rows) {region[0]}, and returns "
            f"{final[0]}."
        ),
        body=body,
        expected=expected,
        cases=cases,
        level=2.8 + 0.1 * len(region[1]) ** 0.8,
    )


def matrix_turns(draw: Draw) -> Draft:
    """Turn, mirror and transpose a matrix in a given order."""
    moves: tuple[Op, ...] = (
        ("turn it clockwise by 90 degrees", "[list(r) for r in zip(*m[::-1])]",
         lambda m: [[m[-1 - j][i] for j in range(len(m))] for i in range(len(m[0]))]),
        ("turn it counterclockwise by 90 degrees", "[list(r) for r in zip(*m)][::-1]",
         lambda m: [[r[-1 - i] for r in m] for i in range(len(m[0]))]),
        ("transpose it", "[list(r) for r in zip(*m)]",
         lambda m: [[r[i] for r in m] for i in range(len(m[0]))]),
        ("mirror it from left to right", "[r[::-1] for r in m]",
         lambda m: [list(reversed(r)) for r in m]),
        ("turn it upside down (reverse the rows)", "m[::-1]", lambda m: list(reversed(m))),
        ("replace every entry by its running total along the row",
         "[[sum(r[:j + 1]) for j in range(len(r))] for r in m]",
         lambda m: [[sum(r[: j + 1]) for j in range(len(r))] for r in m]),
        ("drop its first row if it has more than one", "m[1:] if len(m) > 1 else m",
         lambda m: m if len(m) == 1 else m[1:]),
    )  # fmt: skip
    count = draw.integer(1, 4)
    chosen = [draw.pick(moves) for _ in range(count)]
    steps = "; ".join(f"({i + 1}) {m[0]}" for i, m in enumerate(chosen))
    body = "m = [list(r) for r in matrix]\n" + "".join(f"m = {m[1]}\n" for m in chosen)

    def expected(matrix: list[Ints]) -> object:
        for move in chosen:
            matrix = move[2](matrix)
        return matrix

    cases: list[Case] = []
    for _ in range(4):
        width = draw.integer(1, 4)
        cases.append(([draw.integers(width, 0, 9) for _ in range(draw.integer(1, 4))],))
    return code_draft(
        draw,
        name=draw.pick(("transform", "rearrange", "turn_matrix")),
        parameters="matrix",
        task=(
            "takes a matrix (a list of rows of equal length, none empty), does the following in "
            f"this order and returns the result as a list of lists: {steps}."
        ),
        body=body + "return m",
        expected=expected,
        cases=cases,
        level=1.8 + 1.1 * count,
    )


FAMILIES = (matrix_region, matrix_turns)
