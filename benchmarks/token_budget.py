"""Numbers and figure of docs/token_budget.md: policies of token budgets against the exact optimum.

    python -m benchmarks.token_budget            # refreshes the page, a few minutes on one core
    python -m benchmarks.token_budget --check    # fails if the page is out of date

Every policy plays the same episodes. Intervals are 1.96 standard errors of the mean; differences
from the optimum are paired, episode by episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import INK, RULE, mean, run_page, table
from inframind_gym.policies.rollout import play_token_budget as play
from inframind_gym.policies.token_budget import registry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EPISODES: Final = 4_000
PRICES: Final = (0.0005, 0.001, 0.002, 0.005)
PRICE: Final = 0.001
BUDGETS: Final = (5_000, 10_000, 20_000)
FIRST_SEED: Final = 1_000_000  # trainings and tests use others
SWEPT: Final = ("adaptive_roi", "adaptive_roi_strict", "sb3_maskable_ppo", "fixed_k", "spend_all")
THRESHOLDS: Final = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02)
CALLS: Final = (2, 4, 6, 8)
_COLOURS: Final = {
    "optimum": INK,
    "adaptive_roi": "#1f77b4",
    "adaptive_roi_strict": "#17a2b8",
    "sb3_maskable_ppo": "#2e9858",
    "fixed_k": "#e88e1c",
    "spend_all": "#cc3838",
}

Result = Mapping[str, NDArray[Any]]


class Played:
    """Results of policies, each played once."""

    def __init__(self, episodes: int) -> None:
        self._seeds = range(FIRST_SEED, FIRST_SEED + episodes)
        self._made: dict[tuple[Any, ...], Result] = {}

    def of(self, name: str, price: float = PRICE, budget: int = 20_000) -> Result:
        """Return the episodes of a policy."""
        key = (name, price, budget)
        if key not in self._made:
            policy = registry.resolve(name)
            self._made[key] = play(policy, self._seeds, price=price, budget=budget)
        return self._made[key]

    def regret(self, name: str, price: float = PRICE, budget: int = 20_000) -> NDArray[np.float64]:
        """Return what the optimum earns more, episode by episode, in points."""
        best = self.of("optimum", price, budget)["return"]
        return np.asarray(100.0 * (best - self.of(name, price, budget)["return"]))


def blocks(played: Played) -> dict[str, str]:
    """Return the tables of the page."""
    return {
        "token-budget-policies": _policies(played),
        "token-budget-prices": _sweep(played, "price", PRICES, "g"),
        "token-budget-budgets": _sweep(played, "budget", BUDGETS, ","),
    }


def _policies(played: Played) -> str:
    names = sorted(registry.names(), key=lambda name: -played.of(name)["return"].mean())
    rows = []
    for name in ("optimum", *names):
        found = played.of(name)
        per_1k = 1000.0 * found["quality"].sum() / found["tokens"].sum()
        rows.append(
            [
                f"`{name}`",
                mean(100.0 * found["return"]),
                "" if name == "optimum" else mean(played.regret(name)),
                mean(found["quality"]),
                f"{found['reported_quality'].mean():.1f}",
                mean(found["tokens"], 0),
                f"{per_1k:.1f}",
                f"{100.0 * found['unspent_share'].mean():.0f} %",
                f"{100.0 * found['drained'].mean():.1f} %",
                f"{found['quality_area'].mean():.1f}",
            ]
        )
    heads = ["policy", "return", "regret", "quality", "reported", "tokens", "q/1k", "unspent"]
    return table([*heads, "drained", "area"], rows)


def _sweep(played: Played, argument: str, values: Sequence[float], form: str) -> str:
    """Return the optimum and the regret of others by the values of an argument."""
    rows = []
    for value in values:
        given: dict[str, Any] = {argument: value}
        best = played.of("optimum", **given)
        cells = [mean(played.regret(name, **given)) for name in SWEPT]
        rows.append([f"{value:{form}}", mean(best["quality"]), mean(best["tokens"], 0), *cells])
    heads = [argument, "optimum: quality", "tokens", *(f"regret: `{name}`" for name in SWEPT)]
    return table(heads, rows)


def draw(played: Played) -> Figure:
    """Draw quality over tokens, and regret over the price."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.35, 1.0))
    _plane(left, played)
    _regrets(right, played)
    return figure


def _plane(axes: Axes, played: Played) -> None:
    families: dict[str, Sequence[tuple[str, float]]] = {
        "optimum": [("optimum", price) for price in PRICES],
        "adaptive_roi": [(f"adaptive_roi:{t:g}", PRICE) for t in THRESHOLDS],
        "adaptive_roi_strict": [(f"adaptive_roi_strict:{t:g}", PRICE) for t in THRESHOLDS],
        "fixed_k": [(f"fixed_k:{k}", PRICE) for k in CALLS],
        "sb3_maskable_ppo": [("sb3_maskable_ppo", PRICE)],
        "spend_all": [("spend_all", PRICE)],
    }
    labels = {
        "optimum": "exact optimum, by price",
        "adaptive_roi": "adaptive_roi, by threshold",
        "adaptive_roi_strict": "adaptive_roi_strict, by threshold",
        "fixed_k": "fixed_k, by calls (2-8)",
    }
    for family, members in families.items():
        found = [played.of(name, price) for name, price in members]
        tokens = [one["tokens"].mean() for one in found]
        points = [one["quality"].mean() for one in found]
        axes.plot(
            tokens,
            points,
            marker="o" if len(members) > 1 else "D",
            markersize=4.5 if len(members) > 1 else 7,
            linewidth=1.6 if len(members) > 1 else 0,
            color=_COLOURS[family],
            label=labels.get(family, family),
        )
    axes.set_title("True quality over tokens, budget 20,000")
    axes.set_xlabel("tokens of a run")
    axes.set_ylabel("quality, 0-100")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(color=RULE, linewidth=0.6)
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def _regrets(axes: Axes, played: Played) -> None:
    for name in SWEPT:
        found = [played.regret(name, price) for price in PRICES]
        means = [values.mean() for values in found]
        halves = [1.96 * values.std(ddof=1) / np.sqrt(len(values)) for values in found]
        axes.errorbar(
            PRICES,
            means,
            yerr=halves,
            marker="o",
            markersize=4.5,
            linewidth=1.6,
            color=_COLOURS[name],
            label=name,
        )
    axes.set_xscale("log")
    axes.set_xticks(PRICES, [f"{price:g}" for price in PRICES])
    axes.minorticks_off()
    axes.set_title("Regret, points")
    axes.set_xlabel("price of a token, points")
    axes.set_yscale("symlog", linthresh=10)
    axes.set_yticks([0, 5, 10, 20, 50], ["0", "5", "10", "20", "50"])
    axes.set_ylim(bottom=0)
    axes.grid(color=RULE, linewidth=0.6)
    axes.legend(frameon=False, fontsize=8)


if __name__ == "__main__":
    run_page("token_budget", EPISODES, blocks, draw, Played)
