"""InfraMind-Executor-v0 and InfraMind-Stream-v0: choose models and strategies of agent calls.

Their arguments are in `routing_config`, the batch of closed loops in `routing_simulation`, the
compiled step with reward, cost and observation in `routing_kernel`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs import render
from inframind_gym.envs.core import Env, Ints, VectorEnv
from inframind_gym.envs.routing_config import EnvConfig
from inframind_gym.envs.routing_simulation import RoutingSimulation
from inframind_gym.simulator.server.state import E2E, QUEUE
from inframind_gym.simulator.server.telemetry import LOG_SCALE
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.simulator.workflow.state import PLAN
from inframind_gym.simulator.workflow.topology import CUSTOM, STRATEGIES, TOPOLOGIES
from inframind_gym.tasks import DOMAINS


class RoutingEnv(Env):
    """A router of multi-agent LLM calls in front of vLLM servers."""

    arguments: ClassVar[type[EnvConfig]] = EnvConfig
    simulation: RoutingSimulation

    def context(self) -> Any:
        """Return the decision that waits, a CONTEXT record (`simulator.workflow.state`)."""
        return self.simulation.decisions[0].copy()

    def completed(self) -> NDArray[Any]:
        """Return the agent's queries that ended in the last step, (k,) COMPLETED."""
        return self.simulation.completed(0)

    def earned(self) -> NDArray[Any]:
        """Return the decisions of the queries that ended in the last step, (k,) EARNED."""
        return self.simulation.earned()

    def calls(self) -> NDArray[Any]:
        """Return every completed call of the stream, (k,) CALL; needs `record_calls=True`."""
        return self.simulation.calls(0)

    def describe(self, action: Ints) -> tuple[str, str]:
        """Return the choice of an action, and the call or plan that waited for it."""
        context = self.simulation.decisions[0]
        is_plan = context["kind"] == PLAN
        role = "planner" if is_plan else ROLES[context["role"]].name
        what = f"query {context['query'] + 1}, {role}, {context['time_s']:.1f} s"
        if is_plan:
            return f"{TOPOLOGIES[action[0]]}, {_agents(action[1] + 1)}", what
        route = int(action[PLAN_ACTIONS if len(action) > PLAN_ACTIONS else 0])
        model, strategy = divmod(route, len(STRATEGIES))
        return f"{self.simulation.pool.models[model].alias}, {STRATEGIES[strategy]}", what

    def frame(self) -> render.Frame:
        """Return servers, budget and the outcome so far."""
        simulation, pool, rows = self.simulation, self.simulation.pool, []
        stream = simulation.state.stream[0]
        seen, up = simulation.seen(0), simulation.models_up_now()
        depth_req, e2e_s = seen[QUEUE] * pool.queue_norm, np.expm1(seen[E2E] * LOG_SCALE)
        for m, (model, load) in enumerate(zip(pool.models, simulation.loads(0), strict=True)):
            slots = model.server.slots
            cells = (
                model.gpu,
                render.Bar(load.running / slots, f"{load.running}/{slots}"),
                render.Bar(load.waiting / (2 * slots), str(load.waiting), render.WAITING),
                render.Bar(load.kv_frac, f"{load.kv_frac:.0%}", render.CACHE),
                f"{depth_req[m]:.0f}",
                f"{e2e_s[m]:.1f} s" if e2e_s[m] else "-",
            )
            rows.append((model.alias if up >> m & 1 else f"{model.alias}: down", *cells))
        heads = ("GPU", "running", "waiting", "KV cache", "depth", "e2e")
        age = f"polled {stream['now_s'] - stream['last_poll_s']:.1f} s ago"
        note = f"depth and e2e {age if stream['polls'] else 'not polled yet'}"
        ended = simulation.state.completed[0, : stream["finished"]]
        ended = ended[ended["is_controlled"] == 1]
        in_time = (ended["latency_s"] <= ended["budget_s"]).sum()
        arrived, in_flight = stream["arrived"], stream["arrived"] - stream["finished"]
        rate = f"{simulation.rates_per_min[0]:g} queries/min"
        names = pool.name, simulation.workload.name, rate
        return render.Frame(
            simulation.title,
            (*names, simulation.scheduler, simulation.execution),
            f"{stream['now_s']:.1f} s",
            f"{arrived} of {stream['num_queries']} queries arrived, {in_flight} in flight",
            (render.Table("Servers", heads, tuple(rows), note),),
            self._headline(ended),
            results=f"{len(ended)} done, {ended['solved'].sum()} solved, {in_time} on time",
        )

    def _headline(self, ended: NDArray[Any]) -> render.Headline:
        """Return the decision that waits, or the result of the last query."""
        simulation, context = self.simulation, self.simulation.decisions[0]
        if not simulation.state.stream[0]["live"]:
            if not len(ended):
                return render.Headline("No decision waits", "")
            last = ended[-1]
            solved = "solved" if last["solved"] else "not solved"
            latency = f"{last['latency_s']:.1f} s of {last['budget_s']:g} s"
            return render.Headline(
                "Episode over", f"query {last['query'] + 1} {solved} in {latency}"
            )
        facts = [DOMAINS[context["domain"]], "needs a plan", "planner"]
        if context["kind"] != PLAN:
            topology = (*TOPOLOGIES, CUSTOM)[context["topology"]]
            facts[1:] = [
                f"{topology}, {_agents(context['num_agents'])}",
                f"call {context['node'] + 1} of {context['num_nodes']}, "
                f"wave {context['wave'] + 1} of {context['num_waves']}",
                ROLES[context["role"]].name,
            ]
        budget_s = context["budget_s"]
        left_s = budget_s - (context["time_s"] - context["arrival_s"])
        share = left_s / budget_s
        colour = render.GOOD if share > 0.5 else render.WAITING if share > 0.2 else render.BAD
        words = f"{left_s:.1f} s left" if left_s >= 0 else f"{-left_s:.1f} s late"
        bar = render.Bar(share, f"{words} of {budget_s:g} s", colour)
        return render.Headline(f"Query {context['query'] + 1}", render.SEPARATOR.join(facts), bar)


def _agents(count: int) -> str:
    return f"{count} agent{'s' if count > 1 else ''}"


class RoutingVectorEnv(VectorEnv):
    """The routing environments in a compiled batch; row i does what a single one of its seed does.

    `reset(options=…)`: `arrival_rate_per_min` and `budget_s` are numbers, or arrays (E,) with one
    number an environment; a budget of NaN is drawn from the tiers.

    `time_s`, `query` and `node` of a single environment's `info` are fields of `contexts()`. With
    `credit=True` `infos["earned"]` and `infos["costs"]` are of every row's step, its last step of
    an episode included; `infos["final_info"]` has neither.
    """

    simulation: RoutingSimulation

    def completed(self) -> tuple[Ints, NDArray[Any]]:
        """Return what ended in the last step: (k,) environments and (k,) COMPLETED."""
        return self.simulation.completed_batch()

    def earned(self) -> NDArray[Any]:
        """Return the decisions of the queries that ended in the last step, (k,) EARNED."""
        return self.simulation.earned()

    def calls(self, env: int) -> NDArray[Any]:
        """Return the calls of an environment's stream that are done; needs `record_calls`."""
        return self.simulation.calls(env)


class ExecutorEnv(RoutingEnv):
    """Route every agent call of one query while other queries load the servers.

    ## Description

    A query with a latency budget has arrived and a plan says which agents work on it: a topology,
    a number of agents and their roles. Each agent's call is routed to one of M models with one of
    three prompt strategies. The other queries of the stream are routed by a built-in rule
    (`background`). This is the constrained Markov decision process of InfraMind (arXiv 2606.11440).

    ## Action Space

    `Discrete(M·3)`: model `a // 3` in the order of the pool, strategy `a % 3` (0 Flash, 1 Concise,
    2 DeepThink). A call routed to a model that is down goes to the next one that is up;
    `info["action_mask"]`, (M·3,) int8, tells which are up, and so does `action_masks()`, of bool.

    ## Observation Space

    `Box(779,)` float32 for five models:

    | numbers | what | normalised |
    |---|---|---|
    | 384 | embedding of the query (all-MiniLM-L6-v2) | unit length |
    | 384 | embedding of the role | unit length |
    | 1 | remaining budget b, s | log(max(b, 1)) / log 300 |
    | 5 | queue depth of each model, running + waiting | / 16 |
    | 5 | mean end-to-end latency of each model, s | log(1 + e2e) / log 300 |
    | (5) | KV-cache use, with "kv" among the `system_features` | 0..1 |
    | (5) | calls that the router has sent and that are not answered, with "in_flight" | / 16 |

    With `observation="index"` two indices (of the task and of the role) replace the 768 numbers;
    with "dict" the numbers come as a Dict of `query`, `role`, `budget` and `servers`, with a row
    for each model. Telemetry is as old as the last poll (every 5 s).

    With `observation="compact"`, for small networks, `Box(37,)`: the budget b as above,
    log(1 + arrivals/min over the last minute) / log 300, and of each model

    | number | |
    |---|---|
    | own load | the router's calls that are not answered, over the server's slots |
    | GPU load | the same, summed over the models of its GPU |
    | queue | requests at the server at the last poll, over its slots |
    | e2e | as above |
    | slack | ln(b / seconds of a call at the present load) / 3 |
    | call | ln(seconds of a call at light load) / ln 300 |
    | ability | at the workload, in logits |

    ## Rewards and costs

    Reward 0, and at the end 1 if the query is solved (`reward="goodput"`: within its budget).
    `info["cost"]`: the latency that the step has added, as a share of the budget; the costs of an
    episode sum to `info["episode_cost"]` = latency / budget. The constraint is an expected episode
    cost of at most 1.

    With `credit=True` `info["earned"]` has an entry for each of the agent's decisions whose query
    ended in the step: `query`, `node` (-1: the plan), `ago` (steps since the decision), `reward`,
    `cost` and `late` of the query, `model` and `seconds` (of the decision's calls at that server,
    queue included). `info["costs"]` are the cost, the queries that ended late, and the
    seconds of ended queries at each server, (2 + M,).

    ## Starting State

    The next query of the stream, with the servers as the queries before it left them.
    `reset(seed=…)` starts a new stream and puts the tagged query at a random place in it;
    `reset()` goes on in the running stream, and starts a new one when it is over.
    `info["split"]` of a reset names the split that plays.

    ## Episode End

    When the final call of the query is done. Never truncated.

    ## Arguments

    | argument | meaning |
    |---|---|
    | `pool` | name or path of a pool of servers (`envs_configs/pools`) |
    | `workload` | name or path of a workload, or {"name": …, "quality": {"draw": 7}} |
    | `tasks` | "builtin" or a folder of JSON Lines files |
    | `split` | "train", "val", "test" or "all" of the tasks |
    | `arrival_rate_per_min` | queries a minute |
    | `budget_s` | seconds of every query, or a list that each draws from; None: the workload's |
    | `num_queries` | queries in a stream; None: the workload's |
    | `arrivals` | arrival process, by name or as JSON (`inframind_gym.simulator.arrivals`) |
    | `scheduler` | order of the servers' queues; None: the pool's |
    | `execution` | how a workflow's calls follow one another; None: the workload's |
    | `planner` | a fixed plan, a dict; None: drawn from the workload's measured mix |
    | `agents` | rules of the agents beyond their graph; None: the workload's |
    | `background` | router of the calls that are not the agent's |
    | `level` | decisions of the agent: "executor", or as in `InfraMind-Stream-v0` |
    | `reward` | "solved", or "goodput": solved within the budget |
    | `truncate_overrun_s` | seconds past its budget at which a query's answer ends the stream |
    | `observation` | "full" (embeddings), "index", "compact" or "dict" |
    | `credit` | add "earned" and "costs" to `info` |
    | `system_features` | observed telemetry: "queue", "e2e", "kv", "in_flight" |
    | `metrics_poll_s` | seconds between two polls of it; None: the pool's |
    | `call_timeout_s` | seconds after which the client aborts a call; None: never |
    | `call_attempts` | how often a call is sent until it has failed |
    | `record_calls` | keep a record of every call (`calls()`) |
    | `down_models` | aliases of models that are down |
    | `faults` | servers that die and return, slow down, lose telemetry: `docs/environments.md` |

    `reset(options=…)` takes `arrival_rate_per_min` and `budget_s` (NaN: drawn from the tiers),
    which hold from then on and start a new stream. Reward, cost and observation are computed in
    `inframind_gym.envs.routing_kernel`.

    ## Version History

    * v0: first version.
    """

    simulate = staticmethod(partial(RoutingSimulation, one_query=True))


class StreamEnv(RoutingEnv):
    """The closed loop: the agent's own choices make the queues that its later choices meet.

    ## Description

    `num_queries` queries arrive at a rate. One step is the next decision that is due anywhere in
    the cluster, whichever query it belongs to; several can be due at one instant. Time runs only
    between decisions. An episode is the whole stream.

    ## Action Space

    | `level` | plans | routes | action |
    |---|---|---|---|
    | "executor" (default) | the workload's mix, or `planner` | the agent | `Discrete(M·3)` |
    | "planner" | the agent | the `background` router | `MultiDiscrete([6, 6, 12 × 6])` |
    | "joint" | the agent | the agent | `MultiDiscrete([6, 6, 12 × 6, M·3])` |

    A route is an action of `InfraMind-Executor-v0`, a plan one of `InfraMind-Planner-v0`: the
    topology, the number of agents less one, and the role of each agent, taken modulo the number of
    roles of the query's domain. At the joint level a query's plan is due when it arrives and its
    routes follow; each step reads the part of the action that its decision needs.
    `env.unwrapped.context()["kind"]` tells which it is, PLAN or ROUTE
    (`inframind_gym.simulator.workflow.state`).

    ## Observation Space

    As in `InfraMind-Executor-v0`, at every level; where a plan is due the part of the role is 0
    (index -1). At the joint level one more number follows: 1 where a plan is due, 0 where a route
    is.

    ## Rewards and costs

    The reward of a step is the number of queries that were solved since the last decision (with
    `reward="goodput"` within their budgets), `info["cost"]` the sum of latency / budget of those
    that ended. `env.unwrapped.completed()` returns the records of the ended queries (ordinal, every
    decision by node and its latency); `info["query"]` and `info["node"]` name the query and node of
    the next decision (of a batch: `envs.unwrapped.contexts()`); `credit=True` relates both, as in
    `InfraMind-Executor-v0`.

    ## Starting State

    Empty servers and the first query.

    ## Episode End

    When the last query is done. A backlog that can no longer be worked off makes every later query
    late: `truncate_overrun_s` ends such a stream by truncation.

    The last `info` has `queries`, the number of those that ended, `solve_rate`, the share of all
    `num_queries` that were solved, in time or not, and `mean_cost`, latency / budget of the ended;
    `episode_reward` and `episode_cost` are the sums of the steps.

    ## Arguments

    Those of `InfraMind-Executor-v0`.

    `reset(options=…)` takes `arrival_rate_per_min` and `budget_s` (NaN: drawn from the tiers),
    which hold from then on.

    ## Version History

    * v0: first version.
    """

    simulate = staticmethod(partial(RoutingSimulation, one_query=False))


# `help` shows the arguments that they have in common with `ExecutorEnv`.
ARGUMENTS: Final = (ExecutorEnv.__doc__ or "").partition("## Arguments\n\n")[2].partition("\n\n")[0]
StreamEnv.__doc__ = (StreamEnv.__doc__ or "").replace(
    "    Those of `InfraMind-Executor-v0`.", ARGUMENTS
)


class ExecutorVectorEnv(RoutingVectorEnv):
    """`InfraMind-Executor-v0` in a batch; arguments as of `ExecutorEnv`."""

    single = ExecutorEnv


class StreamVectorEnv(RoutingVectorEnv):
    """`InfraMind-Stream-v0` in a batch; arguments as of `StreamEnv`."""

    single = StreamEnv
