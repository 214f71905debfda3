"""Decisions of a policy on single calls, by the compiled rules of the environments.

A request is a stream of one query with one agent. Arrival, plan, route and order are those of a
live environment (`BackendLoop`), and `show` writes what the policy sees: telemetry as it was polled
last, and the gateway's own calls in flight. What a request asks is not embedded: it counts as the
most typical shipped question of its domain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.checks import check_actions
from inframind_gym.envs.routing.actions import action_space
from inframind_gym.envs.routing.backend_simulation import BackendSimulation, OpenBackend
from inframind_gym.envs.routing.config import env_config
from inframind_gym.envs.routing.simulation import Leg
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.live.gateway.config import GatewayConfig
from inframind_gym.policies import Policy, requires_of, resolve_policy
from inframind_gym.simulator.native import Bound
from inframind_gym.simulator.server.telemetry import E2E, KV, QUEUE
from inframind_gym.simulator.workflow import bindings as rules
from inframind_gym.simulator.workflow.backend import Telemetry
from inframind_gym.simulator.workflow.dispatch import BEGIN, DECISION, SEND, STEP
from inframind_gym.simulator.workflow.state import PLAN, START
from inframind_gym.simulator.workflow.topology import TOPOLOGIES
from inframind_gym.tasks import DOMAINS, TaskSet

L = TypeVar("L", bound=BackendSimulation)
_IO: Final = TOPOLOGIES.index("IO")
_ORDINALS: Final = 1 << 12  # of requests; policies keep a place for each
_QUERIES: Final = 1000  # of which one is played: queues are shown up to six times as many calls
_PATIENCE_S: Final = 5.0  # of a workflow while all servers are down
_ROW: Final = np.zeros(1, np.int64)


class Order(NamedTuple):
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


def make_stage(
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
    return cls(
        env_config(arguments), open_backend, one_query=False, retries=1, patience_s=_PATIENCE_S
    )


def highs(stage: BackendSimulation) -> NDArray[np.int64]:
    """Return the number of choices of each part of a loop's actions."""
    choices = action_space(stage)
    return np.atleast_1d(np.asarray(getattr(choices, "nvec", getattr(choices, "n", 0))))


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


class Desk:
    """A policy that is asked for one call at a time.

    Args:
        config: of the gateway.

    Attributes:
        stage: the loop whose rules are followed.
        seen: (3, M) the metrics that the policy saw last, normalised.

    Raises:
        ConfigError: there is no such policy, or it cannot route single calls.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._policy = _router(config.policy)
        requires = requires_of(self._policy)
        self.stage = make_stage(config, requires, _no_backend, one_call=True, cls=BackendSimulation)
        self._tasks = typical_tasks(self.stage.tasks)
        self._domain = config.domain
        self._any_plan = getattr(self._policy, "carries_out_any_plan", True)
        spec = self.stage.policy_spec()
        self._seed = config.seed
        self._highs = highs(self.stage)
        observations, contexts = self.stage.buffers()
        unread = np.zeros(1)
        self._leg = Leg(
            *(STEP, _ROW, np.zeros(0, START), np.zeros((1, 0), np.int64)),
            *(observations, contexts, unread, unread),
        )
        self._start, self._order = np.zeros(1, START), np.zeros(1, rules.ORDER)
        self._start["num_queries"] = 1
        self._none = np.zeros(self.stage.action_size, np.int64)
        self._count = 0
        self._metrics = np.zeros((3, spec.num_models))
        self._noted = np.zeros((1, 3, spec.num_models), np.float32)
        self._enter, self._next_event = Bound(rules.enter), Bound(rules.next_event)
        self._arrives, self._note = Bound(rules.query_arrives), Bound(rules.note_metrics)

        self._reset()
        nothing = Telemetry(0, *([[0.0] * spec.num_models] * 4))
        world = World(0.0, (1 << spec.num_models) - 1, np.zeros(spec.num_models, int), nothing)
        self.decide(world, 0.0, 60.0, config.domain)  # what is compiled is not waited for later
        self._reset()

    def _reset(self) -> None:
        self._policy.reset(self.stage.policy_spec(), [self._seed])
        if not self._any_plan:
            self._policy.plan_single_calls()  # type: ignore[attr-defined]

    @property
    def seen(self) -> NDArray[np.float32]:
        """The metrics as they were noted last, normalised, (3, M)."""
        noted: NDArray[np.float32] = self._noted[0]
        return noted

    def task(self, domain: str) -> int:
        """Return the task that requests of a domain count as."""
        fallback = next(iter(self._tasks.values()))
        return self._tasks.get(domain, self._tasks.get(self._domain, fallback))

    def note(self, telemetry: Telemetry) -> None:
        """Take note of the metrics."""
        if telemetry.polls:
            self._metrics[QUEUE] = telemetry.depth_req
            self._metrics[E2E] = telemetry.e2e_s
            self._metrics[KV] = telemetry.kv_frac
            self._note(self.stage.params, self._noted, self._metrics)

    def decide(self, world: World, arrival_s: float, budget_s: float, domain: str) -> Order:
        """Ask the policy for one call.

        Args:
            world: the servers now.
            arrival_s: of the request.
            budget_s: of the request, from its arrival.
            domain: one of DOMAINS.

        Raises:
            InfraMindError: the policy gave no valid action.
        """
        params, state = self.stage.params, self.stage.state
        stream = state.stream[0]
        state.arrival_s[0, 0], state.task[0, 0] = arrival_s, self.task(domain)
        self._start["budget_s"], self._start["models_up"] = budget_s, world.up
        self._enter(params, state, BEGIN, self._start, self._none)
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
            self._enter(params, state, STEP, self._start, self._act())
            event = self._next_event(params, state, self._order)
        if event != SEND:
            raise InfraMindError(f"policy {self._policy.name!r} decided on no call")
        self._count += 1
        order = self._order[0]
        return Order(int(order["model"]), int(order["strategy"]), float(order["priority"]))

    def _act(self) -> NDArray[np.int64]:
        """Show the policy its decision, and return its action (a,)."""
        leg = self._leg
        self.stage.show(self._noted, leg)
        given = self._policy.act_batch(leg.observations, leg.contexts, _ROW)
        action: NDArray[np.int64] = check_actions(given, self._highs, 1)[0]
        if self._any_plan and leg.contexts["kind"][0] == PLAN:
            action[:2] = _IO, 0  # one agent, whatever it would have liked
        return action


def _router(name: str) -> Policy:
    """Return a policy that can route single calls.

    Raises:
        ConfigError: it cannot.
    """
    policy = resolve_policy(name)
    requires = requires_of(policy)
    why = None
    if requires.get("level") == "planner":
        why = "it plans and does not route"
    elif "planner" in requires:
        why = f"it insists on the plan {requires['planner']}"
    elif not getattr(policy, "carries_out_any_plan", True) and not hasattr(
        policy, "plan_single_calls"
    ):
        why = "it routes along plans of several agents alone"
    if why is not None:
        raise ConfigError(f"policy {name!r} cannot route single calls: {why}")
    return policy


def _no_backend(simulation: BackendSimulation, key: int) -> Any:
    raise InfraMindError("the desk decides, and sends nothing")
