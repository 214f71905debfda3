"""Faults within an episode; that the driver does the same is `test_backend_loop_parity`'s."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.envs.core import checked_arguments
from inframind_gym.envs.routing_config import EnvConfig
from inframind_gym.envs.routing_simulation import RoutingSimulation
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.server.state import LOST
from tests.simulator.workflow.backend_play import both, by_node, play

Seen = tuple[NDArray[Any], NDArray[np.float32]]  # contexts, observations


def test_a_lost_call_is_sent_again_at_once_to_a_model_that_is_up() -> None:
    down = [{"kind": "down", "model": "qwen-14b", "from_s": 3.0, "to_s": 60.0}]
    run, _ = both(False, 1, 600.0, faults=down)
    place = load_pool(checked_arguments(EnvConfig, {}).pool).index("qwen-14b")
    failed = run.calls[run.calls["failed"] == 1]
    assert len(failed) and (failed["model"] == place).all() and (failed["finish_s"] == 3.0).all()
    assert not failed["output_tokens"].any() and not (failed["first_token_s"] > 3.0).any()
    after = run.calls[(run.calls["submit_s"] >= 3.0) & (run.calls["submit_s"] < 60.0)]
    assert not (after["model"] == place).any()
    again = after[after["submit_s"] == 3.0][["query", "node", "phase"]].tolist()
    assert [again.count(call) for call in failed[["query", "node", "phase"]].tolist()] == [1] * len(
        failed
    )
    times, up = run.contexts["time_s"], run.contexts["models_up"] >> place & 1
    assert np.array_equal(up == 0, (times >= 3.0) & (times < 60.0))


def telemetry(delay_s: float | None) -> tuple[Seen, Seen]:
    fault: dict[str, Any] = {"kind": "telemetry", "from_s": 20.0, "to_s": 70.0}
    if delay_s is not None:
        fault["delay_s"] = delay_s
    sweeps = []
    for given_faults in ([], [fault]):
        config = checked_arguments(
            EnvConfig, {"num_queries": 200, "observation": "index", "faults": given_faults}
        )
        config = config.model_copy(update={"record_calls": True})
        simulation = RoutingSimulation(config, 1, one_query=False)
        # Always the same routes: with and without the fault the servers do the same.
        sweeps.append(play(simulation, by_node([0, 1, 2, 3, 4]), rate_per_min=100.0))
    plain, faulty = sweeps
    assert np.array_equal(plain.calls, faulty.calls)
    return (plain.contexts, plain.observations), (faulty.contexts, faulty.observations)


def test_telemetry_that_is_late_shows_what_was_seen_before() -> None:
    (plain, seen), (faulty, shown) = telemetry(12.0)  # three polls of 5 s
    during = (faulty["time_s"] > 40.0) & (faulty["time_s"] < 70.0)
    np.testing.assert_allclose(
        faulty["telemetry_age_s"][during], plain["telemetry_age_s"][during] + 15.0
    )
    for i in np.flatnonzero(during)[::7]:
        poll = int(plain["poll"][i]) - 3
        past = np.flatnonzero(plain["poll"] == poll)
        if len(past):
            assert np.array_equal(shown[i][3:], seen[past[0]][3:])
    after = faulty["time_s"] > 76.0
    assert np.array_equal(seen[after], shown[after])


def test_telemetry_that_is_lost_stays_as_it_was() -> None:
    (_, seen), (faulty, shown) = telemetry(None)
    during = (faulty["time_s"] > 20.0) & (faulty["time_s"] < 70.0)
    assert len(np.unique(shown[during][:, 3:], axis=0)) == 1
    assert len(np.unique(seen[during][:, 3:], axis=0)) > 3
    np.testing.assert_allclose(faulty["time_s"][during] - faulty["telemetry_age_s"][during], 15.0)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kind": "down", "model": "qwen-14b"}, "give from_s and to_s"),
        ({"kind": "down", "model": "qwen-14b", "from_s": 3, "to_s": 2}, "must be after"),
        ({"kind": "slow", "every_s": 3, "lasts_s": 2}, "needs it"),
        ({"kind": "down", "model": "llama-3b", "every_s": 3, "lasts_s": 2}, "down_models"),
        ({"kind": "telemetry", "every_s": 3, "lasts_s": 2, "delay_s": 1e5}, "too long"),
    ],
)
def test_bad_faults_are_refused(fault: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RoutingSimulation(
            checked_arguments(EnvConfig, {"faults": [fault], "down_models": ["llama-3b"]}),
            1,
            one_query=False,
        )


def test_faults_of_one_server_add_up() -> None:
    entries = [
        {"kind": "slow", "model": "qwen-14b", "from_s": 1, "to_s": 5, "factor": 2},
        {"kind": "slow", "model": "qwen-14b", "from_s": 2, "to_s": 9, "factor": 3},
        {"kind": "telemetry", "model": "qwen-14b", "from_s": 2, "to_s": 3, "delay_s": 6},
        {"kind": "telemetry", "from_s": 5, "to_s": 9},
    ]
    config = checked_arguments(EnvConfig, {"faults": entries, "down_models": ["llama-3b"]})
    simulation = RoutingSimulation(config, 1, one_query=False)
    changes = simulation.faults.changes(0, 0.0)
    mine = changes[changes["model"] == simulation.pool.index("qwen-14b")]
    mine = mine[np.isfinite(mine["at_s"])]
    assert mine[["at_s", "pace", "late_polls"]].tolist() == [
        (1, 2, 0),
        (2, 6, 2),
        (3, 6, 0),
        (5, 3, LOST),
        (9, 1, 0),
    ]
