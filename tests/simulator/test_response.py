"""The response model draws what it says: log-normal lengths, item-response answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.simulator.jit import jit
from inframind_gym.simulator.quality import (
    ResponseTables,
    answer_bonus,
    answer_right,
    answer_tokens,
    response_tables,
)
from inframind_gym.simulator.workflow.topology import FINAL, FIRST, SECOND, STRATEGIES, STRUCTURES
from inframind_gym.simulator.workload import QualityProfile, TaskProfile, load_workload
from inframind_gym.tasks import load_tasks

ALIASES = ("deepseek-32b", "mistral-24b", "qwen-14b", "llama-8b", "llama-3b")
N = 40_000
MISTRAL, QWEN = 1, 2


@jit
def draw_lengths(
    tables: ResponseTables, task: int, z: float, phase: int, strategy: int, out: NDArray[np.int64]
) -> None:
    for ordinal in range(N):
        out[0, ordinal], out[1, ordinal] = answer_tokens(
            tables, np.uint64(7), ordinal, task, z, 0, phase, QWEN, strategy
        )


@jit
def draw_answers(
    tables: ResponseTables,
    key: np.uint64,
    task: int,
    call: int,
    model: int,
    bonus: float,
    truncated: bool,
    right: NDArray[np.bool_],
) -> None:
    for ordinal in range(N):
        right[ordinal] = answer_right(tables, key, ordinal, task, call, model, bonus, truncated)


@jit
def bonus_of(
    tables: ResponseTables,
    role_fit: NDArray[np.float32],
    place: NDArray[np.int64],
    reads: int,
    right: int,
) -> float:
    """`place`: task, role, node, phase, strategy, structure."""
    task, role, node = place[0], place[1], place[2]
    phase, strategy, graph = place[3], place[4], place[5]
    sources, good = np.uint32(reads), np.uint32(right)
    return answer_bonus(tables, role_fit, task, role, node, phase, strategy, graph, sources, good)


@pytest.fixture(scope="module")
def profile() -> TaskProfile:
    return load_workload("mmlu_pro").profile


@pytest.fixture(scope="module")
def tables(profile: TaskProfile) -> ResponseTables:
    """Three tasks of mean difficulty, a hard one and an easy one."""
    tasks = load_tasks("builtin", split="test").select(np.arange(5))
    made = response_tables([profile], ALIASES, tasks, np.zeros(5, np.int32), 2048)
    made.task_difficulty[:] = (0.0, 0.0, 0.0, 1.5, -1.5)
    return made


def lengths(
    tables: ResponseTables, *, task: int = 0, z: float = 0.0, strategy: int = 1, phase: int = FIRST
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    out = np.empty((2, N), np.int64)
    draw_lengths(tables, task, z, phase, strategy, out)
    return out[0], out[1] == 1


def answers(
    tables: ResponseTables,
    *,
    task: int = 0,
    call: int = 0,
    model: int = QWEN,
    bonus: float = 0.0,
    truncated: bool = False,
    key: int = 7,
) -> NDArray[np.bool_]:
    right = np.empty(N, np.bool_)
    draw_answers(tables, np.uint64(key), task, call, model, bonus, truncated, right)
    return right


def logistic(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


SE = 0.5 / math.sqrt(N)  # at most, of a share


@pytest.mark.parametrize("strategy", range(3))
@pytest.mark.parametrize("z", [-1.0, 0.0, 0.5])
def test_lengths_are_log_normal_around_the_profile(
    tables: ResponseTables, profile: TaskProfile, strategy: int, z: float
) -> None:
    tokens, cut = lengths(tables, z=z, strategy=strategy)
    assert not cut.any()
    median = (
        profile.models["qwen-14b"].output_tokens_median
        * profile.output.strategy_factor[STRATEGIES[strategy]]
        * math.exp(profile.output.sigma_query * z)
    )
    log_tokens = np.log(tokens + 0.5)  # whole tokens are rounded down
    sd = profile.output.sigma_call
    assert log_tokens.mean() == pytest.approx(math.log(median), abs=5 * sd / math.sqrt(N) + 1e-4)
    assert log_tokens.std() == pytest.approx(sd, rel=5 / math.sqrt(2 * N) + 1e-3)


def test_answers_are_cut_at_the_limit(tables: ResponseTables, profile: TaskProfile) -> None:
    limit = 300
    short = tables._replace(max_output_tokens=np.array([limit]))
    tokens, cut = lengths(short)
    assert tokens.max() == limit
    assert tokens.min() >= 1
    assert np.all(tokens[cut] == limit)
    uncut = lengths(tables)[0]
    assert np.array_equal(tokens, np.minimum(uncut, limit))
    median = profile.models["qwen-14b"].output_tokens_median * 0.87
    above = 0.5 * math.erfc(math.log(limit / median) / profile.output.sigma_call / math.sqrt(2))
    assert cut.mean() == pytest.approx(above, abs=5 * SE)


@pytest.mark.parametrize("model", range(5))
@pytest.mark.parametrize("task", [0, 3, 4])
@pytest.mark.parametrize("bonus", [0.0, -1.2, 2.0])
def test_share_of_right_answers_is_the_item_response_curve(
    tables: ResponseTables, profile: TaskProfile, model: int, task: int, bonus: float
) -> None:
    quality = profile.quality
    difficulty = quality.difficulty_sd * float(tables.task_difficulty[task])
    logit = quality.discrimination * (profile.models[ALIASES[model]].ability + bonus - difficulty)
    share = answers(tables, model=model, task=task, bonus=bonus).mean()
    assert share == pytest.approx(logistic(logit), abs=5 * SE)


def test_a_cut_answer_keeps_its_share_and_is_usually_wrong(
    tables: ResponseTables, profile: TaskProfile
) -> None:
    strongest = profile.models["deepseek-32b"].ability
    cut = answers(tables, model=0, truncated=True)
    expected = profile.quality.truncated_right_frac * logistic(strongest)
    assert cut.mean() == pytest.approx(expected, abs=5 * SE)
    assert cut.mean() < 0.4 < 0.7 < answers(tables, model=0).mean()
    # A cut turns right answers into wrong ones, and never the reverse.
    assert not np.any(cut & ~answers(tables, model=0))


def test_two_calls_of_one_model_agree_more_than_two_models(tables: ResponseTables) -> None:
    # Two equally good models and even odds, so that only the latent noise can make them agree.
    even = tables._replace(ability=np.zeros_like(tables.ability))
    again = [answers(even, call=call) for call in (0, 1)]
    other = answers(even, call=2, model=MISTRAL)
    shared = float(tables.profile["latent_correlation"][0])
    same_model = np.mean(again[0] == again[1])
    two_models = np.mean(again[0] == other)
    # Two normals with correlation r have the same sign with probability 1/2 + asin(r) / pi.
    assert same_model == pytest.approx(0.5 + math.asin(shared) / math.pi, abs=5 * SE)
    assert two_models == pytest.approx(0.5, abs=5 * SE)
    assert same_model > two_models + 0.1


def plain_bonus(
    quality: QualityProfile, fit: float, place: tuple[int, ...], reads: int, right: int
) -> float:
    """The gain of an answer in plain Python, from the workload's own numbers."""
    _, _, node, phase, strategy, structure = place
    bonus = quality.strategy_gain[STRATEGIES[strategy]]
    heard = {other for other in range(12) if reads >> other & 1}
    if phase == FINAL:
        bonus += quality.structure_gain[STRUCTURES[structure]]
        weight = quality.final_info_gain
    else:
        bonus += quality.role_gain * fit
        weight = quality.info_gain
    if phase == SECOND:
        bonus += quality.reflection_gain
        heard -= {node}
    if heard:
        helping = sum(right >> other & 1 for other in heard)
        bonus += weight * (2.0 * helping / len(heard) - 1.0)
    return bonus


def test_the_gain_of_an_answer_is_that_of_the_plain_reference(profile: TaskProfile) -> None:
    gains = dict(zip(STRUCTURES, (-0.7, 0.4, 1.1, -0.2, 0.9), strict=True))
    quality = profile.quality.model_copy(update={"structure_gain": gains})
    tasks = load_tasks("builtin", split="test").select(np.arange(3))
    changed = profile.model_copy(update={"quality": quality})
    made = response_tables([changed], ALIASES, tasks, np.zeros(3, np.int32), 2048)
    rng = np.random.default_rng(4)
    role_fit = rng.standard_normal((3, 6)).astype(np.float32)
    for _ in range(300):
        place = tuple(int(rng.integers(most)) for most in (3, 6, 12, 3, 3, len(STRUCTURES)))
        reads, right = (int(rng.integers(1 << 12)) for _ in range(2))
        fit = float(role_fit[place[0], place[1]])
        ours = bonus_of(made, role_fit, np.array(place), reads, right)
        assert ours == pytest.approx(plain_bonus(quality, fit, place, reads, right), abs=1e-6)
