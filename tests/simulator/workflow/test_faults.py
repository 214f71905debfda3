"""Faults within an episode, in the compiled loop and in the driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import inframind_gym  # noqa: F401
from inframind_gym.envs.core import checked_arguments
from inframind_gym.envs.routing_config import EnvConfig
from inframind_gym.envs.routing_simulation import RoutingSimulation
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.server.state import LOST
from tests.simulator.workflow.backend_play import MODELS, both, by_node, play, same_sweep

ALL_DOWN = [
    {"kind": "down", "model": m, "from_s": 4.0 + i, "to_s": 30.0} for i, m in enumerate(MODELS)
]
Seen = tuple[NDArray[Any], NDArray[np.float32]]  # contexts, observations


def test_nothing_is_decided_while_no_model_is_up() -> None:
    ours, theirs = both(False, 3, 300.0, faults=ALL_DOWN, call_attempts=2)
    same_sweep(ours, theirs)
    times = ours.contexts["time_s"][:-1]
    assert not ((times >= 8.0) & (times < 30.0)).any()
    assert (times < 8.0).any() and (times >= 30.0).any()
    assert len(ours.completed) == 30
    assert ours.contexts["models_up"][:-1].min() > 0
    failed = ours.calls[ours.calls["failed"] == 1]
    assert set(failed["finish_s"].tolist()) <= {4.0, 5.0, 6.0, 7.0, 8.0}
    # Of those that were lost last the second attempt was in vain, too.
    last = failed[failed["finish_s"] == 8.0]
    assert len(last) and (last["submit_s"] == 8.0).any()


def test_a_lost_call_is_sent_again_at_once_to_the_next_model_that_is_up() -> None:
    down = [{"kind": "down", "model": "qwen-14b", "from_s": 3.0, "to_s": 60.0}]
    ours, theirs = both(False, 1, 600.0, faults=down)
    same_sweep(ours, theirs)
    failed = ours.calls[ours.calls["failed"] == 1]
    place = MODELS_IN_POOL.index("qwen-14b")
    assert len(failed) and (failed["model"] == place).all() and (failed["finish_s"] == 3.0).all()
    assert not failed["output_tokens"].any()
    assert not (failed["first_token_s"] > 3.0).any()
    after = ours.calls[(ours.calls["submit_s"] >= 3.0) & (ours.calls["submit_s"] < 60.0)]
    assert not (after["model"] == place).any()
    for call in failed:
        again = after[
            (after["query"] == call["query"])
            & (after["node"] == call["node"])
            & (after["phase"] == call["phase"])
        ]
        assert len(again) == 1 and again["submit_s"][0] == 3.0
    up = ours.contexts["models_up"] >> place & 1
    assert np.array_equal(
        up == 0, (ours.contexts["time_s"] >= 3.0) & (ours.contexts["time_s"] < 60.0)
    )


MODELS_IN_POOL = tuple(
    RoutingSimulation(checked_arguments(EnvConfig, {}), 1, one_query=False).pool.aliases
)


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
