"""The simulated team: same numbers alone and in a batch, and the frequencies that are promised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inframind_gym.configs import find_config
from inframind_gym.errors import ConfigError
from inframind_gym.teams.assignment import rules, simulate
from inframind_gym.teams.assignment.names import Arrivals
from inframind_gym.teams.assignment.settings import load_team

TEAM = simulate.team()
N = 20_000
KEYS = np.random.default_rng(1).integers(0, 2**64, N, np.uint64)
FIRST = np.zeros(N, np.int64)


def types(arrivals: Arrivals, previous: int = simulate.NO_TASK) -> np.ndarray:
    tasks = simulate.next_task(TEAM, arrivals, KEYS, FIRST, np.full(N, previous))
    return np.bincount(TEAM.task_type[tasks], minlength=4) / N


def test_a_number_belongs_to_its_place() -> None:
    actions, tasks = np.arange(N) % 8, np.arange(N) % 11
    batch = simulate.answer(TEAM, KEYS, FIRST + 3, tasks, actions)
    judged = simulate.judge_call(TEAM, KEYS, FIRST + 3, batch.output_tokens)
    for i in (0, 7, 12_345):
        one = slice(i, i + 1)
        place = (TEAM, KEYS[one], FIRST[one] + 3)
        alone = simulate.answer(*place, tasks[one], actions[one])
        for name, value in alone._asdict().items():
            assert np.array_equal(value, getattr(batch, name)[one]), name
        again = simulate.judge_call(*place, alone.output_tokens)
        assert again.cost_usd == judged.cost_usd[i]
    other = simulate.answer(TEAM, KEYS, FIRST + 4, tasks, actions)
    assert (other.quality == batch.quality).mean() < 0.01  # where both are cut at 1


def test_the_bank_has_eleven_tasks_and_is_not_uniform_over_types() -> None:
    assert len(TEAM.settings.tasks) == 11
    assert types("uniform") == pytest.approx(np.array([3, 3, 3, 2]) / 11, abs=0.015)


def test_arrivals() -> None:
    coding = rules.TASK_TYPES.index("coding")
    assert types("skewed")[coding] == pytest.approx(0.7, abs=0.015)
    assert types("bursty") == pytest.approx([0.25] * 4, abs=0.015)
    previous = int(TEAM.of_type[2][0])
    assert types("bursty", previous) == pytest.approx([0.05, 0.05, 0.85, 0.05], abs=0.015)


def test_one_agent_loses_its_best_type_within_the_episode() -> None:
    lost = np.zeros(4)
    for agent in range(4):
        agents = np.full(N, agent)
        early = simulate.drift(TEAM, KEYS, FIRST + 12, 50, agents)
        late = simulate.drift(TEAM, KEYS, FIRST + 30, 50, agents)
        assert not early.any()
        own = TEAM.skill[agent].argmax()
        assert set(late[:, own].tolist()) == {0.0, -0.30}
        assert not np.delete(late, own, axis=1).any()
        lost[agent] = (late[:, own] < 0.0).mean()
    assert lost == pytest.approx([0.25] * 4, abs=0.015)


def test_answers_have_the_means_of_the_settings() -> None:
    task = 4  # coding, complexity 0.8
    coder = rules.action_index(1, 1)
    drawn = simulate.answer(TEAM, KEYS, FIRST, np.full(N, task), np.full(N, coder))
    true = 0.86 + 0.10 - 0.20 * 0.3
    assert drawn.quality.mean() == pytest.approx(true, abs=0.005)
    assert drawn.scores[:, 0].mean() == pytest.approx(true + 0.03, abs=0.01)
    assert drawn.scores[:, 3].mean() == pytest.approx(0.92, abs=0.01)
    assert np.median(drawn.output_tokens) == pytest.approx(240 * 1.18, rel=0.02)
    assert drawn.output_tokens.max() <= 768
    usd = 0.8e-6 * drawn.input_tokens + 4e-6 * drawn.output_tokens
    assert drawn.cost_usd == pytest.approx(usd)
    others = simulate.answer(TEAM, KEYS, FIRST, np.full(N, task), np.full(N, 0))
    assert others.quality.mean() == pytest.approx(0.58 - 0.06, abs=0.005)
    common = np.corrcoef(drawn.quality, others.quality)[0, 1]  # of one task, to all who answer
    assert common == pytest.approx(0.04**2 / (0.04**2 + 0.05**2), abs=0.05)


def test_the_key_of_a_seed_is_the_environments() -> None:
    from gymnasium.utils import seeding

    assert simulate.key_of(7) == simulate.draw_key(seeding.np_random(7)[0])
    assert simulate.key_of(7) != simulate.key_of(8)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("skewed_share: 0.70", "skewed_share: 7", "skewed_share"),
        ("task_type: validation", "task_type: coding", "none is of type validation"),
        ("drift_latest: 0.60", "drift_latest: 0.1", "drift_earliest must not be above"),
        ("  max_tokens: 768", "  max_token: 768", "Did you mean 'max_tokens'"),
        ("id: coding_2", "id: coding_1", "ids must differ"),
    ],
)
def test_a_wrong_file_is_an_error(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = find_config("teams", "assignment").read_text()
    assert old in text
    path = tmp_path / "team.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_team(path)
