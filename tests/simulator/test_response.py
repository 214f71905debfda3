"""Lengths and answers of the quality model, held against its formulas in plain Python."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.simulator.jit import jit
from inframind_gym.simulator.quality import (
    ResponseTables,
    answer_bonus,
    answer_right,
    answer_tokens,
    call_id,
    response_tables,
)
from inframind_gym.simulator.rng import (
    STREAM_CALL_ANSWER,
    STREAM_CALL_LENGTH,
    STREAM_MODEL_ABILITY,
    uniform_array,
)
from inframind_gym.simulator.workflow.topology import FINAL, SECOND, STRATEGIES, STRUCTURES
from inframind_gym.simulator.workload import TaskProfile, load_workload
from inframind_gym.tasks import load_tasks

ALIASES = ("deepseek-32b", "mistral-24b", "qwen-14b", "llama-8b", "llama-3b")
KEY, TASKS, ROLES = 7, 5, 6
LIMIT = 400  # tokens: many answers are cut
NORMAL = NormalDist()
# What a call is: query, task, node, phase, model, strategy, role, structure, nodes read and right.
MOST = (10**6, TASKS, 12, 3, len(ALIASES), 3, ROLES, len(STRUCTURES), 1 << 12, 1 << 12)


@jit
def answer(
    tables: ResponseTables,
    role_fit: NDArray[np.float32],
    calls: NDArray[np.int64],
    z: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    """Write tokens, cut, bonus and right of calls (n, 10) to queries of length `z` (n,)."""
    for i in range(len(calls)):
        ordinal, task, node, phase = calls[i, 0], calls[i, 1], calls[i, 2], calls[i, 3]
        model, strategy, role, graph = calls[i, 4], calls[i, 5], calls[i, 6], calls[i, 7]
        reads, right = np.uint32(calls[i, 8]), np.uint32(calls[i, 9])
        key, call = np.uint64(KEY), call_id(node, phase, model, strategy)
        tokens, cut = answer_tokens(tables, key, ordinal, task, z[i], call, phase, model, strategy)
        bonus = answer_bonus(
            tables, role_fit, task, role, node, phase, strategy, graph, reads, right
        )
        out[i, 0], out[i, 1], out[i, 2] = tokens, cut, bonus
        out[i, 3] = answer_right(tables, key, ordinal, task, call, model, bonus, cut)


@pytest.fixture(scope="module")
def profile() -> TaskProfile:
    """A workload in which every number of the formulas counts."""
    found = load_workload("mmlu_pro").profile
    gains = dict(zip(STRUCTURES, (-0.7, 0.4, 1.1, -0.2, 0.9), strict=True))
    output = found.output.model_copy(update={"difficulty_slope": 0.2, "final_factor": 0.6})
    quality = found.quality.model_copy(update={"structure_gain": gains, "discrimination": 1.3})
    return found.model_copy(update={"output": output, "quality": quality})


def normal(stream: int, ordinal: int, place: int) -> float:
    """The standard normal number of a place."""
    key, at = np.array([KEY], np.uint64), np.array([ordinal])
    return NORMAL.inv_cdf(float(uniform_array(key, stream, at, place)[0]))


def plainly(profile: TaskProfile, difficulty: float, fit: float, call: Any, z: float) -> Any:
    """Tokens, whether it was cut, bonus, and whether it is right."""
    ordinal, _, node, phase, model, strategy, _, structure, reads, right = call.tolist()
    output, quality, of = profile.output, profile.quality, profile.models[ALIASES[model]]
    place = ((node * 4 + phase) * 64 + model) * 4 + strategy
    spread = output.difficulty_slope * difficulty + output.sigma_query * z
    spread += output.sigma_call * normal(STREAM_CALL_LENGTH, ordinal, place)
    median = of.output_tokens_median * output.strategy_factor[STRATEGIES[strategy]]
    median *= output.final_factor if phase == FINAL else 1.0
    length = median * math.exp(spread)
    cut = length > LIMIT

    bonus, weight = quality.strategy_gain[STRATEGIES[strategy]], quality.info_gain
    read = {other for other in range(12) if reads >> other & 1}
    if phase == FINAL:
        bonus, weight = (
            bonus + quality.structure_gain[STRUCTURES[structure]],
            quality.final_info_gain,
        )
    else:
        bonus += quality.role_gain * fit
    if phase == SECOND:
        bonus += quality.reflection_gain
        read -= {node}
    if read:
        helping = sum(right >> other & 1 for other in read)
        bonus += weight * (2.0 * helping / len(read) - 1.0)

    logit = of.ability + bonus - quality.difficulty_sd * difficulty
    chance = 1.0 / (1.0 + math.exp(-quality.discrimination * logit))
    chance *= quality.truncated_right_frac if cut else 1.0
    shared = quality.latent_correlation
    latent = math.sqrt(shared) * normal(STREAM_MODEL_ABILITY, ordinal, model)
    latent += math.sqrt(1.0 - shared) * normal(STREAM_CALL_ANSWER, ordinal, place)
    tokens = LIMIT if cut else max(int(length), 1)
    return tokens, cut, bonus, NORMAL.cdf(latent) < chance


def test_every_answer_is_that_of_the_formulas(profile: TaskProfile) -> None:
    rng, count = np.random.default_rng(4), 3000
    tasks = load_tasks("builtin", split="test").select(np.arange(TASKS))
    tables = response_tables([profile], ALIASES, tasks, np.zeros(TASKS, np.int32), LIMIT)
    role_fit = rng.standard_normal((TASKS, ROLES)).astype(np.float32)
    calls, z = rng.integers(0, MOST, (count, len(MOST))), rng.standard_normal(count)
    found = np.zeros((count, 4))
    answer(tables, role_fit, calls, z, found)
    fits, difficulty = role_fit[calls[:, 1], calls[:, 6]], tables.task_difficulty[calls[:, 1]]
    rows = zip(difficulty.tolist(), fits.tolist(), calls, z.tolist(), strict=True)
    expected = np.array([plainly(profile, *row) for row in rows], np.float64)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert 0.1 < found[:, 1].mean() < 0.9 and 0.2 < found[:, 3].mean() < 0.8
