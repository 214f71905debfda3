"""What the published system reached on its own testbed: measured elsewhere, for comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from inframind_gym.configs import StrictModel, load_yaml_model

FILE: Final = Path(__file__).with_name("published.yaml")


class PublishedCell(StrictModel):
    """One measured cell.

    Attributes:
        accuracy: Solved, %.
        latency_mean_s: Mean latency.
        slo_100s: Answered within 100 s, %; None: not published.
    """

    accuracy: float
    latency_mean_s: float
    slo_100s: float | None = None

    def value(self, metric: str) -> float | None:
        """A metric as a share or in seconds; None if it was not published."""
        found: float | None = getattr(self, metric, None)
        return found if found is None or metric.endswith("_mean_s") else found / 100.0


class Published(StrictModel):
    """The published table.

    Attributes:
        source: Where it is from.
        systems: Cells by system, workload and rate.
        shares: Published shares of decisions by model and side of the cost ratio ("below" and
            "above" 1).
    """

    source: str
    systems: dict[str, dict[str, dict[float, PublishedCell]]]
    shares: dict[str, dict[str, float]]

    def cell(self, system: str, workload: str, rate: float) -> PublishedCell | None:
        """A cell, if it was published."""
        return self.systems[system].get(workload, {}).get(rate)


def load_published() -> Published:
    """Read the committed table."""
    return load_yaml_model(FILE, Published)
