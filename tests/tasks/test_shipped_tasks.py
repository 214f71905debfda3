"""The built-in tasks and the embeddings of the roles, as the package ships them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise

import numpy as np

from inframind_gym.tasks import DOMAINS, load_tasks, loaders
from inframind_gym.tasks.grading import grade

TASKS = load_tasks(split="all")
IMPORTED = """
import json, sys
{statement}
print(json.dumps(sorted(sys.modules)))
"""


def modules_after(statement: str) -> set[str]:
    code = IMPORTED.format(statement=statement)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(found.stdout))


def test_counts_and_uniqueness() -> None:
    datasets = [f"builtin_{domain.lower()}" for domain in DOMAINS]
    assert Counter(TASKS.datasets) == dict.fromkeys(datasets, 1000)
    assert len(set(TASKS.texts)) == len(set(TASKS.ids)) == 3000


def test_loading_is_fast_and_imports_little() -> None:
    times_s = []
    for _ in range(5):
        start_s = time.process_time()
        loaders.read_builtin.__wrapped__()
        times_s.append(time.process_time() - start_s)
    assert min(times_s) < 0.3  # of CPU; 0.07 on an idle core, 0.11 beside other work
    modules = modules_after("from inframind_gym.tasks import load_tasks; load_tasks()")
    assert not modules & {"torch", "sentence_transformers", "transformers", "sklearn"}
    assert not modules & {f"inframind_gym.tasks.{name}" for name in ("grading", "sandbox")}


def test_every_answer_grades_itself() -> None:
    """A response that states the answer is right, and one that states another is wrong."""
    answers = [answer for answer in TASKS.answers if answer.kind in ("number", "choice")]
    for answer, other in pairwise(answers):
        assert grade(
            answer, f"Let me think: 3 or 4 steps.\nThe answer is \\boxed{{{answer.value}}}."
        )
        if answer.kind == other.kind and answer.value != other.value:
            assert not grade(answer, f"\\boxed{{{other.value}}}")


def test_choices_are_well_formed() -> None:
    letters: Counter[str] = Counter()
    for text, answer in zip(TASKS.texts[2000:], TASKS.answers[2000:], strict=True):
        assert answer.kind == "choice"
        assert 3 <= len(set(answer.options)) == len(answer.options) <= 10
        assert answer.value in "ABCDEFGHIJ"[: len(answer.options)]
        for letter, option in zip("ABCDEFGHIJ", answer.options, strict=False):
            assert f"\n{letter}. {option}" in text
        letters[answer.value] += 1
    assert max(letters.values()) < 300  # no letter is a good guess


def test_code_tasks_name_their_function_and_their_references_pass() -> None:
    for text, answer in zip(TASKS.texts[1000:2000], TASKS.answers[1000:2000], strict=True):
        assert answer.entry_point in text
        assert answer.reference.startswith(f"def {answer.entry_point}(")
        assert 3 <= answer.value.count("assert ") <= 8
        exec(answer.reference + answer.value, {})


def test_difficulty_is_standardised_and_partly_visible() -> None:
    """Ridge regression, 5-fold: 0.14 in the mean, as on so many real questions of MMLU-Pro."""
    found = []
    for domain in range(3):
        rows = TASKS.domain == domain
        y = TASKS.difficulty[rows].astype(np.float64)
        x = TASKS.embeddings[rows].astype(np.float64)
        assert abs(y.mean()) < 1e-3
        assert abs(y.std() - 1.0) < 1e-3
        fold = np.random.default_rng(0).permutation(len(y)) % 5
        error = np.zeros_like(y)
        for k in range(5):
            seen, unseen = fold != k, fold == k
            mean_x, mean_y = x[seen].mean(axis=0), y[seen].mean()
            centred = x[seen] - mean_x
            weights = np.linalg.solve(
                centred.T @ centred + 10.0 * np.eye(x.shape[1]), centred.T @ (y[seen] - mean_y)
            )
            error[unseen] = y[unseen] - mean_y - (x[unseen] - mean_x) @ weights
        r2 = 1.0 - float((error**2).mean() / y.var())
        assert 0.02 < r2 < 0.2
        found.append(r2)
    assert abs(np.mean(found) - 0.14) < 0.03
