"""One run of each team and of a pool as parts of a page, from its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from statistics import fmean
from typing import Any, Final

from markupsafe import Markup

from inframind_gym.studio.parts import (
    COLOURS,
    Lines,
    bar,
    chip,
    each,
    folded,
    html,
    percent,
    stats,
    table,
)
from inframind_gym.teams.assignment.rules import AGENTS as ASSIGNED
from inframind_gym.teams.runs import Run
from inframind_gym.teams.token_budget.settings import AGENTS as BUDGETED

Events = Mapping[str, list[Any]]  # data of the events of a run, by kind
Parts = Iterator[Markup | Lines]
_NEWEST: Final = 25  # rows of a feed
_TYPES: Final = ("analysis", "coding", "research", "validation")
_ACTIONS: Final = [f"{agent}, {maker}" for agent in ASSIGNED for maker in ("openai", "anthropic")]
_STATES: Final = ("balanced", *(f"{agent}_hot" for agent in ASSIGNED))
_PANELS: Final = '<div class="panels">{}</div>'
_SECTION: Final = "<section><h2>{}</h2>{}</section>"
_STEPS: Final = {  # columns of the traces of two runs
    "token-budget": {
        **{"step": "action", "tokens": "cumulative_tokens:,", "quality": "quality:.0f"},
        **{"ROI": "roi:.4f", "ended": "cutoff_reason"},
    },
    "assignment": {"task": "task_type", "goes to": "key", "reward": "adjusted_reward:.3f"},
}
_HEAT: Final = (
    '<span class="heat{}" style="background: color-mix(in srgb, {} {:.0f}%, var(--paper))">'
    "{:.2f}</span>"
)
_ERROR: Final = '<p class="error">{}</p>'


def pool(run: Run, events: Events) -> Parts:
    """Yield servers, their queues over time, and decisions as they happen."""
    if not events["sample"]:
        yield Markup('<p class="hint">Waiting for the first sample of the servers…</p>')
        return
    servers, samples, decisions = events["servers"][0], events["sample"], events["decision"]
    now, names, simulated = samples[-1], servers["names"], servers["clock"] == "simulated"

    def share(key: str) -> str:
        return percent(now[key] / now["done"]) if now["done"] else "–"

    figures: dict[str, Any] = {
        "simulated time" if simulated else "watched for": f"{now['t']:.1f} s"
    }
    if simulated:
        figures |= {"arrived": f"{now['arrived']} of {servers['queries']}", "done": now["done"]}
        figures |= {"in time": share("in_time"), "solved": share("solved")}
        figures |= {"goodput": share("good")}
    elif "done" in now:
        figures |= {"open requests": now["in_flight"], "answers": f"{now['done']:,}"}
        figures |= {"in time": share("in_time"), "refused": f"{now['refused']:,}"}
    yield stats(figures)
    routed = Counter(one.get("server") for one in decisions)
    none, rows = [0] * len(names), []
    slots = servers.get("slots") or [max(8, running) for running in now["running"]]
    for m, name in enumerate(names):
        running, waiting, kv = (now[key][m] for key in ("running", "waiting", "kv"))
        peak = max(sample["waiting"][m] for sample in samples)
        state = "left alone" if now.get("left_alone", none)[m] else "up"
        row = {"name": name, "state": chip(state if now["up"][m] else "down")}
        row["running"] = bar(running / slots[m], f"{running}")
        row["waiting"] = bar(waiting / max(8, peak), f"{waiting}, most {peak}", 1)
        row["kv"] = bar(kv, percent(kv), 2)
        row["decisions"] = now["decisions"][m] if "decisions" in now else routed[m]
        rows.append({**row, "failed": now["failed"][m] if "failed" in now else None})
    columns = {"server": "{name}", "state": "{state}", "running": "{running}"}
    columns |= {"waiting": "{waiting}", "KV cache": "{kv}", ">decisions": "{decisions:,}"}
    columns |= {">failed": "{failed:,}"} if "failed" in now else {}
    about = servers.get("about", {})
    words = f"pool {about['pool']}, policy {about['policy']}" if about else ""
    yield html('<p class="hint">{}</p>', words)
    yield html(_SECTION, "Servers", table("servers", columns, rows))
    yield each(_ERROR, ([note] for note in now.get("notes", []) if note))
    x, label = [sample["t"] for sample in samples], "simulated s" if simulated else "s"
    for title, key, most in (
        *(("Waiting calls", "waiting", 4.0), ("Running calls", "running", 4.0)),
        ("KV cache in use", "kv", 0.1),
    ):
        lines = {name: [sample[key][m] for sample in samples] for m, name in enumerate(names)}
        yield Lines(title, label, x, lines, most, step=True)
    if not simulated:
        return
    ended = [
        {**q, "outcome": "solved" if q["solved"] else "wrong"}
        | {"late": "" if q["in_time"] else ", late"}
        for q in events["query"][: -_NEWEST - 1 : -1]
    ]
    columns = {">at s": "{t:.1f}", ">query": "{query}"}
    to = {**columns, "call": "{call}", "goes to": "{to}", ">left s": "{left_s:.1f}"}
    done = {**columns, ">calls": "{calls}", ">latency s": "{latency_s:.1f}"}
    done |= {">budget s": "{budget_s:.0f}", "outcome": "{outcome}{late}"}
    feed = table("decisions", to, decisions[: -_NEWEST - 1 : -1])
    sections = ("Last decisions", feed), ("Last queries", table("queries", done, ended))
    yield html(_PANELS, each(_SECTION, sections))


def token_budget(run: Run, events: Events) -> Parts:
    """Yield where the tokens of a run went, and what they bought."""
    steps, summary, budget = events["trace"], run.summary or {}, run.settings["budget"]
    calls = [step for step in steps if step["tokens"] > 0]
    last = steps[-1] if steps else {"cumulative_tokens": 0, "quality": 0.0}
    spent = last["cumulative_tokens"]
    preflight = (events["preflight"] or [{}])[-1]
    allocated = (events["allocation"] or [{}])[-1]
    used = Counter[str]()
    for call in calls:
        used[call["agent"]] += call["tokens"]
    figures: dict[str, Any] = {
        "quality": f"{last['quality']:.0f}",
        "tokens": f"{spent:,}",
        "calls": len(calls),
    }
    figures |= {"left": f"{budget - spent:,}", "task": preflight.get("complexity", "–")}
    figures |= {"least budget": f"{preflight.get('minimum_budget', 0):,}"}
    figures |= {"ended by": summary.get("ended_by") or "–"}
    if "true_quality" in summary:
        figures["true quality"] = f"{summary['true_quality']:.0f}"
    yield stats(figures)
    yield each(_ERROR, [[preflight["warning"]]] if "warning" in preflight else [])
    bars = []
    for i, agent in enumerate(BUDGETED):
        most = allocated.get(agent, budget)
        bars.append(bar(used[agent] / most, f"{used[agent]:,} of {most:,} allocated", i, agent))
    overhead = max(spent - used.total(), 0)
    bars.append(bar(overhead / budget, f"{overhead:,}", 4, "ratings, pre-flight"))
    bars.append(bar(spent / budget, f"{spent:,} of {budget:,} tokens", 7, "whole budget"))
    yield html(_SECTION, "Budget", Markup().join(bars))
    x = [0, *(call["cumulative_tokens"] for call in calls)]
    quality = {"quality": [0.0, *(call["quality"] for call in calls)]}
    yield Lines("Quality over tokens", "tokens spent", x, quality, 100.0, cutoffs(steps))
    roi = {
        agent: [None, *(1000.0 * c["roi"] if c["agent"] == agent else None for c in calls)]
        for agent in BUDGETED
    }
    roi["threshold"] = [1000.0 * run.settings.get("roi_threshold", 0.005)] * len(x)
    yield Lines("ROI, points per 1,000 tokens", "tokens spent", x, roi, 10.0, dashed="threshold")
    rows = [
        {**s, "folded": folded(s["output"])} if s["tokens"] else {**s, "roi": None, "tokens": None}
        for s in steps
    ]
    columns = {"step": "{action}", ">tokens": "{tokens:,}", ">in all": "{cumulative_tokens:,}"}
    columns |= {">quality": "{quality:.0f}", ">ROI": "{roi:.4f}", "ended": "{cutoff_reason}"}
    yield html(_SECTION, "Trace", table("trace", {**columns, "<answer": "{folded}"}, rows))
    output = [["Output", html('<div class="card">{}</div>', summary.get("output"))]]
    yield each(_SECTION, output if summary.get("output") else [])


def cutoffs(steps: Iterable[Mapping[str, Any]]) -> list[tuple[float, str]]:
    """Return tokens and words of the steps that cut an agent off or ended the run."""
    found = ((step["cumulative_tokens"], step["action"], step["cutoff_reason"]) for step in steps)
    return [(at, what if what == why else f"{what} ({why})") for at, what, why in found if why]


def assignment(run: Run, events: Events) -> Parts:
    """Yield rewards, shares and load states of a training, and what Q-learning has learned."""
    steps = events["iteration"]
    if not steps:
        yield Markup('<p class="hint">The team is being set up…</p>')
        return
    last, count = steps[-1], len(steps)

    def values(key: str) -> list[Any]:
        return [step[key] for step in steps]

    figures: dict[str, Any] = {"tasks": f"{count} of {run.settings['iterations']}"}
    figures |= {"mean reward": f"{fmean(values('adjusted_reward')):.3f}"}
    figures |= {"mean penalty": f"{fmean(values('load_penalty')):.3f}"}
    figures |= {"exploration": f"{last['epsilon']:.3f}", "imbalance": f"{last['imbalance']:.2f}"}
    figures |= {"load": last["next_load_state"].replace("_", " ")}
    figures |= {"cost": f"{sum(values('cost_usd')):.4f} USD"}
    figures |= {"row shifts": sum(shift is not None for shift in values("row_shift"))}
    figures |= {"penalties": sum(penalty > 0 for penalty in values("load_penalty"))}
    yield stats({**figures, "cool-downs": sum(values("cooled_down"))})
    by_type = {kind: [s for s in steps if s["task_type"] == kind] for kind in _TYPES}
    rewards = [fmean([s["adjusted_reward"] for s in own] or [0.0]) for own in by_type.values()]
    bars = {"Mean reward by task type": [
        bar(x, f"{x:.3f}", i, kind) for i, (x, kind) in enumerate(zip(rewards, _TYPES, strict=True))
    ]}  # fmt: skip
    for title, key, known in (
        ("Share of all tasks by agent (fair: 25 %)", "agent_id", ASSIGNED),
        ("Load states when a task was assigned", "load_state", _STATES),
    ):
        shares = {name: values(key).count(name) / count for name in known}
        bars[title] = [
            bar(x, percent(x), i, name.replace("_", " "))
            for i, (name, x) in enumerate(shares.items())
        ]
    yield html(_PANELS, each(_SECTION, ((t, Markup().join(own)) for t, own in bars.items())))
    x = [number + 1 for number in values("iteration")]
    two = {"raw": values("raw_reward"), "adjusted": values("adjusted_reward")}
    yield Lines("Rewards", "task", x, two)
    scores = ("relevance", "accuracy", "completeness", "agent_match")
    judged = {name.replace("_", " "): [s["scores"][name] for s in steps] for name in scores}
    yield Lines("Quality scores of the judge", "task", x, judged)
    recent = {a: [s["utilization"].get(a, 0.0) for s in steps] for a in ASSIGNED}
    recent["fair share"] = [1.0 / len(ASSIGNED)] * count
    yield Lines("Share of the last 8 tasks", "task", x, recent, dashed="fair share")
    yield Lines("Load penalty", "task", x, {"penalty": values("load_penalty")}, 0.2)
    yield Lines("Imbalance", "task", x, {"imbalance": values("imbalance")}, 0.2)
    found = {
        (s["load_state"], s["task_type"], s["action_idx"]): s["q"]
        for s in steps
        if s["q"] is not None
    }
    met = [state for state in _STATES if any(key[0] == state for key in found)]
    yield each(_SECTION, [(f"Q-table, {s.replace('_', ' ')}", _q_table(s, found)) for s in met])


def _q_table(state: str, found: Mapping[tuple[str, str, int], float]) -> Markup:
    """Return values of the actions in a load state; the best one by task type is outlined."""
    rows = []
    for kind in _TYPES:
        own = {
            a: found[state, kind, i] for i, a in enumerate(_ACTIONS) if (state, kind, i) in found
        }
        shown: dict[str, Any] = {}
        for action, value in own.items():
            ink = 8 + 42 * max(value, 0.0) / max(1e-9, *found.values())
            best = " best" if value == max(own.values()) else ""
            shown[action] = html(_HEAT, best, COLOURS[0], ink, value)
        rows.append({"kind": kind, **shown})
    columns = {"task type": "{kind}", **{action: f"{{{action}}}" for action in _ACTIONS}}
    return table(f"values, {state}", columns, rows)


def coordination(run: Run, events: Events) -> Parts:
    """Yield a question's answer with its sources, and how it came about."""
    decisions, calls = events["decision"], events["llm_attempt"]
    answer, refused = (events["answer"] or [{}])[0], events["query_refused"]
    verdict = answer.get("validation") or {}
    end_s = decisions[-1]["elapsed_ms"] / 1000.0 if decisions else 0.0
    figures: dict[str, Any] = {"ended by": "refusal" if refused else answer.get("ended_by", "–")}
    figures |= {"after": f"{answer.get('processing_time', end_s):.2f} s", "calls": len(calls)}
    figures |= {"validated": f"{answer['validation_score']:.2f}" if verdict else "not"}
    for key in ("input_tokens", "output_tokens"):
        figures[key.replace("_", " ")] = f"{sum(call.get(key) or 0 for call in calls):,}"
    figures |= {"context": f"{answer.get('context_tokens', 0):,} tokens"}
    yield stats(figures)
    wrong = [one["reason"] for one in refused]
    wrong += [
        f"{x['agent']} failed ({x['failure']}): {x['message']}" for x in events["agent_failed"]
    ]
    wrong += [
        f"{x['type']} ({x['severity']}): {x['description']}" for x in verdict.get("issues", [])
    ]
    yield each(_ERROR, zip(wrong))
    sources = [(doc["source"], doc["text"]) for doc in answer.get("documents", [])]
    item = "<li><details><summary>{}</summary><p>{}</p></details></li>"
    valid = chip("valid" if verdict.get("valid") else "invalid")
    about = (
        html(
            "<p>{} confidence {confidence:.2f}, suggests to {suggested_action}</p>",
            valid,
            **verdict,
        )
        if verdict
        else ""
    )
    shown = html('<div class="card">{}</div>{}', answer.get("content"), about)
    sections = [("Answer", shown), ("Sources", html("<ol>{}</ol>", each(item, sources)))]
    yield each(_SECTION, sections if answer else [])
    columns = {">#": "{iteration}", "decision": "{action}", ">at ms": "{elapsed_ms:.0f}"}
    columns |= {">passages": "{docs}", ">context": "{context_tokens:,}"}
    rows = [{**one, "choices": ", ".join(one["open"])} for one in decisions]
    trace = table("decisions", {**columns, "<open then": "{choices}"}, rows)
    columns = {"agent": "{agent}", "outcome": "{outcome}", ">s": "{latency_s:.2f}"}
    columns |= {">prompt": "{input_tokens:,}", ">answer": "{output_tokens:,}", "<text": "{folded}"}
    models = [{**call, "folded": folded(call.get("content") or "")} for call in calls]
    handoffs = [{"sender": one.get("name"), **one} for one in answer.get("handoffs", [])]
    columns_ = {
        ">#": "{iteration}",
        "from": "{sender}",
        "to": "{receiver}",
        "<message": "{content}",
    }
    yield each(
        _SECTION,
        (
            ("Decisions", trace),
            ("Calls of the model", table("calls of the model", columns, models)),
            ("Handoffs", table("handoffs", columns_, handoffs)),
        ),
    )


def comparison(found: Mapping[str, Any]) -> Parts:
    """Yield two runs side by side, see `teams.runs.compare`."""
    team = found["runs"][0]["team"]
    is_budget = team == "token-budget"
    rows = [
        {**one, "at": letter, "chip": chip(one["status"])}
        | {"settings": ", ".join(f"{key} {x}" for key, x in one["settings"].items())}
        for letter, one in zip("AB", found["runs"], strict=True)
    ]
    link = '<a href="/show/{run_id}">{run_id}</a>'
    yield table(
        "runs", {"": "{at}", "run": link, "status": "{chip}", "<settings": "{settings}"}, rows
    )
    curves = [dict(map(tuple, curve)) for curve in found["curves"]]
    if not is_budget:  # single rewards hide which run is ahead
        curves = [
            {
                at: s / n
                for n, (at, s) in enumerate(zip(own, accumulate(own.values()), strict=True), 1)
            }
            for own in curves
        ]
    x = sorted({at for own in curves for at in own})
    marks = [
        (at, f"{letter}: {words}")
        for letter, own in zip("AB", found["cutoffs"], strict=True)
        for at, words in (cutoffs(own) if is_budget else ())
    ]
    lines = {letter: [own.get(at) for at in x] for letter, own in zip("AB", curves, strict=True)}
    title, label = (
        ("Quality over tokens", "tokens spent") if is_budget else ("Mean reward so far", "task")
    )
    yield Lines(title, label, x, lines, 100.0 if is_budget else 1.0, marks)
    columns = {
        f"{side}: {head}": f"{{{side}_{spec}}}"
        for side in "AB"
        for head, spec in _STEPS[team].items()
    }
    steps = [
        {
            f"{s}_{key}": x
            for s, step in zip("AB", pair, strict=True)
            for key, x in (step or {}).items()
        }
        for pair in found["traces"]
    ]
    numbers = [
        {"name": key.replace("_", " ").replace(".", ": "), **x}
        for key, x in found["numbers"].items()
    ]
    columns_ = {
        "": "{name}",
        ">A": "{a:,.6g}",
        ">B": "{b:,.6g}",
        ">change %": "{change_percent:+.1f}",
    }
    ends = [{"words": words, "at": at} for at, words in marks]
    parts = [
        ("Traces side by side", table("traces", columns, steps)),
        ("Numbers", table("numbers", columns_, numbers)),
    ]
    cut = table("cut-offs", {"run and reason": "{words}", ">after tokens": "{at:,}"}, ends)
    yield each(_SECTION, [("Cut-offs", cut), *parts] if is_budget else parts)


VIEWS: Final[dict[str, Callable[[Run, Events], Parts]]] = {
    "pool": pool,
    "token-budget": token_budget,
    "assignment": assignment,
    "coordination": coordination,
}
