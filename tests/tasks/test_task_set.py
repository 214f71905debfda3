"""Task files, and the sets that `load_tasks` makes: formats, what is broken, splits, selection."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError, TaskError
from inframind_gym.tasks import EMBED_DIM, builtin_dataset, embedding, load_tasks
from inframind_gym.tasks.grading import grade
from inframind_gym.tasks.loaders import read_file, read_folder
from inframind_gym.tasks.taskset import SPLITS, Answer, split_of

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


FORMATS = {
    "math": ("Math", MATH, MATH["problem"], Answer("expression", "\\frac{1}{2}")),
    "gsm_hard": ("Math", GSM, GSM["problem"], Answer("number", "4003")),
    "mmlu_pro": (
        "Commonsense",
        MMLU,
        "Which is a metal?\nA. wood\nB. iron\nC. wool",
        Answer("choice", "B", ("wood", "iron", "wool")),
    ),
    "mbpp": ("Code", MBPP, f"{MBPP['prompt']}\nYour code should pass: assert double(2) == 4", None),
    "humaneval": ("Code", HUMANEVAL, HUMANEVAL["prompt"], None),
}


@pytest.mark.parametrize("dataset", FORMATS)
def test_public_formats(tmp_path: Path, dataset: str) -> None:
    domain, item, text, answer = FORMATS[dataset]
    (record,) = read_file(write(tmp_path / "x.jsonl.gz", item))
    assert (record.dataset, record.domain, record.text) == (dataset, domain, text)
    if answer is not None:
        assert record.answer == answer
        return
    tests, reference = record.answer.value, record.answer.reference
    assert record.answer.entry_point == ("double" if dataset == "mbpp" else "triple")
    exec(reference + tests, {})
    with pytest.raises(AssertionError):
        exec(reference.replace("x\n", "x + 1\n") + tests, {})


def test_files_as_they_are_published(tmp_path: Path) -> None:
    """Other key names: GSM-Hard input/target, MBPP text/code, HumanEval canonical_solution."""
    gsm = {"input": "How many?", "code": "...", "target": 12}
    mbpp = {"task_id": 7, "text": "Do it.", "code": "def f(): pass", "test_list": ["assert f"]}
    human = {k: v for k, v in HUMANEVAL.items() if k not in ("id", "reference")}
    human |= {"task_id": "HumanEval/9", "canonical_solution": HUMANEVAL["reference"]}
    mmlu = {k: v for k, v in MMLU.items() if k != "id"} | {"question_id": 70, "answer_index": 1}
    for name, item in zip("abcd", (gsm, mbpp, human, mmlu), strict=True):
        write(tmp_path / f"{name}.jsonl", item)
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
    difficulty = load_tasks(tmp_path, split="all").difficulty
    assert np.isfinite(difficulty[0]) and difficulty[1] == 1.5
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
    ("item", "message"),
    [
        ({"id": 1, "prompt": "p"}, "The record has the keys 'id', 'prompt'"),
        ({"prompt": "p", "entry_point": "f"}, "test"),
        (MMLU | {"answer": "D"}, "'answer' must be a letter of A to C, not 'D'"),
        (MATH | {"split": "trian"}, "Did you mean 'train'"),
        (OWN | {"answer": {"kind": "nummer", "value": 1}}, "Did you mean 'number'"),
    ],
)
def test_a_broken_record_is_named(tmp_path: Path, item: Any, message: str) -> None:
    write(tmp_path / "x.jsonl", item)
    with pytest.raises(ConfigError, match=message) as caught:
        read_folder(tmp_path)
    assert "x.jsonl, line 1: " in str(caught.value)


def test_a_folder_can_have_the_name_of_the_built_in_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(read_folder(Path("builtin"))) > 1
    Path("builtin").mkdir()
    write(tmp_path / "builtin" / "a.jsonl", MATH)
    assert [record.id for record in read_folder(Path("./builtin"))] == ["m/0"]


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


TASKS = load_tasks(split="all")


def by_length(texts: Sequence[str]) -> NDArray[np.float32]:
    return np.array([[len(t) % (j + 2) for j in range(EMBED_DIM)] for t in texts], np.float32)


@pytest.fixture(autouse=True)
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "encode", by_length)
    monkeypatch.setenv("INFRAMIND_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two datasets: 40 of MATH and 20 of MMLU-Pro."""
    math = [
        {"id": f"m{i}", "problem": f"What is {i}+{i}?", "answer": f"{2 * i}"} for i in range(40)
    ]
    quiz = [
        {"id": f"q{i}", "question": f"Which is {i}?", "options": [f"{i}", "none"], "answer": "A"}
        for i in range(20)
    ]
    write(tmp_path / "math500.jsonl", *math)
    write(tmp_path / "mmlu_pro.jsonl", *quiz)
    return tmp_path


def test_builtin_splits_are_disjoint_and_complete() -> None:
    parts = {split: load_tasks(split=split) for split in ("train", "val", "test")}
    ids = [task_id for part in parts.values() for task_id in part.ids]
    assert len(ids) == len(set(ids)) == len(set(TASKS.texts)) == len(TASKS)
    assert Counter(TASKS.domain.tolist()) == {0: 1000, 1: 1000, 2: 1000}
    shares = [len(part) / len(TASKS) for part in parts.values()]
    assert np.abs(np.array(shares) - [0.6, 0.1, 0.3]).max() < 0.02
    assert load_tasks().ids == parts["test"].ids
    for part in parts.values():
        assert set(part.domain.tolist()) == {0, 1, 2}


def test_builtin_datasets_by_their_own_and_by_public_names() -> None:
    code = load_tasks(datasets=["mbpp", "humaneval"])
    assert set(code.datasets) == {"builtin_code"}
    assert code.ids == load_tasks(datasets=["builtin_code"]).ids
    assert set(load_tasks(datasets=["gsm_hard", "mmlu_pro"]).datasets) == {
        "builtin_math",
        "builtin_commonsense",
    }
    assert builtin_dataset("math") == "builtin_math"
    with pytest.raises(TaskError, match=r"unknown dataset 'humanevil'. Did you mean 'humaneval'"):
        load_tasks(datasets=["humanevil"])


def test_every_answer_grades_itself() -> None:
    """A response that states the answer is right, and one that states another is wrong."""
    answers = [answer for answer in TASKS.answers if answer.kind in ("number", "choice")]
    assert len(answers) == 1940
    for answer, other in pairwise(answers):
        response = f"Let me think: 3 or 4 steps.\nThe answer is \\boxed{{{answer.value}}}."
        assert grade(answer, response)
        if answer.kind == other.kind and answer.value != other.value:
            assert not grade(answer, f"\\boxed{{{other.value}}}")


def test_a_folder(folder: Path) -> None:
    tasks = load_tasks(folder, split="all")
    assert tasks.name == folder.name
    assert len(tasks) == 60
    assert tasks.ids[:2] == ("m0", "m1")
    assert tasks.datasets[39:41] == ("math", "mmlu_pro")
    assert tasks.domain[[0, 59]].tolist() == [0, 2]
    assert tasks.answers[40].value == "A"
    assert np.array_equal(tasks.embeddings, by_length(tasks.texts))


def test_select_by_indices_keeps_their_order_and_all_fields(folder: Path) -> None:
    tasks, rows = load_tasks(folder, split="all"), [43, 0, 43]
    chosen = tasks.select(rows)
    assert len(chosen) == 3 and chosen.ids == ("q3", "m0", "q3")
    for name in ("texts", "datasets", "answers"):
        assert getattr(chosen, name) == tuple(getattr(tasks, name)[row] for row in rows)
    for name in ("domain", "embeddings", "difficulty"):
        of, own = getattr(chosen, name), getattr(tasks, name)
        before = own.copy()
        assert np.array_equal(of, own[rows]) and of.dtype == own.dtype
        of[:] = 7
        assert np.array_equal(own, before)  # copies


def test_split_never_changes() -> None:
    """Pinned: results of other versions are compared on the same tasks."""
    found = [split_of(f"math/{i}", "What is 1 + 1?") for i in range(16)]
    assert "".join(str(SPLITS.index(name)) for name in found) == "0020000220000200"
