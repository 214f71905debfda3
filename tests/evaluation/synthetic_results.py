"""Results folders whose right numbers are known, made without any environment."""

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from inframind_gym.evaluation.cells import Cell
from inframind_gym.evaluation.queries import columns_of
from inframind_gym.evaluation.routing import RoutingSuite
from inframind_gym.evaluation.store import Finished, ResultStore
from inframind_gym.simulator.workflow.state import CALL, COMPLETED
from inframind_gym.simulator.workflow.topology import STRATEGIES, TOPOLOGIES

NAMES = {"models": ["big", "small"], "strategies": list(STRATEGIES), "topologies": list(TOPOLOGIES)}
TASKS = SimpleNamespace(ids=("t/0", "t/1"), datasets=("math", "math"))
SPEC: Any = SimpleNamespace(max_num_seqs=np.full(8, 16))
SIMULATION: Any = SimpleNamespace(tasks=TASKS, policy_spec=lambda: SPEC)


def routing(policy: str, *place: Any) -> Cell:
    """The cell of a policy, a workload, a rate, a budget and a seed."""
    return RoutingSuite.cell(policy, *place[:-1], seed=place[-1])


def header(**changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "settings": {"num_queries": 50, "simulator": 2},
        "packages": {},
        "python": "3.11",
        "machine": {"processor": "a processor", "cores": 2},
        "policies": {"good": {"version": 1}, "bad": {"version": 1}},
        "workloads": {"w": "1"},
        "suite": {
            "name": "synthetic",
            "policies": ["good", "bad"],
            "pool": "b200-2gpu",
            "tasks": "builtin",
            "backend": "surrogate",
        },
        "names": NAMES,
        "runs": [{"command": ["inframind"]}],
        "planned": {},
        "left_out": {},
        "bounds": [],
    }
    return {**content, **changes}


def completed(
    solved: np.ndarray, latency_s: np.ndarray, budget_s: float = 30.0, model: int = 0
) -> np.ndarray:
    """Queries of two nodes each, every 2 s, in reversed order of arrival."""
    records = np.zeros(len(solved), COMPLETED)
    records["query"] = np.arange(len(solved))
    records["arrival_s"] = 2.0 * np.arange(len(solved))
    records["latency_s"] = latency_s
    records["finish_s"] = records["arrival_s"] + latency_s
    records["budget_s"] = budget_s
    records["cost"] = latency_s / budget_s
    records["solved"] = solved
    records["num_nodes"] = 2
    records["calls"] = 3
    records["num_agents"] = 2
    records["model"][:, :2] = model
    records["strategy"][:, :2] = (0, 2)
    records["prompt_tokens"] = 100
    records["output_tokens"] = 50
    return records[::-1]


def calls_of(records: np.ndarray) -> np.ndarray:
    """One call of each query, which waited 2 s and wrote all its tokens."""
    calls = np.zeros(len(records), CALL)
    calls["query"], calls["output_tokens"] = records["query"], records["output_tokens"]
    calls["admitted_s"] = 2.0
    return calls


def result(cell: Cell, records: np.ndarray) -> Finished:
    return Finished(cell, id_of(cell), columns_of(SIMULATION, records, calls_of(records)))


def id_of(cell: Cell) -> str:
    return cell.id("settings", "policy")


def plan_of(cells: Iterable[Cell]) -> dict[str, dict[str, str]]:
    plan: dict[str, dict[str, str]] = {}
    for cell in cells:
        plan.setdefault(cell.policy, {})[id_of(cell)] = cell.where
    return plan


def write_folder(
    folder: Path, cells: Iterable[Cell], make: Callable[[Cell], np.ndarray], **changes: Any
) -> None:
    with ResultStore(folder, header(**changes)) as store:
        for cell in cells:
            store.commit([result(cell, make(cell))])


def drawn(cell: Cell, p_solved: float, scale_s: float, n: int = 50) -> np.ndarray:
    """Queries with common random numbers: the sweep's seed does not depend on the policy."""
    rng = np.random.default_rng(cell.episode_seed)
    return completed(rng.random(n) < p_solved, scale_s * rng.exponential(20.0, n), 30.0)
