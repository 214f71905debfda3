"""`inframind check`: find out what a file, a folder or a name is, and read it as that."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from inframind_gym.configs import KINDS, find_config, list_configs, load_yaml_model
from inframind_gym.errors import (
    ConfigError,
    InfraMindError,
    did_you_mean,
    shortened,
    unknown,
)
from inframind_gym.evaluation.scenarios import load_track
from inframind_gym.evaluation.store import HEADER
from inframind_gym.evaluation.suite import load_suite
from inframind_gym.files import read_yaml
from inframind_gym.policies import POLICIES, resolve_policy
from inframind_gym.simulator import jit
from inframind_gym.simulator.arrivals import load_trace
from inframind_gym.simulator.placement import config as placement
from inframind_gym.simulator.posterior import draws_of, split_draw
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workload import estimates, load_workload
from inframind_gym.tasks.grading import check_tasks
from inframind_gym.tasks.loaders import read_folder
from inframind_gym.tasks.sandbox import PACKAGES
from inframind_gym.teams.assignment import simulate as assignment
from inframind_gym.teams.coordination.settings import load_settings as load_coordination
from inframind_gym.teams.token_budget.settings import load_settings

_PACKAGE: Final = Path(__file__).parent
_OTHERS: Final = ("traces", "questions", "policies", "tasks")  # kinds beside the configurations
_KEYS: Final[dict[str, set[str]]] = {  # a file is of the first kind one of whose keys it has
    "suites": {"policies"},
    "tracks": {"loads"},
    "placement/clusters": {"catalogue"},
    "placement/demands": {"jobs_per_gpu_per_min"},
    "pools": {"gpus"},
    "teams": {"skill", "retrieval", "token_unit"},
    "workloads": {"mix", "quality", "dataset", "output"},
    "placement/catalogues": {"models"},
}
TAKEN: Final = (
    "YAML of a pool, workload, suite, track, cluster, demand or catalogue (.yaml); an arrival "
    "trace (.csv); questions, a file (.jsonl, .jsonl.gz) or a folder; the name of a configuration "
    "that is shipped; a policy as `bench run --policies` takes it; `install`: this installation"
)


class CheckFailedError(InfraMindError):
    """A target that can be read, but fails its check; the message is the report."""


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
        kind: A folder of `envs_configs`, "traces", "questions", "tasks" or "policies"; None: found
            out.
        packages: What the code of "tasks" may import beside the standard library.

    Returns:
        Lines that say what it is and what it holds.

    Raises:
        InfraMindError: It cannot be used, or there is nothing of that name or kind.
        CheckFailedError: A reference answer of the tasks fails.
    """
    if kind is None and target == "install":
        return [f"inframind-gym {version('inframind-gym')}, {_PACKAGE}", jit.described()]
    lines = []
    for one in kinds_of(target) if kind is None else [kind]:
        if one in KINDS:
            name, draw = split_draw(target) if one == "workloads" else (target, None)
            path = Path(f"{find_config(one, name)}{'' if draw is None else f'#{draw}'}")
            lines += f"{path}: {_configuration(one, path)}".splitlines()
        elif one == "traces":
            trace = load_trace(target)
            lines += [
                f"{target}: arrival trace, {len(trace)} requests in {trace.times_s[-1]:.0f} s "
                f"({trace.rate_per_min:.1f} a minute)",
                f"mean tokens: {trace.input_tokens.mean():.0f} of a prompt, "
                f"{trace.output_tokens.mean():.0f} of an answer",
            ]
        elif one == "questions":
            records = read_folder(Path(target))
            datasets, splits, answers = (
                _listed(Counter(values))
                for values in zip(
                    *((r.dataset, r.actual_split, r.answer.kind) for r in records), strict=True
                )
            )
            lines += [f"{target}: {len(records)} questions, {datasets}"]
            lines += [f"splits: {splits}; answers: {answers}"]
        elif one == "tasks":
            share, failed = check_tasks(target, packages)
            lines += [f"{target}: {share}", *failed]
            if failed:
                raise CheckFailedError("\n  ".join(lines))
        elif one == "policies":
            lines += [_policy(target)]
        else:
            raise ConfigError(unknown("kind", one, (*KINDS, *_OTHERS)))
    return lines


def kinds_of(target: str) -> list[str]:
    """Return the kind of a file or folder, or all kinds that have a configuration of that name."""
    path = Path(target)
    if os.path.exists(target):
        if (path / HEADER).is_file():
            raise ConfigError(f"{path}: holds results; see `inframind bench leaderboard {path}`.")
        if path.suffix == ".py":
            raise ConfigError(
                f"{path}: a policy goes by its class, {path.stem}:Class in its folder."
            )
        if path.suffix == ".csv":
            return ["traces"]
        if path.is_dir() or path.name.endswith((".jsonl", ".jsonl.gz")):
            return ["questions"]
        if path.suffix not in (".yaml", ".yml"):
            raise _unknown(f"{target}: is of no kind that is known.")
        data, _ = read_yaml(path)
        if not isinstance(data, dict) or not data:
            raise _unknown(f"{path}: wanted `key: value` lines.")
        known = [kind for kind, keys in _KEYS.items() if data.keys() & keys]
        if not known:
            names = ", ".join(map(str, data))[:200]
            raise _unknown(f"{path}: its keys {names} are those of no file that is known.")
        return known[:1]
    if split_draw(target)[1] is not None:
        return ["workloads"]
    looks_like_path = "/" in target or target.endswith((".yaml", ".csv", ".json", ".jsonl", ".gz"))
    if looks_like_path and ":" not in target:
        near = [one.name for one in path.parent.glob("*")] if path.parent.is_dir() else []
        raise ConfigError(f"{target}: no such file or folder.{did_you_mean(path.name, near)}")
    return [kind for kind in KINDS if target in list_configs(kind)] or ["policies"]


def _configuration(kind: str, path: Path) -> str:
    """Read a configuration file, and return what it holds, in words."""
    if kind in ("pools", "teams/pools"):
        pool = load_pool(path)
        held = f"pool, {_count(pool.aliases, 'model')} on {_count(pool.gpus, 'GPU')}"
        return "; ".join((held, *(f"no model is on {gpu}" for gpu in pool.idle_gpus), *pool.notes))
    if kind == "workloads":
        workload = load_workload(path)
        questions = f"questions of {workload.dataset}"
        questions = questions if workload.mix is None else _listed(workload.mix)
        text = f"workload, {workload.num_queries} queries an episode, {questions}"
        text = "; ".join([text, *estimates(workload)])
        if workload.draw is not None:
            return f"{text}\nwith draw {workload.draw} of its quality"
        parts = [find_config("workloads", part) for part in workload.mix or [path]]
        draws = set.intersection(*(set(draws_of(part)) for part in parts))
        which = f"\n{len(draws)} draws of its quality: {path.stem}#"
        return f"{text}{which}{min(draws)} to #{max(draws)}" if draws else text
    if kind == "suites":
        suite = load_suite(str(path))
        try:
            suite = suite.resolve()
        except InfraMindError as error:
            raise ConfigError(f"{path}: {error}") from None
        cells, episodes = len(list(suite.places())), len(suite.seed_list)
        policies = _count(suite.policies, "policy")
        return f"suite of {suite.kind}, {policies}, {cells} cells of {episodes} episodes each"
    if kind == "tracks":
        track = load_track(path)
        return f"track, {_count(track.scenarios, 'scenario')} at {_count(track.loads, 'load')}"
    if kind == "placement/clusters":
        cluster, cards = placement.load_cluster(path)
        return f"cluster, {cluster.num_gpus} GPUs, {_count(cards, 'model')}"
    if kind == "placement/demands":
        rate = placement.load_demand(path).jobs_per_gpu_per_min
        return f"demand, {rate:g} jobs per GPU and minute"
    if kind == "placement/catalogues":
        return f"catalogue, {_count(load_yaml_model(path, placement.Catalogue).models, 'model')}"
    data, _ = read_yaml(path)
    keys = data if isinstance(data, dict) else {}
    if "retrieval" in keys:
        return f"coordination team, answers by {load_coordination(path).limits.hard_s:g} s"
    if "skill" in keys:
        return f"assignment team, {_count(assignment.team(path).settings.tasks, 'task')}"
    return f"token-budget team, {_count(load_settings(path).strategies, 'strategy')}"


def _policy(target: str) -> str:
    families = [name for name, policies in POLICIES.items() if target.split(":")[0] in policies]
    if not families and ":" not in target:
        names = {name for policies in POLICIES.values() for name in policies}
        shipped = [name for kind in KINDS for name in list_configs(kind)]
        hint = did_you_mean(target, ["install", *names, *shipped, *os.listdir()])
        raise _unknown(f"{shortened(target)!r} is nothing that is known.{hint}")
    found, problems = [], []
    for family in families or ["routing"]:
        try:
            policy: Any = resolve_policy(target, family=family)
        except ConfigError as problem:
            problems.append(problem)
        else:
            found.append(f"{policy.name} ({family}, {type(policy).__module__})")
    if not found:
        raise problems[0]
    return f"{target}: policy {', '.join(found)}"


def _unknown(problem: str) -> ConfigError:
    return ConfigError(f"{problem} Taken are: {TAKEN}.")


def _count(items: Iterable[Any], what: str) -> str:
    number = len(list(items))
    many = what.removesuffix("y") + "ies" if what.endswith("y") else f"{what}s"
    return f"{number} {what if number == 1 else many}"


def _listed(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {count:g}" for name, count in counts.items())
