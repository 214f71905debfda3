"""The outcome of a query under a given recipe, known beforehand: for bounds alone.

A *recipe* is a topology, a number of agents, a kind of role and a route for every node. Every
random number of the simulator belongs to its place (`inframind_gym.simulator.rng`), so the outcome
of a recipe is a function of the episode's key and the query. `play` follows the rules of workflows
(`inframind_gym.simulator.workflow`) and answers (`inframind_gym.simulator.quality`)
without any server. It finds whether the query is solved, the work of each server, and the latency
on idle servers. The bounds (`inframind_gym.evaluation.bounds`) use it; no contestant may.

*Work* is the least time that a server, alone on its GPU, spends on a call: its share of steps that
serve as many sequences as the server takes (`call_cost_s`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

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

RECIPE: Final = np.dtype(
    [
        ("topology", "i1"),
        ("num_agents", "i1"),
        ("role_kind", "i1"),  # RoleRule, of which all agents take the role that fits best
        ("route", "i1", (MAX_NODES,)),  # m * S + s of every node
    ],
    align=True,
)
RecipeKey = tuple[int, int, int, tuple[int, ...]]  # the same as plain values

OUTCOME: Final = np.dtype(
    [
        ("latency_s", "f8"),  # as the protocol counts it, on idle servers
        ("calls", "i4"),
        ("tokens", "i4"),
        ("final_model", "i4"),
        ("role", "i4"),  # index into ROLES
        ("right", "u4"),  # bit mask of nodes
        ("solved", "i4"),
    ],
    align=True,
)

_ONE = np.uint32(1)
_SINGLE, _DOUBLE, _CODER = (int(rule) for rule in RoleRule)
_DEBATE = 3  # index into TOPOLOGIES


class Oracle(NamedTuple):
    """Constants and servers that outcomes depend on, and the outcome of the last recipe."""

    params: EnvParams
    card: NDArray[Any]  # (M,) CARD, linear: no step is shorter
    step_s: NDArray[np.float64]  # (M,) of a step of one sequence, without its cached tokens
    outcome: NDArray[Any]  # (1,) OUTCOME
    work_s: NDArray[np.float64]  # (M,) work of every server that counts
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
    outcome, node = np.zeros(1, OUTCOME), np.zeros((2, MAX_NODES))
    return Oracle(params, card, step_s, outcome, np.zeros(len(card)), node)


def recipes_of(keys: Sequence[RecipeKey]) -> NDArray[Any]:
    """Return recipes as an array, (r,) RECIPE."""
    out = np.zeros(len(keys), RECIPE)
    for recipe, (topology, agents, kind, routes) in zip(out, keys, strict=True):
        recipe["topology"], recipe["num_agents"], recipe["role_kind"] = topology, agents, kind
        recipe["route"][: len(routes)] = routes
    return out


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
    for attempt in range(2):
        for role in range(first, first + params.role_count[domain]):
            calls = params.role_calls[profile, role]
            if attempt == 0 and kind == _CODER and (calls != 1 or params.role_codes[role] == 0):
                continue
            if attempt == 0 and kind == _DOUBLE and calls == 1:
                continue
            if (attempt == 1 or kind == _SINGLE) and calls != 1:
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
) -> tuple[int, float, bool]:
    """Make a call; return its tokens, its seconds and whether its answer is right."""
    params, outcome = oracle.params, oracle.outcome[0]
    tables, task = params.response, query.task
    model, strategy = divmod(route, params.strategy_cdf.shape[1])
    call = call_id(node, phase, model, strategy)
    profile = int(tables.task_profile[task])
    read_tokens = int(params.message_frac[profile] * messages)
    prompt = params.task_tokens[task] + params.overhead_tokens[profile] + read_tokens
    prompt = int(min(prompt, params.max_prompt_tokens[model]))
    key, ordinal, z, role = query.key, query.ordinal, query.length_z, query.role
    tokens, cut = answer_tokens(tables, key, ordinal, task, z, call, phase, model, strategy)
    work_s, seconds = call_cost_s(oracle.card[model], oracle.step_s[model], prompt, tokens)
    fit, graph = params.role_fit, query.structure
    bonus = answer_bonus(tables, fit, task, role, node, phase, strategy, graph, reads, right)
    if phase != FINAL or params.settings[0].execution != SEQUENTIAL:
        oracle.work_s[model] += work_s
    outcome.calls += 1
    outcome.tokens += tokens
    return tokens, seconds, answer_right(tables, key, ordinal, task, call, model, bonus, cut)


@inner
def play(oracle: Oracle, key: Any, ordinal: int, task: int, recipe: Any) -> None:
    """Carry out the query of an ordinal in an episode by a RECIPE, without servers.

    It writes the oracle's `outcome` and `work_s`. In sequential execution the deciding call is not
    waited for, and its work is left out.
    """
    params, outcome = oracle.params, oracle.outcome[0]
    node_tokens, node_end_s = oracle.node[0], oracle.node[1]
    oracle.work_s[:] = 0.0
    outcome.calls = 0
    outcome.tokens = 0
    graphs = params.graphs
    topology, agents = int(recipe.topology), int(recipe.num_agents)
    nodes = int(graphs.num_nodes[topology, agents - 1])
    structure = int(graphs.structure[topology, agents - 1])
    role = best_role(params, task, recipe.role_kind)
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
        start_s = 0.0
        messages = 0
        for other in range(node):
            if before >> np.uint32(other) & _ONE:
                start_s = max(start_s, node_end_s[other])
                messages += int(node_tokens[other])
        if tested and before & proven:  # it hands on a program that passes its tests
            first = 0
            while not (before & proven) >> np.uint32(first) & _ONE:
                first += 1
            node_tokens[node] = node_tokens[first]
            node_end_s[node] = start_s
            right |= bit
            proven |= bit
            latest_s = max(latest_s, start_s)
            continue
        route, tokens, good = int(recipe.route[node]), 0, False
        for phase in (FIRST, SECOND):
            if phase == FIRST or twice:
                messages += tokens
                reads = before if phase == FIRST else before | bit
                tokens, seconds, good = send(
                    oracle, query, node, phase, route, reads, right, messages
                )
                start_s += seconds
                right = right | bit if good else right & ~bit
        if good and params.role_codes[role] == 1:
            proven |= bit
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
    final, most = int(recipe.route[0]) // strategies, 0  # of most nodes; of equals the first one
    for node in range(nodes):
        model, uses = int(recipe.route[node]) // strategies, 0
        for other in range(node, nodes):
            uses += int(recipe.route[other]) // strategies == model
        if uses > most:
            final, most = model, uses
    route = final * strategies + FINAL_STRATEGY
    tokens, seconds, good = send(oracle, query, 0, FINAL, route, everyone, right, messages)
    if params.settings[0].execution != SEQUENTIAL:
        latest_s += seconds
    outcome.latency_s = latest_s
    outcome.role = role
    outcome.final_model = final
    outcome.right = right
    outcome.solved = 1 if good else 0


@jit
def play_all(
    oracle: Oracle,
    key: int,  # of the episode
    ordinals: NDArray[np.int64],  # (n,) of the queries
    tasks: NDArray[np.int64],  # (n,) of the queries
    recipes: NDArray[Any],  # (r,) RECIPE
    outcomes: NDArray[Any],  # (r, n) OUTCOME, written
    work_s: NDArray[np.float64],  # (r, n, M) written
) -> None:
    """Carry out every query of an episode by every recipe."""
    for q in range(tasks.shape[0]):
        for i in range(recipes.shape[0]):
            play(oracle, key, ordinals[q], tasks[q], recipes[i])
            outcomes[i, q] = oracle.outcome[0]
            for m in range(work_s.shape[2]):
                work_s[i, q, m] = oracle.work_s[m]


@jit
def work_of_calls(oracle: Oracle, calls: NDArray[Any], work_s: NDArray[np.float64]) -> None:
    """Add the work of calls (c,) CALL to that of their queries and servers, (queries, M)."""
    for i in range(calls.shape[0]):
        call = calls[i]
        m = call.model
        prompt, tokens = call.prompt_tokens, call.output_tokens
        work_s[call.query, m] += call_cost_s(oracle.card[m], oracle.step_s[m], prompt, tokens)[0]


def outcomes_of(
    oracle: Oracle, key: Any, tasks: NDArray[np.int64], recipes: NDArray[Any], first: int = 0
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return the outcome and the work of queries by every recipe, (r, n) OUTCOME and (r, n, M).

    The queries are those of an episode's key (uint64) from ordinal `first` on, of `tasks` (n,).
    """
    shape = (len(recipes), len(tasks))
    outcomes, work_s = np.zeros(shape, OUTCOME), np.zeros((*shape, len(oracle.card)))
    ordinals = np.arange(first, first + len(tasks))
    play_all(oracle, key, ordinals, tasks.astype(np.int64), recipes, outcomes, work_s)
    return outcomes, work_s
