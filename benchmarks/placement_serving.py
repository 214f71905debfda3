"""Measure what placement's serving leaves out: ``python -m benchmarks.placement_serving``.

The same policies decide on the same jobs in two clusters that differ in how an awake instance
serves: by the line of `inframind_gym.simulator.placement.service`, or by the kernel of the routing
environments (vLLM's scheduler, a roofline step, KV cache, chunked prefill) with the server cards
that are estimated for the models. Writes the table of docs/placement.md, and all cells as CSV.

``--catalogue`` prints the constants that the estimated cards give the catalogue `h100`.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.pages import refresh, table
from inframind_gym.benchmark.placement.rollout import PlacementSimulator, env_kwargs
from inframind_gym.benchmark.placement.suite import PlacementCell, PlacementSuite
from inframind_gym.envs.placement.config import PlacementConfig, placement_config
from inframind_gym.envs.placement.observation import observe
from inframind_gym.envs.placement.reward import write_reward
from inframind_gym.envs.placement.simulation import PlacementSimulation
from inframind_gym.errors import friendly
from inframind_gym.files import replace_text
from inframind_gym.progress import say
from inframind_gym.simulator.estimate.architecture import find_architecture
from inframind_gym.simulator.estimate.roofline import Server, find_gpu
from inframind_gym.simulator.jit import SIMULATOR, inner, make_jit
from inframind_gym.simulator.placement import compiled
from inframind_gym.simulator.placement.cards import ModelCard
from inframind_gym.simulator.placement.choices import decide, write_mask
from inframind_gym.simulator.placement.episode import close_interval, open_interval
from inframind_gym.simulator.placement.instances import advance
from inframind_gym.simulator.placement.jobs import call_done, create_job
from inframind_gym.simulator.placement.memory import redraw_foreign
from inframind_gym.simulator.placement.service import count_answer, route, start_next, take_out
from inframind_gym.simulator.placement.state import MAX_CALLS, ClusterParams, ClusterState
from inframind_gym.simulator.server.engine import (
    finish_stretch,
    flush,
    release_request,
    reset_cluster,
    submit,
)
from inframind_gym.simulator.server.pool import ServerCard
from inframind_gym.simulator.server.state import Cluster, allocate, card_record

GPU: Final = "H100-80GB"
ARCHITECTURES: Final = {  # of the catalogue's models; those in brackets stand in for a like one
    "llama-3b": "llama-3.2-3b",
    "llama-8b": "llama-3.1-8b",
    "qwen-14b": "qwen2.5-14b",
    "mistral-24b": "mistral-small-24b",
    "qwen-7b": "qwen2.5-7b",
    "qwen-coder-14b": "qwen2.5-coder-14b",
    "gemma-9b": "gemma-2-9b",
    "qwen-32b": "qwen2.5-32b",
    "phi-4": "phi-4",
    "qwen-3b": "qwen2.5-3b",
    "deepseek-8b": "llama-3.1-8b",
    "deepseek-32b": "deepseek-r1-distill-32b",
    "mathstral-7b": "mistral-7b",
    "codestral-22b": "mistral-small-24b",  # (two billion parameters more)
    "llama-70b": "llama-3.3-70b",
    "qwen-72b": "qwen2.5-72b",
}
LONGEST: Final = 8192  # tokens of a prompt and its answer, under the shipped demands
CONTEXT: Final = 1000.0  # tokens that a call has cached in the mean, over the shipped demands
POLICIES: Final = (
    *("mcf_plus", "sb3_maskable_ppo", "greedy", "threshold"),
    *("lru", "static", "random", "mcf_spec"),
)
CLUSTERS: Final = ("h100-4gpu", "h100-16gpu", "h100-64gpu")
DEMANDS: Final = ("steady", "diurnal", "bursty", "shifting")
LOADS: Final = (0.5, 1.0, 1.5)
FIGURES: Final = {  # column: heading, compared as a ratio
    "running_s": ("running s", True),
    "call_s": ("call s", True),
    "job_s": ("job s", True),
    "job_p95_s": ("job p95 s", True),
    "slo_pct": ("SLO, points", False),
    "done_pct": ("done, points", False),
    "busy_pct": ("busy GPUs, points", False),
}


def server_card(card: ModelCard) -> ServerCard:
    """Return the estimated server card of a model of the catalogue, with the catalogue's limits."""
    model, gpu = find_architecture(ARCHITECTURES[card.alias]), find_gpu(GPU)[1]
    server = Server(model, gpu, card.tp_min, card.slots, 8192, LONGEST)
    return server.card(1e6 * card.active_mem_MB)


def serving_constants(card: ServerCard) -> dict[str, float]:
    """Return the constants of a placement catalogue: a line through batches of 1 and of all slots.

    Args:
        card: A server card; what KV reads cost is taken at CONTEXT tokens a sequence.
    """
    one_s, all_s = (
        card.step.base_s
        + card.step.computing_s(batch)
        + (card.step.per_seq_s + card.step.per_kv_token_s * CONTEXT) * batch
        for batch in (1, card.slots)
    )
    per_seq_s = (all_s - one_s) / (card.slots - 1)
    return {
        "base_s": float(f"{one_s - per_seq_s:.3g}"),
        "per_seq_s": float(f"{per_seq_s:.3g}"),
        "prefill_tokens_per_s": float(f"{1.0 / card.step.per_new_token_s:.3g}"),
    }


# A cluster whose instances are served by the kernel

_jit: Final = make_jit(
    *SIMULATOR,
    Path(compiled.__file__).parent,
    Path(compiled.__file__).parents[2] / "envs/placement/observation.py",
    Path(compiled.__file__).parents[2] / "envs/placement/reward.py",
    Path(__file__),
)


@inner
def send(
    world: ClusterParams,
    cluster: ClusterState,
    kernel: Cluster,
    tokens: NDArray[np.int64],
    e: int,
    g: int,
    identity: int,
    now_s: float,
) -> None:
    """Submit a call to the kernel if it was routed to leader `g` at this tick."""
    request = cluster.request[e, identity]
    if request.submit_s == now_s:
        row = e * world.gpu.shape[0] + g
        prompt, output = tokens[e, request.job, request.call]
        call = submit(kernel, row, cluster.server[e, g].model, now_s, 0.0, prompt, output)
        kernel.request[row, call].query = identity


@inner
def serve_by_kernel(
    world: ClusterParams,
    cluster: ClusterState,
    kernel: Cluster,
    tokens: NDArray[np.int64],
    e: int,
    g: int,
    from_s: float,
    to_s: float,
    end_s: float,
) -> None:
    """Run the server at leader `g` from one tick to the next (cf. `service.serve`)."""
    server = cluster.server[e, g]
    if server.running == 0:
        return
    for slot in range(server.running):  # the order of slots and of the queue is that of routing
        send(world, cluster, kernel, tokens, e, g, cluster.run_request[e, g, slot], from_s)
    for i in range(server.queued):
        place = (server.queue_head + i) % cluster.queue.shape[2]
        send(world, cluster, kernel, tokens, e, g, cluster.queue[e, g, place], from_s)
    row, m = e * world.gpu.shape[0] + g, server.model
    flush(kernel, row, from_s)
    while kernel.end_s[row, m] <= to_s:
        now_s = kernel.end_s[row, m]
        for i in range(finish_stretch(kernel, row, m, now_s)):
            identity = kernel.request[row, kernel.done[i]].query
            release_request(kernel, row, kernel.done[i])
            for slot in range(server.running):
                if cluster.run_request[e, g, slot] == identity:
                    server.next_slot = slot
            take_out(cluster, e, g, now_s, end_s)
            count_answer(cluster, e, g, identity, now_s)
            call_done(world, cluster, e, identity, now_s, to_s, end_s)
            start_next(cluster, e, g, now_s, end_s)
        flush(kernel, row, now_s)


@_jit
def run_interval(
    world: ClusterParams,
    cluster: ClusterState,
    kernel: Cluster,
    tokens: NDArray[np.int64],
    e: int,
    action: NDArray[np.int64],
    observation: NDArray[np.float32],
    terms: NDArray[np.float64],
) -> None:
    """Carry out a decision and let its interval pass (cf. `entry.run_interval`).

    Args:
        kernel: (E * G, M) servers: a row for each leader.
        tokens: (E, J, MAX_CALLS, 2) of the prompt and the answer of each call, written.
    """
    settings = world.settings[0]
    episode = cluster.episode[e]
    gpus = world.gpu.shape[0]
    if episode.tick == 0:
        for g in range(gpus):
            reset_cluster(kernel, e * gpus + g)
    end_s = (episode.tick + settings.ticks) * settings.routing_s
    open_interval(world, cluster, e, end_s)
    decide(world, cluster, e, action)
    for _ in range(settings.ticks):
        now_s = episode.tick * settings.routing_s
        episode.tick += 1
        next_s = episode.tick * settings.routing_s
        route(world, cluster, e, now_s, end_s)
        for g in range(gpus):
            serve_by_kernel(world, cluster, kernel, tokens, e, g, now_s, next_s, end_s)
        advance(world, cluster, e, next_s)
        while cluster.arrival_s[e, episode.next_job] <= next_s:
            slot = create_job(world, cluster, e, episode.next_job, next_s, end_s)
            for call in range(MAX_CALLS):
                tokens[e, slot, call, 0] = max(1, round(cluster.prompt[call]))
                tokens[e, slot, call, 1] = max(1, round(cluster.output[call]))
            episode.next_job += 1
        if episode.tick % settings.foreign_ticks == 0:
            redraw_foreign(world, cluster, e, episode.tick)
    close_interval(world, cluster, e, end_s)
    write_reward(world, cluster, e, terms)
    write_mask(world, cluster, e)
    observe(world, cluster, e, observation)


class KernelServed(PlacementSimulation):
    """Clusters whose awake instances are served by the kernel."""

    def __init__(self, config: PlacementConfig, num_envs: int) -> None:
        super().__init__(config, num_envs)
        cards = np.concatenate([card_record(server_card(card)) for card in self.cards])
        most = int((self.world.model["slots"] + self.world.model["queue"]).max())
        self.kernel = allocate(cards, num_envs * self.num_gpus, most)
        self.tokens = np.zeros((*self.state.job.shape, MAX_CALLS, 2), np.int64)

    def step_rows(
        self,
        rows: NDArray[np.int64],
        actions: NDArray[np.int64],
        observations: NDArray[np.float32],
    ) -> None:
        """Carry out a decision in the environments `rows` (k,)."""
        for e in rows.tolist():
            run_interval(
                *(self.world, self.state, self.kernel, self.tokens),
                *(e, actions[e], observations[e], self.terms[e]),
            )


# Comparison


class Sampled(PlacementSimulator):
    """Plays cells on clusters of one kind, and samples them at every decision.

    Attributes:
        kind: Of the clusters.
        simulation: Those of the last cells.
        running, busy: (E,) calls that run, and GPUs at work, summed over decisions.
    """

    kind: type[PlacementSimulation]

    def _simulation(self, policy: Any, cell: PlacementCell, rows: int) -> PlacementSimulation:
        kwargs = env_kwargs(self.suite, cell.cluster, cell.demand)
        self.simulation = self.kind(placement_config(kwargs), rows)
        self.running, self.busy = np.zeros(rows), np.zeros(rows)
        self.progress = self._sample
        return self.simulation

    def _sample(self, _: int) -> None:
        state, tp = self.simulation.state, self.simulation.world.model["tp"]
        self.running += state.episode["serving"]
        working = (state.server["model"] >= 0) & (state.server["running"] > 0)
        self.busy += (working * tp[state.server["model"]]).sum(axis=1)


def figures(played: Sampled, e: int) -> dict[str, float]:
    """Return the FIGURES of one episode; `running_s` by Little's law."""
    simulation, decisions = played.simulation, played.suite.num_decisions
    summary = simulation.summary(e)
    jobs = simulation.finished(e)["latency_s"]
    answered = max(int(simulation.state.episode[e]["requests_done"]), 1)
    return {
        "running_s": played.running[e] / decisions * float(simulation.now_s()[e]) / answered,
        "call_s": summary["mean_call_latency_s"],
        "job_s": float(jobs.mean()),
        "job_p95_s": float(np.quantile(jobs, 0.95)),
        "slo_pct": 100.0 * (1.0 - summary["late_share"]),
        "done_pct": 100.0 * len(jobs) / max(summary["jobs_arrived"], 1),
        "busy_pct": 100.0 * played.busy[e] / decisions / simulation.num_gpus,
    }


def compare(place: tuple[str, str, float], policy: str, seeds: int) -> dict[str, Any]:
    """Return the figures of a cell, means over seeds, with both ways to serve."""
    cluster, demand, load = place
    suite = PlacementSuite(
        name="serving",
        policies=(policy,),
        clusters=(cluster,),
        demands=(demand,),
        seeds=seeds,
        load=load,
    )
    cells = [PlacementCell(policy, cluster, demand, seed) for seed in range(seeds)]
    row: dict[str, Any] = dict(zip(("cluster", "demand", "load"), place, strict=True))
    row["policy"] = policy
    for name, kind in (("line", PlacementSimulation), ("kernel", KernelServed)):
        played = Sampled(suite)
        played.kind = kind
        list(played.run(cells))
        found = [figures(played, e) for e in range(seeds)]
        for figure in FIGURES:
            row[f"{figure}_{name}"] = float(np.mean([of[figure] for of in found]))
    return row


def swapped(rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, tuple[str, str]]]:
    """Return the pairs of policies that the two rank otherwise in a place.

    Returns:
        By how much the kernel's mean latencies of a call differ, as a share, and the policies.
    """
    places: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        places.setdefault((row["cluster"], row["demand"], row["load"]), []).append(row)
    found = []
    for own in places.values():
        for one, other in combinations(own, 2):
            line, kernel = (
                one[f"call_s_{name}"] - other[f"call_s_{name}"] for name in ("line", "kernel")
            )
            if line * kernel < 0.0:
                least = min(one["call_s_kernel"], other["call_s_kernel"])
                found.append((abs(kernel) / least, (one["policy"], other["policy"])))
    return sorted(found, reverse=True)


def difference(rows: Sequence[Mapping[str, Any]], figure: str) -> tuple[float, float, float]:
    """Return line against kernel over cells: mean, and the 5th and 95th percentile.

    In percent (geometric mean) where `FIGURES` compares ratios, else in points.
    """
    line, kernel = (
        np.array([row[f"{figure}_{name}"] for row in rows]) for name in ("line", "kernel")
    )
    ratio = FIGURES[figure][1]
    off = np.log(line / kernel) if ratio else line - kernel
    low, high = np.quantile(off, (0.05, 0.95))
    mean, low, high = (
        100.0 * math.expm1(value) if ratio else float(value) for value in (off.mean(), low, high)
    )
    return mean, low, high


def summary_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the page: line against kernel, over all cells and by cluster and load."""

    def lines() -> Iterator[list[str]]:
        groups = [("all", rows)]
        for key in ("cluster", "load"):
            for value in dict.fromkeys(row[key] for row in rows):
                title = value if key == "cluster" else f"load {value:g}"
                groups.append((title, [row for row in rows if row[key] == value]))
        for title, own in groups:
            found = (difference(own, figure) for figure in FIGURES)
            texts = [f"{mean:+.1f} ({low:+.0f}…{high:+.0f})" for mean, low, high in found]
            yield [title, str(len(own)), *(text.replace("-", "−") for text in texts)]

    headings = [f"{name}{', %' if ratio else ''}" for name, ratio in FIGURES.values()]
    pairs, out_of = len(swapped(rows)), len(rows) * (len(POLICIES) - 1) // 2
    note = f"Ranked otherwise: {pairs} of {out_of} pairs of policies in a place"
    return f"{table(['cells', '', *headings], lines())}\n\n{note}."


def main(
    docs: Annotated[Path, typer.Option(help="Folder of placement.md.")] = Path("docs"),
    seeds: Annotated[int, typer.Option(min=1, help="Episodes of every cell.")] = 1,
    catalogue: Annotated[bool, typer.Option(help="Print constants, play nothing.")] = False,
) -> None:
    """Compare placement's serving with the kernel, on the shipped clusters and demands."""
    with friendly():
        if catalogue:
            largest = PlacementSimulation(PlacementConfig(cluster=CLUSTERS[-1]), 1)
            for card in largest.cards:
                print(card.alias, serving_constants(server_card(card)))
            return
        rows = []
        for place in product(CLUSTERS, DEMANDS, LOADS):
            say(f"playing {', '.join(map(str, place))} ...")
            rows += [compare(place, policy, seeds) for policy in POLICIES]
        text = io.StringIO()
        writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})
        replace_text(docs / "placement_serving.csv", text.getvalue())
        refresh(docs / "placement.md", {"serving": summary_table(rows)})
        print(summary_table(rows))
        for share, pair in swapped(rows):
            print(f"{100 * share:.1f} % apart: {' and '.join(pair)}")


if __name__ == "__main__":
    typer.run(main)
