"""Final answers in responses of every kind, judging them, and `inframind check tasks`."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from inframind_gym.cli import app
from inframind_gym.errors import TaskError
from inframind_gym.tasks import Answer
from inframind_gym.tasks import sandbox as sandboxes
from inframind_gym.tasks.grading import (
    final_code,
    final_expression,
    final_letter,
    final_number,
    grade,
    judge,
    parse_number,
)
from inframind_gym.tasks.loaders import TaskRecord, read_folder
from inframind_gym.tasks.sandbox import Sandbox


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is 42.", 42),
        ("The answer is 7 * 6 = 42 apples.", 42),
        ("The answer is 3 - 3 = 0", 0),
        (r"\boxed{7}, since 3 + 4 = 7 and not 9", 7),
        (r"first \boxed{3}, no: \boxed{\frac{3}{4}}", Fraction(3, 4)),
        (r"it is $\frac12$", Fraction(1, 2)),
        ("She pays $1,234.50 in total", Fraction("1234.5")),
        ("−5", -5),
        ("5-3", 3),
        ("Answer: 3 / 7", Fraction(3, 7)),
        ("about 1 3/4 hours", Fraction(7, 4)),
        ("The result is 2.5e3", 2500),
        ("1000000 is more than 999,999", 999999),
        (r"\boxed{12,\!345}", 12345),
        (r"\boxed{1.5 \times 10^6}", 1500000),
        (r"\boxed{2 \cdot 10^{-3}}", Fraction(2, 1000)),
        ("1e400", 10**400),
        (r"\boxed{-\frac{1}{2}}", Fraction(-1, 2)),
        ("The final answer is: $\\boxed{25}$", 25),
        ("Answer: the sum of the digits is 9", 9),
        ("The answer is 3.\nLet me check it: 3 + 0 = 3, 2 + 1 = 3, 44", 3),
        ("no number here", None),
        ("", None),
    ],
)
def test_final_number(text: str, expected: Fraction | int | None) -> None:
    assert final_number(text) == expected


@pytest.mark.parametrize(
    ("value", "text", "right"),
    [
        ("42", "42.0", True),
        ("42", "42.01", False),
        ("42", "The answer is 41", False),
        ("3.1416", "3.14", True),
        ("3.1416", "3.15", False),
        ("-9867630", "-9,867,630", True),
        ("-9867630", "-9,867,629", False),
        ("1716228.3333333333", "1716228.33", True),
        ("1716228.3333333333", "1716228", False),
        ("0.004", "0.0", False),
        ("0", "0.1", False),
        ("3/7", "0.42857", True),
        ("1e+16", "10000000000000000", True),
        ("9867630.0000001", "9867630", True),
        ("12", "I do not know.", False),
    ],
)
def test_numbers(value: str, text: str, right: bool) -> None:
    assert grade(Answer("number", value), text) is right


OPTIONS = ("iron", "a wooden spoon", "glass", "wool")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("C", "C"),
        ("The answer is C.", "C"),
        ("The answer is (C) glass", "C"),
        ("the correct answer is: **C**", "C"),
        (r"\boxed{\text{C}}", "C"),
        (r"The answer is A. No: \boxed{(C)}", "C"),
        ("The answer is A? No. The answer is C", "C"),
        ("A is wrong because it rusts.\nC", "C"),
        ("C. glass", "C"),
        ("I think of glass.\nglass", "C"),
        ("A spoon cannot be it, (C) can", "C"),
        ("The answer is a wooden spoon", None),
        ("A spoon is made of wood", None),
        ("The answer is F", None),
        ("", None),
    ],
)
def test_final_letter(text: str, expected: str | None) -> None:
    assert final_letter(text, OPTIONS) == expected
    assert grade(Answer("choice", "C", OPTIONS), text) is (expected == "C")


def test_an_answer_that_is_no_number_is_an_error() -> None:
    for value in ("forty", "1/0"):
        with pytest.raises(TaskError, match=f"'{value}' is not a number"):
            grade(Answer("number", value), "40")


@given(st.integers(-(10**12), 10**12))
def test_every_integer_is_read_back(value: int) -> None:
    assert parse_number(str(value)) == value
    assert parse_number(f"{value:,}") == value
    assert grade(Answer("number", str(value)), f"So the answer is {value:,}.")
    assert not grade(Answer("number", str(value)), f"So the answer is {value + 1}.")


@given(st.fractions(min_value=-1000, max_value=1000, max_denominator=999))
def test_every_fraction_is_read_back(value: Fraction) -> None:
    assert grade(Answer("number", str(value)), f"The probability is {value}")


@given(st.text(max_size=60))
def test_no_response_breaks_a_grader(text: str) -> None:
    for answer in (Answer("number", "7"), Answer("choice", "B", OPTIONS)):
        assert grade(answer, text) in (True, False)
    assert final_expression(text) is not None


QUESTIONS = Path(__file__).parents[3] / "shared" / "data" / "tasks"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as made:
        yield made


@pytest.fixture
def formulas(sandbox: Sandbox) -> Sandbox:
    pytest.importorskip("math_verify", reason="math-verify is not installed (extra `live`)")
    return sandbox


TESTS = Answer("tests", "assert f(1) == 2", entry_point="f")
RIGHT = "def f(x):\n    return x + 1\n"


@pytest.mark.parametrize(
    ("answer", "text", "right"),
    [
        (Answer("number", "42"), "It is \\boxed{41}.", False),
        (Answer("number", "42"), "<think>41? No.</think> 42", True),
        (Answer("number", "41"), "<think>The answer is 41.</think> The answer is 42.", False),
        (Answer("choice", "B", ("x", "y")), "Answer: B", True),
        (Answer("expression", "x+1"), "\\boxed{x + 1}", True),
        (TESTS, "```python\ndef f(x): return 2\n```", True),
        (TESTS, "```python\ndef f(x): return 3\n```", False),
        (TESTS, "I cannot do that.", False),
    ],
)  # fmt: skip
def test_every_kind_is_judged(sandbox: Sandbox, answer: Answer, text: str, right: bool) -> None:
    assert judge(answer, text, sandbox) is right


FORMULAS = [  # kind, expected, response, right
    ("expression", "x^3+3x-6", r"\boxed{3x - 6 + x^3}", True),
    ("expression", "3, 5, 7", r"\boxed{7, 3, 5}", True),
    ("expression", r"(5,\infty)", r"\boxed{x > 5}", True),
    ("expression", "x^2", r"\boxed{x^3}", False),
    ("expression", "(6,31,-1)", r"\boxed{(31,6,-1)}", False),
    ("expression", r"\sqrt{53}", r"\boxed{7.28}", False),
    ("expression", "5", r"\boxed{}", False),
    ("expression", "5", r"\boxed{__import__('os').system('true')}", False),
    ("expression", "x^2+5x+6", "The answer is x^2+5x+7", False),
    ("expression", r"49\pi", "The area is $49 \\pi$.", True),
    ("expression", r"49\pi", "49π", True),
    ("expression", r"\frac{1}{2}", "0.5", True),
    ("expression", r"\text{Evelyn}", "evelyn", True),
    ("expression", "5", r"\boxed{x = 5}", True),
    ("expression", r"5 \text{ cm}", "5", True),
    ("expression", "3.14159", "3.14", True),
    ("expression", "\\$32,\\!348", "\\boxed{ \\$32 , \\!348 }", True),
    ("expression", "42", "41.9", False),
    ("expression", "A", "", False),
    ("number", "2", r"So \boxed{\frac{x}{2}}.", False),
    ("number", "4", r"So \boxed{\sqrt{16}}.", True),
    ("number", "120", r"So \boxed{5!}.", True),
    ("number", "2", r"So \boxed{2x}.", False),
    ("number", "12", r"So \boxed{3 \times 4}.", True),
    ("number", "1024", r"So \boxed{2^{10}}.", True),
    ("number", "3", r"So \boxed{3 + 4 = 7}.", False),
    ("number", "0.5", r"So \boxed{\frac{1}{2}}.", True),
    ("number", "1.75", r"So \boxed{1\frac{3}{4}}.", True),
    ("number", "12", r"So \boxed{12\text{ cm}^2}.", True),
    ("number", "5", r"So \boxed{\$5}.", True),
    ("number", "90", r"So \boxed{90^\circ}.", True),
    ("number", "30000", r"So \boxed{3 \times 10^4}.", True),
]


@pytest.mark.parametrize(("kind", "expected", "text", "right"), FORMULAS)
def test_formulas_are_compared_by_what_they_mean(
    formulas: Sandbox, kind: Any, expected: str, text: str, right: bool
) -> None:
    """The number in a formula is not its value."""
    assert judge(Answer(kind, expected), text, formulas) is right


@pytest.mark.parametrize(
    "text",
    [
        "1e999999999",
        r"\boxed{1 \times 10^{999999999}}",
        "9" * 100_000,
        r"\boxed{\frac{1}{" + "9" * 5000 + "}}",
        "answer is " * 20_000,
        " " * 100_000 + ".",
        r"\text{ " * 20_000,
        "```" * 30_000,
        "</think>" * 30_000,
    ],
)
@pytest.mark.parametrize("kind", ["number", "expression", "choice", "tests"])
def test_hostile_texts_are_wrong_in_time(
    formulas: Sandbox, kind: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxes, "_FORMULA_S", 1)
    value = {"choice": "B", "tests": "assert f(1) == 2"}.get(kind, "7")
    answer = Answer(kind, value, ("x", "y"), "f")  # type: ignore[arg-type]
    started = time.process_time()
    assert not judge(answer, text, formulas)
    assert time.process_time() - started < 1.0


def test_the_end_of_a_long_response_is_read(sandbox: Sandbox) -> None:
    text = "Let me think. " * 10_000
    assert final_number(text + "The answer is 42.") == 42
    assert final_number("The answer is 42." + text) is None
    assert judge(TESTS, f"{text}\n```python\n{RIGHT}```", sandbox)
    assert not judge(TESTS, f"```python\n{RIGHT}```\n{text}", sandbox)


@pytest.mark.parametrize("hostile", ["10000000000!", r"5^{5^{5^{5^5}}}", "(" * 300])
def test_formulas_that_never_end_are_wrong_in_time(
    formulas: Sandbox, monkeypatch: pytest.MonkeyPatch, hostile: str
) -> None:
    monkeypatch.setattr(sandboxes, "_FORMULA_S", 1)
    with Sandbox() as box:
        started = time.monotonic()
        assert not box.same_formula(r"\frac{1}{7}", hostile)
        assert time.monotonic() - started < 60.0
        assert box.same_formula("x + 1", "1 + x")  # with another process


CODE = "def f(x):\n    return 1\n"
OTHER = "def g(x):\n    return 2\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"```python\n{CODE}```", CODE),
        (f"Here:\n```py\n{CODE}```\nDone.", CODE),
        (f"```\n{CODE}```", CODE),
        (f"```python\n{CODE}```\nUse it:\n```python\nprint(f(1))\n```", CODE),
        (f"```python\n{CODE}```\nBetter:\n```python\n{CODE}# b\n```", f"{CODE}# b\n"),
        (f"```python\n{CODE}```\nTests:\n```python\n{OTHER}```", CODE),
        (f"```bash\npip install x\n```\n```python\n{CODE}```", CODE),
        ("1. Write\n   ```python\n   def f(x):\n       return 1\n   ```", CODE),
        (f"```python\n{CODE}", CODE),
        (f"Sure!\n{CODE}\nThis works because it does.", CODE.rstrip()),
        (f"{CODE}\nThis works.\n\nfrom this follows that.\nimport nothing more.", CODE.rstrip()),
        (f"{CODE}{OTHER}\nThis works.\n" + "More of it.\n" * 60, (CODE + OTHER).rstrip()),
        ("There is no code.", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_the_code_of_a_response(text: str, expected: str) -> None:
    assert final_code(text, "f").rstrip() == expected.rstrip()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"The answer is $\$18.90$.", r"\$18.90"),
        (r"Answer: \(x + 1\).", "x + 1"),
        ("So\n\\[ x + 1 \\]", " x + 1 "),
        ("from $x$ follows $y$", "y"),
    ],
)
def test_formulas_in_sentences(text: str, expected: str) -> None:
    assert final_expression(text) == expected


def responses(answer: Answer) -> list[str]:
    """Responses that say the answer."""
    value = answer.value
    if answer.kind == "tests":
        return [f"```python\n{answer.reference}\n```"]
    if answer.kind != "expression":
        said = value.replace("e", " \\times 10^")
        return [f"\\boxed{{{said}}}", f"The answer is {said}.", f"Answer: {said}", f"**{value}**"]
    spaced = re.sub(r"([+\-,=])", r" \1 ", value)
    large = value.replace("\\frac", "\\dfrac")
    plain_brackets = value.replace("\\left", "").replace("\\right", "")
    return [
        f"So \\boxed{{{value}}}.",
        f"The final answer is: $\\boxed{{{value}}}$. I hope so.",
        f"Thus\n\\[\n\\boxed{{{value}}}\n\\]",
        f"\\boxed{{{large}}}",
        f"\\boxed{{ {spaced} }}",
        f"\\boxed{{{plain_brackets}}}",
        f"The answer is ${value}$.",
        f"Answer: \\({value}\\).",
        f"**Answer:** ${value}$",
        f"Answer: {value}.",
    ]


@pytest.mark.parametrize(
    "dataset", ["builtin", "math", "gsm_hard", "mbpp", "humaneval", "mmlu_pro"]
)
def test_true_answers_are_right(formulas: Sandbox, dataset: str) -> None:
    if dataset == "builtin":
        records = read_folder(Path("builtin"))[::10]
    elif QUESTIONS.is_dir():
        records = read_folder(QUESTIONS, [dataset])[::4]
    else:
        pytest.skip(f"benchmark questions are not in {QUESTIONS}")

    def wrong(record: TaskRecord) -> list[str]:
        return [
            f"{record.id}: {text}"
            for text in responses(record.answer)
            if not judge(record.answer, text, formulas, record.text)
        ]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(wrong, records))
    assert len(found) > 30
    assert [line for lines in found for line in lines] == []


# Reference answers are run against their tests

ADDS = "def f(x): return x + 1"
IMPORTS = [("import numpy\nassert f(1) == 2", ADDS)]


def task(number: int, tests: str, reference: str) -> str:
    answer = {"kind": "tests", "value": tests, "entry_point": "f", "reference": reference}
    return json.dumps({"id": str(number), "text": "Write f.", "domain": "Code", "answer": answer})


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
@pytest.mark.parametrize(
    ("rows", "options", "status", "expected"),
    [
        (
            [("assert f(1) == 2", ADDS), ("assert f(1) == 2", "")], [], 0,
            ["1 of 1 reference answers pass (100.0 %); 1 tasks have tests and no reference"],
        ),
        (
            [(tests, ADDS) for tests in (
                "assert f(1) == 2", "assert f(1) == 3", "import nothing_there",
            )], [], 1,
            ["1 of 3 reference answers pass (33.3 %)", "code 1: AssertionError", "task '2': its"],
        ),
        (IMPORTS, ["--packages", ""], 1, ["they may import the standard library and no package"]),
        ([], [], 2, ["the task files hold no task"]),
    ],
)  # fmt: skip
def test_references_that_do_not_pass_are_named(
    tmp_path: Path,
    rows: list[tuple[str, str]],
    options: list[str],
    status: int,
    expected: list[str],
) -> None:
    path = tmp_path / "code.jsonl"
    path.write_text("\n".join(task(n, *row) for n, row in enumerate(rows)))
    done = CliRunner().invoke(app, ["check", "tasks", str(path), *options])
    assert done.exit_code == status, done.output
    for line in expected:
        assert line in done.output
