"""What would come of a query if it were carried out by a given recipe: compiled foresight.

A *recipe* is a topology, a number of agents, a kind of role and a route for every node. In the
surrogate all luck belongs to its place (`inframind_gym.simulator.rng`), so the outcome of a recipe is a
function of the sweep's key and the query: `play` follows the rules of the workflow
(`orchestration/machine.py`) and of the answers (`quality/response.py`) without any server. It
tells whether the query is solved, how much work each server does for it, and when it is over at a
given pace of the servers. No policy that is a contestant may ask; `clairvoyant` and the bounds do.

*Work* is the least time that a server, alone on its GPU, spends on a call: its share of steps that
serve as many sequences as the server takes (`call_work_s`).
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.quality import (
    FINAL_STRATEGY,
    answer_bonus,
    answer_right,
    answer_tokens,
    call_id,
)
from inframind_gym.simulator.rng import STREAM_TESTS, uniform
from inframind_gym.simulator.workflow.params import EnvParams
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import FINAL, FIRST, MAX_NODES, SECOND
from inframind_gym.simulator.workflow.workflow import SEQUENTIAL

# A way to carry out a query.
RECIPE: Final = np.dtype(
    [
        ("topology", "i1"),
        ("num_agents", "i1"),
        ("role_kind", "i1"),  # RoleRule, of which all agents take the role that fits best
        ("route", "i1", (MAX_NODES,)),  # m * S + s of every node
    ],
    align=True,
)

# What comes of it.
OUTCOME: Final = np.dtype(
    [
        ("latency_s", "f8"),  # as the protocol counts it, at the given pace
        ("final_work_s", "f8"),  # work of the deciding call
        ("calls", "i4"),
        ("tokens", "i4"),
        ("final_model", "i4"),
        ("right", "u4"),  # bit mask of nodes
        ("solved", "i4"),
    ],
    align=True,
)

# How fast a server answers: a call takes wait_s + steps * step_s + the time for its own tokens.
PACE: Final = np.dtype(
    [
        ("wait_s", "f8"),  # until a call sent now is admitted
        ("step_s", "f8"),  # of a step, without the call's own tokens in the cache and its prompt
        ("factor", "f8"),  # of co-location, on what the call itself adds
    ],
    align=True,
)

_ONE = np.uint32(1)
_SINGLE, _DOUBLE, _CODER = (int(rule) for rule in RoleRule)
_DEBATE = 3  # index into TOPOLOGIES


@inner
def cached_tokens_read(prompt: int, tokens: int) -> float:
    """Sum over the decoding steps of a call of the cached tokens that each one reads."""
    return float(tokens - 1) * prompt + 0.5 * float(tokens - 1) * (tokens - 2)


@inner
def own_prompt(card: Any, prompt: int) -> int:
    """Tokens of a prompt that have to be computed: all but the shared head."""
    if card.shared_prefix_tokens > 0:
        whole = (prompt - 1) // card.block_size * card.block_size
        return int(prompt - min(card.shared_prefix_tokens, whole))
    return prompt


@inner
def call_work_s(card: Any, prompt: int, tokens: int) -> float:
    """Least time that the server spends on a call, alone on its GPU, in seconds.

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
    """Seconds that a call takes at the given pace."""
    prompt = own_prompt(card, prompt)
    own = (prompt - 1) * card.per_new_token_s + cached_tokens_read(
        prompt, tokens
    ) * card.per_kv_token_s
    return float(pace.wait_s + tokens * pace.step_s + pace.factor * own)


@inner
def idle_pace(card: Any, pace: Any) -> None:
    """The pace of an idle server, alone on its GPU: no call can be faster."""
    pace.wait_s = 0.0
    pace.step_s = card.base_s + card.per_seq_s + card.per_new_token_s
    if card.sparse_s > 0.0:
        pace.step_s += card.sparse_s * (1.0 - math.exp(-1.0 / card.sparse_tokens))
    pace.factor = 1.0


@inner
def best_role(params: EnvParams, task: int, kind: int) -> int:
    """Index into ROLES of the role of a `RoleRule` that fits the task best; else of SINGLE."""
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
    params: EnvParams,
    card: Any,
    pace: Any,
    key: int,
    ordinal: int,
    task: int,
    length_z: float,
    node: int,
    phase: int,
    model: int,
    strategy: int,
    role: int,
    reads: Any,
    right: Any,
    messages: int,
    work_s: Any,
    outcome: Any,
) -> tuple[int, float, bool]:
    """One call: its tokens, its seconds at the pace, and whether its answer is right."""
    profile = int(params.response.task_profile[task])
    prompt = (
        params.task_tokens[task]
        + params.overhead_tokens[profile]
        + int(params.message_frac[profile] * messages)
    )
    prompt = int(min(prompt, params.max_prompt_tokens[model]))
    call = call_id(node, phase, model, strategy)
    tokens, cut = answer_tokens(
        params.response, key, ordinal, task, length_z, call, model, strategy
    )
    bonus = answer_bonus(
        params.response, params.role_fit, task, role, node, phase, strategy, reads, right
    )
    good = answer_right(params.response, key, ordinal, task, call, model, bonus, cut)
    work = call_work_s(card[model], prompt, tokens)
    if phase == FINAL:
        outcome.final_work_s = work
    if phase != FINAL or params.settings[0].execution != SEQUENTIAL:
        work_s[model] += work
    outcome.calls += 1
    outcome.tokens += tokens
    return tokens, call_s(card[model], pace[model], prompt, tokens), good


@inner
def play(
    params: EnvParams,
    card: Any,
    pace: Any,
    key: int,
    ordinal: int,
    task: int,
    length_z: float,
    recipe: Any,
    scratch: Any,
    work_s: Any,
    outcome: Any,
) -> None:
    """Carry out a query by a recipe, without servers.

    Args:
        params: constants of the run.
        card: (M,) CARD.
        pace: (M,) PACE.
        key: of the sweep's random numbers.
        ordinal: the query's position in the sweep.
        task: what it asks.
        length_z: the query's own share of its answers' lengths.
        recipe: a RECIPE record.
        scratch: (2, MAX_NODES) float64: tokens and finish of every node.
        work_s: (M,) written: work of every server that counts: under the published protocol the
            deciding call is not waited for, and left out.
        outcome: an OUTCOME record, written.
    """
    for m in range(work_s.shape[0]):
        work_s[m] = 0.0
    outcome.calls = 0
    outcome.tokens = 0
    strategies = params.strategy_cdf.shape[1]
    profile = int(params.response.task_profile[task])
    graphs = params.graphs
    topology, agents = int(recipe.topology), int(recipe.num_agents)
    nodes = int(graphs.num_nodes[topology, agents - 1])
    role = best_role(params, task, recipe.role_kind)
    twice = graphs.calls_per_node[topology] == 2 or params.role_calls[profile, role] == 2
    share = params.visible_tests[profile]
    tested = share > 0.0 and uniform(key, STREAM_TESTS, task, 0) < share
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
                start_s = max(start_s, scratch[1, other])
                messages += int(scratch[0, other])
        if tested and before & proven:
            first = 0
            while not (before & proven) >> np.uint32(first) & _ONE:
                first += 1
            scratch[0, node] = scratch[0, first]
            scratch[1, node] = start_s
            right |= bit
            proven |= bit
            latest_s = max(latest_s, start_s)
            continue
        model = int(recipe.route[node]) // strategies
        strategy = int(recipe.route[node]) % strategies
        tokens, seconds, good = send(
            params, card, pace, key, ordinal, task, length_z, node, FIRST, model, strategy, role,
            before, right, messages, work_s, outcome,
        )  # fmt: skip
        start_s += seconds
        if twice:
            right = right | bit if good else right & ~bit
            tokens, seconds, good = send(
                params, card, pace, key, ordinal, task, length_z, node, SECOND, model, strategy,
                role, before | bit, right, messages + tokens, work_s, outcome,
            )  # fmt: skip
            start_s += seconds
        right = right | bit if good else right & ~bit
        if good and params.role_codes[role] == 1:
            proven |= bit
        scratch[0, node] = tokens
        scratch[1, node] = start_s
        latest_s = max(latest_s, start_s)

    everyone = (_ONE << np.uint32(nodes)) - _ONE
    if topology == _DEBATE:
        everyone = everyone & ~((_ONE << np.uint32(agents)) - _ONE)
    messages = 0
    for node in range(nodes):
        if everyone >> np.uint32(node) & _ONE:
            messages += int(scratch[0, node])
    final = most_used(recipe, nodes, strategies)
    tokens, seconds, good = send(
        params, card, pace, key, ordinal, task, length_z, 0, FINAL, final, FINAL_STRATEGY, role,
        everyone, right, messages, work_s, outcome,
    )  # fmt: skip
    if params.settings[0].execution != SEQUENTIAL:
        latest_s += seconds
    outcome.latency_s = latest_s
    outcome.final_model = final
    outcome.right = right
    outcome.solved = 1 if good else 0


@inner
def most_used(recipe: Any, nodes: int, strategies: int) -> int:
    """The model of most nodes; among equals the one used first (`machine.most_used_model`)."""
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
