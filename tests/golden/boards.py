"""Frozen boards: a tiny suite of each family, its board and comparison as JSON and as tables."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from inframind_gym.evaluation.board import leaderboard, leaderboard_tables, load_results
from inframind_gym.evaluation.compare import Side, compare
from inframind_gym.evaluation.runner import run
from inframind_gym.evaluation.suite import load_suite
from inframind_gym.evaluation.tables import to_markdown
from tests.golden.net import digest_of

_LEFT: Final = ("folder", "timing", "damaged", "intervals", "pool", "arrivals")  # paths, times
SUITES: Final[dict[str, dict[str, Any]]] = {
    "routing": {
        "policies": ["random", "least_loaded", "fixed_recipe"],
        "workloads": ["mixed", "math"],
        "rates_per_min": [10, 100],
        "budgets_s": [30, "tiers"],
        "by_workload": {"math": {"num_queries": 12}},
        "seeds": 3,
        "num_queries": 15,
    },
    "posterior draws": {
        "policies": ["random", "least_loaded"],
        "workloads": ["math#0", "math#1"],
        "rates_per_min": [50],
        "budgets_s": [100],
        "seeds": 1,
        "num_queries": 20,
        "execution": "sequential",
        "arrivals": "burst",
    },
    "tracks": {
        "kind": "tracks",
        "tracks": ["tenants", "cost"],
        "scenarios": ["office", "code-half"],
        "loads": [0.6],
        "policies": ["random", "fixed_recipe"],
        "seeds": 2,
        "num_queries": 30,
    },
    "placement": {
        "kind": "placement",
        "policies": ["random", "greedy", "everywhere"],
        "clusters": ["h100-4gpu"],
        "demands": ["steady", "shifting"],
        "seeds": 2,
        "num_decisions": 6,
    },
    "assignment": {
        "kind": "assignment",
        "policies": ["round_robin", "q_seed", "optimum"],
        "scenarios": {
            "skewed": {"arrivals": "skewed", "num_tasks": 12},
            "queues": {"arrivals": "bursty", "num_tasks": 12, "load": "queue"},
        },
        "seeds": 2,
    },
    "token budget": {
        "kind": "token_budget",
        "policies": ["random", "frontload", "adaptive_roi"],
        "scenarios": {"standard": {}},
        "seeds": 4,
    },
    "coordination": {
        "kind": "coordination",
        "policies": ["random", "checked_rag", "seed_supervisor"],
        "scenarios": {"standard": {}},
        "seeds": 4,
    },
}


def results_of(name: str, place: Path) -> Path:
    """Play a suite in a folder; return the folder of its results."""
    path = place / "tiny.yaml"
    path.write_text(json.dumps({"name": "tiny", **SUITES[name]}), encoding="utf-8")
    run(load_suite(str(path)).resolve(), place / "results")
    return place / "results"


def play(name: str) -> str:
    """Play a suite; return digests of board, comparison and tables."""
    with tempfile.TemporaryDirectory() as place:
        results = load_results(results_of(name, Path(place)))
        board = leaderboard(results, num_resamples=500)
        first, second, *_ = results.policies
        between = compare(Side(results, first), Side(results, second), num_resamples=500)
    kept = {key: value for key, value in board.items() if key not in _LEFT}
    tables = "\n".join(map(to_markdown, leaderboard_tables({**board, "timing": ()})))
    best = board["ranking"][0]["policy"]
    overall = {k: between[k] for k in ("overall", "rows")}
    parts = (_rounded(kept), _rounded(overall), tables)
    return f"{best}: {' '.join(map(digest_of, parts))}"


def _rounded(content: Any) -> Any:
    """Return content with twelve figures of every float: the last differ between processors."""
    if isinstance(content, dict):
        return {str(key): _rounded(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_rounded(value) for value in content]
    return f"{content:.12g}" if isinstance(content, float) else content


CASES: dict[str, Callable[[], str]] = {name: partial(play, name) for name in SUITES}
