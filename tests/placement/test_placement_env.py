"""The contract of InfraMind-Placement-v0 with Gymnasium and its users."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import inframind_gym  # noqa: F401
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.placement.state import ACTIVE, DRAINING, QUEUED, SLEPT, STATE_NAMES
from tests.placement.toys import PLACEMENT, card, tight_cluster, write_cluster, write_demand


def log(x: Any) -> Any:
    """Seconds on the scale of the observation; calls have the logarithm of 101."""
    return np.log1p(x) / np.log(301)


def test_contexts_agree_with_observations(tmp_path: Path) -> None:
    """Every number, as the context, the server's records and the docstring have it."""
    env: Any = gym.make(PLACEMENT, cluster=tight_cluster(tmp_path), num_decisions=60).unwrapped
    env.reset(seed=4)
    gpus, models, calls = 4, 5, np.log(301) / np.log(101)
    rng, kinds = np.random.default_rng(0), set[int]()
    for _ in range(60):
        observation, _, _, over, info = env.step(rng.integers(0, models + 1, gpus))
        seen, spec, cluster = env.context(), env.policy_spec(), env.simulation.state
        context = type(seen)(*(part[0] for part in seen))
        state = context.state
        kinds.update(state.ravel().tolist())
        instance = cluster.instance[0, np.arange(gpus)[:, None] // spec.tp * spec.tp, range(models)]
        since_s = np.where(state >= DRAINING, context.time_s - instance["begun_s"], np.inf).min(1)
        sleeps = (state == SLEPT) | ((state == QUEUED) & (instance["from_slept"] == 1))
        server = cluster.server[0, np.maximum(cluster.host[0], 0)]
        served, model = cluster.host[0] >= 0, np.maximum(server["model"], 0)
        waiting = cluster.waiting[0]
        oldest_s = context.time_s - cluster.request[0, waiting["head"]]["stamp_s"]
        bits = (
            state == ACTIVE,
            state == SLEPT,
            state >= QUEUED,
            (state >= DRAINING) & (state < QUEUED),
        )
        by_gpu = (
            *np.stack(bits, axis=2).reshape(gpus, -1).T,
            context.stable,
            log(context.drain_s),
            context.free_mb / spec.vram_mb,
            (sleeps * spec.slept_mb).sum(axis=1) / spec.slept_limit_mb,
            served * server["running"] / spec.slots[model],
            served * server["queued"] / np.maximum(spec.queue[model], 1),
            log(np.where(context.stable, 0, since_s)),
        )
        by_model = (
            log(context.waiting) * calls,
            log(context.age_sum_s),
            log(np.where(waiting["count"] > 0, oldest_s, 0)),
            log(context.outstanding) * calls,
            log(context.arrived) * calls,
            context.loading,
            waiting["active"] * spec.tp / gpus,
            *map(log, (context.latency_s, context.wake_s, context.sleep_s, context.load_s)),
            log(context.offload_s),
        )
        expected = [np.array(part, float).T.ravel() for part in (by_gpu, by_model)]
        assert observation == pytest.approx(np.concatenate(expected), rel=1e-5, abs=1e-5)
        assert np.array_equal(np.stack(info["action_mask"]), context.mask)
        if over:
            break
    assert kinds == set(range(len(STATE_NAMES)))


def test_wrong_files_are_explained(tmp_path: Path) -> None:
    for cards, message in (
        ([card("a"), card("b", tp_min=4)], "b needs 60000 MB on each of 4 neighbouring GPUs"),
        ([card("a", slept_mem_tp1_MB=70_000)], "must be less than active_mem_MB"),
    ):
        with pytest.raises(ConfigError, match=message):
            gym.make(PLACEMENT, cluster=write_cluster(tmp_path, cards, gpus=2))
    changes: dict[str, Any]
    for changes, message in (
        ({"topologies": {"Chian": 1}}, "Did you mean 'Chain'"),
        ({"num_agents": {1: 0.0}}, "all weights are 0"),
        ({"arrivals": "mmp"}, "demand: arrivals: unknown kind 'mmp'. Did you mean 'mmpp'?"),
        ({"arrivals": {"kind": "burst", "factr": 2}}, "demand: arrivals: factr: unknown key"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            gym.make(PLACEMENT, demand=write_demand(tmp_path, **changes))
