"""InfraMind as Gymnasium environments: routing multi-agent LLM calls over servers that queue.

Importing the package registers `InfraMind-Executor-v0`, `InfraMind-Planner-v0`,
`InfraMind-Stream-v0` and `InfraMind-Placement-v0`, and on live servers
`InfraMind-ExecutorLive-v0`, `InfraMind-StreamLive-v0` and `InfraMind-PlacementLive-v0`:

    import gymnasium as gym
    import inframind_gym

    env = gym.make("InfraMind-Executor-v0", arrival_rate_per_min=100)
"""

from inframind_gym.registration import ENVIRONMENTS, register_all

__version__ = "0.2.0"
__all__ = ["ENVIRONMENTS", "__version__", "register_all"]

register_all()
