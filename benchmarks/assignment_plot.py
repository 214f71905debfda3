"""Plot of docs/assignment.md: rewards of the policies, and how fast the learners learn.

python -m benchmarks.assignment_plot
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.policies.assignment import registry
from inframind_gym.policies.rollout import play_assignment as play

OUT: Final = Path(__file__).resolve().parents[1] / "docs/images/assignment.svg"
RUNS: Final = 400
TASKS: Final = 500
SHOWN: Final = {  # policies of the right panel, with their colours
    "optimum": "black",
    "sb3_ppo": "tab:green",
    "thompson": "tab:blue",
    "round_robin": "tab:gray",
    "q_bandit": "tab:orange",
    "q_seed": "tab:red",
}
POLICIES: Final = (
    *("optimum", "sb3_ppo", "myopic", "static_expert", "linucb", "thompson", "least_loaded"),
    *("round_robin", "q_bandit", "random", "q_random_tie", "q_seed", "least_busy"),
)


def rewards(policy: str, arrivals: str, runs: int, tasks: int) -> NDArray[np.float64]:
    """Return the rewards of a policy, (runs, tasks)."""
    found = np.zeros((runs, tasks))
    arguments: dict[str, Any] = {"arrivals": arrivals, "num_tasks": tasks}
    for done in play(registry.resolve(policy), range(runs), **arguments):
        found[done.row, done.ordinal] = done.reward
    return found


def draw(path: Path) -> None:
    """Play the policies and write the plot."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "assignment", "svg.fonttype": "none"})
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.4), layout="constrained")
    places = np.arange(len(POLICIES))
    for offset, arrivals, colour in ((-0.12, "skewed", "tab:blue"), (0.12, "bursty", "tab:orange")):
        means = [rewards(policy, arrivals, RUNS, 50).mean(axis=1) for policy in POLICIES]
        left.errorbar(
            [own.mean() for own in means],
            places + offset,
            xerr=[1.96 * own.std(ddof=1) / RUNS**0.5 for own in means],
            fmt="o",
            markersize=4,
            color=colour,
            label=arrivals,
        )
    left.grid(axis="x", color="#eeeeee")
    left.set_yticks(places, POLICIES)
    left.invert_yaxis()
    left.set_xlabel("mean reward of a task, runs of 50 tasks")
    left.legend(title="arrivals", loc="lower right")
    kernel = np.ones(24) / 24
    for policy, colour in SHOWN.items():
        own = rewards(policy, "skewed", RUNS // 2, TASKS).mean(axis=0)
        smooth = np.convolve(own, kernel, "valid")
        right.plot(np.arange(len(smooth))[::4] + 12, smooth[::4], color=colour, label=policy)
    right.axvline(50, color="lightgray", linestyle=":")
    right.set_xlabel("task of a run of 500, skewed arrivals")
    right.set_ylabel("mean reward, over 24 tasks")
    right.set_ylim(0.56, 0.78)
    right.legend(ncol=3, loc="upper center", fontsize=8)
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(OUT)
    print(OUT)
