"""Trainings and plays of docs/results/paper.md: `python -m benchmarks paper`.

A job is a training, or a play of a policy at all rates and budgets of a workload in the published
protocol. Its figures are a file in the folder of runs, so that an interrupted command goes on, and
several may run at once. All figures are collected in `benchmarks/records/paper.json.gz`; a job that
has figures of the present simulator there is not done again. `paper_page.py` makes the page.
"""

from __future__ import annotations

import fcntl
import gzip
import json
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.evaluation.queries import imbalance, time_with_an_empty_server
from inframind_gym.evaluation.suite import load_suite
from inframind_gym.evaluation.tracker import read_metrics
from inframind_gym.files import replace_bytes, replace_text
from inframind_gym.progress import say
from inframind_gym.simulator import SIMULATOR_VERSION
from inframind_gym.train import read_config

RECORD: Final = Path(__file__).with_name("records") / "paper.json.gz"
FIGURES: Final = "figures.json"  # of a finished job, in its folder
SEEDS: Final = 5
DRAWS: Final = 10  # of the posterior of quality
MODELS: Final = ("deepseek-32b", "mistral-24b", "qwen-14b", "llama-8b", "llama-3b")
STRATEGIES: Final = ("Flash", "Concise", "DeepThink")
RATES: Final = (10.0, 50.0, 100.0, 200.0)
WORKLOADS: Final = ("math", "mbpp", "gsm_hard", "humaneval", "mmlu_pro")
SWEEP: Final = {"math": ["env.workload=math", "env.num_queries=607"], "all": []}
# Name of a variant -> configuration and its changes; ablations are trained on MATH alone.
ABLATIONS: Final[Mapping[str, tuple[str, list[str]]]] = {
    "no_telemetry": ("inframind", ["executor.system_state=false"]),
    "predicted_latency": ("inframind", ["executor.predicted_latency=true"]),
    "single_pathway": ("inframind", ["executor.dual_pathway=false"]),
    "factored_head": ("inframind", ["executor.joint_head=false"]),
    "warm_up": ("inframind", ["lagrange.warmup=3"]),
    "log_uniform": ("inframind", ["budgets=log_uniform"]),
    "fixed_lambda": ("inframind", ["lagrange.lr=0"]),
    "one_agent": ("inframind", ["planner.agents=1"]),
    # Departures of earlier versions of this package.
    "learned_count": ("inframind", ["planner.draw_count=true", "planner.agents=null"]),
    "side_by_side": ("inframind", ["sweeps=side_by_side"]),
    # One change of inframind_v2 taken back.
    "v2_solved": ("inframind_v2", ["reward=solved"]),
    "v2_selection": ("inframind_v2", ["validation.metric=solved", "validation.budget_s=200"]),
    "v2_three": ("inframind_v2", ["planner.agents=3"]),
}
VARIANTS: Final = {
    "inframind": ("inframind", []),
    "inframind_v2": ("inframind_v2", []),
    "masrouter": ("masrouter", []),
    "masrouter_one": ("masrouter", ["agents=1"]),  # five agents are dear under load
    **ABLATIONS,
}
MASROUTERS: Final = ("masrouter", "masrouter_one")
RIVALS: Final = ("static_mix", "moa", "gptswarm")  # play as they are, first come, first served


class Job(NamedTuple):
    """A training, or a play of its checkpoint or of a policy without one."""

    kind: str  # "training" or "play"
    policy: str  # of `VARIANTS` or `RIVALS`
    world: str = ""  # workload that it is trained on; empty for `RIVALS`
    seed: int = 0  # of the training
    workload: str = ""  # what is played; with a draw of the posterior: `math#3`
    mode: str = "as shipped"  # "likeliest", "sample" or "as shipped"
    scheduler: str = "edf"  # of the servers
    budgets: str = ""  # "tiers" draws every query's budget; otherwise all of a cell have the same

    @property
    def key(self) -> str:
        """Name of its figures."""
        training = f"{self.policy}/{self.world}/seed{self.seed}" if self.world else self.policy
        if self.kind == "training":
            return f"trainings/{training}"
        mode = self.mode.replace(" ", "_")
        return f"plays/{training}/{self.workload}/{mode}_{self.scheduler}{self.budgets}"


def jobs() -> Iterator[Job]:
    """Yield all jobs, the most important first; plays follow their trainings."""
    seeds, modes = range(SEEDS), ("likeliest", "sample")
    for policy, seed in product(("inframind", "inframind_v2"), seeds):
        yield from _trained(policy, "math", seed)
    for mode, seed, scheduler in product(modes, seeds, ("edf", "fcfs")):
        yield Job("play", "inframind", "math", seed, "math", mode, scheduler, "tiers")
    for policy, workload in product(RIVALS, WORKLOADS):
        yield Job("play", policy, workload=workload, scheduler="fcfs")
    for seed, policy in product(seeds, (*MASROUTERS, "inframind", "inframind_v2")):
        yield from _trained(policy, "all", seed)
    yield from _of_draws(range(5))
    for seed, policy in product(seeds, ABLATIONS):
        yield from _trained(policy, "math", seed)
    yield from _of_draws(range(5, DRAWS))


def _trained(policy: str, world: str, seed: int) -> Iterator[Job]:
    """Yield a training and its plays."""
    yield Job("training", policy, world, seed)
    modes = ["likeliest", "sample"]
    if policy.startswith(("masrouter", "v2")):
        modes = ["as shipped"]
    if (policy, world) == ("inframind_v2", "all"):
        modes = ["likeliest"]
    scheduler = "fcfs" if policy.startswith("masrouter") else "edf"
    for workload, mode in product(("math",) if world == "math" else WORKLOADS, modes):
        yield Job("play", policy, world, seed, workload, mode, scheduler)


def _of_draws(draws: range) -> Iterator[Job]:
    """Yield plays on posterior draws of quality."""
    for draw, name in product(draws, ("math", "mbpp")):
        for policy in ("inframind", "inframind_v2"):
            yield Job("play", policy, "all", 0, f"{name}#{draw}", "likeliest")
        for policy in (*MASROUTERS, *RIVALS):
            world = "all" if policy in MASROUTERS else ""
            yield Job("play", policy, world, 0, f"{name}#{draw}", scheduler="fcfs")


# The record


def read_record(path: Path = RECORD) -> dict[str, Any]:
    """Return figures by the keys of jobs: those of the present simulator."""
    if not path.is_file():
        return {}
    found = json.loads(gzip.decompress(path.read_bytes()))
    return {k: v for k, v in found.items() if v["simulator"] == SIMULATOR_VERSION}


def collect(runs: Path, path: Path = RECORD) -> dict[str, Any]:
    """Add the figures in a folder of runs to the record; return all of its jobs."""
    known = {job.key for job in jobs()}
    figures = {k: v for k, v in read_record(path).items() if k in known}
    figures |= {key: done for key in known if (done := done_in(runs / key))}
    text = json.dumps({key: figures[key] for key in sorted(figures)}, separators=(",", ":"))
    if figures != read_record(path):
        replace_bytes(path, gzip.compress(text.encode(), mtime=0))
    return figures


def done_in(folder: Path) -> dict[str, Any] | None:
    """Return the figures of a job that was finished in a folder under the present simulator."""
    path = folder / FIGURES
    content: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return content if content.get("simulator") == SIMULATOR_VERSION else None


def missing(figures: Mapping[str, Any]) -> list[str]:
    """Return the keys of jobs that have no figures, the most important first."""
    return [job.key for job in jobs() if job.key not in figures]


def work(runs: Path, limit: int | None = None) -> None:
    """Do the jobs, `limit` at most, that neither the record nor the folder of runs has."""
    have, done = read_record(), 0
    for job in jobs():
        if job.key not in have and done != limit:
            done += finish(job, runs)


def finish(job: Job, runs: Path) -> bool:
    """Do a job, unless it is done or another process does it; returns whether it was done here."""
    folder = runs / job.key
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if done_in(folder):
            return False
        if job.kind == "play" and job.world:
            training = Job("training", job.policy, job.world, job.seed)
            finish(training, runs)
            if not done_in(runs / training.key):
                return False
        say(job.key)
        figures = train(job, folder) if job.kind == "training" else play(job, runs)
        content = {"simulator": SIMULATOR_VERSION, **figures}
        replace_text(folder / FIGURES, json.dumps(content))
    return True


# Trainings


def train(job: Job, folder: Path) -> dict[str, Any]:
    """Train, from where an earlier start was stopped; return figures of the training."""
    name, changes = VARIANTS[job.policy]
    sweep = SWEEP[job.world] if name != "masrouter" else SWEEP[job.world][:1]
    function, config = read_config(name, [*sweep, *changes])
    from agents.runs import Run

    result = function(config, Run(folder, job.seed, resume=True))
    lines = read_metrics(folder / "metrics.jsonl")
    if name == "masrouter":
        return {"agents": lines[-1]["val/num_agents"]}
    updates = [line for line in lines if "charts/queries" in line]
    cost = np.array([line["charts/episodic_cost"] for line in updates])
    size = np.array([line["charts/queries"] for line in updates])
    shares = np.array([[line[f"shares/model/{model}"] for model in MODELS] for line in updates])
    weight = np.array([line["lagrange/lambda"] for line in updates])
    ends = np.flatnonzero(np.cumsum(size) % config.env.num_queries == 0)  # of the sweeps

    def mean(used: NDArray[np.bool_]) -> list[float] | None:
        return rounded(np.average(shares[used], axis=0, weights=size[used])) if used.any() else None

    return {
        "updates": len(updates),
        "epochs": result["epoch"],
        "best_epoch": result["best_epoch"],
        "lambda": rounded(weight[ends]),
        "cost": round(float(np.average(cost, weights=size)), 4),
        "cheap": mean(cost <= 1.0),
        "dear": mean(cost > 1.0),
    }


def rounded(values: Any) -> list[float]:
    """Return numbers with four decimals."""
    return [round(float(value), 4) for value in values]


# Plays


def play(job: Job, runs: Path) -> dict[str, Any]:
    """Play a policy in every cell of a workload, one episode each."""
    name = job.policy
    if job.world:
        best = runs / Job("training", job.policy, job.world, job.seed).key / "best"
        name = f"{VARIANTS[job.policy][0]}:{best}"
        name += "" if job.mode == "as shipped" else f":{job.mode}"
    dataset, _, draw = job.workload.partition("#")
    settings: dict[str, Any] = {"workloads": (job.workload,), "policies": (name,), "seeds": 1}
    settings |= {"scheduler": job.scheduler, "rates_per_min": RATES, "by_workload": {}}
    if dataset == "math" and not draw:
        settings["budgets_s"] = (10, 30, 50, 100, 200, 300, 600, 1000)
    if job.budgets:
        settings |= {"budgets_s": (job.budgets,), "seeds": 4}
    if dataset == "humaneval":
        settings["num_queries"] = 131
    if draw:
        settings |= {"rates_per_min": (10.0, 100.0), "budgets_s": (50.0, 100.0, 200.0)}
    suite = load_suite("published", settings).resolve()
    player = suite.player()
    batch = player.begin(suite.cells())
    played = player.play(batch)
    slots = batch.simulation.policy_spec().max_num_seqs
    cells = [
        {"rate": cell.place[1], "budget": cell.place[2]}
        | of_queries(columns)
        | of_calls(batch.simulation.calls(row), slots, float(columns["arrival_s"].max()))
        for row, (cell, columns) in enumerate(played)
    ]
    player.close()
    return {"cells": cells}


def of_queries(columns: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return figures of the queries of an episode."""
    late = columns["latency_s"] > columns["budget_s"]
    tokens = columns["prompt_tokens"] + columns["output_tokens"].astype(np.float64)
    model, strategy = columns["model"], columns["strategy"]
    used = model >= 0
    routes = model[used].astype(np.int64) * len(STRATEGIES) + strategy[used]
    counts = np.bincount(routes, minlength=len(MODELS) * len(STRATEGIES))
    joint = counts.reshape(len(MODELS), len(STRATEGIES)).astype(np.float64)
    figures = {
        "accuracy": columns["solved"].mean(),
        "goodput": (columns["solved"] * ~late).mean(),
        "latency": columns["latency_s"].mean(),
        "slo_own": 1.0 - late.mean(),
        "slo_100": (columns["latency_s"] <= 100.0).mean(),
        "cost": columns["cost"].mean(),
        "imbalance": float(imbalance(joint.sum(axis=1))),
        "wasted": tokens[late].sum() / tokens.sum(),
    }
    plain = {name: float(f"{value:.5g}") for name, value in figures.items()}
    return plain | {"joint": [rounded(row) for row in joint / joint.sum()]}


def of_calls(calls: NDArray[Any], slots: NDArray[np.int64], until_s: float) -> dict[str, float]:
    """Return figures of the servers until the last arrival.

    Args:
        calls: (k,) CALL of an episode.
        slots: (M,) calls that a server runs at once.
        until_s: Time of the last arrival.

    Returns:
        Mean number of waiting calls; of those that wait while another server is empty; share of
        the slots in use; share of the servers' time in which they are empty.
    """
    calls, total_s = calls.copy(), max(until_s - float(calls["submit_s"].min()), 1e-9)
    for name in ("submit_s", "admitted_s", "finish_s"):
        calls[name] = np.minimum(calls[name], until_s)
    waited_s = calls["admitted_s"] - calls["submit_s"]
    ran_s = calls["finish_s"] - calls["admitted_s"]
    event_s, empty_s = time_with_an_empty_server(calls, len(slots))
    avoidable_s = np.interp(calls["admitted_s"], event_s, empty_s) - np.interp(
        calls["submit_s"], event_s, empty_s
    )
    used_s = 0.0  # by any call, of each server
    for server in range(len(slots)):
        own = calls[calls["model"] == server]
        own["model"] = 0
        times_s, idle_s = time_with_an_empty_server(own, 1)
        used_s += float(times_s[-1] - idle_s[-1])
    figures = {
        "waiting": waited_s.sum() / total_s,
        "avoidable": avoidable_s.sum() / total_s,
        "busy": ran_s.sum() / total_s / slots.sum(),
        "empty": 1.0 - used_s / total_s / len(slots),
    }
    return {name: float(f"{value:.4g}") for name, value in figures.items()}
