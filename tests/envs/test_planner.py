"""InfraMind-Planner-v0: one plan is an episode, and an executor of one's choice carries it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.errors import ActionError
from inframind_gym.policies import BasePolicy, Completed, Contexts, PolicySpec
from inframind_gym.simulator.workflow.state import PLAN, ROUTE
from inframind_gym.simulator.workflow.topology import TOPOLOGIES, graph
from tests.envs.streams import EXECUTOR, PLANNER, ByPlace, Rows, Seen

HERE = f"{__name__}:"
POLICY = "inframind_gym.policies.simple:LowestExpectedLatencyPolicy"


# Executors that note what they are asked, and some that fail


class Probe(ByPlace):
    """Routes by (query, node) and remembers all that it was told."""

    name = "probe"
    requires: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.resets: list[list[int]] = []
        self.asked: list[tuple[Seen, Contexts, Rows]] = []
        self.finished: list[tuple[int, Completed]] = []
        made.append(self)

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        super().reset(spec, seeds)
        self.resets.append(list(seeds))
        self.finished.clear()

    def routes(self, contexts: Contexts) -> Rows:
        assert (contexts["kind"] == ROUTE).all()
        return ByPlace.act_batch(self, np.empty(0, np.float32), contexts, np.empty(0, np.int64))

    def act_batch(self, observations: Seen, contexts: Contexts, rows: Rows) -> Rows:
        self.asked.append((observations.copy(), contexts.copy(), rows.copy()))
        return self.routes(contexts)

    def observe(self, completed: Completed, row: int) -> None:
        self.finished.append((row, completed.copy()))


made: list[Probe] = []
"""Probes in the order of their making: an environment gives no access to its executor."""


class Joint(Probe):
    """One that would also plan, and reads embeddings and its own telemetry."""

    requires: ClassVar[dict[str, Any]] = {
        "level": "joint",
        "observation": "full",
        "system_features": ["in_flight", "kv", "queue"],
        "scheduler": "fcfs",
    }

    def act_batch(self, observations: Seen, contexts: Contexts, rows: Rows) -> Rows:
        actions = np.full((len(rows), 9), 5, np.int64)
        actions[:, 8] = super().act_batch(observations, contexts, rows)
        return actions


COMPACT = {"observation": "compact"}  # of those that see load over slots
Compact = type("Compact", (Probe,), {"requires": COMPACT})
JointCompact = type("JointCompact", (Joint,), {"requires": Joint.requires | COMPACT})


class Insists(BasePolicy):
    """One that has a plan of its own; it gives `answer` as its routes."""

    name = "insists"
    requires: ClassVar[dict[str, Any]] = {"planner": {"topology": "IO", "num_agents": 2}}
    answer: ClassVar[Any] = [0]

    def act_batch(self, observations: Seen, contexts: Contexts, rows: Rows) -> Rows:
        return np.array(self.answer)


PlansOnly = type("PlansOnly", (Insists,), {"requires": {"level": "planner"}})
Faulty = type("Faulty", (Insists,), {"requires": {}})


def make(**arguments: Any) -> Any:
    """The environment itself, with index observations."""
    return gym.make(PLANNER, **{"observation": "index", **arguments}).unwrapped


def plans(count: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, np.array([6, 6] + [12] * 6), (count, 8))


def play(env: Any, count: int, seed: int = 0) -> list[tuple[Any, ...]]:
    """Some episodes with random plans: first observation, reward, info and record of each."""
    out = []
    observation, _ = env.reset(seed=seed)
    for plan in plans(count, seed):
        context = env.context()
        assert context["kind"] == PLAN
        _, reward, over, truncated, info = env.step(plan)
        assert over and not truncated
        (query,) = env.completed()
        out.append((observation, reward, info, query, context))
        observation, _ = env.reset()
    return out


@pytest.mark.parametrize("execution", ["parallel", "sequential"])
@pytest.mark.parametrize("executor", ["static_mix", "round_robin:Flash", "least_loaded", POLICY])
def test_an_episode_is_one_plan(executor: str, execution: str) -> None:
    env = make(executor=executor, execution=execution, num_queries=40)
    world = env.simulation.params
    run = play(env, 12, seed=4)
    for plan, (_, reward, info, query, context) in zip(plans(12, 4), run, strict=True):
        topology, agents = plan[0], plan[1] + 1
        assert (query["topology"], query["num_agents"]) == (topology, agents)
        assert query["num_nodes"] == graph(TOPOLOGIES[topology], agents).num_nodes
        roles = world.role_start, world.role_count
        start, count = (int(table[query["domain"]]) for table in roles)
        expected = [start + role % count for role in plan[2 : 2 + agents]]
        assert query["role"][:agents].tolist() == expected
        assert query["query"] == context["query"]
        assert reward == query["solved"] == info["solved"]
        assert info["latency_s"] == query["latency_s"]
        assert info["budget_s"] == query["budget_s"] == context["budget_s"]
        assert info["cost"] == info["episode_cost"]
        assert info["cost"] == pytest.approx(query["latency_s"] / query["budget_s"], rel=1e-9)
    assert {float(reward) for _, reward, *_ in run} == {0.0, 1.0}


@pytest.mark.parametrize("kind", [Probe, Joint, Compact, JointCompact])
def test_a_policy_does_what_it_does_by_hand(kind: type[Probe]) -> None:
    """The policy, asked call by call at the joint level, gives the same episodes."""
    ours = make(executor=HERE + kind.__name__, num_queries=15)
    probe = made[-1]
    by_hand = kind()
    requires = {"observation": "index", **by_hand.requires}
    theirs: Any = gym.make(EXECUTOR, num_queries=15, **{**requires, "level": "joint"}).unwrapped
    width = theirs.simulation.layout.size + issubclass(kind, Joint)
    ours.reset(seed=5)
    theirs.reset(seed=5)
    for plan in plans(10):
        probe.asked.clear()
        _, reward, _, _, info = ours.step(plan)
        observation, *_ = theirs.step([*plan, 0])
        costs, over = 0.0, False
        for seen, contexts, rows in probe.asked:
            assert not over
            assert rows.tolist() == [0]
            assert contexts[0] == theirs.context()
            assert np.array_equal(seen[0], observation[:width])
            route = by_hand.routes(contexts)[0]
            observation, by_hand_reward, over, _, by_hand_info = theirs.step([*plan, route])
            costs += by_hand_info["cost"]
        assert over
        assert (reward, info["cost"]) == (by_hand_reward, costs)
        assert ours.completed() == theirs.completed()
        assert ours.context() == theirs.context()
        ours.reset()
        theirs.reset()
        assert ours.context() == theirs.context()


@pytest.mark.parametrize(
    "executor", ["round_robin", HERE + "Probe", HERE + "Joint", HERE + "JointCompact"]
)
@pytest.mark.parametrize("features", [("queue", "e2e"), ("in_flight", "e2e", "kv")])
def test_infra_is_the_stream_s_observation_without_the_role(
    executor: str, features: tuple[str, ...]
) -> None:
    arguments = {"arrival_rate_per_min": 200.0, "num_queries": 60, "scheduler": "fcfs"}
    arguments |= {"system_features": list(features)}
    ours = make(executor=executor, observe="infra", observation="full", **arguments)
    theirs: Any = gym.make(EXECUTOR, level="planner", **arguments).unwrapped
    query_alone = make(executor=executor, observation="full", **arguments)
    index = make(executor=executor, observe="infra", **arguments)
    shown = []
    for seed in range(5):
        seen, _ = ours.reset(seed=seed)
        wide, _ = theirs.reset(seed=seed)
        assert np.array_equal(seen, np.delete(wide, np.arange(384, 768)))
        assert np.array_equal(query_alone.reset(seed=seed)[0], wide[:384])
        narrow, _ = index.reset(seed=seed)
        assert np.array_equal(narrow[1:], seen[384:])
        assert np.array_equal(theirs.simulation.tasks.embeddings[int(narrow[0])], seen[:384])
        spec = ours.policy_spec()
        assert spec.level == "planner"
        assert spec.layout.system_features == features
        budget_s = ours.context()["budget_s"]
        assert spec.layout.remaining_budget_s(seen) == pytest.approx(budget_s, rel=1e-5)
        shown.append(narrow[2:])
    own = 5 * (features[0] == "in_flight")  # a query that waits for its plan has no call
    assert not np.array(shown)[:, :own].any()
    assert np.array(shown)[:, own:].any(axis=0).all()
    observation = ours.step(plans(1)[0])[0]
    assert not observation[:385].any(), "the query is over"
    assert observation[385:].any()
    assert index.step(plans(1)[0])[0][0] == -1.0


def test_feedback_and_forgetting() -> None:
    """A seed makes everything begin anew; otherwise what was learned stays, over sweeps too."""
    env = make(executor=HERE + "Probe", num_queries=4)
    probe = made[-1]
    run = play(env, 6, seed=1)
    assert len(probe.resets) == 1
    assert [row for row, _ in probe.finished] == [0] * 6
    assert [records["query"][0] for _, records in probe.finished] == [
        q["query"] for *_, q, _ in run
    ]
    env.reset(options={"budget_s": 20.0})
    assert len(probe.resets) == 1
    env.reset(seed=2)
    env.reset(seed=1)
    assert len(probe.resets) == 3
    assert probe.resets[2] == probe.resets[0] != probe.resets[1]
    key = int(env.simulation.state.stream[0]["key"])
    assert key not in probe.resets[2], "the executor can't draw what the sweep draws"

    batch: Any = gym.make_vec(PLANNER, num_envs=3, executor=HERE + "Probe", num_queries=4)
    probe = made[-1]
    batch.reset(seed=1)
    assert probe.resets[0][0] == made[-2].resets[0][0]
    for plan in plans(6):
        batch.step(np.tile(plan, (3, 1)))
    assert len(probe.resets) == 1
    assert sorted(row for row, _ in probe.finished) == sorted([0, 1, 2] * 6)
    batch.reset()
    assert len(probe.resets) == 1
    batch.reset(seed=[1, 2, 3])
    assert probe.resets[1] == probe.resets[0]


def test_a_batch_asks_for_all_rows_that_still_run() -> None:
    batch: Any = gym.make_vec(
        PLANNER, num_envs=6, executor=HERE + "Probe", num_queries=20, background="none"
    )
    probe = made[-1]
    batch.reset(seed=0)
    actions = plans(6)
    actions[:, 0], actions[:, 1] = 2, np.arange(6)  # chains of one to six agents
    batch.step(actions)
    asked = [rows.tolist() for *_, rows in probe.asked]
    assert asked == [list(range(first, 6)) for first in range(6)]
    owners, records = batch.completed()
    assert owners.tolist() == list(range(6))
    assert records["num_nodes"].tolist() == list(range(1, 7))


@pytest.mark.parametrize("answer", [[15], [-1], [1.5], []], ids=str)
def test_an_executor_that_gives_no_route(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Faulty, "answer", answer)
    env = make(num_queries=3, executor=HERE + "Faulty")
    env.reset(seed=0)
    with pytest.raises(ActionError, match=r"0\.\.14|must be integers|have shape \(0,\)"):
        env.step(plans(1)[0])
