"""The Gymnasium environments, made by id (`inframind_gym.registration`), a folder a family.

routing/     Executor, Planner, Stream: models, strategies and plans of multi-agent queries
placement/   models on GPUs
actions      checks of actions; batch: base class of the vector environments
wrappers     episode statistics with costs, metrics; metrics: of a router, for Prometheus
rendering    the "rgb_array" picture; sb3: a batch as a Stable-Baselines3 `VecEnv`
"""
