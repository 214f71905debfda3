"""The compiled state machine carries a query out as the plain reference does."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.simulator.server.state import FREE_IDS, USED_IDS
from inframind_gym.simulator.workflow.state import FINAL, FIRST, SECOND
from inframind_gym.simulator.workflow.topology import TOPOLOGIES
from tests.simulator.reference.workflow import FINAL_NODE, QueryResult, most_used
from tests.simulator.workflow.lone_query import Episode, make_lone, play, refer

EXECUTIONS = ("parallel", "sequential")
COUNTS = (1, 2, 3, 5, 6)
RTOL = 1e-9


@pytest.fixture(scope="module", params=EXECUTIONS)
def lone(request: pytest.FixtureRequest) -> tuple[str, gym.Env[Any, Any]]:
    return request.param, make_lone(execution=request.param)


@pytest.fixture(scope="module", params=EXECUTIONS)
def answers_twice(request: pytest.FixtureRequest) -> tuple[str, gym.Env[Any, Any]]:
    """Some roles make two calls."""
    return request.param, make_lone(execution=request.param, agents={"role_calls": True})


def routes(seed: int) -> NDArray[np.int64]:
    """Routes to two or three models, so that the most used model is often a tie."""
    rng = np.random.default_rng(seed)
    models = rng.choice(5, rng.integers(1, 4), replace=False)
    return rng.choice(models, 12) * 3 + rng.integers(0, 3, 12)


def both(
    lone: tuple[str, gym.Env[Any, Any]],
    topology: str,
    count: int,
    seed: int,
    budget_s: float,
    actions: NDArray[np.int64] | None = None,
) -> tuple[Episode, QueryResult]:
    execution, env = lone
    actions = routes(seed) if actions is None else actions
    episode = play(env, topology, count, seed, budget_s, actions)
    agents: Any = env.unwrapped
    role_calls = agents.simulation.config.agents.role_calls
    return episode, refer(
        episode, topology, count, budget_s, actions, execution, role_calls=role_calls
    )


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_query_goes_the_way_of_the_reference(
    lone: tuple[str, gym.Env[Any, Any]], topology: str, count: int
) -> None:
    for seed, budget_s in ((count, 300.0), (100 + count, 12.0)):
        ours, theirs = both(lone, topology, count, seed, budget_s)
        check(ours, theirs, budget_s, parallel=lone[0] == "parallel")


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_roles_that_answer_twice_go_the_way_of_the_reference(
    answers_twice: tuple[str, gym.Env[Any, Any]], topology: str
) -> None:
    more = 0
    for seed in range(6):
        ours, theirs = both(answers_twice, topology, 4, seed, 300.0)
        check(ours, theirs, 300.0, parallel=answers_twice[0] == "parallel")
        per_node = 2 if topology == "Reflection" else 1
        more += len(ours.calls) - 1 - per_node * len(theirs.decisions)
    assert more > 0 or topology == "Reflection"


def check(ours: Episode, theirs: QueryResult, budget_s: float, *, parallel: bool) -> None:
    check_calls(ours, theirs)
    check_decisions(ours, theirs)
    check_budget(ours, theirs)
    check_outcome(ours, theirs, budget_s)
    check_costs(ours, theirs, budget_s, parallel=parallel)


def check_calls(ours: Episode, theirs: QueryResult) -> None:
    assert len(ours.calls) == len(theirs.calls) == ours.query["calls"]
    arrival_s = ours.query["arrival_s"]
    for call, expected in zip(ours.calls, theirs.calls, strict=True):
        assert call["submit_s"] - arrival_s == pytest.approx(expected.start_s, rel=RTOL, abs=1e-9)
        assert call["finish_s"] - arrival_s == pytest.approx(expected.end_s, rel=RTOL, abs=1e-9)
        assert call["model"] == expected.model
        if expected.node == FINAL_NODE:
            assert call["phase"] == FINAL
        else:
            assert (call["node"], call["phase"]) == (expected.node, expected.repeat)
            assert call["strategy"] == expected.strategy


def check_decisions(ours: Episode, theirs: QueryResult) -> None:
    assert ours.contexts["node"].tolist() == [d.node for d in theirs.decisions]
    nodes = ours.query["num_nodes"]
    assert nodes == len(theirs.decisions)
    by_node = sorted(theirs.decisions, key=lambda d: d.node)
    assert ours.query["model"][:nodes].tolist() == [d.model for d in by_node]
    assert ours.query["strategy"][:nodes].tolist() == [d.strategy for d in by_node]


def check_budget(ours: Episode, theirs: QueryResult) -> None:
    position = 2  # behind the indices of query and role
    for observation, decision in zip(ours.observations, theirs.decisions, strict=True):
        b_rem = math.log(max(decision.remaining_budget_s, 1.0)) / math.log(300.0)
        assert observation[position] == pytest.approx(b_rem, rel=1e-6, abs=1e-7)


def check_outcome(ours: Episode, theirs: QueryResult, budget_s: float) -> None:
    query = ours.query
    assert query["latency_s"] == pytest.approx(theirs.latency_s, rel=RTOL)
    assert query["finish_s"] - query["arrival_s"] == pytest.approx(theirs.finished_s, rel=RTOL)
    assert query["budget_s"] == budget_s
    assert query["cost"] == pytest.approx(theirs.latency_s / budget_s, rel=RTOL)
    assert query["final_model"] == theirs.calls[-1].model
    assert query["final_model"] == most_used([d.model for d in theirs.decisions])
    assert query["output_tokens"] == ours.calls["output_tokens"].sum()
    assert query["prompt_tokens"] == ours.calls["prompt_tokens"].sum()
    assert query["truncated_calls"] == ours.calls["truncated"].sum()
    final = ours.calls[ours.calls["phase"] == FINAL]
    assert len(final) == 1
    assert query["solved"] == final["right"][0] == ours.rewards[-1] == ours.info["solved"]
    assert not any(ours.rewards[:-1])
    assert ours.info["latency_s"] == query["latency_s"]
    assert ours.info["budget_s"] == budget_s
    for node in range(query["num_nodes"]):
        own = ours.calls[(ours.calls["node"] == node) & (ours.calls["phase"] != FINAL)]
        lasted_s = own["finish_s"].max() - own["submit_s"].min()
        assert query["node_latency_s"][node] == pytest.approx(lasted_s, rel=1e-6)
        last = own[np.argmax(own["phase"])]  # a revised answer replaces the first
        assert bool(query["right"] >> node & 1) == bool(last["right"])


def check_costs(ours: Episode, theirs: QueryResult, budget_s: float, *, parallel: bool) -> None:
    assert sum(ours.costs) == pytest.approx(theirs.latency_s / budget_s, rel=RTOL)
    assert ours.info["episode_cost"] == pytest.approx(theirs.latency_s / budget_s, rel=RTOL)
    assert min(ours.costs) >= 0.0
    if parallel:
        np.testing.assert_allclose(ours.costs, theirs.step_costs, rtol=1e-9, atol=1e-12)
        waves = ours.contexts["wave"]
        for step in np.flatnonzero(waves[1:] == waves[:-1]):
            assert ours.costs[step] == 0.0, "only the last decision of a wave pays"
    # One call at a time: a step pays for what its own call adds to the slowest path. Within a wave
    # that is shared out otherwise than in the reference; the wave's sum is the same.
    for wave in range(int(ours.contexts["wave"].max()) + 1):
        steps = ours.contexts["wave"] == wave
        expected = np.array(theirs.step_costs)[steps].sum()
        assert np.array(ours.costs)[steps].sum() == pytest.approx(expected, rel=RTOL, abs=1e-12)


def test_published_step_pays_for_what_it_adds_to_the_slowest_path() -> None:
    env = make_lone(execution="sequential")
    actions = np.array([13, 1, 10, 1, 13, 1])  # the second is the slowest by far
    episode = play(env, "IO", 4, 5, 100.0, actions)
    took = episode.query["node_latency_s"][:4].astype(float)
    slowest = np.maximum.accumulate(took)
    expected = np.diff(slowest, prepend=0.0) / 100.0
    np.testing.assert_allclose(episode.costs, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_prompts_hold_the_answers_that_the_graph_lets_a_node_read(
    lone: tuple[str, gym.Env[Any, Any]], topology: str
) -> None:
    episode, _ = both(lone, topology, 4, 21, 300.0)
    env: Any = lone[1].unwrapped
    params = env.simulation.params
    task = episode.query["task"]
    own = int(params.task_tokens[task]) + int(
        params.overhead_tokens[params.response.task_profile[task]]
    )
    assert set(params.message_frac.tolist()) == {1.0}
    calls = episode.calls
    first, second = (
        {int(call["node"]): int(call["output_tokens"]) for call in calls[calls["phase"] == phase]}
        for phase in (FIRST, SECOND)
    )
    answer = first | second
    reads: dict[int, tuple[int, ...]] = {
        "IO": dict.fromkeys(range(4), ()),
        "CoT": dict.fromkeys(range(4), ()),
        "Reflection": dict.fromkeys(range(4), ()),
        "Chain": {j: (j - 1,) if j else () for j in range(4)},
        "FullConnected": {j: tuple(range(j)) for j in range(4)},
        "Debate": {j: () if j < 4 else (0, 1, 2, 3) for j in range(8)},
    }[topology]
    for call in calls:
        node = int(call["node"])
        if call["phase"] == FINAL:  # reads every agent's last answer
            heard = [answer[other] for other in sorted(answer)[-4:]]
        elif call["phase"] == SECOND:  # its own first answer
            heard = [first[node]]
        else:
            heard = [answer[other] for other in reads[node]]
        assert call["prompt_tokens"] == own + sum(heard)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_servers_have_room_for_every_call_at_once(
    lone: tuple[str, gym.Env[Any, Any]], topology: str
) -> None:
    # Compiled code does not check bounds: six agents at once, and the next call of one of them is
    # sent before the place of the last one is free.
    play(lone[1], topology, 6, 1, 100.0, np.full(12, 1))
    env: Any = lone[1].unwrapped
    cluster = env.simulation.cluster
    assert cluster.counts[0, USED_IDS] <= cluster.request.shape[1]
    assert cluster.counts[0, USED_IDS] == cluster.counts[0, FREE_IDS], "all were given back"


def test_a_stream_of_one_query_is_the_same_query(lone: tuple[str, gym.Env[Any, Any]]) -> None:
    execution, executor = lone
    stream = make_lone("InfraMind-Stream-v0", execution=execution)
    for topology in ("Debate", "Reflection"):
        alone = play(executor, topology, 3, 6, 60.0, routes(6))
        streamed = play(stream, topology, 3, 6, 60.0, routes(6))
        assert np.array_equal(streamed.calls, alone.calls)
        assert streamed.query == alone.query
        assert streamed.observations.tobytes() == alone.observations.tobytes()
        # A Stream pays once, when the query is over.
        assert streamed.costs[:-1] == [0.0] * (len(streamed.costs) - 1)
        assert streamed.costs[-1] == pytest.approx(alone.info["episode_cost"], rel=RTOL)


@pytest.mark.parametrize("scheduler", ["edf", "edf_late_last", "fcfs"])
def test_priority_of_calls(scheduler: str) -> None:
    env = make_lone(scheduler=scheduler, execution="parallel")
    episode = play(env, "Chain", 4, 1, 20.0, np.array([1, 1, 1, 1]))  # the slowest model: late
    deadline_s = episode.query["arrival_s"] + 20.0
    late = episode.calls["submit_s"] >= deadline_s
    assert late.any()
    assert not late.all()
    priority = episode.calls["priority"]
    if scheduler == "edf":
        assert np.all(priority == deadline_s)
    elif scheduler == "fcfs":
        assert len(set(priority.tolist())) == 1
    else:
        assert np.all(priority[~late] == deadline_s)
        assert priority[late].min() > 1e6 > deadline_s


def test_a_call_to_a_model_that_is_down_goes_to_the_next_one_that_is_up() -> None:
    env = make_lone(down_models=["llama-3b", "deepseek-32b"])
    episode = play(env, "IO", 5, 4, 100.0, np.array([0, 3, 6, 9, 12]))
    assert episode.query["model"][:5].tolist() == [1, 1, 2, 3, 1]
    assert episode.query["final_model"] == 1
