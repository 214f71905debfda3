"""Decisions of a policy on single calls, and expected latencies."""

from __future__ import annotations

import json
import logging
import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.core import check_actions, checked_arguments
from inframind_gym.envs.layout import Compact, ObservationLayout, PolicySpec, observe
from inframind_gym.envs.live import BackendSimulation
from inframind_gym.envs.routing_config import EnvConfig
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.live.gateway.config import USUAL_DOMAIN, GatewayConfig
from inframind_gym.policies import requires_of, resolve_policy
from inframind_gym.policies.simple import LowestExpectedLatencyPolicy
from inframind_gym.simulator.rng import STREAM_ROLE, uniform_array
from inframind_gym.simulator.server.pool import PoolConfig, load_pool
from inframind_gym.simulator.workflow.backend import Telemetry
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.lifecycle import LATE_S
from inframind_gym.simulator.workflow.roles import roles_of
from inframind_gym.simulator.workflow.state import CONTEXT, PLAN, ROUTE
from inframind_gym.simulator.workflow.topology import TOPOLOGIES
from inframind_gym.simulator.workload import load_profiles, load_workload
from inframind_gym.tasks import DOMAINS, TaskSet
from inframind_gym.timeouts import HungError, interruptible

_log = logging.getLogger(__name__)
ROW: Final = np.zeros(1, np.int64)
_IO: Final = TOPOLOGIES.index("IO")
_ORDINALS: Final = 1 << 12  # numbers of requests; policies may keep memory for each
_BYTES_A_TOKEN: Final = 4.0
_REST_S: Final = 60.0  # time for which a policy that hung is not asked


class Decision(NamedTuple):
    """A policy's decision on a call."""

    model: int
    strategy: int
    priority_s: float  # lower first: a deadline on the gateway's clock


class World(NamedTuple):
    """State of the servers at a decision; M models."""

    now_s: float
    up: int  # bit mask of the models that may be chosen
    in_flight: NDArray[np.int64]  # (M,) the gateway's own calls
    telemetry: Telemetry


@lru_cache  # keeps the folder until the process ends
def _extend(pool_name: str, workload: str) -> tuple[str, tempfile.TemporaryDirectory[str]]:
    """Write a workload with all models of a pool: a missing one is like the nearest in size."""
    sizes = {model.alias: model.params_b for model in load_pool("b200-2gpu").models}
    pool, loaded = load_pool(pool_name), load_workload(workload)
    folder = tempfile.TemporaryDirectory("-inframind")
    parts: dict[str, float] = {}
    for name, weight in (loaded.mix or {workload: 1.0}).items():
        content = load_workload(name).model_dump(mode="json", exclude_unset=True)
        known, models = content.get("models") or {}, {}
        for model in pool.models:
            ratio = {a: abs(math.log(sizes[a] / model.params_b)) for a in known if a in sizes}
            nearest = min(ratio, key=ratio.__getitem__, default="")
            source = model.alias if model.alias in known else nearest
            if source in known:  # without its share in the published mix of models
                models[model.alias] = {k: v for k, v in known[source].items() if k != "share"}
            if source not in ("", model.alias):
                words = "workload %s does not know %s: it counts as %s, the nearest in size"
                _log.warning(words, name, model.alias, source)
        part = Path(folder.name, f"{len(parts)}.yaml")
        part.write_text(json.dumps({**content, "models": models}))
        parts[str(part)] = weight
    mixed = Path(folder.name, f"{loaded.name}.yaml")
    mixed.write_text(json.dumps({"name": loaded.name, "mix": parts}))
    return str(mixed), folder


def workload_for(config: GatewayConfig) -> str:
    """Return the workload of a gateway, extended if it lacks models of the pool."""
    pool, profiles = load_pool(config.pool), load_profiles(load_workload(config.workload))
    if all(set(pool.aliases) <= set(part.profile.models) for part in profiles.values()):
        return config.workload
    return _extend(config.pool, config.workload)[0]


def make_simulation(
    config: GatewayConfig, requires: Mapping[str, Any], *, one_call: bool
) -> BackendSimulation:
    """Return a simulation of one query at a time, for its rules and its `PolicySpec`.

    `requires`: arguments that the policy requires. `one_call`: a query is one call.
    """
    arguments: dict[str, Any] = {"pool": config.pool, "workload": workload_for(config)}
    arguments |= {"split": "all", "num_queries": 1, "observation": "index", **requires}
    if one_call and requires.get("level", "executor") == "executor":
        arguments["planner"] = {"topology": "IO", "num_agents": 1}

    def no_backend(simulation: BackendSimulation, key: int) -> Any:
        raise InfraMindError("its servers are the gateway's")

    return BackendSimulation(checked_arguments(EnvConfig, arguments), no_backend, one_query=False)


def ordinal(count: int) -> int:
    """Return the number of a request for policies: bounded, because they may keep memory for it."""
    half = _ORDINALS // 2
    return count if count < _ORDINALS else half + count % half


def typical_tasks(tasks: TaskSet) -> dict[str, int]:
    """Return, by domain, the task nearest to the mean embedding; without tasks another domain's."""
    nearest = {}
    for d, domain in enumerate(DOMAINS):
        members = np.flatnonzero(tasks.domain == d)
        if len(members):
            centre = tasks.embeddings[members].mean(axis=0)
            nearest[domain] = int(members[(tasks.embeddings[members] @ centre).argmax()])
    fallback = nearest.get(USUAL_DOMAIN, next(iter(nearest.values())))
    return dict.fromkeys(DOMAINS, fallback) | nearest


class TimedPolicy:
    """A policy with a time limit for each decision, `limit_s`; 0: none.

    All requests wait while it decides. A policy that hangs is interrupted as soon as it runs Python
    code, and is not asked for a minute. The limit, a signal, works on the main thread only.
    """

    def __init__(self, policy: Any, simulation: BackendSimulation, limit_s: float = 0.0) -> None:
        self._policy, self._highs, self.limit_s = policy, simulation.highs, limit_s
        self.spec, self._rests_until_s = simulation.policy_spec(), 0.0
        is_compact = self.spec.layout.embedding == "compact"
        self._compact = Compact(self.spec, 1) if is_compact else None

    def reset(self) -> None:
        """Reset the policy."""
        self._policy.reset(self.spec, [0])
        if self._compact is not None:
            self._compact.forget(ROW)

    def ask(
        self,
        telemetry: Telemetry,
        in_flight: NDArray[np.int64],
        context: NDArray[Any],
        number: int,
    ) -> NDArray[np.int64]:
        """Return the policy's action for a decision.

        Args:
            telemetry: the servers' metrics as of the last poll.
            in_flight: (M,) the gateway's own calls.
            context: (1,) CONTEXT of the decision, whose `query` is written.
            number: index of the request, from 0.

        Raises:
            InfraMindError: it gave no valid one, or none in time.
        """
        if time.monotonic() < self._rests_until_s:
            raise InfraMindError("the policy hung, and is not asked for a minute")
        row = context[0]
        left_s = float(row["arrival_s"] + row["budget_s"] - row["time_s"])
        task, role = int(row["task"]), -1 if row["kind"] == PLAN else int(row["role"])
        seen = observe(self.spec, telemetry, in_flight, task=task, budget_s=left_s, role=role)
        if self._compact is not None:
            seen = self._compact.of(seen, context["time_s"], number, ROW)
        context["query"] = ordinal(number)
        try:
            with interruptible() as within:
                within(self.limit_s)
                actions = self._policy.act_batch(seen, context, ROW)
        except HungError:
            self._rests_until_s = time.monotonic() + _REST_S
            raise InfraMindError(f"the policy did not decide in {self.limit_s:g} s") from None
        action: NDArray[np.int64] = check_actions(actions, self._highs, 1)[0]
        return action


class SingleCallPolicy:
    """A policy that decides on single calls, by the rules of the environments.

    A request is a query with a plan of one agent. The policy sees the telemetry of the last poll
    and the gateway's own calls in flight. A request's text is not embedded: it counts as the most
    typical shipped question of its domain.

    Raises:
        ConfigError: there is no such policy, or it cannot route single calls.
    """

    def __init__(self, config: GatewayConfig) -> None:
        policy = resolve_policy(config.policy)
        requires = requires_of(policy)
        # A policy may route along its own plans only, and have a method that plans single calls.
        self._any_plan = getattr(policy, "carries_out_any_plan", True)
        plan_single_calls: Any = getattr(policy, "plan_single_calls", None)
        plans = "planner" in requires or requires.get("level") == "planner"
        if plans or not (self._any_plan or plan_single_calls):
            why = "it does not route, or only along plans of its own"
            raise ConfigError(f"policy {config.policy!r} cannot route single calls: {why}")
        simulation = make_simulation(config, requires, one_call=True)
        self._timed = TimedPolicy(policy, simulation)
        self.spec = self._timed.spec
        self.tasks, self._domains = typical_tasks(simulation.tasks), simulation.tasks.domain
        self._role_u = float(uniform_array(np.zeros(1, np.uint64), STREAM_ROLE, ROW)[0])
        self._count = 0
        models = self.spec.num_models
        nothing = Telemetry(0, *([[0.0] * models] * 4))
        world = World(0.0, (1 << models) - 1, np.zeros(models, np.int64), nothing)
        for warm in (True, False):  # first a decision that compiles what later ones need
            self._timed.reset()
            if not self._any_plan:
                plan_single_calls()
            if warm:
                self.decide(world, 0.0, 60.0, USUAL_DOMAIN)
        self._timed.limit_s = config.limits.policy_s

    def decide(self, world: World, arrival_s: float, budget_s: float, domain: str) -> Decision:
        """Ask the policy for one call of a domain; an InfraMindError: it gave no valid action."""
        spec, now_s, telemetry = self.spec, world.now_s, world.telemetry
        task, deadline_s = self.tasks[domain], arrival_s + budget_s
        context = np.zeros(1, CONTEXT)
        context["time_s"], context["models_up"] = now_s, world.up
        context["arrival_s"], context["budget_s"] = arrival_s, budget_s
        polled_s = min(*telemetry.taken_s, now_s) if telemetry.polls else 0.0
        context["telemetry_age_s"], context["poll"] = now_s - polled_s, telemetry.polls
        context["task"], context["domain"] = task, self._domains[task]
        context["topology"] = _IO
        roles = roles_of(DOMAINS[self._domains[task]])
        role = roles[int(self._role_u * len(roles))]
        if spec.level == "joint":
            context["kind"], context["role"], context["topology"] = PLAN, -1, 0
            plan = self._timed.ask(telemetry, world.in_flight, context, self._count)
            role = roles[int(plan[2]) % len(roles)]
            # A policy that can route along any plan gets one agent, whatever it planned.
            context["topology"] = _IO if self._any_plan else plan[0]
        context["kind"], context["role"] = ROUTE, role
        for name in ("num_agents", "num_nodes", "num_waves"):
            context[name] = 1
        action = self._timed.ask(telemetry, world.in_flight, context, self._count)
        route = int(action[PLAN_ACTIONS if len(action) > PLAN_ACTIONS else 0])
        model, strategy = divmod(route, spec.num_strategies)
        if not world.up >> model & 1 and world.up:  # the next one that is up
            later = ((model + step) % spec.num_models for step in range(spec.num_models))
            model = next(m for m in later if world.up >> m & 1)
        self._count += 1
        return Decision(model, strategy, priority_s(spec.scheduler, deadline_s, now_s))


def priority_s(scheduler: str, deadline_s: float, now_s: float) -> float:
    """Return the priority of a call sent now, as `lifecycle.priority` gives it."""
    if scheduler == "fcfs":
        return 0.0
    late = scheduler == "edf_late_last" and now_s >= deadline_s
    return deadline_s + LATE_S if late else deadline_s


class Predictor:
    """Expected seconds of a call at each of M models, by the rule of `lowest_expected_latency`."""

    def __init__(self, pool: PoolConfig, spec: PolicySpec) -> None:
        layout = ObservationLayout(spec.num_models, "index", ("queue",), queue_norm=spec.queue_norm)
        self._rule = LowestExpectedLatencyPolicy()
        self._rule.reset(replace(spec, layout=layout, level="executor"), [0])
        calls = ((0.0, 1.0), (0.0, 2.0), (1000.0, 1.0))  # tokens of prompt and output
        call_s = np.array([[m.server.call_s(*call) for m in pool.models] for call in calls])
        self._idle_s, self._token_s = call_s[0], call_s[1] - call_s[0]
        self._prompt_s = (call_s[2] - call_s[0]) / 1000.0  # a token
        self._polls, self._own_at_poll = -1, np.zeros(spec.num_models)

    def latency_s(
        self,
        telemetry: Telemetry,
        in_flight: NDArray[np.int64],
        prompt_bytes: int,
        max_tokens: int | None,
    ) -> NDArray[np.float64]:
        """Return the expected latency at each model, (M,).

        The load of a server is the gateway's own calls now, and the calls of others as of the last
        poll. The time of the call itself is corrected for its prompt and for a low `max_tokens`.
        """
        if telemetry.polls != self._polls:
            self._polls, self._own_at_poll = telemetry.polls, in_flight.astype(np.float64)
        others = np.maximum(np.asarray(telemetry.depth_req) - self._own_at_poll, 0.0)
        loaded = replace(telemetry, depth_req=(in_flight + others).tolist())
        row = observe(self._rule.spec, loaded, in_flight, task=0, budget_s=1.0)
        expected: NDArray[np.float64] = self._rule.expected_latency_s(row, ROW)[0]
        expected = expected + prompt_bytes / _BYTES_A_TOKEN * self._prompt_s
        if max_tokens is not None:
            longest_s = self._idle_s + (max_tokens - 1) * self._token_s
            expected = expected - np.maximum(self._rule.spec.expected_call_s - longest_s, 0.0)
        at_least: NDArray[np.float64] = np.maximum(expected, self._idle_s)
        return at_least
