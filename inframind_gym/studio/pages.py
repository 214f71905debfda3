"""The pages of the studio: forms that start runs, runs, comparisons, boards."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import localtime, strftime
from typing import Any, Final
from urllib.parse import quote

from fastapi import FastAPI, Response
from markupsafe import Markup
from nicegui import run as background
from nicegui import ui

from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.studio import views
from inframind_gym.studio.runs import CHOICES, TEAMS, Launcher
from inframind_gym.studio.server import Boards
from inframind_gym.studio.views import Live, Row, chip, each, errors, html, put, table
from inframind_gym.teams.runs import FORMS, Run, RunStore, compare

_EXAMPLES: Final = {
    "task": "Write a migration plan from a monolith to three services.",
    "question": "Compare chunked prefill and a separate pool of servers for long prompts.",
}
_STYLE: Final = Path(__file__).with_name("studio.css")
# Providers of simulated runs; `inframind team run assignment` writes a list.
_SIMULATED: Final = ("simulated", "simulation", ["simulated"], ["simulated", "simulated"])
_RUNS: Final = {
    **{"run": '<a href="/show/{run_id}">{run_id}</a>', "status": "{chip}", "<what": "{what:.300}"},
    **{"<result": "{result:.300}", "started": "{started}"},
}
_BOARDS: Final = {
    **{"folder": '<a href="/boards/{path}">{name}</a>', "<suite": "{suite}{error}"},
    **{">cells": "{cells}", ">planned": "{planned}", "<policies": "{policies}"},
}


def described(run: Run) -> dict[str, Any]:
    """Return what the pages say of a run: name, status, what it plays, result, start."""
    team, summary = TEAMS[run.team], run.summary or {}
    result = "{error}" if "error" in summary else team.result if summary else ""
    return {
        "run_id": run.run_id,
        "chip": chip(run.status),
        "what": team.run.format_map(Row(run.settings)),
        "result": result.format_map(Row(summary)),
        "started": strftime("%Y-%m-%d %H:%M", localtime(run.started_s)),
    }


@contextmanager
def frame(title: str, here: str) -> Iterator[None]:
    """Add the head of a page; what follows is its content."""
    ui.page_title(f"{title}: inframind studio")
    ui.colors(primary="#1b5e9e")
    ui.add_head_html(f"<style>{_STYLE.read_text(encoding='utf-8')}</style>")
    current = {here: Markup(' aria-current="page"')}
    titles = {**{name: team.title for name, team in TEAMS.items()}, "boards": "Boards"}
    links = ((name, current.get(name, ""), words) for name, words in titles.items())
    put(
        html(
            '<a class="skip" href="#content">Skip to the content</a><header class="top"><div '
            'class="frame"><a class="brand" href="/">inframind <b>studio</b></a><nav '
            'aria-label="pages">{}</nav></div></header>',
            each('<a href="/{}"{}>{}</a>', links),
        )
    )
    with ui.element("div").classes("frame").props("id=content tabindex=-1"):
        put(html("<h1>{}</h1>", title))
        yield


def missing(title: str, why: str = "") -> Response:
    """Return a page that says that there is no such thing, with status 404."""
    with frame(title, ""):
        put(html('<p class="error">{}</p>', why))
        return ui.context.client.build_response(ui.context.client.request, 404)


def attach(app: FastAPI, launcher: Launcher, boards: Boards) -> None:
    """Add the pages to an application."""

    @ui.page("/boards")  # before the pages of teams, whose path it has, too
    def boards_page() -> None:
        with frame("Boards", "boards"):
            put(
                "<p>Results folders of <code>inframind bench run</code> under <code>--results"
                "</code>, each with its leaderboard and comparisons.</p>"
            )
            rows = [{**row, "path": quote(row["name"], safe="")} for row in boards.listed()]
            put(table("Results folders", _BOARDS, rows))

    @ui.page("/")
    @ui.page("/{team}")
    def team_page(team: str = "pool") -> Any:
        if team not in TEAMS:
            return missing("No such page")
        with frame(TEAMS[team].title, team):
            put(html("<p>{}</p>", TEAMS[team].about))
            _form(launcher, team)
            _runs(launcher.store, team)

    @ui.page("/show/{run_id}")
    def run_page(run_id: str) -> Any:
        return _run_page(launcher, run_id)

    @ui.page("/compare/{first}/{second}")
    def compare_page(first: str, second: str) -> Any:
        try:
            compared = views.comparison(compare(launcher.store, first, second))
        except ConfigError as error:
            return missing("A and B", str(error))
        with frame("A and B", ""):
            Live().show(compared)

    @ui.page("/boards/{name}")
    def board_page(name: str) -> Any:
        if name not in boards.find():
            return missing("There is no board of this name")
        with frame(name, "boards"):
            path = f"/boards/{quote(name, safe='')}/report"
            report = ui.element("iframe").props("sandbox=allow-scripts")
            report.props.update({"src": path, "title": f"report of {name}"})

    ui.run_with(app, title="inframind studio", dark=None, language="en-US", reconnect_timeout=10.0)


def _run_page(launcher: Launcher, run_id: str) -> Any:
    store = launcher.store
    try:
        run = store.get_run(run_id)
    except ConfigError:
        return missing("There is no run of this name")
    with frame(described(run)["what"], run.team):
        status = Live()
        stop = ui.button("Stop", on_click=lambda: launcher.stop(run.run_id)).props("outline")
        view, events, seq = Live(), defaultdict[str, list[Any]](list), 0

        def update() -> None:
            nonlocal seq
            now = store.get_run(run.run_id)  # before its events: a run that is over has all
            for event in store.events(run.run_id, seq):
                events[event.kind].append(event.data)
                seq = event.seq
            words = (
                '<div role="status" class="hint" data-events="{seq}">{chip} {simulated} '
                "started {started}, {seq:,} events</div>"
            )
            is_simulated = now.settings.get("provider") in _SIMULATED
            simulated, summary = chip("simulated") if is_simulated else "", now.summary or {}
            line = html(words, **described(now), simulated=simulated, seq=seq)
            status.show([line + errors([summary["error"]] if "error" in summary else [])])
            stopping = launcher.owned().get(run.run_id)  # None: it is over
            stop.set_visibility(stopping is not None)
            stop.set_text("Stopping…" if stopping else "Stop")
            stop.set_enabled(not stopping)
            view.show(views.VIEWS[now.team](now, events))
            if now.status != "running":
                timer.deactivate()

        timer = ui.timer(0.5, update)


def _form(launcher: Launcher, team: str) -> None:
    """Add the form that starts a run of a team, by its settings."""
    controls: dict[str, Any] = {}
    with ui.element("form").classes("order").props(f'aria-label="start {team}"'):
        for name, field in TEAMS[team].settings.model_fields.items():
            default = _EXAMPLES.get(name, field.default)
            label = re.sub(r" s$", ", s", name.replace("_", " "))
            label += " (optional)" if default is None else ""
            if choices := CHOICES.get(team, {}).get(name):
                controls[name] = ui.select(list(choices), value=default, label=label)
            elif name in _EXAMPLES:
                area = ui.textarea(label, value=default).props("autogrow")
                controls[name] = area.classes("wide")
            else:
                controls[name] = ui.number(label, value=default)

        async def start() -> None:
            settings: dict[str, Any] = {}
            for name, control in controls.items():
                whole = isinstance(control.value, float) and control.value.is_integer()
                settings[name] = int(control.value) if whole else control.value
            try:
                run_id = await background.io_bound(launcher.start, team, settings)
            except InfraMindError as error:
                wrong.content = html('<p class="error" role="alert">{}</p>', error)
            else:
                ui.navigate.to(f"/show/{run_id}")

        ui.button("Start", on_click=start)
        wrong = put("", "wide")


def _runs(store: RunStore, team: str) -> None:
    """Add the runs of a team, read again and again, and the choice of two to compare."""
    listed = Live()

    def show() -> None:
        newest = map(described, store.list_runs(team, most=100))
        listed.show([table("Runs", _RUNS, newest)])

    show()
    ui.timer(2.0, show)
    runs = store.list_runs(team)
    names = {run.run_id: f"{run.run_id} {described(run)['what'][:60]}" for run in runs}
    if team in FORMS and len(names) > 1:
        with ui.element("div").classes("pick"):
            first = ui.select(names, label="A", value=list(names)[1])
            second = ui.select(names, label="B", value=next(iter(names)))
            ui.button(
                "Compare A and B",
                on_click=lambda: ui.navigate.to(f"/compare/{first.value}/{second.value}"),
            ).props("outline")
