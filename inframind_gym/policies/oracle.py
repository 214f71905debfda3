"""The outcome of a query under a given recipe, known beforehand: for bounds alone.

A *recipe* is a topology, a number of agents, a kind of role and a route for every node. Every
random number of the simulator belongs to its place (`inframind_gym.simulator.rng`), so the outcome
of a recipe is a function of the episode's key and the query. `play` follows the rules of workflows
(`inframind_gym.simulator.workflow`) and answers (`inframind_gym.simulator.quality`)
without any server. It finds whether the query is solved, the work of each server, and the latency
at a given pace of the servers. The policy `clairvoyant` and the bounds use it; no contestant may.

*Work* is the least time that a server, alone on its GPU, spends on a call: its share of steps that
serve as many sequences as the server takes (`call_work_s`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import SIMULATOR, inner, make_jit
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
from inframind_gym.simulator.workflow.params import EnvParams
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import FINAL, FIRST, MAX_NODES, SECOND
from inframind_gym.simulator.workflow.workflow import SEQUENTIAL

jit: Final = make_jit(*SIMULATOR, Path(__file__))

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
        ("latency_s", "f8"),  # as the protocol counts it, at the given pace
        ("final_work_s", "f8"),  # work of the deciding call
        ("calls", "i4"),
        ("tokens", "i4"),
        ("final_model", "i4"),
        ("role", "i4"),  # index into ROLES
        ("right", "u4"),  # bit mask of nodes
        ("solved", "i4"),
    ],
    align=True,
)

# Pace of a server: a call takes wait_s + steps * step_s + the time for its own tokens.
PACE: Final = np.dtype(
    [
        ("wait_s", "f8"),  # until a call sent now is admitted
        ("step_s", "f8"),  # of a step, without the call's own tokens in the cache and its prompt
        ("factor", "f8"),  # of co-location, on the call's own tokens
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
    pace: NDArray[Any]  # (M,) PACE
    outcome: NDArray[Any]  # (1,) OUTCOME
    work_s: NDArray[np.float64]  # (M,) work of every server that counts
    node: NDArray[np.float64]  # (2, MAX_NODES) tokens and finish of every node


class Query(NamedTuple):
    """A query and the place of its random numbers."""

    key: Any  # of the episode, uint64
    ordinal: int  # position in the episode
    task: int
    length_z: float  # the query's own share of its answers' lengths


def make_oracle(params: EnvParams, card: NDArray[Any]) -> Oracle:
    """Return an oracle for idle servers, each alone on its GPU: no call can be faster.

    Args:
        params: constants of the run.
        card: (M,) CARD.
    """
    card = linear_cards(card)
    pace = np.zeros(len(card), PACE)
    pace["step_s"] = card["base_s"] + card["per_seq_s"] + card["per_new_token_s"]
    pace["factor"] = 1.0
    for m in np.flatnonzero(card["sparse_s"] > 0.0):
        active = 1.0 - math.exp(-1.0 / card[m]["sparse_tokens"])
        pace[m]["step_s"] += card[m]["sparse_s"] * active
    outcome, node = np.zeros(1, OUTCOME), np.zeros((2, MAX_NODES))
    return Oracle(params, card, pace, outcome, np.zeros(len(card)), node)


def recipes_of(keys: Sequence[RecipeKey]) -> NDArray[Any]:
    """Return recipes as an array, (r,) RECIPE."""
    out = np.zeros(len(keys), RECIPE)
    for recipe, (topology, agents, kind, routes) in zip(out, keys, strict=True):
        recipe["topology"], recipe["num_agents"], recipe["role_kind"] = topology, agents, kind
        recipe["route"][: len(routes)] = routes
    return out


@inner
def query_of(key: Any, ordinal: int, task: int) -> Query:
    """Return a query by its place in an episode."""
    return Query(key, ordinal, task, query_length_z(key, ordinal))


@inner
def cached_tokens_read(prompt: int, tokens: int) -> float:
    """Return the cached tokens that a call's decoding steps read, in all."""
    return float(tokens - 1) * prompt + 0.5 * float(tokens - 1) * (tokens - 2)


@inner
def own_prompt(card: Any, prompt: int) -> int:
    """Return the tokens of a prompt that have to be computed: all but the shared head."""
    if card.shared_prefix_tokens > 0:
        whole = (prompt - 1) // card.block_size * card.block_size
        return int(prompt - min(card.shared_prefix_tokens, whole))
    return prompt


@inner
def call_work_s(card: Any, prompt: int, tokens: int) -> float:
    """Return the least time that the server spends on a call, alone on its GPU, in seconds.

    Every step costs at least its share of `base_s` and of the sparse weights at `max_num_seqs`
    sequences: the sum over any calls is at most the time that the server is busy.
    """
    prompt = own_prompt(card, prompt)
    seqs = card.max_num_seqs
    base = card.base_s
    if card.sparse_s > 0.0:
        base += card.sparse_s * (1.0 - math.exp(-seqs / card.sparse_tokens))
    return float(
        tokens * (base / seqs + card.per_seq_s)
        + (prompt + tokens - 1) * card.per_new_token_s
        + cached_tokens_read(prompt, tokens) * card.per_kv_token_s
    )


@inner
def call_s(card: Any, pace: Any, prompt: int, tokens: int) -> float:
    """Return the seconds that a call takes at the given pace."""
    prompt = own_prompt(card, prompt)
    own = (prompt - 1) * card.per_new_token_s + cached_tokens_read(
        prompt, tokens
    ) * card.per_kv_token_s
    return float(pace.wait_s + tokens * pace.step_s + pace.factor * own)


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
def shows_tests(params: EnvParams, query: Query) -> bool:
    """Return whether the query's tests are visible, so that a right program can be recognised."""
    share = params.visible_tests[params.response.task_profile[query.task]]
    return bool(share > 0.0 and uniform(query.key, STREAM_TESTS, query.task, 0) < share)


@inner
def spend(
    oracle: Oracle, query: Query, call: int, phase: int, model: int, strategy: int, messages: int
) -> tuple[int, bool, float, float]:
    """Return a call's tokens, whether its answer is cut, its work and its seconds at the pace.

    Args:
        call: `call_id` of the call.
        phase: FIRST, SECOND or FINAL.
        model: who answers.
        strategy: of the call.
        messages: tokens of the answers that it reads.
    """
    params = oracle.params
    profile = int(params.response.task_profile[query.task])
    prompt = (
        params.task_tokens[query.task]
        + params.overhead_tokens[profile]
        + int(params.message_frac[profile] * messages)
    )
    prompt = int(min(prompt, params.max_prompt_tokens[model]))
    tokens, cut = answer_tokens(
        params.response,
        query.key,
        query.ordinal,
        query.task,
        query.length_z,
        call,
        phase,
        model,
        strategy,
    )
    work = call_work_s(oracle.card[model], prompt, tokens)
    return tokens, cut, work, call_s(oracle.card[model], oracle.pace[model], prompt, tokens)


@inner
def is_right(oracle: Oracle, query: Query, call: int, model: int, bonus: float, cut: bool) -> bool:
    """Return whether the answer of a call is right, given its bonus in logits."""
    tables = oracle.params.response
    return answer_right(tables, query.key, query.ordinal, query.task, call, model, bonus, cut)


@inner
def send(
    oracle: Oracle,
    query: Query,
    node: int,
    phase: int,
    model: int,
    strategy: int,
    role: int,
    structure: int,
    reads: Any,
    right: Any,
    messages: int,
) -> tuple[int, float, bool]:
    """Make a call; return its tokens, its seconds and whether its answer is right."""
    params, outcome = oracle.params, oracle.outcome[0]
    call = call_id(node, phase, model, strategy)
    tokens, cut, work, seconds = spend(oracle, query, call, phase, model, strategy, messages)
    bonus = answer_bonus(
        params.response,
        params.role_fit,
        query.task,
        role,
        node,
        phase,
        strategy,
        structure,
        reads,
        right,
    )
    if phase == FINAL:
        outcome.final_work_s = work
    if phase != FINAL or params.settings[0].execution != SEQUENTIAL:
        oracle.work_s[model] += work
    outcome.calls += 1
    outcome.tokens += tokens
    return tokens, seconds, is_right(oracle, query, call, model, bonus, cut)


@inner
def play(oracle: Oracle, query: Query, recipe: Any) -> None:
    """Carry out a query by a recipe, without servers.

    It writes the oracle's `outcome` and `work_s`. In sequential execution the deciding call is not
    waited for, and its work is left out.

    Args:
        recipe: a RECIPE record.
    """
    params, outcome = oracle.params, oracle.outcome[0]
    node_tokens, node_end_s = oracle.node[0], oracle.node[1]
    for m in range(oracle.work_s.shape[0]):
        oracle.work_s[m] = 0.0
    outcome.calls = 0
    outcome.tokens = 0
    strategies = params.strategy_cdf.shape[1]
    graphs = params.graphs
    topology, agents = int(recipe.topology), int(recipe.num_agents)
    nodes = int(graphs.num_nodes[topology, agents - 1])
    structure = int(graphs.structure[topology, agents - 1])
    role = best_role(params, query.task, recipe.role_kind)
    profile = int(params.response.task_profile[query.task])
    twice = graphs.calls_per_node[topology] == 2 or params.role_calls[profile, role] == 2
    tested = shows_tests(params, query)
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
        model = int(recipe.route[node]) // strategies
        strategy = int(recipe.route[node]) % strategies
        tokens, seconds, good = send(
            oracle, query, node, FIRST, model, strategy, role, structure, before, right, messages
        )
        start_s += seconds
        right = right | bit if good else right & ~bit
        if twice:
            messages += tokens
            read = before | bit
            tokens, seconds, good = send(
                oracle, query, node, SECOND, model, strategy, role, structure, read, right, messages
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
    final = most_used(recipe, nodes, strategies)
    tokens, seconds, good = send(
        oracle,
        query,
        0,
        FINAL,
        final,
        FINAL_STRATEGY,
        role,
        structure,
        everyone,
        right,
        messages,
    )
    if params.settings[0].execution != SEQUENTIAL:
        latest_s += seconds
    outcome.latency_s = latest_s
    outcome.role = role
    outcome.final_model = final
    outcome.right = right
    outcome.solved = 1 if good else 0


@inner
def most_used(recipe: Any, nodes: int, strategies: int) -> int:
    """Return the model of most nodes; among equals the one used first."""
    best = int(recipe.route[0]) // strategies
    most = 0
    for node in range(nodes):
        model = int(recipe.route[node]) // strategies
        uses = 0
        for other in range(node, nodes):
            uses += int(recipe.route[other]) // strategies == model
        if uses > most:
            most = uses
            best = model
    return best


@jit
def play_all(
    oracle: Oracle,
    key: int,
    ordinals: NDArray[np.int64],
    tasks: NDArray[np.int64],
    recipes: NDArray[Any],
    outcomes: NDArray[Any],
    work_s: NDArray[np.float64],
) -> None:
    """Carry out every query of an episode by every recipe.

    Args:
        key: of the episode.
        ordinals: (n,) positions of the queries; `tasks` (n,) likewise.
        recipes: (r,) RECIPE.
        outcomes: (r, n) OUTCOME, written.
        work_s: (r, n, M) written.
    """
    for q in range(tasks.shape[0]):
        query = query_of(key, ordinals[q], tasks[q])
        for i in range(recipes.shape[0]):
            play(oracle, query, recipes[i])
            outcomes[i, q] = oracle.outcome[0]
            for m in range(work_s.shape[2]):
                work_s[i, q, m] = oracle.work_s[m]


@jit
def work_of_calls(card: NDArray[Any], calls: NDArray[Any], work_s: NDArray[np.float64]) -> None:
    """Add up the work of the calls of every query.

    Args:
        card: (M,) CARD, linear.
        calls: (c,) CALL.
        work_s: (queries, M), added to.
    """
    for i in range(calls.shape[0]):
        call = calls[i]
        m = call.model
        work_s[call.query, m] += call_work_s(card[m], call.prompt_tokens, call.output_tokens)


def outcomes_of(
    oracle: Oracle, key: Any, tasks: NDArray[np.int64], recipes: NDArray[Any], first: int = 0
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return the outcome and the work of queries by every recipe, (r, n) OUTCOME and (r, n, M).

    Args:
        key: of the episode, uint64.
        tasks: (n,) of its queries from ordinal `first` on.
        recipes: (r,) RECIPE.
    """
    shape = (len(recipes), len(tasks))
    outcomes, work_s = np.zeros(shape, OUTCOME), np.zeros((*shape, len(oracle.card)))
    ordinals = np.arange(first, first + len(tasks))
    play_all(oracle, key, ordinals, tasks.astype(np.int64), recipes, outcomes, work_s)
    return outcomes, work_s
