"""What happened in an episode, in one form for all families.

TIMELINE
    clock       unit of the horizontal axis: "s", "tokens" or "task"
    lanes       names of servers, GPUs or agents
    kinds       names of segments
    spans       columns of equal length: "lane"; "item", -1 for none; "start"; "kind" of the first
                segment, the next ones follow it; "label", an index of "labels"; of routing
                "critical", 1 for calls that the query's end waited for. "parts": a column for each
                segment of a span, how long it takes
    item        name of an item: a query, job, task or decision
    columns     [[name, label, unit]] of the table of items
    items       columns of equal length, those of the table and "start" and "end" on the clock;
                where there is one, "limit", how long it may take; "good", 1 or 0
    series      [{label, x, y}], numbers over the clock
    marks       [{x, label}], instants; with "lane" of that lane alone

A `Watch` plays cells with a family's player and takes down what happens. That of the teams is in
`inframind_gym.benchmark.report.team_timelines`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.families import Family
from inframind_gym.benchmark.metrics import Columns

_DECIMALS: Final = 3  # milliseconds
_SAME_S: Final = 1e-9  # instants that are one
Column = tuple[str, str, str]  # name, label and unit
Timeline = dict[str, Any]


def watch(family: Family, suite: Any) -> Watch:
    """Return the watch of a family, for one suite."""
    own = {"routing": _Calls, "tracks": _Calls, "placement": _Gpus}
    if family.kind in own:
        return own[family.kind](family, suite)
    teams = import_module("inframind_gym.benchmark.report.team_timelines")
    made: Watch = teams.WATCHES[family.kind](family, suite)
    return made


class Watch(ABC):
    """Plays cells, and remembers what happened in the last one.

    Args:
        family: Of the cells.
        suite: Of the cells.
    """

    def __init__(self, family: Family, suite: Any) -> None:
        self._player = family.simulator(suite)
        self._player.watch = self.look

    def run(self, cells: Sequence[Any]) -> Iterator[list[tuple[Any, ...]]]:
        """Play one cell, as `Player.run` does."""
        self.begin()
        yield from self._player.run(cells)

    @abstractmethod
    def begin(self) -> None:
        """Forget the last cell."""

    @abstractmethod
    def look(self, *played: Any, **named: Any) -> None:
        """Look at what `Player.watch` is called with."""

    @abstractmethod
    def timeline(self, columns: Columns) -> Timeline:
        """Return the timeline of the last cell, whose records are `columns`."""


def numbers(values: Any) -> list[Any]:
    """Return numbers or text as JSON, times to a millisecond."""
    array = np.asarray(values)
    if array.dtype.kind == "f":
        array = np.round(np.nan_to_num(array, nan=0.0), _DECIMALS)
    if array.dtype.kind == "b":
        array = array.astype(np.int64)
    listed: list[Any] = array.tolist()
    return listed


def spans_of(
    lane: Any, item: Any, ends: Any, labels: Sequence[str], kind: Any = None, **more: Any
) -> dict[str, Any]:
    """Return n spans as columns.

    Args:
        lane: (n,) lanes.
        item: (n,) items.
        ends: (n, k + 1) ends of k segments.
        labels: n explanations.
        kind: (n,) kinds of the first segments; None: 0.
        more: (n,) further columns.
    """
    at = np.asarray(ends, np.float64).reshape(len(labels), -1) if labels else np.zeros((0, 2))
    known = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    return {
        "lane": numbers(lane),
        "item": numbers(item),
        "start": numbers(at[:, :1].ravel()),
        "parts": numbers(np.diff(at).T),
        "kind": numbers(np.zeros(len(labels), int) if kind is None else kind),
        "label": [known[label] for label in labels],
        "labels": list(known),
        **{name: numbers(values) for name, values in more.items()},
    }


def items_of(item: str, columns: Sequence[Column], **values: Any) -> Timeline:
    """Return the part of a timeline on its items.

    Args:
        item: Name of one.
        columns: Of the table.
        values: (n,) by name; those of `columns` and others.
    """
    found = {name: numbers(own) for name, own in values.items()}
    return {"item": item, "columns": [list(column) for column in columns], "items": found}


class _Calls(Watch):
    """Calls of a stream of queries: they wait, their prompt is read, their answer is written."""

    def begin(self) -> None:
        """Forget the last cell."""
        self.calls: NDArray[Any] | None = None

    def look(self, env: Any, row: int, done: NDArray[Any]) -> None:
        """Take the calls of an episode that is over."""
        self.calls, self.done, self.names = env.calls(row), done.copy(), env.policy_spec()
        self.faults = env.simulation.cluster.fault[row].copy()

    def timeline(self, columns: Columns) -> Timeline:
        """Return the calls by server, from the first scored query to the last, and the queries."""
        from inframind_gym.simulator.workflow.topology import CUSTOM, TOPOLOGIES

        if self.calls is None:
            raise BenchmarkError("the policy cannot play there, no query has an answer")
        first_s, last_s = columns["arrival_s"].min(), columns["finish_s"].max()
        calls = self.calls[np.argsort(self.calls["submit_s"], kind="stable")]
        calls = calls[(calls["finish_s"] >= first_s) & (calls["submit_s"] <= last_s)]
        in_time = columns["latency_s"] <= columns["budget_s"]
        answered, solved = columns["calls"] > 0, columns["solved"] > 0
        outcome = np.where(solved, "solved", "wrong").astype("U20")
        outcome = np.where(in_time, outcome, np.char.add(outcome, ", late"))
        topologies = np.array((*TOPOLOGIES, CUSTOM, "none"))[columns["topology"]]  # -1: none
        plans = [f"{a} of {b}" for a, b in zip(topologies, columns["num_agents"], strict=True)]
        return {
            "clock": "s",
            "lanes": list(self.names.models),
            "kinds": ["waiting", "prefill", "decode"],
            "spans": spans_of(
                calls["model"],
                calls["query"],
                _ends(calls),
                _labels(calls, self.done, self.names),
                critical=critical(calls),
                output_tokens=calls["output_tokens"],
            ),
            **items_of(
                "query",
                [
                    *(
                        ("id", "query", ""),
                        ("start", "arrives at", "s"),
                        ("latency", "latency", "s"),
                    ),
                    *(("limit", "budget", "s"), ("outcome", "outcome", ""), ("plan", "plan", "")),
                    *(("calls", "calls", ""), ("tokens", "tokens", "")),
                ],
                id=columns["query"],
                start=columns["arrival_s"],
                end=columns["finish_s"],
                latency=columns["latency_s"],
                limit=columns["budget_s"],
                outcome=np.where(answered, outcome, "unanswered"),
                good=solved & in_time & answered,
                plan=plans,
                calls=columns["calls"],
                tokens=columns["prompt_tokens"] + columns["output_tokens"],
            ),
            "series": [],
            "marks": [
                {"x": float(one["at_s"]), "lane": int(one["model"]), "label": _condition(one)}
                for one in self.faults[np.isfinite(self.faults["at_s"])]
            ],
        }


def _condition(change: Any) -> str:
    """Return the condition of a server after a change, in words."""
    if change["down"]:
        return "down"
    slow = [f"{change['pace']:g} times as slow"] if change["pace"] != 1.0 else []
    late = ["readings late or lost"] if change["late_polls"] else []
    return ", ".join(slow + late) or "well again"


def _ends(calls: NDArray[Any]) -> NDArray[np.float64]:
    """Return when calls were sent, admitted, gave their first token, and ended, ``(k, 4)``."""
    names = ("submit_s", "admitted_s", "first_token_s", "finish_s")
    ends = np.column_stack([calls[name] for name in names])
    ends = np.minimum(np.nan_to_num(ends, nan=np.inf), calls["finish_s"][:, None])
    return np.maximum.accumulate(ends, axis=1)  # a call that failed has no first token


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


def _labels(calls: NDArray[Any], done: NDArray[Any], names: Any) -> list[str]:
    """Return role, strategy and phase of calls as text."""
    from inframind_gym.simulator.workflow.roles import ROLES
    from inframind_gym.simulator.workflow.topology import FINAL

    of = {int(one["query"]): one["role"] for one in done}
    labels = []
    for call in calls:
        roles, phase = of.get(int(call["query"])), int(call["phase"])
        who = "another query" if roles is None else ROLES[int(roles[call["node"]])].name
        who = "decision" if phase == FINAL else who
        notes = ("", ", second call", "")[phase]
        notes += ", failed" if call["failed"] else ", cut off" if call["truncated"] else ""
        notes += ", evicted" if call["evictions"] else ""
        labels.append(f"{who}, {names.strategies[int(call['strategy'])]}{notes}")
    return labels


class _Gpus(Watch):
    """Models that GPUs hold, looked at after every decision."""

    def begin(self) -> None:
        """Forget the last cell."""
        self.seen: list[tuple[float, list[tuple[int, str]], int, int]] = []

    def look(self, simulation: Any) -> None:
        """Note what every GPU holds after a decision's interval."""
        from inframind_gym.simulator.placement.state import NONE, QUEUED, SLEEPING, STATE_NAMES

        self.simulation = simulation
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
        episode = state.episode[0]
        now_s, late = float(simulation.now_s()[0]), int(episode["jobs_late"])
        self.seen.append((now_s, held, int(episode["waiting"]), late))

    def timeline(self, columns: Columns) -> Timeline:
        """Return the models by GPU, and the jobs that ended."""
        simulation, seen = self.simulation, self.seen
        rows: list[tuple[int, tuple[float, float], int, str]] = []
        times = [0.0, *(now_s for now_s, *_ in seen)]
        for g in range(simulation.num_gpus):
            begun = 0
            for i in range(1, len(seen) + 1):
                if i < len(seen) and seen[i][1][g] == seen[begun][1][g]:
                    continue
                rows.append((g, (times[begun], times[i]), *seen[begun][1][g]))
                begun = i
        lane, ends, kind, labels = zip(*rows, strict=True)
        jobs = np.sort(simulation.finished(0), order="job")
        late = jobs["late"] > 0
        return {
            "clock": "s",
            "lanes": [f"GPU {g}" for g in range(simulation.num_gpus)],
            "kinds": [*(card.alias for card in simulation.cards), "changing", "none awake"],
            "spans": spans_of(lane, [-1] * len(lane), ends, labels, kind),
            **items_of(
                "job",
                [
                    *(("id", "job", ""), ("start", "arrives at", "s"), ("latency", "latency", "s")),
                    *(("limit", "SLO", "s"), ("outcome", "outcome", ""), ("calls", "calls", "")),
                ],
                id=jobs["job"],
                start=jobs["arrival_s"],
                end=jobs["finish_s"],
                latency=jobs["latency_s"],
                limit=jobs["slo_s"],
                outcome=np.where(late, "late", "in time"),
                good=~late,
                calls=jobs["calls"],
            ),
            "series": [
                {"label": "calls that wait", "x": times[1:], "y": [one[2] for one in seen]},
                {"label": "jobs late so far", "x": times[1:], "y": [one[3] for one in seen]},
            ],
            "marks": [],
        }
