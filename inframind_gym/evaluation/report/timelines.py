"""Timelines of an episode that is played again: calls of queries, models on GPUs.

TIMELINE, in seconds
    lanes       names of servers or GPUs
    kinds       names of segments
    spans       columns of equal length: "lane"; "item", -1 for none; "start"; "kind" of the first
                segment, the next ones follow it; "label", an index of "labels"; of routing
                "critical", 1 for calls that the query's end waited for. "parts": a column for each
                segment of a span, how long it takes
    item        name of an item: a query or job
    columns     [[name, label, unit]] of the table of items
    items       columns of equal length, those of the table and "start" and "end"; "limit", how long
                it may take; "good", 1 or 0
    series      [{label, x, y}], numbers over the seconds
    marks       [{x, label}], instants; with "lane" of that lane alone

A `Watch` plays a cell with the family's player, and takes down what happens after every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.evaluation.errors import BenchmarkError
from inframind_gym.evaluation.metrics import Columns
from inframind_gym.evaluation.suite import Cell
from inframind_gym.simulator.placement.state import NONE, QUEUED, SLEEPING, STATE_NAMES
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.simulator.workflow.topology import CUSTOM, FINAL, TOPOLOGIES

KINDS: Final = ("routing", "tracks", "placement")  # families whose episodes have timelines
_DECIMALS: Final = 3  # milliseconds
_SAME_S: Final = 1e-9  # instants that are one
Timeline = dict[str, Any]


class Watch:
    """Plays cells of a suite, and draws what happened in the last one.

    Args:
        suite: Of one of KINDS.
    """

    def __init__(self, suite: Any) -> None:
        self._player = suite.player()
        self._player.watch = self._see
        self._of_gpus = suite.kind == "placement"
        if not self._of_gpus:
            self._player.arguments = {"record_calls": True}
        self._batch: Any = None
        self._steps: list[dict[str, Any]] = []

    def _see(self, batch: Any) -> None:
        """Note what every GPU holds after a decision's interval; calls are recorded anyway."""
        self._batch = batch
        if self._of_gpus:
            self._steps.append(_held(batch.simulation))

    def play(self, cell: Cell) -> Columns:
        """Play a cell; returns its records."""
        self._batch, self._steps = None, []
        ((_, columns, _),) = self._player.run([cell])
        records: Columns = columns
        return records

    def timeline(self, columns: Columns) -> Timeline:
        """Draw the episode that was played last, whose records these are.

        Raises:
            BenchmarkError: No query has an answer: the policy cannot play there.
        """
        if self._batch is None:
            raise BenchmarkError("the policy cannot play there, no query has an answer")
        if self._of_gpus:
            return _gpus(self._batch.simulation, self._steps)
        return _calls(self._batch, columns)


def _numbers(values: Any) -> list[Any]:
    """Return numbers or text as JSON, times to a millisecond."""
    array = np.asarray(values)
    if array.dtype.kind == "f":
        array = np.round(np.nan_to_num(array, nan=0.0), _DECIMALS)
    if array.dtype.kind == "b":
        array = array.astype(np.int64)
    listed: list[Any] = array.tolist()
    return listed


def _timeline(
    lanes: Sequence[str],
    kinds: Sequence[str],
    ends: NDArray[np.float64],
    labels: Sequence[str],
    spans: Mapping[str, Any],
    item: str,
    columns: str,
    items: Mapping[str, Any],
    **more: Any,
) -> Timeline:
    """Return a timeline.

    Args:
        lanes: See the module, as for all but these.
        kinds: See there.
        ends: (n, k + 1) of k segments of n spans.
        labels: n of the spans.
        spans: (n,) their lanes, items, kinds and further columns.
        item: See there.
        columns: "name=label|unit; name=label" of the table.
        items: Values by name.
        more: "series" and "marks".
    """
    known = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    shown = []
    for text in columns.split("; "):
        name, _, label = text.partition("=")
        label, _, unit = label.partition("|")
        shown.append([name, label, unit])
    return {
        "lanes": list(lanes),
        "kinds": list(kinds),
        "spans": {
            "start": _numbers(ends[:, :1].ravel()),
            "parts": _numbers(np.diff(ends).T),
            "label": [known[label] for label in labels],
            "labels": list(known),
            **{name: _numbers(values) for name, values in spans.items()},
        },
        "item": item,
        "columns": shown,
        "items": {name: _numbers(values) for name, values in items.items()},
        **{"series": [], "marks": [], **more},
    }


# Calls of a stream of queries: they wait, their prompt is read, their answer is written.


def _calls(batch: Any, columns: Columns) -> Timeline:
    """Return the calls by server, from the first scored query to the last, and the queries."""
    simulation = batch.simulation
    names, faults = simulation.policy_spec(), simulation.cluster.fault[0]
    calls = simulation.calls(0)
    calls = calls[np.argsort(calls["submit_s"], kind="stable")]
    calls = calls[(calls["finish_s"] >= columns["arrival_s"].min())]
    calls = calls[calls["submit_s"] <= columns["finish_s"].max()]
    in_time = columns["latency_s"] <= columns["budget_s"]
    answered, solved = columns["calls"] > 0, columns["solved"] > 0
    outcome = np.where(solved, "solved", "wrong").astype("U20")
    outcome = np.where(in_time, outcome, np.char.add(outcome, ", late"))
    topologies = np.array((*TOPOLOGIES, CUSTOM, "none"))[columns["topology"]]  # -1: none
    stages = ("submit_s", "admitted_s", "first_token_s", "finish_s")
    ends = np.column_stack([calls[name] for name in stages])
    ends = np.minimum(np.nan_to_num(ends, nan=np.inf), calls["finish_s"][:, None])
    roles = {int(one["query"]): one["role"] for one in batch.done[0]}
    return _timeline(
        names.models,
        ["waiting", "prefill", "decode"],
        np.maximum.accumulate(ends, axis=1),  # a call that failed has no first token
        [_label(call, roles.get(int(call["query"])), names) for call in calls],
        {
            "lane": calls["model"],
            "item": calls["query"],
            "kind": np.zeros(len(calls), int),
            "critical": critical(calls),
            "output_tokens": calls["output_tokens"],
        },
        "query",
        "id=query; start=arrives at|s; latency=latency|s; limit=budget|s; outcome=outcome; "
        "plan=plan; calls=calls; tokens=tokens",
        {
            "id": columns["query"],
            "start": columns["arrival_s"],
            "end": columns["finish_s"],
            "latency": columns["latency_s"],
            "limit": columns["budget_s"],
            "outcome": np.where(answered, outcome, "unanswered"),
            "good": solved & in_time & answered,
            "plan": [f"{a} of {b}" for a, b in zip(topologies, columns["num_agents"], strict=True)],
            "calls": columns["calls"],
            "tokens": columns["prompt_tokens"] + columns["output_tokens"],
        },
        marks=[
            {"x": float(one["at_s"]), "lane": int(one["model"]), "label": _condition(one)}
            for one in faults[np.isfinite(faults["at_s"])]
        ],
    )


def _condition(change: Any) -> str:
    """Return the condition of a server after a change, in words."""
    if change["down"]:
        return "down"
    slow = [f"{change['pace']:g} times as slow"] if change["pace"] != 1.0 else []
    late = ["readings late or lost"] if change["late_polls"] else []
    return ", ".join(slow + late) or "well again"


def critical(calls: NDArray[Any]) -> NDArray[np.int64]:
    """Mark the calls that a query's end waited for, one after the other from its last call back.

    Args:
        calls: (k,) CALL.

    Returns:
        (k,) 1 or 0.
    """
    marked = np.zeros(len(calls), np.int64)
    order = np.lexsort((calls["finish_s"], calls["query"]))
    starts = np.flatnonzero(np.diff(calls["query"][order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        until_s = np.inf
        for row in rows[::-1]:  # last end first
            if calls["finish_s"][row] <= until_s + _SAME_S:
                marked[row], until_s = 1, calls["submit_s"][row]
    return marked


def _label(call: Any, roles: Any, names: Any) -> str:
    """Return role, strategy and phase of a call as text."""
    phase = int(call["phase"])
    who = "another query" if roles is None else ROLES[int(roles[call["node"]])].name
    who = "decision" if phase == FINAL else who
    notes = ("", ", second call", "")[phase]
    notes += ", failed" if call["failed"] else ", cut off" if call["truncated"] else ""
    notes += ", evicted" if call["evictions"] else ""
    return f"{who}, {names.strategies[int(call['strategy'])]}{notes}"


# Models that GPUs hold, looked at after every decision.


def _held(simulation: Any) -> dict[str, Any]:
    """Return what every GPU holds, as number of a kind and label, and how many calls wait."""
    state, names = simulation.state, [card.alias for card in simulation.cards]
    held = []
    for g, kinds in enumerate(simulation.state_on_gpus(np.array([0]))[0]):
        host, moving = int(state.host[0, g]), np.flatnonzero(kinds >= SLEEPING)
        coming = moving[kinds[moving] >= QUEUED]
        if host != NONE:
            model = int(state.server[0, host]["model"])
            held.append((model, f"{names[model]} awake"))
        elif len(moving):
            model = int((coming if len(coming) else moving)[0])
            held.append((len(names), f"{names[model]} {STATE_NAMES[kinds[model]]}"))
        else:
            held.append((len(names) + 1, "no model awake"))
    episode, now_s = state.episode[0], float(simulation.now_s()[0])
    waiting, late = int(episode["waiting"]), int(episode["jobs_late"])
    return {"now": now_s, "held": held, "waiting": waiting, "late": late}


def _gpus(simulation: Any, steps: Sequence[Mapping[str, Any]]) -> Timeline:
    """Return the models by GPU, and the jobs that ended."""
    spans: list[tuple[int, tuple[float, float], str, int]] = []
    times = [0.0, *(step["now"] for step in steps)]
    for g in range(simulation.num_gpus):
        begun = 0
        for i in range(1, len(steps) + 1):
            kind, label = steps[begun]["held"][g]
            if i == len(steps) or steps[i]["held"][g] != (kind, label):
                spans.append((g, (times[begun], times[i]), label, kind))
                begun = i
    lane, ends, labels, kinds = zip(*spans, strict=True)
    jobs = np.sort(simulation.finished(0), order="job")
    late = jobs["late"] > 0
    series = {"calls that wait": "waiting", "jobs late so far": "late"}
    return _timeline(
        [f"GPU {g}" for g in range(simulation.num_gpus)],
        [*(card.alias for card in simulation.cards), "changing", "none awake"],
        np.array(ends),
        labels,
        {"lane": lane, "item": np.full(len(lane), -1), "kind": kinds},
        "job",
        "id=job; start=arrives at|s; latency=latency|s; limit=SLO|s; outcome=outcome; calls=calls",
        {
            "id": jobs["job"],
            "start": jobs["arrival_s"],
            "end": jobs["finish_s"],
            "latency": jobs["latency_s"],
            "limit": jobs["slo_s"],
            "outcome": np.where(late, "late", "in time"),
            "good": ~late,
            "calls": jobs["calls"],
        },
        series=[
            {"label": label, "x": times[1:], "y": [step[key] for step in steps]}
            for label, key in series.items()
        ],
    )
