"""Play one query after the other with random routes, and show what congestion does to them."""

import argparse

import gymnasium as gym

import inframind_gym  # noqa: F401  (registers the environments)


def play(rate_per_min: float, episodes: int) -> tuple[float, float]:
    """Return the share of queries solved and the mean of latency / budget."""
    env = gym.make(
        "InfraMind-Executor-v0", arrival_rate_per_min=rate_per_min, background="least_loaded"
    )
    env.action_space.seed(0)
    env.reset(seed=0)
    solved, cost = 0.0, 0.0
    for _ in range(episodes):
        terminated = False
        while not terminated:
            action = env.action_space.sample()  # model, strategy = divmod(action, 3)
            _, reward, terminated, _, info = env.step(action)
            solved += reward
        cost += info["episode_cost"]
        env.reset()  # goes on to the next query, with the servers as they are
    env.close()
    return solved / episodes, cost / episodes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=100)
    arguments = parser.parse_args()
    for rate in (10.0, 100.0, 200.0):
        share, ratio = play(rate, arguments.episodes)
        print(f"{rate:5g} queries/min: solved {share:.0%}, latency {ratio:.2f} of the budget")
