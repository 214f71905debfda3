"""Measures of retrieval and grounding, by hand, and the data that they are taken on."""

from __future__ import annotations

import json
from collections import Counter
from unittest.mock import patch

import numpy as np
import pytest

pytest.importorskip("bm25s")
pytest.importorskip("networkx")

from benchmarks.retrieval import (
    ANSWERS,
    KINDS,
    Searched,
    _judge,
    ndcg,
    rewritten_by,
)
from inframind_gym.files import read_objects
from inframind_gym.teams.coordination import retrieval
from inframind_gym.teams.coordination.agents import WAY
from inframind_gym.teams.coordination.retrieval import Corpus, Retriever, load_questions
from inframind_gym.teams.llm import Completion, LLMRequest, LLMService, Simulated

CORPUS = Corpus.load()
with patch.object(retrieval, "available", lambda: None):  # as without the encoder
    RETRIEVER = Retriever(CORPUS)
ITEMS = [item for _, item in read_objects(ANSWERS)]


def test_ndcg_by_hand() -> None:
    labels = {"a": 2, "b": 1}
    best = 2 + 1 / np.log2(3)
    assert ndcg(["a", "b"], labels) == pytest.approx(1.0)
    assert ndcg(["b", "a"], labels) == pytest.approx((1 + 2 / np.log2(3)) / best)
    assert ndcg(["x", "x", "a"], labels) == pytest.approx((2 / np.log2(4)) / best)
    assert ndcg(["x"] * 10 + ["a"], labels) == 0.0
    assert ndcg([], labels) == 0.0


def test_answers_come_in_pairs_that_differ() -> None:
    assert len(ITEMS) >= 60  # pairs
    assert len({item["id"] for item in ITEMS}) == len(ITEMS)
    assert {item["kind"] for item in ITEMS} == set(KINDS)
    assert all(item["passage"] in CORPUS.by_id for item in ITEMS)
    assert all(item["wrong"] != item["answer"] for item in ITEMS)
    assert min(Counter(item["half"] for item in ITEMS).values()) >= 50


def test_searches_without_the_encoder_are_as_good_as_documented() -> None:
    """docs/coordination.md says 0.766 [0.696, 0.830] of the test half."""
    questions = [question for question in load_questions() if question.half == "test"]
    found = Searched(RETRIEVER, questions, "hybrid", lambda query: [query])
    assert found.ndcg.mean() == pytest.approx(0.766, abs=0.01)
    assert found.recall.mean() == pytest.approx(0.885, abs=0.01)


def test_errors_are_found_as_documented() -> None:
    """docs/coordination.md has 66 % and 2 %, with other passages beside the right one."""
    held_out = [item for item in ITEMS if item["half"] == "test"]
    judged = np.array([_judge(RETRIEVER, item) for item in held_out])
    alarms, caught = judged.mean(axis=0)
    assert caught == pytest.approx(0.66, abs=0.05)
    assert alarms == pytest.approx(0.02, abs=0.05)


def test_a_model_rewrites_questions() -> None:
    """Its refined form comes first; what cannot be read is nothing."""

    def answer(request: LLMRequest) -> Completion:
        question = request.user.partition("Question: ")[2].partition("\n")[0]
        told = json.dumps({"refined": question.upper(), "variants": ["b"]})
        return Completion("{" if question == "y" else told, 1, 1)

    service = LLMService({WAY: Simulated("stub", answer)})
    assert rewritten_by(service, ["x", "y"]) == {"x": ["X", "b"], "y": []}
