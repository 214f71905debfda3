"""The response model: an item-response model of right and wrong, log-normal answer lengths.

P(answer right) = σ(a·(ability[model, dataset] + strategy + role fit + information from the answers
it reads − difficulty[query])), less a penalty where the answer was cut at `max_output_tokens`. The
noise behind right and wrong has a part that belongs to (query, model), so two calls of one model
agree more than two models do; and every random number belongs to its place in the run, so the same
decisions have the same outcome (DESIGN §6).
"""

from __future__ import annotations

import math

from inframind_gym._jit import inner
from inframind_gym.quality.tables import ResponseTables
from inframind_gym.rng import (
    STREAM_CALL_ANSWER,
    STREAM_CALL_LENGTH,
    STREAM_MODEL_ABILITY,
    normal,
)

FINAL_STRATEGY = 0  # the deciding call answers straight away, like Flash
_SQRT_HALF = math.sqrt(0.5)


@inner
def call_id(node: int, phase: int, model: int, strategy: int) -> int:
    """Number of a call within its query, the same whenever the same thing is done."""
    return ((node * 4 + phase) * 64 + model) * 4 + strategy


@inner
def answer_tokens(
    tables: ResponseTables,
    key: int,
    ordinal: int,
    task: int,
    length_z: float,
    call: int,
    model: int,
    strategy: int,
) -> tuple[int, bool]:
    """Length of an answer in tokens, and whether it was cut at `max_output_tokens`."""
    p = tables.task_profile[task]
    profile = tables.profile[p]
    log_length = (
        tables.log_tokens[p, model]
        + tables.log_strategy[p, strategy]
        + profile.difficulty_slope * tables.task_difficulty[task]
        + profile.sigma_query * length_z
        + profile.sigma_call * normal(key, STREAM_CALL_LENGTH, ordinal, call)
    )
    limit = tables.max_output_tokens[0]
    tokens = math.exp(min(log_length, 20.0))
    if tokens > limit:
        return int(limit), True
    return max(int(tokens), 1), False


@inner
def latent_probability(z: float) -> float:
    """Φ(z): turns a standard normal latent into a uniform number."""
    return 0.5 * math.erfc(-z * _SQRT_HALF)


@inner
def answer_right(
    tables: ResponseTables,
    key: int,
    ordinal: int,
    task: int,
    call: int,
    model: int,
    bonus: float,
    truncated: bool,
) -> bool:
    """Whether an answer is right.

    Args:
        tables: constants of the response model.
        key: of the sweep's random numbers.
        ordinal: the query's position in the sweep.
        task: what it asks.
        call: `call_id` of the call.
        model: who answers.
        bonus: logits for strategy, role and the answers read.
        truncated: the answer was cut.
    """
    p = tables.task_profile[task]
    profile = tables.profile[p]
    logit = profile.discrimination * (
        tables.ability[p, model] + bonus - profile.difficulty_sd * tables.task_difficulty[task]
    )
    if truncated:
        logit -= profile.truncated_logit_penalty
    shared = profile.latent_correlation
    z = math.sqrt(shared) * normal(key, STREAM_MODEL_ABILITY, ordinal, model) + math.sqrt(
        1.0 - shared
    ) * normal(key, STREAM_CALL_ANSWER, ordinal, call)
    return latent_probability(z) < 1.0 / (1.0 + math.exp(-logit))
