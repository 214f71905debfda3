"""The quality model: an item-response model of right and wrong, log-normal answer lengths.

P(answer right) = σ(a·(ability[model, dataset] + strategy + role fit + information from the answers
it reads − difficulty[query])), of which an answer cut at `max_output_tokens` keeps a share. The
call that decides gains by the structure of the workflow, too. The noise behind right and wrong has
a part shared by all calls of (query, model), so two calls of one model agree more than two models
do. Every random number is a function of its place in the run: same decisions, same outcome.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.rng import (
    STREAM_CALL_ANSWER,
    STREAM_CALL_LENGTH,
    STREAM_MODEL_ABILITY,
    STREAM_QUERY_LENGTH,
    normal,
)
from inframind_gym.simulator.workflow.topology import FINAL, SECOND, STRATEGIES, STRUCTURES
from inframind_gym.simulator.workload import TaskProfile
from inframind_gym.tasks import TaskSet

FINAL_STRATEGY = 0  # the deciding call answers straight away, like Flash
_SQRT_HALF = math.sqrt(0.5)
_ONE = np.uint32(1)

# Response model and lengths of one dataset: fields of its OutputProfile and its QualityProfile.
OUTPUT_FIELDS: Final = ("sigma_query", "sigma_call", "difficulty_slope")
_GAINS: Final = ("role_gain", "info_gain", "final_info_gain", "reflection_gain")
_SHARES: Final = ("latent_correlation", "truncated_right_frac")
QUALITY_FIELDS: Final = ("discrimination", "difficulty_sd", *_GAINS, *_SHARES)
PROFILE: Final = np.dtype([(f, "f8") for f in OUTPUT_FIELDS + QUALITY_FIELDS], align=True)


class ResponseTables(NamedTuple):
    """P profiles (datasets), M models, S strategies, T tasks."""

    profile: NDArray[Any]  # (P,) PROFILE
    log_tokens: NDArray[np.float64]  # (P, M) log of the median answer length
    ability: NDArray[np.float64]  # (P, M) logits
    log_strategy: NDArray[np.float64]  # (P, S) log of the strategy's length factor
    strategy_gain: NDArray[np.float64]  # (P, S) logits
    structure_gain: NDArray[np.float64]  # (P, STRUCTURES) logits
    log_final: NDArray[np.float64]  # (P,) log of the deciding call's length factor
    task_profile: NDArray[np.int32]  # (T,)
    task_difficulty: NDArray[np.float32]  # (T,) standard normal units
    max_output_tokens: NDArray[np.int64]  # (1,)


def response_tables(
    profiles: Sequence[TaskProfile],
    aliases: Sequence[str],
    tasks: TaskSet,
    task_profile: NDArray[np.int32],
    max_output_tokens: int,
) -> ResponseTables:
    """Tabulate the response model for the models `aliases` and the tasks.

    Args:
        profiles: (P) profile of each dataset.
        aliases: (M) the pool's models, in its order.
        tasks: the T tasks.
        task_profile: (T,) index into `profiles`.
        max_output_tokens: where answers are cut.
    """
    records = np.zeros(len(profiles), PROFILE)
    for record, profile in zip(records, profiles, strict=True):
        for field in OUTPUT_FIELDS:
            record[field] = getattr(profile.output, field)
        for field in QUALITY_FIELDS:
            record[field] = getattr(profile.quality, field)
    return ResponseTables(
        profile=records,
        log_tokens=np.array(
            [[math.log(p.models[a].output_tokens_median) for a in aliases] for p in profiles]
        ),
        ability=np.array([[p.models[a].ability for a in aliases] for p in profiles], np.float64),
        log_strategy=np.array(
            [[math.log(p.output.strategy_factor[s]) for s in STRATEGIES] for p in profiles]
        ),
        strategy_gain=np.array(
            [[p.quality.strategy_gain[s] for s in STRATEGIES] for p in profiles], np.float64
        ),
        structure_gain=np.array(
            [[p.quality.structure_gain[s] for s in STRUCTURES] for p in profiles], np.float64
        ),
        log_final=np.array([math.log(p.output.final_factor) for p in profiles], np.float64),
        task_profile=np.ascontiguousarray(task_profile, np.int32),
        task_difficulty=np.ascontiguousarray(tasks.difficulty, np.float32),
        max_output_tokens=np.array([max_output_tokens], np.int64),
    )


@inner
def call_id(node: int, phase: int, model: int, strategy: int) -> int:
    """Return the number of a call within its query, by which its random numbers are drawn."""
    return ((node * 4 + phase) * 64 + model) * 4 + strategy


@inner
def query_length_z(key: int, ordinal: int) -> Any:
    """Return the part that all of a query's answer lengths share: standard normal, float32."""
    return np.float32(normal(key, STREAM_QUERY_LENGTH, ordinal, 0))


@inner
def answer_tokens(
    tables: ResponseTables,
    key: int,
    ordinal: int,
    task: int,
    length_z: float,
    call: int,
    phase: int,
    model: int,
    strategy: int,
) -> tuple[int, bool]:
    """Return the length of an answer in tokens, and if it was cut at `max_output_tokens`."""
    p = tables.task_profile[task]
    profile = tables.profile[p]
    log_length = (
        tables.log_tokens[p, model]
        + tables.log_strategy[p, strategy]
        + profile.difficulty_slope * tables.task_difficulty[task]
        + profile.sigma_query * length_z
        + profile.sigma_call * normal(key, STREAM_CALL_LENGTH, ordinal, call)
    )
    if phase == FINAL:
        log_length += tables.log_final[p]
    limit = tables.max_output_tokens[0]
    tokens = math.exp(min(log_length, 20.0))
    if tokens > limit:
        return int(limit), True
    return max(int(tokens), 1), False


@inner
def was_cut(tables: ResponseTables, tokens: int) -> bool:
    """Return whether an answer of this length counts as cut: it fills the limit."""
    return bool(tokens >= tables.max_output_tokens[0])


@inner
def answer_bonus(
    tables: ResponseTables,
    role_fit: Any,
    task: int,
    role: int,
    node: int,
    phase: int,
    strategy: int,
    structure: int,
    reads: Any,
    right: Any,
) -> float:
    """Return the gain of an answer beyond the model's own ability, in logits.

    It comes from the strategy, the role and the answers that are read: right ones help and wrong
    ones mislead. The deciding call has no role but the gain of the workflow's structure. A SECOND
    call has the gain of reflection for the node's own first answer, which it reads.

    Args:
        role_fit: (T, R) how well a role suits a task; not used in the FINAL phase.
        structure: index into STRUCTURES; used in the FINAL phase only.
        reads, right: bit masks of the nodes whose answers are in the prompt, and right.
    """
    p = tables.task_profile[task]
    profile = tables.profile[p]
    bonus = tables.strategy_gain[p, strategy]
    gain = profile.final_info_gain
    others = reads
    if phase == FINAL:
        bonus += tables.structure_gain[p, structure]
    else:
        gain = profile.info_gain
        bonus += profile.role_gain * role_fit[task, role]
        if phase == SECOND:
            bonus += profile.reflection_gain
            others = reads & ~(_ONE << np.uint32(node))
    count = 0
    helping = 0
    while others:
        rest = others & (others - _ONE)
        count += 1
        helping += (others ^ rest) & right != 0
        others = rest
    if count > 0:
        bonus += gain * (2.0 * helping / count - 1.0)
    return float(bonus)


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
    """Return whether the answer of a call (`call_id`) is right; `bonus` is `answer_bonus`."""
    p = tables.task_profile[task]
    profile = tables.profile[p]
    logit = profile.discrimination * (
        tables.ability[p, model] + bonus - profile.difficulty_sd * tables.task_difficulty[task]
    )
    shared = profile.latent_correlation
    z = math.sqrt(shared) * normal(key, STREAM_MODEL_ABILITY, ordinal, model) + math.sqrt(
        1.0 - shared
    ) * normal(key, STREAM_CALL_ANSWER, ordinal, call)
    probability = 1.0 / (1.0 + math.exp(-logit))
    if truncated:
        probability *= profile.truncated_right_frac
    return 0.5 * math.erfc(-z * _SQRT_HALF) < probability  # Φ(z), which is uniform
