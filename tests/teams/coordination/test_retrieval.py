"""Passages, strategies and rewriting, on small corpora and on the shipped one."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("bm25s")
pytest.importorskip("networkx")
pytest.importorskip("Stemmer")

from inframind_gym.errors import ConfigError
from inframind_gym.teams.coordination.contracts import Document
from inframind_gym.teams.coordination.retrieval import (
    Corpus,
    Passage,
    Retriever,
    deduplicate,
    fuse,
    rewrite,
)
from inframind_gym.teams.coordination.retrieval import corpus as corpus_module
from inframind_gym.teams.coordination.retrieval.questions import load_questions
from inframind_gym.teams.coordination.retrieval.retriever import STRATEGIES
from inframind_gym.teams.coordination.retrieval.text import stem
from inframind_gym.teams.coordination.retrieval.vectors import HashedWords

SHIPPED = Corpus.load()


def corpus_of(*texts: str) -> Corpus:
    passages = [Passage(f"t#{i}", "", text, "t") for i, text in enumerate(texts)]
    return Corpus("test", tuple(passages))


def documents(*texts: str) -> list[Document]:
    return [
        Document(doc_id=str(i), text=text, source="t", score=1.0) for i, text in enumerate(texts)
    ]


def ids(found: list[Document]) -> list[str]:
    return [document.doc_id for document in found]


def test_the_shipped_passages_are_many_and_of_a_size() -> None:
    assert len(SHIPPED.passages) >= 200
    assert all(60 <= len(passage.text.split()) <= 150 for passage in SHIPPED.passages)
    assert len(SHIPPED.by_id) == len(SHIPPED.passages)
    folder = Path(corpus_module.__file__).parent
    files = [*folder.rglob("*.md"), *folder.rglob("*.jsonl"), *folder.rglob("*.yaml")]
    assert sum(file.stat().st_size for file in files) < 400_000


def test_questions_name_passages_and_a_third_need_two() -> None:
    questions = load_questions()
    assert len(questions) >= 120
    assert len({question.text for question in questions}) == len(questions)
    for question in questions:
        assert question.labels.keys() <= SHIPPED.by_id.keys(), question.id
        assert len(question.answers) >= question.needed, question.id
    kinds = Counter(question.complexity for question in questions)
    assert kinds["complex"] >= len(questions) / 3 - 1
    halves = Counter(question.half for question in questions)
    assert abs(halves["tune"] - halves["test"]) <= 3


def test_a_folder_of_texts_becomes_passages(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.md").write_text(
        "intro\n\n# One\n\nfirst text\n\n```\n# no heading\n```\n\n# One\n\nagain\n\n# Empty\n"
    )
    (tmp_path / "sub" / "b.txt").write_text("# plain " + "word " * 500)
    (tmp_path / "c.py").write_text("left out")
    (tmp_path / ".hidden.md").write_text("left out")
    corpus = Corpus.load(tmp_path)
    assert [p.doc_id for p in corpus.passages] == [
        *("a.md", "a.md#one", "a.md#one-2"),
        *("sub/b.txt", "sub/b.txt-2", "sub/b.txt-3"),
    ]
    assert corpus.passages[1].text == "first text ``` # no heading ```"
    assert all(len(p.text.split()) <= 200 for p in corpus.passages)
    assert sum(len(p.text.split()) for p in corpus.passages[3:]) == 502
    assert Corpus.load(tmp_path / "a.md").passages[0].doc_id == "a.md"


def test_headings_that_end_with_a_number_get_names_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\n\nx\n\n# A 2\n\ny\n\n# A\n\nz\n")
    names = [p.doc_id for p in Corpus.load(tmp_path).passages]
    assert len(set(names)) == 3


def test_files_that_are_no_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        Corpus.load(tmp_path / "none")
    with pytest.raises(ConfigError, match="has no text"):
        Corpus.load(tmp_path)
    bad = tmp_path / "bad.md"
    bad.write_bytes(b"\xff\xfe\x00broken")
    with pytest.raises(ConfigError, match=r"bad\.md: is not UTF-8"):
        Corpus.load(tmp_path)
    bad.write_bytes(b"text\0binary")
    with pytest.raises(ConfigError, match=r"bad\.md: holds NUL"):
        Corpus.load(tmp_path)
    with pytest.raises(ConfigError, match="must end in"):
        Corpus.load(Path(__file__))


def test_links_are_left_out_and_pipes_refused(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (inside / "a.md").write_text("text")
    (outside / "secret.md").write_text("secret")
    (inside / "b.md").symlink_to(outside / "secret.md")
    (inside / "folder").symlink_to(outside)
    assert [passage.text for passage in Corpus.load(inside).passages] == ["text"]
    os.mkfifo(inside / "pipe.txt")
    with pytest.raises(ConfigError, match=r"pipe\.txt: cannot be read \(it is a pipe"):
        Corpus.load(inside)


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("MOST_FILES", 1, "more than 1 texts"),
        ("MOST_FILE_BYTES", 5, "more than 5 bytes"),
        ("MOST_BYTES", 10, r"b\.md: the texts have more than 10 characters"),
        ("MOST_PASSAGES", 1, r"b\.md: the texts have more than 1 passages"),
    ],
)
def test_limits_name_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, message: str
) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text("some text")
    monkeypatch.setattr(corpus_module, limit, value)
    with pytest.raises(ConfigError, match=message):
        Corpus.load(tmp_path)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_finds_what_is_asked_for(strategy: str) -> None:
    retriever = Retriever(SHIPPED, HashedWords())
    found = retriever.retrieve("How does reciprocal rank fusion compute a score?", strategy)
    assert found[0].doc_id == "retrieval.md#reciprocal-rank-fusion"
    assert len(found) == 10 and len(set(ids(found))) == 10
    scores = [document.score for document in found]
    assert scores == sorted(scores, reverse=True)
    again = retriever.retrieve("How does reciprocal rank fusion compute a score?", strategy)
    assert again == found


def test_the_graph_reaches_a_passage_that_shares_no_word_with_the_question() -> None:
    corpus = corpus_of(
        "The Orion2 engine was built by TeamX9 in spring.",
        "TeamX9 sits in Utrecht near the river.",
        "Bread is baked at night in small towns.",
        "Boats pass slowly and gulls shout at them.",
        "Old maps show the harbour as a round bay.",
    )
    graph = Retriever(corpus, HashedWords()).graph
    assert "teamx9" in graph.graph
    shares = graph.walk({}, {0: 1.0})
    assert shares[0] > shares[1] > 0.0
    assert (shares[2:] == 0.0).all()
    assert abs(graph.walk({"teamx9": 1.0}, {}).sum()) > 0.0


def test_wrong_queries_are_refused() -> None:
    retriever = Retriever(corpus_of("one", "two"), HashedWords())
    with pytest.raises(ConfigError, match="Did you mean 'hybrid'"):
        retriever.retrieve("one", "hybird")
    with pytest.raises(ConfigError, match="empty"):
        retriever.retrieve("  ")
    with pytest.raises(ConfigError, match="empty"):
        retriever.retrieve([])
    with pytest.raises(ConfigError, match="4,096"):
        retriever.retrieve("x" * 4_097)


@pytest.mark.parametrize("query", ["?!", "the of and", "ß", "\ud800", "zzzzqqq"])
def test_queries_without_a_known_word_end_well(query: str) -> None:
    retriever = Retriever(corpus_of("alpha beta", "gamma delta"), HashedWords())
    for strategy in STRATEGIES:
        assert len(retriever.retrieve(query, strategy)) <= 2
    assert rewrite(query, retriever.corpus)


def test_variants_fill_the_last_fifth() -> None:
    retriever = Retriever(SHIPPED, HashedWords())
    alone = ids(retriever.retrieve("admission control", "hybrid"))
    both = ids(retriever.retrieve(["admission control", "What is nDCG?"], "hybrid"))
    assert both[:8] == alone[:8]
    assert "retrieval.md#ndcg" in both[8:] and len(both) == 10


def test_fusion_adds_reciprocal_ranks() -> None:
    fused = dict(fuse([[(7, 0.9), (8, 0.1)], [(8, 5.0)]]))
    assert fused[7] == pytest.approx(1 / 61)
    assert fused[8] == pytest.approx(1 / 62 + 1 / 61)
    assert [i for i, _ in fuse([[(2, 1.0)], [(1, 1.0)]])] == [1, 2]  # equal sums


def test_near_copies_are_dropped_and_the_first_stays() -> None:
    text = "Blocks of the cache are freed when a request is preempted by another request."
    found = deduplicate(documents(text, text + " Indeed.", "Something else altogether."))
    assert ids(found) == ["0", "2"]
    assert deduplicate(documents("", "")) == documents("", "")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("disagregated prefil", "disaggregated prefill"),
        ("quantization of the kvcache", "quantisation of the kv cache"),
        ("ttft", "ttft time to first token"),
        ("What is chunked prefill?", "What is chunked prefill?"),
        ("gpu_memory_utilization", "gpu_memory_utilization"),
    ],
)
def test_queries_are_rewritten_in_the_words_of_the_corpus(query: str, expected: str) -> None:
    assert rewrite(query, SHIPPED)[0] == expected


def test_parts_and_proposals_follow_as_variants() -> None:
    query = "Compare chunked prefill and disaggregated prefill"
    assert rewrite(query, SHIPPED)[1:] == ["chunked prefill", "disaggregated prefill"]
    assert rewrite(query, SHIPPED, ["one", " ", "two", "three"])[1:] == ["one", "two"]


def test_a_rewritten_query_is_no_longer_than_a_query_may_be() -> None:
    long = "oom " * 1_024
    assert max(map(len, rewrite(long, SHIPPED, ["x" * 9_999]))) <= 4_096


def test_a_corpus_explains_its_own_abbreviations() -> None:
    corpus = corpus_of("The grand open budget (GOB) is set yearly.", "A (XYZ) is not explained.")
    assert rewrite("GOB size", corpus)[0] == "GOB size grand open budget"
    assert rewrite("XYZ size", corpus)[0] == "XYZ size"


def test_the_glossary_adds_only_words_that_the_corpus_has() -> None:
    assert rewrite("oom", corpus_of("bread and butter"))[0] == "oom"


def test_without_the_encoder_words_are_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    from inframind_gym.teams.coordination.retrieval import vectors

    monkeypatch.setattr(vectors.importlib.util, "find_spec", lambda name: None)
    assert Retriever(SHIPPED).vectors.name == "hashed"


def searched_at_once(retriever: Retriever, strategy: str, count: int) -> None:
    """Compare searches of several threads with those of one."""
    queries = [f"{passage.title} {i}" for i, passage in enumerate(SHIPPED.passages[:count])]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda query: ids(retriever.retrieve(query, strategy)), queries))
    assert together == [ids(retriever.retrieve(query, strategy)) for query in queries]


def test_searches_of_several_threads_are_those_of_one() -> None:
    stem.cache_clear()
    searched_at_once(Retriever(SHIPPED, HashedWords()), "graphrag", 40)


@pytest.mark.slow
def test_meaning_is_found_by_the_encoder() -> None:
    pytest.importorskip("sentence_transformers")
    retriever = Retriever(SHIPPED)
    if retriever.vectors.name != "minilm":
        pytest.skip("the weights of the encoder are not here")
    found = retriever.retrieve(
        "is picking the emptier of 2 random servers good enough", "vector", 3
    )
    assert "queueing.md#power-of-two-choices" in ids(found)
    searched_at_once(retriever, "hybrid", 24)
