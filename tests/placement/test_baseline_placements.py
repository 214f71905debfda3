"""Every placement policy plays whole episodes, alone as in a batch, by its rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.policies import Policy, policy_names, resolve_policy
from inframind_gym.policies.placement import EverywhereSimulation
from tests.placement.toys import card, decisions, make, started, write_cluster, write_demand


def play(env: Any, policy: Policy[Any, Any], seeds: list[int]) -> tuple[NDArray[Any], Any]:
    """(decisions, rows, G) actions and (rows,) summed rewards of one episode."""
    played = list(decisions(env, policy, seeds))
    if policy.name != "mcf_spec":  # its groups come together by accident only
        assert not any(infos["illegal"].any() for *_, infos in played)
    actions = np.array([actions for _, actions, _, _ in played])
    return actions, sum(rewards for _, _, rewards, _ in played)


@pytest.mark.parametrize("name", policy_names("placement"))
def test_a_row_alone_is_a_row_of_a_batch(name: str) -> None:
    arguments = {"cluster": "h100-8gpu", "demand": "shifting", "num_decisions": 30}
    policy = resolve_policy(name, family="placement")
    assert isinstance(policy, Policy)
    assert policy.name == name
    together, rewards = play(make(3, **arguments), policy, [5, 6, 7])
    alone, reward = play(make(1, **arguments), policy, [6])
    assert np.array_equal(together[:, 1], alone[:, 0])
    assert rewards[1] == reward[0]
    assert (together > 0).any()


def test_lru_takes_the_gpu_that_was_used_longest_ago(tmp_path: Path) -> None:
    """Two GPUs, three models: one that has demand and is not awake comes in a few decisions."""
    cards = [card("a"), card("b"), card("c")]
    env = make(
        1,
        cluster=write_cluster(tmp_path, cards, gpus=2),
        demand=write_demand(tmp_path, jobs_per_gpu_per_min=2),
        num_decisions=100,
    )
    last_used = np.full(2, -1.0)
    swaps = 0
    for context, (action,), _, _ in decisions(env, resolve_policy("lru", family="placement"), [0]):
        last_used[context.in_flight[0] > 0] = context.time_s[0]
        taken = np.flatnonzero(action)
        if len(taken) == 1 and context.stable[0].all() and len(set(last_used)) == 2:
            assert last_used[taken[0]] == last_used.min()
            assert context.waiting[0, action[taken[0]] - 1] > 0
            swaps += 1
    assert swaps > 0


@pytest.mark.parametrize("cluster", ["h100-4gpu", "h100-16gpu"])
def test_nobody_beats_the_bound(cluster: str) -> None:
    """On the same jobs: reward, lateness, and the mean latency of the jobs that both end."""
    arguments = {"cluster": cluster, "demand": "shifting", "num_decisions": 40}
    seeds = [3, 4, 5]
    bound, observations = started(arguments, *seeds, of=EverywhereSimulation)
    most, rows = np.zeros(len(seeds)), np.arange(len(seeds))
    for _ in range(bound.config.num_decisions):
        bound.step(rows, np.zeros((len(seeds), bound.num_gpus), np.int64), observations)
        most += bound.terms.sum(axis=1)
    for name in policy_names("placement"):
        _, rewards = play(
            make(len(seeds), **arguments), resolve_policy(name, family="placement"), seeds
        )
        assert (most > rewards).all()

    env = make(len(seeds), **arguments)
    list(
        decisions(env, resolve_policy("mcf_plus", family="placement"), seeds, 39)
    )  # one short of the autoreset
    for row in range(len(seeds)):
        jobs = bound.finished(row)
        assert (jobs["latency_s"] >= jobs["ideal_s"] * (1 - 1e-9)).all()
        real = {int(job["job"]): job for job in env.simulation.finished(row)}
        best = {int(job["job"]): job for job in jobs}
        common = sorted(set(real) & set(best))
        assert len(common) > 20
        # the same jobs, not others that look alike
        for name in ("arrival_s", "ideal_s"):
            assert all(real[j][name] == best[j][name] for j in common)
        latency = [np.mean([jobs[j]["latency_s"] for j in common]) for jobs in (real, best)]
        assert latency[1] < latency[0]
        late = [s.state.episode[row]["jobs_late"] for s in (bound, env.simulation)]
        assert late[0] <= late[1]
