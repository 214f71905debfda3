"""Runs that the studio carries out: their settings, and threads that play them into the run log.

Settings come from the network: policies, pools and workloads are those that are built in, and what
a run may reach (`Ways`) is fixed by the command line. Pools write these events:

servers     names, and where they are known GPUs and slots; clock: "simulated" or "wall"
sample      state of every server at an instant "t" of the clock, in seconds
decision    of a simulation: the query, its call, where it went, and what is left of its budget
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, get_args

import numpy as np
from pydantic import AfterValidator, StringConstraints

from inframind_gym.configs import (
    NonNegativeInt,
    Positive,
    StrictModel,
    list_configs,
    validate,
    within,
)
from inframind_gym.envs.routing_config import DEFAULT_POOL, DEFAULT_WORKLOAD
from inframind_gym.errors import ConfigError, InfraMindError, unknown
from inframind_gym.policies import POLICIES, policy_names
from inframind_gym.teams.assignment.app import Options, make_run, open_providers
from inframind_gym.teams.assignment.rules import ARRIVALS, Router
from inframind_gym.teams.coordination.settings import MOST_QUERY_CHARS
from inframind_gym.teams.llm import SIMULATED, Provider, open_provider
from inframind_gym.teams.runs import RunLog, RunStore
from inframind_gym.teams.token_budget.app import Orchestrator, Order
from inframind_gym.teams.token_budget.settings import STRATEGIES

if TYPE_CHECKING:
    from inframind_gym.envs.routing import StreamEnv
    from inframind_gym.teams.coordination.retrieval import Retriever

MOST_RUNS: Final = 8  # at once
_ENDING_S: Final = 5.0  # that runs get to end when the studio does
SAMPLE_S: Final = 1.0  # of a simulation, between two samples
_DIGITS: Final = 3
_ANSWER_S: Final = 5.0  # for a gateway to answer
_OLD: Final = "an older gateway: its running and waiting requests are unknown, not 0; update it"
Samples = Mapping[str, list[tuple[dict[str, str], float]]]  # labels and values, by metric


# Settings


def _plain(family: str) -> tuple[str, ...]:
    """Return the policies of a family that play by their name alone."""
    known = (name for name in policy_names(family) if not name.startswith("sb3"))
    return tuple(name for name in known if not POLICIES[family][name].args)


# Names that forms offer and that are accepted, by team and field.
CHOICES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "pool": {
        "policy": (
            *("bid_price", "ppo_lagrangian", "budget_greedy", "lowest_expected_latency"),
            *("least_loaded", "linucb", "q_learning_load_tracker", "round_robin", "random"),
        ),
        "pool": list_configs("pools"),
        "workload": list_configs("workloads"),
    },
    "token-budget": {"strategy": tuple(dict.fromkeys((*STRATEGIES, *_plain("token_budget"))))},
    "assignment": {"router": get_args(Router), "arrivals": ARRIVALS},
    "coordination": {"policy": _plain("coordination")},
}


def _one_of(team: str, field: str) -> AfterValidator:
    def check(name: str) -> str:
        if name not in CHOICES[team][field]:
            raise ValueError(unknown(field, name, CHOICES[team][field]))
        return name

    return AfterValidator(check)


class CoordinationRequest(StrictModel):
    """A question to the coordination team; `deadline_s` None: the team's own."""

    question: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MOST_QUERY_CHARS)
    ]
    policy: Annotated[str, _one_of("coordination", "policy")] = "seed_supervisor"
    deadline_s: Annotated[float, within(0.1, 3600.0)] | None = None


class PoolRequest(StrictModel):
    """A simulated stream of queries, and who routes it."""

    pool: Annotated[str, _one_of("pool", "pool")] = DEFAULT_POOL
    workload: Annotated[str, _one_of("pool", "workload")] = DEFAULT_WORKLOAD
    policy: Annotated[str, _one_of("pool", "policy")] = "bid_price"
    arrival_rate_per_min: Annotated[float, within(0.1, 2000.0)] = 100.0
    num_queries: Annotated[int, within(1, 2000)] = 200
    budget_s: Positive | None = None  # None: the workload's tiers
    seed: NonNegativeInt = 0
    speed: Annotated[float, within(0.1, 10_000.0)] | None = 20.0  # None: as fast as it goes


class WatchRequest(StrictModel):
    """Duration of the watch over live servers or a gateway, and the interval of its readings."""

    watch_s: Annotated[float, within(1.0, 86_400.0)] = 3600.0
    poll_s: Annotated[float, within(0.2, 60.0)] = 2.0


@dataclass(frozen=True, slots=True)
class Ways:
    """Models, gateway and pool that runs use."""

    provider: str = SIMULATED  # name or URL of the models of teams
    model: str | None = None  # of the provider; None: its default
    gateway: str | None = None  # address; None: there is none to watch
    pool: str | None = None  # of live servers, name or file

    def open(self) -> Provider | None:
        """Return a new way to the models; None: they are simulated."""
        return None if self.provider == SIMULATED else open_provider(self.provider, self.model)


class Stopped(KeyboardInterrupt):
    """A person has stopped a run; its log counts it as interrupted."""


class StoppableLog(RunLog):
    """A run's log that raises `Stopped` at the next event after `stopping` was set."""

    def __init__(self, store: RunStore, team: str, settings: Mapping[str, Any]) -> None:
        super().__init__(store, team, settings)
        self.stopping = threading.Event()

    def append(self, kind: str, data: Mapping[str, Any]) -> int:
        """Write an event and return its number."""
        number = super().append(kind, data)
        self.rest(0.0)
        return number

    def rest(self, seconds: float) -> None:
        """Wait; raise `Stopped` if the run has been stopped."""
        if self.stopping.wait(max(seconds, 0.0)):
            raise Stopped("stopped in the studio")


# Pools


def _play_stream(settings: PoolRequest, ways: Ways, log: StoppableLog) -> None:
    """Play a simulated stream under a policy, paced by the wall clock; it reaches nothing."""
    import gymnasium as gym

    import inframind_gym  # noqa: F401 (registers the environment)
    from inframind_gym.policies import requires_of, resolve_policy
    from inframind_gym.simulator.workflow.state import PLAN

    policy, row = resolve_policy(settings.policy), np.zeros(1, np.int64)
    env: StreamEnv = gym.make(  # type: ignore[assignment]
        "InfraMind-Stream-v0",
        disable_env_checker=True,
        observation="index",
        **settings.model_dump(exclude={"policy", "seed", "speed"}),
        **requires_of(policy),
    ).unwrapped
    counts = dict.fromkeys(("done", "solved", "in_time", "good"), 0)

    def sample(now_s: float) -> None:
        simulation = env.simulation
        loads, up = simulation.loads(0), simulation.models_up_now()
        state = {
            "t": round(now_s, _DIGITS),
            "running": [load.running for load in loads],
            "waiting": [load.waiting for load in loads],
            "kv": [round(float(load.kv_frac), _DIGITS) for load in loads],
            "up": [up >> m & 1 for m in range(len(loads))],
            "arrived": int(simulation.state.stream[0]["arrived"]),
        }
        log.append("sample", {**state, **counts})

    observation, _ = env.reset(seed=settings.seed)
    servers = _named(env.simulation.pool, "simulated")
    log.append("servers", servers | {"queries": settings.num_queries})
    policy.reset(env.policy_spec(), [settings.seed])
    observe = getattr(policy, "observe", None)
    began_s, sampled_s, over = time.monotonic(), -SAMPLE_S, False
    while not over:
        context = env.context()
        now_s = float(context["time_s"])
        if settings.speed is not None:
            log.rest(began_s + now_s / settings.speed - time.monotonic())
        if now_s >= sampled_s + SAMPLE_S:
            sampled_s = now_s
            sample(now_s)
        action = policy.act_batch(observation[None], np.array([context]), row)[0]
        to, call = env.describe(np.atleast_1d(action))
        left_s = float(context["arrival_s"] + context["budget_s"]) - now_s
        decision = {"query": int(context["query"]), "call": call, "to": to}
        if context["kind"] != PLAN:
            decision["server"] = servers["names"].index(to.split(", ")[0])
        log.append("decision", {**decision, "left_s": round(left_s, _DIGITS)})
        observation, _, over, _, _ = env.step(action)
        ended = env.completed()
        if observe is not None and len(ended):
            observe(ended, 0)
        solved, in_time = ended["solved"] > 0, ended["latency_s"] <= ended["budget_s"]
        outcomes = {"done": solved | True, "solved": solved, "in_time": in_time}
        for key, outcome in (outcomes | {"good": solved & in_time}).items():
            counts[key] += int(outcome.sum())
    sample(float(env.simulation.state.stream[0]["now_s"]))
    names = {"goodput": "good", "solved": "solved", "slo": "in_time"}
    shares = {name: counts[key] / max(counts["done"], 1) for name, key in names.items()}
    log.finish("complete", {"queries": counts["done"], **shares})


def _named(pool: Any, clock: str) -> dict[str, Any]:
    return {
        "names": [model.alias for model in pool.models],
        "gpus": [model.gpu for model in pool.models],
        "slots": [model.server.slots for model in pool.models],
        "clock": clock,
    }


def _until_over(
    settings: WatchRequest, log: StoppableLog, look: Callable[[], dict[str, Any]]
) -> None:
    """Sample live servers until the time is over or the run is stopped."""
    began_s, samples = time.monotonic(), 0
    while (now_s := time.monotonic() - began_s) < settings.watch_s:
        log.append("sample", {"t": round(now_s, _DIGITS), **look()})
        samples += 1
        log.rest(began_s + samples * settings.poll_s - time.monotonic())
    log.finish("complete", {"samples": samples, "watched_s": settings.watch_s})


def _watch_pool(settings: WatchRequest, ways: Ways, log: StoppableLog) -> None:
    """Watch the servers of a live pool by their metrics."""
    from inframind_gym.live.config import LiveSettings, addresses
    from inframind_gym.live.watcher import MetricsWatcher
    from inframind_gym.simulator.server.pool import load_pool

    pool = load_pool(str(ways.pool))
    log.append("servers", _named(pool, "wall"))
    with MetricsWatcher(addresses(pool), LiveSettings(), poll_s=settings.poll_s) as watcher:

        def look() -> dict[str, Any]:
            servers = watcher.status()
            readings = [server.reading if server.up else None for server in servers]
            return {
                "running": [0 if r is None else int(r.running_req) for r in readings],
                "waiting": [0 if r is None else int(r.waiting_req) for r in readings],
                "kv": [0.0 if r is None else round(r.kv_frac, _DIGITS) for r in readings],
                "up": [int(server.up) for server in servers],
                "notes": [f"{s.alias}: {s.reason}" if s.reason else "" for s in servers],
            }

        _until_over(settings, log, look)


def scrape(url: str) -> Samples:
    """Return the samples of a gateway's metrics.

    Raises:
        InfraMindError: it does not answer, or is no gateway.
    """
    from prometheus_client.parser import text_string_to_metric_families

    from inframind_gym.live.client import DownError, ask

    key, samples = os.environ.get("INFRAMIND_API_KEY", ""), defaultdict[str, list[Any]](list)
    try:
        text = ask(f"{url.rstrip('/')}/metrics", limit_s=_ANSWER_S, key=key)
    except DownError as error:
        remedy = "Start a gateway: inframind serve --pool POOL"
        if error.status == 401:
            remedy = "Give a key of it in INFRAMIND_API_KEY"
        raise InfraMindError(f"{url}: {error}. {remedy}") from None
    with suppress(ValueError):  # it is something else
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples[sample.name].append((sample.labels, float(sample.value)))
    if not samples["inframind_router_info"]:
        raise InfraMindError(f"{url}: no gateway answers there")
    return samples


def _watch_gateway(settings: WatchRequest, ways: Ways, log: StoppableLog) -> None:
    """Watch a gateway by its metrics."""
    url = str(ways.gateway)
    first = scrape(url)
    ((about, _),) = first["inframind_router_info"]
    names = [labels["model"] for labels, _ in first["inframind_server_up"]]
    log.append("servers", {"names": names, "about": about, "clock": "wall"})

    def look() -> dict[str, Any]:
        try:
            seen = scrape(url)
        except InfraMindError as error:  # it may come back
            nothing = {key: [0] * len(names) for key in ("running", "waiting", "kv", "up")}
            return {**nothing, "notes": [str(error)]}

        def total(metric: str, **labels: str) -> float:
            rows = seen[f"inframind_{metric}"]
            return sum(value for of, value in rows if labels.items() <= of.items())

        up = [int(total("server_up", model=name)) for name in names]
        return {
            **{
                state: [int(total("requests_seen", model=name, state=state)) for name in names]
                for state in ("running", "waiting")
            },
            "notes": [] if seen["inframind_requests_seen"] or not any(up) else [_OLD],
            "up": up,
            "kv": [round(total("kv_cache_seen", model=name), _DIGITS) for name in names],
            "decisions": [int(total("decisions_total", model=name)) for name in names],
            "failed": [int(total("calls_total", model=name, outcome="failed")) for name in names],
            "in_flight": int(total("queries_in_flight")),
            "done": int(total("queries_total", outcome="answered")),
            "in_time": int(total("queries_total", outcome="answered", in_budget="true")),
            "refused": int(total("refused_total")),
        }

    _until_over(settings, log, look)


# Teams


def _token_budget(settings: Order, ways: Ways, log: StoppableLog) -> None:
    asyncio.run(Orchestrator(settings, log, ways.open()).run())


def _assignment(settings: Options, ways: Ways, log: StoppableLog) -> None:
    models = [] if ways.model is None else [ways.model]
    training = make_run(settings, open_providers([ways.provider], models), log=log)
    with training.llm_service:
        training.train()
        log.finish("complete", training.summary())


@cache
def _searcher() -> Retriever:
    """Return the index of the shipped passages, which takes seconds to build."""
    from inframind_gym.teams.coordination.retrieval import Corpus, Retriever

    return Retriever(Corpus.load())


def _coordination(settings: CoordinationRequest, ways: Ways, log: StoppableLog) -> None:
    from inframind_gym.teams.coordination.app import MultiAgentCoordinator

    with MultiAgentCoordinator(
        backend=SIMULATED, provider=ways.open(), searcher=_searcher(), log=log
    ) as team:
        team.warm_up()
        of_query = settings.model_dump(exclude={"question"}, exclude_none=True)
        response = team.process_query(settings.question, settings=of_query)
    log.finish(*response.summary())


class Team(NamedTuple):
    """A team, or servers, as the studio starts and describes its runs."""

    title: str
    about: str
    settings: type[StrictModel]
    play: Callable[[Any, Ways, StoppableLog], None]
    run: str  # a run in words: a template of its settings
    result: str  # what came of it: a template of its summary
    source: Literal["models", "simulation", "pool", "gateway"] = "models"  # whom it reaches


TEAMS: Final = {
    "pool": Team(
        "Pool",
        "Queries of a simulated stream arrive, a router sends their calls to servers, and queues "
        "grow where it sends too many.",
        PoolRequest,
        _play_stream,
        "{policy} on {pool}, {workload} at {arrival_rate_per_min:g}/min",
        "goodput {goodput:.0%}",
        "simulation",
    ),
    "servers": Team(
        "Live servers",
        "The vLLM servers of the pool that the studio was started with (--pool), by their metrics.",
        WatchRequest,
        _watch_pool,
        "watching the pool",
        "{samples} samples",
        "pool",
    ),
    "gateway": Team(
        "Gateway",
        "The gateway that the studio was started with (--gateway), by its metrics.",
        WatchRequest,
        _watch_gateway,
        "watching the gateway",
        "{samples} samples",
        "gateway",
    ),
    "token-budget": Team(
        "Token budget",
        "Planner, executor and critic work on a task under a hard ceiling of tokens, and stop "
        "where further tokens buy too little quality.",
        Order,
        _token_budget,
        "{strategy}, {budget:,} tokens: {task}",
        "quality {quality:.0f}, {cost_report[tokens]:,} tokens",
    ),
    "assignment": Team(
        "Assignment",
        "Four agents share tasks. Q-learning learns who takes which, and who gets too much of the "
        "recent work is penalised.",
        Options,
        _assignment,
        "{router}, {arrivals}, {iterations} tasks, seed {seed}",
        "reward {mean_adjusted_reward:.3f}",
    ),
    "coordination": Team(
        "Coordination",
        "A supervisor calls router, planner, retrieval, synthesis and validation, and answers from "
        "sources before a deadline.",
        CoordinationRequest,
        _coordination,
        "{question}",
        "{ended_by}",
    ),
}


class BusyError(InfraMindError):
    """As many runs are under way as may be."""


class Launcher:
    """Runs under way, each in a thread, `most_runs` at once."""

    def __init__(self, store: RunStore, ways: Ways, most_runs: int = MOST_RUNS) -> None:
        self.store, self.ways, self._most = store, ways, most_runs
        self._running: dict[str, tuple[StoppableLog, threading.Thread]] = {}
        self._lock = threading.Lock()

    def start(self, team: str, settings: Mapping[str, Any]) -> str:
        """Start a run and return its name.

        Raises:
            BusyError: too many are under way.
            ConfigError: there is no such team, or a setting is wrong.
        """
        if team not in TEAMS:
            raise ConfigError(unknown("team", team, TEAMS))
        checked = validate(dict(settings), TEAMS[team].settings, source="settings")
        record = checked.model_dump(mode="json")
        source = TEAMS[team].source
        if source in ("pool", "gateway") and getattr(self.ways, source) is None:
            raise ConfigError(f"there is no {source} to watch. Start the studio with --{source}.")
        record["provider"] = self.ways.provider if source == "models" else source
        if source == "models" and self.ways.model is not None:
            record["model"] = self.ways.model
        with self._lock:
            if len(self._running) >= self._most:
                raise BusyError(f"{self._most} runs are under way; stop one, or try again later")
            log = StoppableLog(self.store, team, record)

            def carry_out() -> None:  # whatever happens, the log finishes the run in the file
                try:
                    with suppress(Stopped, InfraMindError), log:
                        TEAMS[team].play(checked, self.ways, log)
                finally:
                    with self._lock:
                        self._running.pop(log.run_id, None)

            thread = threading.Thread(target=carry_out, daemon=True)
            self._running[log.run_id] = (log, thread)
        thread.start()
        return log.run_id

    def stop(self, run_id: str) -> bool:
        """Stop a run at its next event; False if it is not under way here."""
        if running := self._running.get(run_id):
            running[0].stopping.set()
        return running is not None

    def owned(self) -> dict[str, bool]:
        """Return the runs that are under way here, and whether each is being stopped."""
        return {run_id: log.stopping.is_set() for run_id, (log, _) in [*self._running.items()]}

    def close(self) -> None:
        """Stop all runs and wait for their ends."""
        running = list(self._running.values())
        for log, _ in running:
            log.stopping.set()
        for _, thread in running:
            thread.join(_ENDING_S)
