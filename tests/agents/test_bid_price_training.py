"""Training bid prices: the same result whatever interrupts it and wherever it is played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from agents.bid_price.config import (
    BidPriceConfig,
    Objective,
    SearchConfig,
    SearchRound,
    SurveyRound,
)
from agents.bid_price.search import MEASURES, Measured, dimensions, search_prices, worth
from agents.bid_price.survey import Job, Played, play
from agents.bid_price.training import Trainer, train
from agents.config import WorldChoice
from agents.runs import METRICS_FILE, read_metrics
from agents.train import read_config
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint
from inframind_gym.policies.bid_price import policy as bid_price_policy
from inframind_gym.policies.bid_price.model import Prices, choose, load_model
from inframind_gym.policies.bid_price.policy import MODES, BidPricePolicy, requirements
from inframind_gym.simulator.workflow.state import COMPLETED

TINY = BidPriceConfig(
    env=WorldChoice(workload="mmlu_pro"),
    rates_per_min=(20.0, 200.0),
    rows=8,
    survey=(SurveyRound(queries=12_000, keep=20), SurveyRound(queries=4_000)),
    load_episodes=8,
    load_queries=120,
    search=SearchConfig(
        max_models=1,
        grid_prices=(0.003,),
        rounds=(
            SearchRound(searches=2, generations=1, episodes=1),
            SearchRound(searches=1, generations=2, episodes=2),
        ),
        population=4,
        final_episodes=2,
        queries=60,
    ),
    validation_episodes=2,
)
STEPS = 5  # the grid, a generation, a comparison, two generations
WORLD: dict[str, Any] = {"workload": "mmlu_pro", "observation": "index", **requirements()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bid_price") / "whole"
    train(TINY, seed=5, out=out)
    return out


def same(a: Path, b: Path) -> bool:
    kept, other = (checkpoint.load(out / "best")[0] for out in (a, b))
    return kept.keys() == other.keys() and all(np.array_equal(kept[k], other[k]) for k in kept)


def test_a_training_that_is_stopped_anywhere_ends_the_same(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped in the survey, under load, in each step of the search and before the end."""
    played, allowed = Trainer._play, 0

    def stops(self: Trainer, jobs: Any, kind: str = "loaded") -> list[Any]:
        nonlocal allowed
        if allowed == 0:
            raise KeyboardInterrupt
        allowed -= 1
        return played(self, jobs, kind)

    monkeypatch.setattr(Trainer, "_play", stops)
    for steps in (0, 1, 2, 3, 1, 3, 2, 2, 2, 2):  # a step plays twice: without bursts, and with
        allowed = steps
        with pytest.raises(KeyboardInterrupt):
            train(TINY, seed=5, out=tmp_path, resume=True)
    allowed = 100
    train(TINY, seed=5, out=tmp_path, resume=True)
    assert same(tmp_path, trained)
    steps = [line["global_step"] for line in read_metrics(tmp_path / METRICS_FILE)]
    assert [step for step in steps if step] == list(range(1, STEPS + 1))
    again = train(TINY, seed=5, out=tmp_path, resume=True)  # nothing is left to do
    kept = checkpoint.load(tmp_path / "best")[1]
    assert kept["validation"] == {name: again[name] for name in MEASURES}
    other = TINY.model_copy(update={"rows": 4})
    for config, seed, resume, why in (
        (TINY, 5, False, "add --resume"),
        (TINY, 6, True, "another seed"),
        (other, 5, True, "another config"),
    ):
        with pytest.raises(ConfigError, match=why):
            train(config, seed=seed, out=tmp_path, resume=resume)


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_and_another_seed_another_agent(
    trained: Path, tmp_path: Path
) -> None:
    train(TINY, seed=5, out=tmp_path / "two", workers=2)
    assert same(tmp_path / "two", trained)
    train(TINY, seed=6, out=tmp_path / "other")
    assert not same(tmp_path / "other", trained)


def test_the_trained_model_makes_sense(trained: Path) -> None:
    model, (_, about) = load_model(trained / "best"), checkpoint.load(trained / "best")
    assert len(model.recipes) <= 20
    assert (model.known.work_s >= 0).all() and (model.prices.load >= 0).all()
    assert model.known.call_s.argmax() == model.models.index("deepseek-32b")  # the slowest model
    assert read_metrics(trained / METRICS_FILE)[-1]["validation/goodput"] > 0.3  # round robin: 0.1
    judged = 6 * 2 + 8 * 2 + 2 * 4 + 2 * 4 * 3  # grid, generation, comparison, two generations
    loaded = 2 * 8 * 120 + 2 * judged * 60
    assert about["queries"] == {"idle": 12_000 + 4_000, "loaded": loaded}
    listener: Any = Listener()
    whole = Trainer(TINY, 5, listener, trained, {}, listener, {}).total_queries()
    assert whole == 16_000 + loaded + 2 * 2 * 60  # with the validation: the end of the progress


class Listener:
    """One worker that plays nothing and keeps the jobs."""

    size = 1

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def run(self, jobs: Any, request: Any) -> Any:
        for job in jobs:
            self.jobs.append(request(job))
            result: Any = self.jobs[-1].result
            yield job, np.zeros((1 + max(result.candidate), len(MEASURES)))

    def log(self, *_: Any) -> None:
        """Metrics are not kept."""

    flush = log


@pytest.mark.parametrize("mode", [None, "no-state"])
def test_prices_are_judged_at_their_rate_steadily_and_in_bursts(trained: Path, mode: Any) -> None:
    """Bursts have the same mean rate: 2.35 times their base."""
    config = TINY.model_copy(update={"mode": mode})
    model, points = load_model(trained / "best"), np.zeros((2, 3, dimensions(5)))
    listener: Any = Listener()
    trainer = Trainer(config, 5, listener, trained, {}, listener, {})
    assert trainer.judge(model, None, points, (2, 1), 0).shape == (2, 3)
    steady = [job for job in listener.jobs if job.env["arrivals"] == "poisson"]
    bursts = [job for job in listener.jobs if job.env["arrivals"] == "burst"]
    assert [r for job in steady for r in job.rates_per_min] == [20.0] * 6 + [200.0] * 6
    of_bursts = [rate for job in bursts for rate in job.rates_per_min]
    assert of_bursts == pytest.approx([20.0 / 2.35] * 3 + [200.0 / 2.35] * 3)
    assert len({tuple(job.seeds[:2]) for job in steady}) == 1  # common random numbers
    assert {job.policy._mode for job in listener.jobs} == {mode}
    listener.jobs.clear()
    trainer.judge(model, None, points, (2, 0), 0)
    assert {job.env["arrivals"] for job in listener.jobs} == {"poisson"}


def test_the_target_does_not_count_in_bursts() -> None:
    objective = Objective(goodput=1.0, solved=0.5, slo_share=0.9, slo_penalty=4.0, bursts=0.25)
    steady = np.zeros((2, len(MEASURES)))
    steady[:, [MEASURES.index(name) for name in ("goodput", "solved", "slo")]] = [
        [0.6, 0.8, 0.85],
        [0.6, 0.8, 0.95],
    ]
    assert worth(steady, None, objective) == pytest.approx([0.6 + 0.4 - 0.2, 0.6 + 0.4])
    bursts = np.zeros_like(steady)
    bursts[:, MEASURES.index("goodput")] = 0.2
    both = worth(steady, bursts, objective)
    assert both == pytest.approx([(0.8 + 0.25 * 0.2) / 1.25, (1.0 + 0.25 * 0.2) / 1.25])


def test_chances_take_the_place_of_answers() -> None:
    """Two episodes of two queries, a candidate each."""

    class Even:
        def chances(self, recipe: Any, records: Any) -> Any:
            return np.full(len(recipe), 0.5)

    records = np.zeros(4, COMPLETED)
    records["latency_s"], records["budget_s"] = [5.0, 50.0, 200.0, 5.0], 100.0
    records["solved"] = [1, 0, 1, 1]
    played = Played(np.array([0, 0, 1, 1]), np.zeros(4, np.int64), np.zeros((4, 1)), records)
    goodput, slo = MEASURES.index("goodput"), MEASURES.index("slo")
    seen = Measured(np.array([0, 1]), 20.0)(played)
    assert seen[:, goodput].tolist() == [0.5, 0.5] and seen[:, slo].tolist() == [0.5, 0.5]
    responses: Any = Even()
    expected = Measured(np.array([0, 1]), 20.0, responses)(played)
    assert expected[:, goodput].tolist() == [0.5, 0.25]


def test_the_search_finds_the_best_set_of_models_at_each_rate() -> None:
    """There are two optima: at one rate only model 0 is cheap, at the other model 3."""
    config = BidPriceConfig(rates_per_min=(10.0, 200.0))
    wanted = np.full((2, 1, dimensions(4)), 0.0)
    wanted[:, :, :4] = 5.0
    wanted[0, 0, 0] = wanted[1, 0, 3] = -1.0
    asked: list[tuple[int, int, int]] = []

    def judge(points: Any, episodes: int, bursts: int) -> Any:
        asked.append((points.shape[1], episodes, bursts))
        return -((points - wanted) ** 2).sum(axis=2)

    found = search_prices(config, 4, [1], judge)
    assert np.abs(found - wanted[:, 0]).max() < 0.5
    grid, climb, compare = (15 * 5, 1, 1), (4 * 12, 1, 1), (4, 8, 8)
    expected = [grid, *[climb] * 8, compare, *[(24, 2, 1)] * 12, (2, 8, 8), *[(12, 3, 1)] * 30]
    assert asked == expected


def test_checkpoints_are_found_by_workload_and_errors_name_what_is_missing(
    trained: Path, tmp_path: Path
) -> None:
    best = trained / "best"
    for name in ("both/all", "both/math", "own/math"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(best)
    policy = BidPricePolicy(str(tmp_path / "both"))
    assert [policy.folder(name).name for name in ("math", "mbpp")] == ["math", "all"]
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        BidPricePolicy(str(tmp_path / "nowhere"))
    checkpoint.save(tmp_path / "other" / "best", {}, {"algorithm": "inframind"})
    with pytest.raises(ConfigError, match="of 'inframind', not of 'bid_price'"):
        BidPricePolicy(str(tmp_path / "other"))
    with pytest.raises(ConfigError, match=r"unknown mode 'no-price'.*no-prices"):
        BidPricePolicy(mode="no-price")
    with pytest.raises(ConfigError, match="no checkpoint for workload 'mbpp'"):
        BidPricePolicy(str(tmp_path / "own")).folder("mbpp")
    env: Any = gym.make("InfraMind-Stream-v0", level="joint", observation="index")
    with pytest.raises(ConfigError, match="in_flight"):
        BidPricePolicy(str(best)).reset(env.unwrapped.policy_spec(), [0])
    env = gym.make("InfraMind-Stream-v0", pool="h100-5gpu", **WORLD)
    with pytest.raises(ConfigError, match="slots; these have"):
        BidPricePolicy().reset(env.unwrapped.policy_spec(), [0])
    kept, config = checkpoint.load(best)
    for name, change, why in (
        ("known.turns", None, r"no tensor 'known\.turns'"),
        ("recipes.roles", np.full_like(kept["recipes.roles"], 9), "numbers from 0 to 2"),
        ("rates_per_min", kept["rates_per_min"][::-1], "positive numbers that rise"),
    ):
        damaged = {k: v for k, v in kept.items() if k != name or change is not None}
        damaged |= {} if change is None else {name: change}
        checkpoint.save(tmp_path / "damaged", damaged, config)
        with pytest.raises(ConfigError, match=why):
            load_model(tmp_path / "damaged")


@pytest.mark.parametrize("mode", MODES)
def test_ablations_take_away_what_they_say(trained: Path, tmp_path: Path, mode: str) -> None:
    """With prices that rise steeply with the load, which a training this short may not find."""
    kept, config = checkpoint.load(trained / "best")
    steep = {"prices.load": np.full_like(kept["prices.load"], 4.0)}
    checkpoint.save(tmp_path / "steep", kept | steep, config)
    agent, ablated = (BidPricePolicy(str(tmp_path / "steep"), m) for m in (None, mode))
    arguments = {**WORLD, "num_queries": 40, "arrival_rate_per_min": 600.0, **ablated.requires}
    env: Any = gym.make("InfraMind-Stream-v0", **arguments)
    observation, _ = env.reset(seed=2)
    for policy in (agent, ablated):
        policy.reset(env.unwrapped.policy_spec(), [2])
    over, differ = False, 0
    while not over:
        load = ablated.calls_at_servers(observation[None])
        if mode == "no-state":
            assert not load.any()
        if mode == "polled":
            polled = env.unwrapped.policy_spec().layout.queue_depth_req(observation)
            assert load[0].tolist() == polled.tolist()
        context = env.unwrapped.context()
        ours = agent.act(observation, context)
        differ += not np.array_equal(ablated.act(observation, context), ours)
        observation, _, over, _, _ = env.step(ours)
    assert np.isneginf(ablated.model.prices.base).all() == (mode == "no-prices")
    assert ablated._ease.any() == (mode != "no-difficulty")
    assert differ or mode in ("no-difficulty", "no-prices")  # few recipes may not show it


def test_a_checkpoint_plays_as_it_was_trained(trained: Path, tmp_path: Path) -> None:
    kept, config = checkpoint.load(trained / "best")
    polled = {**config, "config": {**config["config"], "mode": "polled"}}
    checkpoint.save(tmp_path / "math", kept, polled)
    assert BidPricePolicy(str(tmp_path)).requires == requirements("polled")
    assert BidPricePolicy(str(tmp_path), "no-state").requires == requirements("no-state")
    checkpoint.save(tmp_path / "mbpp", kept, config)
    with pytest.raises(ConfigError, match="in several modes: math in mode 'polled', mbpp in mode"):
        BidPricePolicy(str(tmp_path))


@pytest.mark.parametrize("candidate", [0, 1])
def test_prices_are_those_of_the_nearest_rate_and_the_highest_at_the_beginning(
    trained: Path, candidate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two candidates, each with prices for 20 and 200/min: the nearest in ratio up to 63."""
    model = load_model(trained / "best")
    both = Prices(*(np.concatenate([array, array]) for array in model.prices))
    env: Any = gym.make_vec("InfraMind-Stream-v0", num_envs=1, num_queries=300, **WORLD)
    own = np.array([candidate])
    policy = BidPricePolicy(model=model.priced(both, model.rates_per_min), candidate=own)
    rates: list[float] = []
    paid: list[int] = []
    estimate = policy.rate_per_min

    def listen(contexts: Any, rows: Any) -> Any:
        rates.append(float(estimate(contexts, rows)[0]))
        return np.array(rates[-1:])

    def choosing(known: Any, prices: Any, needs: Any, priced: Any, *rest: Any) -> Any:
        paid.append(int(priced[0]) - 2 * candidate)
        return choose(known, prices, needs, priced, *rest)

    monkeypatch.setattr(policy, "rate_per_min", listen)
    monkeypatch.setattr(bid_price_policy, "choose", choosing)
    play(env.unwrapped, policy, [3], 20.0)
    assert rates[0] == pytest.approx(200.0, rel=0.35) and paid[0] == 1
    assert rates[-1] == pytest.approx(20.0, rel=0.3) and paid[-1] == 0
    assert paid == [int(rate > np.sqrt(20.0 * 200.0)) for rate in rates]


def test_the_shipped_agent_plays_the_measured_workloads_and_any_other() -> None:
    policy = BidPricePolicy()
    shipped = ("all", "gsm_hard", "humaneval", "math", "mbpp", "mixed", "mmlu_pro")
    for workload in (*shipped, "another workload"):
        folder = policy.folder(workload)
        assert folder.name == (workload if workload in shipped else "all")
        assert (load_model(folder).prices.load >= 0).all()
        about = json.loads((folder / checkpoint.CONFIG_FILE).read_text())
        assert about["config"]["env"]["workload"] == folder.name


def test_the_shipped_configuration_has_the_defaults_and_unknown_keys_are_errors() -> None:
    _, shipped = read_config("bid_price", ["env.workload=all"])
    assert shipped == BidPriceConfig()
    for change in ("env.system_features=[queue]", "env.num_queries=50", "search.populaton=3"):
        with pytest.raises(ConfigError, match=r"bid_price\.yaml.*" + change.split("=")[0][-9:]):
            read_config("bid_price", [change])
