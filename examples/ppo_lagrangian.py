"""PPO with a Lagrange multiplier on a compiled batch of environments, in one page (needs torch).

Maximise the share of solved queries, subject to a mean latency / budget of at most 1.
"""

import argparse

import gymnasium as gym
import torch
from torch import nn
from torch.distributions import Categorical

import inframind_gym  # noqa: F401  (registers the environments)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for option, default in (("--steps", 819_200), ("--num-envs", 64), ("--num-steps", 128)):
        parser.add_argument(option, type=int, default=default)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    settings = {"observation": "index", "split": "train"}  # "test" is for the measurement
    envs = gym.make_vec("InfraMind-Executor-v0", num_envs=args.num_envs, **settings)
    size, actions = envs.single_observation_space.shape[0] - 2, envs.single_action_space.n
    actor = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, actions))
    critic = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 1))
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer, multiplier = torch.optim.Adam(parameters, lr=1e-3), 0.2
    shape, observation = (args.num_steps, args.num_envs), envs.reset(seed=0)[0]
    for update in range(max(args.steps // (args.num_envs * args.num_steps), 1)):
        seen = torch.zeros(args.num_steps + 1, args.num_envs, size)
        taken, logs, rewards, costs, ends = (torch.zeros(shape) for _ in range(5))
        for t in range(args.num_steps):
            seen[t] = torch.as_tensor(observation[:, 2:])  # without indices of query and role
            with torch.no_grad():
                choice = Categorical(logits=actor(seen[t]))
                taken[t] = choice.sample()
                logs[t] = choice.log_prob(taken[t])
            observation, reward, terminated, _, info = envs.step(taken[t].long().numpy())
            rewards[t], costs[t] = torch.as_tensor(reward), torch.as_tensor(info["cost"])
            ends[t] = torch.as_tensor(terminated)
        seen[-1] = torch.as_tensor(observation[:, 2:])
        values = critic(seen).detach()[..., 0]
        advantage, last = torch.zeros(shape), torch.zeros(args.num_envs)
        for t in reversed(range(args.num_steps)):  # generalised advantage estimation, λ = 0.95
            gain = rewards[t] - multiplier * costs[t] + (1 - ends[t]) * values[t + 1]
            advantage[t] = last = gain - values[t] + (1 - ends[t]) * 0.95 * last
        returns, scaled = advantage + values[:-1], (advantage - advantage.mean()) / advantage.std()
        for _ in range(4):  # clipped updates
            choice = Categorical(logits=actor(seen[:-1]))
            ratio = (choice.log_prob(taken) - logs).exp()
            policy_loss = -torch.min(ratio * scaled, ratio.clamp(0.8, 1.2) * scaled).mean()
            value_loss = (critic(seen[:-1])[..., 0] - returns).square().mean()
            optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss - 0.01 * choice.entropy().mean()).backward()
            optimizer.step()
        solved, cost = float(rewards.sum() / ends.sum()), float(costs.sum() / ends.sum())
        multiplier = max(0.0, multiplier + 0.05 * (cost - 1.0))
        print(f"{update:4}: solved {solved:.0%}, latency / budget {cost:.2f}, λ {multiplier:.2f}")
