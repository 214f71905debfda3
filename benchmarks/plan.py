"""Entries of the results pages, their trainings and their suites: `plan.yaml`, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import Field, model_validator

from inframind_gym.configs import PositiveInt, StrictModel, validate
from inframind_gym.errors import unknown

PLAN: Final = Path(__file__).with_name("plan.yaml")
Execution = Literal["parallel", "sequential"]


class TrainingConfig(StrictModel):
    """Training of an entry, repeated for each training seed.

    Attributes:
        command: Command line with ``{seed}``, ``{folder}`` and ``{workload}`` to be filled in.
        folder: Folder that it writes. With ``{workload}`` in it, every workload has trainings of
            its own.
        seeds: Number of training seeds.
    """

    command: str
    folder: str
    seeds: PositiveInt = 5


class EntryConfig(StrictModel):
    """Row of the tables.

    Attributes:
        name: Name in tables and records.
        kind: "agent" (ours), "baseline", "bound" (not ranked), or "ablation".
        of: For an ablation: the entry that something was taken away from.
        policy: Name of the policy, with ``{folder}`` in place of its checkpoint's folder.
        what: Description; for an ablation: the part that is taken away.
        training: Training of its policies; null for none.
        changes: Settings that replace the suite's for this entry, e.g. ``{scheduler: fcfs}``.
        under: Further changes with one execution, e.g. ``{sequential: {scheduler: fcfs}}``.
        executions: Executions that it is played with.
    """

    name: str
    kind: Literal["agent", "baseline", "bound", "ablation"]
    policy: str
    of: str | None = None
    what: str
    training: TrainingConfig | None = None
    changes: dict[str, Any] = Field(default_factory=dict)
    under: dict[Execution, dict[str, Any]] = Field(default_factory=dict)
    executions: tuple[Execution, ...] = ("parallel", "sequential")

    @model_validator(mode="after")
    def _check(self) -> EntryConfig:
        if (self.training is None) == ("{folder}" in self.policy):
            raise ValueError(
                f"{self.name}: policy {self.policy!r} must contain {{folder}} if and only if the "
                "entry has a training"
            )
        if (self.kind == "ablation") == (self.of is None):
            raise ValueError(f"{self.name}: give `of` for an ablation, and for nothing else")
        return self

    @property
    def seeds(self) -> tuple[int, ...]:
        """Training seeds; (0,) without a training."""
        return tuple(range(self.training.seeds)) if self.training else (0,)

    def folder(self, workload: str, seed: int) -> str:
        """Folder of a training; "" without one."""
        return self.training.folder.format(workload=workload, seed=seed) if self.training else ""

    def command(self, workload: str, seed: int) -> str:
        """Command line of a training; "" without one."""
        if self.training is None:
            return ""
        folder = self.folder(workload, seed)
        return self.training.command.format(workload=workload, seed=seed, folder=folder)


class PlanConfig(StrictModel):
    """Plan of the results pages.

    Attributes:
        suites: Suite of each execution; its policies are replaced by the entries'.
        entries: Rows in the order of the tables.
    """

    suites: dict[Execution, str]
    entries: tuple[EntryConfig, ...]

    @model_validator(mode="after")
    def _check(self) -> PlanConfig:
        names = [entry.name for entry in self.entries]
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            raise ValueError(f"entries are named twice: {', '.join(sorted(repeated))}")
        for entry in self.entries:
            if entry.of is not None and entry.of not in names:
                raise ValueError(f"{entry.name}: of: {unknown('entry', entry.of, names)}")
        return self


def load_plan(path: Path = PLAN) -> PlanConfig:
    """Read a plan."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return validate(content, PlanConfig, source=str(path))
