"""What workers do for a training: play sweeps and send back what is needed of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from agents.headway.config import Objective
from agents.headway.lessons import Lessons
from agents.headway.marks import Marks
from agents.headway.policy import RecipePolicy, kind_of
from agents.headway.recipes import RecipeBook
from agents.headway.survey import Played, RandomRecipes, play, summed
from inframind_gym.envs.routing.vector import StreamVectorEnv
from inframind_gym.policies import PolicySpec

MEASURES: Final = (
    "goodput",
    "solved",
    "within",
    "on_time",
    "latency_s",
    "decisions",
)


@dataclass(frozen=True)
class Job:
    """Sweeps to play in lockstep.

    Attributes:
        env: arguments of the environment.
        seeds: (rows,).
        rates_per_min: (rows,).
        budget_s: of every query; None draws it from the tiers.
        book: recipes.
        lessons: what to choose by; None plays recipes at random.
        candidate: (rows,) whose prices each row pays.
        result: "sums" (`Sums`), "played" (`Played` and `Sums`) or "measures" (C, measures).
        mode: what lessons are played without, one of `policy.MODES`.
        within_s: a promised latency, for the measure `within`.
        marks: chances to judge answers by; None goes by what they turned out to be.
    """

    env: dict[str, Any]
    seeds: list[int]
    rates_per_min: list[float]
    budget_s: float | None
    book: RecipeBook
    lessons: Lessons | None
    candidate: list[int] | None
    result: Literal["sums", "played", "measures"]
    mode: str | None = None
    within_s: float = 100.0
    marks: Marks | None = None


@lru_cache(maxsize=2)
def _environment(num_envs: int, arguments: str) -> StreamVectorEnv:
    """The environment of so many rows: most jobs want the same again."""
    return StreamVectorEnv(num_envs, **json.loads(arguments))


def environment(num_envs: int, arguments: dict[str, Any]) -> StreamVectorEnv:
    """An environment with these arguments, which are JSON values."""
    return _environment(num_envs, json.dumps(arguments, sort_keys=True))


def facts(env: dict[str, Any]) -> tuple[PolicySpec, frozenset[int]]:
    """What a policy is told in such an environment, and the domains of its tasks."""
    made = environment(1, env)
    return made.policy_spec(), frozenset(made.simulation.tasks.domain.tolist())


class Player:
    """Plays jobs, wherever it is; remembers nothing but the environments that it has made."""

    def run(self, jobs: Sequence[Job]) -> list[Any]:
        """Results of jobs, in their order."""
        return [play_job(job) for job in jobs]


def play_job(job: Job) -> Any:
    """Play the sweeps of a job."""
    env = environment(len(job.seeds), job.env)
    policy: RecipePolicy = RandomRecipes(job.book)
    if job.lessons is not None:
        of_row = None if job.candidate is None else np.array(job.candidate, np.int64)
        policy = kind_of(job.mode)(job.lessons, of_row)
    budget_s = np.nan if job.budget_s is None else job.budget_s
    played = play(env, policy, job.seeds, np.array(job.rates_per_min), budget_s)
    if job.result == "measures":
        return measured(played, np.array(job.candidate, np.int64), job.within_s, job.marks)
    sums = summed(job.book, played, env.policy_spec().num_models)
    return sums if job.result == "sums" else (played, sums)


def measured(
    played: Played, candidate: NDArray[np.int64], within_s: float, marks: Marks | None = None
) -> NDArray[np.float64]:
    """Means of MEASURES over the sweeps of each candidate, (C, measures).

    Args:
        played: whole sweeps.
        candidate: (rows,) of each sweep.
        within_s: a promised latency.
        marks: chances to judge answers by; None goes by what they turned out to be.
    """
    records, row = played.records, played.row
    right = (
        records["solved"].astype(np.float64)
        if marks is None
        else marks.chances(played.recipe, records)
    )
    on_time = records["latency_s"] <= records["budget_s"]
    queries = np.bincount(row)

    def share(column: Any) -> NDArray[np.float64]:
        return np.asarray(np.bincount(row, column) / queries, np.float64)

    sweeps = {
        "goodput": share(right * on_time),
        "solved": share(right),
        "within": share(records["latency_s"] <= within_s),
        "on_time": share(on_time),
        "latency_s": share(records["latency_s"]),
        "decisions": share(records["num_nodes"] + 1.0),
    }
    count = np.bincount(candidate)
    return np.column_stack([np.bincount(candidate, sweeps[name]) / count for name in MEASURES])


def worth(
    steady: NDArray[np.float64], bursts: NDArray[np.float64] | None, objective: Objective
) -> NDArray[np.float64]:
    """Value (C,) of `jobs.MEASURES` (C, measures) in steady sweeps, and in those with bursts."""
    goodput, solved, within = (MEASURES.index(name) for name in ("goodput", "solved", "within"))
    weights = np.zeros(len(MEASURES))
    weights[[goodput, solved]] = objective.goodput, objective.solved
    missing = np.maximum(objective.within_share - steady[:, within], 0.0)
    value: NDArray[np.float64] = steady @ weights - objective.shortfall * missing
    if bursts is None:
        return value
    return (value + objective.bursts * (bursts @ weights)) / (1.0 + objective.bursts)
