"""The tables of docs/results/published.md: measurements of the published systems beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from benchmarks.pages import NONE, table
from benchmarks.record import RECORDS, origin_text, read_board

PUBLISHED: Final = Path(__file__).with_name("published.yaml")
RUNS: Final = ("published", "published_fcfs")  # the same suite under two schedulers
SEEDS: Final = "published_seeds"  # trainings of `inframind`, each played in both modes
STANDS_FOR: Final = {"inframind": ("inframind",), "masrouter": ("static_mix", "masrouter")}
METRICS: Final = {"accuracy": 100.0, "latency_mean_s": 1.0, "slo_100s": 100.0}  # scale here


def published_blocks(records: Path = RECORDS) -> dict[str, str]:
    """Return the tables of the page by name."""
    systems = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))["systems"]
    boards = [read_board(name, records) for name in RUNS if (records / name).is_dir()]
    ours = _means(boards)
    columns = [(s, None) for s in STANDS_FOR] + [(s, p) for s in STANDS_FOR for p in STANDS_FOR[s]]
    body = []
    for workload, rates in systems["inframind"].items():
        for rate in rates:
            there = {system: systems[system][workload][rate] for system in STANDS_FOR}
            cells = [
                _text(ours.get((policy, workload, rate), {}) if policy else there[system])
                for system, policy in columns
            ]
            body.append([f"{workload}, {rate}/min", *cells])
    heads = [f"{s}, measured elsewhere" if p is None else f"`{p}`, here" for s, p in columns]
    blocks = {"beside": table(["", *heads], body)}
    if (records / SEEDS).is_dir():
        boards.append(read_board(SEEDS, records))
        blocks["seeds"] = _seeds_table(_means(boards[-1:]))
    return blocks | {"origin": "\n\n".join(origin_text(board["origin"]) for board in boards)}


def _seeds_table(means: Mapping[tuple[str, str, float], Mapping[str, float]]) -> str:
    """Tabulate trainings: means over the workloads at a rate, and the cells that collapse."""
    policies = sorted({policy for policy, *_ in means})
    rates = sorted({rate for *_, rate in means})
    body = []
    for policy in policies:
        _, path, *mode = policy.split(":")
        cells = {key[1:]: scores for key, scores in means.items() if key[0] == policy}
        texts = []
        for rate in rates:
            of_rate = [scores for (_, at), scores in cells.items() if at == rate]
            texts.append(_text({m: float(np.mean([s[m] for s in of_rate])) for m in METRICS}))
        late = sum(scores["slo_100s"] < 50.0 for scores in cells.values())
        played = f"{Path(path).parent.name}, {'sampled' if mode else 'likeliest'}"
        body.append([played, *texts, f"{late} of {len(cells)}"])
    heads = ["", *(f"{rate:g}/min" for rate in rates), "cells with most answers after 100 s"]
    return table(heads, body)


def _means(boards: list[dict[str, Any]]) -> dict[tuple[str, str, float], dict[str, float]]:
    """Return policy, workload, rate -> means over the budgets, in the unit of the measurements."""
    found: dict[tuple[str, str, float], list[list[float]]] = {}
    for row in (row for board in boards for row in board["rows"]):
        key = (row["policy"], row["workload"], row["rate_per_min"])
        found.setdefault(key, []).append([row[name] for name in METRICS])
    return {
        key: dict(zip(METRICS, np.mean(rows, axis=0) * list(METRICS.values()), strict=True))
        for key, rows in found.items()
    }


def _text(scores: Mapping[str, float]) -> str:
    """Return solved %, mean latency and share within 100 s; a dash for what is not known."""
    solved, latency_s, within = (scores.get(name) for name in METRICS)
    if solved is None:
        return NONE
    return f"{solved:.1f} / {latency_s:.0f} / {NONE if within is None else format(within, '.1f')}"
