"""`inframind check`: find out what a file, a folder or a name is, and read it as that."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer
from pydantic import BaseModel

from inframind_gym.configs import find_config, list_configs, load_yaml_model
from inframind_gym.errors import (
    ConfigError,
    InfraMindError,
    did_you_mean,
    friendly,
    shortened,
    unknown,
)
from inframind_gym.evaluation.placement import PlacementSuite
from inframind_gym.evaluation.routing import RoutingSuite
from inframind_gym.evaluation.scenarios import TrackConfig, load_track
from inframind_gym.evaluation.suite import load_suite
from inframind_gym.evaluation.tracks import TrackSuite
from inframind_gym.files import read_yaml
from inframind_gym.policies import POLICIES, checkpoint, policy_names, resolve_policy
from inframind_gym.simulator import jit
from inframind_gym.simulator.arrivals import load_trace
from inframind_gym.simulator.placement import config as placement
from inframind_gym.simulator.posterior import draws_of, split_draw
from inframind_gym.simulator.server.pool import PoolConfig, load_pool
from inframind_gym.simulator.workload import WorkloadConfig, estimates, load_workload
from inframind_gym.tasks.grading import check_tasks
from inframind_gym.tasks.loaders import read_folder
from inframind_gym.tasks.sandbox import PACKAGES
from inframind_gym.teams.assignment.simulate import AssignmentSettings, load_team
from inframind_gym.teams.coordination.settings import CoordinationSettings
from inframind_gym.teams.coordination.settings import load_settings as load_coordination
from inframind_gym.teams.token_budget.settings import TeamSettings, load_settings

_PACKAGE: Final = Path(__file__).parent
TAKEN: Final = (
    "YAML of a pool, workload, suite, track, cluster, demand or catalogue (.yaml); an arrival "
    "trace (.csv); questions, a file (.jsonl, .jsonl.gz) or a folder; the folder of a checkpoint; "
    "the name of a configuration that is shipped; a policy as `bench run --policies` takes it; "
    "`install`: this installation"
)


class _Configuration(NamedTuple):
    """A kind of YAML file."""

    models: tuple[type[BaseModel], ...]  # a file is known by their keys
    load: Callable[[Path], Any]
    said: Callable[[Any], str]  # of what was loaded


class CheckFailedError(InfraMindError):
    """A target that can be read but is not right; the message is the lines that say so."""


def command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help=f"{TAKEN}. Before another target: its kind; as `tasks` the reference answers of "
            "questions are run.",
        ),
    ],
    of_kind: Annotated[
        str | None, typer.Argument(metavar="OTHER", help="The target, after its kind.")
    ] = None,
    packages: Annotated[
        str, typer.Option(help="Packages that the code of `tasks` may import, by commas.")
    ] = ",".join(PACKAGES),
) -> None:
    """Say what a file, a folder or a policy is and holds, or what is wrong with it."""
    with friendly():
        kind, name = (None, target) if of_kind is None else (target, of_kind)
        try:
            lines = check(name, kind, packages=[part for part in packages.split(",") if part])
        except CheckFailedError as error:
            typer.echo(error)
            raise typer.Exit(1) from None
        typer.echo("\n  ".join(lines))


def check(target: str, kind: str | None = None, *, packages: Sequence[str] = PACKAGES) -> list[str]:
    """Read whatever a target names.

    Args:
        target: File, folder, name of a shipped configuration, or policy.
        kind: One of KINDS; None: found out.
        packages: What the code of "tasks" may import beside the standard library.

    Returns:
        Lines that say what it is and what it holds.

    Raises:
        InfraMindError: It cannot be used, or there is nothing of that name or kind.
        CheckFailedError: A reference answer of the tasks fails.
    """
    if kind is not None:
        if kind not in KINDS:
            raise ConfigError(unknown("kind", kind, KINDS))
        return KINDS[kind](target, packages) if kind == "tasks" else KINDS[kind](target)
    if os.path.exists(target):
        return KINDS[_kind_of(Path(target))](target)
    if split_draw(target)[1] is not None:
        return KINDS["workloads"](target)
    kinds = [kind for kind in _CONFIGURATIONS if target in list_configs(kind)]
    if kinds:
        return [line for kind in kinds for line in KINDS[kind](target)]
    if target == "install":
        return [f"inframind-gym {version('inframind-gym')}, {_PACKAGE}", jit.described()]
    looks_like_path = "/" in target or target.endswith((".yaml", ".csv", ".json", ".jsonl", ".gz"))
    if looks_like_path and ":" not in target:
        folder = Path(target).parent
        near = [path.name for path in folder.glob("*")] if folder.is_dir() else []
        hint = did_you_mean(Path(target).name, near)
        raise ConfigError(f"{target}: no such file or folder.{hint}")
    return _policy(target)


def _kind_of(path: Path) -> str:
    """Return the kind of a file or folder, by its ending and what it holds."""
    if (path / "run.json").is_file():
        raise ConfigError(
            f"{path}: holds results; read them with `inframind bench leaderboard {path}`."
        )
    if _checkpoints_in(path):
        return "checkpoints"
    if path.suffix in (".yaml", ".yml"):
        return _kind_of_yaml(path)
    if path.suffix == ".csv":
        return "traces"
    if path.is_dir() or path.name.endswith((".jsonl", ".jsonl.gz")):
        return "questions"
    raise _unknown(f"{path}: is of no kind that is known.")


def _unknown(problem: str) -> ConfigError:
    return ConfigError(f"{problem} Taken are: {TAKEN}.")


def _kind_of_yaml(path: Path) -> str:
    data, _ = read_yaml(path)
    if not isinstance(data, dict) or not data:
        raise _unknown(f"{path}: wanted `key: value` lines.")

    def fit(kind_and_model: tuple[str, type[BaseModel]]) -> tuple[int, int]:
        fields = kind_and_model[1].model_fields
        required = {name for name, field in fields.items() if field.is_required()}
        missing = len(required - data.keys())
        return len(fields.keys() & data.keys()) - missing, len(required) - missing

    kinds = _CONFIGURATIONS.items()
    best, model = max(((kind, m) for kind, taken in kinds for m in taken.models), key=fit)
    if not model.model_fields.keys() & data.keys() - {"name", "description"}:
        keys = ", ".join(map(str, data))[:200]
        raise _unknown(f"{path}: its keys {keys} are those of no file that is known.")
    return best


def _configuration(kind: str, target: str) -> list[str]:
    path, taken = find_config(kind, target), _CONFIGURATIONS[kind]
    return [f"{path}: {taken.said(taken.load(path))}"]


def _workload(target: str) -> list[str]:
    name, draw = split_draw(target)
    path = find_config("workloads", name)
    if draw is not None:
        path = Path(f"{path}#{draw}")
    workload = load_workload(path)
    said = [f"{path}: {_workload_said(workload)}"]
    if workload.draw is not None:
        return [*said, f"with draw {workload.draw} of its quality"]
    parts = [find_config("workloads", part) for part in workload.mix or [path]]
    draws = set.intersection(*(set(draws_of(part)) for part in parts))
    if draws:
        said.append(f"{len(draws)} draws of its quality: {name}#{min(draws)} to #{max(draws)}")
    return said


def _pool_said(pool: PoolConfig) -> str:
    held = f"pool, {_count(pool.aliases, 'model')} on {_count(pool.gpus, 'GPU')}"
    return "; ".join((held, *(f"no model is on {gpu}" for gpu in pool.idle_gpus), *pool.notes))


def _workload_said(workload: WorkloadConfig) -> str:
    asks = f"questions of {workload.dataset}" if workload.mix is None else _listed(workload.mix)
    said = f"workload, {workload.num_queries} queries an episode, {asks}"
    return "; ".join([said, *estimates(workload)])


def _load_suite(path: Path) -> Any:
    suite = load_suite(str(path))
    try:
        return suite.resolve()
    except InfraMindError as error:
        raise ConfigError(f"{path}: {error}") from None


def _suite_said(suite: Any) -> str:
    return (
        f"suite of {suite.kind}, {_count(suite.policies, 'policy')}, "
        f"{len(list(suite.places()))} cells of {len(suite.seed_list)} episodes each"
    )


def _track_said(track: TrackConfig) -> str:
    return f"track, {_count(track.scenarios, 'scenario')} at {_count(track.loads, 'load')}"


def _load_team(path: Path) -> AssignmentSettings | CoordinationSettings | TeamSettings:
    data, _ = read_yaml(path)
    keys = data if isinstance(data, dict) else {}
    if "retrieval" in keys:
        return load_coordination(path)
    return load_team(path) if "skill" in keys else load_settings(path)


def _team_said(team: AssignmentSettings | CoordinationSettings | TeamSettings) -> str:
    if isinstance(team, AssignmentSettings):
        return f"assignment team, {_count(team.tasks, 'task')}"
    if isinstance(team, CoordinationSettings):
        return f"coordination team, answers by {team.limits.hard_s:g} s"
    return f"token-budget team, {_count(team.strategies, 'strategy')}"


def _cluster_said(loaded: Any) -> str:
    cluster, cards = loaded
    return f"cluster, {cluster.num_gpus} GPUs, {_count(cards, 'model')}"


def _trace(target: str) -> list[str]:
    trace = load_trace(target)
    return [
        f"{target}: arrival trace, {len(trace)} requests in {trace.times_s[-1]:.0f} s "
        f"({trace.rate_per_min:.1f} a minute)",
        f"mean tokens: {trace.input_tokens.mean():.0f} of a prompt, "
        f"{trace.output_tokens.mean():.0f} of an answer",
    ]


def _questions(target: str) -> list[str]:
    records = read_folder(Path(target))
    splits = Counter(record.actual_split for record in records)
    return [
        f"{target}: {len(records)} questions, {_listed(Counter(r.dataset for r in records))}",
        f"splits: {_listed(splits)}; answers: {_listed(Counter(r.answer.kind for r in records))}",
    ]


def _tasks(target: str, packages: Sequence[str]) -> list[str]:
    share, failed = check_tasks(target, packages)
    lines = [f"{target}: {share}", *failed]
    if failed:
        raise CheckFailedError("\n  ".join(lines))
    return lines


def _checkpoints_in(folder: Path) -> list[Path]:
    """Return the folder, or those in it, that have a checkpoint; a policy can need several."""
    found = [*folder.glob("config.json"), *folder.glob("*/config.json")]
    return sorted(path.parent for path in found)


def _checkpoints(target: str) -> list[str]:
    lines = []
    for folder in _checkpoints_in(Path(target)) or [Path(target)]:
        tensors, config = checkpoint.load(folder)
        numbers = sum(array.size for array in tensors.values())
        kind = shortened(config.get("agent") or config.get("algorithm") or config.get("kind"))
        lines.append(f"{folder}: checkpoint of {kind}, {numbers:,} weights")
    return [*lines, f"check that a policy can play them with `inframind check NAME:{target}`"]


def _policy(target: str) -> list[str]:
    names = [*policy_names("placement"), *POLICIES["routing"]]
    if ":" not in target and target not in names:
        shipped = [name for kind in _CONFIGURATIONS for name in list_configs(kind)]
        hint = did_you_mean(target, [*names, *shipped, *os.listdir()])
        raise _unknown(f"{shortened(target)!r} is nothing that is known.{hint}")
    policy = _make(target)
    return [f"{target}: policy {policy.name} ({type(policy).__module__})"]


def _make(target: str) -> Any:
    """Make a policy of routing or, where it is none, of placement."""
    try:
        return resolve_policy(target)
    except ConfigError as error:
        try:
            return resolve_policy(target, family="placement")
        except ConfigError as other:
            of_placement = target.split(":")[0] in policy_names("placement")
            raise (other if of_placement else error) from None


def _count(items: Iterable[Any], what: str) -> str:
    number = len(list(items))
    many = what.removesuffix("y") + "ies" if what.endswith("y") else f"{what}s"
    return f"{number} {what if number == 1 else many}"


def _listed(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {count:g}" for name, count in counts.items())


_CONFIGURATIONS: Final = {
    "pools": _Configuration((PoolConfig,), load_pool, _pool_said),
    "workloads": _Configuration((WorkloadConfig,), load_workload, _workload_said),
    "suites": _Configuration((RoutingSuite, PlacementSuite, TrackSuite), _load_suite, _suite_said),
    "tracks": _Configuration((TrackConfig,), load_track, _track_said),
    "placement/clusters": _Configuration(
        (placement.ClusterConfig,), placement.load_cluster, _cluster_said
    ),
    "placement/demands": _Configuration(
        (placement.DemandConfig,),
        placement.load_demand,
        lambda demand: f"demand, {demand.jobs_per_gpu_per_min:g} jobs per GPU and minute",
    ),
    "placement/catalogues": _Configuration(
        (placement.Catalogue,),
        lambda path: load_yaml_model(path, placement.Catalogue),
        lambda catalogue: f"catalogue, {_count(catalogue.models, 'model')}",
    ),
    "teams": _Configuration(
        (AssignmentSettings, CoordinationSettings, TeamSettings), _load_team, _team_said
    ),
    # Known by their keys they are pools; this is where their names are looked up.
    "teams/pools": _Configuration((), load_pool, _pool_said),
}
KINDS: Final[dict[str, Callable[..., list[str]]]] = {
    **{kind: partial(_configuration, kind) for kind in _CONFIGURATIONS},
    "workloads": _workload,
    "traces": _trace,
    "questions": _questions,
    "tasks": _tasks,
    "checkpoints": _checkpoints,
    "policies": _policy,
}
