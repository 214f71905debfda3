"""What happened in an episode of a team of agents, see `inframind_gym.benchmark.report.timelines`.

A watch keeps a row for every item: the values of its table, and its spans as (lane, kind, ends).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from inframind_gym.benchmark.metrics import Columns
from inframind_gym.benchmark.report.timelines import (
    Column,
    Timeline,
    Watch,
    items_of,
    spans_of,
)

_FIRST: Final = np.array([0])  # the only row of the simulation


class _Team(Watch):
    """Steps of a team.

    Attributes:
        rows: Items so far.
        simulation: Of the team.
    """

    def begin(self) -> None:
        """Forget the last cell."""
        self.rows: list[dict[str, Any]] = []
        self.simulation: Any = None

    def _made(
        self,
        clock: str,
        lanes: Sequence[str],
        kinds: Sequence[str],
        item: str,
        columns: Sequence[Column],
        series: Sequence[str] = (),
        marks: Mapping[str, float] | None = None,
    ) -> Timeline:
        """Return the timeline of the rows; `series` are columns over "end"."""
        rows = self.rows
        spans = [(row["id"], row["what"], *span) for row in rows for span in row.pop("spans")]
        item_of, labels, lane, kind, ends = zip(*spans, strict=True) if spans else [()] * 5
        values = {name: [row[name] for row in rows] for name in rows[0]}
        return {
            "clock": clock,
            "lanes": list(lanes),
            "kinds": list(kinds),
            "spans": spans_of(lane, item_of, ends, labels, kind),
            **items_of(item, columns, **values),
            "series": [{"label": name, "x": values["end"], "y": values[name]} for name in series],
            "marks": [{"x": x, "label": label} for label, x in (marks or {}).items()],
        }


class _Tasks(_Team):
    """Tasks that agents take, on the clock where there are servers, else one after the other."""

    def begin(self) -> None:
        """Forget the last cell."""
        super().begin()
        self.begun: list[float] = []
        self.now_s = 0.0

    def look(self, batch: Any) -> None:
        """Note the tasks that ended in a step."""
        from inframind_gym.teams.assignment import rules

        simulation = self.simulation = batch.simulation
        done, servers = simulation.completed, simulation.servers
        self.begun.append(float(len(self.begun)) if servers is None else self.now_s)
        for i, ordinal in enumerate(done.ordinal.tolist()):
            action, start = int(done.action[i]), self.begun[ordinal]
            agent, provider = int(rules.agent_of(action)), action % len(rules.PROVIDERS)
            latency, wait = float(done.latency_s[i]), float(done.wait_s[i])
            hot = int(done.next_load_state[i] != rules.BALANCED)
            timed = (agent, 0, (start, start + wait, start + latency))
            span = timed if servers is not None else (agent, hot, (start, start + 1.0))
            task_type = rules.TASK_TYPES[int(done.task_type[i])]
            self.rows.append(
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
        self.now_s = 0.0 if servers is None else float(servers.now_s[0])

    def timeline(self, columns: Columns) -> Timeline:
        """Return the tasks by agent."""
        from inframind_gym.teams.assignment.rules import AGENTS

        timed = self.simulation.servers is not None
        self.rows.sort(key=lambda row: int(row["id"]))
        on_clock: list[Column] = [("start", "arrives at", "s"), ("wait", "waits", "s")]
        return self._made(
            "s" if timed else "task",
            AGENTS,
            ["waiting", "served"] if timed else ["agents balanced", "an agent is hot"],
            "task",
            [
                *(("id", "task", ""), ("what", "type, agent and provider", "")),
                *(on_clock if timed else ()),
                *(("latency", "latency", "s"), ("quality", "quality", "%")),
                ("reward", "reward", ""),
            ],
        )


class _Tokens(_Team):
    """Calls of a team whose clock is the tokens that it has spent."""

    def look(self, batch: Any) -> None:
        """Note a decision."""
        from inframind_gym.teams.token_budget.rules import CUT, describe
        from inframind_gym.teams.token_budget.settings import SIZES

        simulation = self.simulation = batch.simulation
        action, tokens = int(simulation.action[0]), float(simulation.tokens[0])
        spent = float(simulation.state.ledger.spent[0])
        ends = (spent - tokens, spent)
        lane, size = divmod(action, len(SIZES))
        self.rows.append(
            {
                "id": len(self.rows),
                "what": describe(action),
                "spans": [(lane, size, ends)] if action < CUT else [],
                "start": ends[0],
                "end": spent,
                "tokens": tokens,
                "true quality": float(simulation.task.truth(_FIRST)[0]),
                "reward": float(simulation.terms[0].sum()),
            }
        )

    def timeline(self, columns: Columns) -> Timeline:
        """Return the calls by agent, and the quality over the tokens."""
        from inframind_gym.teams.token_budget.settings import AGENTS, SIZES

        return self._made(
            "tokens",
            AGENTS,
            [f"{size} call" for size in SIZES],
            "decision",
            [
                *(("id", "no.", ""), ("what", "decision", ""), ("tokens", "tokens", "")),
                *(("end", "spent after it", ""), ("true quality", "true quality", "")),
                ("reward", "reward", ""),
            ],
            series=["true quality"],
            marks={"budget": float(self.simulation.state.ledger.budget[0])},
        )


class _Decisions(_Team):
    """Decisions of a supervisor, and the agents that it calls."""

    def begin(self) -> None:
        """Forget the last cell."""
        super().begin()
        self.now_s = 0.0

    def look(self, batch: Any) -> None:
        """Note a decision, and the fallback that it may have led to."""
        from inframind_gym.teams.coordination.rules import AGENT_OF, FALLBACK, NAMES
        from inframind_gym.teams.coordination.settings import AGENTS

        simulation, asked = batch.simulation, int(batch.actions[0])
        state, supervisor = simulation.state, len(AGENTS)
        self.simulation, began = simulation, self.now_s
        self.now_s = int(state.elapsed_ms[0]) / 1e3
        agent_s = int(state.agent_ms[0]) / 1e3  # of the fallback, where it was forced
        forced = int(simulation.action[0]) == FALLBACK and asked != FALLBACK
        lane = supervisor if forced or AGENT_OF[asked] < 0 else int(AGENT_OF[asked])
        what = NAMES[asked] + ("" if state.was_open[0] else " (not open)")
        works = self.now_s - agent_s
        spans = [(supervisor, 0, (began, works)), (lane, 1, (works, self.now_s))]
        self.rows.append(
            {
                "id": len(self.rows),
                "what": what + (", then the forced fallback" if forced else ""),
                "spans": [span for span in spans if span[2][1] > span[2][0]],
                "start": began,
                "end": self.now_s,
                "took": self.now_s - began,
                "tokens": int(state.tokens[0]),
                "reward": float(simulation.terms[0].sum()),
            }
        )

    def timeline(self, columns: Columns) -> Timeline:
        """Return what the agents did, and the deadlines."""
        from inframind_gym.teams.coordination.rules import deadline_ms
        from inframind_gym.teams.coordination.settings import AGENTS
        from inframind_gym.teams.coordination.state import REASONS

        simulation = self.simulation
        settings, complexity = simulation.settings, simulation.question.complexity[_FIRST]
        reason = REASONS[int(simulation.state.reason[0])]
        return self._made(
            "s",
            [*AGENTS, "supervisor"],
            ["supervisor decides", "agent or tool works"],
            "decision",
            [
                *(("id", "no.", ""), ("what", "decision", ""), ("start", "begins at", "s")),
                *(("took", "takes", "s"), ("tokens", "tokens", ""), ("reward", "reward", "")),
            ],
            marks={
                "deadline": float(deadline_ms(complexity, settings)[0]) / 1e3,
                "hard limit": float(settings.limits.hard_s),
                f"ends: {reason}": self.now_s,
            },
        )


WATCHES: Final = {"assignment": _Tasks, "token_budget": _Tokens, "coordination": _Decisions}
