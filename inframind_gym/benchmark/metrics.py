"""What a sweep is judged by: sums over its queries, and the metrics that follow from the sums.

Everything but the 95th percentile is a ratio of sums, so pooling sweeps is adding rows of sums, and
a bootstrap over sweeps is one matrix product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

SLO_TARGETS_S = (10, 30, 50, 100, 200, 300)
TAIL = 0.95

_PLAIN_SUMS = (
    "episodes",
    "accuracy",
    "latency_mean_s",
    "slo_own",
    *(f"slo_{target}s" for target in SLO_TARGETS_S),
    "goodput",
    "cost_ratio",
    "calls_per_query",
    "prompt_tokens",
    "output_tokens",
    "truncated_calls",
)
SHARES = ("model_share", "strategy_share", "topology_share")


@dataclass(frozen=True, slots=True)
class Metric:
    """How a metric is shown.

    Attributes:
        name: Key in JSON.
        label: Heading in tables, with its unit.
        scale: Factor from the stored to the shown value.
        higher_is_better: Direction of improvement; None where neither end is better.
    """

    name: str
    label: str
    scale: float = 1.0
    higher_is_better: bool | None = None


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "solved %", 100.0, True),
        Metric("goodput", "goodput %", 100.0, True),
        Metric("slo_own", "SLO %", 100.0, True),
        *(Metric(f"slo_{t}s", f"≤{t} s %", 100.0, True) for t in SLO_TARGETS_S),
        Metric("latency_mean_s", "mean s", 1.0, False),
        Metric("latency_p95_s", "p95 s", 1.0, False),
        Metric("cost_ratio", "lat./β", 1.0, False),
        Metric("imbalance", "imbalance", 1.0, False),
        Metric("tokens_per_query", "tokens/query"),
        Metric("output_tokens_per_query", "output tokens/query"),
        Metric("calls_per_query", "calls/query"),
        Metric("truncated_share", "cut %", 100.0, False),
    )
}


@dataclass(frozen=True, slots=True)
class Columns:
    """Layout of a row of sums.

    Attributes:
        models: Aliases of the pool's models.
        strategies: Prompt strategies.
        topologies: Collaboration topologies.
    """

    tail: ClassVar[str] = "latency_p95_s"

    models: tuple[str, ...]
    strategies: tuple[str, ...]
    topologies: tuple[str, ...]

    @property
    def width(self) -> int:
        """Numbers in a row of sums."""
        return len(_PLAIN_SUMS) + len(self.models) + len(self.strategies) + len(self.topologies)

    def share_slices(self) -> dict[str, tuple[slice, tuple[str, ...]]]:
        """Where the counts behind each share stand, and what they count."""
        result: dict[str, tuple[slice, tuple[str, ...]]] = {}
        start = len(_PLAIN_SUMS)
        for share, names in zip(
            SHARES, (self.models, self.strategies, self.topologies), strict=True
        ):
            result[share] = (slice(start, start + len(names)), names)
            start += len(names)
        return result

    def sums(self, episodes: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
        """Sums over episode records.

        Args:
            episodes: Records as in ``episodes.jsonl``.

        Returns:
            One row, ``(width,)``.
        """
        solved = np.array([episode["solved"] for episode in episodes], dtype=np.float64)
        latency_s = np.array([episode["latency_s"] for episode in episodes], dtype=np.float64)
        budget_s = np.array([episode["budget_s"] for episode in episodes], dtype=np.float64)
        in_time = latency_s <= budget_s
        plain = [
            len(episodes),
            solved.sum(),
            latency_s.sum(),
            in_time.sum(),
            *((latency_s <= target).sum() for target in SLO_TARGETS_S),
            solved[in_time].sum(),
            sum(episode["cost"] for episode in episodes),
            *(
                sum(episode[key] for episode in episodes)
                for key in ("calls", "prompt_tokens", "output_tokens", "truncated_calls")
            ),
        ]
        counted = [
            *_counts(episodes, "models", self.models),
            *_counts(episodes, "strategies", self.strategies),
            *(sum(episode["topology"] == name for episode in episodes) for name in self.topologies),
        ]
        return np.array([*plain, *counted], dtype=np.float64)

    def evaluate(self, sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Metrics of pooled sums (all but ``latency_p95_s``).

        Args:
            sums: ``(..., width)``.

        Returns:
            Each metric's values, ``(...)``.
        """
        total = dict(zip(_PLAIN_SUMS, np.moveaxis(sums, -1, 0), strict=False))
        episodes = total.pop("episodes")
        calls = np.maximum(total["calls_per_query"], 1.0)
        prompt, output, cut = (
            total.pop(k) for k in ("prompt_tokens", "output_tokens", "truncated_calls")
        )
        metrics = {name: value / episodes for name, value in total.items()}
        metrics["tokens_per_query"] = (prompt + output) / episodes
        metrics["output_tokens_per_query"] = output / episodes
        metrics["truncated_share"] = cut / calls
        metrics["imbalance"] = imbalance(sums[..., self.share_slices()["model_share"][0]])
        return metrics

    def values(self, episode: Mapping[str, Any]) -> Sequence[float]:
        """The query's latency."""
        return (episode["latency_s"],)

    def shares(self, sums: NDArray[np.float64]) -> dict[str, dict[str, float]]:
        """Shares of models and strategies (of decisions) and of topologies (of queries).

        Args:
            sums: One row, ``(width,)``.
        """
        result = {}
        for share, (where, names) in self.share_slices().items():
            counts = sums[where]
            parts = counts / max(counts.sum(), 1.0)
            result[share] = dict(zip(names, parts.tolist(), strict=True))
        return result


def imbalance(calls: NDArray[np.float64]) -> NDArray[np.float64]:
    """Population standard deviation over mean of the models' shares of decisions.

    Source: ``spec/load_aware_q_learning.md``; [.25, .5, .125, .125] gives 0.612.

    Args:
        calls: Calls of each model, ``(..., num_models)``.

    Returns:
        0 for equal shares, ``sqrt(num_models - 1)`` if one model takes all; 0 where there are no
        calls. ``(...)``.
    """
    mean = calls.mean(axis=-1)
    return np.asarray(calls.std(axis=-1) / np.where(mean > 0, mean, 1.0), dtype=np.float64)


def _counts(episodes: Sequence[Mapping[str, Any]], key: str, names: Sequence[str]) -> list[int]:
    return [sum(episode[key].get(name, 0) for episode in episodes) for name in names]
