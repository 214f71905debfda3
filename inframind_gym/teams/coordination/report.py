"""An answer on a terminal: text, sources, trace, context bar."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from inframind_gym.teams.coordination.acceptance import Result
from inframind_gym.teams.coordination.context import kv_gib
from inframind_gym.teams.coordination.contracts import AgentResponse
from inframind_gym.teams.coordination.scenarios import SCENARIOS
from inframind_gym.teams.terminal import plain_table

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line breaks
BAR: Final = 24  # characters of the context bar
ENDINGS: Final = {
    "answer": "answered",
    "fallback": "basic retrieval answered",
    "deadline": "late: basic retrieval answered",
    "iterations": "too many decisions: basic retrieval answered",
    "context": "the context was too long: ended",
    "failed": "failed without an answer",
    "stopped": "stopped",
}


def print_answer(console: Console, response: AgentResponse, *, trace: bool = True) -> None:
    """Print an answer with its sources, its trace and the context bar."""
    told = response.metadata
    _say(console, response.content)
    if response.sources:
        marks = " (not cited)" if told["attribution"] == "given" else ""
        console.print(f"\nsources{marks}", highlight=False)
        for number, document in enumerate(response.sources, 1):
            _say(console, f"  [{number}] {document.source}")
    if "reason" in told:
        _say(console, told["reason"])
    if not told["decisions"]:
        return
    if trace:
        console.print()
        console.print(trace_table(told))
    for failure in told["failures"]:
        where = f"{failure['agent']} failed ({failure['failure']})"
        _say(console, f"{where}: {failure['message']}")
    for doc_id, reason in told["withheld"]:
        _say(console, f"withheld {doc_id}: {reason}")
    console.print(outcome_line(response), highlight=False)
    console.print(context_bar(told), highlight=False, markup=False)


def printable(text: str) -> str:
    """Return a text without control characters, by which it could steer a terminal."""
    return _CONTROL.sub("", text)


def _say(console: Console, text: str) -> None:
    """Print what others wrote, as it is: neither markup nor names of emoji are replaced."""
    console.print(Text(printable(text)))


def trace_table(told: dict[str, Any]) -> Table:
    """Return the decisions, a line each, with the time at which they were taken."""
    table = plain_table(">#", "decision", ">at s", ">passages", ">context")
    for step in told["decisions"]:
        why = f" ({step['forced']})" if "forced" in step else ""
        why += " (not open)" if step.get("refused") else ""
        table.add_row(
            str(step["iteration"]),
            f"{step['action']}{why}",
            f"{step['elapsed_ms'] / 1000:.2f}",
            str(step["docs"]),
            f"{step['context_tokens']:,}",
        )
    return table


def outcome_line(response: AgentResponse) -> str:
    """Return how the query ended, and what it took."""
    told = response.metadata
    score = f"validated {response.validation_score:.2f}"
    checked = score if told["validation"] else "not validated"
    ended = ENDINGS.get(told["ended_by"], told["ended_by"])
    return (
        f"{ended} after {response.processing_time:.2f} s, {checked}; {told['calls']} calls, "
        f"{told['input_tokens']:,} + {told['output_tokens']:,} tokens, overhead "
        f"{told['overhead_ms_median']:.0f} ms a decision"
    )


def context_bar(told: dict[str, Any]) -> str:
    """Return how full the context is, and the memory of its keys and values."""
    tokens, limit = told["context_tokens"], told["context_limit"]
    share = min(tokens / limit, 1.0)
    filled = min(BAR, int(share * BAR + 0.999))
    trimmed = ", trimmed" if told["context_trimmed"] else ""
    return (
        f"context [{'#' * filled}{'.' * (BAR - filled)}] {tokens:,} of {limit:,} tokens "
        f"({share:.1%}{trimmed}), {kv_gib(tokens):.2f} GiB"
    )


def print_result(console: Console, result: Result, run_id: str, *, as_json: bool) -> None:
    """Print a scenario: its answer and its checks."""
    if as_json:
        print(json.dumps({"run_id": run_id, "passed": result.passed, **result.summary()}))
        return
    console.print(f"run {run_id}: {result.name}, {SCENARIOS[result.name].title}", highlight=False)
    if result.response is not None:
        print_answer(console, result.response)
    console.print()
    for note in result.notes:
        _say(console, note)
    for check, held in result.checks.items():
        console.print(f"{'ok    ' if held else 'MISSED'} {check}", highlight=False, markup=False)
