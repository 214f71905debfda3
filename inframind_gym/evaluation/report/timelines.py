"""What happened in an episode that is played again, in one form for all families.

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

A `Watch` plays a cell with the family's player, and takes down what happens after every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.evaluation.errors import BenchmarkError
from inframind_gym.evaluation.metrics import Columns
from inframind_gym.evaluation.suite import Cell
from inframind_gym.simulator.placement.state import NONE, QUEUED, SLEEPING, STATE_NAMES
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.simulator.workflow.topology import CUSTOM, FINAL, TOPOLOGIES

_DECIMALS: Final = 3  # milliseconds
_SAME_S: Final = 1e-9  # instants that are one
Column = tuple[str, str, str]  # name, label and unit
Timeline = dict[str, Any]


class Watch:
    """Plays cells of a suite, and remembers what happened in the last one.

    Attributes:
        batch: The last cell's.
        rows: What was noted of it.
        now: Time of the last step, where that is noted.
        begun: When tasks began, by their number.
    """

    def __init__(self, suite: Any) -> None:
        self._player = suite.player()
        self._player.watch = self._see
        if suite.kind in ("routing", "tracks"):
            self._player.arguments = {"record_calls": True}
        self._look, self._draw = _FAMILIES[suite.kind]
        self.batch: Any = None
        self.rows: list[dict[str, Any]] = []
        self.now, self.begun = 0.0, list[float]()

    def _see(self, batch: Any) -> None:
        self.batch = batch
        self._look(self)

    def run(self, cell: Cell) -> tuple[Columns, Callable[[], Timeline]]:
        """Play a cell; returns its records, and what makes its timeline."""
        self.batch, self.rows, self.begun, self.now = None, [], [], 0.0
        ((_, columns, _),) = self._player.run([cell])
        return columns, lambda: self._draw(self, columns)


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
    clock: str,
    lanes: Sequence[str],
    kinds: Sequence[str],
    spans: tuple[Any, Any, Any, Sequence[str], Any],
    item: str,
    columns: str,
    items: Mapping[str, Any],
    *,
    series: Sequence[tuple[str, Any, Any]] = (),
    marks: Sequence[Mapping[str, Any]] = (),
    **more: Any,
) -> Timeline:
    """Return a timeline.

    Args:
        clock: See the module, as for all but these.
        lanes: See there.
        kinds: See there.
        spans: Of n spans lanes (n,), items (n,), ends (n, k + 1) of k segments, n labels, and kinds
            (n,) of the first segments.
        item: See there.
        columns: "name=label|unit; name=label" of the table.
        items: Values by name.
        series: Label, x and y of each.
        marks: See there.
        more: (n,) further columns of the spans.
    """
    lane, of_item, ends, labels, kind = spans
    at = np.asarray(ends, np.float64).reshape(len(labels), -1) if len(labels) else np.zeros((0, 2))
    known = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    shown = []
    for text in columns.split("; "):
        name, _, label = text.partition("=")
        label, _, unit = label.partition("|")
        shown.append([name, label, unit])
    return {
        "clock": clock,
        "lanes": list(lanes),
        "kinds": list(kinds),
        "spans": {
            "lane": _numbers(lane),
            "item": _numbers(of_item),
            "start": _numbers(at[:, :1].ravel()),
            "parts": _numbers(np.diff(at).T),
            "kind": _numbers(kind),
            "label": [known[label] for label in labels],
            "labels": list(known),
            **{name: _numbers(values) for name, values in more.items()},
        },
        "item": item,
        "columns": shown,
        "items": {name: _numbers(values) for name, values in items.items()},
        "series": [{"label": label, "x": list(x), "y": list(y)} for label, x, y in series],
        "marks": [dict(mark) for mark in marks],
    }


# Calls of a stream of queries: they wait, their prompt is read, their answer is written.


def _see_nothing(watch: Watch) -> None:
    """Leave everything to the end: calls are recorded."""


def _draw_calls(watch: Watch, columns: Columns) -> Timeline:
    """Return the calls by server, from the first scored query to the last, and the queries."""
    if watch.batch is None:
        raise BenchmarkError("the policy cannot play there, no query has an answer")
    simulation = watch.batch.simulation
    names, faults = simulation.policy_spec(), simulation.cluster.fault[0]
    first_s, last_s = columns["arrival_s"].min(), columns["finish_s"].max()
    calls = simulation.calls(0)
    calls = calls[np.argsort(calls["submit_s"], kind="stable")]
    calls = calls[(calls["finish_s"] >= first_s) & (calls["submit_s"] <= last_s)]
    in_time = columns["latency_s"] <= columns["budget_s"]
    answered, solved = columns["calls"] > 0, columns["solved"] > 0
    outcome = np.where(solved, "solved", "wrong").astype("U20")
    outcome = np.where(in_time, outcome, np.char.add(outcome, ", late"))
    topologies = np.array((*TOPOLOGIES, CUSTOM, "none"))[columns["topology"]]  # -1: none
    stages = ("submit_s", "admitted_s", "first_token_s", "finish_s")
    ends = np.column_stack([calls[name] for name in stages])
    ends = np.minimum(np.nan_to_num(ends, nan=np.inf), calls["finish_s"][:, None])
    ends = np.maximum.accumulate(ends, axis=1)  # a call that failed has no first token
    roles = {int(one["query"]): one["role"] for one in watch.batch.done[0]}
    labels = [_label(call, roles.get(int(call["query"])), names) for call in calls]
    return _timeline(
        "s",
        names.models,
        ["waiting", "prefill", "decode"],
        (calls["model"], calls["query"], ends, labels, np.zeros(len(calls), int)),
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
        critical=critical(calls),
        output_tokens=calls["output_tokens"],
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


def _see_gpus(watch: Watch) -> None:
    """Note what every GPU holds after a decision's interval."""
    simulation = watch.batch.simulation
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
    watch.rows.append({"now": now_s, "held": held, "waiting": waiting, "late": late})


def _draw_gpus(watch: Watch, columns: Columns) -> Timeline:
    """Return the models by GPU, and the jobs that ended."""
    simulation, seen = watch.batch.simulation, watch.rows
    spans: list[tuple[int, int, tuple[float, float], str, int]] = []
    times = [0.0, *(row["now"] for row in seen)]
    for g in range(simulation.num_gpus):
        begun = 0
        for i in range(1, len(seen) + 1):
            kind, label = seen[begun]["held"][g]
            if i == len(seen) or seen[i]["held"][g] != (kind, label):
                spans.append((g, -1, (times[begun], times[i]), label, kind))
                begun = i
    lane, of_item, ends, labels, kinds = zip(*spans, strict=True)
    jobs = np.sort(simulation.finished(0), order="job")
    late = jobs["late"] > 0
    return _timeline(
        "s",
        [f"GPU {g}" for g in range(simulation.num_gpus)],
        [*(card.alias for card in simulation.cards), "changing", "none awake"],
        (lane, of_item, ends, labels, kinds),
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
            ("calls that wait", times[1:], [row["waiting"] for row in seen]),
            ("jobs late so far", times[1:], [row["late"] for row in seen]),
        ],
    )


# Steps of a team: a row holds the values of its table, and its spans as (lane, kind, ends).


def _team(
    watch: Watch,
    clock: str,
    lanes: Sequence[str],
    kinds: Sequence[str],
    item: str,
    columns: str,
    *,
    series: Sequence[str] = (),
    marks: Mapping[str, float] | None = None,
) -> Timeline:
    """Return the timeline of the rows; `series` are columns over "end"."""
    rows = watch.rows
    spans = [
        (lane, row["id"], ends, row["what"], kind)
        for row in rows
        for lane, kind, ends in row.pop("spans")
    ]
    lane, of_item, ends, labels, kind = zip(*spans, strict=True) if spans else ((),) * 5
    values = {name: [row[name] for row in rows] for name in rows[0]}
    return _timeline(
        clock,
        lanes,
        kinds,
        (lane, of_item, ends, labels, kind),
        item,
        columns,
        values,
        series=[(name, values["end"], values[name]) for name in series],
        marks=[{"x": x, "label": label} for label, x in (marks or {}).items()],
    )


def _see_tasks(watch: Watch) -> None:
    """Note the tasks that ended: on the clock where there are servers, else one after the other."""
    from inframind_gym.teams.assignment import rules

    simulation = watch.batch.simulation
    done, servers = simulation.last_completed, simulation.servers
    begun = watch.begun
    begun.append(float(len(begun)) if servers is None else watch.now)
    for i, ordinal in enumerate(done.ordinal.tolist()):
        action, start = int(done.action[i]), begun[ordinal]
        agent, provider = int(rules.agent_of(action)), action % len(rules.PROVIDERS)
        latency, wait = float(done.latency_s[i]), float(done.wait_s[i])
        hot = int(done.next_load_state[i] != rules.BALANCED)
        timed = (agent, 0, (start, start + wait, start + latency))
        span = timed if servers is not None else (agent, hot, (start, start + 1.0))
        task_type = rules.TASK_TYPES[int(done.task_type[i])]
        watch.rows.append(
            {
                "id": ordinal,
                "what": f"{task_type} to {rules.AGENTS[agent]}, {rules.PROVIDERS[provider]}",
                "spans": [span],
                "start": start,
                "end": span[2][-1],
                "wait": wait,
                "latency": latency,
                "quality": 100.0 * float(done.quality[i]),
                "reward": float(done.reward[i]),
            }
        )
    watch.now = 0.0 if servers is None else float(servers.now_s[0])


def _draw_tasks(watch: Watch, columns: Columns) -> Timeline:
    """Return the tasks by agent."""
    from inframind_gym.teams.assignment.rules import AGENTS

    timed = watch.batch.simulation.servers is not None
    watch.rows.sort(key=lambda row: int(row["id"]))
    on_clock = "start=arrives at|s; wait=waits|s; " if timed else ""
    return _team(
        watch,
        "s" if timed else "task",
        AGENTS,
        ["waiting", "served"] if timed else ["agents balanced", "an agent is hot"],
        "task",
        f"id=task; what=type, agent and provider; {on_clock}latency=latency|s; quality=quality|%; "
        "reward=reward",
    )


def _see_tokens(watch: Watch) -> None:
    """Note a decision of a team whose clock is the tokens that it has spent."""
    from inframind_gym.teams.token_budget.rules import CUT, describe
    from inframind_gym.teams.token_budget.settings import SIZES

    simulation = watch.batch.simulation
    action, tokens = int(simulation.action[0]), float(simulation.tokens[0])
    spent = float(simulation.state.ledger.spent[0])
    ends = (spent - tokens, spent)
    lane, size = divmod(action, len(SIZES))
    watch.rows.append(
        {
            "id": len(watch.rows),
            "what": describe(action),
            "spans": [(lane, size, ends)] if action < CUT else [],
            "start": ends[0],
            "end": spent,
            "tokens": tokens,
            "true quality": float(simulation.task.truth(np.array([0]))[0]),
            "reward": float(simulation.terms[0].sum()),
        }
    )


def _draw_tokens(watch: Watch, columns: Columns) -> Timeline:
    """Return the calls by agent, and the quality over the tokens."""
    from inframind_gym.teams.token_budget.settings import AGENTS, SIZES

    return _team(
        watch,
        "tokens",
        AGENTS,
        [f"{size} call" for size in SIZES],
        "decision",
        "id=no.; what=decision; tokens=tokens; end=spent after it; true quality=true quality; "
        "reward=reward",
        series=["true quality"],
        marks={"budget": float(watch.batch.simulation.state.ledger.budget[0])},
    )


def _see_decisions(watch: Watch) -> None:
    """Note a decision of a supervisor, and the fallback that it may have led to."""
    from inframind_gym.teams.coordination.rules import AGENT_OF, FALLBACK, NAMES
    from inframind_gym.teams.coordination.settings import AGENTS

    simulation, chosen = watch.batch.simulation, int(watch.batch.actions[0, 0])
    state, supervisor, began = simulation.state, len(AGENTS), watch.now
    watch.now = int(state.elapsed_ms[0]) / 1e3
    agent_s = int(state.agent_ms[0]) / 1e3  # of the fallback, where it was forced
    forced = int(simulation.action[0]) == FALLBACK and chosen != FALLBACK
    lane = supervisor if forced or AGENT_OF[chosen] < 0 else int(AGENT_OF[chosen])
    what = NAMES[chosen] + ("" if state.was_open[0] else " (not open)")
    works = watch.now - agent_s
    spans = [(supervisor, 0, (began, works)), (lane, 1, (works, watch.now))]
    watch.rows.append(
        {
            "id": len(watch.rows),
            "what": what + (", then the forced fallback" if forced else ""),
            "spans": [span for span in spans if span[2][1] > span[2][0]],
            "start": began,
            "end": watch.now,
            "took": watch.now - began,
            "tokens": int(state.tokens[0]),
            "reward": float(simulation.terms[0].sum()),
        }
    )


def _draw_decisions(watch: Watch, columns: Columns) -> Timeline:
    """Return what the agents did, and the deadlines."""
    from inframind_gym.teams.coordination.rules import REASONS, deadline_ms
    from inframind_gym.teams.coordination.settings import AGENTS

    simulation = watch.batch.simulation
    settings, complexity = simulation.settings, simulation.question.complexity[np.array([0])]
    reason = REASONS[int(simulation.state.reason[0])]
    return _team(
        watch,
        "s",
        [*AGENTS, "supervisor"],
        ["supervisor decides", "agent or tool works"],
        "decision",
        "id=no.; what=decision; start=begins at|s; took=takes|s; tokens=tokens; reward=reward",
        marks={
            "deadline": float(deadline_ms(complexity, settings)[0]) / 1e3,
            "hard limit": float(settings.limits.hard_s),
            f"ends: {reason}": watch.now,
        },
    )


_FAMILIES: Final[
    dict[str, tuple[Callable[[Watch], None], Callable[[Watch, Columns], Timeline]]]
] = {
    "routing": (_see_nothing, _draw_calls),
    "tracks": (_see_nothing, _draw_calls),
    "placement": (_see_gpus, _draw_gpus),
    "assignment": (_see_tasks, _draw_tasks),
    "token_budget": (_see_tokens, _draw_tokens),
    "coordination": (_see_decisions, _draw_decisions),
}
