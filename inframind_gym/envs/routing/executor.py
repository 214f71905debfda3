"""InfraMind-Executor-v0: the workflow of one query is one episode."""

from __future__ import annotations

from inframind_gym.envs.routing.base import TaggedQueryEnv


class ExecutorEnv(TaggedQueryEnv):
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

    With `observation="index"` two indices (of the task and of the role) stand in place of the 768
    numbers, with "dict" the numbers come as a Dict with servers as rows
    (`inframind_gym.envs.routing.observation`). Telemetry is as old as the last poll (every 5 s).

    ## Rewards and costs

    Reward 0, and at the end 1 if the query is solved. `info["cost"]`: the latency that the step has
    added, as a share of the budget; the costs of an episode sum to `info["episode_cost"]` =
    latency / budget. The constraint is an expected episode cost of at most 1.

    ## Starting State

    The next query of the stream, with the servers as the queries before it left them.
    `reset(seed=…)` starts a new stream and puts the tagged query at a random place in it;
    `reset()` goes on in the running stream, and starts a new one when it is over.

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
    | `observation` | "full" (embeddings), "index" or "dict" |
    | `system_features` | observed telemetry: "queue", "e2e", "kv", "in_flight" |
    | `metrics_poll_s` | seconds between two polls of it; None: the pool's |
    | `call_timeout_s` | after which the client aborts a call; None: it waits |
    | `call_attempts` | how often a call that it aborts is sent |
    | `record_calls` | keep a record of every call (`calls()`) |
    | `down_models` | aliases of models that are down |
    | `faults` | servers that die and return, slow down, lose telemetry: `docs/environments.md` |

    `reset(options=…)` takes `arrival_rate_per_min` and `budget_s` (NaN: drawn from the tiers),
    which hold from then on and start a new stream. Reward and cost are computed in
    `inframind_gym.envs.routing.reward`, observations in `inframind_gym.envs.routing.observation`.

    ## Version History

    * v0: first version.
    """
