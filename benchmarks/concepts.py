"""Figures of the concept pages: the closed loop, steady load, the quality model.

python -m benchmarks.concepts
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

import inframind_gym  # noqa: F401  (registers the environments)
from benchmarks.pages import INK, QUIET, RULE, save_all
from inframind_gym.policies import requires_of, resolve_policy
from inframind_gym.simulator.workflow.topology import STRATEGIES
from inframind_gym.simulator.workload import load_workload
from inframind_gym.tasks import load_tasks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

IMAGES: Final = Path(__file__).resolve().parents[1] / "docs/images"
RATE_PER_MIN: Final = 100.0
LOOP_POLICIES: Final = {
    "static:deepseek-32b:Concise": "tab:red",
    "round_robin": "tab:orange",
    "least_loaded": "tab:blue",
    "bid_price": "tab:green",
}
MODELS: Final = {
    "deepseek-32b": "tab:red",
    "mistral-24b": "tab:orange",
    "qwen-14b": "tab:green",
    "llama-8b": "tab:blue",
    "llama-3b": "tab:purple",
}


def play(policy_name: str, num_queries: int) -> NDArray[Any]:
    """Return the queries of one stream of `math` in the order of arrival, COMPLETED."""
    policy = resolve_policy(policy_name)
    arguments: dict[str, Any] = {
        "workload": "math",
        "num_queries": num_queries,
        "arrival_rate_per_min": RATE_PER_MIN,
        "observation": "index",
    }
    env = gym.make("InfraMind-Stream-v0", **arguments | requires_of(policy))
    shell: Any = env.unwrapped
    observation, _ = env.reset(seed=0)
    policy.reset(shell.policy_spec(), [0])
    done, over = [], False
    while not over:
        action = policy.act(observation, shell.context())
        observation, _, over, _, _ = env.step(action)
        done.append(shell.completed().copy())
    queries = np.concatenate(done)
    return queries[np.argsort(queries["arrival_s"])]


def in_flight(queries: NDArray[Any], at_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the number of queries that have arrived and are not answered at each time."""
    arrived = np.searchsorted(np.sort(queries["arrival_s"]), at_s, "right")
    return np.asarray(arrived - np.searchsorted(np.sort(queries["finish_s"]), at_s, "right"))


def _box(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(
        *(x, y, text),
        ha="center",
        va="center",
        linespacing=1.5,
        bbox={"boxstyle": "round,pad=0.6", "facecolor": "#f6f8fa", "edgecolor": QUIET},
    )


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], bend: float) -> None:
    style = {"arrowstyle": "-|>", "color": INK, "connectionstyle": f"arc3,rad={bend}"}
    axes.annotate("", end, start, arrowprops={**style, "shrinkA": 4, "shrinkB": 4})


def draw_loop() -> Figure:
    """Draw the loop, and the queues that four routers make in it."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.9), layout="constrained")
    left.set_axis_off()
    left.set(xlim=(0, 10), ylim=(0, 10))
    _box(left, 2.2, 8.6, "queries\nbudget β")
    _box(left, 2.2, 4.6, "router\nmodel, strategy")
    _box(left, 7.8, 4.6, "servers\nqueues, batches")
    _box(left, 7.8, 8.6, "answers\nsolved? in time?")
    _arrow(left, (2.2, 7.6), (2.2, 5.7), 0)
    _arrow(left, (4.0, 5.1), (6.0, 5.1), 0)
    _arrow(left, (7.8, 5.7), (7.8, 7.6), 0)
    _arrow(left, (7.8, 3.5), (2.2, 3.5), -0.45)
    left.text(5, 5.4, "calls", ha="center")
    left.text(5, 1.2, "telemetry, up to 5 s old", ha="center")
    at_s = np.arange(0.0, 480.0, 1.0)
    for name, colour in LOOP_POLICIES.items():
        right.plot(at_s / 60, in_flight(play(name, 1000), at_s), color=colour, label=name)
    right.set(xlabel="minutes", ylabel="queries in flight", xlim=(0, 8))
    right.grid(axis="y", color=RULE, linewidth=0.6)
    right.legend(frameon=False, fontsize=8.5, loc="upper left")
    right.set_title(f"MATH at {RATE_PER_MIN:g} queries/min")
    return figure


def draw_steady() -> Figure:
    """Draw the backlog of one overloaded router in a short sweep and in a stream that goes on."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.6), layout="constrained")
    at_s = np.arange(0.0, 2400.0, 2.0)
    for queries, colour, label in ((500, "tab:blue", "500 queries"), (4000, "tab:red", "4,000")):
        played = play("round_robin", queries)
        left.plot(at_s / 60, in_flight(played, at_s), color=colour, label=label)
        medians = [np.median(part["latency_s"]) for part in np.array_split(played, queries // 100)]
        minutes = [part["arrival_s"].mean() / 60 for part in np.array_split(played, queries // 100)]
        right.plot(minutes, np.array(medians) / 60, color=colour, label=label)
    left.set(xlabel="minutes", ylabel="queries in flight", title="round_robin, MATH, 100/min")
    right.set(xlabel="arrival, minutes", ylabel="median latency, minutes", title="The same queries")
    for axes in (left, right):
        axes.grid(axis="y", color=RULE, linewidth=0.6)
        axes.set_xlim(0, 40)
        axes.legend(frameon=False)
    return figure


def draw_quality() -> Figure:
    """Draw what one call of each model is expected to solve, and how long its answer is."""
    from matplotlib import pyplot as plt

    workload = load_workload("math").profile
    quality = workload.quality
    difficulty = np.asarray(load_tasks(datasets=["math"]).difficulty, np.float64)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.9), layout="constrained")
    shown = np.linspace(-3.0, 3.0, 121)
    for model, colour in MODELS.items():
        profile = workload.models[model]

        def right_share(
            at: NDArray[np.float64], strategy: str, ability: float = profile.ability
        ) -> Any:
            logit = ability + quality.strategy_gain[strategy] - quality.difficulty_sd * at
            return 100 / (1 + np.exp(-quality.discrimination * logit))

        left.plot(shown, right_share(shown, "Concise"), color=colour, label=model)
        lengths = [
            profile.output_tokens_median * workload.output.strategy_factor[s] for s in STRATEGIES
        ]
        means = [right_share(difficulty, s).mean() for s in STRATEGIES]
        right.plot(lengths, means, "-", color=colour, linewidth=0.8)
        for marker, x, y in zip("o^s", lengths, means, strict=True):
            right.plot(x, y, marker, color=colour, markersize=5)
    left.set(xlabel="difficulty of the question, standard deviations", ylabel="% right, Concise")
    left.legend(frameon=False, fontsize=8.5)
    left.set_title("One call, by difficulty")
    right.set(xlabel="median tokens of an answer", ylabel="% right", xscale="log")
    right.set_xticks([150, 300, 600, 1200], ["150", "300", "600", "1,200"])
    right.minorticks_off()
    right.set_title("● Flash   ▲ Concise   ■ DeepThink")
    for axes in (left, right):
        axes.grid(axis="y", color=RULE, linewidth=0.6)
    return figure


if __name__ == "__main__":
    figures = {"closed-loop": draw_loop, "steady-load": draw_steady, "quality-model": draw_quality}
    save_all(figures, IMAGES)
