"""The references, checked against cases worked out by hand in the comments."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from .kernel import (
    ReferenceKernel,
    RefRequest,
    RefServer,
    RequestTooLargeError,
    StepRecord,
)
from .workflow import FINAL_NODE, Node, Topology, build_nodes, most_used, run_query

# --- kernel -------------------------------------------------------------------------------------
# Blocks of 4 tokens everywhere; unless a test says otherwise every step takes 1 s.


def make_server(
    *,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 100,
    usable_blocks: int = 100,
    base_s: float = 1.0,
    per_seq_s: float = 0.0,
    per_kv_token_s: float = 0.0,
    per_new_token_s: float = 0.0,
    per_attention_unit_s: float = 0.0,
    peers: tuple[int, ...] = (),
    slowdown: float = 0.0,
) -> RefServer:
    return RefServer(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        num_kv_blocks=usable_blocks + 1,
        block_size=4,
        base_s=base_s,
        per_seq_s=per_seq_s,
        per_kv_token_s=per_kv_token_s,
        per_new_token_s=per_new_token_s,
        per_attention_unit_s=per_attention_unit_s,
        peers=peers,
        slowdown=slowdown,
    )


def req(
    id: int,
    *,
    at: float = 0.0,
    priority: float = 0.0,
    prompt: int = 1,
    output: int = 1,
    server: int = 0,
) -> RefRequest:
    return RefRequest(id, server, at, priority, prompt, output)


def scheduled(steps: list[StepRecord]) -> list[list[tuple[int, int]]]:
    return [step.scheduled for step in steps]


def test_cost_of_each_step_of_one_request() -> None:
    # prefill: 1 + .5*1 + .125*0  + .25*10 + (10*10)/64 = 5.5625  -> first token
    # decode:  1 + .5*1 + .125*10 + .25*1               = 3.0     -> 8.5625
    # decode:  1 + .5*1 + .125*11 + .25*1               = 3.125   -> 11.6875
    kernel = ReferenceKernel(
        [
            make_server(
                per_seq_s=0.5,
                per_kv_token_s=0.125,
                per_new_token_s=0.25,
                per_attention_unit_s=1 / 64,
            )
        ]
    )
    (request,) = kernel.run([req(7, at=2.0, prompt=10, output=3)])
    assert [step.duration_s for step in kernel.steps[0]] == [5.5625, 3.0, 3.125]
    assert scheduled(kernel.steps[0]) == [[(7, 10)], [(7, 1)], [(7, 1)]]
    assert request.admitted_s == 2.0
    assert request.first_token_s == 2.0 + 5.5625
    assert request.finish_s == 2.0 + 11.6875
    assert request.computed == 12  # the KV of the last token is never computed


def test_eviction_recomputes_prompt_and_emitted_tokens() -> None:
    # 4 blocks, A more urgent.                               blocks A, B
    # 0: A 8, B 7: both emit their first token               2, 2
    # 1: A's 9th token needs a 3rd block: B is evicted       3, -    no admission in this step
    # 2: A decodes, done; B (7 + 1 tokens) needs 2, 1 free   3, -
    # 3: B prefills 8, emits its second token                -, 2
    # 4: B decodes its 9th, third token, done                -, 3
    kernel = ReferenceKernel([make_server(usable_blocks=4)])
    a, b = kernel.run(
        [req(0, priority=0, prompt=8, output=3), req(1, priority=1, prompt=7, output=3)]
    )
    steps = kernel.steps[0]
    assert scheduled(steps) == [[(0, 8), (1, 7)], [(0, 1)], [(0, 1)], [(1, 8)], [(1, 1)]]
    assert [step.evicted for step in steps] == [[], [1], [], [], []]
    assert [step.admitted for step in steps] == [[0, 1], [], [], [1], []]
    assert (a.evictions, a.finish_s) == (0, 3.0)
    assert (b.evictions, b.admitted_s, b.first_token_s, b.finish_s) == (1, 0.0, 1.0, 5.0)


@pytest.mark.parametrize(
    ("prompt", "output"),
    [(9, 1), (8, 2)],  # too large at once; too large with its first output token
)
def test_a_request_larger_than_the_cache_is_an_error(prompt: int, output: int) -> None:
    kernel = ReferenceKernel([make_server(usable_blocks=2)])
    with pytest.raises(RequestTooLargeError, match="request 3 does not fit"):
        kernel.run([req(3, prompt=prompt, output=output)])


def test_a_busy_peer_slows_the_steps_that_start_beside_it() -> None:
    # Slowdown 0.5.  Server 0: [0, 1) alone; [1, 2.5) beside request 1, submitted at that instant;
    # [2.5, 3.5) alone again, as request 1 finishes at that instant.  Server 1: [1, 2.5).
    kernel = ReferenceKernel(
        [make_server(peers=(1,), slowdown=0.5), make_server(peers=(0,), slowdown=0.5)]
    )
    r0, r1 = kernel.run([req(0, output=3), req(1, at=1.0, server=1)])
    assert [step.duration_s for step in kernel.steps[0]] == [1.0, 1.5, 1.0]
    assert [step.duration_s for step in kernel.steps[1]] == [1.5]
    assert (r0.finish_s, r1.finish_s) == (3.5, 2.5)


def test_two_busy_peers_count_twice() -> None:
    kernel = ReferenceKernel(
        [make_server(peers=(1, 2), slowdown=0.5), make_server(), make_server()]
    )
    kernel.run([req(0), req(1, server=1), req(2, server=2)])
    assert [steps[0].duration_s for steps in kernel.steps] == [2.0, 1.0, 1.0]


def test_impossible_submissions_are_refused() -> None:
    kernel = ReferenceKernel([make_server()])
    request = req(0)
    kernel.run([request])
    for bad in (request, req(1, at=0.5), req(2, at=9.0, prompt=0), req(3, at=9.0, output=0)):
        with pytest.raises(ValueError, match=f"request {bad.id} "):
            kernel.submit(bad)
    with pytest.raises(ValueError, match="peers"):
        ReferenceKernel([make_server(peers=(0,))])


@pytest.mark.parametrize("seed", range(20))
def test_invariants_on_random_loads(seed: int) -> None:
    rng = random.Random(seed)
    server = make_server(
        max_num_seqs=4,
        max_num_batched_tokens=rng.choice([8, 32]),
        usable_blocks=12,
        base_s=0.5,
        per_new_token_s=0.125,
    )
    requests = [
        req(
            i,
            at=rng.choice([0.0, rng.uniform(0, 40)]),
            priority=rng.choice([0.0, rng.uniform(0, 40)]),
            prompt=rng.randint(1, 30),
            output=rng.randint(1, 18),
        )
        for i in range(40)
    ]
    kernel = ReferenceKernel([server])
    kernel.run(requests)
    steps = kernel.steps[0]
    for step, following in pairwise(steps):
        assert step.end_s <= following.start_s
    for step in steps:
        assert len(step.scheduled) <= server.max_num_seqs
        assert sum(tokens for _, tokens in step.scheduled) <= server.max_num_batched_tokens
        assert not (step.evicted and step.admitted)
    for r in requests:
        assert r.submit_s <= r.admitted_s < r.first_token_s <= r.finish_s
        assert sum(step.admitted.count(r.id) for step in steps) == 1 + r.evictions
        work = sum(tokens for step in steps for id_, tokens in step.scheduled if id_ == r.id)
        # One token of KV for each of the prompt and the output but the last; evictions add to it.
        once = r.prompt_tokens + r.output_tokens - 1
        assert work == once if r.evictions == 0 else work >= once
    assert sum(r.evictions for r in requests) == sum(len(step.evicted) for step in steps)


# --- workflow -----------------------------------------------------------------------------------
# Latencies are given per (node, repeat); models per node; the budget is 20 s.


def run_fixed(
    topology: Topology,
    num_agents: int,
    execution: str,
    latencies: dict[tuple[int, int], float],
    models: list[int],
) -> tuple[list[tuple[int, int, float]], list[int], list[float], float, list[float], float]:
    """Calls as (node, repeat, start), models called, b_rem, latency, step costs, wall-clock end."""

    def decide(node: Node, remaining_budget_s: float) -> tuple[int, int]:
        assert math.isfinite(remaining_budget_s)
        return models[node.index], 0

    def call_latency(node: int, repeat: int, model: int, strategy: int) -> float:
        return latencies[node, repeat]

    result = run_query(topology, num_agents, 20.0, decide, call_latency, execution)
    assert [decision.node for decision in result.decisions] == list(range(len(models)))
    assert sum(result.step_costs) == pytest.approx(result.latency_s / 20.0)
    return (
        [(c.node, c.repeat, c.start_s) for c in result.calls],
        [c.model for c in result.calls],
        [decision.remaining_budget_s for decision in result.decisions],
        result.latency_s,
        result.step_costs,
        result.finished_s,
    )


CHAIN = {(0, 0): 4.0, (1, 0): 3.0, (2, 0): 5.0, (FINAL_NODE, 0): 2.0}


@pytest.mark.parametrize(
    ("execution", "latency_s", "last_cost"),
    [
        ("parallel", 14.0, 0.35),  # 4 + 3 + 5 + 2; the last decision bears the final call: 7/20
        ("sequential", 12.0, 0.25),  # the final call does not count: 5/20
    ],
)
def test_chain(execution: str, latency_s: float, last_cost: float) -> None:
    calls, models, b_rem, latency, costs, finished = run_fixed(
        "Chain", 3, execution, CHAIN, models=[1, 0, 0]
    )
    assert calls == [(0, 0, 0.0), (1, 0, 4.0), (2, 0, 7.0), (FINAL_NODE, 0, 12.0)]
    assert models == [1, 0, 0, 0]  # final: model 0, used twice
    assert b_rem == [20.0, 16.0, 13.0]
    assert latency == latency_s
    assert costs == pytest.approx([0.2, 0.15, last_cost])
    assert finished == 14.0


# Two agents: 0 and 1 in the first round, then 2 and 3, each of which waits for both.
DEBATE = {(0, 0): 4.0, (1, 0): 6.0, (2, 0): 3.0, (3, 0): 1.0, (FINAL_NODE, 0): 2.0}


def test_debate_in_parallel() -> None:
    # Round one ends at 6, round two at 6 + 3, the final call at 11.
    calls, models, b_rem, latency, costs, finished = run_fixed(
        "Debate", 2, "parallel", DEBATE, models=[1, 0, 0, 1]
    )
    assert calls == [(0, 0, 0.0), (1, 0, 0.0), (2, 0, 6.0), (3, 0, 6.0), (FINAL_NODE, 0, 9.0)]
    assert models[-1] == 1  # 1 and 0 twice each: 1 came first
    assert b_rem == [20.0, 20.0, 14.0, 14.0]
    assert latency == finished == 11.0
    assert costs == pytest.approx([0.0, 6 / 20, 0.0, 5 / 20])


def test_debate_as_published() -> None:
    # One after the other: 4, 6, 3, 1, 2 on the wall clock; along the graph max(4, 6) + max(3, 1).
    calls, models, b_rem, latency, costs, finished = run_fixed(
        "Debate", 2, "sequential", DEBATE, models=[1, 0, 0, 1]
    )
    assert calls == [(0, 0, 0.0), (1, 0, 4.0), (2, 0, 10.0), (3, 0, 13.0), (FINAL_NODE, 0, 14.0)]
    assert models == [1, 0, 0, 1, 1]
    assert b_rem == [20.0, 20.0, 14.0, 14.0]
    assert latency == 9.0
    assert costs == pytest.approx([0.0, 6 / 20, 0.0, 3 / 20])
    assert finished == 16.0


REFLECTION = {(0, 0): 2.0, (0, 1): 3.0, (1, 0): 4.0, (1, 1): 4.0, (FINAL_NODE, 0): 1.0}


def test_reflection_calls_twice_on_one_decision() -> None:
    # Parallel: each second call follows its own first: 0 over [0,2,5], 1 over [0,4,8], final [8,9].
    calls, models, b_rem, latency, costs, _ = run_fixed(
        "Reflection", 2, "parallel", REFLECTION, models=[3, 4]
    )
    assert calls == [(0, 0, 0.0), (1, 0, 0.0), (0, 1, 2.0), (1, 1, 4.0), (FINAL_NODE, 0, 8.0)]
    assert models == [3, 4, 3, 4, 3]
    assert b_rem == [20.0, 20.0]
    assert latency == 9.0
    assert costs == pytest.approx([0.0, 9 / 20])
    # Published: 0 over [0,2,5], 1 over [5,9,13], final [13,14]; the latency is max(2+3, 4+4).
    calls, _, b_rem, latency, costs, finished = run_fixed(
        "Reflection", 2, "sequential", REFLECTION, models=[3, 4]
    )
    assert calls == [(0, 0, 0.0), (0, 1, 2.0), (1, 0, 5.0), (1, 1, 9.0), (FINAL_NODE, 0, 13.0)]
    assert b_rem == [20.0, 20.0]
    assert latency == 8.0
    assert costs == pytest.approx([0.0, 8 / 20])
    assert finished == 14.0


def test_graphs() -> None:
    def edges(topology: Topology) -> list[tuple[int, ...]]:
        return [node.predecessors for node in build_nodes(topology, 3)]

    assert edges("IO") == edges("CoT") == edges("Reflection") == [(), (), ()]
    assert edges("Chain") == [(), (0,), (1,)]
    assert edges("FullConnected") == [(), (0,), (0, 1)]
    assert edges("Debate") == [(), (), (), (0, 1, 2), (0, 1, 2), (0, 1, 2)]
    assert [node.agent for node in build_nodes("Debate", 3)] == [0, 1, 2, 0, 1, 2]


def test_full_connected_runs_one_after_the_other() -> None:
    # Node 2 reads 0 and 1; 1 reads 0: the same times as a chain.
    for execution in ("parallel", "sequential"):
        assert run_fixed("FullConnected", 3, execution, CHAIN, [0, 0, 0]) == run_fixed(
            "Chain", 3, execution, CHAIN, [0, 0, 0]
        )


def test_isolated_nodes_share_the_whole_budget() -> None:
    # Latencies 4, 3, 5: all start at 0; the wave's maximum 5, and the final 2 in `parallel`.
    _, _, b_rem, latency, costs, _ = run_fixed("IO", 3, "parallel", CHAIN, [0, 1, 2])
    assert (b_rem, latency, costs) == ([20.0] * 3, 7.0, [0.0, 0.0, 7 / 20])
    _, _, b_rem, latency, costs, _ = run_fixed("CoT", 3, "sequential", CHAIN, [0, 1, 2])
    assert (b_rem, latency, costs) == ([20.0] * 3, 5.0, [0.0, 0.0, 5 / 20])


def test_an_overspent_budget_is_negative() -> None:
    latencies = {(0, 0): 25.0, (1, 0): 1.0, (FINAL_NODE, 0): 1.0}
    assert run_fixed("Chain", 2, "parallel", latencies, [0, 0])[2] == [20.0, -5.0]


def test_most_used_model() -> None:
    assert most_used([2, 1, 1]) == 1
    assert most_used([2, 1, 1, 2]) == 2
    assert most_used([4]) == 4
