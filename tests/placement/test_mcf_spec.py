"""The linear min-cost flow, its numbers worked out by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inframind_gym.envs.placement.context import PlacementContext, PlacementSpec
from inframind_gym.policies.placement.mcf_spec import SpecCosts, solve_spec, spec_costs
from inframind_gym.simulator.placement.state import ABSENT, ACTIVE, SLEPT

# Three models A, B, C: t_sleep 1, 2, 3; t_wake 2, 3, 4; t_load 20, 30, 40; t_offload 4, 5, 6;
# slept memory 1,000, 1,500 and 2,000 MB. GPUs of 80,000 MB, alpha 0.05: 4,000 MB may sleep.


def toy_spec(gpus: int) -> PlacementSpec:
    slept = np.array([1000.0, 1500.0, 2000.0])
    return PlacementSpec(
        models=("A", "B", "C"),
        tp=np.ones(3, np.int64),
        slots=np.full(3, 8),
        queue=np.full(3, 8),
        active_mb=np.full(3, 50_000.0),
        slept_mb=slept,
        slept_tp1_mb=slept,
        base_s=np.full(3, 0.01),
        per_seq_s=np.full(3, 0.001),
        vram_mb=np.full(gpus, 80_000.0),
        slept_limit_mb=np.full(gpus, 4000.0),
        decision_interval_s=5.0,
        routing_interval_s=1.0,
    )


def toy_context(state: list[list[int]], **changes: Any) -> PlacementContext:
    """One row; what is not given is idle."""
    on_gpu = np.array(state, np.int8)
    gpus = len(state)
    awake = on_gpu == ACTIVE
    of_gpu = {"drain_s": 0.0, "drain_total_s": 0.0, "in_flight": 0, "free_mb": 0.0}
    of_model = {"waiting": 0, "age_sum_s": 0.0, "outstanding": 0, "arrived": 0, "loading": False}
    given: dict[str, Any] = {
        "time_s": 100.0,
        "state": on_gpu,
        "stable": [True] * gpus,
        "active": np.where(awake.any(-1), awake.argmax(-1), -1),
        **{name: [value] * gpus for name, value in {**of_gpu, "foreign_mb": 0.0}.items()},
        **{name: [value] * 3 for name, value in {**of_model, "latency_s": 1.0}.items()},
        "wake_s": [2.0, 3.0, 4.0],
        "sleep_s": [1.0, 2.0, 3.0],
        "load_s": [20.0, 30.0, 40.0],
        "offload_s": [4.0, 5.0, 6.0],
        "mask": np.ones((gpus, 4), np.bool_),
        **changes,
    }
    return PlacementContext(**{name: np.array([value]) for name, value in given.items()})


@pytest.mark.parametrize(
    ("state", "outstanding", "ages_s", "switch", "activate", "chosen"),
    [
        # A ACTIVE, nothing asleep. For B: 0 + 1,000 + 1,500 = 2,500 <= 4,000: sleep. 3 requests
        # need A: t_sleep(A) + 3·t_wake(A) = 1 + 6 = 7. For C: 3,000 <= 4,000: 7 as well. For A
        # itself: 0. Sink: A is active: 0; B and C are not there: t_load = 30 and 40. B's calls have
        # waited 12 s. Totals: A 0, B 7 + 30 - 12 = 25, C 47.
        ((ACTIVE, ABSENT, ABSENT), (3, 2, 1), (0, 12, 0), (0, 7, 7), (0, 30, 40), {0: 0}),
        # A ACTIVE, C SLEPT. For B: 2,000 + 1,000 + 1,500 = 4,500 > 4,000: offload the one of least
        # t_offload + requests·t_load: A 4 + 2·20 = 44, C 6 + 0·40 = 6: C, so 6. For C: 2,000 +
        # 1,000 + 2,000 = 5,000 > 4,000, C itself counted twice: 6 too. Sink: B t_load 30, C sleeps
        # here: t_wake 4. C is not needed.
        ((ACTIVE, ABSENT, SLEPT), (2, 1, 0), (0, 0, 0), (0, 6, 6), (0, 30, 4), {0: 0}),
        # As before, but 5 requests need C: A 4 + 1·20 = 24, C 6 + 5·40 = 206: A goes, for 24.
        ((ACTIVE, ABSENT, SLEPT), (1, 1, 5), (0, 0, 0), (0, 24, 24), (0, 30, 4), {0: 0}),
        # Nothing ACTIVE, B SLEPT. For A: 1,500 + 0 + 1,000 = 2,500: sleep, of no model: 0.
        ((ABSENT, SLEPT, ABSENT), (1, 1, 0), (0, 0, 0), (0, 0, 0), (20, 3, 40), {0: 1}),
        # A defect: every GPU must act. B is needed by one request that has not waited yet; A is
        # ACTIVE and not needed: the GPU takes B for 1 + 0 + 30 = 31 s rather than nothing.
        ((ACTIVE, ABSENT, ABSENT), (0, 1, 0), (0, 0, 0), (0, 1, 1), (0, 30, 40), {0: 1}),
        # No model is needed.
        ((ACTIVE, ABSENT, ABSENT), (0, 0, 0), (0, 0, 0), (0, 1, 1), (0, 30, 40), {}),
    ],
)
def test_one_gpu_worked_out(
    state: Any, outstanding: Any, ages_s: Any, switch: Any, activate: Any, chosen: Any
) -> None:
    context = toy_context([state], outstanding=outstanding, age_sum_s=np.array(ages_s, float))
    costs = spec_costs(toy_spec(1), context, 0)
    assert costs.switch.tolist() == [list(switch)]
    assert costs.activate.tolist() == [list(activate)]
    assert costs.relief.tolist() == list(ages_s)
    assert costs.models.tolist() == np.flatnonzero(outstanding).tolist()
    assert solve_spec(costs) == chosen


def test_defect_gpus_pile_onto_one_hot_model() -> None:
    """Four GPUs, each with A ACTIVE; B's calls have waited 100 s in all: each GPU for itself finds
    1 + 2·2 + 30 - 100 = -65 < 0, and all four take B. The drain latencies are paid by every flow
    alike."""
    context = toy_context(
        [[ACTIVE, ABSENT, ABSENT]] * 4,
        outstanding=[2, 10, 0],
        age_sum_s=[0.0, 100.0, 0.0],
        drain_total_s=[2.5, 0.5, 0.0, 0.0],
    )
    costs = spec_costs(toy_spec(4), context, 0)
    assert costs.drain.tolist() == [2.5, 0.5, 0.0, 0.0]
    assert solve_spec(costs) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_unstable_gpus_and_loading_models_stay_out() -> None:
    context = toy_context(
        [[ACTIVE, ABSENT, ABSENT], [ABSENT, ABSENT, ABSENT]],
        outstanding=[1, 9, 1],
        stable=[False, True],
        loading=[False, True, False],
        age_sum_s=[0.0, 900.0, 0.0],
    )
    costs = spec_costs(toy_spec(2), context, 0)
    assert costs.gpus.tolist() == [1]
    assert costs.models.tolist() == [0, 2]
    assert solve_spec(costs) == {1: 0}  # load A 20 s, load C 40 s


@settings(max_examples=40, deadline=None)
@given(gpus=st.integers(1, 3), models=st.integers(1, 3), data=st.data())
def test_the_flow_is_the_cheapest(gpus: int, models: int, data: st.DataObject) -> None:
    """Against all M^G assignments, with a total to a millisecond a term."""
    number = st.integers(0, 50_000).map(lambda n: n * 1e-3)

    def table(*shape: int) -> Any:
        size = int(np.prod(shape))
        return np.array(data.draw(st.lists(number, min_size=size, max_size=size))).reshape(shape)

    costs = SpecCosts(
        gpus=np.arange(gpus),
        models=np.arange(models),
        drain=table(gpus),
        switch=table(gpus, models),
        relief=table(models),
        activate=table(gpus, models),
    )

    def total(choice: Sequence[int]) -> float:
        on = costs.gpus, list(choice)
        cost = costs.drain + costs.switch[on] + costs.activate[on] - costs.relief[on[1]]
        return float(cost.sum())

    flow = solve_spec(costs)
    assert sorted(flow) == list(range(gpus))
    best = min(total(choice) for choice in itertools.product(range(models), repeat=gpus))
    assert total([flow[g] for g in range(gpus)]) == pytest.approx(best, abs=1e-6)


def test_costs_are_whole_milliseconds() -> None:
    """Model 0 costs 0.6 ms, which is 1; model 1 twice 0.5 ms, which round to even: 0."""
    switch, activate = np.array([[0.0006, 0.0005]]), np.array([[0.0, 0.0005]])
    costs = SpecCosts(np.array([0]), np.array([0, 1]), np.zeros(1), switch, np.zeros(2), activate)
    assert solve_spec(costs) == {0: 1}
