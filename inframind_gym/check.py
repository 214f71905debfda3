"""`inframind check`: find out what a file, a folder or a name is, and read it as that."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from inframind_gym.configs import find_config, list_configs
from inframind_gym.errors import ConfigError, InfraMindError, did_you_mean, shortened
from inframind_gym.files import read_json, read_objects, read_yaml

_MODELS: Final = {  # kind of YAML file -> its model, by whose keys it is known
    "pools": "inframind_gym.simulator.server.pool:PoolConfig",
    "workloads": "inframind_gym.simulator.workload:WorkloadConfig",
    "suites": "inframind_gym.benchmark.routing.suite:RoutingSuite",
    "placement suites": "inframind_gym.benchmark.placement.suite:PlacementSuite",
    "placement/clusters": "inframind_gym.simulator.placement.cards:ClusterConfig",
    "placement/demands": "inframind_gym.simulator.placement.demand:DemandConfig",
    "placement/catalogues": "inframind_gym.simulator.placement.cards:Catalogue",
}
_TAKEN: Final = (
    "YAML of a pool, workload, suite, cluster, demand or catalogue (.yaml); an arrival trace "
    "(.csv); questions or a request log (.jsonl, .jsonl.gz); measured runs or a GPTSwarm graph "
    "(.json); a folder of questions or of a checkpoint; the name of one that is shipped; a policy "
    "as `bench run --policies` takes it"
)


def check(target: str, kind: str | None = None) -> list[str]:
    """Read whatever a target names.

    Args:
        target: File, folder, name of a shipped configuration, or policy.
        kind: One of KINDS; None: found out.

    Returns:
        Lines that say what it is and what it holds.

    Raises:
        InfraMindError: It cannot be used, or there is nothing of that name.
    """
    if kind is not None:
        return KINDS[kind](target)
    if os.path.exists(target):
        return KINDS[_kind_of_folder(target) if os.path.isdir(target) else _kind_of(target)](target)
    kinds = [kind for kind in KINDS if kind in _MODELS and target in list_configs(kind)]
    if kinds:
        return [line for kind in kinds for line in KINDS[kind](target)]
    looks_like_path = "/" in target or target.endswith((".yaml", ".csv", ".json", ".jsonl", ".gz"))
    if looks_like_path and ":" not in target:
        folder = Path(target).parent
        near = [path.name for path in folder.glob("*")] if folder.is_dir() else []
        hint = did_you_mean(Path(target).name, near)
        raise ConfigError(f"{target}: no such file or folder.{hint}")
    return _policy(target)


def _kind_of(target: str) -> str:
    """Return the kind of a file, by its ending and what it holds."""
    name = Path(target).name
    if name in ("config.json", "model.safetensors"):
        return "checkpoints"
    if name.endswith((".yaml", ".yml")):
        return _kind_of_yaml(target)
    if name.endswith(".csv"):
        return "traces"
    if name.endswith((".jsonl", ".jsonl.gz")):
        first: Any = next(read_objects(target), (1, {}))[1]
        return "logs" if {"input_toks", "queued_ts", "sent_ts"} & first.keys() else "questions"
    if name.endswith(".json"):
        data = read_json(target)
        return "graphs" if isinstance(data, dict) and "edges" in data else "runs"
    raise ConfigError(f"{target}: is of no kind that is known. Taken are: {_TAKEN}.")


def _kind_of_yaml(target: str) -> str:
    data, _ = read_yaml(target)
    if not isinstance(data, dict) or not data:
        raise ConfigError(f"{target}: wanted `key: value` lines. Taken are: {_TAKEN}.")

    def fit(kind: str) -> int:
        fields = _load(_MODELS[kind]).model_fields
        required = {name for name, field in fields.items() if field.is_required()}
        return len(fields.keys() & data.keys()) - len(required - data.keys())

    best = max(_MODELS, key=fit)
    if not _load(_MODELS[best]).model_fields.keys() & data.keys() - {"name", "description"}:
        raise ConfigError(
            f"{target}: its keys {', '.join(map(str, data))[:200]} are those of no file that is "
            f"known. Taken are: {_TAKEN}."
        )
    return "suites" if best == "placement suites" else best


def _kind_of_folder(target: str) -> str:
    folder = Path(target)
    if any(folder.glob("*.jsonl")) and (folder / "run.json").is_file():
        raise ConfigError(
            f"{folder}: holds the results of a benchmark; read it with `inframind bench "
            f"leaderboard {folder}`."
        )
    found = (folder / "config.json").is_file() or any(folder.glob("*/config.json"))
    return "checkpoints" if found else "questions"


def _pool(target: str) -> list[str]:
    path = find_config("pools", target)
    pool = _load("inframind_gym.simulator.server.pool:load_pool")(path)
    return [f"{path}: pool, {_count(pool.aliases, 'model')} on {_count(pool.gpus, 'GPU')}"]


def _workload(target: str) -> list[str]:
    path = find_config("workloads", target)
    workload = _load("inframind_gym.simulator.workload:load_workload")(path)
    asks = f"questions of {workload.dataset}" if workload.mix is None else _listed(workload.mix)
    estimates = _load("inframind_gym.simulator.workload:estimates")(workload)
    return [f"{path}: workload, {workload.num_queries} queries an episode, {asks}", *estimates]


def _suite(target: str) -> list[str]:
    path = find_config("suites", target)
    suite = _load("inframind_gym.benchmark.suite:load_suite")(str(path))
    try:
        suite = suite.resolve()
    except InfraMindError as error:
        raise ConfigError(f"{path}: {error}") from None
    cells = len(list(suite.places()))
    seeds = len(suite.seed_list)
    return [
        f"{path}: suite of {suite.kind}, {_count(suite.policies, 'policy')}, {cells} cells of "
        f"{seeds} episodes each"
    ]


def _cluster(target: str) -> list[str]:
    path = find_config("placement/clusters", target)
    cluster, cards = _load("inframind_gym.simulator.placement.cards:load_cluster")(path)
    return [f"{path}: cluster, {cluster.num_gpus} GPUs, {_count(cards, 'model')}"]


def _demand(target: str) -> list[str]:
    path = find_config("placement/demands", target)
    demand = _load("inframind_gym.simulator.placement.demand:load_demand")(path)
    return [f"{path}: demand, {demand.jobs_per_gpu_per_min:g} jobs per GPU and minute"]


def _catalogue(target: str) -> list[str]:
    path = find_config("placement/catalogues", target)
    model = _load(_MODELS["placement/catalogues"])
    catalogue = _load("inframind_gym.configs:load_yaml_model")(path, model)
    return [f"{path}: catalogue, {_count(catalogue.models, 'model')}"]


def _trace(target: str) -> list[str]:
    trace = _load("inframind_gym.simulator.traces:load_trace")(target)
    return [
        f"{target}: arrival trace, {len(trace)} requests in {trace.times_s[-1]:.0f} s "
        f"({trace.rate_per_min:.1f} a minute)",
        f"mean tokens: {trace.input_tokens.mean():.0f} of a prompt, "
        f"{trace.output_tokens.mean():.0f} of an answer",
    ]


def _questions(target: str) -> list[str]:
    records = _load("inframind_gym.tasks.loaders:read_folder")(Path(target))
    splits = Counter(record.actual_split for record in records)
    return [
        f"{target}: {len(records)} questions, {_listed(Counter(r.dataset for r in records))}",
        f"splits: {_listed(splits)}; answers: {_listed(Counter(r.answer.kind for r in records))}",
    ]


def _log(target: str) -> list[str]:
    read_log = _load("inframind_gym.calibration.request_log:read_log")
    named = {item.get("model") for _, item in read_objects(target)}
    models = sorted(name for name in named if isinstance(name, str))
    lines = [f"{target}: request log"]
    for model in (*models,) or (None,):
        log = read_log(target, model)
        tokens = f"{log.prompt_tokens.mean():.0f} + {log.output_tokens.mean():.0f} tokens each"
        of = f" of {model}" if model else ""
        lines.append(f"{len(log)} requests{of}, {tokens}, {log.failed} without an answer")
    return lines


def _runs(target: str) -> list[str]:
    cells = _load("inframind_gym.calibration.measured_runs:read_runs")(target)
    methods = _listed(Counter(cell.method for cell in cells))
    return [f"{target}: measured runs, {len(cells)} cells, {methods}"]


def _graph(target: str) -> list[str]:
    swarm = _load("inframind_gym.policies.gptswarm:load_swarm")(Path(target))
    return [
        f"{target}: GPTSwarm graph, {_count(swarm.models, 'model')}, {len(swarm.edges)} edges; "
        f"played as gptswarm:{target}"
    ]


def _checkpoint(target: str) -> list[str]:
    folder = Path(target) if os.path.isdir(target) else Path(target).parent
    subfolders = sorted(path.parent for path in folder.glob("*/config.json"))
    if not (folder / "config.json").is_file() and subfolders:
        return [line for each in subfolders for line in _checkpoint(str(each))]
    tensors, config = _load("inframind_gym.policies.checkpoint:load")(folder)
    kind, algorithm = str(config.get("kind", "")), str(config.get("algorithm", ""))
    name = {
        "placement_scorer": "sb3_maskable_ppo",
        "sb3": f"sb3_{algorithm}",
    }.get(kind, str(config.get("agent") or algorithm.replace("headway", "bid_price")))
    numbers = sum(array.size for array in tensors.values())
    line = f"{folder}: checkpoint, {numbers:,} weights"
    if name not in _policies():
        return [f"{line}, of {shortened(name)!r}, which no policy here plays"]
    if kind == "placement_scorer":
        import_module("inframind_gym.policies.placement.registry").resolve(f"{name}:{folder}")
    else:
        _make(f"{name}:{folder}")
    return [f"{line}; played as {name}:{folder}"]


def _policy(target: str) -> list[str]:
    known = _policies()
    name = target.split(":")[0]
    if name not in known and ":" not in target:
        shipped = [name for kind in KINDS if kind in _MODELS for name in list_configs(kind)]
        hint = did_you_mean(target, [*known, *shipped, *os.listdir()])
        raise ConfigError(
            f"{shortened(target)!r} is nothing that is known.{hint} Taken are: {_TAKEN}."
        )
    policy = _make(target)
    return [f"{target}: policy {policy.name} ({type(policy).__module__})"]


def _policies() -> dict[str, Callable[..., Any]]:
    """Names of registered policies, and what makes one, of routing before placement."""
    routing = import_module("inframind_gym.policies.loading")
    placement = import_module("inframind_gym.policies.placement.registry")
    own = dict.fromkeys(placement.names(), placement.resolve)
    return own | {entry.name: routing.resolve_policy for entry in routing.registered_policies()}


def _make(target: str) -> Any:
    """Make a policy; one of a module of the user's own may be of routing or of placement."""
    resolve = _policies().get(target.split(":")[0])
    if resolve is not None:
        return resolve(target)
    try:
        return import_module("inframind_gym.policies.loading").resolve_policy(target)
    except ConfigError as error:
        try:
            return import_module("inframind_gym.policies.placement.registry").resolve(target)
        except ConfigError:
            raise error from None


def _load(path: str) -> Any:
    """Import ``package.module:attribute``."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def _count(items: Iterable[Any], what: str) -> str:
    number = len(list(items))
    many = what.removesuffix("y") + "ies" if what.endswith("y") else f"{what}s"
    return f"{number} {what if number == 1 else many}"


def _listed(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {count:g}" for name, count in counts.items())


KINDS: Final[dict[str, Callable[[str], list[str]]]] = {
    "pools": _pool,
    "workloads": _workload,
    "suites": _suite,
    "placement/clusters": _cluster,
    "placement/demands": _demand,
    "placement/catalogues": _catalogue,
    "traces": _trace,
    "questions": _questions,
    "logs": _log,
    "runs": _runs,
    "graphs": _graph,
    "checkpoints": _checkpoint,
    "policies": _policy,
}
