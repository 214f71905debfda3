"""The driver on a backend that is asynchronous and runs on the wall clock, like live servers."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.envs.routing.backend_simulation import BackendSimulation
from inframind_gym.envs.routing.config import env_config
from inframind_gym.simulator.workflow.backend import Backend, Call, Completion, Telemetry
from tests.simulator.workflow.backend_play import NUM_MODELS, play

LATENCY_S = 0.02
SLOW_AGENT_S = 0.03


class WallClock:
    """Every call is answered by a thread of its own, after LATENCY_S."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._done: list[Completion] = []
        self._changed = threading.Condition()
        self._threads: list[threading.Timer] = []

    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    def submit(self, call: Call) -> None:
        timer = threading.Timer(LATENCY_S, self._answer, (call, self.now_s()))
        self._threads.append(timer)
        timer.start()

    def _answer(self, call: Call, submit_s: float) -> None:
        completion = Completion(
            call=call.id,
            submit_s=submit_s,
            first_token_s=submit_s + LATENCY_S / 2,
            finish_s=submit_s + LATENCY_S,
            output_tokens=7,
            text="42",
            right=True,
            prompt_tokens=11,
        )
        with self._changed:
            self._done.append(completion)
            self._changed.notify()

    def wait(self, until_s: float | None) -> list[Completion]:
        with self._changed:
            while not self._done:
                left_s = None if until_s is None else until_s - self.now_s()
                if left_s is not None and left_s <= 0:
                    break
                self._changed.wait(left_s)
            done, self._done = sorted(self._done, key=lambda c: c.finish_s), []
            return done

    def telemetry(self) -> Telemetry:
        empty = [0.0] * NUM_MODELS
        return Telemetry(1, [self.now_s() - m for m in range(NUM_MODELS)], empty, empty, empty)

    def models_up(self) -> int:
        return 0b00111

    def close(self) -> None:
        for timer in self._threads:
            timer.cancel()
            timer.join()


@pytest.mark.parametrize("execution", ["parallel", "sequential"])
def test_a_slow_agent_on_the_wall_clock(execution: str) -> None:
    config = env_config(
        {
            "num_queries": 12,
            "observation": "index",
            "record_calls": True,
            "execution": execution,
            "planner": {"topology": "Chain", "num_agents": 2},
            "agents": {},
        }
    )
    opened: list[WallClock] = []

    def open_backend(simulation: BackendSimulation, key: int) -> Backend:
        opened.append(WallClock())
        return opened[-1]

    def decide(context: np.void, observation: NDArray[np.float32]) -> NDArray[np.int64]:
        time.sleep(SLOW_AGENT_S)
        return np.array([int(context["query"]) % 3 * 3])

    simulation = BackendSimulation(config, open_backend, one_query=False)
    sweep = play(simulation, decide, rate_per_min=1200.0, budget_s=10.0)
    simulation.close()
    assert not any(thread.is_alive() for thread in opened[0]._threads)
    check(sweep.completed, sweep.calls, execution)
    assert (sweep.contexts["models_up"] == 0b111).all()
    age_s = sweep.contexts["telemetry_age_s"]
    np.testing.assert_allclose(age_s, 2.0, atol=0.9)  # the oldest of those that are up
    assert (np.diff(sweep.contexts["time_s"]) >= 0).all()


def check(completed: NDArray[Any], calls: NDArray[Any], execution: str) -> None:
    """Latencies are those of the calls and of all waiting, however late they were noticed."""
    assert len(completed) == 12
    assert (completed["solved"] == 1).all()
    np.testing.assert_array_equal(completed["calls"], 3)
    np.testing.assert_array_equal(completed["prompt_tokens"], 3 * 11)
    np.testing.assert_allclose(calls["finish_s"] - calls["submit_s"], LATENCY_S)
    for query in completed:
        own = calls[calls["query"] == query["query"]]
        assert own["submit_s"][0] >= query["arrival_s"]
        assert (own["submit_s"][1:] >= own["finish_s"][:-1]).all()
        if execution == "parallel":
            assert query["latency_s"] == own["finish_s"][2] - query["arrival_s"]
            assert query["latency_s"] >= 3 * LATENCY_S + 2 * SLOW_AGENT_S
        else:
            assert 2 * LATENCY_S <= query["latency_s"] <= own["finish_s"][1] - query["arrival_s"]
