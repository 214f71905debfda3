"""Enter a policy of one's own on the board, beside built-in ones.

The same from a shell: inframind bench run --suite starter --policies least_loaded,own_policy:Mine
"""

import argparse
from pathlib import Path

import numpy as np

from inframind_gym.evaluation.board import leaderboard, load_results
from inframind_gym.evaluation.runner import run
from inframind_gym.evaluation.suite import load_suite
from inframind_gym.policies import BasePolicy


class Mine(BasePolicy):
    """The model with the shortest expected wait, counted in calls ahead of this one."""

    name = "mine"

    def act_batch(self, observations, contexts, rows):
        """Return a route for each of n calls, (n,)."""
        spec = self.spec  # public facts: models, slots, seconds of a call at light load, …
        ahead = 1 + spec.layout.queue_depth_req(observations) / spec.max_num_seqs
        return spec.action(np.argmin(ahead * spec.expected_call_s, axis=1), 1)  # 1: Concise


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/own_policy"))
    parser.add_argument("--queries", type=int, default=200)
    arguments = parser.parse_args()
    policies = ("least_loaded", "round_robin", f"{Path(__file__).stem}:Mine")
    suite = load_suite("starter", {"policies": policies, "num_queries": arguments.queries})
    run(suite.resolve(), arguments.out, workers=1)
    for row in leaderboard(load_results(arguments.out))["ranking"]:
        print(f"{row['policy']:20} solved in time: {100 * row['goodput']:.1f} %")
