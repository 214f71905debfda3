"""The compiled event-jump kernel gives what the step-by-step reference gives, to rounding."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import pytest

from inframind_gym.errors import InfraMindError
from inframind_gym.simulator.server.open_loop import replay_requests
from inframind_gym.simulator.server.state import CARD, FAULT
from tests.simulator.reference import ReferenceKernel, RefFault, RefRequest, RefServer


@dataclass
class Load:
    """A random cluster and the requests that it is given."""

    servers: list[RefServer]
    requests: list[RefRequest]


def random_load(seed: int) -> Load:
    """A load with one to four servers, some of them co-located, from roomy to starved for KV."""
    rng = np.random.default_rng(seed)
    num_servers = int(rng.integers(1, 5))
    gpu = rng.integers(0, max(1, num_servers - 1), num_servers)
    largest = int(rng.choice([40, 200, 600]))
    servers = []
    for m in range(num_servers):
        slots = int(rng.choice([1, 2, 4, 16, 32]))
        block_size = int(rng.choice([1, 4, 16]))
        shared = int(rng.choice([0, 0, 0, 1, 3]))
        fits_one = -(-2 * largest // block_size) + 1 + shared
        servers.append(
            RefServer(
                max_num_seqs=slots,
                max_num_batched_tokens=int(rng.choice([slots + 1, slots + 37, 512, 4096])),
                num_kv_blocks=int(fits_one * rng.choice([1.0, 1.5, 4.0, 100.0])) + 1,
                block_size=block_size,
                base_s=float(rng.uniform(0.001, 0.03)),
                per_seq_s=float(rng.uniform(0, 0.001)),
                per_kv_token_s=float(rng.choice([0.0, 1e-6, 1e-5])),
                per_new_token_s=float(rng.uniform(0, 1e-4)),
                per_attention_unit_s=float(rng.choice([0.0, 1e-8])),
                sparse_s=float(rng.choice([0.0, 0.02])),
                sparse_tokens=float(rng.choice([4.0, 16.0])),
                roofline_power=(1.0, 4.0)[seed % 2],
                peers=tuple(o for o in range(num_servers) if o != m and gpu[o] == gpu[m]),
                slowdown=float(rng.choice([0.0, 0.3])),
                shared_prefix_tokens=shared * block_size,
                prefix_caching=bool(shared or rng.random() < 0.4),
                async_scheduling=bool(rng.random() < 0.4),
            )
        )
    count = int(rng.integers(1, 60))
    gaps = rng.exponential(rng.choice([0.001, 0.05, 0.5]), count)
    gaps[rng.random(count) < 0.3] = 0.0  # several at one instant
    times = np.cumsum(gaps)
    requests = [
        RefRequest(
            id=i,
            server=int(rng.integers(num_servers)),
            submit_s=float(times[i]),
            priority=float(rng.choice([0.0, 1.0, rng.uniform(0, 100)])),
            prompt_tokens=int(rng.integers(1, largest + 1)),
            output_tokens=int(rng.integers(1, largest + 1)),
        )
        for i in range(count)
    ]
    return Load(servers, requests)


def cards(servers: list[RefServer]) -> np.ndarray:
    out = np.zeros(len(servers), CARD)
    for m, s in enumerate(servers):
        values = asdict(s) | {"usable_blocks": s.usable_blocks}
        values["peers"] = sum(1 << p for p in s.peers)
        for field in CARD.names or ():
            out[m][field] = values[field]
    return out


def changes(faults: list[RefFault]) -> np.ndarray | None:
    """The faults as the kernel takes them; those of one server do not overlap."""
    if not faults:
        return None
    rows = []
    for fault in faults:
        down = fault.slower == np.inf
        pace = 1.0 if down else fault.slower
        rows += [(fault.from_s, pace, 0, fault.server, down), (fault.to_s, 1.0, 0, fault.server, 0)]
    return np.array([*sorted(rows), (np.inf, 1.0, 0, 0, 0)], FAULT)


def random_faults(load: Load, seed: int) -> list[RefFault]:
    """For every server up to three faults, one after the other, from the first request on."""
    rng = np.random.default_rng([seed, 1])
    last_s = load.requests[-1].submit_s + 2.0
    faults = []
    for m in range(len(load.servers)):
        times = np.sort(rng.uniform(0.0, last_s, 2 * int(rng.integers(4))))
        for from_s, to_s in times.reshape(-1, 2).tolist():
            slower = np.inf if rng.random() < 0.5 else float(rng.uniform(0.5, 3.0))
            faults.append(RefFault(m, from_s, to_s, slower))
    return faults


def check(load: Load, timeout_s: float = np.inf, faults: list[RefFault] | None = None) -> int:
    faults = faults or []
    ReferenceKernel(load.servers, timeout_s, faults).run(load.requests)
    served = replay_requests(
        cards(load.servers),
        [r.server for r in load.requests],
        [r.submit_s for r in load.requests],
        [r.prompt_tokens for r in load.requests],
        [r.output_tokens for r in load.requests],
        [r.priority for r in load.requests],
        timeout_s,
        changes(faults),
    )
    expected = load.requests
    answered = ~np.isnan([r.finish_s for r in expected])
    evictions = [r.evictions if of else 0 for r, of in zip(expected, answered, strict=True)]
    assert served["evictions"].tolist() == evictions
    for field in ("admitted_s", "first_token_s", "finish_s"):
        want = np.where(answered, [getattr(r, field) for r in expected], np.nan)
        np.testing.assert_allclose(served[field], want, rtol=1e-9, atol=1e-9, err_msg=field)
    return int(served["evictions"].sum())


@pytest.mark.parametrize("timeout_s", [0.0503, 0.507, 2.03, np.inf])
@pytest.mark.parametrize("faulty", [False, True])
def test_agrees_on_random_loads(timeout_s: float, faulty: bool) -> None:
    aborted = lost = slowed = evicted = 0
    for seed in range(20):
        load = random_load(seed)
        faults = random_faults(load, seed) if faulty else []
        evicted += check(load, timeout_s, faults) > 0
        ended = [r for r in load.requests if not np.isnan(r.finish_s)]
        assert all(r.finish_s - r.submit_s <= timeout_s + 1e-9 for r in ended)
        lost += sum(request.lost for request in load.requests)
        aborted += sum(np.isnan(r.finish_s) and not r.lost for r in load.requests)
        slowed += any(fault.slower < np.inf for fault in faults)
    assert aborted > 30 if timeout_s < np.inf else evicted >= 2 and not aborted
    assert (lost > 20 and slowed > 4) if faulty else lost == slowed == 0


def test_a_server_that_dies_loses_its_calls_and_one_that_is_slow_takes_longer() -> None:
    server = RefServer(4, 64, 101, 16, base_s=1.0)
    faults = [RefFault(0, 1.5, 2.5), RefFault(0, 10.5, 12.5, slower=2.0)]
    args = cards([server]), np.zeros(4), [0.0, 2.0, 3.0, 10.0], [5] * 4, [2, 2, 2, 4]
    served = replay_requests(*args, faults=changes(faults))
    # The first is lost, the second refused; of the last, the step from 11 on takes 2 s.
    np.testing.assert_array_equal(served["finish_s"], [np.nan, np.nan, 5.0, 15.0])


def test_busy_peers_slow_the_steps_that_start_beside_them() -> None:
    """Slowdown 0.5. Server 0: [0, 1) alone; [1, 2.5) beside request 1, submitted at that instant;
    [2.5, 3.5) alone again, as request 1 ends at that instant. Server 1: [1, 2.5)."""

    def finish_s(peers: list[tuple[int, ...]], at_s: list[float], output: list[int]) -> list[float]:
        servers = [RefServer(8, 100, 101, 4, base_s=1.0, peers=p, slowdown=0.5) for p in peers]
        served = replay_requests(cards(servers), range(len(peers)), at_s, [1] * len(peers), output)
        ended: list[float] = served["finish_s"].tolist()
        return ended

    assert finish_s([(1,), (0,)], [0.0, 1.0], [3, 1]) == [3.5, 2.5]
    assert finish_s([(1, 2), (), ()], [0.0] * 3, [1] * 3) == [2.0, 1.0, 1.0]


def wide_load(seed: int) -> Load:
    """A server with many slots and calls of all lengths, roomy or starved for KV."""
    rng = np.random.default_rng(seed)
    slots, tokens = int(rng.choice([30, 64, 100])), rng.integers(1, 60, size=(150, 2))
    blocks = int(rng.choice([8 * slots, 100_000])) + 1
    server = RefServer(slots, 512, blocks, 4, base_s=0.01, per_seq_s=1e-4, per_kv_token_s=1e-6)
    times = np.cumsum(rng.exponential(0.005, len(tokens)))
    priorities = rng.uniform(0, 100, len(tokens))
    requests = [
        RefRequest(i, 0, float(times[i]), float(priorities[i]), *map(int, tokens[i]))
        for i in range(len(tokens))
    ]
    return Load([server], requests)


def test_agrees_on_wide_batches() -> None:
    evictions = [check(wide_load(seed)) for seed in range(6)]
    assert min(evictions) == 0 < max(evictions)


def test_a_shared_head_is_neither_computed_nor_stored_twice() -> None:
    """What vLLM's recorded decisions do not have. One token is left of the first prompt.

    The last token of a prompt is always computed, and blocks are found whole: 16 tokens are left
    of the second prompt, all of the third.
    """
    cost = {"base_s": 1.0, "per_new_token_s": 1.0}
    server = RefServer(4, 64, 101, 16, **cost, shared_prefix_tokens=32, prefix_caching=True)
    submit_s, prompts = [0.0, 100.0, 200.0], [33, 32, 5]
    served = replay_requests(cards([server]), np.zeros(3), submit_s, prompts, [1, 1, 1])
    assert served["finish_s"].tolist() == [2.0, 117.0, 206.0]


def test_requests_that_can_never_be_served_are_refused() -> None:
    card = cards([RefServer(4, 64, 100, 16, 0.01)])
    with pytest.raises(InfraMindError, match="request 1 needs"):
        replay_requests(card, [0, 0], [0.0, 1.0], [5, 5], [5, 10**6])
