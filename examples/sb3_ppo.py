"""Train Stable-Baselines3's PPO on a compiled batch of environments (extra `agents`)."""

import argparse

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecMonitor

import inframind_gym  # noqa: F401  (registers the environments)
from inframind_gym.envs.sb3 import SB3VecEnv

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--num-envs", type=int, default=64)
    arguments = parser.parse_args()
    envs = gym.make_vec(
        "InfraMind-Executor-v0",
        num_envs=arguments.num_envs,
        observation="index",
        split="train",  # "test" is for the measurement
        arrival_rate_per_min=100.0,
    )
    model = PPO("MlpPolicy", VecMonitor(SB3VecEnv(envs)), n_steps=64, batch_size=512, verbose=1)
    model.learn(arguments.steps)
    model.save("sb3_ppo.zip")
