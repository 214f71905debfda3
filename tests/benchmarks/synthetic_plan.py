"""A small plan for the results page, and results for it whose right numbers are known."""

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.results_page.plan import PlanConfig, runs_of, suites_of
from inframind_gym.benchmark.bounds import FluidBound
from inframind_gym.benchmark.cells import grid
from inframind_gym.benchmark.routing.suite import RoutingCell
from tests.benchmark.synthetic_results import drawn, write_folder

TRAINED = "python -c pass"
SOLVES = {"good": 0.9, "paper": 0.6, "replay": 0.6, "mas": 0.5, "oracle": 0.95, "worse": 0.7}
SCALE = {"good": 0.5, "paper": 0.8, "replay": 0.8, "mas": 2.0, "oracle": 0.4, "worse": 0.6}


def suite(folder: Path, name: str, **changes: Any) -> str:
    content = {
        "name": name,
        "policies": ["random"],
        "workloads": ["math", "mbpp"],
        "rates_per_min": [10, 100],
        "budgets_s": ["tiers"],
        "seeds": 3,
        "num_queries": 50,
        **changes,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def plan(folder: Path, **changes: Any) -> PlanConfig:
    def entry(name: str, kind: str, seeds: int = 0, **more: Any) -> dict[str, Any]:
        policy = f"{name}:{{folder}}" if seeds else name
        training = {"command": TRAINED, "folder": f"runs/{name}/{{seed}}", "seeds": seeds}
        own = {"training": training} if seeds else {}
        return {"name": name, "kind": kind, "policy": policy, **own, **more}

    content = {
        "agent": "good",
        "paper": "paper",
        "replayed": "replay",
        "oblivious": "mas",
        "bound": "oracle",
        "suites": {
            "default": suite(folder, "d"),
            "sequential": suite(folder, "p", execution="sequential"),
        },
        "entries": [
            entry("good", "agent", 3),
            entry("paper", "baseline", 2),
            entry("replay", "baseline", 2, protocols=["sequential"]),
            entry("mas", "baseline"),
            entry("oracle", "bound"),
            entry("worse", "ablation", 2, what="no EDF", changes={"scheduler": "fcfs"}),
        ],
        **changes,
    }
    return PlanConfig.model_validate(content)


def fluid(suite: Any, workload: str, rate: float, budget_s: Any, *, cache: Path) -> FluidBound:
    return FluidBound(workload, rate, budget_s, 0.91, 0.97, (0.96, 0.98), 0.95)


def fill_results(chosen: PlanConfig, folder: Path, leave_out: str = "", **overrides: Any) -> None:
    def make(cell: RoutingCell) -> np.ndarray:
        name, _, place = cell.policy.partition(":")
        luck = 0.02 * int(place[-1]) if place else 0.0
        return drawn(cell, SOLVES[name] - luck, SCALE[name])

    for entry in chosen.entries:
        for run in runs_of(entry, suites_of(chosen, overrides), folder):
            if entry.name != leave_out:
                fingerprints = dict.fromkeys(run.suite.policies, "1")
                settings = {"code of inframind_gym": "1"}
                write_folder(
                    run.folder, grid(run.suite), make, policies=fingerprints, settings=settings
                )
