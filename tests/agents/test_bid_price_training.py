"""Training bid prices: the same result whatever interrupts it and wherever it is played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from agents.bid_price.estimates import Played
from agents.bid_price.training import (
    MEASURES,
    BidPriceConfig,
    LoadConfig,
    SurveyRound,
    ValidationConfig,
    means_by_group,
    train,
)
from agents.runs import Run, WorldChoice
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.tracker import read_metrics
from inframind_gym.policies import checkpoint
from inframind_gym.policies.bid_price import BidPricePolicy, load_model
from inframind_gym.policies.recipes import REQUIRES
from inframind_gym.simulator.workflow.state import COMPLETED

TINY = BidPriceConfig(
    env=WorldChoice(workload="mmlu_pro"),
    rows=8,
    survey=(SurveyRound(queries=12_000, keep=20), SurveyRound(queries=4_000)),
    load=LoadConfig(episodes=8, queries=120),
    loads=(0.5, 1.0),
    validation=ValidationConfig(episodes=2, queries=60),
)
WORLD: dict[str, Any] = {"workload": "mmlu_pro", "observation": "index", **REQUIRES}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bid_price") / "whole"
    train(TINY, Run(out, seed=5))
    return out


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "workers", "alike"), [(5, 2, True), (6, 1, False)])
def test_any_number_of_workers_gives_the_same_and_another_seed_another_agent(
    trained: Path, tmp_path: Path, seed: int, workers: int, alike: bool
) -> None:
    train(TINY, Run(tmp_path, seed, workers=workers))
    kept, other = (checkpoint.load(out / "best")[0] for out in (trained, tmp_path))
    equal = kept.keys() == other.keys() and all(np.array_equal(kept[k], other[k]) for k in kept)
    assert equal == alike


def test_a_finished_training_is_not_repeated(trained: Path) -> None:
    again = train(TINY, Run(trained, seed=5, resume=True))
    kept = checkpoint.load(trained / "best")[1]
    assert kept["validation"] == {k: v for k, v in again.items() if k != "checkpoint"}


def test_the_trained_model_makes_sense(trained: Path) -> None:
    model, (_, about) = load_model(trained / "best"), checkpoint.load(trained / "best")
    assert len(model.recipes) <= 20
    assert (model.known.work_s >= 0).all() and (model.prices.load >= 0).all()
    assert model.known.call_s.argmax() == model.models.index("deepseek-32b")  # the slowest model
    assert (
        read_metrics(trained / "metrics.jsonl")[-1]["validation/goodput"] > 0.3
    )  # round robin: 0.1
    assert (np.diff(model.rates_per_min) > 0).all() and len(model.rates_per_min) == 2
    loaded = 8 * 120 + 2 * 2 * 60  # load, validation
    assert about["queries"] == {"idle": 12_000 + 4_000, "loaded": loaded}


def test_the_middle_of_a_stream_counts() -> None:
    """Two streams of ten queries, a group each: queries 4 to 8 count."""
    records = np.zeros(20, COMPLETED)
    records["query"] = np.tile(np.arange(10), 2)
    records["latency_s"], records["budget_s"] = 5.0, 100.0
    records["latency_s"][14:17] = 50.0, 200.0, 5.0
    records["solved"][:10], records["solved"][4] = 1, 0
    played = Played(np.repeat([0, 1], 10), np.zeros(20, np.int64), np.zeros((20, 1)), records)
    found = means_by_group(np.array([0, 1]), played)
    goodput, on_time = MEASURES.index("goodput"), MEASURES.index("on_time")
    assert found[:, goodput].tolist() == [0.8, 0.0] and found[:, on_time].tolist() == [1.0, 0.8]


def test_checkpoints_are_found_by_workload_and_servers(trained: Path, tmp_path: Path) -> None:
    best = trained / "best"
    for name in ("both/mixed", "both/math", "own/math", "pools/mmlu_pro@h100"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(best)
    kept, config = checkpoint.load(best)
    more = {"known.slots": 2 * kept["known.slots"]}
    checkpoint.save(tmp_path / "pools" / "mmlu_pro", kept | more, config)
    env: Any = gym.make("InfraMind-Stream-v0", **WORLD)
    spec = env.unwrapped.policy_spec()
    for place in ("both", "pools"):  # that for all workloads; that for these servers
        found = BidPricePolicy(str(tmp_path / place)).model_for(spec)
        assert found.known.slots.tolist() == spec.max_num_seqs.tolist()
    with pytest.raises(ConfigError, match=r"leaves some of \d+ recipes unplayed"):
        train(TINY.model_copy(update={"survey": TINY.survey[1:]}), Run(tmp_path / "short"))
    with pytest.raises(ConfigError, match="no checkpoint for workload 'mmlu_pro'"):
        BidPricePolicy(str(tmp_path / "own")).model_for(spec)
    env = gym.make("InfraMind-Stream-v0", pool="h100-5gpu", **WORLD)
    with pytest.raises(ConfigError, match="slots"):
        BidPricePolicy(str(best)).reset(env.unwrapped.policy_spec(), [0])


def test_the_shipped_agent_plays_the_workloads_of_all_tracks_and_any_other() -> None:
    policy = BidPricePolicy()
    for folder in checkpoint.folders(checkpoint.SHIPPED / "bid_price"):
        about = checkpoint.load(folder)[1]["config"]["env"]
        workload, _, pool = folder.name.partition("@")
        assert about["workload"] == workload and about["pool"] == (pool or about["pool"])
        world = {**WORLD, "workload": workload, "pool": about["pool"]}
        env: Any = gym.make("InfraMind-Stream-v0", **world)
        played = policy.model_for(env.unwrapped.policy_spec())
        assert np.array_equal(played.rates_per_min, load_model(folder).rates_per_min)
