"""The graph: tasks at once, handoffs, a person in between; with LangGraph and without it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.teams.coordination import graph
from inframind_gym.teams.coordination.contracts import Plan
from inframind_gym.teams.coordination.graph import Pause, Reply
from tests.teams.coordination.runs import COMPLEX, SIMPLE, Model, agent_of, make, sensible
from tests.teams.token_budget.runs import Log

SLOW = {"deadline_s": 60.0}  # machines that test are busy


@pytest.fixture(params=[True, False], ids=["LangGraph", "plain loop"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        pytest.importorskip("langgraph")
    monkeypatch.setattr(graph, "has_langgraph", lambda: request.param)


def test_three_searches_really_overlap() -> None:
    model = Model(wait_s=0.2)
    with make(model) as team:
        response = team.process_query(COMPLEX, settings={**SLOW, "rewrite": "model"})
    searches = [(began, ended) for agent, began, ended in model.calls if agent == "retrieval"]
    assert len(searches) == 3
    assert max(began for began, _ in searches) < min(ended for _, ended in searches)
    assert response.metadata["parallel"] == 3


def test_without_parallel_calls_searches_follow_one_another() -> None:
    model = Model(wait_s=0.05)
    with make(model) as team:
        settings = {**SLOW, "rewrite": "model", "parallel_tool_calls": False}
        team.process_query(COMPLEX, settings=settings)
    searches = [(began, ended) for agent, began, ended in model.calls if agent == "retrieval"]
    assert len(searches) == 3
    assert all(b[0] >= a[1] for a, b in itertools.pairwise(searches))


def test_a_sequential_plan_is_searched_for_step_by_step() -> None:
    prompts: list[str] = []

    def answer(prompt: str) -> str:
        if agent_of(prompt) == "retrieval":
            prompts.append(prompt)
        return sensible(prompt).replace('"parallel"', '"sequential"')

    model = Model(answer, wait_s=0.05)
    with make(model) as team:
        told = team.process_query(COMPLEX, settings={**SLOW, "rewrite": "model"}).metadata
    searches = [(began, ended) for agent, began, ended in model.calls if agent == "retrieval"]
    assert len(searches) == 3
    assert all(b[0] >= a[1] for a, b in itertools.pairwise(searches))
    assert told["parallel"] == 1
    assert [step["pending"] for step in told["decisions"] if "retrieve" in step["action"]] == [
        3,
        2,
        1,
    ]
    found = [prompt.count("<source>") for prompt in prompts]
    assert found[0] == 0 < found[1] <= found[2]  # what earlier steps found
    assert told["ended_by"] == "answer"


def test_every_agent_hands_back_and_the_answer_is_forwarded() -> None:
    log, model = Log(), Model()
    with make(model, log=log) as team:
        response = team.process_query(COMPLEX, settings={**SLOW, "output_mode": "full_history"})
    messages = response.metadata["messages"]
    out = [m["receiver"] for m in messages if m["kind"] == "handoff"]
    back = [m["sender"] for m in messages if m["kind"] == "handoff_back"]
    assert sorted(out) == sorted(back)
    assert set(out) >= {"router", "planner", "retrieval", "synthesis", "writer", "validator"}
    assert (messages[-1]["kind"], messages[-1]["sender"]) == ("forward", "synthesis")
    assert messages[-1]["content"] == "A block holds 16 tokens [1]."
    assert [a for a, *_ in model.calls] == ["router", "planner", "synthesis", "draft", "validation"]


def test_messages_of_the_way_back_can_be_left_out() -> None:
    sizes = {}
    for kept in (True, False):
        with make(Model()) as team:
            settings = {**SLOW, "add_handoff_back_messages": kept}
            told = team.process_query(SIMPLE, settings=settings).metadata
        sizes[kept] = (told["handoffs"], told["context_tokens"])
    assert sizes[False] < sizes[True]


def test_without_forwarding_the_supervisor_writes_once_more() -> None:
    model = Model()
    with make(model) as team:
        team.process_query(SIMPLE, settings={**SLOW, "create_forward_message_tool": False})
    assert [agent for agent, *_ in model.calls].count("draft") == 2


def asking(answers: dict[tuple[str, str], Reply], seen: list[Pause]) -> Any:
    def ask(pause: Pause) -> Reply:
        seen.append(pause)
        return answers.get((pause.when, pause.node), Reply())

    return ask


def test_a_person_is_asked_at_each_point() -> None:
    seen: list[Pause] = []
    log = Log()
    points = {"interrupt_before": ("validator", "human"), "interrupt_after": ("router", "planner")}
    with make(Model(), ask=asking({}, seen), log=log) as team:
        response = team.process_query(COMPLEX, settings={**SLOW, **points})
    assert [(p.when, p.node) for p in seen] == [
        ("after", "router"),
        ("after", "planner"),
        ("before", "validator"),
        ("before", "human"),
    ]
    assert seen[0].value.complexity == "complex"
    assert seen[2].value == seen[3].value == "A block holds 16 tokens [1]."
    assert response.metadata["ended_by"] == "answer"
    assert len(log.of("pause")) == 4


def test_a_person_changes_plan_and_answer() -> None:
    seen: list[Pause] = []
    plan = Plan(
        original_query=COMPLEX,
        sub_tasks=("what a block holds", "how queues grow"),
        execution_order="parallel",
        estimated_complexity="low",
    )
    answers = {
        ("after", "planner"): Reply(value=plan),
        ("before", "human"): Reply(value="Blocks hold 16 tokens, says a person [2]."),
    }
    points = {"interrupt_before": ("human",), "interrupt_after": ("planner",)}
    with make(Model(), ask=asking(answers, seen)) as team:
        response = team.process_query(COMPLEX, settings={**SLOW, **points})
    assert [search[0] for search in response.metadata["queries"]] == list(plan.sub_tasks)
    assert response.content == "Blocks hold 16 tokens, says a person [1]."
    assert len(response.sources) == 1


@pytest.mark.parametrize(
    ("point", "value", "said"),
    [
        (("after", "planner"), "alpha, beta", "reply at planner"),
        (("after", "planner"), {"sub_tasks": []}, "reply at planner: sub_tasks"),
        (("after", "router"), {"strategy": "magic"}, "reply at router: strategy"),
        (("before", "human"), ["a text"], "reply at human: give a text"),
    ],
)
def test_a_reply_that_fits_no_node_is_refused(
    point: tuple[str, str], value: Any, said: str
) -> None:
    settings = {**SLOW, f"interrupt_{point[0]}": (point[1],)}
    ask = asking({point: Reply(value=value)}, [])
    with make(Model(), ask=ask) as team, pytest.raises(ConfigError, match=said):
        team.process_query(COMPLEX, settings=settings)


def test_fields_of_a_plan_are_enough() -> None:
    fields = {
        "sub_tasks": ["what a block holds"],
        "execution_order": "parallel",
        "estimated_complexity": "low",
    }
    ask = asking({("after", "planner"): Reply(value=fields)}, [])
    with make(Model(), ask=ask) as team:
        told = team.process_query(COMPLEX, settings={**SLOW, "interrupt_after": ("planner",)})
    assert [search[0] for search in told.metadata["queries"]] == ["what a block holds"]
    assert told.metadata["plan"]["original_query"] == COMPLEX


@pytest.mark.parametrize(
    ("text", "score"), [("Nonsense of a person [1].", 0.0), ("A block holds 16 tokens [1].", 0.8)]
)
def test_an_answer_that_a_person_changes_has_no_verdict(text: str, score: float) -> None:
    ask = asking({("before", "human"): Reply(value=text)}, [])
    with make(Model(), ask=ask) as team:
        response = team.process_query(SIMPLE, settings={**SLOW, "interrupt_before": ("human",)})
    assert (response.content, response.validation_score) == (text, score)
    assert (response.metadata["validation"] is None) == (score == 0.0)


@pytest.mark.parametrize("point", [("after", "router"), ("before", "validator")])
def test_a_person_stops_a_query(point: tuple[str, str]) -> None:
    model = Model()
    when, node = point
    settings = {**SLOW, f"interrupt_{when}": (node,)}
    with make(model, ask=asking({point: Reply(goes_on=False)}, [])) as team:
        response = team.process_query(SIMPLE, settings=settings)
    assert response.metadata["ended_by"] == "stopped"
    assert response.sources == ()
    assert "validation" not in [agent for agent, *_ in model.calls]


def test_the_time_of_a_person_does_not_count() -> None:
    import time

    def ask(_: Pause) -> Reply:
        time.sleep(0.7)
        return Reply()

    with make(Model(), ask=ask) as team:
        settings = {"deadline_s": 60.0, "interrupt_before": ("human",)}
        response = team.process_query(SIMPLE, settings=settings)
        plain = team.process_query(SIMPLE, settings={"deadline_s": 60.0})
    assert response.processing_time < plain.processing_time + 0.5
