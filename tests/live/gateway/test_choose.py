"""Decisions: what policies see of a request, and what comes of what they say."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("httptools")

from inframind_gym.envs.layout import COMPACT
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.live.gateway.choose import (
    Predictor,
    SingleCallPolicy,
    World,
    ordinal,
    priority_s,
)
from inframind_gym.live.gateway.config import GatewayConfig
from inframind_gym.policies import BasePolicy, PolicySpec
from inframind_gym.simulator.estimate.packing import make_pool, parse_models, pool_yaml
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workflow.backend import Telemetry
from inframind_gym.simulator.workflow.state import PLAN, ROUTE

SEEN: list[tuple[Any, Any, PolicySpec]] = []
IN_FLIGHT = np.array([1, 2, 3, 4, 5])
POLLED = Telemetry(7, [95.0] * 5, [16.0, 8.0, 0.0, 4.0, 2.0], [10.0] * 5, [0.5] * 5)
WORLD = World(100.0, 0b10110, IN_FLIGHT, POLLED)


class Watching(BasePolicy):
    """Keeps what it is shown, and says model 4 with strategy 2."""

    name = "watching"
    requires: ClassVar[dict[str, Any]] = {"system_features": ["queue", "e2e", "kv", "in_flight"]}

    def act_batch(self, observations: Any, contexts: Any, rows: Any) -> Any:
        SEEN.append((observations.copy(), contexts.copy(), self.spec))
        return np.full(len(rows), self.spec.action(4, 2))


class Planning(Watching):
    """Plans a debate of five, wherever it may."""

    name = "planning"
    requires: ClassVar[dict[str, Any]] = {**Watching.requires, "level": "joint"}

    def act_batch(self, observations: Any, contexts: Any, rows: Any) -> Any:
        route = super().act_batch(observations, contexts, rows)
        return np.column_stack([np.tile([3, 4, 0, 1, 2, 3, 4, 5], (len(rows), 1)), route])


class Compact(Watching):
    requires: ClassVar[dict[str, Any]] = {"observation": "compact"}


class PlanningCompact(Planning):
    requires: ClassVar[dict[str, Any]] = {"observation": "compact", "level": "joint"}


class Unordered(Watching):
    requires: ClassVar[dict[str, Any]] = {"scheduler": "lifo"}


class Wrong(BasePolicy):
    name = "wrong"

    def act_batch(self, observations: Any, contexts: Any, rows: Any) -> Any:
        return np.full(len(rows), 99)


class Hanging(Watching):
    """Hangs once it is in service, and catches all that it can."""

    def act_batch(self, observations: Any, contexts: Any, rows: Any) -> Any:
        while contexts["budget_s"][0] == 13.0:
            with contextlib.suppress(Exception):
                time.sleep(1e9)
        return super().act_batch(observations, contexts, rows)


def policy_of(policy: str, **limits: float) -> SingleCallPolicy:
    name = policy if policy[0].islower() else f"{__name__}:{policy}"
    return SingleCallPolicy(GatewayConfig.model_validate({"policy": name, "limits": limits}))


def test_a_policy_sees_what_environments_show() -> None:
    made = policy_of("Watching")
    SEEN.clear()
    order = made.decide(WORLD, 98.0, 30.0, "Code")
    assert (order.model, order.strategy, order.priority_s) == (4, 2, 128.0)
    ((observation, context, spec),) = SEEN
    layout = spec.layout
    assert layout.remaining_budget_s(observation)[0] == pytest.approx(28.0, rel=1e-5)
    assert layout.queue_depth_req(observation)[0] == pytest.approx(POLLED.depth_req)
    assert layout.e2e_s(observation)[0] == pytest.approx(10.0, rel=1e-5)
    assert layout.kv_frac(observation)[0] == pytest.approx(0.5)
    assert layout.in_flight_req(observation)[0] == pytest.approx(IN_FLIGHT)
    assert int(layout.query_index(observation)[0]) == made.tasks["Code"]
    assert context["kind"][0] == ROUTE
    assert context["models_up"][0] == 0b10110
    assert (context["time_s"][0], context["arrival_s"][0], context["budget_s"][0]) == (100, 98, 30)
    assert (context["poll"][0], context["telemetry_age_s"][0]) == (7, 5.0)
    assert (context["num_agents"][0], context["num_nodes"][0]) == (1, 1)


@pytest.mark.parametrize("name", ["Compact", "PlanningCompact"])
def test_a_policy_that_wants_compact_observations_gets_them(name: str) -> None:
    made = policy_of(name)
    SEEN.clear()
    for second in range(3):
        made.decide(WORLD._replace(now_s=100.0 + second), 98.0 + second, 30.0, "Code")
    observation, _, spec = SEEN[-1]
    layout, slots = spec.layout, spec.max_num_seqs
    assert observation.shape == (1, layout.size + (spec.level == "joint"))
    assert layout.remaining_budget_s(observation)[0] == pytest.approx(28.0, rel=1e-5)
    assert np.expm1(observation[0, 1] * np.log(300)) == pytest.approx(3.0, rel=0.3)  # a minute
    columns = dict(zip(COMPACT, layout.servers(observation)[0].T, strict=True))
    assert columns["own_load"] == pytest.approx(IN_FLIGHT / slots)
    assert columns["queue_load"] == pytest.approx(POLLED.depth_req / slots)
    assert columns["ability"] == pytest.approx(spec.ability)
    flags = [seen[0, layout.size :].tolist() for seen, _, _ in SEEN[-2:]]
    assert flags == ([[1.0], [0.0]] if spec.level == "joint" else [[], []])


def test_a_plan_for_one_call_has_one_agent() -> None:
    made = policy_of("Planning")
    SEEN.clear()
    order = made.decide(WORLD, 98.0, 30.0, "Math")
    assert (order.model, order.strategy) == (4, 2)
    assert [context["kind"][0] for _, context, _ in SEEN] == [PLAN, ROUTE]
    assert SEEN[1][1]["num_agents"][0] == 1


def test_a_policy_that_hangs_is_interrupted_and_left_alone() -> None:
    made = policy_of("Hanging", policy_s=0.2)
    assert made.decide(WORLD, 98.0, 30.0, "Math").model == 4
    with pytest.raises(InfraMindError, match="the policy did not decide"):
        made.decide(WORLD, 98.0, 13.0, "Math")
    for budget_s in (13.0, 30.0):  # the next requests do not wait for it
        with pytest.raises(InfraMindError, match="not asked"):
            made.decide(WORLD, 98.0, budget_s, "Math")


def test_the_default_policy_routes_for_models_that_the_workload_does_not_know(
    tmp_path: Path,
) -> None:
    pool = make_pool("own", ["L4"] * 2, parse_models("qwen3-4b,other=llama-3.1-8b:fp8"))
    path = tmp_path / "own.yaml"
    path.write_text(pool_yaml(pool, (), "a test"))
    made = SingleCallPolicy(GatewayConfig(pool=str(path)))
    assert made.spec.models == ("qwen3-4b", "other")
    world = World(1.0, 0b11, np.zeros(2, np.int64), Telemetry(1, *([[0.0] * 2] * 4)))
    assert made.decide(world, 0.0, 60.0, "Math").model in (0, 1)


def test_policies_that_cannot_route_single_calls() -> None:
    for name in ("moa", "fixed_recipe:Debate:3:qwen-14b:Flash"):
        with pytest.raises(ConfigError, match="cannot route single calls"):
            policy_of(name)
    with pytest.raises(InfraMindError, match="99"):  # found when the gateway starts
        policy_of("Wrong")
    with pytest.raises(ConfigError, match=r"scheduler.*edf"):
        policy_of("Unordered")


def test_policies_remember_a_bounded_number_of_requests() -> None:
    numbers = [ordinal(count) for count in range(300_000)]
    assert max(numbers) < 1 << 12
    assert all(number % 128 == count % 128 for count, number in enumerate(numbers))
    assert min(numbers[1 << 12 :]) >= 1 << 11


def test_priorities_are_those_of_the_scheduler() -> None:
    rows = ("edf", 20.0, 20.0), ("edf_late_last", 20.0, 20.0 + 1e9), ("fcfs", 0.0, 0.0)
    for scheduler, in_time_s, late_s in rows:
        assert priority_s(scheduler, 20.0, 19.0) == in_time_s
        assert priority_s(scheduler, 20.0, 20.0) == late_s


def test_predictions_count_ones_own_calls_at_once() -> None:
    predictor = Predictor(load_pool("b200-2gpu"), policy_of("least_loaded").spec)

    def latency_s(polls: int, in_flight: Any, max_tokens: int | None = None, size: int = 0) -> Any:
        telemetry = replace(POLLED, polls=polls)
        return predictor.latency_s(telemetry, np.asarray(in_flight), size, max_tokens)

    own = np.array([16, 8, 0, 4, 2])
    usual = latency_s(7, own)
    fewer = latency_s(7, own - np.array([16, 0, 0, 0, 0]))
    assert fewer[0] < usual[0] and (fewer[1:] == usual[1:]).all()
    assert latency_s(7, own + np.array([0, 0, 40, 0, 0]))[2] > 2 * usual[2]
    assert (latency_s(8, [0] * 5) == usual).all()  # the calls of others
    assert (latency_s(7, own, max_tokens=10) < usual).all()
    assert (latency_s(7, own, size=100_000) > usual).all()
    assert math.isfinite(usual.sum())
