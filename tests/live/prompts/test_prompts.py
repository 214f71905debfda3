"""Prompts: what each call is told, what it reads of others, and that it always fits."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("aiohttp")

from inframind_gym.live.prompts import TEMPLATE_TOKENS, Message, Prompts, estimate_upper
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.simulator.workflow.topology import FINAL
from inframind_gym.tasks import load_tasks
from inframind_gym.tasks.taskset import ANSWER_KINDS
from tests.live.vllm_server.live_play import call

TASKS = load_tasks("builtin")
PROMPTS = Prompts(TASKS)
TASK = {
    kind: next(i for i, answer in enumerate(TASKS.answers) if answer.kind == kind)
    for kind in ANSWER_KINDS
}
SOLVER = [role.name for role in ROLES].index("MathSolver")
AMPLE = 14336


def prompt_of(answers: dict[int, str], limit: int = AMPLE, **changes: Any) -> list[Message]:
    """Messages of a call of MathSolver's that reads these answers by their nodes."""
    reads = tuple(answers)
    given = {"task": TASK["number"], "role": SOLVER, "reads": reads, "sources": reads, **changes}
    return PROMPTS.messages(call(**given), answers, limit)


def text(messages: list[Message]) -> str:
    return "\n".join(message["content"] for message in messages)


def test_trains_of_thought_are_not_passed_on() -> None:
    prompt = text(prompt_of({0: "<think>a long way</think>\nIt is 4."}, node=1))
    assert "a long way" not in prompt
    assert "It is 4." in prompt


def test_no_prompt_tells_the_answer() -> None:
    choice = TASKS.answers[TASK["choice"]]
    prompt = text(prompt_of({}, task=TASK["choice"]))
    assert f"(A to {'ABCDEFGHIJ'[len(choice.options) - 1]})" in prompt
    tests = TASKS.answers[TASK["tests"]]
    prompt = text(prompt_of({}, task=TASK["tests"]))
    assert f"`{tests.entry_point}`" in prompt
    asserts = tests.value.splitlines()
    assert len(asserts) > 1
    assert not any(line in prompt for line in asserts)
    assert tests.reference not in prompt


@given(
    st.lists(st.text(st.sampled_from("ab 1é\n#漢"), max_size=3000), min_size=1, max_size=6),
    st.integers(0, 3000),
)
@settings(max_examples=40, deadline=None)
def test_a_prompt_never_takes_more_than_its_limit(answers: list[str], more: int) -> None:
    by_node = dict(enumerate(answers))
    final: dict[str, Any] = {"phase": FINAL, "role": -1, "reads": tuple(by_node)}
    final["sources"] = final["reads"]

    def size(messages: list[Message]) -> int:
        return TEMPLATE_TOKENS + sum(estimate_upper(m["content"]) for m in messages)

    bare = size(prompt_of({}, **final)) + 40 * len(answers)
    messages = prompt_of(by_node, bare + more, **final)
    assert size(messages) <= bare + more
    prompt = text(messages)
    assert TASKS.texts[TASK["number"]] in prompt
    assert "\\boxed{}" in prompt
    titles = re.findall(r"^### (?!End of the answer$)", messages[1]["content"], re.MULTILINE)
    assert len(titles) >= len(answers)
