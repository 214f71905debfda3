"""The outcome of a query under a given recipe, without servers: for bounds alone.

A `Recipe` is a topology, a number of agents, a kind of role and a route for every node. Every
random number of the simulator depends on its place alone (`inframind_gym.simulator.rng`), so the
outcome of a recipe is a function of the episode's key and the query. `play` follows the rules of
workflows (`inframind_gym.simulator.workflow`) and answers (`inframind_gym.simulator.quality`). It
returns whether the query is solved, the work of each server, and the latency on idle servers. The
bounds (`inframind_gym.evaluation.bounds`) use it; no ranked policy may.

*Work* is the least time that a server, alone on its GPU, spends on a call: its share of steps that
serve as many sequences as the server takes (`call_cost_s`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import inner, jit
from inframind_gym.simulator.quality import (
    FINAL_STRATEGY,
    answer_bonus,
    answer_right,
    answer_tokens,
    call_id,
    query_length_z,
)
from inframind_gym.simulator.rng import STREAM_TESTS, uniform
from inframind_gym.simulator.server.state import linear_cards
from inframind_gym.simulator.workflow.lifecycle import SEQUENTIAL
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.state import EnvParams
from inframind_gym.simulator.workflow.topology import FINAL, FIRST, MAX_NODES, SECOND

_ONE = np.uint32(1)
_SINGLE, _DOUBLE, _CODER = (int(rule) for rule in RoleRule)
_DEBATE = 3  # index into TOPOLOGIES


class Recipe(NamedTuple):
    """A way to carry out a query."""

    topology: int  # index into TOPOLOGIES
    num_agents: int
    role_kind: int  # RoleRule, of which all agents take the role that fits best
    routes: tuple[int, ...]  # m * S + s of every node


class Oracle(NamedTuple):
    """Constants and servers that outcomes depend on, and scratch space."""

    params: EnvParams
    card: NDArray[Any]  # (M,) CARD, linear: no step is shorter
    step_s: NDArray[np.float64]  # (M,) of a step of one sequence, without its cached tokens
    node: NDArray[np.float64]  # (2, MAX_NODES) tokens and finish of every node


class Query(NamedTuple):
    """A query, the place of its random numbers, and what all of its calls share."""

    key: Any  # of the episode, uint64
    ordinal: int  # position in the episode
    task: int
    length_z: float  # the query's own share of its answers' lengths
    role: int  # index into ROLES, of every agent
    structure: int  # of the recipe's graph


def make_oracle(params: EnvParams, card: NDArray[Any]) -> Oracle:
    """Return an oracle for idle servers (M,) CARD, each alone on its GPU: no call can be faster."""
    card = linear_cards(card)
    step_s = card["base_s"] + card["per_seq_s"] + card["per_new_token_s"]
    for m in np.flatnonzero(card["sparse_s"] > 0.0):
        step_s[m] += card[m]["sparse_s"] * (1.0 - math.exp(-1.0 / card[m]["sparse_tokens"]))
    return Oracle(params, card, step_s, np.zeros((2, MAX_NODES)))


def outcomes_of(
    oracle: Oracle, key: Any, tasks: NDArray[np.int64], recipe: Recipe
) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.float64]]:
    """Return the outcomes of the first queries of an episode, all carried out by one recipe.

    Args:
        oracle: Constants of the servers.
        key: The episode's key, uint64.
        tasks: (n,) tasks of the queries.
        recipe: The recipe of every query.

    Returns:
        Whether each query is solved, its latency on idle servers, both (n,), and the work of every
        server, (n, M).
    """
    n = len(tasks)
    solved, latency_s = np.zeros(n, np.bool_), np.zeros(n)
    work_s = np.zeros((n, len(oracle.card)))
    topology, agents, kind = map(int, recipe[:3])  # of a RoleRule, too
    route = np.array(recipe.routes, np.int64)
    play_all(oracle, key, tasks, topology, agents, kind, route, solved, latency_s, work_s)
    return solved, latency_s, work_s


@jit
def play_all(
    oracle: Oracle,
    key: int,  # of the episode
    tasks: NDArray[np.int64],  # (n,) of the queries
    topology: int,  # of the recipe, as the next three
    agents: int,
    kind: int,
    route: NDArray[np.int64],  # (nodes,)
    solved: NDArray[np.bool_],  # (n,) written, as the next two
    latency_s: NDArray[np.float64],  # (n,)
    work_s: NDArray[np.float64],  # (n, M)
) -> None:
    """Carry out every query of an episode by a recipe."""
    for q in range(tasks.shape[0]):
        solved[q], latency_s[q] = play(
            oracle, key, q, tasks[q], topology, agents, kind, route, work_s[q]
        )


@jit
def work_of_calls(oracle: Oracle, calls: NDArray[Any], work_s: NDArray[np.float64]) -> None:
    """Add the work of calls (c,) CALL to that of their queries and servers, (queries, M)."""
    for i in range(calls.shape[0]):
        call = calls[i]
        m = call.model
        prompt, tokens = call.prompt_tokens, call.output_tokens
        work_s[call.query, m] += call_cost_s(oracle.card[m], oracle.step_s[m], prompt, tokens)[0]


@inner
def call_cost_s(card: Any, step_s: float, prompt: int, tokens: int) -> tuple[float, float]:
    """Return the work of a call, and the seconds that it takes on an idle server.

    Work is the least time that the server spends on it, alone on its GPU: every step costs at least
    its share of `base_s` and of the sparse weights at `max_num_seqs` sequences, so the sum over any
    calls is at most the time that the server is busy.
    """
    if card.shared_prefix_tokens > 0:  # the shared head of prompts is not computed
        head = (prompt - 1) // card.block_size * card.block_size
        prompt = int(prompt - min(card.shared_prefix_tokens, head))
    seqs, base = card.max_num_seqs, card.base_s
    if card.sparse_s > 0.0:
        base += card.sparse_s * (1.0 - math.exp(-seqs / card.sparse_tokens))
    # Cached tokens that the decoding steps read, in all.
    read = float(tokens - 1) * prompt + 0.5 * float(tokens - 1) * (tokens - 2)
    read_s = read * card.per_kv_token_s
    work_s = tokens * (base / seqs + card.per_seq_s)
    work_s = work_s + (prompt + tokens - 1) * card.per_new_token_s + read_s
    seconds = (prompt - 1) * card.per_new_token_s + read_s
    return float(work_s), float(tokens * step_s + seconds)


@inner
def best_role(params: EnvParams, task: int, kind: int) -> int:
    """Return the index into ROLES of the best fitting role of a `RoleRule`; else of SINGLE."""
    domain = params.task_domain[task]
    profile = params.response.task_profile[task]
    first = params.role_start[domain]
    best = -1
    for rule in (kind, _SINGLE):
        for role in range(first, first + params.role_count[domain]):
            once = params.role_calls[profile, role] == 1
            if once == (rule == _DOUBLE) or (rule == _CODER and params.role_codes[role] == 0):
                continue
            if best < 0 or params.role_fit[task, role] > params.role_fit[task, best]:
                best = role
        if best >= 0:
            break
    return max(int(best), int(first))


@inner
def send(
    oracle: Oracle,
    query: Query,
    node: int,  # that calls
    phase: int,  # FIRST, SECOND or FINAL
    route: int,  # model and strategy, m * S + s
    reads: Any,  # bit mask of the nodes whose answers it reads
    right: Any,  # and of those whose answer is right
    messages: int,  # tokens of the answers that it reads
    work_s: Any,  # (M,) of the servers, to which its own is added
) -> tuple[int, float, bool]:
    """Make a call; return its tokens, its seconds and whether its answer is right."""
    params = oracle.params
    tables, task = params.response, query.task
    model, strategy = divmod(route, params.strategy_cdf.shape[1])
    call = call_id(node, phase, model, strategy)
    profile = int(tables.task_profile[task])
    read_tokens = int(params.message_frac[profile] * messages)
    prompt = params.task_tokens[task] + params.overhead_tokens[profile] + read_tokens
    prompt = int(min(prompt, params.max_prompt_tokens[model]))
    key, ordinal, z, role = query.key, query.ordinal, query.length_z, query.role
    tokens, cut = answer_tokens(tables, key, ordinal, task, z, call, phase, model, strategy)
    work, seconds = call_cost_s(oracle.card[model], oracle.step_s[model], prompt, tokens)
    fit, graph = params.role_fit, query.structure
    bonus = answer_bonus(tables, fit, task, role, node, phase, strategy, graph, reads, right)
    if phase != FINAL or params.settings[0].execution != SEQUENTIAL:
        work_s[model] += work
    return tokens, seconds, answer_right(tables, key, ordinal, task, call, model, bonus, cut)


@inner
def play(
    oracle: Oracle,
    key: Any,
    ordinal: int,
    task: int,
    topology: int,
    agents: int,
    kind: int,
    route: Any,
    work_s: Any,
) -> tuple[bool, float]:
    """Carry out the query of an ordinal in an episode by a recipe, without servers.

    In sequential execution the deciding call is not waited for, and its work is left out.

    Returns:
        Whether it is solved, and its latency; the work is added to `work_s` (M,).
    """
    params = oracle.params
    node_tokens, node_end_s = oracle.node[0], oracle.node[1]
    graphs = params.graphs
    nodes = int(graphs.num_nodes[topology, agents - 1])
    structure = int(graphs.structure[topology, agents - 1])
    role = best_role(params, task, kind)
    query = Query(key, ordinal, task, query_length_z(key, ordinal), role, structure)
    profile = int(params.response.task_profile[task])
    twice = graphs.calls_per_node[topology] == 2 or params.role_calls[profile, role] == 2
    share = params.visible_tests[profile]  # of queries whose tests tell a right program
    tested = bool(share > 0.0 and uniform(key, STREAM_TESTS, task, 0) < share)
    right = np.uint32(0)
    proven = np.uint32(0)
    latest_s = 0.0
    for node in range(nodes):
        bit = _ONE << np.uint32(node)
        before = graphs.predecessors[topology, agents - 1, node] | np.uint32(0)
        start_s, messages, known = 0.0, 0, -1  # a node before it whose program passes its tests
        for other in range(node):
            if before >> np.uint32(other) & _ONE:
                start_s = max(start_s, node_end_s[other])
                messages += int(node_tokens[other])
                if known < 0 and proven >> np.uint32(other) & _ONE:
                    known = other
        tokens, good = 0, False
        if tested and known >= 0:  # it hands that program on
            tokens, good = int(node_tokens[known]), True
        else:
            for phase in (FIRST, SECOND):
                if phase == FIRST or twice:
                    messages += tokens
                    reads = before if phase == FIRST else before | bit
                    tokens, seconds, good = send(
                        oracle, query, node, phase, route[node], reads, right, messages, work_s
                    )
                    start_s += seconds
                    right = right | bit if good else right & ~bit
        if good:
            right |= bit
            proven = proven | bit if params.role_codes[role] == 1 else proven
        node_tokens[node] = tokens
        node_end_s[node] = start_s
        latest_s = max(latest_s, start_s)

    everyone = (_ONE << np.uint32(nodes)) - _ONE
    if topology == _DEBATE:
        everyone = everyone & ~((_ONE << np.uint32(agents)) - _ONE)
    messages = 0
    for node in range(nodes):
        if everyone >> np.uint32(node) & _ONE:
            messages += min(int(node_tokens[node]), params.final_message_tokens[profile])
    strategies = params.strategy_cdf.shape[1]
    final, most = route[0] // strategies, 0  # of most nodes; of equals the first one
    for node in range(nodes):
        model, uses = route[node] // strategies, 0
        for other in range(node, nodes):
            uses += route[other] // strategies == model
        if uses > most:
            final, most = model, uses
    chosen = final * strategies + FINAL_STRATEGY
    _, seconds, good = send(oracle, query, 0, FINAL, chosen, everyone, right, messages, work_s)
    if params.settings[0].execution != SEQUENTIAL:
        latest_s += seconds
    return good, latest_s
