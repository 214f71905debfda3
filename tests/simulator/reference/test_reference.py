"""The references, checked against cases worked out by hand in the comments."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simulator.reference.kernel import ReferenceKernel, RefRequest, RefServer
from tests.simulator.reference.workflow import FINAL_NODE, Topology, run_query

# --- kernel -------------------------------------------------------------------------------------
# Its decisions and costs are held against vLLM's (`tests/simulator/vllm_scheduler`), which knows no
# neighbours on a GPU. A step takes 1 s.


def make_server(peers: tuple[int, ...] = (), slowdown: float = 0.0) -> RefServer:
    return RefServer(8, 100, 101, 4, base_s=1.0, peers=peers, slowdown=slowdown)


def req(id: int, at: float = 0.0, output: int = 1, server: int = 0) -> RefRequest:
    return RefRequest(id, server, at, 0.0, 1, output)


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


# --- workflow -----------------------------------------------------------------------------------
# Latencies are given per (node, repeat); the budget is 20 s. Debate has nodes 0 and 1 in its first
# round and 2 and 3, each of which waits for both, in its second.

LATENCY_S = {
    "Chain": {(0, 0): 4.0, (1, 0): 3.0, (2, 0): 5.0, (FINAL_NODE, 0): 2.0},
    "Debate": {(0, 0): 4.0, (1, 0): 6.0, (2, 0): 3.0, (3, 0): 1.0, (FINAL_NODE, 0): 2.0},
    "Reflection": {(0, 0): 2.0, (0, 1): 3.0, (1, 0): 4.0, (1, 1): 4.0, (FINAL_NODE, 0): 1.0},
}


@pytest.mark.parametrize(
    ("topology", "execution", "starts_s", "b_rem_s", "charged_s", "finished_s"),
    [
        ("Chain", "parallel", [0, 4, 7, 12], [20, 16, 13], [4, 3, 7], 14),
        # The final call does not count.
        ("Chain", "sequential", [0, 4, 7, 12], [20, 16, 13], [4, 3, 5], 14),
        # Round one ends at 6, round two at 6 + 3, the final call at 11.
        ("Debate", "parallel", [0, 0, 6, 6, 9], [20, 20, 14, 14], [0, 6, 0, 5], 11),
        # One after the other on the wall clock; along the graph max(4, 6) + max(3, 1).
        ("Debate", "sequential", [0, 4, 10, 13, 14], [20, 20, 14, 14], [0, 6, 0, 3], 16),
        # Each second call follows its own first: 0 over [0, 2, 5], 1 over [0, 4, 8].
        ("Reflection", "parallel", [0, 0, 2, 4, 8], [20, 20], [0, 9], 9),
        # 0 over [0, 2, 5], 1 over [5, 9, 13]; the latency is max(2 + 3, 4 + 4).
        ("Reflection", "sequential", [0, 2, 5, 9, 13], [20, 20], [0, 8], 14),
    ],
)
def test_a_query_by_hand(
    topology: Topology,
    execution: str,
    starts_s: list[float],
    b_rem_s: list[float],
    charged_s: list[float],
    finished_s: float,
) -> None:
    agents = 3 if topology == "Chain" else 2
    models = [1, 0, 0, 1][: len(b_rem_s)]
    result = run_query(
        topology,
        agents,
        20.0,
        lambda node, remaining_s: (models[node.index], 0),
        lambda node, repeat, model, strategy: LATENCY_S[topology][node, repeat],
        execution,
    )
    assert [call.start_s for call in result.calls] == starts_s
    assert result.calls[-1].model == (0 if topology == "Chain" else 1)  # most used, or first
    assert [d.remaining_budget_s for d in result.decisions] == b_rem_s
    assert result.step_costs == pytest.approx(np.array(charged_s) / 20.0)
    assert result.latency_s == pytest.approx(sum(charged_s))
    assert result.finished_s == finished_s
