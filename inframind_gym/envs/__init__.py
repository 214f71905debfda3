"""The Gymnasium environments, made by id (`inframind_gym.registration`), a folder a family.

routing/     Executor, Planner, Stream: models, strategies and plans of multi-agent queries
placement/   models on GPUs
assignment/, token_budget/, coordination/: teams of agents; teams: what these three share
checks       of actions and options; observations: as a Dict; batch: base class of the batches
wrappers     episode statistics with costs, metrics; metrics: of a router, for Prometheus
rendering    what "rgb_array" pictures are drawn with; sb3: a batch as a Stable-Baselines3 `VecEnv`
"""
