"""What the results page is made of: entries, their trainings, suites; YAML checked by pydantic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.routing.suite import RoutingSuite
from inframind_gym.benchmark.suite import load_suite, name_of
from inframind_gym.configs import PositiveInt, StrictModel, load_yaml_model
from inframind_gym.errors import unknown

PLAN: Final = Path(__file__).with_name("plan.yaml")
Kind = Literal["agent", "baseline", "bound", "ablation"]
Protocol = Literal["default", "published"]


class TrainingConfig(StrictModel):
    """How the policies of an entry are trained, one for each training seed.

    Attributes:
        command: Command line; ``{seed}``, ``{folder}`` and ``{workload}`` (a name, or the path of
            one that is a file) are filled in. It must continue a stopped training, and end at once
            where there is nothing left to do.
        folder: What it writes. With ``{workload}`` in it, which is always a name, every workload
            has trainings of its own.
        seeds: Number of training seeds, or a list of them.
        after: Entries whose trainings must be finished before, because these start from them.
    """

    command: str
    folder: str
    seeds: PositiveInt | tuple[Annotated[int, Field(ge=0)], ...] = 5
    after: tuple[str, ...] = ()

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The training seeds."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds


class EntryConfig(StrictModel):
    """A row of the tables.

    Attributes:
        name: What it is called.
        kind: "agent" (ours), "baseline", "bound" (not ranked), or "ablation".
        of: For an ablation: the entry that something was taken away from; null: the default agent.
        policy: Name of the policy, with ``{folder}`` where its checkpoint goes.
        what: What it is, in a few words; for an ablation: what was taken away.
        training: How its policies are trained; null if it needs none.
        changes: Settings that replace the suite's for this entry, e.g. ``{scheduler: fcfs}``.
        under: Further changes under one protocol, e.g. ``{published: {scheduler: fcfs}}``.
        protocols: Under which protocols it runs; null: all of them, an ablation the default only.
        workloads: On which workloads of the suites it is trained and runs, each by its name or as
            a file; null: all of them.
    """

    name: str
    kind: Kind
    policy: str
    of: str | None = None
    what: str = ""
    training: TrainingConfig | None = None
    changes: dict[str, Any] = Field(default_factory=dict)
    under: dict[Protocol, dict[str, Any]] = Field(default_factory=dict)
    protocols: tuple[Protocol, ...] | None = None
    workloads: Annotated[tuple[str, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _folder_is_used(self) -> EntryConfig:
        if (self.training is None) == ("{folder}" in self.policy):
            raise ValueError(
                f"{self.name}: policy {self.policy!r} must contain {{folder}} if and only if the "
                "entry has a training"
            )
        return self

    def runs_under(self, protocol: Protocol) -> bool:
        """Whether it runs under a protocol."""
        if self.protocols is None:
            return self.kind != "ablation" or protocol == "default"
        return protocol in self.protocols

    def changes_under(self, protocol: Protocol) -> dict[str, Any]:
        """Settings that replace the suite's under a protocol."""
        return self.changes | self.under.get(protocol, {})

    def workloads_of(self, known: Sequence[str]) -> tuple[str, ...]:
        """Those workloads of a suite, in its order, on which it is trained and runs.

        Args:
            known: Names of the suite's workloads.

        Raises:
            BenchmarkError: It names one that the suite has not.
        """
        own = known if self.workloads is None else tuple(map(name_of, self.workloads))
        for workload in own:
            if workload not in known:
                problem = unknown("workload", workload, known)
                raise BenchmarkError(f"entry {self.name}: workloads: {problem}")
        return tuple(workload for workload in known if workload in own)

    @property
    def by_workload(self) -> bool:
        """Whether every workload has policies of its own."""
        return self.training is not None and "{workload}" in self.training.folder

    @property
    def training_seeds(self) -> tuple[int, ...]:
        """Its training seeds; (0,) if it is not trained."""
        return (0,) if self.training is None else self.training.seed_list

    def folder(self, seed: int, workload: str) -> str:
        """Folder of a checkpoint; "" if it is not trained."""
        if self.training is None:
            return ""
        return self.training.folder.format(seed=seed, workload=workload)

    def policy_of(self, seed: int, workload: str) -> str:
        """Name of the policy of a training seed."""
        return self.policy.format(folder=self.folder(seed, workload))


class PlanConfig(StrictModel):
    """The plan of the page.

    Attributes:
        agent: The entry that the targets speak of.
        paper: The entry that stands for the published agent.
        replayed: The entry that stands for it under the published protocol.
        oblivious: The entry that stands for MasRouter, which the published agent is compared with.
        bound: The entry that knows what is to come.
        suites: The suite of each protocol; its policies are replaced by the entries'.
        entries: The rows, in the order of the tables.
    """

    agent: str
    paper: str
    replayed: str
    oblivious: str
    bound: str
    suites: dict[Protocol, str]
    entries: tuple[EntryConfig, ...]

    @model_validator(mode="after")
    def _names_are_known(self) -> PlanConfig:
        if "default" not in self.suites:
            raise ValueError("suites must name the suite of the default protocol")
        names = [entry.name for entry in self.entries]
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            raise ValueError(f"entries are named twice: {', '.join(sorted(repeated))}")
        after = [name for e in self.entries if e.training for name in e.training.after]
        of = [entry.of for entry in self.entries if entry.of is not None]
        spoken_of = (self.agent, self.paper, self.replayed, self.oblivious, self.bound)
        for name in (*spoken_of, *after, *of):
            if name not in names:
                raise ValueError(unknown("entry", name, names))
        for name in spoken_of:
            if self.entry(name).workloads is not None:
                raise ValueError(f"{name}: the page speaks of it, so it needs all workloads")
        return self

    def entry(self, name: str) -> EntryConfig:
        """The entry of a name."""
        return next(entry for entry in self.entries if entry.name == name)

    def only(self, names: tuple[str, ...] | None) -> tuple[EntryConfig, ...]:
        """The entries of these names, or all.

        Raises:
            BenchmarkError: There is no such entry.
        """
        known = [entry.name for entry in self.entries]
        for name in names or ():
            if name not in known:
                raise BenchmarkError(f"--only: {unknown('entry', name, known)}")
        return tuple(e for e in self.entries if names is None or e.name in names)


@dataclass(frozen=True, slots=True)
class EntryRun:
    """One entry on one suite: what is run into one results folder.

    Attributes:
        entry: The entry.
        protocol: The suite's key in the plan.
        suite: The suite with the entry's policies.
        folder: Where the results go.
        seed_of: Training seed of each policy.
        workload: The one that it is of; "" if all workloads have the same policies.
    """

    entry: EntryConfig
    protocol: Protocol
    suite: RoutingSuite
    folder: Path
    seed_of: Mapping[str, int]
    workload: str = ""

    @property
    def title(self) -> str:
        """What it is called in messages."""
        what = f"{self.entry.name}, {self.workload}" if self.workload else self.entry.name
        return f"{what} ({self.protocol} protocol)"


def load_plan(path: Path = PLAN) -> PlanConfig:
    """Read a plan.

    Raises:
        ConfigError: The file is missing or malformed.
    """
    return load_yaml_model(path, PlanConfig)


def suites_of(plan: PlanConfig, overrides: Mapping[str, Any]) -> dict[Protocol, RoutingSuite]:
    """The suites of a plan, with settings from the command line."""
    return {protocol: load_suite(name, overrides) for protocol, name in plan.suites.items()}


def runs_of(
    entry: EntryConfig, suites: Mapping[Protocol, RoutingSuite], results: Path
) -> Iterator[EntryRun]:
    """The runs of an entry: one for each protocol, and for each workload if these differ.

    Args:
        entry: The entry.
        suites: See `suites_of`.
        results: Folder that holds the results folders, as ``<suite>/<entry>[/<workload>]``.

    Raises:
        BenchmarkError: The entry names a workload that a suite has not.
    """
    for protocol, suite in suites.items():
        if not entry.runs_under(protocol):
            continue
        workloads = entry.workloads_of(suite.names("workloads"))
        for workload in workloads if entry.by_workload else (None,):
            seed_of = {entry.policy_of(s, workload or ""): s for s in entry.training_seeds}
            played = workloads if workload is None else (workload,)
            changes = {
                **entry.changes_under(protocol),
                "name": f"{suite.name}: {entry.name}",
                "policies": tuple(seed_of),
                "workloads": tuple(suite.source("workloads", name) for name in played),
            }
            content = {**suite.model_dump(), **changes}
            folder = results / suite.name / entry.name / (workload or "")
            suite_of_run = RoutingSuite(**content)
            yield EntryRun(entry, protocol, suite_of_run, folder, seed_of, workload or "")


def resolved(run: EntryRun) -> RoutingSuite:
    """The run's suite, checked."""
    return run.suite.resolve()
