"""The "ansi" render mode: a view of the environment as plain text."""

from __future__ import annotations

from io import StringIO
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from inframind_gym.envs.rendering.view import View

WIDTH: Final = 100  # columns
_FULL, _EMPTY = "█", "░"


def draw_table(view: View) -> str:
    """Write a view as lines of at most `WIDTH` columns, without colours or trailing blanks.

    The same view gives the same text, whatever the terminal.
    """
    text = StringIO()
    console = Console(
        file=text,
        width=WIDTH,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
        _environ={},
    )
    console.print(" · ".join((view.title, *view.setting)), no_wrap=True, overflow="ellipsis")
    for line in (_progress(view), _ended(view), *_waiting(view)):
        console.print(line, no_wrap=True, overflow="ellipsis")
    console.print(_servers(view))
    console.print(
        f"depth and e2e as polled {view.telemetry_age_s:.1f} s ago (poll {view.polls})"
        if view.polls
        else "depth and e2e: not polled yet"
    )
    if view.decisions:
        console.print(_decisions(view))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def bar(share: float, cells: int) -> str:
    """A bar of text, `share` (0..1) of its cells full; a share above 0 shows at least one."""
    full = round(min(max(share, 0.0), 1.0) * cells)
    if share > 0.0 and full == 0:
        full = 1
    return _FULL * full + _EMPTY * (cells - full)


def _progress(view: View) -> str:
    return (
        f"time {view.time_s:.1f} s · {view.arrived} of {view.num_queries} queries arrived, "
        f"{view.in_flight} in flight · step {view.steps}, reward {view.reward:g}, "
        f"cost {view.cost:.2f}"
    )


def _ended(view: View) -> str:
    line = f"{view.completed} done, {view.solved} solved, {view.on_time} on time"
    return f"{line} · last: {view.last}" if view.last else line


def _waiting(view: View) -> list[str]:
    waiting = view.waiting
    if waiting is None:
        return ["", "episode over" if view.steps else "no decision waits"]
    facts = (waiting.domain, waiting.workflow, waiting.progress, waiting.role)
    left = waiting.remaining_s
    words = f"{left:.1f} s left" if left >= 0 else f"{-left:.1f} s late"
    return [
        "",
        f"query {waiting.query} of {view.num_queries}: " + " · ".join(filter(None, facts)),
        f"budget {bar(left / waiting.budget_s, 24)} {words} of {waiting.budget_s:g} s",
    ]


def _servers(view: View) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("model", no_wrap=True, max_width=18)
    table.add_column("gpu", no_wrap=True, max_width=8)
    table.add_column("", no_wrap=True)
    table.add_column("running", justify="right", no_wrap=True)
    table.add_column("waiting", justify="right", no_wrap=True)
    table.add_column("KV", justify="right", no_wrap=True)
    table.add_column("depth", justify="right", no_wrap=True)
    table.add_column("e2e", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for server in view.servers:
        table.add_row(
            server.model,
            server.gpu,
            bar(server.running / server.slots, 12),
            f"{server.running}/{server.slots}",
            str(server.waiting),
            f"{server.kv_frac:.0%}",
            f"{server.polled_depth_req:.0f}",
            f"{server.polled_e2e_s:.1f} s" if server.polled_e2e_s else "-",
            "up" if server.up else "DOWN",
        )
    return table


def _decisions(view: View) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("query", justify="right", no_wrap=True)
    table.add_column("role", no_wrap=True, max_width=24)
    table.add_column("choice", no_wrap=True, max_width=24)
    table.add_column("how", no_wrap=True)
    for decision in view.decisions:
        table.add_row(
            f"{decision.time_s:.1f} s",
            str(decision.query),
            decision.role,
            decision.choice,
            decision.detail,
        )
    return table
