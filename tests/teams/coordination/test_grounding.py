"""Issues of answers against their sources."""

from __future__ import annotations

import pytest

pytest.importorskip("Stemmer")

from inframind_gym.teams.coordination.contracts import Document, Issue
from inframind_gym.teams.coordination.grounding import find_issues

CARD = Document(
    doc_id="gpu.md#h200",
    text="The H200 has 141 GB of memory at 4.8 TB/s. It does not need water cooling. Latency "
    "rises while the queue is longer than sixteen requests.",
    source="gpu.md: H200",
    score=1.0,
)
OTHER = Document(
    doc_id="gpu.md#b200",
    text="The B200 offers 180 GB and was made by Vendorix for dense racks.",
    source="gpu.md: B200",
    score=0.5,
)
QUESTION = "How much memory does the card have?"


def issues(answer: str, sources: list[Document] | None = None) -> list[Issue]:
    return find_issues(QUESTION, answer, [CARD, OTHER] if sources is None else sources)


@pytest.mark.parametrize(
    "answer",
    [
        "The H200 has 141 GB of memory.",
        "The memory of the H200 is 141 GB, at 4.8 TB/s [gpu.md#h200].",
        "Latency rises while the queue is longer than 16 requests [1].",
        "It does not need water cooling.",
        "",
    ],
)
def test_answers_of_the_sources_have_no_issue(answer: str) -> None:
    assert issues(answer) == []


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ("The H200 has 96 GB of memory.", "inaccuracy", "number 96"),
        (
            "Latency rises while the queue is longer than 141 requests.",
            "inaccuracy",
            "another number than 141",
        ),
        ("The H300 has 141 GB of memory at 4.8 TB/s.", "hallucination", "no source names H300"),
        ("The H200 has 141 GB of memory by Vendorix.", "inaccuracy", "does not name Vendorix"),
        ("The H200 has memory. It does need water cooling.", "inaccuracy", "reverse"),
        ("Latency rises while the queue is shorter than sixteen requests.", "inaccuracy", "longer"),
        (
            "The H200 has 141 GB of memory. Chefs recommend basil with tomatoes.",
            "hallucination",
            "no source says: Chefs",
        ),
        ("Chefs recommend basil.", "missing_source", "no source covers"),
        ("The H200 has 141 GB [cpu.md#none].", "missing_source", "cites cpu.md#none"),
        ("The H200 has 141 GB [3].", "missing_source", "cites 3"),
    ],
)
def test_an_error_is_found_and_named(answer: str, kind: str, words: str) -> None:
    found = issues(answer)
    assert [issue.type for issue in found] == [kind]
    assert words in found[0].description


def test_an_answer_without_sources_lacks_them() -> None:
    assert [issue.type for issue in issues("The H200 has 141 GB.", [])] == ["missing_source"]


def test_names_and_numbers_of_the_question_need_no_source() -> None:
    answer = "At 77 GB the QX9 has less memory than the H200 with 141 GB of memory."
    assert find_issues("Does the QX9 with 77 GB have more memory?", answer, [CARD]) == []


def test_a_link_that_a_source_has_is_no_citation() -> None:
    text = "The queen lays up to 2,000 eggs a day, see [link](http://bees)."
    source = Document(doc_id="a.md", text=text, source="a.md", score=1.0)
    assert find_issues("How many eggs does the queen lay?", f"{text} [a.md]", [source]) == []


@pytest.mark.parametrize(
    "answer",
    [
        "The sources do not answer this.",
        "The provided passages don\u2019t contain information about the memory of the card [1].",
        "There is no information in the given sources about how much memory the card has.",
        "I cannot answer this question from the provided sources.",
        "None of the sources says how much memory the card has.",
        "I'm sorry, but this cannot be answered from the sources.",
        "The texts say nothing about this.",
        "The H200 has 141 GB of memory. The sources do not say how much the card has.",
    ],
)
def test_an_abstention_needs_no_source(answer: str) -> None:
    assert issues(answer) == []


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("The sources do not answer this, but the H200 has 96 GB of memory.", "inaccuracy"),
        ("The sources do not answer this. Chefs recommend basil.", "missing_source"),
        ("The sources do not answer this: the card has 96 GB.", "missing_source"),
        ("The sources do not give the memory of the card, 96 GB.", "missing_source"),
        ("The sources do not answer this but Vendorix does recommend basil.", "missing_source"),
        ("The sources do not answer this [cpu.md#none].", "missing_source"),
    ],
)
def test_what_is_said_beside_an_abstention_is_checked(answer: str, kind: str) -> None:
    assert [issue.type for issue in issues(answer)] == [kind]


def test_a_sentence_of_the_questions_words_is_no_abstention_without_a_source_in_it() -> None:
    sources = [OTHER]
    assert find_issues("Does the H200 need cooling?", "The H200 does not need cooling.", sources)
    said = "The sources do not answer this, it does need cooling."
    assert find_issues("Does the H200 need cooling?", said, sources)
