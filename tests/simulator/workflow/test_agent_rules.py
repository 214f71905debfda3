"""The rules of MasRouter's agents: roles that answer twice, and proven code that is handed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from numpy.typing import NDArray

from inframind_gym.configs import find_config
from inframind_gym.envs.core import checked_arguments
from inframind_gym.envs.routing_config import EnvConfig
from inframind_gym.envs.routing_simulation import RoutingSimulation
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.simulator.workflow.topology import FINAL, TOPOLOGIES, graph
from tests.simulator.workflow.backend_play import Sweep, at_random, both, play, same_sweep

QUERIES = 60
CODERS = {index for index, role in enumerate(ROLES) if role.writes_code}


def workload(folder: Path, name: str, **agents: Any) -> str:
    """A shipped workload with other rules of its agents."""
    data = yaml.safe_load(find_config("workloads", name).read_text(encoding="utf-8"))
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**data, "agents": agents}), encoding="utf-8")
    return str(path)


def sweep(path: str, **arguments: Any) -> Sweep:
    defaults = {"num_queries": QUERIES, "observation": "index", "record_calls": True}
    config = checked_arguments(
        EnvConfig, {**defaults, "workload": path, "level": "joint", **arguments}
    )
    simulation = RoutingSimulation(config, 1, one_query=False)
    return play(simulation, at_random(simulation, 4), seed=7, rate_per_min=30.0)


def calls_of(run: Sweep, query: int, node: int) -> NDArray[Any]:
    calls = run.calls
    return calls[(calls["query"] == query) & (calls["node"] == node) & (calls["phase"] != FINAL)]


@pytest.mark.parametrize("execution", ["parallel", "sequential"])
def test_proven_code_is_handed_on(tmp_path: Path, execution: str) -> None:
    run = sweep(workload(tmp_path, "mbpp", visible_tests=1.0), execution=execution)
    silent = spoken = 0
    for query in run.completed:
        drawn = graph(TOPOLOGIES[query["topology"]], int(query["num_agents"]))
        proven: set[int] = set()
        for node in range(query["num_nodes"]):
            before = {other for other in range(node) if drawn.predecessors[node] >> other & 1}
            own = calls_of(run, query["query"], node)
            if before & proven:
                assert len(own) == 0
                assert query["right"] >> node & 1
                assert query["node_latency_s"][node] == 0.0
                proven.add(node)
                silent += 1
                continue
            assert len(own) == drawn.calls_per_node
            if query["right"] >> node & 1 and int(query["role"][node]) in CODERS:
                proven.add(node)
            spoken += 1
        own = run.calls[run.calls["query"] == query["query"]]
        assert query["calls"] == len(own)
        assert (own["phase"] == FINAL).sum() == 1
        assert query["output_tokens"] == own["output_tokens"].sum()
    assert silent > 20 and spoken > 100


def test_tests_that_only_some_tasks_show(tmp_path: Path) -> None:
    path = workload(tmp_path, "mbpp", role_calls=True, visible_tests=0.7)
    same_sweep(*both(False, 7, 30.0, workload=path, level="joint", num_queries=QUERIES))


@pytest.mark.parametrize("execution", ["parallel", "sequential"])
def test_the_answer_of_an_agent_alone_is_the_querys(tmp_path: Path, execution: str) -> None:
    path = workload(tmp_path, "math", single_call=True)
    run, plain = sweep(path, execution=execution), sweep(workload(tmp_path, "math"))
    alone = 0
    for query in run.completed:
        drawn = graph(TOPOLOGIES[query["topology"]], int(query["num_agents"]))
        single = drawn.num_nodes == 1
        assert query["calls"] == drawn.num_nodes * drawn.calls_per_node + (not single)
        if single:
            alone += 1
            assert query["solved"] == query["right"] & 1
            assert query["final_model"] == query["model"][0]
            (last, *_) = sorted(calls_of(run, query["query"], 0)["finish_s"], reverse=True)
            assert query["finish_s"] == last
    assert alone >= 3
    assert {q["calls"] for q in plain.completed} != {q["calls"] for q in run.completed}
