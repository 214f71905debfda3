"""Judging responses: finding the final answer in what a model wrote, and comparing it.

A final answer is a number, a letter, an expression or code. Reading is safe and comes first:
nothing here runs any code. Of a response the last ``MAX_TEXT`` characters are read, where final
answers stand, in milliseconds: every pattern takes linear time. Formulas that differ as texts are
compared by math-verify, and code is run against the task's tests: both in the sandbox, and nowhere
else.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import zip_longest
from pathlib import Path

from inframind_gym.errors import ConfigError, TaskError
from inframind_gym.tasks.loaders import TaskRecord, read_folder
from inframind_gym.tasks.sandbox import MAX_FORMULA, MAX_TEXT, PACKAGES, Sandbox
from inframind_gym.tasks.taskset import Answer

# Numbers and formulas in a response

# After a word character or a closing bracket, "-" is an operator and no sign.
_SIGN = r"(?<![\w)\]])[-+]?"
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
# Exact fractions hold every digit: an exponent of nine digits would fill the memory.
_EXPONENT = r"(?:[eE][-+]?\d{1,3}(?!\d))?"
MAX_DIGITS = 400
MAX_MARKS = 20  # of "the answer is", the last ones
MAX_LINE = 400  # characters after "the answer is" in which the answer has to come
_NUMBER = re.compile(
    rf"{_SIGN}(?P<whole>{_DIGITS})\s+(?P<top>\d+)/(?P<bottom>[1-9]\d*)(?![\d.])"
    rf"|{_SIGN}(?:{_DIGITS}(?:\.\d+)?|\.\d+){_EXPONENT}(?:\s*/\s*[1-9]\d*(?!\.\d))?"
)
_FRAC = re.compile(r"\\[dt]?frac\s*\{\s*(-?[\d.]+)\s*\}\s*\{\s*(\d+)\s*\}")
_SHORT_FRAC = re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)")
_POWER_OF_TEN = re.compile(
    r"(?<=\d)\s*(?:\\times|\\cdot|[×*·])\s*10\s*(?:\^|\*\*)\s*\{?\s*([-+]?\d{1,3})(?!\d)\s*\}?"
)
_BRACKET = re.compile("[{}]")
_MARKED = re.compile(r"answer\b[^\n\d\\$=:]{0,40}?(?:\bis\b|:|=)", re.IGNORECASE)


def boxed(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{...}``, brackets inside of it matched, or None."""
    start = text.rfind("\\boxed")
    if start < 0:
        return None
    depth = 0
    for bracket in _BRACKET.finditer(text, start):
        depth += 1 if bracket[0] == "{" else -1
        if depth == 0:
            return text[text.index("{", start) + 1 : bracket.start()]
        if depth < 0:
            return None
    return None


def last_line(text: str) -> str:
    """Return the last line that is not blank, without marks of emphasis."""
    lines = [line for line in text.splitlines() if line.strip(" *_`#")]
    return lines[-1].strip(" *_`") if lines else ""


def _plain(text: str) -> str:
    """Return a text with LaTeX fractions, currency and spacing marks made plain."""
    text = text.replace("−", "-").replace("{,}", ",").replace("$", "").replace("€", "")
    text = re.sub(r"\\[!,;: ]", "", text)
    text = _FRAC.sub(r" \1/\2", _SHORT_FRAC.sub(r" \1/\2", text))
    text = _POWER_OF_TEN.sub(r"e\1", text)
    return re.sub(r"(^|[=:(,])(\s*[-+])\s+(?=[\d.])", r"\1\2", text)


def parse_number(text: str) -> Fraction | None:
    r"""Return the first number in a text as an exact fraction, or None.

    Reads 1,234.5, -3, .5, 2e3, 2 \times 10^3, 3/7, 1 3/4 and LaTeX fractions; currency marks are
    ignored. Numbers of more than ``MAX_DIGITS`` digits are none.
    """
    match = _NUMBER.search(_plain(text))
    return None if match is None else _value(match)


def _value(match: re.Match[str]) -> Fraction | None:
    """Return the value of a match of ``_NUMBER``; None if it is too long for one."""
    if len(match[0]) > MAX_DIGITS:
        return None
    if match["whole"]:
        part = Fraction(int(match["top"]), int(match["bottom"]))
        sign = -1 if match[0].startswith("-") else 1
        return sign * (int(match["whole"].replace(",", "")) + part)
    plain = match[0].replace(",", "").replace(" ", "")
    top, _, bottom = plain.partition("/")
    return Fraction(top) / int(bottom or 1)


def final_number(text: str) -> Fraction | None:
    r"""Return the number that a response ends on, or None if it holds none.

    Looked for in this order: in the last ``\boxed{}``; after the last ``####``; after the last
    "answer is", "answer:" or "answer ="; the last number of the text.
    """
    text = text[-MAX_TEXT:]
    inside = boxed(text)
    parts = [] if inside is None else [_result(inside), inside]
    _, mark, tail = text.rpartition("####")
    parts += [tail] if mark else []
    for match in reversed(list(_MARKED.finditer(text))[-MAX_MARKS:]):
        line = text[match.end() : match.end() + MAX_LINE].split("\n", 1)[0]
        # "... is 3 + 4 = 7": what counts stands after the last sign of equality.
        parts += [line.rpartition("=")[2], line]
    for part in parts:
        number = parse_number(part)
        if number is not None:
            return number
    numbers = list(_NUMBER.finditer(_plain(text)))
    return _value(numbers[-1]) if numbers else None


# What says nothing of a number's value: signs of money, spaces, sizes, brackets, kinds of type.
_DECORATION = re.compile(
    r"\\(?=[$%&#_])|\\(?:left|right|big|Big|bigg|Bigg|quad|qquad|displaystyle|large|Large|pounds|"
    r"euro|yen|degree|circ|percent)(?![a-zA-Z])|\^\s*\{?\\circ\}?|\^\s*\\prime|[~%°£¥]"
)
_TYPE = re.compile(
    r"\\(?:text|textbf|textrm|textit|mbox|mathrm|mathbf|mathit|mathsf|operatorname|boldsymbol|bf|"
    r"underline)(?![a-zA-Z])"
)
# "cm^2", behind a number or a unit.
_UNIT_POWER = re.compile(r"(?<![a-zA-Z\\])([a-zA-Z]+[\s{}]*)\^\s*(?:\{\s*-?\d\s*\}|-?\d)")
_EQUALS = re.compile(r"\\(?:approx|equiv|simeq|cong)(?![a-zA-Z])|[≈≡]|:=")
_VALUE = "\ufffc"  # stands for a number
_WORKING = re.compile(
    r"\\[a-zA-Z]"  # any other command
    r"|[\^!√π∞±×÷·∑∫*]"
    rf"|{_VALUE}[\s{{}}()]*[-+/][\s{{}}()]*{_VALUE}"
    rf"|{_VALUE}[\s{{}}]*\)\s*\([\s{{}}]*{_VALUE}"
    rf"|{_VALUE}\s*(?:/\s*)?[abinxyz](?![a-zA-Z])"  # "2x", "2/x"; "2 m" is two metres
    rf"|(?<![a-zA-Z])[a-zA-Z]\s*[-+/]\s*{_VALUE}"
)


def _result(formula: str) -> str:
    """Return what stands behind the last sign of equality: "3 + 4 = 7"."""
    return _EQUALS.sub("=", formula).rpartition("=")[2]


def needs_working_out(formula: str) -> bool:
    r"""Return whether a formula is more than a number, with a unit and decoration at most.

    So it is for ``\sqrt{16}``, ``5!``, ``\frac{x}{2}``, ``2x`` and ``4/0``; it isn't for ``1,234``,
    ``\frac{1}{2}``, ``3 \times 10^4``, ``12\text{ cm}^2``, ``x = 5`` and words without a number.
    """
    plain = _result(formula)
    if parse_number(plain) is None:
        plain = formula
    plain = _TYPE.sub("", _DECORATION.sub(" ", _plain(plain)))
    # A unit's exponent goes, a variable's is kept.
    plain = _UNIT_POWER.sub(lambda m: m[0] if m[1].strip(" {}") in "abinxyz" else m[1], plain)
    return _WORKING.search(_NUMBER.sub(_VALUE, plain)) is not None


_DECISION = re.compile(
    r"(?:[aA]nswer|ANSWER|[cC]hoice|[oO]ption)(?:\s{1,9}is)?\s{0,9}[:=]?[\s*_$]{0,20}"
    r"\(?([A-Z])\)?(?![\w'\u2019])"
)
_LINE_LETTER = re.compile(r"^[\s*_(\[]*([A-Za-z])[\s*_)\].:]*$")
_LINE_START = re.compile(r"^[ \t*_(]{0,20}([A-Z])[).:]", re.MULTILINE)
_IN_BRACKETS = re.compile(r"\(([A-Z])\)")


def final_letter(text: str, options: Sequence[str] = ()) -> str | None:
    r"""Return the letter of the option that a response decides on, or None.

    Looked for in this order: in the last ``\boxed{}``; after the last "answer is", "answer:",
    "option"; a last line that is one letter; a last line, or else a response, that is an option's
    text; a line's leading "C." or "(C)", and a "(C)" anywhere. Letters beyond the options' texts do
    not count.
    """
    last = chr(ord("A") + len(options) - 1) if options else "Z"

    def valid(letter: str) -> bool:
        return "A" <= letter <= last

    text = text[-MAX_TEXT:]
    inside = boxed(text)
    if inside is not None:
        plain = re.sub(r"\\(?:text|mathrm|mathbf|textbf)\b", "", inside).strip(" {}()$.")
        if len(plain) == 1 and valid(plain.upper()):
            return plain.upper()
    decisions = [letter for letter in _DECISION.findall(text) if valid(letter)]
    if decisions:
        return str(decisions[-1])
    line = last_line(text)
    match = _LINE_LETTER.match(line)
    if match and valid(match[1].upper()):
        return match[1].upper()
    for candidate in (line, text):
        words = _words(candidate)
        same = [i for i, option in enumerate(options) if words and _words(option) == words]
        if len(same) == 1:
            return chr(ord("A") + same[0])
    for rule in (_LINE_START, _IN_BRACKETS):
        letters = [letter for letter in rule.findall(text) if valid(letter)]
        if letters:
            return str(letters[-1])
    return None


def _words(text: str) -> str:
    """Return a text in lower case with single spaces, without the marks around it."""
    return " ".join(text.lower().split()).strip(" .:*_`\"'()")


# "\$" inside of a formula is a price's sign.
_FORMULA = re.compile(
    r"(?<!\\)\$((?:[^$\\]|\\.)+)\$"
    r"|\\\(((?:(?!\\[()]).)+)\\\)"  # without another beginning in it
    r"|\\\[((?:(?!\\[\[\]]).)+)\\\]"
)


def final_expression(text: str) -> str:
    r"""Return the expression that a response ends on.

    That is the content of the last ``\boxed{}``; else what follows the last "answer is" or
    "answer:"; else the last formula of the last line, between dollars or in ``\(...\)`` or
    ``\[...\]``; else the last line.
    """
    text = text[-MAX_TEXT:]
    inside = boxed(text)
    if inside is not None:
        return inside
    marked = list(_MARKED.finditer(text))
    tail = text[marked[-1].end() :].strip().split("\n", 1)[0] if marked else last_line(text)
    formulas = _FORMULA.findall(tail)
    return str(max(formulas[-1])) if formulas else tail


def without_reasoning(text: str) -> str:
    """Return what follows a model's train of thought, which ends on ``</think>``, or all of it."""
    return text.rpartition("</think>")[2]


_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)", re.MULTILINE)
_LANGUAGES = ("", "python", "python3", "py")
_FIRST = re.compile(r"^(?:def|class|import|from|async def|@)\b|^@", re.MULTILINE)
_DEFINES = r"^(?:async\s+)?(?:def|class)\s+{0}\b|^{0}\s*="
_TRIES = 3  # definitions at the end that may be prose: "from this follows ..."


def final_code(text: str, entry_point: str = "") -> str:
    """Return the Python code that a response ends on, or "" if it holds none.

    Looked for in this order: the last fenced block of Python that defines `entry_point`; the last
    one that defines a function; the last one; without fences the text from its first definition or
    import on, without the prose behind it.
    """
    text = text[-MAX_TEXT:]
    fences, blocks = list(_FENCE.finditer(text)), []
    for first, last in zip_longest(fences[::2], fences[1::2]):  # the last one may be cut off
        begin = text.find("\n", first.end()) + 1
        if begin and first[1].lower() in _LANGUAGES:
            lines = text[begin : last.start() if last else len(text)].splitlines()
            # Indentation that all lines share: a fence in a list.
            margin = min((len(x) - len(x.lstrip(" ")) for x in lines if x.strip()), default=0)
            blocks.append("\n".join(line[margin:] for line in lines) + "\n")
    if blocks:
        patterns = [_DEFINES.format(re.escape(entry_point))] if entry_point else []
        for pattern in [*patterns, r"^(?:async\s+)?(?:def|class)\s"]:
            chosen = [b for b in blocks if re.search(pattern, b, re.MULTILINE)]
            if chosen:
                return chosen[-1]
        return blocks[-1]
    text = text.replace("```", "")
    starts = [match.start() for match in _FIRST.finditer(text)]
    for start in reversed(starts[-_TRIES:]):
        kept = _without_prose(text[start:])
        if kept:
            return text[starts[0] : start] + kept
    return text[starts[0] :] if starts else ""


def _without_prose(code: str) -> str:
    """Return the lines of a text before the first that is no Python; "" if there are none."""
    lines = code.splitlines()
    for _ in range(2):  # what ends in a line of prose, and then without it
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse("\n".join(lines))
        except SyntaxError as error:
            del lines[min((error.lineno or 1), len(lines)) - 1 :]
        except (ValueError, RecursionError, MemoryError):
            return ""
        else:
            return "\n".join(lines)
    return ""


# Comparing

# A whole number must be met; other numbers may be rounded to two decimals.
WHOLE_TOLERANCE = Fraction(1, 1000)
DECIMAL_TOLERANCE = Fraction(5, 1000)
NEARLY_WHOLE = Fraction(1, 10**6)  # floats that stand for whole numbers, as in GSM-Hard


def grade(answer: Answer, text: str) -> bool:
    """Return whether a response is right; one in which no final answer is found is wrong.

    Raises:
        TaskError: the answer, of the kind "number" or "choice", is itself not valid.
    """
    if answer.kind == "choice":
        return final_letter(text, answer.options) == answer.value
    number = final_number(text)
    try:  # "42", "-0.5", "1e16", "3/7"
        expected = Fraction(answer.value.replace(",", "").replace(" ", ""))
    except (ValueError, ZeroDivisionError):
        raise TaskError(f"the answer {answer.value!r} is not a number") from None
    return number is not None and numbers_agree(expected, number)


def numbers_agree(expected: Fraction, number: Fraction) -> bool:
    """Return whether two numbers are the same, but for rounding.

    A whole number must be met within 0.001; any other within 0.005 (two decimals), or within 0.5 %
    of it if it is smaller than 1, so that small numbers are not all the same.
    """
    whole = abs(expected - round(expected)) < NEARLY_WHOLE and round(expected) != 0
    if whole or expected == 0:
        return abs(expected - number) <= WHOLE_TOLERANCE
    return abs(expected - number) <= DECIMAL_TOLERANCE * min(Fraction(1), abs(expected))


# Judging


def judge(answer: Answer, text: str, sandbox: Sandbox, question: str = "", task: str = "") -> bool:
    """Return whether a response is right.

    Takes microseconds for numbers and letters, a few milliseconds for formulas, about 25 ms of a
    processor for code. At most it takes the sandbox's limits, two seconds of processor time for
    large results, and what a process takes to start. Threads can call it.

    Args:
        answer: a task's answer.
        text: the whole response of a model. A train of thought that ends on ``</think>`` does not
            count, nor does what stands before the last 64,000 characters. A response in which no
            answer is found is wrong.
        sandbox: where code is run and formulas are compared.
        question: the task's text (see :meth:`Sandbox.run_tests`).
        task: the task's name, for messages.

    Raises:
        ConfigError: the answer is not valid, or its tests fail before they first call the answer.
        SandboxError: the sandbox cannot be had; nothing was run.
    """
    text = without_reasoning(text)[-MAX_TEXT:]
    if answer.kind == "tests":
        code = final_code(text, answer.entry_point)
        return bool(code) and sandbox.run_tests(code, answer, question, task).passed
    if answer.kind == "number":
        inside = boxed(text)
        if inside is not None and needs_working_out(inside):
            return sandbox.same_formula(answer.value, inside)  # a number in it is not its value
    if answer.kind != "expression":
        return grade(answer, text)
    formula = final_expression(text).strip().rstrip(".")
    if len(formula) > MAX_FORMULA:
        return False
    if formula == answer.value:
        return True
    texts = (answer.value, formula)
    plain = (re.sub(r"\s*,\s*", ",", _plain(each)).strip(" .\\") for each in texts)
    matches = map(_NUMBER.fullmatch, plain)
    first, second = (None if match is None else _value(match) for match in matches)
    if first is not None and second is not None and numbers_agree(first, second):
        return True
    return sandbox.same_formula(answer.value, formula)


def check_tasks(source: str | Path, packages: Sequence[str] = PACKAGES) -> tuple[str, list[str]]:
    """Read a folder of tasks, or one file, and judge its reference answers in the sandbox.

    Code may import `packages` beside the standard library.

    Returns:
        The share of the references that pass, and a line for each that does not.

    Raises:
        ConfigError: a package is not installed, or a file or record is broken.
        SandboxError: code cannot be isolated on this machine.
    """
    records = read_folder(Path(source))
    tests = [record for record in records if record.answer.kind == "tests"]
    run = [record for record in tests if record.answer.reference]

    def failure(record: TaskRecord) -> str | None:
        answer = record.answer
        try:
            verdict = sandbox.run_tests(answer.reference, answer, record.text, record.id)
        except ConfigError as error:
            return f"{record.dataset} {record.id}: {error}"
        return None if verdict.passed else f"{record.dataset} {record.id}: {verdict.reason}"

    with Sandbox(packages=packages) as sandbox, ThreadPoolExecutor() as pool:
        failed = [line for line in pool.map(failure, run) if line is not None]
    passed = len(run) - len(failed)
    share = f" ({100 * passed / len(run):.1f} %)" if run else ""
    return (
        f"{passed} of {len(run)} reference answers pass{share}; {len(tests) - len(run)} tasks have "
        f"tests and no reference, {len(records) - len(tests)} have no tests",
        failed,
    )
