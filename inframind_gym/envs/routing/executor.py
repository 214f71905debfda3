"""InfraMind-Executor-v0: the workflow of one query is one episode."""

from __future__ import annotations

from inframind_gym.envs.routing.one_query import OneQueryEnv


class ExecutorEnv(OneQueryEnv):
    """Route every agent call of one query while other queries load the servers.

    ## Description

    A query with a latency budget has arrived and a plan says which agents work on it: a topology,
    a number of agents and their roles. Each agent's call is routed to one of M models with one of
    three prompt strategies. The other queries of the sweep are routed by a built-in rule
    (`background`). This is the constrained Markov decision process of `spec/inframind.md` §1-2.

    ## Action Space

    `Discrete(M·3)`: model `a // 3` in the order of the pool, strategy `a % 3` (0 Flash, 1 Concise,
    2 DeepThink). A call routed to a model that is down goes to the next one that is up;
    `action_masks()` and `info["action_mask"]` tell which are up.

    ## Observation Space

    `Box(779,)` float32 for five models:

    | numbers | what | normalised |
    |---|---|---|
    | 384 | embedding of the query (all-MiniLM-L6-v2) | unit length |
    | 384 | embedding of the role | unit length |
    | 1 | remaining budget b, s | log(max(b, 1)) / log 300 |
    | 5 | queue depth of each model, running + waiting | / 16 |
    | 5 | mean end-to-end latency of each model, s | log(1 + e2e) / log 300 |
    | (5) | KV-cache use, with `system_features=("queue", "e2e", "kv")` | 0..1 |

    With `observation="index"` two indices (of the task and of the role) stand in place of the 768
    numbers. Telemetry is as old as the last poll (every 5 s).

    ## Rewards and costs

    Reward 0, and at the end 1 if the query is solved. `info["cost"]`: the latency that the step has
    added, as a share of the budget; the costs of an episode sum to `info["episode_cost"]` =
    latency / budget. The constraint is an expected episode cost of at most 1.

    ## Starting State

    The next query of the sweep, with the servers as the queries before it left them.
    `reset(seed=…)` starts a new sweep and puts the agent's query at a random place in it; `reset()`
    goes on in the running sweep, and starts a new one when it is over.

    ## Episode End

    When the final call of the query is done. Never truncated.

    ## Arguments

    See `inframind_gym.envs.routing.config.EnvConfig`; `reset(options=…)` takes
    `arrival_rate_per_min` and `budget_s` (NaN: drawn from the tiers), which hold from then on and
    start a new sweep.

    ## Version History

    * v0: first version.
    """
