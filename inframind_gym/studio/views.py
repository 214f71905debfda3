"""One run of each team and of a pool as parts of a page, from its events.

Parts are HTML whose values are escaped, and line charts (ECharts).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any, Final, NamedTuple

from markupsafe import Markup
from nicegui import ui

from inframind_gym.teams.assignment.rules import AGENTS as ASSIGNED
from inframind_gym.teams.assignment.rules import CRITERIA, LOAD_STATES, PROVIDERS, TASK_TYPES
from inframind_gym.teams.coordination.settings import FAULTS
from inframind_gym.teams.runs import Run
from inframind_gym.teams.token_budget.settings import AGENTS as BUDGETED
from inframind_gym.teams.token_budget.settings import load_settings

Events = Mapping[str, list[Any]]  # data of the events of a run, by kind
COLOURS: Final = (
    *("#2a6fb0", "#c8553d", "#2f8f5b", "#8a5fb5"),
    *("#b8860b", "#3a9ca6", "#b0477f", "#6b7280"),
)
_MOST_POINTS: Final = 600  # of a line
_GREY: Final = "#7a838d"  # readable on light and on dark
_NEWEST: Final = 25  # rows of a feed
_ACTIONS: Final = [f"{agent}, {maker}" for agent in ASSIGNED for maker in PROVIDERS]
_HINT: Final = '<p class="hint">{}</p>'
_HEAT: Final = (
    '<span class="heat{}" style="background: color-mix(in srgb, {} {:.0f}%, var(--paper))">'
    "{:.2f}</span>"
)


class _Gap:
    def __format__(self, _: str) -> str:
        return ""


class Row(dict[str, Any]):
    """Values by name for a template; what is missing or None is empty in any format."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__({key: x for key, x in values.items() if x is not None})

    def __missing__(self, _: str) -> _Gap:
        return _Gap()


def html(template: str, *values: Any, **named: Any) -> Markup:
    """Return a template with values, which are escaped unless they are `Markup`."""
    return Markup(template).format(*values, **named)


def each(template: str, rows: Iterable[Sequence[Any]]) -> Markup:
    """Return a template once for every row of values."""
    return Markup().join(html(template, *row) for row in rows)


def put(content: str, classes: str = "w-full") -> ui.html:
    """Add HTML of this module to the page."""
    return ui.html(content, sanitize=False).classes(classes)


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{share:.1%}" if 0.0 < share < 0.1 else f"{share:.0%}"


def chip(status: str) -> Markup:
    """Return a status as a coloured word."""
    return html('<span class="chip {0}">{0}</span>', status)


def folded(text: str) -> Markup:
    """Return the beginning of a text, which opens to all of it."""
    return html("<details><summary>{}</summary><pre>{}</pre></details>", text[:60], text)


def table(title: str, columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> Markup:
    """Return a table below its title.

    Columns are heads with the templates of their cells, which `rows` fill; heads of numbers begin
    with ">", of long texts with "<".
    """
    kinds = [{">": "number", "<": "wide"}.get(head[:1], "") for head in columns]
    cells = "".join(
        f'<td class="{kind}">{x}</td>' for kind, x in zip(kinds, columns.values(), strict=True)
    )
    body = [Markup(f"<tr>{cells}</tr>").format_map(Row(row)) for row in rows]
    heads = zip(kinds, (head.lstrip("<>") for head in columns), strict=True)
    return html(
        '<section><h2>{0}</h2><div class="scroll" tabindex="0" role="region" aria-label="{0}">'
        "<table><thead><tr>{1}</tr></thead><tbody>{2}</tbody></table></div>{3}</section>",
        *(title, each('<th scope="col" class="{}">{}</th>', heads), Markup().join(body)),
        "" if body else Markup('<p class="hint">Nothing yet.</p>'),
    )


def stats(**figures: Any) -> Markup:
    """Return figures with their names; "_" in a name stands for a space."""
    pairs = ((name.replace("_", " "), x) for name, x in figures.items())
    return html('<dl class="stats">{}</dl>', each("<div><dt>{}</dt><dd>{}</dd></div>", pairs))


def bar(share: float, text: str, colour: int = 0, name: str = "") -> Markup:
    """Return a bar with its number, and its name in front."""
    return html(
        '<div class="bar">{}<span class="track"><i style="width: {:.1f}%; background: {}"></i>'
        "</span><span>{}</span></div>",
        html('<span class="name">{}</span>', name) if name else "",
        *(100.0 * min(max(share, 0.0), 1.0), COLOURS[colour], text),
    )


def section(title: str, *content: Markup | str) -> Markup:
    """Return content below its title."""
    return html("<section><h2>{}</h2>{}</section>", title, Markup().join(content))


def panels(*sections: Markup) -> Markup:
    """Return sections side by side, where there is room."""
    return html('<div class="panels">{}</div>', Markup().join(sections))


def errors(texts: Iterable[str]) -> Markup:
    """Return errors, a paragraph each."""
    return each('<p class="error">{}</p>', ([text] for text in texts))


class Lines(NamedTuple):
    """A line chart."""

    title: str
    x_label: str
    x: Sequence[float]
    lines: Mapping[str, Sequence[float | None]]  # by name; None: no point
    marks: Iterable[tuple[float, str]] = ()  # vertical lines with their words
    dashed: str = ""  # name of the dashed line

    def options(self) -> dict[str, Any]:
        """Return the chart in ECharts' words."""
        every = -(-len(self.x) // _MOST_POINTS) or 1
        shown = sorted({*range(0, len(self.x), every), *range(len(self.x))[-1:]})
        points = {
            name: [[self.x[i], values[i]] for i in shown if values[i] is not None]
            for name, values in self.lines.items()
        }
        text = {"color": _GREY}
        series: list[dict[str, Any]] = [
            {
                **{"name": name, "type": "line", "data": line},
                "showSymbol": len(line) < 40,
                "lineStyle": {"type": "dashed" if name == self.dashed else "solid"},
            }
            for name, line in points.items()
        ]
        marks: list[dict[str, Any]] = []
        for at, word in self.marks:  # words point to the middle: at an edge they would be cut off
            side = "right" if at > self.x[-1] / 2 else "left"
            marks.append({"xAxis": at, "label": {"formatter": word, "align": side, **text}})
        series[0]["markLine"] = {"symbol": "none", "data": marks, "lineStyle": text}
        axis = {"type": "value", "axisLabel": {**text, "hideOverlap": True, "showMaxLabel": False}}
        axis |= {"splitLine": {"lineStyle": {"opacity": 0.25}}, "nameTextStyle": text}
        x_axis = {**axis, "name": self.x_label, "nameLocation": "middle", "nameGap": 24}
        is_count = all(isinstance(y, int) for values in self.lines.values() for y in values)
        last = ", ".join(f"{name} {line[-1][1]:,.4g}" for name, line in points.items() if line)
        return {
            "animation": False,
            "color": list(COLOURS),
            "aria": {"enabled": True, "label": {"description": f"{self.title}. Last: {last}."}},
            "grid": {"left": 44, "right": 16, "top": 48, "bottom": 40},
            "legend": {"top": 0, "left": 0, "itemGap": 8, "itemWidth": 14, "textStyle": text},
            "tooltip": {"trigger": "axis", "confine": True},
            "xAxis": {**x_axis, "min": 0.0, "max": "dataMax", "minInterval": 1},
            "yAxis": {**axis, "min": 0.0, "minInterval": int(is_count)},
            "series": series,
        }


class Live:
    """HTML and charts that are drawn again and again: in place as long as their kinds stay."""

    def __init__(self) -> None:
        self._parts: list[Any] = []  # ui.html or ui.echart
        self._kinds: list[type] = []
        self._place = ui.element("div").classes("w-full")

    def show(self, parts: Iterable[Markup | Lines]) -> None:
        """Draw the parts; charts that follow one another share a row."""
        new = list(parts)
        kinds: list[type] = [type(part) for part in new]
        if kinds != self._kinds:
            self._kinds, self._parts = kinds, []
            self._place.clear()
            with self._place:
                for i, kind in enumerate(kinds):
                    if kind is Markup:
                        self._parts.append(put(""))
                        continue
                    if i == 0 or kinds[i - 1] is Markup:
                        row = ui.element("div").classes("panels")
                    with row, ui.element("div"):
                        put(html("<h3>{}</h3>", new[i][0]))
                        self._parts.append(ui.echart({}).classes("chart"))
        for part, element in zip(new, self._parts, strict=True):
            if isinstance(part, Lines):
                element.options.update(part.options())
                element.update()
            else:
                element.content = part


Parts = Iterator[Markup | Lines]


def pool(run: Run, events: Events) -> Parts:
    """Yield servers, their queues over time, and decisions as they happen."""
    if not events["sample"]:
        waits = run.status == "running"
        yield html(_HINT, "Waiting for the first sample…" if waits else "No sample was taken.")
        return
    servers, samples, decisions = events["servers"][0], events["sample"], events["decision"]
    now, names, simulated = samples[-1], servers["names"], servers["clock"] == "simulated"
    clock, s = "simulated s" if simulated else "s", f"{now['t']:.1f} s"

    def share(key: str) -> str:
        return percent(now[key] / now["done"]) if now["done"] else "–"

    if simulated:
        arrived = f"{now['arrived']} of {servers['queries']}"
        shares = {"in_time": share("in_time"), "solved": share("solved"), "goodput": share("good")}
        yield stats(simulated_time=s, arrived=arrived, done=now["done"], **shares)
    elif "done" in now:
        counts = {"answers": f"{now['done']:,}", "in_time": share("in_time")}
        yield stats(watched_for=s, open_requests=now["in_flight"], refused=now["refused"], **counts)
    else:
        yield stats(watched_for=s)
    routed = Counter(one.get("server") for one in decisions)
    rows = []
    for m, name in enumerate(names):
        running, waiting, kv = (now[key][m] for key in ("running", "waiting", "kv"))
        slots = servers["slots"][m] if servers.get("slots") else max(8, running)
        peak = max(sample["waiting"][m] for sample in samples)
        row = {"name": name, "state": chip("up" if now["up"][m] else "down")}
        row |= {"running": bar(running / slots, f"{running}"), "kv": bar(kv, percent(kv), 2)}
        row["waiting"] = bar(waiting / max(8, peak), f"{waiting}, most {peak}", 1)
        row["decisions"] = now["decisions"][m] if "decisions" in now else routed[m]
        rows.append({**row, "failed": now["failed"][m] if "failed" in now else None})
    columns = {"server": "{name}", "state": "{state}", "running": "{running}"}
    columns |= {"waiting": "{waiting}", "KV cache": "{kv}"}
    columns |= {">decisions": "{decisions:,}"} if simulated or "decisions" in now else {}
    columns |= {">failed": "{failed:,}"} if "failed" in now else {}
    about = servers.get("about")
    yield html(_HINT, f"pool {about['pool']}, policy {about['policy']}" if about else "")
    yield table("Servers", columns, rows)
    yield errors(note for note in now.get("notes", []) if note)
    x = [sample["t"] for sample in samples]
    charts = {"Waiting calls": "waiting", "Running calls": "running", "KV cache in use": "kv"}
    for title, key in charts.items():
        lines = {name: [sample[key][m] for sample in samples] for m, name in enumerate(names)}
        yield Lines(title, clock, x, lines)
    if not simulated:
        return
    columns = {"call": "{call}", "goes to": "{to}", ">left s": "{left_s:.1f}"}
    last = decisions[: -_NEWEST - 1 : -1]
    yield table("Last decisions", columns, last)


def token_budget(run: Run, events: Events) -> Parts:
    """Yield where the tokens of a run went, and what they bought."""
    steps, summary, budget = events["trace"], run.summary or {}, run.settings["budget"]
    calls = [step for step in steps if step["tokens"] > 0]
    last = steps[-1] if steps else {"cumulative_tokens": 0, "quality": 0.0}
    by_agent = {a: sum(step["tokens"] for step in calls if step["agent"] == a) for a in BUDGETED}
    report: dict[str, Any] = {"tokens": last["cumulative_tokens"], "by_agent": by_agent}
    report |= summary.get("cost_report", {})  # it has the tokens of lost calls, too
    spent, used = report["tokens"], report["by_agent"]
    preflight = (events["preflight"] or [{}])[-1]
    allocated = (events["allocation"] or [{}])[-1]
    true = {"true_quality": f"{summary['true_quality']:.0f}"} if "true_quality" in summary else {}
    yield stats(
        quality=f"{last['quality']:.0f}",
        tokens=f"{spent:,}",
        agent_calls=len(calls),
        left=f"{budget - spent:,}",
        task=preflight.get("complexity", "–"),
        least_budget=f"{preflight.get('minimum_budget', 0):,}",
        ended_by=summary.get("ended_by") or "–",
        **true,
    )
    yield errors([preflight["warning"]] if "warning" in preflight else [])
    bars = []
    for i, agent in enumerate(BUDGETED):
        most = allocated.get(agent, budget)
        bars.append(bar(used[agent] / most, f"{used[agent]:,} of {most:,} allocated", i, agent))
    overhead = max(spent - sum(used.values()), 0)
    for i, name, tokens in ((4, "ratings, pre-flight", overhead), (7, "whole budget", spent)):
        bars.append(bar(tokens / budget, f"{tokens:,} of {budget:,} tokens", i, name))
    yield section("Budget", *bars)
    x = [0, *(call["cumulative_tokens"] for call in calls)]
    quality = {"quality": [0.0, *(call["quality"] for call in calls)]}
    yield Lines("Quality over tokens", "tokens spent", x, quality, cutoffs(steps))
    roi: dict[str, list[float | None]] = {
        agent: [None, *(1000.0 * c["roi"] if c["agent"] == agent else None for c in calls)]
        for agent in BUDGETED
    }
    roi["threshold"] = [1000.0 * load_settings().roi_threshold] * len(x)
    yield Lines("ROI, points per 1,000 tokens", "tokens spent", x, roi, dashed="threshold")
    rows = [
        {**s, "folded": folded(s["output"])} if s["tokens"] else {**s, "roi": None, "tokens": None}
        for s in steps
    ]
    columns = {"step": "{action}", ">tokens": "{tokens:,}", ">in all": "{cumulative_tokens:,}"}
    columns |= {">quality": "{quality:.0f}", ">ROI": "{roi:.4f}", "ended": "{cutoff_reason}"}
    yield table("Trace", {**columns, "<answer": "{folded}"}, rows)
    if summary.get("output"):
        yield section("Output", html('<div class="card">{}</div>', summary["output"]))


def cutoffs(steps: Iterable[Mapping[str, Any]]) -> list[tuple[float, str]]:
    """Return tokens and words of the steps that cut an agent off or ended the run."""
    ends = ((step["cumulative_tokens"], step["action"], step["cutoff_reason"]) for step in steps)
    return [(at, what if what == why else f"{what} ({why})") for at, what, why in ends if why]


def assignment(run: Run, events: Events) -> Parts:
    """Yield rewards, shares and load states of a training, and what Q-learning has learned."""
    steps, summary = events["iteration"], run.summary or {}
    if not steps:
        is_setup = run.status == "running"
        yield html(_HINT, "The team is being set up…" if is_setup else "No task was finished.")
        return
    last, count = steps[-1], len(steps)

    def values(key: str) -> list[Any]:
        return [step[key] for step in steps]

    paid_usd = sum(call.get("cost_usd", 0.0) for call in events["llm_attempt"])
    yield stats(
        tasks=f"{count} of {run.settings['iterations']}",
        mean_reward=f"{fmean(values('adjusted_reward')):.3f}",
        mean_penalty=f"{fmean(values('load_penalty')):.3f}",
        exploration=f"{last['epsilon']:.3f}",
        imbalance=f"{last['imbalance']:.2f}",
        load=last["next_load_state"].replace("_", " "),
        cost=f"{summary.get('cost_usd', paid_usd):.4f} USD",
        row_shifts=sum(shift is not None for shift in values("row_shift")),
        penalties=sum(penalty > 0 for penalty in values("load_penalty")),
        cool_downs=sum(values("cooled_down")),
    )
    wrong = {"judge_unreadable": "answers of the judge could not be read"}
    wrong["judge_failed"] = f"calls of the judge failed ({summary.get('judge_error')})"
    yield errors(
        f"{summary[key]} of {count} {words}: 0.5 stands for each of their scores"
        for key, words in wrong.items()
        if summary.get(key)
    )
    bars = []
    for i, kind in enumerate(TASK_TYPES):
        mean = fmean([s["adjusted_reward"] for s in steps if s["task_type"] == kind] or [0.0])
        bars.append(bar(mean, f"{mean:.3f}", i, kind))

    def shares(key: str, known: Iterable[str]) -> Iterator[Markup]:
        for i, name in enumerate(known):
            share = values(key).count(name) / count
            yield bar(share, percent(share), i, name.replace("_", " "))

    yield panels(
        section("Mean reward by task type", *bars),
        section("Share of all tasks by agent (fair: 25 %)", *shares("agent_id", ASSIGNED)),
        section("Load states when a task was assigned", *shares("load_state", LOAD_STATES)),
    )
    x = [number + 1 for number in values("iteration")]
    two = {"raw": values("raw_reward"), "adjusted": values("adjusted_reward")}
    yield Lines("Rewards", "task", x, two)
    judged = {name.replace("_", " "): [s["scores"][name] for s in steps] for name in CRITERIA}
    yield Lines("Quality scores of the judge", "task", x, judged)
    recent: dict[str, list[float]] = {
        a: [s["utilization"].get(a, 0.0) for s in steps] for a in ASSIGNED
    }
    recent["fair share"] = [1.0 / len(ASSIGNED)] * count
    yield Lines("Share of the last 8 tasks", "task", x, recent, dashed="fair share")
    yield Lines("Load penalty", "task", x, {"penalty": values("load_penalty")})
    yield Lines("Imbalance", "task", x, {"imbalance": values("imbalance")})
    # Values of the actions by load state; the best one of a task type is outlined.
    learned: dict[str, dict[str, dict[int, float]]] = {}
    for s in steps:
        if s["q"] is not None:
            kinds = learned.setdefault(s["load_state"], {name: {} for name in TASK_TYPES})
            kinds[s["task_type"]][s["action_idx"]] = s["q"]
    highest = max([1e-9, *(s["q"] or 0.0 for s in steps)])
    columns = {"task type": "{kind}", **{action: f"{{{action}}}" for action in _ACTIONS}}
    for state in sorted(learned, key=LOAD_STATES.index):
        rows: list[dict[str, Any]] = []
        for task_type, by_action in learned[state].items():
            rows.append({"kind": task_type})
            for i, q in by_action.items():
                best = " best" if q == max(by_action.values()) else ""
                heat = html(_HEAT, best, COLOURS[0], 8 + 42 * max(q, 0.0) / highest, q)
                rows[-1][_ACTIONS[i]] = heat
        yield table(f"Q-table, {state.replace('_', ' ')}", columns, rows)


def coordination(run: Run, events: Events) -> Parts:
    """Yield a question's answer with its sources, and how it came about."""
    decisions, calls = events["decision"], events["llm_attempt"]
    answer, refused = (events["answer"] or [{}])[0], events["query_refused"]
    verdict = answer.get("validation") or {}
    end_s = decisions[-1]["elapsed_ms"] / 1000.0 if decisions else 0.0
    yield stats(
        ended_by="refusal" if refused else answer.get("ended_by", "–"),
        after=f"{answer.get('processing_time', end_s):.2f} s",
        calls=len(calls),
        validated=f"{answer['validation_score']:.2f}" if verdict else "not",
        input_tokens=f"{sum(call.get('input_tokens') or 0 for call in calls):,}",
        output_tokens=f"{sum(call.get('output_tokens') or 0 for call in calls):,}",
        context=f"{answer.get('context_tokens', 0):,} tokens",
    )
    wrong, problems = "{agent} failed ({failure}): {message}", "{type} ({severity}): {description}"
    yield errors(
        [one["reason"] for one in refused]
        + [wrong.format_map(one) for one in events["agent_failed"]]
        + [problems.format_map(one) for one in verdict.get("issues", [])]
    )
    if answer:
        words = "<p>{} confidence {confidence:.2f}, suggests to {suggested_action}</p>"
        valid = chip("valid" if verdict.get("valid") else "invalid")
        about = html(words, valid, **verdict) if verdict else ""
        card = html('<div class="card">{}</div>{}', answer.get("content"), about)
        item = "<li><details><summary>{}</summary><p>{}</p></details></li>"
        cited = enumerate(answer.get("documents", []), 1)
        sources = each(item, [(f"[{n}] {doc['source']}", doc["text"]) for n, doc in cited])
        yield section("Answer", card) + section("Sources", html("<ul>{}</ul>", sources))
    columns = {">#": "{iteration}", "decision": "{action}", ">at ms": "{elapsed_ms:.0f}"}
    columns |= {">passages": "{docs}", ">context": "{context_tokens:,}", "<open then": "{choices}"}
    rows = [{**one, "choices": ", ".join(one["open"])} for one in decisions]
    yield table("Decisions", columns, rows)
    columns = {"agent": "{agent}", "outcome": "{outcome}", ">s": "{latency_s:.2f}"}
    columns |= {">prompt": "{input_tokens:,}", ">answer": "{output_tokens:,}", "<text": "{folded}"}
    models = [{**call, "folded": folded(call.get("content") or "")} for call in calls]
    yield table("Calls of the model", columns, models)
    columns = {">#": "{iteration}", "from": "{sender}", "to": "{receiver}", "<message": "{content}"}
    handoffs = [{"sender": one.get("name"), **one} for one in answer.get("handoffs", [])]
    for one in handoffs:  # what an agent hands back is named by its type, unless it failed
        if one.get("kind") == "handoff_back" and one.get("content") not in FAULTS:
            one["content"] = None
    yield table("Handoffs", columns, handoffs)


def comparison(result: Mapping[str, Any]) -> Parts:
    """Yield two runs side by side, see `teams.runs.compare`."""
    is_budget = result["runs"][0]["team"] == "token-budget"
    rows = [
        {**one, "at": letter, "chip": chip(one["status"])}
        | {"settings": ", ".join(f"{key} {x}" for key, x in one["settings"].items())}
        for letter, one in zip("AB", result["runs"], strict=True)
    ]
    columns = {"": "{at}", "run": '<a href="/show/{run_id}">{run_id}</a>', "status": "{chip}"}
    yield table("Runs", {**columns, "<settings": "{settings}"}, rows)
    curves = [{0: 0.0, **dict(map(tuple, curve))} for curve in result["curves"]]
    if not is_budget:  # single rewards hide which run is ahead
        sums = [accumulate(reward for _, reward in curve) for curve in result["curves"]]
        curves = [{n: total / n for n, total in enumerate(totals, 1)} for totals in sums]
    x = sorted({at for curve in curves for at in curve})
    lines = {
        letter: [curve.get(at) for at in x] for letter, curve in zip("AB", curves, strict=True)
    }
    marks: list[tuple[float, str]] = []
    if is_budget:
        for letter, steps in zip("AB", result["cutoffs"], strict=True):
            marks += [(at, f"{letter}: {words}") for at, words in cutoffs(steps)]
        yield Lines("Quality over tokens", "tokens spent", x, lines, marks)
        ends = [{"words": words, "at": at} for at, words in marks]
        columns = {"run and reason": "{words}", ">after tokens": "{at:,}"}
        yield table("Cut-offs", columns, ends)
        shown = {"{}: step": "action", ">{}: tokens": "cumulative_tokens:,"}
        shown |= {">{}: quality": "quality:.0f", ">{}: ROI": "roi:.4f"}
        shown["{}: ended"] = "cutoff_reason"
    else:
        yield Lines("Mean reward so far", "task", x, lines)
        shown = {"{}: task": "task_type", "{}: goes to": "key"}
        shown[">{}: reward"] = "adjusted_reward:.3f"
    columns = {head.format(s): f"{{{s}_{spec}}}" for s in "AB" for head, spec in shown.items()}
    traces: list[dict[str, Any]] = []
    for pair in result["traces"]:
        traces.append({})
        for s, step in zip("AB", pair, strict=True):
            traces[-1] |= {f"{s}_{key}": x for key, x in (step or {}).items()}
            if step and step.get("tokens") == 0:  # no call: its ROI is that of the last one
                traces[-1][f"{s}_roi"] = None
    yield table("Traces side by side", columns, traces)
    numbers = [
        {"name": key.replace("_", " ").replace(".", ": "), **x}
        for key, x in result["numbers"].items()
    ]
    columns = {"": "{name}", ">A": "{a:,.6g}", ">B": "{b:,.6g}"}
    yield table("Numbers", {**columns, ">change %": "{change_percent:+.1f}"}, numbers)


VIEWS: Final[dict[str, Callable[[Run, Events], Parts]]] = {
    **dict.fromkeys(("pool", "servers", "gateway"), pool),
    "token-budget": token_budget,
    "assignment": assignment,
    "coordination": coordination,
}
