"""Numbers and figure of docs/coordination.md: supervisors of five agents before a deadline.

    python -m benchmarks.coordination            # refreshes the page, two minutes on one core
    python -m benchmarks.coordination --check    # fails if the page is out of date

Every policy plays the same episodes. Intervals are 1.96 standard errors of the mean; the regret is
the difference from the exact optimum without noise, episode by episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import INK, NONE, RULE, mean, run_page, table
from inframind_gym.policies.coordination import registry
from inframind_gym.policies.rollout import play_coordination as play
from inframind_gym.teams.coordination.scenarios import SCENARIOS
from inframind_gym.teams.coordination.settings import load_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPISODES: Final = 1_000
EXACT: Final = 200  # of the optimum, which is solved question by question
FIRST_SEED: Final = 1_000_000  # trainings and tests use others
SHOWN: Final = ("sb3_maskable_ppo", "checked_rag", "no_validate", "basic_rag", "seed_supervisor")
CHECKED: Final = ("seed_supervisor", "checked_rag", "sb3_maskable_ppo")
_COLOURS: Final = {
    "optimum": INK,
    "sb3_maskable_ppo": "#2e9858",
    "checked_rag": "#17a2b8",
    "basic_rag": "#1f77b4",
    "no_validate": "#e88e1c",
    "seed_supervisor": "#cc3838",
    "sequential_supervisor": "#a05ab4",
}

Result = Mapping[str, NDArray[Any]]


class Played:
    """Results of policies, each played once."""

    def __init__(self, episodes: int) -> None:
        self._episodes = episodes
        self._made: dict[tuple[Any, ...], Result] = {}

    def of(
        self, name: str, scenario: str | None = None, most: int | None = None, **given: Any
    ) -> Result:
        """Return the episodes of a policy, at most `most`."""
        key = (name, scenario, most, *given.items())
        if key not in self._made:
            number = min(self._episodes, most or self._episodes)
            seeds = range(FIRST_SEED, FIRST_SEED + number)
            self._made[key] = play(registry.resolve(name), seeds, scenario, **given)
        return self._made[key]

    def exact(self, name: str, scenario: str | None = None) -> Result:
        """Return the episodes of a policy without noise."""
        return self.of(name, scenario, EXACT, noise=False)


def blocks(played: Played) -> dict[str, str]:
    """Return the tables of the page."""
    return {
        "coordination-board": _board(played),
        "coordination-settings": _settings(played),
        "coordination-scenarios": _scenarios(played),
    }


def _board(played: Played) -> str:
    names = sorted(registry.names(), key=lambda name: -played.of(name)["return"].mean())
    best, rows = played.exact("optimum"), []
    for name in names:
        found, lied = played.of(name), played.of(name)["lied"].sum()
        regret = best["return"] - played.exact(name)["return"]
        caught = f"{100.0 * found['caught'].sum() / lied:.0f}" if lied else NONE
        rows.append(
            [
                f"`{name}`",
                mean(found["return"], 3),
                mean(regret, 2),
                *(f"{100.0 * found[key].mean():.0f}" for key in ("answer_score", "success")),
                f"{np.quantile(found['latency_s'], 0.95):.2f}",
                f"{100.0 * found['lateness'].mean():.0f}",
                f"{100.0 * found['validated'].mean():.0f}",
                caught,
                f"{100.0 * found['attribution'].mean():.0f}",
                f"{found['overhead_ms'].mean():.0f}",
                f"{found['model_ms'].mean():.0f}",
                f"{found['tokens'].mean():.0f}",
            ]
        )
    heads = ["policy", "return", "regret", "answer", "no fallback", "p95 s", "late", "validated"]
    return table([*heads, "found", "sourced", "overhead ms", "model ms", "tokens"], rows)


def _settings(played: Played) -> str:
    settings: dict[str, dict[str, Any]] = {
        "single": {},
        "conversation": {"conversation": True},
        "one call at a time": {"max_num_seqs": 1},
        "a model decides": {"supervisor": "model"},
        "reads 15,700 tokens/s": {"prefill_tokens_per_s": 15_700.0},
    }
    rows = []
    for name in SHOWN:
        found = [played.of(name, **given) for given in settings.values()]
        rows.append([f"`{name}`", *(mean(one["return"], 3) for one in found)])
    return table(["return", *settings], rows)


def _scenarios(played: Played) -> str:
    rows, constants = [], load_settings()
    for key, scenario in SCENARIOS.items():
        if not scenario.checks:
            continue
        found = [scenario.check(played.of(name, key, 1000), constants) for name in CHECKED]
        shares = [", ".join(f"{100.0 * v.mean():.0f}" for v in one.values()) for one in found]
        rows.append([key, f"{scenario.title}: {', '.join(scenario.checks)}", *shares])
    return table(["%", "claims", *(f"`{name}`" for name in CHECKED)], rows, left=2)


def draw(played: Played) -> Figure:
    """Draw scores over seconds by complexity, and answers without the fallback over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1.0))
    for name, colour in _COLOURS.items():
        found = [played.exact(name, scenario) for scenario in ("S1", "S5", "S2")]
        seconds = [one["latency_s"].mean() for one in found]
        scores = [100.0 * one["answer_score"].mean() for one in found]
        left.plot(seconds, scores, marker="o", markersize=4.5, color=colour, label=name)
    left.axvline(2.0, color=RULE, linestyle="--")
    left.set_title("Score over seconds: simple, medium, complex; no noise")
    left.set_xlabel("seconds of a question")
    left.set_ylabel("score of the answer, %")
    left.grid(color=RULE, linewidth=0.6)
    right.legend(*left.get_legend_handles_labels(), frameon=False, fontsize=8, loc="upper left")
    times = np.linspace(0.0, 3.0, 121)
    for name, colour in _COLOURS.items():
        if name == "optimum":
            continue
        one = played.of(name)
        done = np.where(one["success"] == 1, one["latency_s"], np.inf)
        right.plot(times, 100.0 * (done[:, None] <= times).mean(axis=0), color=colour)
    for deadline in (1.5, 2.0):
        right.axvline(deadline, color=RULE, linestyle="--")
    right.axhline(90.0, color=RULE, linestyle="--")
    right.set_title("Answered without the fallback")
    right.set_xlabel("seconds")
    right.set_ylabel("share of the questions, %")
    right.set_ylim(0, 100)
    right.grid(color=RULE, linewidth=0.6)
    return figure


if __name__ == "__main__":
    run_page("coordination", EPISODES, blocks, draw, Played)
