"""Task files: the public formats, the package's own, and every way a file can be broken."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.tasks.grading import grade
from inframind_gym.tasks.loaders import read_file, read_folder
from inframind_gym.tasks.taskset import Answer

MATH = {
    "id": "m/0",
    "problem": "What is 1/4 + 1/4?",
    "answer": "\\frac{1}{2}",
    "subject": "Sums",
    "level": 1,
}
GSM = {"id": "g/0", "problem": "Ann has 3 pens and buys 4000.", "answer": 4003.0}
MBPP = {
    "id": "b/0",
    "prompt": "Write a function to double a number.",
    "reference": "import math\ndef helper(x):\n    return x\ndef double(x):\n    return 2 * x\n",
    "test_imports": ["import math"],
    "test_list": ["assert double(2) == 4", "assert double(0) == 0"],
}
HUMANEVAL = {
    "id": "h/0",
    "prompt": 'def triple(x):\n    """Three times x."""\n',
    "entry_point": "triple",
    "reference": "    return 3 * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 6\n",
}
MMLU = {
    "id": "q/0",
    "question": "Which is a metal?",
    "options": ["wood", "iron", "wool"],
    "answer": "B",
    "category": "other",
}
OWN = {"id": "o/0", "text": "What is 2 + 2?", "domain": "Math", "answer": 4}


def write(path: Path, *items: Any) -> Path:
    text = "".join(f"{item if isinstance(item, str) else json.dumps(item)}\n" for item in items)
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("item", "dataset", "domain", "text"),
    [
        (MATH, "math", "Math", MATH["problem"]),
        (GSM, "gsm_hard", "Math", GSM["problem"]),
        (
            MBPP,
            "mbpp",
            "Code",
            "Write a function to double a number.\nYour code should pass: assert double(2) == 4",
        ),
        (HUMANEVAL, "humaneval", "Code", HUMANEVAL["prompt"]),
        (MMLU, "mmlu_pro", "Commonsense", "Which is a metal?\nA. wood\nB. iron\nC. wool"),
    ],
)
def test_public_formats(
    tmp_path: Path, item: dict[str, Any], dataset: str, domain: str, text: str
) -> None:
    (record,) = read_file(write(tmp_path / "x.jsonl.gz", item))
    assert (record.dataset, record.domain, record.text) == (dataset, domain, text)
    answer = record.answer
    if dataset == "math":
        assert answer == Answer("expression", "\\frac{1}{2}")
    elif dataset == "gsm_hard":
        assert answer == Answer("number", "4003")
    elif dataset == "mmlu_pro":
        assert answer == Answer("choice", "B", ("wood", "iron", "wool"))
        assert grade(answer, "The answer is (B).")
    else:
        assert answer.entry_point == ("double" if dataset == "mbpp" else "triple")
        exec(answer.reference + answer.value, {})
        with pytest.raises(AssertionError):
            exec(answer.reference.replace("x\n", "x + 1\n") + answer.value, {})


def test_files_as_they_are_published(tmp_path: Path) -> None:
    """Other key names: GSM-Hard input/target, MBPP text/code, HumanEval canonical_solution."""
    gsm = {"input": "How many?", "code": "...", "target": 12}
    mbpp = {"task_id": 7, "text": "Do it.", "code": "def f(): pass", "test_list": ["assert f"]}
    human = {k: v for k, v in HUMANEVAL.items() if k not in ("id", "reference")}
    human |= {"task_id": "HumanEval/9", "canonical_solution": HUMANEVAL["reference"]}
    mmlu = {k: v for k, v in MMLU.items() if k != "id"} | {"question_id": 70, "answer_index": 1}
    write(tmp_path / "a.jsonl", gsm)
    write(tmp_path / "b.jsonl", mbpp)
    write(tmp_path / "c.jsonl", human)
    write(tmp_path / "d.jsonl", mmlu)
    records = read_folder(tmp_path)
    assert [r.dataset for r in records] == ["gsm_hard", "mbpp", "humaneval", "mmlu_pro"]
    assert [r.id for r in records] == ["a/1", "7", "HumanEval/9", "70"]
    assert records[2].answer.reference.endswith("return 3 * x\n")


def test_own_format(tmp_path: Path) -> None:
    full = {
        "id": "o/1",
        "text": "Pick.",
        "domain": "Commonsense",
        "dataset": "mine",
        "answer": {"kind": "choice", "value": "A", "options": ["x", "y"]},
        "difficulty": 1.5,
        "split": "val",
    }
    first, second = read_file(write(tmp_path / "quiz.jsonl", OWN, full))
    assert (first.dataset, first.answer) == ("quiz", Answer("number", "4"))
    assert first.difficulty is None
    assert second.dataset == "mine"
    assert second.answer == Answer("choice", "A", ("x", "y"))
    assert (second.difficulty, second.split) == (1.5, "val")


def test_splits_and_datasets(tmp_path: Path) -> None:
    write(tmp_path / "b.jsonl", dict(MBPP, split="test"))
    write(tmp_path / "a.jsonl", MATH)
    by_hash, by_record = (record.actual_split for record in read_folder(tmp_path))
    assert by_record == "test" and by_hash in ("train", "val", "test")
    assert [r.dataset for r in read_folder(tmp_path, ["math"])] == ["math"]


@pytest.mark.parametrize(
    ("name", "item", "message"),
    [
        ("x", {"id": 1, "prompt": "p"}, "The record has the keys 'id', 'prompt'"),
        ("x", {"prompt": "p", "entry_point": "f"}, "test"),
        ("x", dict(MMLU, answer="D"), "'answer' must be a letter of A to C, not 'D'"),
        ("x", dict(MATH, split="trian"), "Did you mean 'train'"),
        ("x", {"foo": 1, "bar": 2}, "The record has the keys 'foo', 'bar'"),
        ("x", dict(OWN, answer={"kind": "nummer", "value": 1}), "Did you mean 'number'"),
    ],
)
def test_a_broken_record_is_named(tmp_path: Path, name: str, item: Any, message: str) -> None:
    write(tmp_path / f"{name}.jsonl", item)
    with pytest.raises(ConfigError, match=message) as caught:
        read_folder(tmp_path)
    assert f"{name}.jsonl, line 1: " in str(caught.value)


def test_folders_that_hold_no_set_of_tasks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither 'builtin' nor a folder"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="holds no task file"):
        read_folder(tmp_path)
    write(tmp_path / "a.jsonl", "")
    with pytest.raises(ConfigError, match="hold no task"):
        read_folder(tmp_path)
    for name in ("a", "b"):
        write(tmp_path / f"{name}.jsonl", MATH)
    with pytest.raises(ConfigError, match=r"b\.jsonl: the id 'm/0'.*twice"):
        read_folder(tmp_path)
