"""The Gymnasium environments, made by id (`inframind_gym.ENVIRONMENTS`).

core           `Env` and `VectorEnv` around a `Simulation`: forms, masks, checks of actions
routing        Executor and Stream; routing_config: arguments; routing_simulation: the batch of
               closed loops; credit: what decisions have earned; routing_kernel: the compiled
               step with reward and observation
planner        Planner: plans that an executor carries out
placement      Placement; placement_kernel: its compiled step
assignment, token_budget, coordination: teams of agents, over the rules in `inframind_gym.teams`
live           the same environments on live servers, or on any other backend
layout         what a policy may read: places and units in observations, public facts of a run
render         tables and pictures
exporter       metrics of a router for Prometheus
sb3, safe_rl   a batch as Stable-Baselines3's `VecEnv`; an environment as OmniSafe's CMDP
"""
