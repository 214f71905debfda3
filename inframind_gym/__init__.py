"""InfraMind as Gymnasium environments: routing multi-agent LLM calls over servers that queue.

Importing the package registers

    routing          InfraMind-Executor-v0, InfraMind-Planner-v0, InfraMind-Stream-v0
    models on GPUs   InfraMind-Placement-v0
    teams            InfraMind-Assignment-v0, InfraMind-TokenBudget-v0, InfraMind-Coordination-v0
    live servers     InfraMind-ExecutorLive-v0, InfraMind-PlannerLive-v0, InfraMind-StreamLive-v0,
                     InfraMind-PlacementLive-v0

    import gymnasium as gym
    import inframind_gym

    env = gym.make("InfraMind-Executor-v0", arrival_rate_per_min=100)
"""

from inframind_gym.registration import ENVIRONMENTS, register_all

__version__ = "0.2.0"
__all__ = ["ENVIRONMENTS", "__version__", "register_all"]

register_all()
