"""Decisions: a policy asked for one call, expected latencies, servers that are left alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.backend import BackendSimulation, OpenBackend
from inframind_gym.envs.layout import ObservationLayout, PolicySpec
from inframind_gym.envs.routing_config import env_config
from inframind_gym.envs.spaces import check_actions
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.live.gateway.config import BreakerConfig, GatewayConfig
from inframind_gym.policies import Policy, requires_of, resolve_policy
from inframind_gym.policies.simple import LowestExpectedLatencyPolicy
from inframind_gym.simulator.native import Bound
from inframind_gym.simulator.server.pool import PoolConfig
from inframind_gym.simulator.server.telemetry import E2E, KV, QUEUE
from inframind_gym.simulator.workflow import backend_loop as rules
from inframind_gym.simulator.workflow.backend import Telemetry
from inframind_gym.simulator.workflow.dispatch import BEGIN, DECISION, SEND, STEP
from inframind_gym.simulator.workflow.state import PLAN, START
from inframind_gym.simulator.workflow.topology import TOPOLOGIES
from inframind_gym.tasks import DOMAINS, TaskSet

L = TypeVar("L", bound=BackendSimulation)
ROW: Final = np.zeros(1, np.int64)
_IO: Final = TOPOLOGIES.index("IO")
_ORDINALS: Final = 1 << 12  # of requests; policies keep a place for each
_QUERIES: Final = 1000  # of which one is played: queues are shown up to six times as many calls
_PATIENCE_S: Final = 5.0  # of a workflow while all servers are down
_BYTES_A_TOKEN: Final = 4.0


class Decision(NamedTuple):
    """A call as a policy decided it."""

    model: int
    strategy: int
    priority_s: float  # lower first: a deadline on the gateway's clock


class World(NamedTuple):
    """State of the servers at a decision; M models."""

    now_s: float
    up: int  # bit mask of the models that may be chosen
    in_flight: NDArray[np.int64]  # (M,) the gateway's own calls
    telemetry: Telemetry


def make_loop(
    config: GatewayConfig,
    requires: Mapping[str, Any],
    open_backend: OpenBackend,
    *,
    one_call: bool,
    cls: type[L],
) -> L:
    """Return a loop for one query at a time.

    Args:
        config: of the gateway.
        requires: of the policy.
        open_backend: as of `BackendSimulation`.
        one_call: the query is one call.
        cls: of the loop.

    Raises:
        ConfigError: pool, workload and policy do not go together.
    """
    arguments: dict[str, Any] = {
        "pool": config.pool,
        "workload": config.workload,
        "split": "all",
        "num_queries": _QUERIES,
        "observation": "index",
        **requires,
    }
    if config.metrics_poll_s is not None:
        arguments["metrics_poll_s"] = config.metrics_poll_s
    if one_call and requires.get("level", "executor") == "executor":
        arguments["planner"] = {"topology": "IO", "num_agents": 1}
    settings = env_config(arguments)
    return cls(settings, open_backend, one_query=False, retries=1, patience_s=_PATIENCE_S)


def act(
    policy: Policy, loop: BackendSimulation, observations: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Return a policy's action (a,) on the observations (1, d) that a loop has written.

    Raises:
        InfraMindError: it is not valid.
    """
    given = policy.act_batch(observations, loop.decisions, ROW)
    action: NDArray[np.int64] = check_actions(given, loop.highs, 1)[0]
    return action


def ordinal(count: int) -> int:
    """Return the number of a request, so that policies remember a bounded number of them."""
    half = _ORDINALS // 2
    return count if count < _ORDINALS else half + count % half


def typical_tasks(tasks: TaskSet) -> dict[str, int]:
    """Return, by domain, the task that is nearest to the mean of its embeddings."""
    found = {}
    for d, domain in enumerate(DOMAINS):
        members = np.flatnonzero(tasks.domain == d)
        if len(members):
            centre = tasks.embeddings[members].mean(axis=0)
            found[domain] = int(members[(tasks.embeddings[members] @ centre).argmax()])
    return found


class SingleCallPolicy:
    """A policy that is asked for one call at a time, by the compiled rules of the environments.

    A request is a stream of one query with one agent. Arrival, plan, route and order are those of a
    live environment; the policy sees telemetry as it was polled last, and the gateway's own calls
    in flight. What a request asks is not embedded: it counts as the most typical shipped question
    of its domain.

    Args:
        config: of the gateway.

    Attributes:
        loop: whose rules are followed.
        seen: (1, 3, M) the metrics as they were noted last, normalised.

    Raises:
        ConfigError: there is no such policy, or it cannot route single calls.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._policy = policy = resolve_policy(config.policy)
        requires = requires_of(policy)
        # Those that route along plans of several agents alone can have one for single calls.
        self._any_plan = getattr(policy, "carries_out_any_plan", True)
        why = None
        if requires.get("level") == "planner":
            why = "it plans and does not route"
        elif "planner" in requires:
            why = f"it insists on the plan {requires['planner']}"
        elif not self._any_plan and not hasattr(policy, "plan_single_calls"):
            why = "it routes along plans of several agents alone"
        if why is not None:
            raise ConfigError(f"policy {config.policy!r} cannot route single calls: {why}")

        def no_backend(simulation: BackendSimulation, key: int) -> Any:
            raise InfraMindError("nothing is sent from here")

        self.loop = make_loop(config, requires, no_backend, one_call=True, cls=BackendSimulation)
        self.spec = self.loop.policy_spec()
        self._tasks, self._domain = typical_tasks(self.loop.tasks), config.domain
        self._observations = self.loop.observations()
        self._start, self._order = np.zeros(1, START), np.zeros(1, rules.ORDER)
        self._start["num_queries"] = 1
        self._no_action = np.zeros(self.loop.action_size, np.int64)
        self._metrics = np.zeros((3, self.spec.num_models))
        self.seen = np.zeros((1, 3, self.spec.num_models), np.float32)
        self._enter, self._next_event = Bound(rules.enter), Bound(rules.next_event)
        self._arrives, self._note = Bound(rules.query_arrives), Bound(rules.note_metrics)
        self._count = 0
        nothing = Telemetry(0, *([[0.0] * self.spec.num_models] * 4))
        models = self.spec.num_models
        world = World(0.0, (1 << models) - 1, np.zeros(models, np.int64), nothing)
        for warm in (True, False):  # what is compiled is not waited for later
            policy.reset(self.loop.policy_spec(), [config.seed])
            if not self._any_plan:
                policy.plan_single_calls()  # type: ignore[attr-defined]
            if warm:
                self.decide(world, 0.0, 60.0, config.domain)

    def note(self, telemetry: Telemetry) -> None:
        """Take note of the metrics."""
        if telemetry.polls:
            self._metrics[QUEUE] = telemetry.depth_req
            self._metrics[E2E] = telemetry.e2e_s
            self._metrics[KV] = telemetry.kv_frac
            self._note(self.loop.params, self.seen, self._metrics)

    def decide(self, world: World, arrival_s: float, budget_s: float, domain: str) -> Decision:
        """Ask the policy for one call.

        Args:
            world: the servers now.
            arrival_s: of the request.
            budget_s: of the request, from its arrival.
            domain: one of DOMAINS.

        Raises:
            InfraMindError: the policy gave no valid action.
        """
        params, state, shown = self.loop.params, self.loop.state, self._observations
        stream, fallback = state.stream[0], next(iter(self._tasks.values()))
        usual = self._tasks.get(self._domain, fallback)
        state.arrival_s[0, 0], state.task[0, 0] = arrival_s, self._tasks.get(domain, usual)
        self._start["budget_s"], self._start["models_up"] = budget_s, world.up
        self._enter(params, state, BEGIN, self._start, self._no_action)
        stream["now_s"] = world.now_s
        self._arrives(params, state)
        state.in_flight[0] = world.in_flight
        telemetry = world.telemetry
        stream["polls"] = telemetry.polls
        if telemetry.polls:
            stream["last_poll_s"] = min(*telemetry.taken_s, world.now_s)
        self.note(telemetry)
        event = self._next_event(params, state, self._order)
        while event == DECISION:
            state.query[0, stream["slot"]]["ordinal"] = ordinal(self._count)
            self.loop.show(self.seen, shown)
            action = act(self._policy, self.loop, shown)
            if self._any_plan and self.loop.decisions["kind"][0] == PLAN:
                action[:2] = _IO, 0  # one agent, whatever it would have liked
            self._enter(params, state, STEP, self._start, action)
            event = self._next_event(params, state, self._order)
        if event != SEND:
            raise InfraMindError(f"policy {self._policy.name!r} decided on no call")
        self._count += 1
        order = self._order[0]
        return Decision(int(order["model"]), int(order["strategy"]), float(order["priority"]))


class Predictor:
    """Expected seconds of a call at each of M models, by the rule of `lowest_expected_latency`.

    Args:
        pool: the server cards are believed.
        spec: facts of the run, of the policy that routes.
    """

    def __init__(self, pool: PoolConfig, spec: PolicySpec) -> None:
        layout = ObservationLayout(
            spec.num_models, "index", ("queue", "e2e"), queue_norm=spec.queue_norm
        )
        self._rule = LowestExpectedLatencyPolicy(e2e_weight=0.0)
        facts = {name: getattr(spec, name) for name in PolicySpec.__dataclass_fields__}
        self._rule.reset(PolicySpec(**(facts | {"layout": layout, "level": "executor"})), [0])
        self._observation = np.zeros((1, layout.size), np.float32)
        self._layout, self._call_s = layout, spec.expected_call_s
        cards = [model.server for model in pool.models]
        self._idle_s = np.array([card.call_s(0.0, 1.0) for card in cards])
        self._token_s = np.array([card.call_s(0.0, 2.0) for card in cards]) - self._idle_s
        prefill_s = np.array([card.call_s(1000.0, 1.0) for card in cards]) - self._idle_s
        self._prompt_s = prefill_s / 1000.0
        self._polls = -1
        self._own_at_poll = np.zeros(spec.num_models)

    def latency_s(
        self,
        seen: NDArray[np.float32],
        polls: int,
        depth_req: Sequence[float],
        in_flight: NDArray[np.int64],
        prompt_bytes: int,
        max_tokens: int | None,
    ) -> NDArray[np.float64]:
        """Return the expected latency at each model, (M,).

        The load of a server is the gateway's own calls, counted now, and those of others as of the
        last poll. A call that may write fewer tokens than usual, or reads more, takes as much less
        or more of its own time.

        Args:
            seen: (3, M) metrics, normalised.
            polls: number of polls so far.
            depth_req: (M,) requests at the last poll.
            in_flight: (M,) own calls.
            prompt_bytes: of the request.
            max_tokens: of the answer; None: as usual.
        """
        depth = np.asarray(depth_req, np.float64)
        if polls != self._polls:
            self._polls, self._own_at_poll = polls, in_flight.astype(np.float64)
        load = in_flight + np.maximum(depth - self._own_at_poll, 0.0)
        row = self._observation
        row[:, self._layout.system("queue")] = seen[QUEUE]
        row[:, self._layout.system("e2e")] = seen[E2E]
        polled = np.round(self._layout.queue_depth_req(row[0]), 3)
        self._rule.sent = (load - polled)[None]  # the rule adds what was sent since the poll
        expected: NDArray[np.float64] = self._rule.expected_latency_s(row, ROW)[0]
        expected = expected + prompt_bytes / _BYTES_A_TOKEN * self._prompt_s
        if max_tokens is not None:
            longest_s = self._idle_s + (max_tokens - 1) * self._token_s
            expected = expected - np.maximum(self._call_s - longest_s, 0.0)
        at_least: NDArray[np.float64] = np.maximum(expected, self._idle_s)
        return at_least


@dataclass(slots=True)
class _Breaker:
    failures: int = 0  # in a row
    opened: int = 0  # times since it last answered
    until_s: float = 0.0  # closed to all before, to all but one request after
    trying: bool = False


class Breakers:
    """Servers that fail request after request while they report that they are well.

    After `failures` in a row a server is left alone for `open_s`. Then one request is let through:
    if it is answered the server is used again, else the time doubles.

    Args:
        servers: M.
        config: limits.
        clock: seconds.
    """

    def __init__(
        self, servers: int, config: BreakerConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config, self._clock = config, clock
        self._breakers = [_Breaker() for _ in range(servers)]

    def closed(self) -> int:
        """Return the bit mask of the servers that may be tried now."""
        now_s = self._clock()
        return sum(
            1 << m
            for m, each in enumerate(self._breakers)
            if not each.opened or (now_s >= each.until_s and not each.trying)
        )

    def begin(self, server: int) -> None:
        """A request is sent."""
        self._breakers[server].trying = self._breakers[server].opened > 0

    def end(self, server: int, ok: bool | None) -> None:
        """A request was answered, failed, or (None) says nothing of the server."""
        breaker = self._breakers[server]
        was_trying, breaker.trying = breaker.trying, False
        if ok:
            breaker.failures = breaker.opened = 0
        elif ok is not None:
            breaker.failures += 1
            if was_trying or (not breaker.opened and breaker.failures >= self._config.failures):
                pause_s = self._config.open_s * 2.0 ** min(breaker.opened, 30)
                breaker.until_s = self._clock() + min(pause_s, self._config.open_most_s)
                breaker.opened += 1
