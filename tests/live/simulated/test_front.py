"""Simulated servers beside a recording of vLLM 0.32: statuses, fields, words of errors, metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")

from inframind_gym.live.loop import LoopThread
from tests.live.simulated.play import served, tiny_pool
from tests.live.simulated.questions import QUESTIONS, RECORDED, answers, form

OURS = ("version", "embeddings")  # whose words are our own
# Counters of parts that are not simulated: transfers of caches, admission limits, sleep by parts.
NOT_OURS = ("by_source", "admission_rejections", "sleep_mode_operation", "iteration_tokens")


@pytest.fixture(scope="module")
def found() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """What vLLM said, and what a simulated server says."""
    loop = LoopThread("questions")
    with served(tiny_pool(), models=[2]) as (url,):
        ours = loop.run(answers(url))
    loop.stop()
    yield json.loads(RECORDED.read_text(encoding="utf-8")), ours


@pytest.mark.parametrize("name", [name for name in QUESTIONS if name != "metrics"])
def test_the_form_of_an_answer(found: Any, name: str) -> None:
    theirs, ours = (each[name] for each in found)
    assert (ours["status"], ours["kind"]) == (theirs["status"], theirs["kind"])
    if theirs["status"] != 200:
        assert ours["says"] == theirs["says"]
    elif isinstance(theirs["says"], list):  # events; tokens that come together share one
        a, b = ([form(event) for event in each["says"]] for each in (theirs, ours))
        assert b[-1] == a[-1] and all(event in a for event in b)
        assert b[0] == a[0] or name.startswith("text")
    else:
        assert form(ours["says"]) == form(theirs["says"])


def test_the_metrics_have_vllms_names_and_labels(found: Any) -> None:
    theirs, ours = (set(each["metrics"]["says"]) for each in found)
    assert ours <= theirs
    missing = [name for name in theirs - ours if not any(part in name for part in NOT_OURS)]
    assert missing == []
