"""The unit of a benchmark: one policy on one sweep, i.e. one (workload, rate, budget, seed).

Common random numbers. The sweep's seed is derived from (workload, rate, budget, seed) and never
from the policy: every policy meets the same queries, arrival times, budgets and latent outcomes, so
two policies are compared query by query. Sweeps of different rates or budgets get unrelated seeds
on purpose: cells are then independent, which is what the stratified bootstrap over cells assumes,
and an average over cells does not repeat one sample of queries.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.suite import SuiteConfig

Budget = float | Literal["tiers"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy on one sweep.

    Attributes:
        policy: Name or ``package.module:Class``, as given on the command line or in the suite.
        workload: Name or path of a workload.
        rate_per_min: Mean arrival rate.
        budget_s: Latency budget of every query, or "tiers": drawn per query from the workload's
            tiers.
        seed: Index of the repetition.
    """

    policy: str
    workload: str
    rate_per_min: float
    budget_s: Budget
    seed: int

    @property
    def sort_key(self) -> tuple[str, str, float, float, int]:
        """Order of cells in result files, independent of how they were scheduled."""
        budget = float("inf") if self.budget_s == "tiers" else float(self.budget_s)
        return (self.policy, self.workload, self.rate_per_min, budget, self.seed)

    @property
    def sweep_seed(self) -> int:
        """Seed of the environment's reset, the same for every policy; in [0, 2**31)."""
        return _seed_of("sweep", self.workload, self.rate_per_min, self.budget_s, self.seed)

    @property
    def policy_seed(self) -> int:
        """Seed of the policy's own randomness, unrelated to the environment's; in [0, 2**31)."""
        return _seed_of("policy", self.workload, self.rate_per_min, self.budget_s, self.seed)

    def to_json(self) -> dict[str, Any]:
        """The coordinates as JSON."""
        return {
            "policy": self.policy,
            "workload": self.workload,
            "rate_per_min": self.rate_per_min,
            "budget_s": self.budget_s,
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Cell:
        """The inverse of `to_json`; further keys are ignored."""
        budget = record["budget_s"]
        return cls(
            policy=str(record["policy"]),
            workload=str(record["workload"]),
            rate_per_min=float(record["rate_per_min"]),
            budget_s="tiers" if budget == "tiers" else float(budget),
            seed=int(record["seed"]),
        )

    def __str__(self) -> str:
        budget = "tiers" if self.budget_s == "tiers" else f"{self.budget_s:g} s"
        sweep = f"{self.workload}, {self.rate_per_min:g}/min, {budget}, seed {self.seed}"
        return f"{self.policy} on {sweep}"


def grid(suite: SuiteConfig) -> list[Cell]:
    """Every cell of a suite, policies outermost."""
    return [
        Cell(policy, workload, rate, budget, seed)
        for policy in suite.policies
        for workload in suite.workloads
        for rate in suite.rates_per_min
        for budget in suite.budgets_s
        for seed in suite.seed_list
    ]


def cell_id(cell: Cell, settings_hash: str, policy_fingerprint: str) -> str:
    """Content hash of everything that determines a cell's result.

    Args:
        cell: The coordinates.
        settings_hash: Hash of what all cells of a run share, see `benchmarks.provenance.settings`.
        policy_fingerprint: Hash of the policy's code, see
            `benchmarks.provenance.policy_fingerprint`.

    Returns:
        16 hexadecimal digits.
    """
    return content_hash([cell.to_json(), settings_hash, policy_fingerprint])


def content_hash(content: Any) -> str:
    """16 hexadecimal digits of the SHA-256 of JSON content, whatever the order of its keys."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _seed_of(*parts: str | float | int) -> int:
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def batches(cells: Sequence[Cell], batch_size: int) -> list[list[Cell]]:
    """Group cells that one vector environment can run in lock-step.

    Rows of a batch share policy and workload. They are ordered by rate and budget, because sweeps
    of one rate and budget end at about the same step.

    Args:
        cells: Cells to run.
        batch_size: Most rows of a batch.

    Returns:
        The batches, in the order in which their groups appear in `cells`.
    """
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.policy, cell.workload), []).append(cell)
    result: list[list[Cell]] = []
    for group in groups.values():
        ordered = sorted(group, key=lambda cell: cell.sort_key)
        result += [ordered[i : i + batch_size] for i in range(0, len(ordered), batch_size)]
    return result
