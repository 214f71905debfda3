"""Passages, strategies and rewriting, on small corpora and on the shipped one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

pytest.importorskip("bm25s")
pytest.importorskip("networkx")
pytest.importorskip("Stemmer")

from inframind_gym.errors import ConfigError
from inframind_gym.files import read_objects
from inframind_gym.teams.coordination import retrieval
from inframind_gym.teams.coordination.check import NEAR, find_issues
from inframind_gym.teams.coordination.retrieval import Corpus, Passage, Retriever, rewrite, stem
from inframind_gym.teams.coordination.settings import STRATEGIES, Document
from tests.teams.coordination.runs import HashedWords, load_questions, recall

SHIPPED = Corpus.load()
BY_ID = {passage.doc_id: passage for passage in SHIPPED.passages}


def corpus_of(*texts: str) -> Corpus:
    return Corpus("test", tuple(Passage(f"t#{i}", "", text, "t") for i, text in enumerate(texts)))


def ids(found: list[Document]) -> list[str]:
    return [document.doc_id for document in found]


def test_the_shipped_passages_and_their_questions() -> None:
    assert len(SHIPPED.passages) == len(BY_ID) >= 200
    assert all(60 <= len(passage.text.split()) <= 150 for passage in SHIPPED.passages)
    questions = load_questions()
    assert len({question.text for question in questions}) == len(questions) >= 120
    for question in questions:
        assert question.labels.keys() <= BY_ID.keys(), question.id
        assert len(question.answers) >= question.needed, question.id


def test_a_folder_of_texts_becomes_passages(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    (inside / "sub").mkdir(parents=True)
    outside.mkdir()
    (inside / "a.md").write_text(
        "intro\n\n# One\n\nfirst text\n\n```\n# no heading\n```\n\n# One\n\nagain\n\n# Empty\n"
    )
    (inside / "sub" / "b.txt").write_text("# plain " + "word " * 500)
    (outside / "secret.md").write_text("secret")
    (inside / "c.py").write_text("left out")
    (inside / ".hidden.md").write_text("left out")
    (inside / "link.md").symlink_to(outside / "secret.md")
    corpus = Corpus.load(inside)
    assert [p.doc_id for p in corpus.passages] == [
        *("a.md", "a.md#one", "a.md#one-2"),
        *("sub/b.txt", "sub/b.txt-2", "sub/b.txt-3"),
    ]
    assert corpus.passages[1].text == "first text ``` # no heading ```"
    assert all(len(p.text.split()) <= 200 for p in corpus.passages)
    assert sum(len(p.text.split()) for p in corpus.passages[3:]) == 502


def test_files_that_are_no_text_are_named(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "none", "none"), (tmp_path, "no text")):
        with pytest.raises(ConfigError, match=said):
            Corpus.load(path)
    for content in (b"\xff\xfe\x00broken", b"x" * (4 * 2**20 + 1)):
        (tmp_path / "bad.md").write_bytes(content)
        with pytest.raises(ConfigError, match=r"bad\.md"):
            Corpus.load(tmp_path)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_finds_what_is_asked_for(strategy: str) -> None:
    found = Retriever(SHIPPED, HashedWords()).retrieve(
        "How does reciprocal rank fusion compute a score?", strategy
    )
    assert found[0].doc_id == "retrieval.md#reciprocal-rank-fusion"
    assert len(set(ids(found))) == 10
    scores = [document.score for document in found]
    assert scores == sorted(scores, reverse=True)


def test_the_graph_reaches_a_passage_that_shares_no_word_with_the_question() -> None:
    corpus = corpus_of(
        "The Orion2 engine was built by TeamX9 in spring.",
        "TeamX9 sits in Utrecht near the river.",
        "Bread is baked at night in small towns.",
        "Boats pass slowly and gulls shout at them.",
        "Old maps show the harbour as a round bay.",
    )
    graph = Retriever(corpus, HashedWords()).graph
    shares = graph.walk("", {0: 1.0})
    assert shares[0] > shares[1] > 0.0
    assert (shares[2:] == 0.0).all()
    assert graph.walk("Who is TeamX9?", {}).sum() > 0.0


@pytest.mark.parametrize("query", ["?!", "the of and", "ß", "\ud800", "zzzzqqq"])
def test_queries_without_a_known_word_end_well(query: str) -> None:
    retriever = Retriever(corpus_of("alpha beta", "gamma delta"), HashedWords())
    for strategy in STRATEGIES:
        assert len(retriever.retrieve(query, strategy)) <= 2
    assert rewrite(query, retriever.corpus)
    with pytest.raises(ConfigError, match="hybrid"):
        retriever.retrieve("one", "hybird")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("disagregated prefil", "disaggregated prefill"),
        ("quantization of the cache", "quantisation of the cache"),
        ("ttft", "ttft time to first token"),
        ("What is chunked prefill?", "What is chunked prefill?"),
        ("gpu_memory_utilization", "gpu_memory_utilization"),
    ],
)
def test_queries_are_rewritten_in_the_words_of_the_corpus(query: str, expected: str) -> None:
    assert rewrite(query, SHIPPED)[0] == expected


def ndcg(found: list[str], labels: dict[str, int]) -> float:
    """Return the normalised discounted cumulative gain of ten passages."""
    discounts = 1.0 / np.log2(np.arange(2, 12))
    gains = np.array([labels.get(doc_id, 0) for doc_id in found[:10]])
    ideal = np.array(sorted(labels.values(), reverse=True)[:10])
    return float(gains @ discounts[: len(gains)] / (ideal @ discounts[: len(ideal)]))


def test_passages_and_planted_errors_are_found_as_documented() -> None:
    """Of the half that nothing was tuned on, without the encoder; docs/coordination.md has both."""
    with patch.object(retrieval, "available", lambda: None):
        retriever = Retriever(SHIPPED)
    found, judged = [], []
    for question in load_questions():
        if question.half == "test":
            found.append(ndcg(ids(retriever.retrieve(question.text, "hybrid")), question.labels))
    assert np.mean(found) == pytest.approx(0.766, abs=0.01)
    for _, item in read_objects(Path(__file__).with_name("answers.jsonl")):
        if item["half"] == "test":
            near = retriever.retrieve(item["question"], "hybrid", 6)
            others = [document for document in near if document.doc_id != item["passage"]][:4]
            own = BY_ID[item["passage"]]
            source = Document(doc_id=own.doc_id, text=own.text, source=own.source, score=1.0)
            lacking = others if item["wrong"] is None else [source, *others]
            answers = (
                (item["answer"], [source, *others]),
                (item["wrong"] or item["answer"], lacking),
            )
            judged.append([bool(find_issues(item["question"], *each)) for each in answers])
    alarms, caught = np.mean(judged, axis=0)
    assert caught == pytest.approx(0.66, abs=0.05) and alarms == pytest.approx(0.02, abs=0.05)


def searched_at_once(retriever: Retriever, strategy: str, count: int) -> None:
    """Compare searches of several threads with those of one."""
    queries = [f"{passage.title} {i}" for i, passage in enumerate(SHIPPED.passages[:count])]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda query: ids(retriever.retrieve(query, strategy)), queries))
    assert together == [ids(retriever.retrieve(query, strategy)) for query in queries]


def test_searches_of_several_threads_are_those_of_one() -> None:
    stem.cache_clear()
    searched_at_once(Retriever(SHIPPED, HashedWords()), "graphrag", 20)


@pytest.mark.slow
def test_meaning_is_found_by_the_encoder() -> None:
    pytest.importorskip("sentence_transformers")
    retriever = Retriever(SHIPPED)
    if retriever.vectors is None:
        pytest.skip("the weights of the encoder are not here")
    about = "is picking the emptier of 2 random servers good enough"
    assert "queueing.md#power-of-two-choices" in ids(retriever.retrieve(about, "vector", 3))
    beside = retriever.nearness("Who won the World Cup in 2018?")
    assert (beside or 0.0) < NEAR < (retriever.nearness(about) or 0.0)
    searched_at_once(retriever, "hybrid", 24)
    assert recall(retriever) == pytest.approx((0.913, 0.906), abs=0.01)
