"""Growth of the cost of a decision with the size of a problem.

Each axis changes one size and keeps the load of every server: more models bring as many more
queries, more slots as many more as they can serve.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.provenance import provenance
from inframind_gym.benchmark.speed.measure import open_sides, origin, ratios_of, title
from inframind_gym.benchmark.speed.sides import Job, Side, SideError, costs_s
from inframind_gym.benchmark.tables import Sheet
from inframind_gym.configs import find_config, load_yaml_model
from inframind_gym.errors import unknown
from inframind_gym.progress import say
from inframind_gym.simulator.placement.cards import load_cluster
from inframind_gym.simulator.server.pool import PoolConfig, load_pool
from inframind_gym.simulator.workload import WorkloadConfig

POOL: Final = "b200-2gpu"
WORKLOAD: Final = "math"
CLUSTER: Final = "h100-64gpu"
RATE_PER_MIN: Final = 100.0
_STREAM: Final = "InfraMind-Stream-v0"

AXES: Final = {
    "models": "models of a pool, Stream vector, n = 64",
    "slots": "slots of each server, Stream vector, n = 64",
    "kernel_slots": "slots of each server, kernel alone, load 0.7",
    "queue": "calls that wait at each of five servers, kernel alone",
    "backlog": "queries that come at once, Stream single",
    "envs": "environments n, Stream vector, five models",
    "gpus": "GPUs, Placement vector, n = 4, random choices",
    "mcf_plus": "GPUs, decisions of mcf_plus",
}


class Size(NamedTuple):
    """One point of an axis."""

    axis: str
    size: int
    job: Job


def sizes(folder: Path) -> Iterator[Size]:
    """Yield the points of all axes; their pools, workloads and clusters are written to a folder."""
    pool = load_pool(POOL)
    for models in (5, 16, 32):
        yield Size("models", models, _stream(64, 200, _many_models(folder, models), models / 5))
    for slots in (16, 64, 128, 256):
        more = _slots_capacity(pool, slots)
        yield Size("slots", slots, _stream(64, 200, _wide(folder, pool, slots), more))
    for slots in (16, 64, 128, 256):
        yield Size("kernel_slots", slots, _kernel(300_000, 0.7, slots=slots))
    for queue in (10, 100, 1_000, 10_000):
        yield Size("queue", queue, _kernel(300_000, 1.0, backlog=queue))
    for queries in (10, 100, 1_000, 10_000):
        yield Size("backlog", queries, _backlog(queries))
    for num_envs in (64, 256, 1_024, 4_096, 8_192):
        yield Size("envs", num_envs, _stream(num_envs, 150, {}, 1.0))  # as far into an episode
    clusters = {gpus: {"cluster": _cluster(folder, gpus)} for gpus in (8, 64, 256, 1_024)}
    for gpus, kwargs in clusters.items():
        made = {"num_envs": 4, "steps": max(4, 2_000 // gpus), "idle": False, "kwargs": kwargs}
        yield Size("gpus", gpus, Job("placement", made))
    for gpus, kwargs in clusters.items():
        made = {"policy": "mcf_plus", "steps": max(4, 4_000 // gpus), "kwargs": kwargs}
        yield Size("mcf_plus", gpus, Job("placement_policy", made))


def _stream(num_envs: int, steps: int, kwargs: Mapping[str, Any], load: float) -> Job:
    """Make the work of a Stream batch at `load` times the base rate."""
    rate = {"arrival_rate_per_min": RATE_PER_MIN * load, "observation": "index", **kwargs}
    arguments = {"env_id": _STREAM, "num_envs": num_envs, "steps": steps, "kwargs": rate}
    return Job("vector", {**arguments, "fixed": None})


def _kernel(requests: int, load: float, *, slots: int | None = None, backlog: int = 0) -> Job:
    arguments = {"pool": POOL, "requests": requests, "load": load}
    return Job("kernel", {**arguments, "slots": slots, "backlog": backlog})


def _backlog(queries: int) -> Job:
    """Make whole episodes of one-agent queries that all come within seconds."""
    kwargs = {
        "num_queries": queries,
        "arrival_rate_per_min": 100_000.0,
        "planner": {"topology": "IO", "num_agents": 1},
        "observation": "index",
    }
    return Job("single", {"env_id": _STREAM, "steps": max(10_000, queries), "kwargs": kwargs})


def _many_models(folder: Path, models: int) -> dict[str, str]:
    """Write a pool of copies of a shipped one, GPUs included, and a workload of their models."""
    pool = load_pool(POOL).model_dump(mode="json", exclude_defaults=True)
    workload = load_yaml_model(find_config("workloads", WORKLOAD), WorkloadConfig)
    profile = workload.model_dump(mode="json", exclude_defaults=True)
    copies = -(-models // len(pool["models"]))
    pool["gpus"] = [gpu | {"name": _copy(gpu["name"], i)} for i, gpu in _of(pool["gpus"], copies)]
    pool["models"] = [
        {key: value for key, value in model.items() if key != "port"}
        | {"alias": _copy(model["alias"], i), "gpu": _copy(model["gpu"], i)}
        for i, model in _of(pool["models"], copies)
    ][:models]
    profile["models"] = {
        _copy(alias, i): entry | {"share": entry["share"] / copies}
        for i, (alias, entry) in _of(list(profile["models"].items()), copies)
    }
    paths = {}
    for kind, content in (("pool", pool), ("workload", profile)):
        path = folder / f"{kind}-{models}.yaml"
        path.write_text(json.dumps(content), encoding="utf-8")
        paths[kind] = str(path)
    return paths


def _of(items: Sequence[Any], copies: int) -> list[tuple[int, Any]]:
    return [(i, item) for i in range(copies) for item in items]


def _copy(name: str, number: int) -> str:
    return f"{name}-{number}" if number else name


def _wide(folder: Path, pool: PoolConfig, slots: int) -> dict[str, str]:
    """Write a pool with as many slots a server, and KV cache for them."""
    content = pool.model_dump(mode="json", exclude_defaults=True)
    for model in content["models"]:
        server = model["server"]
        server["num_kv_blocks"] *= max(1, slots // server["max_num_seqs"])
        server["max_num_seqs"] = slots
    path = folder / f"slots-{slots}.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    return {"pool": str(path)}


def _slots_capacity(pool: PoolConfig, slots: int) -> float:
    """Return how many times as many calls a second full batches of `slots` serve."""

    def per_s(at_once: int) -> float:
        steps = [m.server.step.base_s + m.server.step.per_seq_s * at_once for m in pool.models]
        return sum(at_once / step_s for step_s in steps)

    return per_s(slots) / per_s(pool.models[0].server.max_num_seqs)


def _cluster(folder: Path, gpus: int) -> str:
    """Write a cluster of as many GPUs."""
    cluster, _ = load_cluster(CLUSTER)
    content = cluster.model_dump(mode="json")
    content["gpus"] = [{**content["gpus"][0], "count": gpus}]
    path = folder / f"cluster-{gpus}.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def measure_scaling(
    only: Sequence[str] | None = None, *, repeats: int, against: str | None = None
) -> dict[str, Any]:
    """Measure the cost of a decision along the axes.

    Args:
        only: Names of `AXES`; None takes all.
        repeats: Measurements of each point; the median is kept.
        against: Git revision that is measured in turn with this one.

    Returns:
        ``points``, each with "axis", "size", "cost_us" (CPU time of one decision, or of one call of
        the kernel), and "error" where a side cannot do it; with `against` also "ratio", how many
        times as fast this revision is; and where they were measured.

    Raises:
        BenchmarkError: A name is unknown, or the revision cannot be had.
    """
    for name in only or ():
        if name not in AXES:
            raise BenchmarkError(unknown("axis", name, AXES))
    points: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, open_sides(against) as (sides, other):
        for axis, size, job in sizes(Path(folder)):
            if axis not in (only or AXES):
                continue
            say(f"measuring {size:,} {AXES[axis]} ...")
            point: dict[str, Any] = {"axis": axis, "size": size}
            points.append(point)
            costs, point["error"] = _costs_s(sides, job, repeats)
            if costs:
                point["cost_us"] = 1e6 * statistics.median(costs[0])
            if len(costs) > 1:
                point["ratio"] = ratios_of(*costs)
    found: dict[str, Any] = {"points": points, "repeats": repeats, **provenance()}
    return found | ({"against": other} if other else {})


def _costs_s(sides: Sequence[Side], job: Job, repeats: int) -> tuple[list[list[float]], str]:
    """Time a job on all sides, or on the first where another cannot do it; and say why not."""
    said = ""
    for able in (sides, sides[:1]):
        try:
            return costs_s(able, job, repeats), said
        except SideError as error:
            said = str(error)
    return [], said


def scaling_sheet(found: Mapping[str, Any]) -> Sheet:
    """Make the table of the costs, and how they grow from the first point of their axis."""
    first: dict[str, dict[str, Any]] = {}
    rows = []
    for point in found["points"]:
        start = first.setdefault(point["axis"], point)
        head = [AXES[point["axis"]] if start is point else "", f"{point['size']:,}"]
        if "cost_us" not in point:
            rows.append([*head, "not possible", "", ""])
            continue
        grown = point["cost_us"] / start["cost_us"]
        doublings = math.log2(point["size"] / start["size"])
        rows.append([*head, f"{point['cost_us']:,.2f}", f"{grown:.2f}", f"{doublings:.1f}"])
        if "ratio" in point:
            rows[-1].append(f"{point['ratio']['median']:.2f}")
    headings = ["size", "", "µs", "times the first", "doublings"]
    if "against" in found:
        headings.append(f"times as fast as {found['against']['ref']}")
        rows = [row + [""] * (len(headings) - len(row)) for row in rows]
    caption = f"CPU time of a decision (kernel: of a call), medians of {found['repeats']}. "
    return Sheet(title(found), headings, rows, caption + origin(found))
