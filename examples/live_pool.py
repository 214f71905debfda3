"""Route the calls of a few queries over live vLLM servers (extra `live`).

Start them first, without a GPU: inframind pool up --pool b200-2gpu --simulate --speed 10
"""

import argparse

import gymnasium as gym

import inframind_gym  # noqa: F401  (registers the environments)
from inframind_gym.policies import resolve_policy

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", default="b200-2gpu")
    parser.add_argument("--workload", default="mmlu_pro")
    parser.add_argument("--queries", type=int, default=10)
    parser.add_argument("--scripted-s", type=float, help="ask no server: every call takes so long")
    arguments = parser.parse_args()
    env = gym.make(
        "InfraMind-StreamLive-v0",
        pool=arguments.pool,
        workload=arguments.workload,
        num_queries=arguments.queries,
        scripted_s=arguments.scripted_s,
        observation="index",
    )
    policy = resolve_policy("least_loaded")
    observation, _ = env.reset(seed=0)
    policy.reset(env.unwrapped.policy_spec(), [0])
    terminated = False
    while not terminated:
        action = policy.act(observation, env.unwrapped.context())
        observation, _, terminated, _, info = env.step(action)
        for query in env.unwrapped.completed():
            state = "solved" if query["solved"] else "not solved"
            print(f"query {query['query']}: {state} in {query['latency_s']:.1f} s")
    env.close()
