"""Figures of the coordination team's retrieval, rewriting, grounding and context.

    python -m benchmarks retrieval [--provider http://127.0.0.1:8000/v1 --model NAME]

With a provider its model rewrites questions as well, as in the application.
Questions and answers of the half that nothing was tuned on. Intervals are 95 % bootstraps over
questions (or over pairs of a right and a wrong answer); gains and differences are paired.
"""

from __future__ import annotations

import asyncio
import gc
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import table
from inframind_gym.evaluation.stats import interval, resample_counts
from inframind_gym.files import read_objects
from inframind_gym.teams.coordination import prompts, retrieval
from inframind_gym.teams.coordination.agents import WAY, in_order
from inframind_gym.teams.coordination.check import find_issues
from inframind_gym.teams.coordination.prompts import ContextManager
from inframind_gym.teams.coordination.retrieval import (
    TOP_K,
    Corpus,
    Question,
    Retriever,
    load_questions,
    rewrite,
)
from inframind_gym.teams.coordination.settings import STRATEGIES, Document
from inframind_gym.teams.llm import LLMService, open_provider

ANSWERS: Final = Path(__file__).with_name("answers.jsonl")
COMPLEXITIES: Final = ("simple", "medium", "complex")
KINDS: Final = ("number", "entity", "negation", "invented", "missing")
SOURCES: Final = 5  # passages that an answer is checked against
Array = NDArray[np.float64]


def ndcg(found: Sequence[str], labels: dict[str, int], k: int = TOP_K) -> float:
    """Return the normalised discounted cumulative gain of the first k passages."""
    discounts = 1.0 / np.log2(np.arange(2, k + 2))
    gains = np.array([labels.get(doc_id, 0) for doc_id in found[:k]])
    ideal = np.array(sorted(labels.values(), reverse=True)[:k])
    return float(gains @ discounts[: len(gains)] / (ideal @ discounts[: len(ideal)]))


class Searched:
    """Results of one strategy, with or without rewriting, for the questions of a half.

    Attributes:
        ndcg: nDCG@10 of each question.
        recall: Share of the answering passages among the first ten.
        success: As many of them found as the question needs.
        taken_ms: Time of each retrieval.
    """

    def __init__(
        self,
        retriever: Retriever,
        questions: Sequence[Question],
        strategy: str,
        queries: Callable[[str], list[str]],
    ) -> None:
        asked = [queries(question.text) for question in questions]
        found, taken = [], []
        for query in asked:
            start = time.perf_counter()
            found.append([document.doc_id for document in retriever.retrieve(query, strategy)])
            taken.append(1e3 * (time.perf_counter() - start))
        pairs = list(zip(questions, found, strict=True))
        self.taken_ms = np.array(taken)
        self.ndcg = np.array([ndcg(ids, question.labels) for question, ids in pairs])
        hits = [len(question.answers & set(ids)) for question, ids in pairs]
        self.recall = np.array([h / len(q.answers) for (q, _), h in zip(pairs, hits, strict=True)])
        self.success = np.array([h >= q.needed for (q, _), h in zip(pairs, hits, strict=True)])


Both = tuple[Searched, Searched]  # without and with rewriting


def bootstrap(values: Array, statistic: Callable[[Array], Array]) -> tuple[float, float, float]:
    """Return a statistic of column means with its interval.

    Args:
        values: A row per unit, ``(n, columns)``.
        statistic: Of means ``(columns, …)``.
    """
    counts = resample_counts(np.random.default_rng(0), len(values), 10_000) / len(values)
    draws = statistic((counts @ values).T)
    low, high = interval(draws, np.array([len(values)]))
    return float(statistic(values.mean(axis=0))), float(low), float(high)


def quality(searched: dict[str, Both]) -> str:
    """Return the table of nDCG@10 and recall@10, and what rewriting changes."""
    rows = []
    for name, pair in searched.items():
        cells = [name]
        for measure in ("ndcg", "recall"):
            both = np.stack([getattr(one, measure) for one in pair], axis=1)
            cells += ["{:.3f} [{:.3f}, {:.3f}]".format(*bootstrap(both, lambda m: m[0]))]
            cells += ["{:.3f} [{:.3f}, {:.3f}]".format(*bootstrap(both, lambda m: m[1]))]
            gain = bootstrap(both, lambda m: 100.0 * (m[1] / m[0] - 1.0))
            cells += ["{:+.1f} % [{:+.1f}, {:+.1f}]".format(*gain)]
        rows.append(cells)
    heads = [f"{m}@10{w}" for m in ("nDCG", "recall") for w in ("", ", rewritten", ", gain")]
    return table(["strategy", *heads], rows)


def rewritten_by(service: LLMService, texts: Sequence[str]) -> dict[str, list[str]]:
    """Return what a model makes of questions, its refined form first; unreadable: nothing."""

    async def ask(text: str) -> list[str]:
        asked, most = prompts.ask("retrieval", text), prompts.TASKS["retrieval"].most_tokens
        reply = await service.acall(
            asked.system, asked.user, WAY, most, asked.schema, agent="retrieval"
        )
        try:
            return prompts.read_queries(reply.content)
        except prompts.GarbageError:
            return []

    async def ask_all() -> dict[str, list[str]]:
        return {text: await ask(text) for text in texts}

    return asyncio.run(ask_all())


def misspelt(text: str, seed: int) -> str:
    """Return a text with two letters exchanged in each of its two longest words."""
    rng = np.random.default_rng(seed)
    for word in sorted(set(re.findall(r"[A-Za-z]{5,}", text)), key=lambda w: (-len(w), w))[:2]:
        i = int(rng.integers(1, len(word) - 2))
        text = text.replace(word, word[:i] + word[i + 1] + word[i] + word[i + 2 :])
    return text


def success(
    plain: Mapping[Any, Searched], rewritten: Mapping[Any, Searched], questions: Sequence[Question]
) -> str:
    """Return the table of successes by strategy and complexity, with nDCG@10."""
    kinds = np.array([question.complexity for question in questions])
    rows = []
    for strategy in STRATEGIES:
        for name, searched in (("", plain), (", rewritten", rewritten)):
            cells = [f"`{strategy}`{name}"]
            for kind in COMPLEXITIES:
                own = searched[strategy]
                share, gain = own.success[kinds == kind].mean(), own.ndcg[kinds == kind].mean()
                cells.append(f"{share:.3f} ({gain:.3f})")
            rows.append(cells)
    counts = [f"{kind} ({(kinds == kind).sum()})" for kind in COMPLEXITIES]
    return table(["success (nDCG@10)", *counts], rows)


def times(
    plain: Mapping[Any, Searched], rewritten: Mapping[Any, Searched], rewriting_ms: Array
) -> str:
    """Return the table of times."""
    measured = [("rewrite", rewriting_ms)]
    measured += [(f"`{s}`, query embedded", plain[s].taken_ms) for s in STRATEGIES[:1]]
    measured += [(f"`{s}`, embedding known", plain[s].taken_ms) for s in STRATEGIES[1:]]
    measured += [("`hybrid`, rewritten", rewritten["hybrid"].taken_ms)]
    measured += [("trim at 128K, 8,192 messages", trim_ms())]
    rows = [
        [name, *(f"{np.percentile(ms, p):.1f}" for p in (50, 95, 100))] for name, ms in measured
    ]
    return table(["ms", "median", "p95", "longest"], rows)


def trim_ms(num_messages: int = 8_192) -> Array:
    """Return the CPU times of trims of a conversation of 131,072 tokens, less Python's garbage."""
    text = "word" * (131_072 // num_messages)
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i in range(num_messages)]
    manager, taken = ContextManager(), []
    gc.disable()  # a full collection takes a quarter of a second once torch is loaded
    try:
        for _ in range(20):
            start = time.process_time()
            manager.pre_model_hook({"messages": messages})
            taken.append(1e3 * (time.process_time() - start))
    finally:
        gc.enable()
    return np.array(taken)


def grounding(retriever: Retriever, half: str) -> str:
    """Return the table of detected errors and false alarms by kind of error."""
    items = [item for _, item in read_objects(ANSWERS) if item["half"] == half]
    judged = np.array([_judge(retriever, item) for item in items], dtype=np.float64)
    kinds = np.array([item["kind"] for item in items])
    rows = []
    for kind in KINDS:
        alarms, caught = judged[kinds == kind].sum(axis=0)
        total = int((kinds == kind).sum())
        rows.append([kind, f"{caught:.0f} / {total}", f"{alarms:.0f} / {total}", "", ""])
    cells = []
    for statistic in (
        lambda m: 100.0 * m[1],
        lambda m: 100.0 * m[0],
        lambda m: 100.0 * m[1] / np.maximum(m[0] + m[1], 1e-9),
    ):
        cells.append("{:.0f} % [{:.0f}, {:.0f}]".format(*bootstrap(judged, statistic)))
    accuracy = bootstrap(judged, lambda m: 50.0 * (m[1] + 1.0 - m[0]))
    cells.append("{:.0f} % [{:.0f}, {:.0f}]".format(*accuracy))
    rows.append([f"all ({len(items)} pairs)", *cells])
    return table(["error", "detected (recall)", "false alarms", "precision", "accuracy"], rows)


def _judge(retriever: Retriever, item: dict[str, Any]) -> tuple[bool, bool]:
    """Return whether issues are found in the right answer, and in the wrong one."""
    near = retriever.retrieve(item["question"], "hybrid", SOURCES + 1)
    others = [document for document in near if document.doc_id != item["passage"]]
    own = retriever.corpus.by_id[item["passage"]]
    source = Document(doc_id=own.doc_id, text=own.text, source=own.source, score=1.0)
    full = [source, *others[: SOURCES - 1]]
    wrong = item["wrong"] or item["answer"]
    lacking = others[: SOURCES - 1] if item["wrong"] is None else full
    question = item["question"]
    return (
        bool(find_issues(question, item["answer"], full)),
        bool(find_issues(question, wrong, lacking)),
    )


def report(half: str = "test", provider: str | None = None, model: str | None = None) -> str:
    """Return all tables.

    Args:
        half: Of the questions and answers.
        provider: Rewrites questions as well; a name or a URL, None: no model does.
        model: Of the provider.

    Raises:
        ConfigError: A package is missing, or the provider is wrong.
        LLMError: A call of the provider failed.
    """
    corpus = Corpus.load()
    retriever = Retriever(corpus)
    questions = [question for question in load_questions() if question.half == half]
    retriever.retrieve("warm up", "graphrag")
    rewrite("wram upp", corpus)  # loads what it needs
    taken = []
    for question in questions:
        start = time.perf_counter()
        rewrite(question.text, corpus)
        taken.append(1e3 * (time.perf_counter() - start))

    def search(
        on: Retriever, strategy: str, asked: Sequence[Question]
    ) -> tuple[Searched, Searched]:
        plain = Searched(on, asked, strategy, lambda q: [q])
        return plain, Searched(on, asked, strategy, lambda q: rewrite(q, corpus))

    main = {s: search(retriever, s, questions) for s in STRATEGIES}
    plain, rewritten = ({s: pair[i] for s, pair in main.items()} for i in (0, 1))
    typos = [q.model_copy(update={"text": misspelt(q.text, i)}) for i, q in enumerate(questions)]
    more = {f"`{s}`": pair for s, pair in main.items()}
    more |= {f"`{s}`, two typos": search(retriever, s, typos) for s in STRATEGIES}
    if provider is not None:
        way = open_provider(provider, model)
        said = rewritten_by(LLMService({WAY: way}), [question.text for question in questions])
        readable = sum(bool(each) for each in said.values())
        for strategy in STRATEGIES:
            name = f"`{strategy}`, {way.model} ({readable} readable)"
            by_model = Searched(retriever, questions, strategy, lambda q: in_order(q, [q], said[q]))
            more[name] = main[strategy][0], by_model
    with patch.object(retrieval, "available", lambda: None):  # as without the encoder
        bare = Retriever(corpus)
        more |= {f"`{s}`, no encoder": search(bare, s, questions) for s in STRATEGIES}
    sections = {
        f"Retrieval, {len(questions)} questions, {len(corpus.passages)} passages, embeddings: "
        f"{'all-MiniLM-L6-v2' if retriever.vectors else 'none'}": quality(more),
        "Success by complexity": success(plain, rewritten, questions),
        "Grounding": grounding(retriever, half),
        "Times": times(plain, rewritten, np.array(taken)),
    }
    return "\n\n".join(f"## {title}\n\n{content}" for title, content in sections.items())
