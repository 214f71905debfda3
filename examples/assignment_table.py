"""Learn with a table who takes a task, and see what the discount and the exploration do to it."""

import argparse

import gymnasium as gym
import numpy as np

import inframind_gym  # noqa: F401  (registers the environments)

TASKS = 500
RATE = 0.15  # learning rate


def learn(discount: float, epsilon_min: float, seed: int) -> float:
    """Return the mean reward of the last 100 tasks of a run."""
    env = gym.make(
        "InfraMind-Assignment-v0", arrivals="skewed", observation="tabular", num_tasks=TASKS
    )
    table, epsilon = np.zeros((20, 8)), 1.0  # task type and load state; agent and provider
    rng, rewards = np.random.default_rng(seed), []
    state, _ = env.reset(seed=seed)
    truncated = False
    while not truncated:
        explore = rng.random() < epsilon
        action = rng.integers(8) if explore else table[state].argmax()
        after, reward, _, truncated, _ = env.step(action)
        target = reward + discount * table[after].max()
        table[state, action] += RATE * (target - table[state, action])
        state, epsilon = after, max(epsilon_min, 0.98 * epsilon)
        rewards.append(reward)
    return float(np.mean(rewards[-100:]))


def in_turn(seed: int) -> float:
    """Return the mean reward of the last 100 tasks if the agents take turns."""
    env = gym.make("InfraMind-Assignment-v0", arrivals="skewed", num_tasks=TASKS)
    env.reset(seed=seed)
    return float(np.mean([env.step(2 * (t % 4))[1] for t in range(TASKS)][-100:]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    seeds = range(parser.parse_args().runs)
    for discount in (0.95, 0.0):
        for epsilon_min in (0.05, 0.3):
            mean = np.mean([learn(discount, epsilon_min, seed) for seed in seeds])
            print(f"discount {discount:4g}, epsilon at least {epsilon_min:4g}: {mean:.3f}")
    print(f"in turn: {np.mean([in_turn(seed) for seed in seeds]):.3f}")
