"""The formats of public task files, recognised by the keys of their records.

Each of them is read as it is published, and as a plain file with the keys ``id``, ``problem`` or
``prompt`` or ``question``, ``answer`` or tests. What stands in a text is documented with each.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from inframind_gym.errors import TaskError
from inframind_gym.tasks.records import Item, number_text, required
from inframind_gym.tasks.taskset import Answer

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
OWN_KEYS = ("id", "text", "domain", "answer")


def string(item: Item, *names: str) -> str:
    """Return the string under the first of several keys; TaskError if it is missing or no text."""
    value = required(item, *names)
    if not isinstance(value, str) or not value.strip():
        raise TaskError(f"{names[0]!r} must be a text that is not empty, not {value!r:.60}")
    return value


def strings(item: Item, name: str) -> list[str]:
    """Return a list of strings that is not empty; TaskError otherwise."""
    value = required(item, name)
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise TaskError(f"{name!r} must be a list of texts, at least one, not {value!r:.60}")
    return list(value)


def parse_math(item: Item) -> tuple[str, Answer]:
    """MATH: ``problem`` and ``answer`` (LaTeX)."""
    answer = number_text(required(item, "answer"))
    if not isinstance(answer, str) or not answer.strip():
        raise TaskError(f"'answer' must be a text or a number, not {answer!r:.60}")
    return string(item, "problem", "question"), Answer("expression", answer)


def parse_gsm_hard(item: Item) -> tuple[str, Answer]:
    """GSM-Hard: ``problem`` and a number ``answer`` (as published: ``input`` and ``target``)."""
    answer = required(item, "answer", "target")
    text = number_text(answer)
    if text is answer:  # no number
        try:
            text = number_text(float(str(answer).replace(",", "")))
        except ValueError:
            raise TaskError(f"'answer' must be a number, not {answer!r:.60}") from None
    return string(item, "problem", "input", "question"), Answer("number", str(text))


def parse_mbpp(item: Item) -> tuple[str, Answer]:
    """MBPP: ``prompt`` and ``test_list``; the text shows the first test, which names the function.

    All tests, after ``test_imports``, make the answer.
    """
    tests = strings(item, "test_list")
    imports = strings(item, "test_imports") if item.get("test_imports") else []
    reference = str(item.get("reference", item.get("code", "")))
    defined = re.findall(r"^def +(\w+)", reference, re.MULTILINE)
    called = [name for name in defined if re.search(rf"\b{name}\b", tests[0])]
    text = f"{string(item, 'prompt', 'text').rstrip()}\nYour code should pass: {tests[0]}"
    source = "\n".join([*imports, *tests]) + "\n"
    return text, Answer(
        "tests", source, entry_point=called[-1] if called else "", reference=reference
    )


def parse_humaneval(item: Item) -> tuple[str, Answer]:
    """HumanEval: ``prompt`` (signature and docstring), ``entry_point``, ``test`` with ``check``."""
    prompt, entry_point = string(item, "prompt"), string(item, "entry_point")
    body = str(item.get("reference", item.get("canonical_solution", "")))
    source = f"{string(item, 'test').rstrip()}\n\ncheck({entry_point})\n"
    reference = prompt + body if body else ""
    return prompt, Answer("tests", source, entry_point=entry_point, reference=reference)


def parse_mmlu_pro(item: Item) -> tuple[str, Answer]:
    """MMLU-Pro: the text is ``question`` and the lettered ``options``; ``answer`` is a letter."""
    options = strings(item, "options")
    question = string(item, "question")
    if len(options) > len(LETTERS):
        raise TaskError(f"there are {len(options)} options, and only {len(LETTERS)} letters")
    letter = str(required(item, "answer")).strip().upper()
    if len(letter) != 1 or letter not in LETTERS[: len(options)]:
        raise TaskError(
            f"'answer' must be a letter of A to {LETTERS[len(options) - 1]}, not {letter!r:.60}"
        )
    lines = [f"{mark}. {option}" for mark, option in zip(LETTERS, options, strict=False)]
    return "\n".join([question, *lines]), Answer("choice", letter, options=tuple(options))


@dataclass(frozen=True)
class Format:
    """One public dataset: its name here, its domain, and how a record is read."""

    dataset: str
    domain: str
    parse: Callable[[Item], tuple[str, Answer]]
    stems: tuple[str, ...]  # names of files that hold it, lower case, without - and _


FORMATS: dict[str, Format] = {
    f.dataset: f
    for f in (
        Format("math", "Math", parse_math, ("math", "math500")),
        Format("gsm_hard", "Math", parse_gsm_hard, ("gsmhard", "gsmhardv2")),
        Format("mbpp", "Code", parse_mbpp, ("mbpp", "mbppsanitized", "sanitizedmbpp")),
        Format("humaneval", "Code", parse_humaneval, ("humaneval",)),
        Format("mmlu_pro", "Commonsense", parse_mmlu_pro, ("mmlupro",)),
    )
}


def format_of_stem(stem: str) -> Format | None:
    """Return the format that a file's name hints at, if any: "mmlu-pro" -> MMLU-Pro."""
    plain = stem.lower().replace("-", "").replace("_", "")
    return next((f for f in FORMATS.values() if plain in f.stems), None)


def format_of_keys(item: Item, hint: Format | None) -> Format | None:
    """Return the format of a record by its keys, or None.

    Args:
        item: the first record of a file.
        hint: what the file's name suggests; decides between MATH and GSM-Hard, which share their
            keys (without a hint, GSM-Hard is the one whose answers are JSON numbers).
    """
    keys = item.keys()
    if {"question", "options"} <= keys:
        return FORMATS["mmlu_pro"]
    if "test_list" in keys:
        return FORMATS["mbpp"]
    if {"prompt", "entry_point"} <= keys:
        return FORMATS["humaneval"]
    if {"input", "target"} <= keys:
        return FORMATS["gsm_hard"]
    if {"problem", "answer"} <= keys:
        if hint is not None and hint.dataset in ("math", "gsm_hard"):
            return hint
        return FORMATS["math" if isinstance(item["answer"], str) else "gsm_hard"]
    return None
