"""Pictures of the pages: ``python -m benchmarks.pictures``.

A frame of an episode of each environment, as "rgb_array" draws it, and the figures of the concept
pages and of docs/assignment.md.
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
    from matplotlib.figure import Figure
    from PIL.Image import Image

IMAGES: Final = Path(__file__).resolve().parents[1] / "docs/images"
# Of each picture: environment, sampled actions or the actions themselves, arguments.
FRAMES: Final[dict[str, tuple[str, int | tuple[int, ...], dict[str, Any]]]] = {
    "executor-env": ("Executor", 3, {"planner": {"topology": "Debate", "num_agents": 3}}),
    "planner-env": ("Planner", 1, {}),
    "stream": ("Stream", 130, {"arrival_rate_per_min": 100.0}),
    "placement-env": ("Placement", 2, {"demand": "shifting"}),
    "assignment-env": ("Assignment", 30, {"load": "queue", "arrivals": "skewed"}),
    "token-budget-env": ("TokenBudget", (1, 5, 7, 4, 7, 4), {"budget": 16000}),
    "coordination-env": ("Coordination", (0, 1, 6, 9, 10), {}),
}
RATE_PER_MIN: Final = 100.0
ROUTERS: Final = {
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
RUNS: Final = 400  # of an assignment policy
ASSIGNERS: Final = {  # policies of docs/assignment.md; those with a colour also in the right panel
    "optimum": "black",
    "sb3_ppo": "tab:green",
    "myopic": "",
    "static_expert": "",
    "linucb": "",
    "thompson": "tab:blue",
    "least_loaded": "",
    "round_robin": "tab:gray",
    "q_bandit": "tab:orange",
    "random": "",
    "q_random_tie": "",
    "q_seed": "tab:red",
    "least_busy": "",
}


def frame(name: str, seed: int = 0) -> Image:
    """Return a picture of FRAMES, 960 x 540 pixels."""
    from PIL import Image

    environment, actions, arguments = FRAMES[name]
    env = gym.make(f"InfraMind-{environment}-v0", render_mode="rgb_array", **arguments)
    env.action_space.seed(seed)
    _, info = env.reset(seed=seed)
    for action in actions if isinstance(actions, tuple) else actions * (None,):
        sampled = env.action_space.sample(mask=info["action_mask"])
        _, _, terminated, truncated, info = env.step(sampled if action is None else action)
        if terminated or truncated:
            break
    image: Any = env.render()
    return Image.fromarray(image)


def play(policy_name: str, num_queries: int) -> NDArray[Any]:
    """Return the queries of one stream of `math` in the order of arrival, COMPLETED."""
    policy: Any = resolve_policy(policy_name)
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


def _panels(height: float, **labels: Any) -> tuple[Figure, Any, Any]:
    """Return a figure with two panels; `labels` are those of the left one."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, height), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.set(**labels)
    for axes in (left, right):
        axes.grid(axis="y", color=RULE, linewidth=0.6)
    return figure, left, right


def draw_loop() -> Figure:
    """Draw the loop, and the queues that four routers make in it."""
    figure, left, right = _panels(3.9, xlim=(0, 10), ylim=(0, 10))
    left.set_axis_off()
    box = {"boxstyle": "round,pad=0.6", "facecolor": "#f6f8fa", "edgecolor": QUIET}
    for x, y, text in (
        (2.2, 8.6, "queries\nbudget β"),
        (2.2, 4.6, "router\nmodel, strategy"),
        (7.8, 4.6, "servers\nqueues, batches"),
        (7.8, 8.6, "answers\nsolved? in time?"),
    ):
        left.text(x, y, text, ha="center", va="center", linespacing=1.5, bbox=box)
    for start, end, bend in (
        ((2.2, 7.6), (2.2, 5.7), 0),
        ((4.0, 5.1), (6.0, 5.1), 0),
        ((7.8, 5.7), (7.8, 7.6), 0),
        ((7.8, 3.5), (2.2, 3.5), -0.45),
    ):
        style = {"arrowstyle": "-|>", "color": INK, "connectionstyle": f"arc3,rad={bend}"}
        left.annotate("", end, start, arrowprops={**style, "shrinkA": 4, "shrinkB": 4})
    left.text(5, 5.4, "calls", ha="center")
    left.text(5, 1.2, "telemetry, up to 5 s old", ha="center")
    at_s = np.arange(0.0, 480.0, 1.0)
    for name, colour in ROUTERS.items():
        right.plot(at_s / 60, in_flight(play(name, 1000), at_s), color=colour, label=name)
    right.set(xlabel="minutes", ylabel="queries in flight", xlim=(0, 8))
    right.set_title(f"MATH at {RATE_PER_MIN:g} queries/min")
    right.legend(frameon=False, fontsize=8.5, loc="upper left")
    return figure


def draw_steady() -> Figure:
    """Draw the backlog of one overloaded router in a short sweep and in a stream that goes on."""
    title = "round_robin, MATH, 100/min"
    figure, left, right = _panels(3.6, xlabel="minutes", ylabel="queries in flight", title=title)
    at_s = np.arange(0.0, 2400.0, 2.0)
    for queries, colour, label in ((500, "tab:blue", "500 queries"), (4000, "tab:red", "4,000")):
        played = play("round_robin", queries)
        left.plot(at_s / 60, in_flight(played, at_s), color=colour, label=label)
        parts = np.array_split(played, queries // 100)
        medians = [np.median(part["latency_s"]) / 60 for part in parts]
        minutes = [part["arrival_s"].mean() / 60 for part in parts]
        right.plot(minutes, medians, color=colour, label=label)
    right.set(xlabel="arrival, minutes", ylabel="median latency, minutes", title="The same queries")
    for axes in (left, right):
        axes.set_xlim(0, 40)
        axes.legend(frameon=False)
    return figure


def draw_quality() -> Figure:
    """Draw what one call of each model is expected to solve, and how long its answer is."""
    label = "difficulty of the question, standard deviations"
    figure, left, right = _panels(3.9, xlabel=label, ylabel="% right, Concise")
    workload = load_workload("math").profile
    quality, factor = workload.quality, workload.output.strategy_factor
    difficulty = np.asarray(load_tasks(datasets=["math"]).difficulty, np.float64)
    shown = np.linspace(-3.0, 3.0, 121)
    for model, colour in MODELS.items():
        profile = workload.models[model]
        shares = {}
        for strategy in STRATEGIES:
            logit = profile.ability + quality.strategy_gain[strategy]
            shares[strategy] = [
                100 / (1 + np.exp(-quality.discrimination * (logit - quality.difficulty_sd * at)))
                for at in (shown, difficulty)
            ]
        left.plot(shown, shares["Concise"][0], color=colour, label=model)
        lengths = [profile.output_tokens_median * factor[strategy] for strategy in STRATEGIES]
        means = [shares[strategy][1].mean() for strategy in STRATEGIES]
        right.plot(lengths, means, "-", color=colour, linewidth=0.8)
        for marker, x, y in zip("o^s", lengths, means, strict=True):
            right.plot(x, y, marker, color=colour, markersize=5)
    left.legend(frameon=False, fontsize=8.5)
    left.set_title("One call, by difficulty")
    right.set(xlabel="median tokens of an answer", ylabel="% right", xscale="log")
    right.set_xticks([150, 300, 600, 1200], ["150", "300", "600", "1,200"])
    right.minorticks_off()
    right.set_title("● Flash   ▲ Concise   ■ DeepThink")
    return figure


def assignment_rewards(policy: str, arrivals: str, runs: int, tasks: int) -> NDArray[np.float64]:
    """Return the rewards of an assignment policy, (runs, tasks)."""
    from inframind_gym.policies import resolve_policy
    from inframind_gym.policies.rollout import play_assignment

    found = np.zeros((runs, tasks))
    arguments: dict[str, Any] = {"arrivals": arrivals, "num_tasks": tasks}
    for done in play_assignment(
        resolve_policy(policy, family="assignment"), range(runs), **arguments
    ):
        found[done.row, done.ordinal] = done.reward
    return found


def draw_assignment() -> Figure:
    """Draw rewards of the assignment policies, and how fast the learners learn."""
    figure, left, right = _panels(4.4, xlabel="mean reward of a task, runs of 50 tasks")
    left.grid(axis="x", color=RULE, linewidth=0.6)
    places = np.arange(len(ASSIGNERS))
    for offset, arrivals, colour in ((-0.12, "skewed", "tab:blue"), (0.12, "bursty", "tab:orange")):
        means = [assignment_rewards(p, arrivals, RUNS, 50).mean(axis=1) for p in ASSIGNERS]
        error = [1.96 * own.std(ddof=1) / RUNS**0.5 for own in means]
        style: dict[str, Any] = {"fmt": "o", "markersize": 4, "color": colour, "label": arrivals}
        left.errorbar([own.mean() for own in means], places + offset, xerr=error, **style)
    left.set_yticks(places, ASSIGNERS)
    left.invert_yaxis()
    left.legend(title="arrivals", loc="lower right")
    for policy, colour in ASSIGNERS.items():
        if colour:
            own = assignment_rewards(policy, "skewed", RUNS // 2, 500).mean(axis=0)
            smooth = np.convolve(own, np.ones(24) / 24, "valid")
            right.plot(np.arange(len(smooth))[::4] + 12, smooth[::4], color=colour, label=policy)
    right.axvline(50, color="lightgray", linestyle=":")
    right.set(xlabel="task of a run of 500, skewed arrivals", ylabel="mean reward, over 24 tasks")
    right.set_ylim(0.56, 0.78)
    right.legend(ncol=3, loc="upper center", fontsize=8)
    return figure


FIGURES: Final = {
    "closed-loop": draw_loop,
    "steady-load": draw_steady,
    "quality-model": draw_quality,
    "assignment": draw_assignment,
}

if __name__ == "__main__":
    save_all(FIGURES, IMAGES)
    for name in FRAMES:
        frame(name).quantize(64).save(IMAGES / f"{name}.png", optimize=True)
