"""The built-in tasks: 3,000 verifiable questions made from a seed.

The data that the package ships are what :func:`generate` returns for ``SEED``; a test compares
them. The package itself only reads those files, see ``inframind_gym/tasks/shipped.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np

from benchmarks.builtin_tasks import FAMILIES
from benchmarks.builtin_tasks.draft import Draft, Draw, Family
from inframind_gym.tasks.difficulty import hashed_normal, mixed_difficulty, standardised
from inframind_gym.tasks.records import TaskRecord
from inframind_gym.tasks.taskset import DOMAINS, split_of

SEED = 2026
TASKS_PER_DOMAIN = 1000

# Share of the variance of a built-in task's difficulty that its text decides (the level of its
# family and draws). Ridge regression on the shipped embeddings recovers about half of it: 0.14 on
# average over the domains (5-fold), as much as on so many (1,000) real questions of MMLU-Pro.
TEXT_R2 = 0.26

MAX_MISSES = 60  # repeated texts in a row after which a family counts as used up


def is_telling(draft: Draft) -> bool:
    """Return whether the tests of a code draft tell a function from a constant one."""
    if draft.answer.kind != "tests":
        return True
    values = [line.rsplit(" == ", 1)[1] for line in draft.answer.value.splitlines()]
    return len(set(values)) >= (2 if set(values) <= {"True", "False"} else 3)


def _stream(seed: int, domain: str, family: Family, seen: set[str]) -> Iterator[Draft]:
    """Drafts of one family whose texts are not in `seen`, until it is used up."""
    misses = index = 0
    while misses < MAX_MISSES:
        draft = family(Draw(f"{seed}/{domain}/{family.__name__}/{index}"))
        index += 1
        if draft.text in seen or not is_telling(draft):
            misses += 1
            continue
        misses = 0
        seen.add(draft.text)
        yield draft


def _drafts(seed: int, domain: str, count: int) -> list[tuple[str, Draft]]:
    """Return `count` (family, draft) pairs of a domain, the families in turn."""
    seen: set[str] = set()
    streams = {f.__name__: _stream(seed, domain, f, seen) for f in FAMILIES[domain]}
    drafts: list[tuple[str, Draft]] = []
    while len(drafts) < count and streams:
        for name, stream in list(streams.items()):
            draft = next(stream, None)
            if draft is None:
                del streams[name]
            else:
                drafts.append((name, draft))
    if len(drafts) < count:
        raise RuntimeError(f"the families of {domain} make only {len(drafts)} of {count} tasks")
    return drafts[:count]


def generate(seed: int = SEED, tasks_per_domain: int = TASKS_PER_DOMAIN) -> list[TaskRecord]:
    """Make the built-in tasks.

    Args:
        seed: the same seed gives the same tasks, byte for byte, under every version of Python.
        tasks_per_domain: how many for each of Math, Code and Commonsense.

    Returns:
        3 · `tasks_per_domain` records, Math first. ``difficulty`` is standardised within a domain:
        sqrt(TEXT_R2) times the standardised level of the text plus sqrt(1 - TEXT_R2) times noise
        that is seeded per task and shows nowhere.

    Raises:
        RuntimeError: a domain's families cannot make so many different tasks.
    """
    records: list[TaskRecord] = []
    for domain in DOMAINS:
        dataset = f"builtin_{domain.lower()}"
        drafts = _drafts(seed, domain, tasks_per_domain)
        ids = [f"{dataset}/{i}" for i in range(len(drafts))]
        visible = standardised(np.array([draft.level for _, draft in drafts]))
        hidden = np.array([hashed_normal(f"{seed}/hidden/{task_id}") for task_id in ids])
        difficulty = standardised(mixed_difficulty(visible, standardised(hidden), TEXT_R2))
        records += [
            TaskRecord(
                id=task_id,
                text=draft.text,
                dataset=dataset,
                domain=domain,
                answer=draft.answer,
                difficulty=round(float(value), 4),
                split=split_of(task_id, draft.text),
                family=family,
            )
            for (family, draft), task_id, value in zip(drafts, ids, difficulty, strict=True)
        ]
    return records


def to_json(record: TaskRecord) -> str:
    """Return a record as one line of JSON in the package's own format, empty fields left out."""
    item = asdict(record)
    item["answer"] = {k: v for k, v in item["answer"].items() if v or k == "value"}
    item = {k: v for k, v in item.items() if v not in (None, "")}
    return json.dumps(item, ensure_ascii=False, separators=(",", ":"))
