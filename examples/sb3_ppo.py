"""Train Stable-Baselines3's PPO on a compiled batch of environments (extra `agents`)."""

import argparse

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecNormalize

import inframind_gym  # noqa: F401  (registers the environments)
from inframind_gym.envs.sb3 import SB3VecEnv

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400_000)
    parser.add_argument("--num-envs", type=int, default=64)
    arguments = parser.parse_args()
    settings = {"workload": "math", "split": "train", "num_queries": 1000, "observation": "index"}
    settings |= {"planner": {"topology": "IO", "num_agents": 1}, "reward": "goodput"}
    settings |= {"system_features": ("in_flight",), "truncate_overrun_s": 60.0}
    envs = gym.make_vec("InfraMind-Stream-v0", num_envs=arguments.num_envs, **settings)
    venv = VecNormalize(SB3VecEnv(envs), norm_reward=False)
    model = PPO("MlpPolicy", venv, n_steps=128, batch_size=1024, verbose=1)
    model.learn(arguments.steps)
    model.save("sb3_ppo.zip")
    venv.save("sb3_ppo.normalize.pkl")
