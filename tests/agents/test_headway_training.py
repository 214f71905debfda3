"""Training Headway: the same result whatever interrupts it and wherever it is played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml

import agents
import inframind_gym  # noqa: F401
from agents.config import WorldChoice, find
from agents.headway.agent import HeadwayPolicy
from agents.headway.choice import Prices, choose
from agents.headway.config import Climb, HeadwayConfig, Objective, SearchConfig, SurveyRound
from agents.headway.jobs import MEASURES, Job, measured, worth
from agents.headway.lessons import load_lessons
from agents.headway.policy import MODES, PricedPolicy, RecipePolicy
from agents.headway.search import PriceSearch, Step, dimensions, queries_of, steps_of
from agents.headway.stages import Trainer
from agents.headway.survey import Played, play
from agents.headway.training import train
from agents.tracking import METRICS_FILE, read_metrics
from agents.train import read_config
from inframind_gym.configs import list_configs
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint
from inframind_gym.simulator.workflow.state import COMPLETED, PLAN

TINY = HeadwayConfig(
    env=WorldChoice(workload="mmlu_pro"),
    rates_per_min=(20.0, 200.0),
    rows=8,
    survey=(SurveyRound(queries=12_000, keep=20), SurveyRound(queries=4_000)),
    load_sweeps=8,
    load_queries=120,
    search=SearchConfig(
        most_models=1,
        rough_prices=(0.003,),
        rough_sweeps=1,
        rounds=(Climb(climbs=2, generations=1, sweeps=1), Climb(climbs=1, generations=2, sweeps=2)),
        candidates=4,
        finals=2,
        queries=60,
    ),
    validation_sweeps=2,
)
STEPS = 5  # rough prices, a generation, a comparison, two generations


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("headway") / "whole"
    train(TINY, seed=5, out=out)
    return out


def tensors(out: Path) -> dict[str, Any]:
    return checkpoint.load(out / "best")[0]


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def test_a_training_that_is_stopped_anywhere_ends_the_same(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped in the survey, before the search, in each of its steps and before the end."""
    played = Trainer._play
    allowed = 0

    def stops(self: Trainer, jobs: Any) -> list[Any]:
        nonlocal allowed
        if allowed == 0:
            raise KeyboardInterrupt
        allowed -= 1
        return played(self, jobs)

    monkeypatch.setattr(Trainer, "_play", stops)
    out = tmp_path / "often_stopped"
    for steps in (0, 1, 2, 1, 3, 2, 2, 2, 2):  # a step plays twice: without bursts, and with
        allowed = steps
        with pytest.raises(KeyboardInterrupt):
            train(TINY, seed=5, out=out, resume=True)
    allowed = 100
    train(TINY, seed=5, out=out, resume=True)
    assert same(tensors(out), tensors(trained))
    steps = [line["global_step"] for line in read_metrics(out / METRICS_FILE)]
    assert [step for step in steps if step] == list(range(1, STEPS + 1))


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same(trained: Path, tmp_path: Path) -> None:
    train(TINY, seed=5, out=tmp_path / "two", workers=2)
    assert same(tensors(tmp_path / "two"), tensors(trained))


def test_another_seed_gives_another_agent(trained: Path, tmp_path: Path) -> None:
    train(TINY, seed=6, out=tmp_path / "other")
    assert not same(tensors(tmp_path / "other"), tensors(trained))


def test_a_folder_that_holds_another_training_is_left_alone(trained: Path) -> None:
    with pytest.raises(ConfigError, match="add --resume"):
        train(TINY, seed=5, out=trained)
    with pytest.raises(ConfigError, match="another seed"):
        train(TINY, seed=6, out=trained, resume=True)
    other = TINY.model_copy(update={"rows": 4})
    with pytest.raises(ConfigError, match="another config"):
        train(other, seed=5, out=trained, resume=True)


def test_what_it_learned_makes_sense(trained: Path) -> None:
    lessons = load_lessons(trained / "best")
    assert len(lessons.book) <= 20
    assert (lessons.known.work_s >= 0).all()
    assert lessons.models[0] == "deepseek-32b"
    assert lessons.known.call_s[0] == lessons.known.call_s.max()  # the slowest model
    metrics = read_metrics(trained / METRICS_FILE)
    assert metrics[-1]["validation/goodput"] > 0.3  # round robin: 0.1


class Listener:
    """A fleet of one that plays nothing and keeps the jobs."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def __len__(self) -> int:
        return 1

    def call(self, method: str, each: list[list[Job]]) -> list[list[Any]]:
        assert method == "run"
        self.jobs += each[0]
        return [[np.zeros((1 + max(job.candidate), len(MEASURES))) for job in each[0]]]


@pytest.mark.parametrize("mode", [None, "blind"])
def test_prices_are_judged_at_their_rate_steadily_and_in_bursts(trained: Path, mode: Any) -> None:
    """Bursts have the same mean rate: 2.35 times their base."""
    config = TINY.model_copy(update={"mode": mode})
    lessons, points = load_lessons(trained / "best"), np.zeros((3, dimensions(5)))
    listener: Any = Listener()
    marks: Any = None
    rates, step = np.array([0, 1, 1]), Step("climb", 0, 2, 1)
    both = Trainer(config, 5, listener).judge(lessons, marks, points, rates, 0, step)
    assert [part.shape for part in both if part is not None] == 2 * [(3, len(MEASURES))]
    steady = [job for job in listener.jobs if job.env["arrivals"] == "poisson"]
    bursts = [job for job in listener.jobs if job.env["arrivals"] == "burst"]
    assert [rate for job in steady for rate in job.rates_per_min] == [20.0] * 2 + [200.0] * 4
    of_bursts = [rate for job in bursts for rate in job.rates_per_min]
    assert of_bursts == pytest.approx([20.0 / 2.35, 200.0 / 2.35, 200.0 / 2.35])
    assert len({tuple(job.seeds[:2]) for job in steady}) == 1  # common random numbers
    assert {job.mode for job in listener.jobs} == {mode}
    without = Objective(bursts=0.0)
    listener.jobs.clear()
    calm = Trainer(config.model_copy(update={"objective": without}), 5, listener)
    assert {step.bursts for step in steps_of(calm.config)} == {0}
    assert calm.judge(lessons, marks, points, rates, 0, step._replace(bursts=0))[1] is None
    assert {job.env["arrivals"] for job in listener.jobs} == {"poisson"}


def test_nothing_is_promised_for_bursts() -> None:
    objective = Objective(goodput=1.0, solved=0.5, within_share=0.9, shortfall=4.0, bursts=0.25)
    steady = np.zeros((2, len(MEASURES)))
    for name, values in {"goodput": 0.6, "solved": 0.8, "within": [0.85, 0.95]}.items():
        steady[:, MEASURES.index(name)] = values
    assert worth(steady, None, objective) == pytest.approx([0.6 + 0.4 - 0.2, 0.6 + 0.4])
    bursts = np.zeros_like(steady)
    bursts[:, MEASURES.index("goodput")] = 0.2
    both = worth(steady, bursts, objective)
    assert both == pytest.approx([(0.8 + 0.25 * 0.2) / 1.25, (1.0 + 0.25 * 0.2) / 1.25])


def test_chances_take_the_place_of_luck() -> None:
    """Two sweeps of two queries, a candidate each."""

    class Even:
        def chances(self, recipe: Any, records: Any) -> Any:
            return np.full(len(recipe), 0.5)

    records = np.zeros(4, COMPLETED)
    records["latency_s"], records["budget_s"] = [5.0, 50.0, 200.0, 5.0], 100.0
    records["solved"] = [1, 0, 1, 1]
    row = np.array([0, 0, 1, 1])
    played = Played(row, np.zeros(4, np.int64), np.zeros((4, 1)), records)
    goodput, within = MEASURES.index("goodput"), MEASURES.index("within")
    seen = measured(played, np.array([0, 1]), 20.0)
    assert seen[:, goodput].tolist() == [0.5, 0.5] and seen[:, within].tolist() == [0.5, 0.5]
    marks: Any = Even()
    expected = measured(played, np.array([0, 1]), 20.0, marks)
    assert expected[:, goodput].tolist() == [0.5, 0.25]


def test_the_search_finds_the_best_set_of_models_at_each_rate() -> None:
    """What is looked for lies in two valleys: at one rate only model 0 is cheap, at the other 3."""
    config = HeadwayConfig(rates_per_min=(10.0, 200.0))
    search = PriceSearch(config, 4, seed=1)
    wanted = np.full((2, dimensions(4)), 0.0)
    wanted[:, :4] = 5.0
    wanted[0, 0] = wanted[1, 3] = -1.0
    while not search.finished:
        points, rates = search.ask()
        values = -((points - wanted[rates]) ** 2).sum(axis=1)
        search.tell(values)
        if search.at == 20:  # as if it had been stopped
            other = PriceSearch(config, 4, seed=1)
            other.restore(search.state())
            assert np.array_equal(other.ask()[0], search.ask()[0])
    assert search.at == len(steps_of(config))
    assert np.abs(search.found - wanted).max() < 0.5


def test_queries_of_a_training_are_counted_as_they_are_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played, count = Trainer._play, 0

    def counting(self: Trainer, jobs: Any) -> list[Any]:
        nonlocal count
        if jobs[0].env["split"] == "train":
            count += sum(job.env["num_queries"] * len(job.seeds) for job in jobs)
        return played(self, jobs)

    monkeypatch.setattr(Trainer, "_play", counting)
    train(TINY, seed=5, out=tmp_path)
    assert queries_of(TINY, 5) == (count, 12_000 + 4_000)  # in batches of 8 sweeps of 500
    uneven = TINY.model_copy(
        update={"survey": (SurveyRound(queries=12_001, keep=20), *TINY.survey)}
    )
    assert queries_of(uneven, 5) == (count + 16_000, 32_000)


def test_the_agent_plays_alone_as_in_a_batch(trained: Path) -> None:
    seeds, n = [11, 12, 13], 3
    arguments = {"workload": "mmlu_pro", "num_queries": 12, "observation": "index"}
    arguments |= {"arrival_rate_per_min": 100.0, **RecipePolicy.requires}
    batch: Any = gym.make_vec("InfraMind-Stream-v0", num_envs=n, **arguments).unwrapped
    policy = HeadwayPolicy(str(trained / "best"))
    observations, _ = batch.reset(seed=seeds)
    policy.reset(batch.policy_spec(), seeds)
    together: list[list[list[int]]] = [[] for _ in seeds]
    running = np.ones(n, bool)
    while running.any():
        rows = np.flatnonzero(running)
        actions = np.zeros((n, 9), np.int64)
        actions[rows] = policy.act_batch(observations[rows], batch.contexts()[rows], rows)
        for row in rows:
            together[row].append(actions[row].tolist())
        observations, _, over, _, _ = batch.step(actions)
        running &= ~over
    single: Any = gym.make("InfraMind-Stream-v0", **arguments)
    for row, seed in enumerate(seeds):
        observation, _ = single.reset(seed=seed)
        policy.reset(single.unwrapped.policy_spec(), [seed])
        alone, over = [], False
        while not over:
            action = policy.act(observation, single.unwrapped.context())
            alone.append(np.asarray(action).tolist())
            observation, _, over, _, _ = single.step(action)
        assert alone == together[row]


def test_a_model_that_is_down_gets_nothing(trained: Path) -> None:
    arguments = {"workload": "mmlu_pro", "num_queries": 20, "observation": "index"}
    env: Any = gym.make(
        "InfraMind-Stream-v0", down_models=["qwen-14b"], **arguments, **RecipePolicy.requires
    )
    policy = HeadwayPolicy(str(trained / "best"))
    observation, _ = env.reset(seed=0)
    policy.reset(env.unwrapped.policy_spec(), [0])
    over = False
    while not over:
        context = env.unwrapped.context()
        action = policy.act(observation, context)
        if context["kind"] != PLAN:
            assert action[-1] // 3 != 2
        observation, _, over, _, _ = env.step(action)


def test_checkpoints_are_found_by_workload_and_what_is_missing_is_said(
    trained: Path, tmp_path: Path
) -> None:
    for name in ("all", "math"):
        (tmp_path / name).symlink_to(trained / "best")
    policy = HeadwayPolicy(str(tmp_path))
    assert policy.folder("math").name == "math"
    assert policy.folder("mbpp").name == "all"
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        HeadwayPolicy(str(tmp_path / "nowhere"))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "math").symlink_to(trained / "best")
    with pytest.raises(ConfigError, match="no checkpoint for workload 'mbpp'"):
        HeadwayPolicy(str(tmp_path / "own")).folder("mbpp")
    env: Any = gym.make("InfraMind-Stream-v0", level="joint", observation="index")
    with pytest.raises(ConfigError, match="in_flight"):
        HeadwayPolicy(str(trained / "best")).reset(env.unwrapped.policy_spec(), [0])
    damaged = tmp_path / "damaged"
    config = json.loads((trained / "best" / checkpoint.CONFIG_FILE).read_text())
    kept, _ = checkpoint.load(trained / "best")
    checkpoint.save(damaged, {k: v for k, v in kept.items() if k != "known.turns"}, config)
    with pytest.raises(ConfigError, match=r"no tensor 'known\.turns'"):
        load_lessons(damaged)
    assert "headway" in {entry.name for entry in agents.AGENTS}


@pytest.mark.parametrize("mode", sorted(MODES))
def test_ablations_take_away_what_they_say(trained: Path, tmp_path: Path, mode: str) -> None:
    """With prices that rise steeply with the load, which a training this short may not find."""
    kept, config = checkpoint.load(trained / "best")
    steep = {"prices.load": np.full_like(kept["prices.load"], 4.0)}
    checkpoint.save(tmp_path / "steep", kept | steep, config)
    agent, ablated = (HeadwayPolicy(str(tmp_path / "steep"), m) for m in (None, mode))
    arguments = {"workload": "mmlu_pro", "num_queries": 40, "observation": "index"}
    arguments |= {"arrival_rate_per_min": 600.0, **ablated.requires}
    env: Any = gym.make("InfraMind-Stream-v0", **arguments)
    observation, _ = env.reset(seed=2)
    for policy in (agent, ablated):
        policy.reset(env.unwrapped.policy_spec(), [2])
    over, differ = False, 0
    while not over:
        context = env.unwrapped.context()
        if context["kind"] == PLAN:
            inner = ablated._policy
            load = inner.calls_at_servers(observation[None])
            if mode == "blind":
                assert not load.any()
            if mode == "stale":
                assert (
                    load[0].tolist()
                    == env.unwrapped.policy_spec().layout.queue_depth_req(observation).tolist()
                )
            if mode == "unread":
                assert not inner._ease.any()
            if mode == "free":
                assert np.isneginf(inner.lessons.prices.base).all()
        ours = agent.act(observation, context)
        differ += list(ablated.act(observation, context)) != list(ours)
        observation, _, over, _, _ = env.step(ours)
    assert differ or mode in ("unread", "free")  # which this small book may not show
    with pytest.raises(ConfigError, match="unknown mode 'deaf'"):
        HeadwayPolicy(mode="deaf")


def test_a_checkpoint_plays_as_it_was_trained(trained: Path, tmp_path: Path) -> None:
    kept, config = checkpoint.load(trained / "best")
    stale = {**config, "config": {**config["config"], "mode": "stale"}}
    checkpoint.save(tmp_path / "math", kept, stale)
    assert HeadwayPolicy(str(tmp_path)).requires == MODES["stale"].requires
    assert HeadwayPolicy(str(tmp_path), "blind").requires == MODES["blind"].requires
    checkpoint.save(tmp_path / "mbpp", kept, config)
    with pytest.raises(ConfigError, match="in several modes: math in mode 'stale', mbpp in mode"):
        HeadwayPolicy(str(tmp_path))


@pytest.mark.parametrize("candidate", [0, 1])
def test_prices_are_those_of_the_nearest_rate_and_the_highest_at_the_beginning(
    trained: Path, candidate: int
) -> None:
    """Of two candidates, each with prices for two rates."""
    lessons = load_lessons(trained / "best")
    assert lessons.rates_per_min.tolist() == [20.0, 200.0]  # nearest in ratio: up to 63
    arguments = {"workload": "mmlu_pro", "num_queries": 300, "observation": "index"}
    env: Any = gym.make_vec("InfraMind-Stream-v0", num_envs=1, **arguments, **RecipePolicy.requires)
    twice = Prices(*(np.concatenate([array, array]) for array in lessons.prices))
    both = lessons.priced(twice, lessons.rates_per_min)
    policy = PricedPolicy(both, np.array([candidate]))
    chosen: list[tuple[float, int]] = []

    def listen(known: Any, prices: Any, needs: Any, priced: Any, *rest: Any) -> Any:
        chosen.extend((rate, int(k) - 2 * candidate) for rate, k in zip(rates, priced, strict=True))
        return choose(known, prices, needs, priced, *rest)

    rates: list[float] = []
    patched = PricedPolicy.choose

    def choosing(self: Any, in_flight: Any, rate: Any, contexts: Any, rows: Any) -> Any:
        rates[:] = rate.tolist()
        return patched(self, in_flight, rate, contexts, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agents.headway.policy.choose", listen)
        patch.setattr(PricedPolicy, "choose", choosing)
        play(env.unwrapped, policy, [3], 20.0)
    assert chosen[0][1] == 1 and chosen[0][0] == pytest.approx(200.0, rel=0.35)
    assert chosen[-1][1] == 0 and chosen[-1][0] == pytest.approx(20.0, rel=0.3)
    assert all(k == (rate > np.sqrt(20.0 * 200.0)) for rate, k in chosen)


def test_the_shipped_agent_plays_every_shipped_workload_and_any_other() -> None:
    policy = HeadwayPolicy()
    for workload in (*list_configs("workloads"), "a workload of one's own"):
        folder = policy.folder(workload)
        assert folder.name == (workload if workload in list_configs("workloads") else "all")
        config = checkpoint.load(folder)[1]["config"]
        shipped = HeadwayConfig.model_validate(yaml.safe_load(find("headway").read_text()))
        own = shipped.env.model_copy(update={"workload": folder.name})
        assert config == shipped.model_copy(update={"env": own}).model_dump(mode="json")
        prices = load_lessons(folder).prices
        assert (prices.load >= 0).all()


def test_the_shipped_configuration_says_the_same_as_the_code() -> None:
    _, shipped = read_config("headway", ["env.workload=all"])
    assert shipped == HeadwayConfig()


@pytest.mark.parametrize(
    ("change", "why"),
    [("env.system_features=[queue]", "calls in flight"), ("env.num_queries=50", "search.queries")],
)
def test_what_it_does_not_read_is_refused(change: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"headway.yaml.*not for Headway: .*{why}"):
        read_config("headway", [change])


def test_servers_of_another_pool_are_not_taken_for_ours() -> None:
    env: Any = gym.make(
        "InfraMind-Stream-v0",
        pool="h100-5gpu",
        level="joint",
        observation="index",
        system_features=["in_flight"],
    )
    with pytest.raises(ConfigError, match="slots; these have"):
        HeadwayPolicy().reset(env.unwrapped.policy_spec(), [0])
