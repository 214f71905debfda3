"""Single rules, on clusters small enough to be worked out by hand (times in the docstrings)."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from inframind_gym.simulator.placement.config import JobArrivals, load_demand
from inframind_gym.simulator.placement.episode import dag_table
from inframind_gym.simulator.placement.instances import STREAM_NOISE, STREAM_SPREAD
from inframind_gym.simulator.placement.state import ABSENT, ACTIVE, LOAD, SLEEP, SLEPT, VANISHING
from inframind_gym.simulator.rng import uniform_array
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES
from tests.placement.toys import ROW, card, started, tight_cluster, write_cluster, write_demand

EXACT: dict[str, Any] = {
    "timing_spread": 0.0,
    "timing_noise": 0.0,
    "foreign_memory": {"max_MB": 0, "every_s": 1000},
    "initial": "empty",
}
# No job comes within the horizon: the cluster is idle.
IDLE = {"jobs_per_gpu_per_min": 1e-6}
# A call has 400 tokens of prompt and 100 of answer. Alone its step takes 0.011 s; the prompt takes
# 0.04 s, 0.029 s longer than a step.
ALIKE: dict[str, Any] = {
    "jobs_per_gpu_per_min": 1,
    "topologies": {"IO": 1},
    "num_agents": {1: 1},
    "prompt_tokens": {"median": 400.001, "sigma": 0},
    "output_tokens": {"median": 100.001, "sigma": 0},
}
EACH_TICK: dict[str, Any] = {"decision_interval_s": 1}
FIRST_S, LAST_S = 0.029 + 100 * 0.011, 0.039 + 100 * 0.011  # the last call reads the answer, too


class Toy:
    """A small cluster without chance in its times."""

    def __init__(
        self,
        folder: Path,
        cards: list[dict[str, Any]],
        gpus: int = 1,
        *,
        demand: dict[str, Any] = IDLE,
        alpha: float = 0.06,
        **changes: Any,
    ):
        arguments = {
            "cluster": write_cluster(folder, cards, gpus, alpha=alpha),
            "demand": write_demand(folder, **demand),
            **EXACT,
            **changes,
        }
        self.simulation, self.observations = started(arguments)
        self.cluster = self.simulation.state

    def step(self, *action: int, times: int = 1) -> None:
        for _ in range(times):
            self.simulation.step(ROW, np.array([action]), self.observations)

    def until_the_job_comes(self) -> None:
        """Go on, without a decision, to the end of the step in which the only job comes."""
        self.cluster.arrival_s[0, 1:] = np.inf
        while not self.episode["next_job"]:
            self.step(*[0] * self.simulation.num_gpus)

    def state(self, g: int, m: int) -> int:
        return int(self.cluster.instance[0, g, m]["state"])

    def since(self, g: int, m: int) -> float:
        return float(self.cluster.instance[0, g, m]["begun_s"])

    @property
    def episode(self) -> np.void:
        record: np.void = self.cluster.episode[0]
        return record

    @property
    def counters(self) -> dict[str, int]:
        """Those that have counted something."""
        return {name: count for name, count in self.simulation.counters(0).items() if count}


# Instances and decisions


def test_a_switch_takes_the_sum_of_its_phases(tmp_path: Path) -> None:
    """Load 10 s from 0: ACTIVE at 10. At 10 the other is chosen: first sleep 4 s, then load 10 s:
    ACTIVE at 24. At 25 back: first sleep of the second 4 s, wake 2 s: ACTIVE at 31. At 35 again:
    now both have slept before: 1 s and 2 s: ACTIVE at 38. The agent sees no first sleep."""
    toy = Toy(tmp_path, [card("a"), card("b")])
    toy.step(1, times=2)
    assert toy.state(0, 0) == ACTIVE
    assert toy.since(0, 0) == 10.0
    toy.step(2)
    toy.step(0, times=2)
    assert (toy.state(0, 0), toy.state(0, 1)) == (SLEPT, ACTIVE)
    assert (toy.since(0, 0), toy.since(0, 1)) == (14.0, 24.0)
    toy.step(1)
    toy.step(0)
    assert (toy.state(0, 0), toy.since(0, 0)) == (ACTIVE, 31.0)
    toy.step(2)
    assert (toy.state(0, 1), toy.since(0, 1)) == (ACTIVE, 38.0)
    assert toy.counters == {"wakes": 2, "loads": 2, "sleeps": 3}
    assert toy.cluster.seen_s[0, :, SLEEP].tolist() == [1.0, 1.0]


def test_a_process_that_was_started_again_has_a_first_sleep_again(tmp_path: Path) -> None:
    """`c` comes at 30: `a`, which sleeps, goes for 1 s. At 50 `a` loads again, after the first
    sleep of `c` of 4 s: ACTIVE at 64. At 70 back to `c`: first sleep of `a`, 4 s. `a` wakes at 80,
    ACTIVE at 83, and sleeps from 85 on for 1 s."""
    toy = Toy(tmp_path, [card("a", t_offload_s=1.0), card("b"), card("c")])
    for model in (1, 2, 3):
        toy.step(model, times=3 if model < 3 else 4)
    assert [toy.state(0, m) for m in range(3)] == [ABSENT, SLEPT, ACTIVE]
    toy.step(1, times=4)
    assert (toy.state(0, 0), toy.since(0, 0)) == (ACTIVE, 64.0)
    toy.step(3, times=2)
    assert (toy.state(0, 0), toy.since(0, 0)) == (SLEPT, 74.0)
    toy.step(1)
    toy.step(3)
    assert (toy.state(0, 0), toy.since(0, 0)) == (SLEPT, 86.0)


@pytest.mark.parametrize(("spread", "noise"), [(2.0, 0.0), (0.0, 0.5)])
def test_true_times_are_log_normal_around_the_cards(
    tmp_path: Path, spread: float, noise: float
) -> None:
    """A factor for every model and kind of time, the same for both kinds of sleep, and one for
    every phase: here the first and the second of model 1 on GPU 1, place 3."""
    toy = Toy(tmp_path, [card("a"), card("b")], 2, timing_spread=spread, timing_noise=noise)
    instance = toy.cluster.instance[0, 1, 1]

    def factor(kind: int, turn: int) -> float:
        key = np.array([toy.episode["key"]], np.uint64)
        places = ((spread, STREAM_SPREAD, 1, kind), (noise, STREAM_NOISE, 3, turn))
        return math.exp(
            sum(
                sigma * NormalDist().inv_cdf(uniform_array(key, stream, *np.array([[a], [b]]))[0])
                for sigma, stream, a, b in places
            )
        )

    toy.step(0, 2)
    assert instance["until_s"] == pytest.approx(10 * factor(LOAD, 1), rel=1e-6)
    while instance["state"] != ACTIVE:
        toy.step(0, 0)
    decided_s = toy.simulation.now_s()[0]
    toy.step(0, 1)
    assert instance["until_s"] - decided_s == pytest.approx(4 * factor(SLEEP, 2), rel=1e-6)


def test_what_a_phase_took_is_averaged_into_the_times_that_the_agent_sees(tmp_path: Path) -> None:
    """Twice the card's 10 s: 0.7 · 10 + 0.3 · 20 = 13."""
    toy = Toy(tmp_path, [card("a")])
    toy.cluster.spread[0, 0, LOAD] = 2.0
    toy.step(1, times=5)
    assert (toy.state(0, 0), toy.since(0, 0)) == (ACTIVE, 20.0)
    assert toy.cluster.seen_s[0, 0].tolist() == [2.0, 1.0, 13.0, 3.0]


def test_a_group_needs_all_its_gpus(tmp_path: Path) -> None:
    toy = Toy(tmp_path, [card("a"), card("pair", tp_min=2)], gpus=3)
    mask = toy.cluster.mask[0]
    assert mask[:, 2].tolist() == [True, True, False]  # GPU 2 is beyond the last pair
    toy.step(2, 0, 0)
    assert toy.episode["illegal"] == 1
    assert toy.simulation.terms[0].tolist() == pytest.approx([0.0, 0.0, -0.1 / 3])
    toy.step(2, 1, 0)
    assert toy.episode["illegal"] == 1  # `a` on GPU 1 is legal, the half pair is not
    assert toy.state(1, 0) != ABSENT
    assert mask[:, 1].tolist() == [False, False, False]  # `a` is loading: no second copy
    assert mask[:, 2].tolist() == [False, False, False]  # GPU 1 is UNSTABLE
    toy.step(0, 0, 0, times=2)
    toy.step(2, 2, 0)
    assert toy.episode["illegal"] == 0
    toy.step(0, 0, 0, times=3)
    assert toy.state(0, 1) == ACTIVE
    assert toy.cluster.host[0].tolist() == [0, 0, -1]
    assert toy.state(1, 0) == SLEPT


@pytest.mark.parametrize(("offload_s", "goes"), [((1.0, 3.0, 3.0), 0), ((3.0, 1.0, 3.0), 1)])
def test_who_costs_least_is_offloaded_where_sleepers_have_no_room(
    tmp_path: Path, offload_s: tuple[float, ...], goes: int
) -> None:
    """Each keeps 2,000 MB asleep, and 4,800 MB may sleep: of three one goes. `a` sleeps and goes
    from the decision on; `b` drains, which nothing delays, and goes for 1 s; `c` loads."""
    cards = [card(name, t_offload_s=s) for name, s in zip("abc", offload_s, strict=True)]
    toy = Toy(tmp_path, cards)
    toy.step(1, times=3)
    toy.step(2, times=3)
    assert (toy.state(0, 0), toy.state(0, 1)) == (SLEPT, ACTIVE)
    toy.step(3, times=4)
    left = [ABSENT, SLEPT] if goes == 0 else [SLEPT, ABSENT]
    assert [toy.state(0, m) for m in range(3)] == [*left, ACTIVE]
    # The other has its first sleep of 4 s where it is `b`.
    assert toy.since(0, 2) == 30.0 + (4.0 if goes == 0 else 1.0) + 10.0
    assert toy.counters == {"loads": 3, "sleeps": 2 - goes, "offloads": 1}


@pytest.mark.parametrize(
    ("offload_s", "free_mb"),
    [
        # `a` sleeps and goes until 3, `b` falls asleep until 4; then `c` loads.
        ((3.0, 5.0, 5.0), [18_000, 18_000, 20_000, 28_500]),
        # `b` goes from the GPU until 3, then `c` loads.
        ((5.0, 3.0, 5.0), [18_000, 18_000, 28_000, 28_000]),
    ],
)
def test_who_is_offloaded_holds_its_memory_until_the_end(
    tmp_path: Path, offload_s: tuple[float, ...], free_mb: list[float]
) -> None:
    """80,000 MB. Awake `a` and `b` hold 60,000, `c` 50,000; asleep `a` holds 2,000, `b` 1,500."""
    sizes = ((60_000, 2_000), (60_000, 1_500), (50_000, 2_000))
    cards = [
        card(name, t_offload_s=s, active_mem_MB=active, slept_mem_tp1_MB=slept)
        for name, s, (active, slept) in zip("abc", offload_s, sizes, strict=True)
    ]
    toy = Toy(tmp_path, cards, **EACH_TICK)
    toy.step(1, times=15)
    toy.step(2, times=15)
    free = []
    for _ in free_mb:
        toy.step(3)
        free.append(float(toy.simulation.contexts(ROW).free_mb[0, 0]))
    assert free == free_mb


def test_who_would_leave_no_room_asleep_is_offloaded(tmp_path: Path) -> None:
    """27,000 of 40,000 MB would sleep, but 25,000 and 60,000 are more than the GPU has."""
    toy = Toy(tmp_path, [card("a", slept_mem_tp1_MB=25_000), card("b")], alpha=0.5)
    toy.step(1, times=3)
    toy.step(2, times=3)
    assert (toy.state(0, 0), toy.since(0, 0)) == (ABSENT, 18.0)
    assert (toy.state(0, 1), toy.since(0, 1)) == (ACTIVE, 28.0)
    assert toy.counters == {"loads": 2, "offloads": 1}


@pytest.mark.parametrize("waiting", [0, 2])
def test_a_model_that_is_asked_for_stays(tmp_path: Path, waiting: int) -> None:
    """`a` costs 1 s to offload and 10 s for every call that waits for it, `b` 3 s."""
    toy = Toy(tmp_path, [card("a", t_offload_s=1.0), card("b"), card("c")])
    toy.step(1, times=3)
    toy.step(2, times=3)
    toy.cluster.waiting[0, 0]["potential"] = waiting
    toy.step(3)
    assert toy.state(0, 1 if waiting else 0) in (ABSENT, VANISHING)


@pytest.mark.parametrize("slept", [True, False])
def test_a_start_without_memory_fails(tmp_path: Path, slept: bool) -> None:
    """Others take 30 GB while the one that leaves falls asleep: 60 GB are no longer there."""
    toy = Toy(tmp_path, [card("a"), card("b")], **EACH_TICK)
    toy.step(1, times=11)
    if slept:
        toy.step(2, times=20)
    coming, leaving = (0, 1) if slept else (1, 0)
    toy.step(1 + coming)
    toy.cluster.foreign_mb[0, 0] = 30_000
    toy.step(0, times=5)
    assert toy.state(0, coming) == (SLEPT if slept else ABSENT)
    assert toy.state(0, leaving) == SLEPT
    assert toy.counters["failed_wakes" if slept else "failed_loads"] == 1
    assert toy.cluster.mask[0].tolist() == [[True, False, False]]  # neither would fit


def test_foreign_memory_takes_no_more_than_is_free(tmp_path: Path) -> None:
    foreign = {"max_MB": 1e9, "every_s": 1}
    toy = Toy(tmp_path, [card("a")], gpus=2, initial="spread", foreign_memory=foreign)
    for _ in range(3):
        toy.step(0, 0)
        assert toy.cluster.foreign_mb[0].tolist() == [20_000, 20_000]


def test_an_episode_begins_with_models_in_the_order_of_the_list(tmp_path: Path) -> None:
    """One, two, a pair, a block of four, big: what does not begin at the next GPU is passed by."""
    cluster, begun = tight_cluster(tmp_path), set()
    for seed in range(20):
        simulation, _ = started({**EXACT, "cluster": cluster, "initial": "spread"}, seed)
        states = simulation.state.instance["state"][0]
        begun.add(tuple(simulation.cluster_config.models[m] for m in np.nonzero(states)[1]))
    assert begun == {
        ("one", "two", "pair"),
        ("two", "big", "one", "two"),
        ("pair", "big", "one"),
        ("four",),
        ("big", "one", "two", "big"),
    }


# Jobs: routing, serving, lateness


@pytest.mark.parametrize(
    ("topology", "count", "agents", "reads"),
    [
        ("IO", 2, [0, 1, 6], [[], [], [0, 1]]),
        ("Chain", 3, [0, 1, 2, 6], [[], [0], [1], [2]]),
        ("FullConnected", 3, [0, 1, 2, 6], [[], [0], [0, 1], [2]]),
        ("Debate", 2, [0, 1, 0, 1, 6], [[], [], [0, 1], [0, 1], [2, 3]]),
        ("Reflection", 2, [0, 1, 0, 1, 6], [[], [], [0], [1], [2, 3]]),
    ],
)
def test_the_calls_of_a_job(
    topology: str, count: int, agents: list[int], reads: list[list[int]]
) -> None:
    """The last call reads all answers that no other call reads; its model is its own."""
    dag = dag_table()[TOPOLOGIES.index(topology) * MAX_AGENTS + count - 1]
    calls = range(int(dag["calls"]))
    before = [
        [other for other in calls if dag["predecessors"][call] >> other & 1] for call in calls
    ]
    assert (dag["agent"][: len(calls)].tolist(), before) == (agents, reads)


def test_all_calls_of_an_agent_need_its_model(tmp_path: Path) -> None:
    """Two agents debate: calls 0 and 1, then 2 and 3. The one that decides draws its own model."""
    demand = {**ALIKE, "jobs_per_gpu_per_min": 60, "topologies": {"Debate": 1}}
    demand["num_agents"] = {2: 1}
    toy = Toy(tmp_path, [card("a"), card("b")], demand=demand)
    toy.step(0, times=20)
    models = toy.cluster.job["model"][0, : toy.episode["used_jobs"]]
    assert np.array_equal(models[:, 2:4], models[:, :2])
    assert len({(a, b, last) for a, b, _, _, last in models[:, :5].tolist()}) == 2**3


def test_a_job_alone(tmp_path: Path) -> None:
    """A call is sent at the tick after it became ready; the second reads prompt and answer."""
    toy = Toy(tmp_path, [card("a")], initial="spread", demand=ALIKE)
    toy.until_the_job_comes()
    toy.step(0)
    (job,) = toy.simulation.finished(0)
    sent_s = math.ceil(math.ceil(job["arrival_s"]) + FIRST_S)
    assert job["finish_s"] == pytest.approx(sent_s + LAST_S)
    assert job["ideal_s"] == pytest.approx(FIRST_S + LAST_S)
    assert job["slo_s"] == pytest.approx(3 * (FIRST_S + LAST_S) + 10)
    assert (job["calls"], job["late"]) == (2, 0)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("max_tokens", "ideal_s"),
    [
        (450, 0.029 + 0.034 + 200 * 0.011),  # the last call would read 500
        (300, 0.019 + 0.019 + 200 * 0.011),
        (80, 160 * 0.011),  # the prompt takes no longer than a step
    ],
)
def test_prompts_and_answers_have_a_largest_length(
    tmp_path: Path, max_tokens: int, ideal_s: float, traced: bool
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp,input,output\n" + "".join(f"{i},400,100\n" for i in range(9)))
    arrivals = {"kind": "trace", "path": str(trace)} if traced else "poisson"
    demand = {**ALIKE, "max_tokens": max_tokens, "arrivals": arrivals}
    toy = Toy(tmp_path, [card("a")], demand=demand)
    toy.step(0, times=60)
    jobs = toy.cluster.job[0, : toy.episode["used_jobs"]]
    assert len(jobs) and jobs["ideal_s"] == pytest.approx(ideal_s)


def test_a_trace_says_how_long_calls_are(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp,input,output\n" + "".join(f"{i},400,100\n" for i in range(9)))
    demand = {**ALIKE, "arrivals": {"kind": "trace"}, "output_tokens": {"median": 7, "sigma": 1}}
    toy = Toy(tmp_path, [card("a")], initial="spread", demand=demand, trace=str(trace))
    toy.step(0, times=40)
    jobs = toy.simulation.finished(0)
    assert len(jobs) > 1
    assert jobs["ideal_s"] == pytest.approx(FIRST_S + LAST_S)


def test_calls_share_a_step_and_wait_in_line(tmp_path: Path) -> None:
    """Six calls at once, two slots, one place in the queue: three are sent, three wait.

    Both run for 2 · 0.029 + 100 · 0.012 = 1.258 s. Then the third has the server for itself. The
    next tick, 0.742 s later, sends two: one runs, the other takes the place of the third."""
    demand = {**ALIKE, "num_agents": {6: 1}}
    toy = Toy(tmp_path, [card("a", slots=2, queue=1)], initial="spread", demand=demand, **EACH_TICK)
    toy.until_the_job_comes()
    server, waiting = toy.cluster.server[0, 0], toy.cluster.waiting[0, 0]
    assert (server["running"], server["queued"], waiting["count"]) == (0, 0, 6)
    toy.step(0)
    assert (server["running"], server["queued"], waiting["count"]) == (2, 1, 3)
    toy.step(0)
    assert (server["running"], server["queued"], waiting["count"]) == (1, 0, 3)
    assert server["latency_sum_s"] == pytest.approx(2 * 1.258)
    assert server["mean_s"] == pytest.approx(1.258)  # the router's, as of this interval
    believed_s = float(toy.simulation.world.model["latency_s"][0])
    assert waiting["latency_s"] == pytest.approx(0.7 * believed_s + 0.3 * 1.258)
    toy.step(0)
    assert (server["running"], server["queued"], waiting["count"]) == (2, 0, 1)
    assert (toy.episode["waiting"], toy.episode["serving"]) == (1, 2)


def test_a_call_goes_to_the_instance_of_least_drain_latency(tmp_path: Path) -> None:
    """Idle ones are equal: the first GPU. What was sent counts at once."""
    demand = {**ALIKE, "num_agents": {5: 1}}
    toy = Toy(tmp_path, [card("a")], gpus=2, initial="spread", demand=demand, **EACH_TICK)
    toy.until_the_job_comes()
    toy.cluster.server[0, 1]["mean_s"] *= 1.75
    toy.step(0, 0)
    # Calls times mean: 0 and 0, 1 and 0, 1 and 1.75, 2 and 1.75, 2 and 3.5.
    assert toy.cluster.server[0]["running"].tolist() == [3, 2]


def test_a_job_that_nobody_serves_is_late_when_its_deadline_has_passed(tmp_path: Path) -> None:
    toy = Toy(tmp_path, [card("a")], demand=ALIKE, **EACH_TICK)
    toy.until_the_job_comes()
    deadline_s = toy.cluster.arrival_s[0, 0] + 3 * (FIRST_S + LAST_S) + 10
    while not toy.episode["late"]:
        toy.step(0)
    assert toy.simulation.now_s()[0] == math.ceil(deadline_s)
    toy.step(0)
    assert (toy.episode["late"], toy.episode["jobs_late"]) == (0, 1)  # once


@pytest.mark.parametrize(("grace_s", "late"), [(1.0, 1), (2.0, 0)])
def test_a_job_that_ends_after_its_deadline_is_late(
    tmp_path: Path, grace_s: float, late: int
) -> None:
    """It comes at 2.5, is sent at 3 and decides from 5 on, within an interval: latency 3.639 s."""
    demand = {**ALIKE, "slo": {"factor": 1.0, "grace_s": grace_s}}
    toy = Toy(tmp_path, [card("a")], initial="spread", demand=demand, decision_interval_s=10)
    toy.cluster.arrival_s[0] = np.inf
    toy.cluster.arrival_s[0, 0] = 2.5
    toy.step(0)
    (job,) = toy.simulation.finished(0)
    assert job["latency_s"] == pytest.approx(5 + LAST_S - 2.5)
    assert (job["late"], toy.episode["late"], toy.episode["jobs_late"]) == (late, late, late)


@pytest.mark.parametrize("kind", ["poisson", "burst", "diurnal", "profile", "mmpp", "trace"])
def test_jobs_come_at_the_mean_rate_of_the_demand(tmp_path: Path, kind: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp,input,output\n0,1,1\n1,1,1\n5,1,1\n6,1,1\n")
    needs: dict[str, Any] = {"profile": {"rates": [1, 4]}, "trace": {"path": str(trace)}}
    demand = load_demand(write_demand(tmp_path, arrivals={"kind": kind, **needs.get(kind, {})}))
    horizon_s = 200_000.0
    process = JobArrivals(demand, 20.0, horizon_s, None)
    times_s, rows = np.empty(process.capacity), np.empty(process.capacity, np.int64)
    process.draw(np.random.default_rng(0), times_s, rows)
    assert np.isfinite(times_s).sum() == pytest.approx(20.0 / 60.0 * horizon_s, rel=0.03)


def test_popularity_moves_from_model_to_model(tmp_path: Path) -> None:
    """Everything is for the first of the ranking, which moves on by one at 20 s."""
    demand = {**ALIKE, "jobs_per_gpu_per_min": 30, "zipf": 60, "shift": {"every_s": 20}}
    toy = Toy(tmp_path, [card("a"), card("b")], demand=demand)
    toy.step(0, times=4)
    asked = toy.cluster.waiting[0]
    first = int(asked["count"][0])
    assert first > 2 and asked["count"][1] == 0
    toy.step(0, times=4)
    assert asked["count"][0] == first and asked["count"][1] > 2


def test_mean_reward_is_minus_mean_latency(tmp_path: Path) -> None:
    """Little's law: over a long episode with light load the summed reward, scaled back, is the
    summed time of all calls, and so close to calls times the mean time of a call."""
    toy = Toy(
        tmp_path, [card("a", slots=64, queue=0)], initial="spread", num_decisions=200, demand={}
    )
    total = 0.0
    for _ in range(200):
        toy.step(0)
        total += float(toy.simulation.terms[0, :2].sum())
    norm = float(toy.simulation.world.settings[0]["request_norm"])
    in_servers_s = float(toy.cluster.server[0, 0]["latency_sum_s"])
    calls = int(toy.episode["requests_done"])
    assert calls > 1000
    # outside its server a call waits up to 1 s for the next tick, half a second or so
    spent_s = -total * norm
    assert in_servers_s < spent_s < in_servers_s + 1.05 * calls
    summary = toy.simulation.summary(0)
    assert summary["mean_call_latency_s"] == pytest.approx(spent_s / toy.episode["requests_made"])
