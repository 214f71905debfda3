"""Tables and figures of docs/token_budget.md and docs/coordination.md.

    python -m benchmarks families                # refreshes both pages, some minutes on one core
    python -m benchmarks families --check        # fails if a page is out of date

Every policy plays the same episodes. Intervals are 1.96 standard errors of the mean; differences
from the optimum are paired, episode by episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import INK, RULE, mean, refresh, save_all, table
from inframind_gym.policies import policy_names, resolve_policy
from inframind_gym.policies.rollout import play_coordination, play_token_budget

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIRST_SEED: Final = 1_000_000  # trainings and tests use others
EPISODES: Final = {"token_budget": 4_000, "coordination": 1_000}
EXACT: Final = 200  # episodes of coordination's optimum, which is solved question by question
PRICES: Final = (0.0005, 0.001, 0.002, 0.005)
SPENDERS: Final = {
    "optimum": INK,
    "adaptive_roi": "#1f77b4",
    "adaptive_roi_strict": "#17a2b8",
    "sb3_maskable_ppo": "#2e9858",
    "fixed_k": "#e88e1c",
    "spend_all": "#cc3838",
}
SUPERVISORS: Final = {
    "optimum": INK,
    "sb3_maskable_ppo": "#2e9858",
    "checked_rag": "#17a2b8",
    "basic_rag": "#1f77b4",
    "no_validate": "#e88e1c",
    "seed_supervisor": "#cc3838",
    "sequential_supervisor": "#a05ab4",
}
Result = Mapping[str, NDArray[Any]]


# Token budgets


@cache
def spent(name: str, price: float = 0.001) -> Result:
    """Play a policy of token budgets."""
    seeds = range(FIRST_SEED, FIRST_SEED + EPISODES["token_budget"])
    found: Result = play_token_budget(
        resolve_policy(name, family="token_budget"), seeds, price=price
    )
    return found


def regret(name: str, **given: Any) -> NDArray[np.float64]:
    """Return what the optimum earns more, episode by episode, in points."""
    return np.asarray(
        100.0 * (spent("optimum", **given)["return"] - spent(name, **given)["return"])
    )


def token_budget_tables() -> dict[str, str]:
    """Return the tables of docs/token_budget.md."""
    names = sorted(policy_names("token_budget"), key=lambda name: -spent(name)["return"].mean())
    rows = []
    for name in ("optimum", *names):
        found = spent(name)
        rows.append(
            [
                f"`{name}`",
                mean(100.0 * found["return"]),
                "" if name == "optimum" else mean(regret(name)),
                mean(found["quality"]),
                mean(found["tokens"], 0),
            ]
        )
    heads = ["policy", "return", "regret", "quality", "tokens"]
    return {
        "token-budget-policies": table(heads, rows),
        "token-budget-prices": _prices(),
    }


def _prices() -> str:
    """Tabulate the optimum and the regret of others by the price of a token."""
    swept = ("adaptive_roi", "adaptive_roi_strict", "sb3_maskable_ppo", "spend_all")
    rows = []
    for price in PRICES:
        best = spent("optimum", price=price)
        cells = [mean(regret(name, price=price)) for name in swept]
        rows.append([f"{price:g}", mean(best["quality"]), mean(best["tokens"], 0), *cells])
    heads = ["price", "optimum: quality", "tokens", *(f"regret: `{name}`" for name in swept)]
    return table(heads, rows)


def draw_token_budget() -> Figure:
    """Draw quality over tokens, and regret over the price."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.35, 1.0))
    thresholds = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02)
    arguments: dict[str, tuple[str, tuple[float, ...]]] = {
        "optimum": ("price", PRICES),
        "adaptive_roi": ("threshold", thresholds),
        "adaptive_roi_strict": ("threshold", thresholds),
        "fixed_k": ("calls", (2, 4, 6, 8)),
    }
    for name, colour in SPENDERS.items():
        by, values = arguments.get(name, ("", (0.0,)))
        if name == "optimum":
            found = [spent(name, price=value) for value in values]
        else:
            found = [spent(f"{name}:{value:g}" if by else name) for value in values]
        means = ([one[key].mean() for one in found] for key in ("tokens", "quality"))
        label = f"{name}, by {by}" if by else name
        style = {"marker": "o", "ms": 4.5, "lw": 1.6} if by else {"marker": "D", "ms": 7, "lw": 0}
        left.plot(*means, color=colour, label=label, **style)
        if name != "optimum":
            offs = [regret(name, price=price) for price in PRICES]
            halves = [1.96 * values.std(ddof=1) / np.sqrt(len(values)) for values in offs]
            style = {"color": colour, "marker": "o", "ms": 4.5, "lw": 1.6}
            right.errorbar(PRICES, [off.mean() for off in offs], halves, label=name, **style)
    left.set(title="True quality over tokens, budget 20,000", xlabel="tokens of a run")
    left.set_ylabel("quality, 0-100")
    left.xaxis.set_major_formatter("{x:,.0f}")
    right.set(title="Regret, points", xlabel="price of a token, points", xscale="log")
    right.set_xticks(PRICES, [f"{price:g}" for price in PRICES])
    right.minorticks_off()
    right.set_yscale("symlog", linthresh=10)
    right.set_yticks([0, 5, 10, 20, 50], ["0", "5", "10", "20", "50"])
    right.set_ylim(bottom=0)
    for axes, place in ((left, "lower right"), (right, "best")):
        axes.grid(color=RULE, linewidth=0.6)
        axes.legend(frameon=False, fontsize=8, loc=place)
    return figure


# Coordination


@cache
def _answered(name: str, scenario: str | None, episodes: int, given: tuple[Any, ...]) -> Result:
    seeds = range(FIRST_SEED, FIRST_SEED + episodes)
    policy = resolve_policy(name, family="coordination")
    found: Result = play_coordination(policy, seeds, scenario, **dict(given))
    return found


def answered(name: str, scenario: str | None = None, **given: Any) -> Result:
    """Play a supervisor; without noise, EXACT episodes."""
    episodes = EXACT if given.get("noise") is False else EPISODES["coordination"]
    return _answered(name, scenario, episodes, tuple(given.items()))


def coordination_tables() -> dict[str, str]:
    """Return the tables of docs/coordination.md."""
    board = []
    for name in sorted(
        policy_names("coordination"), key=lambda name: -answered(name)["return"].mean()
    ):
        found = answered(name)
        board.append(
            [
                f"`{name}`",
                mean(found["return"], 3),
                *(f"{100.0 * found[key].mean():.0f}" for key in ("answer_score", "success")),
                f"{np.quantile(found['latency_s'], 0.95):.2f}",
                *(f"{100.0 * found[key].mean():.0f}" for key in ("lateness", "validated")),
                f"{100.0 * found['attribution'].mean():.0f}",
                f"{found['tokens'].mean():.0f}",
            ]
        )
    heads = ["policy", "return", "answer", "no fallback", "p95 s", "late", "validated", "sourced"]
    return {"coordination-board": table([*heads, "tokens"], board)}


def draw_coordination() -> Figure:
    """Draw scores over seconds by complexity, and answers without the fallback over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1.0))
    times = np.linspace(0.0, 3.0, 121)
    for name, colour in SUPERVISORS.items():
        found = [answered(name, scenario, noise=False) for scenario in ("S1", "S5", "S2")]
        seconds = [one["latency_s"].mean() for one in found]
        scores = [100.0 * one["answer_score"].mean() for one in found]
        left.plot(seconds, scores, marker="o", markersize=4.5, color=colour, label=name)
        if name != "optimum":
            one = answered(name)
            done = np.where(one["success"] == 1, one["latency_s"], np.inf)
            right.plot(times, 100.0 * (done[:, None] <= times).mean(axis=0), color=colour)
    left.set(title="Score over seconds: simple, medium, complex; no noise", ylabel="score, %")
    right.set(title="Answered without the fallback", ylabel="share of the questions, %")
    right.set_ylim(0, 100)
    right.axhline(90.0, color=RULE, linestyle="--")
    for axes, deadlines in ((left, (2.0,)), (right, (1.5, 2.0))):
        axes.set_xlabel("seconds")
        axes.grid(color=RULE, linewidth=0.6)
        for deadline in deadlines:
            axes.axvline(deadline, color=RULE, linestyle="--")
    handles = left.get_legend_handles_labels()
    right.legend(*handles, frameon=False, fontsize=8, loc="upper left")
    return figure


def refresh_pages(docs: Path, *, check: bool = False) -> list[Path]:
    """Refresh tables and, unless only checking, the figures; return the pages that were stale."""
    pages = {
        docs / "token_budget.md": token_budget_tables(),
        docs / "coordination.md": coordination_tables(),
    }
    stale = [page for page, blocks in pages.items() if not refresh(page, blocks, check=check)]
    if not check:
        figures = {"token-budget": draw_token_budget, "coordination": draw_coordination}
        save_all(figures, docs / "images")
    return stale
